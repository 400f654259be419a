"""Gaussian differential privacy of discrete noise and selections, and its exact (epsilon, delta).

mu-GDP (Dong, Roth and Su, "Gaussian Differential Privacy", 2022): telling neighbours apart is at
least as hard as telling N(0, 1) from N(mu, 1). Costs are mu^2 / 2, in the ledger's unit: for
continuous noise that is rho of zCDP. They add up, also if each step and its cost depend on
earlier answers (Smith and Thakurta, "Fully Adaptive Composition for Gaussian Differential Privacy",
2022: a mu-GDP step tells no more than a noisy path with a drift, watched for the time mu^2, and
whoever watches may decide on the way what to look for next). The total implies (epsilon, delta)
exactly (Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018, Theorem
8), with no loss to a Renyi order.

Discrete noise is not quite Gaussian. Let X be discrete Gaussian of scale s, and z_k the normal
quantile of P(X <= k). The best tests between X and X + 1 are thresholds, so they are mu-GDP for
mu = sup_k (z_k - z_(k-1)), and a shift by a whole vector v is mu |v|_2 -GDP. At s >= 2/pi

    mu^2 (1 - mu^2 / pi^2) <= 1 / s^2.

Proof. The gaps tend to 1/s for large k; if they never exceed it we are done, else let I_k be the
longest, of length mu. Its neighbours are no longer, so normal windows of length mu beside it hold
at least the masses p_(k-1) and p_(k+1), and

    -1/s^2 = log(p_(k-1) p_(k+1) / p_k^2) <= second difference, over mu, of m,

where m(t) is the log of the normal mass of the window of length mu around t. m'' is the variance of
a normal variable restricted to a window, less 1; a log-concave law on an interval of length mu has
variance at most mu^2 / pi^2 (Payne and Weinberger 1960). So the second difference is at most
-mu^2 (1 - mu^2 / pi^2). That allows mu^2 <= pi^2/2 (1 - sqrt(1 - 4/(pi s)^2)), or mu of at least
c = pi/sqrt(2). The second is impossible, since all gaps are shorter than c. The law's normaliser is
at least s sqrt(2 pi), by Poisson's summation, so that P(X = 0) <= 1/(s sqrt(2 pi)) <= 0.63, by
which the gap of k = 0, symmetric about 0, is shorter than 1.79; and for k >= 1, P(X >= k) is at
most the normal tail Q at y = (k - 1) / s. So I_k begins at y or further out, where Q falls over a
length of c by the factor Q(y + c) / Q(y) or less. But P(X > k) / P(X >= k) >= 1 / (1 + 1/r) with
r = exp(-(2 k + 1) / (2 s^2)) = exp(-y / s - 3 / (2 s^2)), which is more. For s >= 1: at y = 0 it is
0.18 against 0.03, and its logarithm falls by y at most, that of the factor by at least
c (2 / pi) y = sqrt(2) y, because the slope of n / Q, of the normal density n, rises from 2 / pi at
0 (Sampford 1953). For s from 2/pi to 1 and k >= 4, so that y >= 3, it holds in the same way. There
the gaps of k = 1, 2 and 3 have been enclosed at all scales.

A selection whose log ratios between neighbours lie in an interval of length r (r = epsilon for the
exponential mechanism, twice epsilon for any epsilon-DP draw) is mu-GDP for

    mu = 2 z(r / 2),    z(x) the normal quantile of 1 / (1 + exp(-x)),

at most sqrt(2 pi) / 4 r: it costs up to pi / 2 times its rho of zCDP, r^2 / 8. Proof. Let the
ratios lie in exp(a)..exp(b), b - a = r. A test that errs with probability t on one side errs on the
other with at least max(1 - exp(b) t, exp(a) (1 - t)). The Gaussian curve is convex and goes through
(0, 1) and (1, 0) too, so it is below these two lines where it is below their crossing, which is at
t = q and 1 - p with log(p / (1 - p)) - log(q / (1 - q)) = r. That asks for mu = z(y + r) - z(y),
with y = log(q / (1 - q)). z is odd, and concave above 0, so the worst y is -r / 2. Concave: the
slope of its inverse is n / (N (1 - N)), of the normal density n and distribution N at y, which
does not fall where D = n (2 N - 1) - y N (1 - N) is at least 0. D is 0 at 0 and at infinity, and
D' = 2 n^2 - N (1 - N) begins above 0 and ends at 0; D'' = n (2 N - 1 - 4 y n) is first below 0 and
then above, as 2 N - 1 - 4 y n begins at 0 with the slope n (4 y^2 - 2) and ends at 1. So D' is
first above 0 and then below, D rises and then falls, and is nowhere below 0.
"""

from __future__ import annotations

import math

from scipy.special import erf, erfcx, log_ndtr

from mechanisms.privacy.conversions import crossing, not_negative, open_delta, positive
from pgmkit.runtime.precision import SUM_ROUNDING

_LARGEST_SHIFT = math.pi / math.sqrt(2)
"""The largest mu of a shift by 1 for which the bound is proved; the scale is then 2 / pi."""


def scale(l2: float, cost: float) -> float:
    """Return the scale of the discrete Gaussian, on whole numbers of L2 sensitivity `l2`, for
    mu^2/2 = cost.

    It is slightly above the continuous one, l2 / sqrt(2 cost), and never below 2 / pi.

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
    """Return the smallest delta for which mu-GDP implies (epsilon, delta)-DP.

    It is Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu), with Phi the normal
    distribution function; the normal density is factored out of both terms, so that nothing
    overflows.

    Raises InvalidInput unless mu > 0 and epsilon >= 0 are finite.

    >>> f"{delta_from_mu(1.0, 1.0):.4f}"
    '0.1269'
    """
    positive("mu", mu)
    not_negative("epsilon", epsilon)
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if near <= 0:
        rest = math.exp(-(near**2) / 2) * erfcx(far / math.sqrt(2)) / 2
        return float(math.exp(log_ndtr(-near)) - rest)
    mills = erfcx(near / math.sqrt(2)) - erfcx(far / math.sqrt(2))
    return float(math.exp(-(near**2) / 2) * mills / 2)


def epsilon_from_cost(cost: float, delta: float) -> float:
    """Return the smallest epsilon for which a total of mu^2/2 = cost implies (epsilon, delta)-DP.

    Raises InvalidInput unless cost >= 0 is finite and 0 < delta < 1.

    >>> epsilon_from_cost(0.5, 1e-9), epsilon_from_cost(0.0, 1e-9)
    (6.1739..., 0.0)
    """
    not_negative("cost", cost)
    open_delta(delta)
    mu = math.sqrt(2 * cost)
    if mu == 0 or _keeps(mu, 0.0, delta):
        return 0.0
    upper = 1.0
    while not _keeps(mu, upper, delta):
        upper *= 2
    return crossing(lambda epsilon: _keeps(mu, epsilon, delta), 0.0, upper)[1]


def largest_cost(epsilon: float, delta: float) -> float:
    """Return the largest total of mu^2/2 that implies (epsilon, delta)-DP.

    Raises InvalidInput unless epsilon > 0 is finite and 0 < delta < 1.

    >>> from mechanisms.privacy.conversions import rho_from_epsilon
    >>> largest_cost(1.0, 1e-9) > rho_from_epsilon(1.0, 1e-9)
    True
    """
    positive("epsilon", epsilon)
    open_delta(delta)
    upper = 1.0
    while _keeps(upper, epsilon, delta):
        upper *= 2
    return crossing(lambda mu: not _keeps(mu, epsilon, delta), 0.0, upper)[0] ** 2 / 2


def _keeps(mu: float, epsilon: float, delta: float) -> bool:
    # A fraction of delta is set aside for the rounding of `delta_from_mu`.
    return mu == 0 or delta_from_mu(mu, epsilon) <= delta * (1 - SUM_ROUNDING)
