"""Likely distances of pairs, against matrices, numerical derivatives and integrals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from mechanisms.rounds.drawn import Distances
from mechanisms.rounds.merging import OneWay


def l1_of_sum(one: float, other: float, *, pure: bool) -> float:
    """The mean absolute value of a sum of two normal or Laplace variables with these mean absolute
    values: sums of normal variables are normal, and of Laplace variables E |c + y| is closed.
    """
    if not pure:
        return math.hypot(one, other)
    density = stats.laplace(scale=one).pdf
    return integrate.quad(
        lambda c: 2 * density(c) * (c + other * math.exp(-c / other)), 0, 40 * one, limit=500
    )[0]


def likely(
    noisy: np.ndarray, stddev: float, wrong: list[tuple[float, float]], *, pure: bool
) -> list[float]:
    """The root of the expected positive part of a squared distance less that of its columns."""
    trust = 0.0
    if noisy.var() > stddev**2:
        trust = (noisy.var() - stddev**2) / noisy.var()
    # Shrinking towards the mean, as a linear map: its rows say how noise of the pairs adds up.
    number = len(noisy)
    shrink = trust * np.eye(number) + (1 - trust) * np.full((number, number), 1 / number)
    found = []
    for row, (one, other) in zip(shrink, wrong, strict=True):
        whole = max(row @ noisy, 0.0)
        noise = stddev * np.linalg.norm(row)
        slope = ((whole + 1e-3) ** 2 - (whole - 1e-3) ** 2) / 2e-3
        law = stats.norm(whole**2 - l1_of_sum(one, other, pure=pure) ** 2, slope * noise)
        most = max(law.mean() + 12 * law.std(), 0.0)
        found.append(integrate.quad(law.sf, 0, most, limit=500)[0] ** 0.5)
    return found


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("stddev", [0.1, 20.0, 200.0])
@pytest.mark.parametrize("spread", [0.0, 0.5, 60.0])
@pytest.mark.parametrize("number", [1, 3, 6])
def test_likely_distances_are_expected_positive_parts(
    stddev: float, spread: float, number: int, pure: bool
) -> None:
    rng = np.random.default_rng([number, round(stddev)])
    pairs = list(itertools.combinations("abcd", 2))[:number]
    noisy = 100 + spread * rng.uniform(-1, 1, number)
    counts, noises = np.array([0.0, 3.0, 40.0, 60.0, 7.5]), [4.0, 11.0, 30.0, 2.0]
    known = {name: OneWay(counts, noise) for name, noise in zip("abcd", noises, strict=True)}
    # The noise of a code is at most twice its count: 0, 6, 80, 120 and 15.
    columns = {"a": 4.0 * 4, "b": 6 + 3 * 11.0, "c": 6 + 30 + 30 + 15.0, "d": 2.0 * 4}
    found = Distances(dict(zip(pairs, noisy.tolist(), strict=True)), stddev).likely(
        pairs, known, pure=pure
    )
    expected = likely(noisy, stddev, [(columns[a], columns[b]) for a, b in pairs], pure=pure)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_a_distance_below_zero_is_likely_none() -> None:
    pairs, known = [("a", "b"), ("a", "c")], dict.fromkeys("abc", OneWay(np.full(2, 50.0), 0.0))
    below = Distances({pairs[0]: -500.0, pairs[1]: 100.0}, 1.0).likely(pairs, known, pure=True)
    np.testing.assert_allclose(below, [0.0, 100.0], atol=0.02)
