"""Shares of a budget among tables, for the least predicted error of all of them.

Consider a table at the L1 distance d from what is known without it, measured with noise of expected
L1 norm n. If both sources are combined, weighted by the inverse of their sizes, the error is near d
n / (d + n): the distance if noise hides it, the noise if that is small. With a the noise at
the cost 1, n = a / c^p at the cost c, where p is 1/2 for Gaussian noise and 1 for Laplace noise,
and the sum over tables

    sum_i d_i a_i / (d_i c_i^p + a_i)

is convex in the costs. At its minimum for a given sum of costs all tables of a cost above zero have
the same slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from mechanisms.privacy.conversions import crossing
from mechanisms.privacy.curator import Curator
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array


def spend(
    curator: Curator,
    shares: Mapping[Clique, float],
    measure: Callable[[Clique, float], Measurement],
) -> list[Measurement]:
    """Spend all that remains of the budget on measurements of the cliques of `shares` (at least
    one), in proportion to their shares: `measure(clique, cost)` returns the measurement of a clique
    at a cost. The last clique also takes what rounding leaves.
    """
    whole, together = curator.remaining, math.fsum(shares.values())
    *others, last = shares
    found = [measure(clique, whole * shares[clique] / together) for clique in others]
    return [*found, measure(last, curator.remaining)]


def predicted_risk(distances: Array, noise: Array) -> Array:
    """Return, for each table, the expected L1 error d n / (d + n) of an estimate that combines the
    table's measurement with what is known without it; 0 where both d and n are 0. `distances`: the
    L1 distance d of each table from what is known without its measurement. `noise`: the expected L1
    norm n of each measurement's noise, in the same unit.

    >>> predicted_risk(np.array([6.0, 0.0]), np.array([3.0, 3.0]))
    array([2., 0.])
    """
    together = distances + noise
    return np.divide(distances * noise, together, out=np.zeros_like(together), where=together > 0)


def least_risk_shares(distances: Array, noise: Array, *, pure: bool) -> Array:
    """Return the shares of one budget, with sum 1, for which the predicted risk of all tables is
    least.

    `distances`: at least 0, not all 0; `noise`: the noise of each table measured with the whole
    budget, above 0; both are L1 norms in counts. `pure`: True if noise is inversely proportional to
    a share, False if to its square root. Tables at the distance 0 get nothing.

    >>> noise = np.array([1.0, 1.0, 1.0])
    >>> least_risk_shares(np.array([4.0, 4.0, 0.0]), noise, pure=False).round(3)
    array([0.5, 0.5, 0. ])
    """
    shares = np.zeros(len(distances))
    told = distances > 0
    d, a = distances[told], noise[told]

    def affordable(log_slope: float) -> bool:
        return bool(_shares_at(d, a, np.exp(log_slope), pure).sum() <= 1)

    _, log_slope = crossing(affordable, -700.0, 700.0)  # floats hold no further slopes
    found = _shares_at(d, a, np.exp(log_slope), pure)
    shares[told] = found / found.sum()
    return shares


def _shares_at(d: Array, a: Array, slope: float, pure: bool) -> Array:
    """Return the share c of each table at which its risk falls by `slope` for each unit of the
    share. `d`: the table's distance; `a`: its noise at the whole budget.

    With t = d c / a, for p = 1, the slope is d^2 / (a (1 + t)^2); with t = d sqrt(c) / a, for p =
    1/2, it is d^3 / (2 a^2 t (1 + t)^2), a cubic in t. With t = 4/3 sinh(x)^2 it is sinh(3 x)^2 =
    27 d^3 / (8 a^2 slope), from which small t follow to all digits.
    """
    if pure:
        return np.asarray(np.maximum(d / np.sqrt(a * slope) - 1, 0.0) * a / d)
    with np.errstate(over="ignore"):
        third = np.arcsinh(np.sqrt(27 / 8 * d**3 / slope) / a) / 3
        return np.asarray((4 / 3 * np.sinh(third) ** 2 * a / d) ** 2)
