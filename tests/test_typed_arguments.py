"""Public functions whose annotations are checked refuse every other type by the argument's name."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import mechanisms
import pgmkit
from pgmkit import Domain, InvalidInput, Measurement
from pgmkit.runtime.typed import kind_of, typed

MODULES = (pgmkit, mechanisms, pgmkit.uai, pgmkit.bif, mechanisms.settings)
PLACES = (*MODULES, importlib.import_module("mechanisms.datasets.census"))


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function, constructor and method that ``typed`` has wrapped."""
    for module in PLACES:
        for name in module.__all__:
            thing = getattr(module, name)
            found = {name: thing}
            if inspect.isclass(thing):
                found = {f"{name}.{key}": value for key, value in inspect.getmembers(thing)}
            for key, each in found.items():
                function = getattr(each, "__func__", each)
                if inspect.isfunction(function) and hasattr(function, "__wrapped__"):
                    yield key, function


CHECKED = dict(public()) | {entry.name: entry.load()[0] for entry in mechanisms.MECHANISMS.values()}
UNCHECKED = re.compile(r"Any|object|ArrayLike|NDArray|\bT\b")
"""Annotations of which nothing, or only that they are arrays, is checked."""


@pytest.mark.parametrize("name", CHECKED)
def test_another_type_is_refused_by_name(name: str) -> None:
    """The check comes before the call, so the other arguments may be missing."""
    function = CHECKED[name]
    hints = {key: each.annotation for key, each in inspect.signature(function).parameters.items()}
    for parameter, hint in hints.items():
        if parameter in ("self", "cls") or re.search(
            "Any|object|ArrayLike|NDArray|\\bT\\b", str(hint)
        ):
            continue
        for value in (object(), ...):
            with pytest.raises((InvalidInput, TypeError)) as refused:
                function(**{parameter: value})
            if refused.type is InvalidInput:
                assert str(refused.value).startswith(f"{parameter} must be "), parameter
            else:  # the annotation has names that only a type checker imports
                assert "argument" in str(refused.value)


def test_most_of_the_curator_is_checked() -> None:
    names = [name for name in CHECKED if name.startswith("Curator.")]
    assert len(names) >= 18
    for name in ("run", "k_way", "plan", "aim", "mst", "Workload.__init__", "TableRelease.sample"):
        assert name in CHECKED


ALLOWED: list[tuple[Any, list[Any], list[Any]]] = [
    (int, [3, np.int64(3)], [True, 3.5, "3", None, [3]]),
    (float, [3, 0.5, np.float32(1), float("nan")], ["x", None, 10**400, [1.0]]),
    (bool, [True, np.bool_(False)], [0, "True", None]),
    (str, ["a"], [b"a", 1, None]),
    (int | None, [None, 1], ["a", 1.5]),
    (Literal["a", "b"], ["a"], ["c", None, np.array(["a", "a"])]),
    (Domain, [Domain({"a": 2})], [{"a": 2}, None]),
    (Sequence[str], [["a"], ("a",), []], ["a", {"a": 1}, ["a", 1], iter("a"), None]),
    (tuple[tuple[str, int], ...], [(("a", 1),), ()], [1, (1,)]),
    (Sequence[Measurement], [[Measurement(("a",), [1.0], 1.0)]], [[1], 3, np.zeros(3)]),
    (Mapping[str, int], [{"a": 1}], [[("a", 1)], None]),
    (Callable[[int], int], [abs, len], [3, "abs"]),
    (Path | str, [Path("a"), "a"], [3, None]),
]


@pytest.mark.parametrize(("hint", "fine", "wrong"), ALLOWED, ids=[str(each[0]) for each in ALLOWED])
def test_kinds_of_values(hint: Any, fine: list[Any], wrong: list[Any]) -> None:
    kind = kind_of(hint)
    assert kind is not None
    assert [kind.holds(value) for value in fine] == [True] * len(fine)
    assert [kind.holds(value) for value in wrong] == [False] * len(wrong)


def test_messages_show_numbers_but_no_contents() -> None:
    @typed
    def kept(rows: int) -> int:
        return rows

    for value, shown in (
        (1.5, "1.5"),
        ("x", "'x'"),
        ([4711], "list"),
        (np.full(2, 4711), "ndarray"),
    ):
        with pytest.raises(InvalidInput, match=f"rows must be a whole number, got {shown}$"):
            kept(value)  # type: ignore[arg-type]
