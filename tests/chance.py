"""What the tests that compare with chance share: one false-alarm rate, and checks that keep it.

Every check fails by chance at most once in a million runs (`FALSE_ALARM`). Seeds make most of them
repeat on one machine, but not on the next: sums of floating-point numbers differ by processor, and
a comparison that turns on a last digit turns the other way. So limits come from the spread of the
draws, not from what one seed gave.

A limit on what a whole mechanism reaches (an error, or a ratio of errors) has no law of its own.
Its test states the mean and the standard deviation of the outcome over 20 seeds, measured once, and
the limit is `DEVIATIONS` standard deviations away or more: 1e-9 for a normal law, which leaves room
for others and for changes of the mean by a deviation.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

FALSE_ALARM = 1e-6
DEVIATIONS = 6.0
_FEWEST_EXPECTED = 20
"""Draws in a cell, below which Pearson's statistic is no chi-square that far out in its tail."""


def p_value(observed: ArrayLike, law: ArrayLike) -> float:
    """Of Pearson's chi-square test of counts; cells with few expected draws are pooled."""
    counts, weights = np.asarray(observed, dtype=float).ravel(), np.asarray(law, float).ravel()
    assert not counts[weights == 0].any(), "something impossible was drawn"
    expected = weights / weights.sum() * counts.sum()
    order = np.argsort(-expected)
    counts, expected = counts[order], expected[order]
    # From the rarest cell upwards until what is pooled is not rare any more.
    kept = int(np.searchsorted(-expected, -_FEWEST_EXPECTED))
    while kept > 0 and 0 < expected[kept:].sum() < _FEWEST_EXPECTED:
        kept -= 1
    counts = np.append(counts[:kept], counts[kept:].sum())
    expected = np.append(expected[:kept], expected[kept:].sum())
    present = expected > 0
    return float(stats.chisquare(counts[present], expected[present]).pvalue)


def assert_follows(observed: ArrayLike, law: ArrayLike) -> None:
    """The counts are those of draws from the law (weights, in any scale)."""
    assert p_value(observed, law) >= FALSE_ALARM


def assert_differs(observed: ArrayLike, law: ArrayLike) -> None:
    """The counts are not of this law. The caller sees to it that they are enough to tell."""
    assert p_value(observed, law) < FALSE_ALARM


def assert_no_more_spread(observed: ArrayLike, law: ArrayLike) -> None:
    """Counts whose cells stray from the law at most as far as those of independent draws."""
    counts, weights = np.asarray(observed).ravel(), np.asarray(law, dtype=float).ravel()
    draws, shares = counts.sum(), weights / weights.sum()
    level = FALSE_ALARM / (2 * len(counts))  # for all cells together, either side
    assert (counts >= stats.binom.ppf(level, draws, shares)).all()
    assert (counts <= stats.binom.isf(level, draws, shares)).all()


def assert_mean(draws: ArrayLike, expected: float) -> None:
    """Independent draws have this mean: Student's t with their own spread."""
    assert_mean_between(draws, expected, expected)


def assert_mean_between(draws: ArrayLike, low: float, high: float) -> None:
    """The mean of the law of independent draws may lie in this range."""
    values = np.asarray(draws, dtype=float)
    reach = stats.t.isf(FALSE_ALARM / 2, len(values) - 1) * values.std(ddof=1)
    reach /= np.sqrt(len(values))
    assert values.mean() + reach >= low and values.mean() - reach <= high, values.mean()


def stddev_range(draws: int, kurtosis: float = 3.0) -> tuple[float, float]:
    """Where the standard deviation of so many draws lies, as a multiple of the true one.

    `kurtosis`: of one draw, 3 for a normal one, then exact; 6 for Laplace.

    >>> [round(end, 2) for end in stddev_range(1000)]
    [0.89, 1.11]
    """
    # The variance of a sample variance is (kurtosis - 1) / draws: that of a normal sample of this
    # many degrees of freedom.
    freedom = 2 * draws / (kurtosis - 1)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], freedom) / freedom
    return float(np.sqrt(low)), float(np.sqrt(high))


def assert_stddev(found: ArrayLike, expected: ArrayLike, draws: int, kurtosis: float = 3.0) -> None:
    """Standard deviations, each of so many draws, are the expected ones."""
    low, high = stddev_range(draws, kurtosis)
    ratio = np.asarray(found, dtype=float) / np.asarray(expected, dtype=float)
    assert ((low <= ratio) & (ratio <= high)).all(), ratio


def assert_chi_square(statistic: float, freedom: float) -> None:
    """A sum of squares is neither too large nor too small."""
    assert stats.chi2.isf(1 - FALSE_ALARM / 2, freedom) <= statistic
    assert statistic <= stats.chi2.isf(FALSE_ALARM / 2, freedom)
