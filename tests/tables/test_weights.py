"""Weights rounded at random: unbiased, each by itself, and weighted totals that are covered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from chance import FALSE_ALARM, assert_mean
from scipy.stats import binom

from mechanisms import synthesize
from pgmkit import Categorical, Schema, round_at_random
from pgmkit.errors import InvalidInput


def test_rounding_at_random_has_the_expectation_of_the_values() -> None:
    rng = np.random.default_rng(0)
    points = [0.0, 1.5, 4.0, 10.0]
    values = np.array([0.0, 0.3, 1.5, 3.9, 4.1, 9.99, 10.0, -3.0, 12.0, np.nan])
    drawn = np.array([round_at_random(values, points, rng=rng) for _ in range(4000)])
    assert set(np.unique(drawn[:, :-1])) <= set(points)
    assert np.isnan(drawn[:, -1]).all()
    for column, value in zip(drawn.T[:-1], values.clip(0, 10), strict=False):
        if value in points:
            assert (column == value).all()
        else:
            assert_mean(column, float(value))
    # Every value by itself: what the others are changes nothing.
    one = round_at_random(values[:3], points, rng=1)
    other = round_at_random(np.append(values[:2], 7.0), points, rng=1)
    assert one[:2].tolist() == other[:2].tolist()


@pytest.mark.parametrize(
    ("values", "points"),
    [
        (["a"], [0, 1]),
        ([10**400], [0, 1]),
        *(([1], points) for points in ([0], [0, 0], [1, 0], [0, np.inf], [[0, 1]])),
    ],
)  # fmt: skip
def test_wrong_points_are_refused(values: Any, points: Any) -> None:
    with pytest.raises(InvalidInput):
        round_at_random(values, points)


def test_weighted_totals_are_unbiased_and_covered() -> None:
    """Heavy-tailed weights below a public bound: 20 runs of four regions each."""
    rng = np.random.default_rng(0)
    n, bound = 4000, 60.0
    region = rng.choice(4, n, p=[0.1, 0.2, 0.3, 0.4])
    weight = (3 + rng.gamma(2.0, 4.0, n) * (1 + region)).clip(max=bound)
    true = np.bincount(region, weight)
    points = np.linspace(0, bound, 21)
    schema = Schema({"region": Categorical(range(4)), "weight": Categorical(points.tolist())})
    question = "sum(weight) | region"
    errors, held = [], 0
    for seed in range(20):
        frame = pd.DataFrame(
            {"region": region, "weight": round_at_random(weight, points, rng=seed)}
        )
        release = synthesize(
            frame, schema, epsilon=1.0, delta=1e-6, queries=[question], seed=seed
        )  # fmt: skip
        found = release.ask(question).columns
        errors.append((found["sum(weight)"] - true) / found["stderr"])
        held += int(((found["low"] <= true) & (true <= found["high"])).sum())
    for each in np.array(errors).T:
        assert_mean(each, 0.0)
    assert held >= binom.ppf(FALSE_ALARM, 80, 0.93)
    # The bound is what one record may add: the noise is that of the bound, and little more.
    alone = bound / np.sqrt(2 * release.ledger.budget.total) if release.ledger else 0.0
    assert found["stderr"].max() < 1.2 * alone


def test_points_may_be_less_than_one_apart() -> None:
    assert round_at_random([0.0, 0.5, 2.0], [0, 0.5, 1], rng=0).tolist() == [0.0, 0.5, 1.0]


def test_an_error_carries_no_private_weight() -> None:
    with pytest.raises(InvalidInput, match="some entry is no number") as refusal:
        round_at_random([1.0, None, "6174 kg"], [0, 9])
    assert refusal.value.__context__ is None  # it was the error of numpy, which quotes the weight
