"""Query workloads in mechanisms that select: scores and measurements by explicit matrices."""

from __future__ import annotations

import itertools
import math
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay import replay

from mechanisms.dispatch import run, run_on
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.integer_matrix import GridMatrix
from mechanisms.privacy.neighbours import NEIGHBOURS, relation
from mechanisms.privacy.scores import distances
from mechanisms.queries.query_sets import QuerySet, query_rows
from mechanisms.registry import MECHANISMS, configure
from mechanisms.strategies.clique_queries import CliqueQueries
from mechanisms.strategies.least_error import best_precision
from mechanisms.workload import Workload, k_way
from pgmkit.domain import Domain
from pgmkit.linear.kronecker import Kronecker
from pgmkit.linear.matrix import as_dense
from pgmkit.records.dataset import Dataset

DOMAIN = Domain({"a": 3, "b": 12, "c": 4})
WEIGHTED = np.array([[0.25, -1.0, 0.5, 0.0], [1.0, 1.0, 1.0, 1.0]])
SETS = [
    QuerySet(("a", "b"), ("identity", "prefix")),
    QuerySet(("b", "c"), ("range", WEIGHTED)),
    QuerySet(("c", "b"), ("identity", "prefix")),
]
WORKLOAD = Workload.of(DOMAIN, SETS)
UNIT = 2**11
"""Scores are whole numbers of 2^-11 counts."""


def drawn(rng: np.random.Generator, rows: int = 120) -> Dataset:
    a = rng.integers(0, 3, rows)
    b = np.minimum(11, rng.integers(0, 6, rows) + 3 * a)
    return Dataset(DOMAIN, {"a": a, "b": b, "c": (a + b) % 4})


def asked_by_hand(clique: tuple[str, ...]) -> list[np.ndarray]:
    """The queries of every set that holds the clique, on its cells."""
    return [
        reduce(np.kron, [query_rows(each.along(n), DOMAIN.sizes[n]) for n in clique])
        for each in SETS
        if {*clique} <= {*each.clique}
    ]


@pytest.mark.parametrize("clique", [("a",), ("b",), ("c",), ("a", "b"), ("b", "c")])
def test_distances_are_those_of_the_queries(clique: tuple[str, ...]) -> None:
    queries = CliqueQueries(WORKLOAD, pure=False)
    difference = np.random.default_rng(0).normal(0, 9, DOMAIN.shape(clique))
    by_hand, seen = [], set()
    for matrix in asked_by_hand(clique):
        if matrix.tobytes() not in seen:
            seen.add(matrix.tobytes())
            answers = np.abs(matrix @ difference.reshape(-1)).sum()
            by_hand.append(answers / np.abs(matrix).sum(axis=0).max())
    assert queries.distance(clique, difference) == pytest.approx(np.mean(by_hand), rel=1e-4)
    asked = queries.of([clique]).get(clique)
    counts = np.random.default_rng(1).integers(0, 50, DOMAIN.shape(clique))
    estimate = counts - np.rint(difference)
    if asked:
        (units,) = distances([clique], {clique: estimate}, {clique: counts}, {clique: asked})
        found = units / UNIT
        wanted = queries.distance(clique, np.rint(difference))
        assert found == pytest.approx(wanted, abs=3 / UNIT)
    else:
        assert clique == ("a",)


@given(st.integers(0, 2**32))
def test_the_sensitivity_is_that_of_the_counts_exactly(seed: int) -> None:
    """Whatever the matrices, the estimate and the neighbour: at most 1 count for a row more or
    less, 2 for a row replaced."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, int(rng.integers(1, 3)))
    asked = [
        GridMatrix(tuple(rng.integers(-3, 4, (int(rng.integers(1, 5)), n)) for n in sizes), 1.0)
        for _ in range(int(rng.integers(1, 4)))
    ]
    if any(each.l1(differ=False) == 0 for each in asked):
        return
    counts = rng.integers(0, 2 ** int(rng.integers(1, 35)), math.prod(sizes.tolist()))
    estimate = counts + rng.normal(0, 10.0 ** rng.integers(0, 9), counts.shape)
    more, other = counts.copy(), counts.copy()
    more[rng.integers(len(counts))] += 1
    other[rng.integers(len(counts))] += 1
    whole, added, moved = (
        distances([("a",)], {("a",): estimate}, {("a",): c}, {("a",): asked})[0]
        for c in (counts, more, other)
    )
    assert abs(added - whole) <= UNIT and abs(moved - added) <= 2 * UNIT


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("clique", [("b",), ("a", "b"), ("b", "c")])
def test_the_expected_noise_is_that_of_the_measurement(pure: bool, clique: tuple[str, ...]) -> None:
    """Of a thousand draws of Gaussian noise on the rows, the answers solved from them."""
    queries = CliqueQueries(WORKLOAD, pure=pure)
    rows = [queries.rows[n] for n in clique]
    sizes = DOMAIN.shape(clique)
    dense = [np.eye(n) if r is None else r for n, r in zip(sizes, rows, strict=True)]
    strategy = reduce(np.kron, dense)
    norms = np.abs(strategy).sum(axis=0) if pure else (strategy**2).sum(axis=0)
    assert norms.max() == pytest.approx(1.0, rel=1e-6)
    rng = np.random.default_rng(0)
    noisy = np.linalg.pinv(strategy) @ rng.normal(0, 1, (len(strategy), 1000))
    found = np.mean([queries.distance(clique, each.reshape(sizes)) for each in noisy.T])
    assert queries.noise(clique) * math.sqrt(2 / math.pi) == pytest.approx(found, rel=0.03)


def test_rows_serve_each_kind_of_queries_alike_and_single_codes_a_tenth() -> None:
    """By the bound of all strategies, whatever the unit of the queries; of two codes, too."""
    small = 0.01 * np.tri(2)
    workload = Workload.of(Domain({"b": 12, "two": 2}), [QuerySet(("two",), (small,))])
    for name, kinds in (("b", ("range", "prefix")), ("two", (small,))):
        n = workload.domain.sizes[name]
        own = [query_rows(each, n) for each in kinds]
        rows = np.vstack(
            [np.sqrt(0.1 / n) * np.eye(n)]
            + [each / np.linalg.norm(each) / math.sqrt(len(own)) for each in own]
        )
        bound = np.linalg.svd(rows * np.sqrt(best_precision(rows.T @ rows)[1]))[1].sum() ** 2
        found = CliqueQueries(WORKLOAD if name == "b" else workload, pure=False).rows[name]
        assert found is not None and (found**2).sum(axis=0).max() == pytest.approx(1.0, rel=1e-9)
        assert (np.linalg.norm(rows @ np.linalg.inv(found)) ** 2) <= bound * 1.0002


def test_weights_of_either_sign_are_scored_alike() -> None:
    """Up to 1,024 as they are, larger ones on a grid."""
    for most in (1024, 1025, 5000):
        grids = []
        for sign in (1, -1):
            rows = sign * np.array([[most, 3.0, 0.0], [0.0, 1.0, 2.0]])
            workload = Workload.of(DOMAIN, [QuerySet(("a",), (rows,))])
            ((grid,),) = CliqueQueries(workload, pure=False).of([("a",)]).values()
            grids.append(grid.factors[0])
        assert np.array_equal(grids[0], -grids[1])
        assert (np.abs(grids[0]).max() == most) == (most == 1024)


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("pure", [False, True])
def test_queries_are_measured_better_than_by_cells(neighbours: str, pure: bool) -> None:
    """At the same cost, by the variances of the workload's queries, and never above the price."""
    budget = Budget(1.0) if pure else Budget(1.0, 1e-6)
    curator = Curator(drawn(np.random.default_rng(0)), budget, neighbours=neighbours, seed=0)
    queries = CliqueQueries(WORKLOAD, pure=pure)
    cost = curator.remaining / 4
    for clique in (("b",), ("a", "b")):
        found = queries.measure(curator, clique, cost, step="x")
        cells = curator.measure(clique, cost)
        matrix = found.matrix.to_dense() if isinstance(found.matrix, Kronecker) else None
        strategy = as_dense(found.matrix) if matrix is None else matrix
        ratios = []
        for asked in asked_by_hand(clique):
            mine = ((asked @ np.linalg.pinv(strategy)) ** 2).sum() * found.stddev**2
            ratios.append(mine / ((asked**2).sum() * cells.stddev**2))
        # With Laplace noise twelve codes are best measured one by one.
        assert np.mean(ratios) < (1 + 1e-9 if pure else 0.75)


def test_a_workload_of_cells_is_as_without_queries() -> None:
    plain = CliqueQueries(k_way(DOMAIN, 2), pure=False)
    assert plain.of([("a", "b")]) == {} and plain.noise(("a", "b")) == 36
    assert all(plain.rows[name] is None for name in DOMAIN)
    curator = Curator(drawn(np.random.default_rng(0)), Budget(1.0), neighbours="add/remove", seed=0)
    assert plain.measure(curator, ("a",), 0.1, step="x").matrix is None


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("budget", [Budget(2.0, 1e-6), Budget(2.0)])
@pytest.mark.parametrize("name", [name for name, entry in MECHANISMS.items() if entry.queries])
def test_nothing_but_noise_depends_on_the_data(
    name: str, budget: Budget, neighbours: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    data = drawn(rng)
    columns = {n: np.asarray(data.columns[n]).astype(int).copy() for n in DOMAIN}
    if neighbours == "replace-one":
        for n, size in DOMAIN.sizes.items():
            columns[n][5] = (columns[n][5] + 1) % size
    else:
        columns = {n: np.delete(codes, 5) for n, codes in columns.items()}
    entry, settings = configure(name, **({"rounds": 2} if name == "mwem+pgm" else {}))

    def job(records: Dataset) -> Any:
        curator = Curator(records, budget, neighbours=neighbours)
        release = run_on(curator, entry, settings, WORKLOAD)
        # Not by cells alone, unless noise is Laplace, with which cells may be best.
        assert budget.pure or any(each.matrix is not None for each in release.measurements)
        return release

    replay(job, data, Dataset(DOMAIN, columns), tmp_path, pure=budget.pure)


def test_cumulative_counts_are_nearer_than_by_cells() -> None:
    """Of a column of 100 codes, over five seeds."""
    rng = np.random.default_rng(0)
    data = Dataset(Domain({"x": 100}), {"x": rng.integers(0, 100, 40_000)})
    prefixes = Workload.of(data.domain, [QuerySet(("x",), ("prefix",))])
    errors = {}
    for workload in (prefixes, Workload(data.domain, [("x",)])):
        found = []
        for seed in range(5):
            model = run("mst", data, workload, 1.0, 1e-6, neighbours="add/remove", seed=seed).model
            away = model.marginal(("x",)) - data.marginal(("x",))
            found.append(np.abs(away.cumsum()).mean())
        errors[workload.plain] = found
    assert np.mean(errors[False]) < 0.85 * np.mean(errors[True])


def test_relations_of_units_have_the_same_scores() -> None:
    units = relation("add/remove", "person", 3)
    data = drawn(np.random.default_rng(0))
    curator = Curator(data, Budget(50.0), neighbours=units, seed=0)
    queries = CliqueQueries(WORKLOAD, pure=True)
    cliques = [("a", "b"), ("b", "c")]
    exact = {c: data.marginal(c).astype(float) for c in cliques}
    exact[("b", "c")] = exact[("b", "c")][::-1]
    picked = {
        curator.choose(cliques, exact, 10.0, queries=queries.of(cliques), step=str(i))
        for i in range(2)
    }
    assert picked == {("b", "c")}
    assert len(list(itertools.combinations(cliques, 2))) == 1
