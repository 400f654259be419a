"""Bounds of a grown junction tree against every order of elimination, and what fits by them."""

import warnings
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest

from mechanisms.families.graphical import (
    Affordable,
    cells_with_pairs,
    check_fits_workload,
    estimator,
    model_megabytes,
)
from mechanisms.workload import Workload
from pgmkit import Measurement, Zeros
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, NotCertified, warn
from pgmkit.graphs.junction_tree import junction_tree
from pgmkit.runtime.memory import MEMORY_LIMIT

NAMES = tuple("abcdef")


def fewest_cells(domain: Domain, cliques: list[Clique]) -> int:
    """The best of all orders: the maximal cliques that elimination joins."""
    best = 0
    for order in permutations(domain):
        near = {name: {o for c in cliques if name in c for o in c} - {name} for name in domain}
        made: list[frozenset[str]] = []
        for name in order:
            around = near.pop(name)
            made.append(frozenset(around | {name}))
            for other in around:
                near[other] = (near[other] | around) - {name, other}
        maximal = {one for one in made if not any(one < other for other in made)}
        cells = sum(domain.size(tuple(one)) for one in maximal)
        best = min(best, cells) if best else cells
    return best


@pytest.mark.parametrize("seed", range(12))
def test_a_bound_is_never_below_the_best_tree_nor_the_tree_it_grew_from(seed: int) -> None:
    rng = np.random.default_rng(seed)
    domain = Domain({name: int(rng.integers(2, 7)) for name in NAMES})
    pairs = list(combinations(NAMES, 2))
    some = rng.choice(len(pairs), int(rng.integers(0, 9)), replace=False)
    measured = [pairs[i] for i in some]
    tree = junction_tree(domain, measured)
    bounds = cells_with_pairs(tree)
    for pair in [pairs[i] for i in rng.choice(len(pairs), 3, replace=False)]:
        bound = bounds[domain.places[pair[0]], domain.places[pair[1]]]
        assert bound >= max(tree.cells, fewest_cells(domain, [*measured, pair]))


@pytest.mark.parametrize("seed", range(20))
def test_the_bounds_of_all_pairs_grow_by_the_pairs_that_no_clique_holds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    domain = Domain({name: int(rng.integers(1, 7)) for name in "abcdefgh"})
    every = [c for size in (1, 2, 3) for c in combinations(domain, size)]
    measured = [every[i] for i in rng.choice(len(every), int(rng.integers(0, 12)), replace=False)]
    tree = junction_tree(domain, measured)
    together = cells_with_pairs(tree)
    for (i, a), (j, b) in combinations(enumerate(domain), 2):
        held = tree.holds((a, b)) is not None
        assert together[i, j] == together[j, i]
        assert (together[i, j] == tree.cells) == held
        if len(measured) < 5:
            names = {name for c in [*measured, (a, b)] for name in c}
            if len(names) <= 6:
                small = Domain({n: size for n, size in domain.sizes.items() if n in names})
                alone = sum(size for n, size in domain.sizes.items() if n not in names)
                assert together[i, j] >= fewest_cells(small, [*measured, (a, b)]) + alone


def test_closing_a_chain_carries_one_end_along_it() -> None:
    domain = Domain({"a": 2, "b": 3, "c": 4, "d": 5})
    bounds = cells_with_pairs(junction_tree(domain, [("a", "b"), ("b", "c"), ("c", "d")]))
    # Carried from a to (c, d): (a, b, c), then (a, c, d). The other way about takes more.
    assert bounds[0, 3] == 38 + 24 + 40


@pytest.mark.parametrize("seed", range(6))
def test_what_fits_within_a_growing_limit_is_what_a_search_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    domain = Domain({name: int(rng.integers(2, 9)) for name in "abcdefgh"})
    candidates = list(combinations(domain, 2))
    affordable = Affordable(domain, candidates)
    measured: list[Clique] = []
    for step in range(1, 9):
        limit = 0.0006 * step
        possible, fits = affordable.within(measured, limit, 0.01)
        fitting = [clique for clique in possible if fits(clique)]
        small = [c for c in candidates if model_megabytes(domain, [*measured, c]) <= limit]
        # On so small graphs the greedy orders are rarely beaten, and then by a search only.
        assert set(small) <= set(fitting)
        for clique in fitting:
            found = junction_tree(domain, [*measured, clique]).bytes() / 2**20
            assert found <= (limit if small else 0.01)
        measured.append(fitting[int(rng.integers(len(fitting)))])


def test_what_fits_does_not_depend_on_what_else_was_asked() -> None:
    """Each round's decisions are the same where none of the earlier rounds was asked anything."""
    rng = np.random.default_rng(3)
    domain = Domain({name: int(rng.integers(3, 9)) for name in "abcdefgh"})
    candidates = list(combinations(domain, 2))
    asked, measured, refused = Affordable(domain, candidates), list[Clique](), 0
    for step in range(1, 20):
        limit = 0.0003 * step
        possible, fits = asked.within(measured, limit, 0.02)
        fitting = [clique for clique in possible if fits(clique)]
        also, fits_too = Affordable(domain, candidates).within(measured, limit, 0.02)
        assert [c for c in reversed(also) if fits_too(c)] == fitting[::-1]
        refused += len(possible) - len(fitting)
        measured.append(fitting[int(rng.integers(len(fitting)))])
    assert refused > 20


@pytest.mark.parametrize("seed", range(8))
def test_what_fits_is_what_some_order_of_elimination_allows(seed: int) -> None:
    """Every candidate against all orders, with limits that are the sizes of trees. Half of the
    times candidates are measured together with another attribute, and half of the times there are
    only those that make the tree larger.
    """
    rng = np.random.default_rng(seed)
    domain = Domain({name: int(rng.integers(2, 5)) for name in "abcde"})
    every = [c for size in (1, 2, 3) for c in combinations(domain, size)]
    measured = [every[i] for i in rng.choice(len(every), 3, replace=False)]

    def placed(clique: Clique) -> Clique:
        return (*clique, "e") if seed % 2 and "e" not in clique else clique

    now = fewest_cells(domain, measured)
    cells = {c: fewest_cells(domain, [*measured, placed(c)]) for c in every}
    cells = {c: n for c, n in cells.items() if seed < 4 or n > now}
    every = list(cells)
    sizes = sorted({now, now - 1, *cells.values()})
    for first, second in [rng.choice(sizes, 2) for _ in range(4)]:
        affordable = Affordable(domain, every, placed)
        found, fits = affordable.within(measured, first * 8 / 2**20, second * 8 / 2**20)
        limits = [n for n in (first, second) if n >= now and min(cells.values()) <= n]
        limit = limits[0] if limits else 0
        assert found == [c for c in every if domain.size(placed(c)) <= limit]
        assert [c for c in every if fits(c)] == [c for c in every if cells[c] <= limit]


def test_a_limit_of_a_model_is_kept_to_the_cell() -> None:
    domain = Domain({"a": 2, "b": 3, "c": 4})
    pairs = Workload(domain, [("a", "b"), ("b", "c")])
    fewest = (6 + 4) * 8 / 2**20
    check_fits_workload(domain, pairs, fewest)
    check_fits_workload(domain, Workload(domain, [("a", "b"), ()]), MEMORY_LIMIT / 2**20)
    for limit, message in (
        (fewest * 0.999, "no workload clique fits in model_mb"),
        (MEMORY_LIMIT / 2**20 * 1.001, "is more than a model that can be sampled may take"),
    ):
        with pytest.raises(InvalidInput, match=message):
            check_fits_workload(domain, pairs, limit)
    with pytest.raises(InvalidInput, match="no workload clique fits"):
        check_fits_workload(domain, Workload(domain, [("b", "c"), ()]), fewest)
    with pytest.raises(InvalidInput, match="asks for the total alone"):
        check_fits_workload(domain, Workload(domain, [()]), 1.0)


def test_an_update_estimates_a_total_of_at_least_one_and_zeros_by_any_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[dict[str, Any]] = []

    def estimate(domain: Domain, measurements: Any, **options: Any) -> Any:
        given.append(options)
        warn("poor", NotCertified, stacklevel=1)
        return None

    monkeypatch.setattr("pgmkit.estimate", estimate)
    domain, zeros = Domain({"a": 2}), [Zeros(("a",), [True, False])]
    for total, values, known in (
        (None, [-5.0, 1.0], []),
        (None, [5.0, 1.0], zeros),
        (7, [1.0, 2.0], []),
    ):
        with warnings.catch_warnings(action="error"):
            estimator(domain, total, zeros=known)(None, [Measurement(("a",), values, 1.0)])
    assert [each["total"] for each in given] == [1.0, 6.0, 7]
    assert [each["inference"] for each in given] == ["exact", "auto", "exact"]
