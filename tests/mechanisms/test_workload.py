"""Workloads against itertools."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from mechanisms.queries.query_sets import QuerySet
from mechanisms.workload import (
    Workload,
    downward_closure,
    k_way,
    pairs_of,
    random_k_way,
    table_workload,
    target_biased,
    with_predictors,
)
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.runtime.sizes import FEW_CELLS

DOMAIN = Domain({"a": 2, "b": 3, "c": 4, "d": 5})


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_k_way_is_all_combinations(k: int) -> None:
    workload = k_way(DOMAIN, k)
    assert len(workload) == math.comb(4, k)
    assert workload.cliques == tuple(itertools.combinations("abcd", k))
    assert set(workload.weights) == {1.0}


@pytest.mark.parametrize("k", [0, 5, -1, 1.0, True, "2", None])
def test_bad_k_is_refused(k: object) -> None:
    with pytest.raises(InvalidInput, match="k must be a whole number(, got| from 1 to 4)"):
        k_way(DOMAIN, k)
    if isinstance(k, int) and k > 1:  # where a workload is asked for, nothing is called k
        with pytest.raises(InvalidInput, match="workload: k must be"):
            table_workload(DOMAIN, k)


def test_closure_is_every_subset_once() -> None:
    workload = Workload(DOMAIN, [("c", "a", "b"), ("d", "b"), ("d",)])
    closure = downward_closure(workload)
    expected = {
        frozenset(s)
        for c in workload.cliques
        for r in range(1, 4)
        for s in itertools.combinations(c, r)
    }
    assert {frozenset(c) for c in closure} == expected
    assert len(closure) == len(expected)
    assert [len(c) for c in closure] == sorted(len(c) for c in closure)


@pytest.mark.parametrize(
    ("cliques", "weights", "message"),
    [
        ([], None, "empty"),
        ([("a", "x")], None, "unknown attribute 'x'"),
        ([("a", "a")], None, "twice"),
        (["ab"], None, "a list with str"),
        ("ab", None, "sequence of sequences of texts, got 'ab'"),
        (2, None, "sequence of sequences of texts, got 2"),
        ([("a", "b"), ("b", "a")], None, "twice"),
        ([("a",)], [0.0], "above 0"),
        ([("a",)], [-1.0], "above 0"),
        ([("a",)], [math.nan], "above 0"),
        ([("a",)], [1.0, 2.0], "one a clique"),
    ],
)
def test_bad_workloads_are_refused(
    cliques: list[tuple[str, ...]], weights: list[float] | None, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        Workload(DOMAIN, cliques, weights)


def test_cliques_stand_for_a_workload() -> None:
    cliques = [("a",), ("b", "a")]
    weighted = Workload(DOMAIN, cliques, [1.0, 2.0])
    assert Workload.over(DOMAIN, weighted) is weighted
    for like in (cliques, tuple(cliques), map(list, cliques), (iter(c) for c in cliques)):
        assert Workload.over(DOMAIN, like) == Workload(DOMAIN, cliques)
    with pytest.raises(InvalidInput, match=r"got dict; for weights write Workload\("):
        Workload.over(DOMAIN, {("a",): 1.0, ("b", "a"): 2.0})
    with pytest.raises(InvalidInput, match="another domain"):
        Workload.over(Domain({"a": 2}), weighted)


def test_a_target_weighs_marginals_and_no_queries() -> None:
    asked = Workload(DOMAIN, [("a", "b")]).asking({"a": "prefix"})
    with pytest.raises(InvalidInput, match="a target gives marginals more weight"):
        table_workload(DOMAIN, asked, "a")


def test_sets_of_predictors_end_where_there_would_be_too_many() -> None:
    """With the 66 pairs of 12 columns there are 1,574 sets of up to five, above 1,024."""
    names = [f"x{i}" for i in range(12)]
    pairs = table_workload(Domain(dict.fromkeys([*names, "y"], 2)), 2, "y")
    more = [len(clique) - 1 for clique in with_predictors(pairs, "y").cliques[len(pairs) :]]
    assert {size: more.count(size) for size in more} == {3: 220, 4: 495}


def test_what_is_sought_is_no_longer_asked() -> None:
    workload = Workload(DOMAIN, [("a", "b"), ("c", "a", "b")], [2, 3], sought=[("a", "b", "c")])
    assert workload.sought == (("c", "a", "b"),)
    assert workload.asked.cliques == (("a", "b"),) and workload.asked.weights == (2.0,)
    target = with_predictors(table_workload(DOMAIN, 2, "a"), "a")
    assert {len(clique) for clique in target.asked.cliques} == {2}
    assert {len(clique) for clique in target.sought} == {3, 4}
    queries = workload.asking({"a": "prefix"})
    assert queries.sought == workload.sought and not queries.plain
    assert [each.asked for each in queries.asked.sets] == [("prefix", "identity")]
    with pytest.raises(InvalidInput, match="no cliques of the workload"):
        Workload(DOMAIN, [("a", "b")], sought=[("a", "c")])
    with pytest.raises(InvalidInput, match="all cliques of the workload are sought"):
        Workload(DOMAIN, [("a", "b")], sought=[("a", "b")])


def test_pairs_of_a_table_leave_out_columns_of_one_value() -> None:
    domain = Domain({"a": 2, "one": 1, "b": 3, "c": 2})
    assert table_workload(domain).cliques == (("a", "b"), ("a", "c"), ("b", "c"))
    assert table_workload(domain, 1).cliques == (("a",), ("b",), ("c",))
    assert table_workload(domain, 3).cliques == table_workload(domain, 4).cliques
    assert table_workload(domain, 4).cliques == (("a", "b", "c"),)
    assert table_workload(Domain({"a": 2})).cliques == (("a",),)
    assert table_workload(Domain({"a": 2, "b": 2})).cliques == (("a", "b"),)
    triples = list(itertools.combinations("abcd", 3))
    assert table_workload(Domain(dict.fromkeys("abcd", 2)), 3).cliques == tuple(triples)
    with pytest.raises(InvalidInput, match="target: there is no column 'z'"):
        table_workload(domain, 2, "z")


def test_a_target_weighs_four_times_and_adds_what_is_not_there() -> None:
    domain = Domain({"a": 2, "b": 3, "c": 2})
    found = table_workload(domain, [("a", "b"), ("c", "b")], "a")
    assert found.by_clique == {("a", "b"): 4.0, ("c", "b"): 1.0, ("b", "c", "a"): 4.0}
    assert set(found.sought) == {("b", "c", "a")}
    asked = table_workload(domain, [("c", "a", "b")], "a")
    assert asked.by_clique == {("c", "a", "b"): 4.0} and not asked.sought


def test_predictors_vary_and_have_few_cells() -> None:
    sizes = {"y": 2, "a": 2, "b": 2, "c": FEW_CELLS // 8, "d": FEW_CELLS // 8 + 1, "one": 1}
    pairs = Workload(Domain(sizes), [("y", "a")], [3.0])
    assert with_predictors(pairs, "y").by_clique == {("y", "a"): 3.0, ("a", "b", "c", "y"): 3.0}
    there = Workload(Domain(sizes), [("c", "y", "b", "a")])
    assert with_predictors(there, "y").by_clique == there.by_clique


@pytest.mark.parametrize(("others", "sizes"), [(10, range(3, 11)), (13, range(3, 4))])
def test_all_sets_of_two_and_more_count_towards_the_most(others: int, sizes: range) -> None:
    """Of 10 columns there are 1,013 sets of two and more; of 13 there are 1,079 of two to four."""
    pairs = table_workload(Domain(dict.fromkeys([*map(str, range(others)), "y"], 2)), 2, "y")
    more = [len(clique) - 1 for clique in with_predictors(pairs, "y").cliques[len(pairs) :]]
    few = [size for size in sizes if 2 ** (size + 1) <= FEW_CELLS]
    assert {size: more.count(size) for size in more} == {k: math.comb(others, k) for k in few}


def test_pairs_within_cliques_are_of_columns_that_vary() -> None:
    domain = Domain({"a": 2, "one": 1, "b": 3, "c": 2})
    assert list(pairs_of(domain, [("c", "one", "a"), ("b",)])) == [("a", "c")]
    assert set(pairs_of(domain, [("c", "b", "a")])) == {("a", "b"), ("a", "c"), ("b", "c")}


def test_some_cliques_are_drawn_without_repetition_and_in_order() -> None:
    every = list(itertools.combinations("abcd", 2))
    for count in (1, 3, 6):
        found = random_k_way(DOMAIN, 2, count, np.random.default_rng(0)).cliques
        assert len({*found}) == count and list(found) == [c for c in every if c in found]
    for count in (0, 7):
        with pytest.raises(InvalidInput):
            random_k_way(DOMAIN, 2, count, np.random.default_rng(0))


def test_cliques_in_another_order_are_the_same_and_unknown_columns_are_refused() -> None:
    sets = [
        QuerySet(("a", "b"), ("prefix", "identity"), 2.0),
        QuerySet(("b", "a"), ("identity",) * 2),
    ]
    assert [set(clique) for clique in Workload.of(DOMAIN, sets).cliques] == [{"a", "b"}]
    with pytest.raises(InvalidInput):
        Workload(DOMAIN, [("a", "b"), ("b", "a")])
    with pytest.raises(InvalidInput, match="'z'"):
        k_way(DOMAIN, 2).asking({"z": "prefix"})
    with pytest.raises(InvalidInput, match="target: there is no column 'z'"):
        target_biased(DOMAIN, 2, "z")
