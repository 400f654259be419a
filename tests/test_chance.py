"""The checks of chance themselves: they pass what they should and catch what they should."""

import numpy as np
import pytest
from chance import (
    FALSE_ALARM,
    assert_chi_square,
    assert_differs,
    assert_follows,
    assert_mean,
    assert_stddev,
    p_value,
    stddev_range,
)
from scipy import stats

LAW = np.array([0.5, 0.3, 0.15, 0.04, 0.009, 0.0009, 0.0001])


def test_p_values_are_uniform_with_rare_cells_too() -> None:
    rng = np.random.default_rng(0)
    found = [p_value(rng.multinomial(3000, LAW), LAW) for _ in range(1500)]
    assert stats.kstest(found, "uniform").pvalue >= FALSE_ALARM


def test_laws_are_told_apart() -> None:
    draws = np.random.default_rng(0).multinomial(40_000, LAW)
    assert_follows(draws, 7 * LAW)
    other = LAW.copy()
    other[:2] = [0.52, 0.28]
    assert_differs(draws, other)
    for check, law in [(assert_follows, other), (assert_differs, LAW)]:
        with pytest.raises(AssertionError):
            check(draws, law)
    with pytest.raises(AssertionError, match="impossible"):
        assert_follows([5, 5], [0.0, 1.0])


def test_means_and_standard_deviations() -> None:
    draws = np.random.default_rng(0).normal(3, 2, 10_000)
    assert_mean(draws, 3)
    assert_stddev(draws.std(), 2, 10_000)
    assert_chi_square(((draws - 3) ** 2).sum() / 4, 10_000)
    for check in [
        lambda: assert_mean(draws, 3.2),
        lambda: assert_stddev(draws.std(), 2.2, 10_000),
        lambda: assert_chi_square(((draws - 3) ** 2).sum() / 4 * 1.2, 10_000),
        lambda: assert_chi_square(((draws - 3) ** 2).sum() / 4 / 1.2, 10_000),
    ]:
        with pytest.raises(AssertionError):
            check()


@pytest.mark.parametrize(("kurtosis", "law"), [(3, stats.norm), (6, stats.laplace)])
def test_the_range_of_standard_deviations_is_as_wide_as_their_spread(
    kurtosis: float, law: stats.rv_continuous
) -> None:
    draws = law.rvs(size=(4000, 400), random_state=0) / law.std()
    low, high = stddev_range(400, kurtosis)
    reach = stats.norm.isf(FALSE_ALARM / 2) * draws.std(axis=1).std()
    assert (high - low) / 2 == pytest.approx(reach, rel=0.1)
