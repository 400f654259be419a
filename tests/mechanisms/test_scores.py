"""Stated sensitivities hold exactly: score vectors of neighbours, compared as fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from seams import dense, draw_from
from test_curator import CLIQUES, DOMAIN, neighbour, random_data

from mechanisms.privacy import scores
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.integer_matrix import GridMatrix
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.privacy.noise import SeededNoise, SparseScores
from mechanisms.privacy.scores import LARGEST
from mechanisms.queries.cells import Cell
from mechanisms.queries.predicates import Predicates, mixed_marginals
from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput


class Exact(SeededNoise):
    """Keeps what a draw was given, as fractions, and its scale."""

    def __init__(self) -> None:
        super().__init__(np.random.default_rng(0))
        self.seen: list[tuple[str, list[Fraction], float]] = []

    def _kept(self, draw: str, values: np.ndarray, scale: float) -> None:
        self.seen.append((draw, [Fraction(v) for v in values.ravel().tolist()], scale))

    def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
        self._kept("gaussian", counts, scale)
        return counts

    def softmax(self, scores: np.ndarray, scale: float) -> int:
        self._kept("softmax", scores, scale)
        return 0

    def flip(self, scores: np.ndarray, scale: float) -> int:
        self._kept("flip", scores, scale)
        return 0

    def top(self, scores: np.ndarray, count: int, scale: float) -> list[int]:
        self._kept("top", scores, scale)
        return list(range(count))

    def draws(self, scores: SparseScores, count: int, scale: float) -> list[int]:
        self._kept("draws", dense(scores), scale)
        return [0] * count


PREDICATES = Predicates(DOMAIN, mixed_marginals(DOMAIN, ["c"], 3))
COST, COUNT = 0.01, 3


def numbers(rng: np.random.Generator, size: Any, largest: float) -> np.ndarray:
    """Of any magnitude and sign: tiny, fractional, whole, and up to the largest allowed."""
    magnitude = 2.0 ** rng.uniform(-60, math.log2(largest), size)
    values = np.where(rng.random(size) < 0.3, np.rint(magnitude), magnitude)
    return np.where(rng.random(size) < 0.2, 0.0, values) * rng.choice([-1.0, 1.0], size)


def drawn_queries(rng: np.random.Generator, shape: tuple[int, ...]) -> list[GridMatrix]:
    """One to three matrices over all cells, or products of one an attribute, of any magnitude."""
    found = []
    for _ in range(int(rng.integers(1, 4))):
        columns = shape if rng.random() < 0.5 else [math.prod(shape)]
        factors = [numbers(rng, (int(rng.integers(1, 6)), n), 2.0**30) for n in columns]
        for factor in factors:
            factor[0, 0] = 3.0  # no factor is zero
        found.append(GridMatrix.rounded(factors))
    return found


def ask_everything(curator: Curator, rng: np.random.Generator) -> None:
    """Every selection and every distance, on arguments that only the generator decides."""
    estimates = {}
    for clique in CLIQUES:
        cells = DOMAIN.size(clique)
        estimates[clique] = numbers(rng, DOMAIN.shape(clique), LARGEST / cells)
    penalties = numbers(rng, len(CLIQUES), LARGEST).tolist()
    weights = (2.0 ** rng.uniform(-300, 300 * rng.random(), len(CLIQUES))).tolist()
    if rng.random() < 0.5:
        weights = rng.uniform(0.1, 5, len(CLIQUES)).tolist()
    for mechanism in ("exponential mechanism", "permute-and-flip"):
        curator.choose(
            CLIQUES, estimates, COST, penalties=penalties, weights=weights, mechanism=mechanism
        )
    queries = {clique: drawn_queries(rng, DOMAIN.shape(clique)) for clique in CLIQUES[1:]}
    curator.choose(CLIQUES, estimates, COST, penalties=penalties, weights=weights, queries=queries)
    curator.measure_errors(CLIQUES, estimates, COST)
    curator.choose_cells(CLIQUES, estimates, COST, count=COUNT)
    curator.draw_signed(CLIQUES, estimates, COST, count=COUNT)
    answers = numbers(rng, len(PREDICATES), LARGEST)
    curator.choose_predicates(PREDICATES, answers, COST, count=COUNT)
    shares = [
        {c: rng.random(DOMAIN.shape(c)) ** rng.integers(1, 60) for c in CLIQUES} for _ in range(4)
    ]
    curator.choose_public(shares, COST)
    curator.measure_predicates(PREDICATES, COST)
    curator.measure_cells([Cell(("a", "b"), 0), Cell(("c",), 1), Cell(("a", "b"), 4)], COST)


@given(st.sampled_from(sorted(NEIGHBOURS)), st.integers(0, 2**63))
def test_scores_of_neighbours_differ_by_no_more_than_is_charged(relation: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = random_data(rng, 20)
    seen = []
    for rows in (data, neighbour(data, relation, rng)):
        curator = Curator(rows, Budget(5.0, 1e-6), neighbours=relation)
        noise = draw_from(curator, Exact())
        ask_everything(curator, np.random.default_rng(seed))
        seen.append(noise.seen)
    l1 = NEIGHBOURS[relation].l1
    # In the order of the calls of `ask_everything`.
    bounds = [l1, l1, l1, l1, 1, 1, 1, 1, 1, 1]
    for (draw, before, scale), (other, after, scale_after), bound in zip(
        *seen, bounds, strict=True
    ):
        assert (draw, scale) == (other, scale_after)
        moves = [abs(x - y) for x, y in zip(before, after, strict=True)]
        assert max(moves) <= bound
        epsilon = 2 * Fraction(bound) / Fraction(scale)
        cost = {
            "gaussian": len(moves) * bound**2 / (2 * Fraction(scale) ** 2),
            "softmax": epsilon**2 / 8,
            "flip": epsilon**2 / 2,
            "top": COUNT * epsilon**2 / 8,
            "draws": COUNT * epsilon**2 / 8,
        }[draw]
        assert cost <= Fraction(COST) * (1 + Fraction(1, 10**12))


def test_a_sparse_estimate_is_the_table_that_it_stands_for() -> None:
    rng = np.random.default_rng(0)
    data = random_data(rng, 20)
    tables = {c: rng.poisson(0.5, DOMAIN.shape(c)) * 1.25 for c in CLIQUES}
    rows = {c: csr_array(table.reshape(1, -1)) for c, table in tables.items()}
    expected = np.concatenate([(data.marginal(c) - tables[c]).ravel() for c in CLIQUES])
    for estimates in (tables, rows):
        curator = Curator(data, Budget(1.0), neighbours="add/remove")
        noise = draw_from(curator, Exact())
        curator.draw_signed(CLIQUES, estimates, 0.1)
        assert noise.seen[0][1] == [*expected, *-expected]


@pytest.mark.parametrize("shape", [(1, 5), (2, 1), (2,)])
def test_a_sparse_estimate_of_another_size_is_refused_before_a_charge(
    shape: tuple[int, ...],
) -> None:
    curator = Curator(random_data(np.random.default_rng(0)), Budget(1.0), neighbours="add/remove")
    with pytest.raises(InvalidInput, match="must have one row of 2 cells"):
        curator.draw_signed([("a",)], {("a",): csr_array(np.zeros(shape))}, 0.1)
    assert curator.ledger.spent == 0


@pytest.mark.parametrize("value", [np.nan, -np.inf, 2.0**41])
def test_a_sparse_estimate_has_the_values_that_a_table_may_have(value: float) -> None:
    curator = Curator(random_data(np.random.default_rng(0)), Budget(1.0), neighbours="add/remove")
    for row in (csr_array([[0.0, value]]), np.array([0.0, value])):
        with pytest.raises(InvalidInput, match=r"the estimate of \('a',\)"):
            curator.draw_signed([("a",)], {("a",): row}, 0.1)
    assert curator.ledger.spent == 0


def test_cells_that_a_sparse_estimate_names_twice_add_up_and_it_stays_as_it_was() -> None:
    twice = csr_array((np.array([1.0, 2.0, 4.0]), np.array([2, 0, 2]), np.array([0, 3])), (1, 4))
    row = scores.row_of(("a",), {("a",): twice}, (4,))
    places, found = scores.nonzero_differences(np.array([0, 7, 1, 0]), row)
    np.testing.assert_array_equal(places, [0, 1, 2])
    np.testing.assert_array_equal(found / 2**11, [-2.0, 7.0, -4.0])
    assert twice.nnz == 3 and twice.data.tolist() == [1.0, 2.0, 4.0]


def test_tables_are_as_large_together_as_each_may_be() -> None:
    tables = {("a",): np.array([2.0**39, -(2.0**39)]), ("b",): np.array([1.5, 2.0**40 - 2, 0.0])}
    for clique, table in tables.items():
        found = scores.estimate_of(clique, tables, table.shape)
        np.testing.assert_array_equal(found, table)
    tables["b",][2] = 1.0
    with pytest.raises(InvalidInput, match=r"the estimate of \('b',\), in absolute values,"):
        scores.estimate_of(("b",), tables, (3,))


def test_a_count_beside_a_large_estimate_is_not_lost_to_rounding() -> None:
    """An estimate of -2^60 made scores of counts 128 and 129 differ by 256."""
    from pgmkit import Dataset, Domain

    domain = Domain({"a": 2, "b": 2})
    scores = []
    for rows in (128, 129):
        data = Dataset(domain, {n: np.zeros(rows, dtype=int) for n in domain})
        curator = Curator(data, Budget(1.0), neighbours="add/remove")
        noise = draw_from(curator, Exact())
        with pytest.raises(InvalidInput, match=r"at most 2\^40"):
            curator.choose([("a",)], {("a",): [-(2.0**60), 0.0]}, 0.1)
        assert curator.ledger.spent == 0
        curator.choose([("a",)], {("a",): [-(2.0**40) + 1e-3, 0.0]}, 0.1)
        scores.append(noise.seen[0][1][0])
    assert scores[1] - scores[0] == 1


LARGE: dict[str, Any] = {
    "choose": lambda c, e: c.choose([("a",)], {("a",): [e, 0.0]}, 0.1),
    "penalties": lambda c, e: c.choose([("a",)], {("a",): [0.0, 0.0]}, 0.1, penalties=[e]),
    "measure_errors": lambda c, e: c.measure_errors([("a",)], {("a",): [e, 0.0]}, 0.1),
    "choose_cells": lambda c, e: c.choose_cells([("a",)], {("a",): [e, 0.0]}, 0.1),
    "draw_signed": lambda c, e: c.draw_signed([("a",)], {("a",): [e, 0.0]}, 0.1),
    "choose_predicates": lambda c, e: c.choose_predicates(
        PREDICATES, np.full(len(PREDICATES), e), 0.1, count=1
    ),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("size", [2.0**41, -(2.0**60), 9.3e18, -1e300, 1.7e308])
def test_estimates_beyond_the_bound_are_refused_before_a_charge(name: str, size: float) -> None:
    curator = Curator(random_data(np.random.default_rng(0)), Budget(1.0), neighbours="add/remove")
    with pytest.raises(InvalidInput, match=r"at most 2\^40"):
        LARGE[name](curator, size)
    assert curator.ledger.spent == 0
    LARGE[name](curator, math.copysign(2.0**39, size))


def test_scores_of_the_largest_data_and_estimates_are_those_of_fractions() -> None:
    """2^40 rows and estimates of 2^40 counts: integers of 64 bits hold every product and sum."""
    rng = np.random.default_rng(0)
    clique: Clique = ("a",)
    for _ in range(50):
        cells = int(rng.integers(1, 5))
        counts = rng.multinomial(2**40 - 1, rng.dirichlet(np.full(cells, 0.3)))
        signed = rng.dirichlet(np.full(cells, 0.3)) * rng.choice([-1.0, 1.0], cells)
        table = np.rint(np.ldexp(signed, 40)) / 1.0
        table[0] -= math.copysign(max(0.0, np.abs(table).sum() - 2.0**40), table[0])
        gaps = [Fraction(int(c)) - Fraction(t) for c, t in zip(counts, table.tolist(), strict=True)]
        (found,) = scores.distances([clique], {clique: table}, {clique: counts})
        assert Fraction(found, 2**11) == sum(map(abs, gaps))
        penalty = -(2.0**40)
        (score,) = scores.weighted_scores(
            [found], scores.on_grid("penalties", np.array([penalty])), np.array([1.0])
        )
        assert Fraction(score) == Fraction(found, 2**11) - Fraction(penalty)
        shares = rng.integers(0, 2**22 + 1, cells) / 2**22
        errors = [
            abs(Fraction(int(c)) - (2**40 - 1) * Fraction(s))
            for c, s in zip(counts, shares.tolist(), strict=True)
        ]
        nearest = scores.share_score({("a",): counts}, {("a",): shares}, 2**40 - 1)
        assert 0 <= -max(errors) - Fraction(nearest) < Fraction(1, 2**11)


def test_estimates_are_compared_in_any_order() -> None:
    rng = np.random.default_rng(0)
    cliques = [(f"x{i}",) for i in range(7)]
    counts = {clique: rng.integers(0, 9, 3) for clique in cliques}
    estimates = [(clique, rng.integers(0, 9, 3).astype(float)) for clique in cliques[::-1]]
    apart = [int(np.abs(counts[c] - dict(estimates)[c]).sum()) << 11 for c in cliques]
    assert scores.distances(cliques, iter(estimates), counts) == apart
