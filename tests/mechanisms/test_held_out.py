"""Held-out noise: splits, judges and the choice of a level, against plain formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from mechanisms.families.held_out import (
    are_farther,
    best_level,
    judges,
    least_misfit,
    splits,
)
from mechanisms.families.product_mixture import Columns
from pgmkit.domain import Domain
from pgmkit.measurement import Measurement


@pytest.mark.parametrize("added", [0.5, 0.7])
def test_splits_are_those_of_the_equations(added: float) -> None:
    rng = np.random.default_rng(0)
    rows = [[np.eye(50), np.ones((1, 3))]]
    measured = [
        Measurement(("a", "b"), rng.normal(size=4000), 3.0),
        Measurement(("a", "c"), rng.normal(size=50), 0.5, *rows),
    ]
    first, second = splits(measured, rng=1, **({} if added == 0.7 else {"added": added}))
    drawn = []
    for m, *parts in zip(measured, *first, *second, strict=True):
        given, kept, other, opposite = parts
        for each in parts:
            assert each.clique == m.clique and each.matrix is m.matrix
        for each in (given, other):
            assert each.stddev == pytest.approx(m.stddev * math.sqrt(1 + added**2))
        for each in (kept, opposite):
            assert each.stddev == pytest.approx(m.stddev * math.sqrt(1 + 1 / added**2))
        fresh = (given.values - m.values) / added
        np.testing.assert_allclose(kept.values, m.values - fresh / added)
        np.testing.assert_allclose(other.values, m.values - added * fresh)
        np.testing.assert_allclose(opposite.values, m.values + fresh / added)
        drawn.append(fresh / m.stddev)
    # The root mean square of 4,000 standard normal numbers: five standard deviations are 0.056.
    assert np.std(drawn[0]) == pytest.approx(1.0, abs=0.056)
    assert np.std(drawn[1]) == pytest.approx(1.0, abs=0.5)


def test_the_least_of_all_levels_is_refined_between_two_others() -> None:
    for losses, level in [
        ([3.0, 1.0, 2.0], 1 + (3 - 2) / (2 * (3 - 2 + 2))),
        ([1.0, 2.0, 3.0], 0.0),
        ([3.0, 2.0, 1.0], 2.0),
        ([2.0, 3.0, 5.0, 1.0, 1.5, 0.9, 1.0], 5 + (1.5 - 1.0) / (2 * (1.5 - 1.8 + 1.0))),
        ([2.0, 1.0], 1.0),
        ([1.0, 2.0], 0.0),
        ([2.0, 1.0, 1.0], 1.5),
    ]:
        found, least = best_level(losses)
        assert least == min(losses)
        assert found == pytest.approx(level) and type(found) is float


def test_judges_are_squares_over_noise_and_the_variance_of_their_difference() -> None:
    domain = Domain({"a": 2, "b": 3, "c": 2})
    rng = np.random.default_rng(0)
    merged = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    held = [
        Measurement(("a",), rng.uniform(0, 50, 2), 4.0),
        Measurement(("a", "b"), rng.uniform(0, 20, 4), 9.0, [np.eye(2), merged]),
        Measurement(("a", "b", "c"), rng.uniform(0, 10, 12), 2.5),
    ]

    def answers(rows: np.ndarray) -> list[np.ndarray]:
        a, b, c = rows[:, :2], rows[:, 2:5], rows[:, 5:]
        return [
            100 * a.mean(0),
            100 * np.einsum("ki,kj->ij", a, b @ merged.T).ravel() / len(rows),
            100 * np.einsum("ki,kj,kl->ijl", a, b, c).ravel() / len(rows),
        ]

    rows = np.hstack([rng.dirichlet(np.ones(n), 5) for n in domain.shape()])
    alone = rows.mean(0, keepdims=True)
    columns = Columns(domain)
    misfit, moved = judges(columns, held, torch.tensor(alone).float(), 100.0)
    other = np.roll(rows, 1, axis=0)
    other[:, 5:] = rows[:, 5:]
    wanted = {}
    for name, at in (("rows", rows), ("other", other)):
        both = zip(answers(at), answers(alone), held, strict=True)
        parts = [
            (((x - m.values) ** 2).sum() / m.stddev, 4 * ((x - y) ** 2).sum()) for x, y, m in both
        ]
        wanted[name] = np.sum(parts, axis=0)
    # Misfits are up to a constant, which differences do not have.
    gaps = wanted["other"] - wanted["rows"]
    for function, gap in zip((misfit, moved), gaps, strict=True):
        found = float(function(torch.tensor(other).float())) - float(
            function(torch.tensor(rows).float())
        )
        assert found == pytest.approx(gap, rel=1e-4)
    assert float(moved(torch.tensor(alone).float())) == pytest.approx(0.0, abs=1e-3)


class Path:
    """A fit whose rows at each level are that level's number."""

    independent = -1

    def __init__(self, last: int) -> None:
        self.last_level, self.runs, self.rows = last, list[tuple[int, int]](), -2

    def run(self, steps: int, level: int) -> None:
        self.runs.append((steps, level))
        self.rows = level

    @property
    def logits(self) -> torch.Tensor:
        return torch.full((2, 1), float(self.rows))


@pytest.mark.parametrize(
    ("alone", "spread", "taken"),
    [
        (9.0, 1.0, True),
        (6.0, 1.5, True),
        (5.4, 1.0, True),
        (5.0, 1.0, False),
        (5.4, 1.5, False),
        (1.0, 0.0, False),
    ],
)
def test_independent_columns_are_kept_unless_rows_are_nearer_by_a_standard_deviation(
    alone: float, spread: float, taken: bool
) -> None:
    """Two trials: sums of misfits 8, 4, 6 at the levels, and of variances with the root `spread`
    at the best one.
    """
    halves = {0: 4.0, 1: 2.0, 2: 3.0, -1: alone / 2}
    variances = {0: 100.0, 1: spread**2 / 2, 2: 100.0}
    trials: Any = [
        (Path(last), lambda rows: halves[rows], lambda rows: variances[rows]) for last in (2, 1)
    ]
    least, level, logits = least_misfit(trials, 7)
    assert all(fit.runs == [(7, 0), (7, 1), (7, 2)] for fit, *_ in trials)
    assert logits.tolist() == [[1.0]] * 4
    assert (least, level) == pytest.approx((4.0, 1 + 2 / 12) if taken else (alone, 0.0))


@pytest.mark.parametrize(("stddev", "farther"), [(12.6, True), (12.7, False)])
def test_rows_are_farther_if_they_miss_more_than_other_rows_beyond_noise(
    stddev: float, farther: bool
) -> None:
    """Two trials miss 8 and 16 counts in each of two cells, the other rows none. The squares of
    these, divided by the deviation of the noise, exceed the root of 4 times them below 12.65.
    """
    columns = Columns(Domain({"a": 2}))
    held = [[Measurement(("a",), [50.0, 50.0], stddev)]] * 2
    rows = [torch.tensor([[0.5 + each, 0.5 - each]]) for each in (0.08, 0.16)]
    found = are_farther(columns, held, rows, [torch.full((1, 2), 0.5)] * 2, 100.0)
    assert found == farther
