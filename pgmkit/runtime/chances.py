"""The probabilities at which a statement about noisy numbers counts as certain or as likely."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from pgmkit.runtime.arrays import Array

RARE = 1e-6
"""The largest probability with which noise alone may raise an alarm or end a run."""
SIGNIFICANT = 1e-3
"""The probability below which noise is not taken for the explanation of what was observed."""
DEVIATIONS = 2.0
"""The standard deviations above which a noisy number is taken for more than noise where a mistake
costs little.
"""


def expected_positive(means: Array | float, stddev: Array | float) -> Array:
    """Return the expected values of max(0, x) for normally distributed x with these means and
    standard deviations. The means must be finite and the standard deviations above 0.

    >>> expected_positive([-20.0, 0.0, 20.0], 1.0).round(3)
    array([ 0.   ,  0.399, 20.   ])
    """
    from scipy.special import ndtr

    far = np.asarray(means) / stddev
    density = np.exp(-(far**2) / 2) / math.sqrt(2 * math.pi)
    return np.asarray(np.maximum(np.asarray(means) * ndtr(far) + stddev * density, 0.0))


def deviations(chance: float, *, laplace: bool) -> float:
    """Return a number of standard deviations that Gaussian or Laplace noise exceeds with at most
    the probability `chance`, between 0 and 1. Laplace noise exceeds it with half of that
    probability.

    >>> round(deviations(0.025, laplace=False), 2)
    1.96
    """
    if laplace:
        # Laplace noise exceeds t times its scale, which is 1 / sqrt(2) standard deviations, with
        # the probability exp(-t) / 2. The factor 1 / 2 is left out, which allows for further noise
        # that is small beside it.
        return math.log(1 / chance) / math.sqrt(2)
    return NormalDist().inv_cdf(1 - chance)
