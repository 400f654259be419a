"""Smoothed counts of one attribute, against a basis written down apart and by their risk."""

import numpy as np
import pytest
from chance import DEVIATIONS
from scipy.optimize import brentq
from scipy.stats import norm

from mechanisms.families.shrinkage import smoothed
from pgmkit.measurement import Measurement


def halvings(size: int) -> list[np.ndarray]:
    """The Haar basis of so many codes, a power of two: an array of unit rows for each halving."""
    parts, length = [], size
    while length > 1:
        step = np.repeat([1.0, -1.0], length // 2)
        parts.append(np.kron(np.eye(size // length), step) / length**0.5)
        length //= 2
    return parts


def counts_nearest(noisy: np.ndarray, total: float) -> np.ndarray:
    """The nearest counts that are not below 0 and have this sum: all noisy counts are lowered
    alike, and those below 0 are 0.
    """
    by = brentq(lambda by: np.maximum(noisy - by, 0).sum() - total, noisy.min() - total, max(noisy))
    return np.maximum(noisy - by, 0)


@pytest.mark.parametrize("size", [1, 2, 8, 64])
@pytest.mark.parametrize("stddev", [0.01, 0.4])
def test_each_part_is_multiplied_by_its_expected_share(size: int, stddev: float) -> None:
    rng = np.random.default_rng([size, 1])
    noisy = np.arange(size) / size + rng.normal(0, 0.2, size)
    total = 0.4 * size
    found = smoothed(Measurement(("a",), noisy, stddev), total)
    values = counts_nearest(noisy, total)
    assert size < 8 or (values == 0).any()
    expected, left = np.full(size, values.mean()), 1.0
    for basis in halvings(size):
        part = basis @ values
        square = (part**2).mean() / (stddev**2 * (values > 0).mean())
        # The expected value of max(0, x) for a normal x, by quadrature.
        x = np.linspace(-60, 60 + square, 400_001)
        density = norm.pdf(x, square - 1, (2 / len(part)) ** 0.5)
        v = (np.maximum(x, 0) * density).sum() * (x[1] - x[0])
        expected += basis.T @ part * v / (1 + v)
        left += len(part) * v / (1 + v)
    np.testing.assert_allclose(found.values, expected, rtol=1e-4, atol=2e-6)
    assert found.stddev == pytest.approx(stddev * (left / size) ** 0.5, rel=1e-4)


def test_sums_stay_and_counts_far_above_noise_hardly_change() -> None:
    rng = np.random.default_rng(2)
    for size in range(1, 70):
        values = rng.normal(100, 30, size)
        found = smoothed(Measurement(("a",), values, 10.0), values.sum())
        assert found.values.sum() == pytest.approx(values.sum()) and found.stddev <= 10.0
        exact = smoothed(Measurement(("a",), values, 1e-6), values.sum())
        np.testing.assert_allclose(exact.values, values, atol=1e-6)


@pytest.mark.parametrize("rough", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("stddev", [5.0, 30.0])
def test_the_risk_falls_and_is_near_what_is_stated(rough: float, stddev: float) -> None:
    """Of 400 columns of 5 to 60 codes, of a smooth shape times rough factors."""
    rng = np.random.default_rng([4, round(10 * rough)])
    saved, stated = [], []
    for size in rng.integers(5, 61, 400):
        shape = np.exp(-(((np.arange(size) / size - rng.random()) * 2) ** 2))
        truth = shape * rng.gamma(1 / rough**2, rough**2, size) if rough else shape
        truth *= 1000 / truth.sum()
        noisy = truth + rng.normal(0, stddev, size)
        found = smoothed(Measurement(("a",), noisy, stddev), 1000.0)
        risk = ((found.values - truth) ** 2).mean() / stddev**2
        saved.append(1 - risk)
        above = (counts_nearest(noisy, 1000.0) > 0).mean()
        stated.append(above * found.stddev**2 / stddev**2 - risk)
    error = np.std(saved) / len(saved) ** 0.5
    # Counts that are far above their noise, and have no shape, gain nothing and lose nothing.
    assert np.mean(saved) > (-DEVIATIONS if rough == 3.0 else DEVIATIONS) * error
    assert abs(np.mean(stated)) < 0.1 + DEVIATIONS * np.std(stated) / len(stated) ** 0.5
