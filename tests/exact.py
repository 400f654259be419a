"""Enclosures of the normal and the discrete Gaussian law, by which inequalities are checked.

Numbers are pairs of mpmath's 40 digits: below and above the value. Each function here is monotone
in each of its arguments, so it is enclosed by its values at the ends, widened by far more than
mpmath's own error (a few units of the 40th digit).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mpmath import mp, mpf

mp.dps = 40
_WIDER = mpf(10) ** -30

__all__ = ["Enclosed", "delta_of_mu", "gap", "log_delta_of_rho", "normal", "quantile", "tail"]


@dataclass(frozen=True)
class Enclosed:
    """A number that lies between two others."""

    low: mpf
    high: mpf

    @classmethod
    def near(cls, value: mpf) -> Enclosed:
        """A computed value with its error."""
        away = abs(value) * _WIDER
        return cls(value - away, value + away)


def normal(x: mpf) -> Enclosed:
    """P(N <= x), with relative accuracy in the lower tail."""
    return Enclosed.near(mp.erfc(-x / mp.sqrt(2)) / 2)


def quantile(tail_mass: mpf, guess: mpf) -> Enclosed:
    """The z with P(N >= z) = tail_mass, by Newton from a guess, and certified by its neighbours."""
    z = mpf(guess)
    for _ in range(60):
        mass = mp.erfc(z / mp.sqrt(2)) / 2
        step = (mass - tail_mass) / (mp.exp(-(z**2) / 2) / mp.sqrt(2 * mp.pi))
        z += step
        if abs(step) < mpf(10) ** -32:
            break
    away = mpf(10) ** -26
    # The tail falls, so a z below has a larger one and a z above a smaller one.
    assert normal(-(z - away)).low > tail_mass > normal(-(z + away)).high
    return Enclosed(z - away, z + away)


@lru_cache(maxsize=4096)
def tail(scale: mpf, k: int) -> Enclosed:
    """P(X >= k) of the discrete Gaussian, k >= 0: it grows with the scale for k >= 1.

    The terms that are left out fall faster than a geometric series of ratio 1/2 beyond the last.
    """
    last = k + int(15 * scale) + 15
    terms = [mp.exp(-(mpf(j) ** 2) / (2 * scale**2)) for j in range(last + 1)]
    whole = 2 * mp.fsum(terms) - 1
    some = mp.fsum(terms[k:])
    rest = 2 * terms[-1]
    return Enclosed(some / (whole + 2 * rest) * (1 - _WIDER), (some + rest) / whole * (1 + _WIDER))


def gap(scale: mpf, k: int, wider: mpf | None = None) -> mpf:
    """At least how far P(X <= k) lies above P(X <= k - 1) in normal quantiles, k >= 0, for all
    scales from `scale` to `wider`.

    That of k = 0 is twice the quantile of P(X >= 1), by symmetry.
    """
    upper = scale if wider is None else wider
    far = quantile(tail(scale, k + 1).low, mpf(k + 1) / scale).high
    if k == 0:
        return 2 * far
    return far - quantile(tail(upper, k).high, mpf(k) / upper).low


def delta_of_mu(mu: mpf, epsilon: mpf) -> Enclosed:
    """The delta of mu-GDP at epsilon (Balle and Wang 2018, Theorem 8)."""
    first = normal(mu / 2 - epsilon / mu)
    second = normal(-mu / 2 - epsilon / mu)
    factor = mp.exp(epsilon)
    return Enclosed(first.low - factor * second.high, first.high - factor * second.low)


def log_delta_of_rho(rho: mpf, epsilon: mpf, alpha: mpf) -> mpf:
    """The logarithm of the delta of rho-zCDP at epsilon that the Renyi order alpha > 1 shows.

    Canonne, Kamath and Steinke (2020), Proposition 12; any order is valid.
    """
    return (alpha - 1) * (alpha * rho - epsilon) + alpha * mp.log1p(-1 / alpha) - mp.log(alpha - 1)
