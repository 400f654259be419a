"""Settings of every registered mechanism: defaults, wrong values of every field, their words."""

import dataclasses
import inspect
import math
import types
import typing
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as drawn
from hypothesis import strategies as st

from mechanisms import MECHANISMS
from mechanisms.registry import configure
from mechanisms.settings import RULE
from pgmkit.errors import InvalidInput

FIELDS = [
    (name, field.name) for name in MECHANISMS for field in dataclasses.fields(configure(name)[1])
]


class Odd:
    """No setting is one of these."""


ODD = [Odd(), b"bytes", 1j, {1, 2}, np.array([1, 2]), {"a": Odd()}]
BELOW = st.one_of(st.integers(max_value=-1), st.floats(max_value=-1e-9))
NO_NUMBER = st.sampled_from([math.nan, math.inf, -math.inf])
FRACTIONS = st.floats(0.01, 0.99)


@cache
def hints(settings: type) -> dict[str, Any]:
    return typing.get_type_hints(settings)


@cache
def wrong_for_field(settings: type, field: str) -> st.SearchStrategy[Any]:
    return wrong_for(hints(settings)[field], getattr(settings(), field))


def wrong_for(hint: Any, default: Any) -> st.SearchStrategy[Any]:
    """Values that nothing of this type may be, told from the annotation and not from the rule."""
    if isinstance(hint, types.UnionType):
        (inner,) = (each for each in typing.get_args(hint) if each is not type(None))
        return wrong_for(inner, default)
    origin = typing.get_origin(hint)
    texts = st.text(min_size=1)
    odd = st.sampled_from(ODD)
    if hint is bool:
        return st.one_of(st.integers(), texts, st.none(), odd, NO_NUMBER)
    if hint is int:
        return st.one_of(BELOW, NO_NUMBER, FRACTIONS, st.booleans(), texts, odd)
    if hint is float:
        return st.one_of(BELOW, NO_NUMBER, st.booleans(), texts, odd)
    if hint is str:
        return st.one_of(st.integers(), st.floats(), st.booleans(), odd, st.just(""))
    if origin is typing.Literal:
        known = typing.get_args(hint)
        return st.one_of(texts.filter(lambda text: text not in known), st.integers(), odd)
    if origin is tuple:
        entries = wrong_for(typing.get_args(hint)[0], None)
        return st.one_of(st.tuples(entries), st.lists(st.integers()), texts, st.integers(), odd)
    return st.one_of(st.integers(), texts, odd)  # a mapping


@pytest.mark.parametrize(("name", "field"), FIELDS)
@drawn(max_examples=20)
@given(data=st.data())
def test_a_wrong_value_of_any_field_is_refused_by_name(
    name: str, field: str, data: st.DataObject
) -> None:
    settings = type(configure(name)[1])
    value = data.draw(wrong_for_field(settings, field))
    with pytest.raises(InvalidInput, match=rf"^{field} must .*; got ") as refusal:
        settings(**{field: value})
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_what_ends_a_range_is_refused(name: str, field: str) -> None:
    """Zero of what is counted, and a share of everything."""
    settings = type(configure(name)[1])
    hint, default = hints(settings)[field], getattr(settings(), field)
    edges: list[Any] = []
    if hint in (int, int | None) and field != "seed":
        edges.append(0)
    if field.endswith("share"):
        edges += [1, 1.0, 1.5]
    if field in ("learning_rate", "pretrain_rate", "tolerance", "eta", "gamma", "noise"):
        edges.append(0.0)
    if field in ("device", "select", "gradient", "precision", "result"):
        edges.append("other")
    if isinstance(default, tuple) and default:
        edges.append(())
    for edge in edges:
        with pytest.raises(InvalidInput, match=rf"^{field} must "):
            settings(**{field: edge})


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_field_has_a_rule_and_a_sentence(name: str) -> None:
    settings = configure(name)[1]
    described = "\n".join(
        inspect.getdoc(each) or ""
        for each in type(settings).__mro__
        if dataclasses.is_dataclass(each)
    )
    for field in dataclasses.fields(settings):
        assert RULE in field.metadata, field.name
        assert f"\n    {field.name}: " in described, field.name
    assert not dataclasses.fields(settings) or "Attributes:" in described


@pytest.mark.parametrize("name", MECHANISMS)
def test_defaults_can_be_given_back(name: str) -> None:
    settings = configure(name)[1]
    assert configure(name, **dataclasses.asdict(settings))[1] == settings


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mst", {"one_way_share": 0.5, "select_share": 0.5}, "must leave something for the pairs"),
        ("clique-tree", {"one_way_share": 0.6, "select_share": 0.6}, "something for the tree"),
        *(
            (name, {"select": "marginals", "queries": 2}, "queries must be 1 where whole marginals")
            for name in ("mwem", "pep", "pep-pub", "pmw-pub", "gem", "gem-pub")
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        configure(name, **options)
