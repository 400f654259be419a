"""Nonnegative tables over a growing set of cells, beside the same problem over all cells."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest

from pgmkit.domain import Clique, Domain
from pgmkit.errors import NotCertified
from pgmkit.least_squares import mostly_zero
from pgmkit.least_squares.consistency import Relaxation, agreeing, agreement, consistent_tables
from pgmkit.least_squares.mostly_zero import nonnegative_bytes, nonnegative_tables
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ROUNDS
from pgmkit.structural_zeros import Zeros

DOMAIN = Domain({"a": 30, "b": 40, "c": 25, "d": 6})
ROWS = 2000


def noisy(cliques: list[Clique], seed: int, stddev: float) -> list[Measurement]:
    """Tables of skewed columns with noise of one to ten times this standard deviation."""
    rng = np.random.default_rng(seed)
    columns = {
        name: np.minimum(rng.geometric(0.15, ROWS) - 1, size - 1)
        for name, size in DOMAIN.sizes.items()
    }
    found = []
    for clique in cliques:
        places = np.ravel_multi_index([columns[name] for name in clique], DOMAIN.shape(clique))
        spread = stddev * float(rng.uniform(1, 10))
        counts = np.bincount(places, minlength=DOMAIN.size(clique))
        found.append(Measurement(clique, counts + rng.normal(0, spread, len(counts)), spread))
    return found


@pytest.mark.parametrize("stddev", [0.1, 2.0, 100.0])
@pytest.mark.parametrize(
    "cliques",
    [
        [("a", "b", "c"), ("b", "c", "d"), ("a", "d"), ("c", "a")],
        [("a", "b"), ("b", "a"), ("c", "b"), ("c", "d"), ("d",)],
        [("a", "b", "c")],
        [("b",), ("a", "b", "c")],
    ],
)
def test_growing_sets_of_cells_solve_the_problem_of_all_cells(
    cliques: list[Clique], stddev: float
) -> None:
    measured = noisy(cliques, seed=len(cliques), stddev=stddev)
    everywhere = consistent_tables(DOMAIN, measured, float(ROWS), precision=1e-9).tables
    found = nonnegative_tables(DOMAIN, measured, float(ROWS))
    assert set(found) == set(everywhere)
    spread = {DOMAIN.ordered(m.clique): m.stddev for m in measured}
    for clique, table in found.items():
        assert table.min() >= 0
        assert np.abs(table - everywhere[clique]).max() < 0.1 * spread[clique]


def test_a_search_for_consistent_tables_goes_on_while_the_bound_rises() -> None:
    """Over four steps, by the precision at least."""
    measured = noisy([("a", "b"), ("c", "b"), ("c", "d")], seed=0, stddev=2.0)
    first, more, *_, last = [
        consistent_tables(DOMAIN, measured, float(ROWS), precision=precision)
        for precision in (np.inf, 30.0, 1e-3, 1e-9)
    ]
    assert first.iterations == 5 < more.iterations < last.iterations < 1000
    assert first.bound < more.bound < last.bound < more.bound + 30.0


def test_many_sets_of_tables_have_each_the_dual_of_its_own() -> None:
    rng, domain = np.random.default_rng(0), Domain({"a": 2, "b": 3, "c": 2})
    cliques = [("a", "b"), ("c", "b")]
    measured = [Measurement(c, np.zeros(6), s) for c, s in zip(cliques, (1.0, 3.0), strict=True)]
    values, totals = [rng.normal(5, 9, (6, 4)) for _ in cliques], rng.uniform(20, 50, 4)
    zeros = [Zeros(("b",), [1, 0, 1])]
    together = Relaxation(domain, measured, values, totals, zeros)
    multipliers = rng.normal(size=together.start.shape)
    value, violated = together.negative_dual(multipliers)
    for i, total in enumerate(totals):
        alone = Relaxation(domain, measured, [v[:, i] for v in values], total, zeros)
        expected, gradient = alone.negative_dual(multipliers[:, i])
        np.testing.assert_allclose(value[i], expected)
        np.testing.assert_allclose(violated[:, i], gradient)


def test_constraints_of_agreement_are_those_of_all_pairs_of_tables() -> None:
    """Marginals of any joint satisfy them, and they leave as few tables as the constraints of each
    pair of tables do; larger sets come first, and trees have no row too many.
    """
    for seed in range(40):
        rng = np.random.default_rng(seed)
        domain = Domain(dict.fromkeys("abcd", 2))
        drawn = [rng.permutation(list("abcd"))[: rng.integers(1, 4)].tolist() for _ in range(5)]
        cliques = sorted({domain.ordered(some) for some in drawn}, key=lambda _: rng.random())
        joint = rng.random(domain.shape())
        maps = [domain.cell_map(tuple(domain), clique) for clique in cliques]
        x = np.concatenate([np.bincount(each, joint.ravel()) for each in maps])
        matrix, b = agreement(domain, cliques, float(joint.sum()))
        np.testing.assert_allclose(matrix @ x, b, atol=1e-12)
        summed = np.concatenate([np.eye(each.max() + 1)[:, each] for each in maps])
        rank = np.linalg.matrix_rank(matrix.toarray())
        assert matrix.shape[1] - rank == np.linalg.matrix_rank(summed) - 1
        parts, _ = agreeing(domain, cliques, sums_too=True)
        order = [(-len(names), names) for _, names, _, _ in parts]
        assert order == sorted(order)
    chain = [("a", "b"), ("b", "c"), ("c", "d"), ("b",)]
    matrix, _ = agreement(domain, chain, 1.0)
    assert np.linalg.matrix_rank(matrix.toarray()) == len(matrix.toarray())
    wide = [tuple("abcdefg"), tuple("abcdefh")]
    parts, rows = agreeing(Domain(dict.fromkeys("abcdefgh", 2)), wide)
    assert [names for _, names, _, _ in parts] == [tuple("abcdef")] * 2 and rows == 64


def test_turns_without_end_are_followed_by_the_problem_of_all_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = noisy([("a", "b"), ("c", "b"), ("d",)], seed=3, stddev=2.0)
    expected = consistent_tables(DOMAIN, measured, float(ROWS), precision=1e-9).tables
    turns = 0

    def held_back(tables: object, given: object, *rest: object) -> tuple[object, bool]:
        nonlocal turns
        turns += 1
        return (given, True) if turns <= MOST_ROUNDS else solved(tables, given, *rest)

    solved = mostly_zero.best_multipliers
    monkeypatch.setattr(mostly_zero, "best_multipliers", held_back)
    found = nonnegative_tables(DOMAIN, measured, float(ROWS))
    assert turns == MOST_ROUNDS + 1
    for clique, table in found.items():
        assert np.abs(table - expected[clique]).max() < 0.2


def test_each_turn_stays_within_its_reach_and_says_whether_that_ended_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = []

    def watched(
        tables: Any, start: Array, reach: Array, damping: Array, total: float
    ) -> tuple[Array, bool]:
        found, held = solved(tables, start, reach, damping, total)
        used = float((np.abs(found - start) / reach).max())
        assert used <= 1 + 1e-9 and held == (used >= 1 - 1e-9)
        ends.append(held)
        return found, held

    solved = mostly_zero.best_multipliers
    monkeypatch.setattr(mostly_zero, "best_multipliers", watched)
    for seed in range(5):
        nonnegative_tables(DOMAIN, noisy([("a", "b"), ("c", "b"), ("a", "c")], seed, 100.0), 300.0)
    assert 0 < sum(ends) < len(ends)


@pytest.mark.filterwarnings("error::pgmkit.errors.NotCertified")
@pytest.mark.parametrize(
    ("stddev", "steps", "unit"), [(1e-4, 25, 1.0), (1.0, 10, 1.0), (1e5, 3, 1.0), (1e8, 20, 1e8)]
)
def test_of_tables_without_zeros_a_few_of_newtons_steps_find_the_closed_form(
    stddev: float, steps: int, unit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those nearest of all that agree, also far beyond their noise."""
    domain, rng, taken = Domain({"a": 3, "b": 4, "c": 2}), np.random.default_rng(0), []

    def counted(*arguments: Any) -> Array:
        taken.append(newton(*arguments))
        return taken[-1]

    newton = mostly_zero._newton
    monkeypatch.setattr(mostly_zero, "_newton", counted)
    joint = unit * rng.uniform(900_000, 1_100_000, (3, 4, 2))
    tables = [joint.sum(axis=2).ravel(), joint.sum(axis=0).ravel()]
    values = [table + unit * rng.normal(0, 100, len(table)) for table in tables]
    cliques: list[Clique] = [("a", "b"), ("b", "c")]
    measured = [
        Measurement(c, v, s) for c, v, s in zip(cliques, values, (stddev, 2 * stddev), strict=True)
    ]
    found = nonnegative_tables(domain, measured, float(joint.sum()))
    matrix, b = agreement(domain, cliques, float(joint.sum()))
    spread = np.repeat([1.0, 4.0], [12, 8])
    y, wide = np.concatenate(values), matrix.toarray()
    pull = np.linalg.lstsq(wide * spread @ wide.T, b - wide @ y)[0]
    expected = y + spread * (wide.T @ pull)
    flat = np.concatenate([found[clique].ravel() for clique in cliques])
    np.testing.assert_allclose(flat, expected, rtol=1e-10)
    assert len(taken) <= steps


@pytest.mark.parametrize("stddev", [1e-8, 1e-150])
def test_tables_that_rounding_keeps_apart_are_named(stddev: float) -> None:
    domain = Domain({"a": 3, "b": 4})
    table = np.array([[90.0, 0, 0, 0], [0, -40, -90, -90], [-90, -90, -90, -90]])
    sums = Measurement(("a",), [80.0, 20.0, 0.0], stddev)
    far = Measurement(("a", "b"), 1e6 * table.ravel(), 1.0)
    with pytest.warns(NotCertified, match=r"by up to \d.* counts"):
        nonnegative_tables(domain, [far, sums], 100.0)


def test_sums_that_only_raised_cells_can_have() -> None:
    """One cell of a row of `a` is far above the others of its row, and all are below the threshold;
    the exact sum of the row raises it alone.
    """
    domain = Domain({"a": 3, "b": 4})
    table = np.array([[90.0, 0, 0, 0], [0, -40, -90, -90], [-90, -90, -90, -90]])
    sums = Measurement(("a",), [80.0, 20.0, 0.0], 1e-3)
    found = nonnegative_tables(domain, [Measurement(("a", "b"), table.ravel(), 1.0), sums], 100.0)
    expected = np.zeros((3, 4))
    expected[0, 0], expected[1, 0] = 80.0, 20.0
    assert np.allclose(found["a", "b"], expected, atol=0.05)


def test_few_cells_of_a_large_table_are_kept() -> None:
    """Beside the noisy tables and the solution only one table at a time is gone over."""
    domain = Domain(dict.fromkeys("abcde", 60))
    triples: list[Clique] = [("a", "b", "c"), ("c", "d", "e")]
    rng = np.random.default_rng(0)
    tables = [Measurement(triple, rng.normal(0, 5, 60**3), 5.0) for triple in triples]
    tracemalloc.start()
    found = nonnegative_tables(domain, tables, 500.0)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(int((table > 0).sum()) for table in found.values()) < 0.02 * 2 * 60**3
    assert held < 0.6 * nonnegative_bytes(domain, triples)


@pytest.mark.parametrize(
    ("attributes", "size", "k"),
    [
        ("a", 10**5, 1),
        ("abc", 300, 2),
        ("abcdef", 8, 6),
        ("abcde", 12, 4),
        ("abcdefghijklm", 2, 12),
        ("cba", 60, 3),
        ("edcba", 12, 4),
    ],
)
def test_the_stated_bytes_are_held_where_every_cell_is_above_zero(
    attributes: str, size: int, k: int
) -> None:
    """Also where the axes of the tables are in another order than the domain's."""
    domain = Domain(dict.fromkeys(sorted(attributes), size))
    cliques: list[Clique] = list(itertools.combinations(attributes, k))
    rng = np.random.default_rng(0)
    tables = [Measurement(each, 1 + rng.random(domain.size(each)), 0.01) for each in cliques]
    total = float(np.mean([m.values.sum() for m in tables]))
    tracemalloc.start()
    nonnegative_tables(domain, tables, total)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Small objects may add a hundredth to the arrays.
    assert 0.8 < held / nonnegative_bytes(domain, cliques) < 1.01
