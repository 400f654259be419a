"""Gaussian differential privacy of discrete noise and selections, and its exact (epsilon, delta).

An answer is mu-GDP if it is at least as hard to tell neighbouring data sets apart by it as to tell
N(0, 1) from N(mu, 1) (Dong, Roth and Su, "Gaussian Differential Privacy", 2022). Costs are mu^2 /
2, in the ledger's unit; for continuous noise that is rho of zCDP. They add up, also if each step
and its cost depend on earlier answers (Smith and Thakurta, "Fully Adaptive Composition for Gaussian
Differential Privacy", 2022). The total implies (epsilon, delta) exactly (Balle and Wang, "Improving
the Gaussian Mechanism for Differential Privacy", 2018, Theorem 8), without the loss of a conversion
through a Renyi order.

**Discrete noise** is not quite Gaussian. Let X be discrete Gaussian of scale s, and z_k the normal
quantile of P(X <= k). The best tests between X and X + 1 are thresholds, so a shift by 1 is mu-GDP
for mu = sup_k (z_k - z_(k-1)), and a shift by a vector v of whole numbers is mu |v|_2 -GDP. For s
>= 2/pi,

    mu^2 (1 - mu^2 / pi^2) <= 1 / s^2.

Proof. The gaps I_k = (z_(k-1), z_k) tend to the length 1/s for large k. If none is longer, the
claim holds. Otherwise let I_k be the longest, of length mu. Its neighbours are not longer, so the
intervals of length mu on its two sides have at least the normal probabilities p_(k-1) and p_(k+1),
where p_j = P(X = j), and

    -1/s^2 = log(p_(k-1) p_(k+1) / p_k^2) <= second difference, over mu, of m,

where m(t) is the logarithm of the normal probability of the interval of length mu around t. The
second derivative of m is the variance of a normal variable restricted to the interval, minus 1. A
log-concave distribution on an interval of length mu has a variance of at most mu^2 / pi^2 (Payne
and Weinberger 1960), so the second difference is at most -mu^2 (1 - mu^2 / pi^2), which gives the
inequality. It leaves two cases: mu^2 <= pi^2/2 (1 - sqrt(1 - 4/(pi s)^2)), the case of which
`scale` makes use, or mu >= c with c = pi/sqrt(2).

The second case is impossible, since all gaps are shorter than c. For k = 0: the normaliser of the
distribution is at least s sqrt(2 pi), by Poisson's summation, so P(X = 0) <= 1/(s sqrt(2 pi)) <=
0.63. The gap of k = 0 is symmetric about 0, so it is shorter than 1.79.

For k >= 1, P(X >= k) is at most the normal tail Q at y = (k - 1) / s. So I_k begins at y or further
out, where Q falls over a length of c to the share Q(y + c) / Q(y) or less. But P(X > k) / P(X >= k)
>= 1 / (1 + 1/r) with r = exp(-(2 k + 1) / (2 s^2)) = exp(-y / s - 3 / (2 s^2)). This bound is
larger than the share Q(y + c) / Q(y), so I_k is shorter than c.

It is larger for s >= 1, since at y = 0 the bound is at least 0.18 and the share 0.03, and with
growing y the logarithm of the bound falls by at most y, but that of the share by at least c (2 /
pi) y = sqrt(2) y. The latter holds because the slope of n / Q, where n is the normal density, rises
from 2 / pi at 0 (Sampford 1953). For s from 2/pi to 1 and k >= 4, so that y >= 3, the argument is
the same. For these s and k = 1, 2 and 3, the gaps are enclosed at all scales in
``tests/mechanisms/test_exact_bounds.py``.

**Selections.** Consider a selection for which the logarithms of the ratios of its probabilities on
two neighbours lie in an interval of length r (r = epsilon for the exponential mechanism, twice
epsilon for any epsilon-DP draw). It is mu-GDP for

    mu = 2 z(r / 2),    z(x) the normal quantile of 1 / (1 + exp(-x)),

which is at most sqrt(2 pi) / 4 r. So a selection costs up to pi / 2 times its rho of zCDP, r^2 / 8.

Proof. Let the ratios lie in exp(a)..exp(b), with b - a = r. A test with the error probability t on
one data set has at least the error probability max(1 - exp(b) t, exp(a) (1 - t)) on the other. The
Gaussian trade-off curve is convex and goes through (0, 1) and (1, 0), as these two lines do. So it
lies below both if it lies below their crossing, which is at t = q and has the height 1 - p, with
log(p / (1 - p)) - log(q / (1 - q)) = r.

That requires mu = z(y + r) - z(y), with y = log(q / (1 - q)).

The function z is odd, and concave above 0, so the largest mu is that of y = -r / 2. It is concave
if the slope of its inverse does not fall. That slope is n / (N (1 - N)), with the normal density n
and distribution function N at y, and it does not fall if D = n (2 N - 1) - y N (1 - N) is at least
0.

D is 0 at 0 and at infinity. D' = 2 n^2 - N (1 - N) is positive at 0 and tends to 0. D'' = n (2 N -
1 - 4 y n) is first negative and then positive, because 2 N - 1 - 4 y n is 0 at 0, has the slope n
(4 y^2 - 2) and tends to 1. So D' is first positive and then negative: D rises and then falls, and
is never negative.
"""

from __future__ import annotations

import math

from scipy.special import erf, erfcx, log_ndtr

from mechanisms.privacy.conversions import crossing_from_zero, not_negative, open_delta, positive
from pgmkit.runtime.precision import SUM_ROUNDING

_LARGEST_SHIFT = math.pi / math.sqrt(2)
"""The largest mu of a shift by 1 for which the bound is proved; the scale is then 2 / pi."""


def scale(l2: float, cost: float) -> float:
    """Return the scale of the discrete Gaussian, on whole numbers of L2 sensitivity `l2`, for
    mu^2/2 = cost.

    It is above the continuous one, l2 / sqrt(2 cost), by less than 1.4% from a scale of 2 on, and
    never below 2 / pi.

    >>> scale(1.0, 0.125), scale(1.0, 0.00125)
    (2.0258..., 20.0025...)
    """
    shift = min(math.sqrt(2 * cost) / l2, _LARGEST_SHIFT)
    return 1 / (shift * math.sqrt(1 - (shift / math.pi) ** 2))


def range_of(cost: float) -> float:
    """Return the length of the interval of log ratios that a selection may have for mu^2/2 = cost.

    >>> range_of(0.125), range_of(12.5)
    (0.8001..., 10.1508...)
    """
    half = math.sqrt(2 * cost) / 2
    if half < 1:  # the difference of the logarithms would lose its digits
        return 4 * math.atanh(float(erf(half / math.sqrt(2))))
    return 2 * float(log_ndtr(half) - log_ndtr(-half))


def delta_from_mu(mu: float, epsilon: float) -> float:
    """Return the smallest delta for which mu-GDP implies (epsilon, delta)-DP; below mu = 5e-5 an
    upper bound, larger by a billionth at most.

    It is Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu), with Phi the normal
    distribution function. The normal density is factored out of the second term, so that nothing
    overflows, and of the first where that keeps more digits. What is then left is half the fall of
    f(x) = erfcx(x / sqrt(2)), a multiple of Mills' ratio, over an interval of length mu. The slope
    of f, x f(x) - sqrt(2 / pi), is concave, so the mean of its values at both ends bounds this fall
    where the difference of two values of f would lose its digits.

    Raises InvalidInput unless mu > 0 and epsilon >= 0 are finite.

    >>> f"{delta_from_mu(1.0, 1.0):.4f}"
    '0.1269'
    """
    positive("mu", mu)
    not_negative("epsilon", epsilon)
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    density = math.exp(-near * near / 2)
    if near > 0 and density == 0:  # also for an infinite `near`
        return 0.0
    if mu < 5e-5:
        falls = [math.sqrt(2 / math.pi) - x * erfcx(x / math.sqrt(2)) for x in (near, far)]
        return float(density * mu * sum(falls) / 4)
    if near <= 0:
        return float(math.exp(log_ndtr(-near)) - density * erfcx(far / math.sqrt(2)) / 2)
    mills = erfcx(near / math.sqrt(2)) - erfcx(far / math.sqrt(2))
    return float(density * mills / 2)


def epsilon_from_cost(cost: float, delta: float) -> float:
    """Return the smallest epsilon for which a total of mu^2/2 = cost implies (epsilon, delta)-DP.

    Raises InvalidInput unless cost >= 0 is finite and 0 < delta < 1.

    >>> epsilon_from_cost(0.5, 1e-9), epsilon_from_cost(0.0, 1e-9)
    (6.1739..., 0.0)
    """
    not_negative("cost", cost)
    open_delta(delta)
    mu = math.sqrt(2 * cost)
    if _keeps(mu, 0.0, delta):
        return 0.0
    return crossing_from_zero(lambda epsilon: _keeps(mu, epsilon, delta))[1]


def largest_cost(epsilon: float, delta: float) -> float:
    """Return the largest total of mu^2/2 that implies (epsilon, delta)-DP.

    Raises InvalidInput unless epsilon > 0 is finite and 0 < delta < 1.

    >>> from mechanisms.privacy.conversions import rho_from_epsilon
    >>> largest_cost(1.0, 1e-9) > rho_from_epsilon(1.0, 1e-9)
    True
    """
    positive("epsilon", epsilon)
    open_delta(delta)
    return crossing_from_zero(lambda mu: not _keeps(mu, epsilon, delta))[0] ** 2 / 2


def _keeps(mu: float, epsilon: float, delta: float) -> bool:
    # A fraction of delta is set aside for the rounding of `delta_from_mu`.
    return mu == 0 or delta_from_mu(mu, epsilon) <= delta * (1 - SUM_ROUNDING)
