"""Confidence intervals of a Gaussian mean that cannot be negative (Feldman and Cousins, 1998).

"Unified approach to the classical statistical analysis of small signals", Physical Review D 57,
section IV.B. The interval of a count passes smoothly from two-sided to one-sided near zero and is
never empty. At levels above about 0.55 it covers with exactly the stated probability, whatever the
true count is. Cutting ``x +- z s`` off at zero covers true zeros too often, and can leave the
single point 0.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import CLOSE, HALVINGS
from pgmkit.runtime.sizes import CALL_CELLS

_SMALLEST_MEAN = CLOSE**0.5
"""The first mean of the grid, in standard deviations. At a level of 0.95, values down to 10,000
standard deviations below zero are accepted there.
"""


def nonnegative_interval(values: Array, stddev: Array, level: float) -> tuple[Array, Array]:
    """Return the lower and upper ends of an interval for each of the Gaussian ``values``. It covers
    the value's mean, known to be at least 0, with probability ``level``. Some of the standard
    deviations ``stddev`` may be 0; the interval then is the value, or 0 if that is negative.

    Below a level of about 0.55, means near zero are covered more often than stated, and a mean of
    zero with a probability of at least one half.

    >>> low, high = nonnegative_interval(np.array([-1.0, 0.0, 5.0]), np.ones(3), 0.95)
    >>> low.round(2), high.round(2)  # the paper's table X
    (array([0.  , 0.  , 3.04]), array([1.1 , 1.96, 6.96]))
    """
    from scipy.special import ndtri

    z = float(ndtri((1 + level) / 2))
    noisy = stddev > 0
    standard = np.divide(values, stddev, out=np.zeros_like(values), where=noisy)
    means, lowest, highest = _acceptance(level)
    # For x >= 0 the upper end is x + z, and for x >= 2 z the lower end is x - z. All other ends
    # come from inverting the acceptance region.
    low = np.where(standard >= 2 * z, standard - z, np.interp(standard, highest, means, left=0.0))
    high = np.where(standard >= 0, standard + z, np.interp(standard, lowest, means))
    exact = np.maximum(values, 0.0)
    return np.where(noisy, low * stddev, exact), np.where(noisy, high * stddev, exact)


@lru_cache(maxsize=16)
def _acceptance(level: float) -> tuple[Array, Array, Array]:
    """Return means mu in (0, z], z being the two-sided quantile of the level, and the ends
    ``lowest`` and ``highest`` of the values accepted for each mean, all in units of the standard
    deviation. For mu = z the ends are 0 and 2 z.

    A value with mean mu lies between the ends with probability ``level``, and both ends have the
    same likelihood ratio to the best nonnegative mean: (highest - mu)^2 = mu^2 - 2 mu lowest, as
    lowest <= 0.
    """
    from scipy.special import ndtr, ndtri

    z = float(ndtri((1 + level) / 2))
    means = np.geomspace(_SMALLEST_MEAN, z, CALL_CELLS)
    # The distance of the upper end from mu lies between the one-sided and the two-sided quantile.
    least = np.full(CALL_CELLS, max(0.0, float(ndtri(level))))
    most = np.full(CALL_CELLS, z)
    for _ in range(HALVINGS):
        excess = (least + most) / 2
        lowest = (means**2 - excess**2) / (2 * means)
        enough = ndtr(excess) - ndtr(lowest - means) >= level
        most, least = np.where(enough, excess, most), np.where(enough, least, excess)
    return means, (means**2 - most**2) / (2 * means), means + most
