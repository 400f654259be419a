"""Domain against itertools and exact integer products."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmkit import FactoredQuery, Measurement, Zeros
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput, PgmkitError

SIZES = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 10**6), min_size=1)


@given(SIZES, st.data())
def test_shape_size_and_project_follow_the_given_order(
    sizes: dict[str, int], data: st.DataObject
) -> None:
    domain = Domain(sizes)
    attrs = data.draw(st.lists(st.sampled_from(list(sizes)), unique=True))
    assert domain.attributes == tuple(sizes) == tuple(domain)
    assert dict(domain.sizes) == sizes and len(domain) == len(sizes)
    assert domain.shape() == tuple(sizes.values())
    assert domain.size() == math.prod(sizes.values())
    assert domain.shape(attrs) == tuple(sizes[a] for a in attrs)
    assert domain.size(attrs) == math.prod(sizes[a] for a in attrs)
    assert domain.project(attrs).attributes == domain.clique(attrs) == tuple(attrs)


def test_size_is_exact_beyond_64_bits() -> None:
    assert Domain({f"a{i}": 1001 for i in range(50)}).size() == 1001**50


def test_equality_and_hash_respect_order() -> None:
    sizes: Any = {"a": np.int64(2), "b": 3}
    one, two = Domain({"a": 2, "b": 3}), Domain(sizes)
    assert one == two and hash(one) == hash(two)
    assert one != Domain({"b": 3, "a": 2})
    assert one != {"a": 2, "b": 3}
    assert type(two.sizes["a"]) is int
    assert one.project(["b", "a"]).project(["a", "b"]) == one


def test_domain_over_nothing_comes_only_from_project() -> None:
    nothing = Domain({"a": 2}).project(())
    assert nothing.attributes == () and nothing.shape() == () and nothing.size() == 1
    with pytest.raises(InvalidInput, match="at least one attribute"):
        Domain({})


def test_domain_cannot_be_changed() -> None:
    sizes = {"a": 2}
    domain = Domain(sizes)
    sizes["a"] = 9
    assert domain.sizes["a"] == 2
    with pytest.raises(TypeError):
        domain.sizes["a"] = 3  # type: ignore[index]
    with pytest.raises(AttributeError):
        domain.sizes = {}


def test_domain_can_be_copied_and_pickled() -> None:
    domain = Domain({"a": 2, "b": 3})
    assert copy.deepcopy(domain) == pickle.loads(pickle.dumps(domain)) == domain
    nothing = domain.project(())
    assert copy.copy(nothing) == nothing


@pytest.mark.parametrize(
    "size", [0, -1, 2.0, 2.5, True, False, "2", None, float("nan"), np.float64(3), 1j]
)
def test_bad_sizes_are_refused(size: object) -> None:
    with pytest.raises(InvalidInput, match=r"'age' must be a whole number, 1 or more"):
        Domain({"age": size})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["", 1, None, ("a",), True])
def test_bad_names_are_refused(name: object) -> None:
    with pytest.raises(InvalidInput, match="non-empty string"):
        Domain({name: 2})  # type: ignore[dict-item]


@pytest.mark.parametrize("sizes", [None, [("a", 2)], 3, "a"])
def test_sizes_must_be_a_mapping(sizes: object) -> None:
    with pytest.raises(InvalidInput, match="sizes must be a mapping from attributes to sizes"):
        Domain(sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ("age", "got the string 'age'"),
        (b"age", "string"),
        (["age", "age"], "'age' twice"),
        (["age", "income"], "unknown attribute 'income'"),
        ([1], "unknown attribute 1"),
        ([["age"]], "unknown attribute"),
        (3, "got 3"),
    ],
)
def test_bad_cliques_are_refused(attrs: Any, message: str) -> None:
    domain = Domain({"age": 10, "sex": 2})
    for verb in (domain.clique, domain.shape, domain.size, domain.project):
        with pytest.raises(InvalidInput, match=message):
            verb(attrs)
    with pytest.raises(PgmkitError, match="^workload"):
        domain.clique(attrs, "workload")


def test_membership() -> None:
    domain = Domain({"age": 10})
    assert "age" in domain and "sex" not in domain and ["age"] not in domain


@given(st.integers(0, 2**32))
def test_the_smallest_clique_that_holds_attributes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    domain = Domain({name: int(rng.integers(1, 5)) for name in "abcde"})
    cliques = [
        tuple(rng.permutation(list("abcde"))[: rng.integers(1, 5)].tolist()) for _ in "123456"
    ]
    wanted = rng.permutation(list("abcde"))[: rng.integers(0, 3)].tolist()
    holding = [i for i, clique in enumerate(cliques) if set(wanted) <= set(clique)]
    cells = [int(np.prod([domain.sizes[n] for n in clique])) for clique in cliques]
    best = min(holding, key=lambda i: (cells[i], i)) if holding else None
    assert domain.smallest_holding(cliques, wanted) == best


def test_a_clique_of_another_domain_holds_nothing() -> None:
    with pytest.raises(InvalidInput, match="unknown attribute 'x'"):
        Domain({"a": 2}).smallest_holding([("a",), ("x",)], ["a"])


def test_places_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        Domain({"a": 2, "b": 3}).places["a"] = 1  # type: ignore[index]


def test_a_cell_map_is_the_callers_own() -> None:
    domain = Domain({"a": 2, "b": 3})
    domain.cell_map(["a", "b"], ["b"])[:] = 9
    assert domain.cell_map(["a", "b"], ["b"]).tolist() == [0, 1, 2, 0, 1, 2]


def test_the_cell_map_of_a_large_table() -> None:
    domain = Domain({"a": 300, "b": 200, "c": 3})
    found = domain.cell_map(["a", "b", "c"], ["c", "a"])
    a, _, c = np.unravel_index(np.arange(180_000), (300, 200, 3))
    np.testing.assert_array_equal(found, c * 300 + a)


def test_refusals_name_what_is_wrong_and_twenty_attributes() -> None:
    with pytest.raises(InvalidInput, match="names the attribute 'b' twice"):
        Domain({"a": 2, "b": 3}).clique(("a", "b", "b"))
    names = [f"x{i}" for i in range(21)]
    listed = ", ".join(map(repr, names[:20]))
    for known, shown in ((names[:20], listed), (names, f"{listed}, ... (21 in all)")):
        with pytest.raises(InvalidInput) as caught:
            Domain(dict.fromkeys(known, 2)).clique(("y",))
        assert str(caught.value).endswith(f"the domain has {shown}")


@pytest.mark.parametrize(
    "call",
    [
        lambda other: FactoredQuery.marginal(other, ("a",)),
        lambda other: FactoredQuery({"a": [1.0, 1.0]}).check(other),
        lambda other: Measurement(("a",), [1.0, 2.0], 1.0).check(other),
        lambda other: Zeros(("a",), [True, False]).within(other, ("a",)),
    ],
)
def test_what_needs_a_domain_says_so(call: Any) -> None:
    with pytest.raises(InvalidInput, match="domain must be a pgmkit Domain, got dict"):
        call({"a": 2})
