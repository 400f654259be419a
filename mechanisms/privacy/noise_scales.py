"""The noise scale of every kind of draw, as a function of its cost.

Sensitivities and scales are in the unit of what is drawn: an answer, or the score of a candidate.
The exponential mechanism of scale b takes a candidate with probability in proportion to exp(score /
b); permute-and-flip of scale b accepts a candidate with probability exp((score - largest score) /
b). Costs are epsilon of pure differential privacy, or rho of zCDP. Sources: Dwork and Roth, "The
Algorithmic Foundations of Differential Privacy" (2014), for pure budgets; Bun and Steinke,
"Concentrated Differential Privacy" (2016), for the Gaussian; Rogers and Steinke, "A Better Privacy
Analysis of the Exponential Mechanism" (2021), for selections under zCDP; `gaussian_dp` for
everything under Gaussian accounting.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from mechanisms.privacy import gaussian_dp
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.conversions import positive


def additive(budget: Budget, l1: float, l2: float, cost: float) -> float:
    """Return the scale of discrete Laplace noise for a pure budget, l1 / epsilon, or else of
    discrete Gaussian noise, l2 / sqrt(2 rho). Under Gaussian accounting it is larger, and never
    below 2 / pi (see `gaussian_dp.scale`).

    `l1` and `l2`: the L1 and L2 sensitivities of the answers. `cost`: the epsilon or rho to spend.

    >>> from mechanisms.privacy.budget import Budget
    >>> additive(Budget(1.0), 2, 1.5, 0.5), additive(Budget(1.0, 1e-6), 2, 1.5, 0.125)
    (4.0, 3.0)
    >>> additive(Budget(1.0, 1e-6, accounting="gaussian"), 2, 1.5, 0.125)
    3.017...
    """
    positive("cost", cost)
    if budget.gaussian:
        return gaussian_dp.scale(l2, cost)
    return l1 / cost if budget.pure else l2 / math.sqrt(2 * cost)


def reach(level: float, *, pure: bool) -> float:
    """Return how many standard deviations on either side of a noisy answer hold the one without
    noise with a probability of at least `level`, whatever sum of such variables the noise is:
    Laplace ones if `pure`, else Gaussian ones. A single Laplace variable reaches farther than a
    Gaussian one of the same variance from a level of about 0.91 on, and sums lie between the two.

    >>> round(reach(0.95, pure=False), 3), round(reach(0.95, pure=True), 3)
    (1.96, 2.118)
    """
    gaussian = NormalDist().inv_cdf((1 + level) / 2)
    return max(gaussian, -math.log1p(-level) / math.sqrt(2)) if pure else gaussian


def exponential(budget: Budget, sensitivity: float, cost: float) -> float:
    """Return the scale of the exponential mechanism, 2 sensitivity / epsilon. Its `cost` is epsilon
    for a pure budget, or else rho = epsilon^2 / 8. Under Gaussian accounting epsilon is
    `gaussian_dp.range_of` the cost. `sensitivity`: the most by which a score changes.

    >>> from mechanisms.privacy.budget import Budget
    >>> exponential(Budget(1.0), 1.0, 0.5), exponential(Budget(1.0, 1e-6), 1.0, 0.5)
    (4.0, 1.0)
    >>> exponential(Budget(1.0, 1e-6, accounting="gaussian"), 1.0, 0.5)
    1.239...
    """
    if budget.gaussian:
        return 2 * sensitivity / gaussian_dp.range_of(cost)
    return 2 * sensitivity / (cost if budget.pure else math.sqrt(8 * cost))


def permute_and_flip(budget: Budget, sensitivity: float, cost: float) -> float:
    """Return the scale of permute-and-flip, 2 sensitivity / epsilon. Its `cost` is epsilon for a
    pure budget, or else rho = epsilon^2 / 2. Under Gaussian accounting epsilon is half of
    `gaussian_dp.range_of` the cost. `sensitivity`: the most by which a score changes.

    The logarithms of the ratios of its probabilities on neighbours lie in -epsilon..epsilon, an
    interval of length 2 epsilon (see `gaussian_dp`).

    >>> from mechanisms.privacy.budget import Budget
    >>> permute_and_flip(Budget(1.0), 1.0, 0.5), permute_and_flip(Budget(1.0, 1e-6), 1.0, 0.5)
    (4.0, 2.0)
    >>> permute_and_flip(Budget(1.0, 1e-6, accounting="gaussian"), 1.0, 0.5)
    2.478...
    """
    return exponential(budget, sensitivity, cost) * (1 if budget.pure else 2)
