"""This module converts between rho of zCDP and (epsilon, delta).

It uses Proposition 12 of Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential
Privacy" (2020), with the best Renyi order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real

from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import number, shown


def epsilon_from_rho(rho: float, delta: float) -> float:
    """Return the smallest known epsilon for which rho-zCDP implies (epsilon, delta)-DP; 0 for rho =
    0.

    Raises InvalidInput unless rho >= 0 is finite and 0 < delta < 1.

    >>> round(epsilon_from_rho(0.5, 1e-6), 3)
    5.222
    """
    not_negative("rho", rho)
    open_delta(delta)
    target = math.log(delta)
    if rho == 0 or log_delta(rho, 0.0) <= target:
        return 0.0
    # The upper end is the textbook conversion, which is never below the tight one.
    upper = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    return crossing(lambda epsilon: log_delta(rho, epsilon) <= target, 0.0, upper)[1]


def rho_from_epsilon(epsilon: float, delta: float) -> float:
    """Return the largest rho for which rho-zCDP is known to imply (epsilon, delta)-DP.

    Raises InvalidInput unless epsilon > 0 is finite and 0 < delta < 1. (For delta = 0 there is no
    such rho: zCDP never implies pure differential privacy. See Budget.)

    >>> round(rho_from_epsilon(1.0, 4.2e-10), 5)
    0.01427
    """
    positive("epsilon", epsilon)
    open_delta(delta)
    target = math.log(delta)
    return crossing_from_zero(lambda rho: log_delta(rho, epsilon) > target)[0]


def log_delta(rho: float, epsilon: float) -> float:
    """Return the logarithm of the smallest known delta for which rho-zCDP implies (epsilon,
    delta)-DP: the minimum over the order alpha > 1 of

        (alpha - 1) (alpha rho - epsilon) + alpha log(1 - 1 / alpha) - log(alpha - 1).

    This is convex in alpha, so the minimum is where the derivative crosses zero. It may be above 0;
    then it says nothing, since every delta is at most 1. `rho` must be above 0.

    >>> f"{math.exp(log_delta(0.01, 1.0)):.2e}"
    '1.66e-13'
    """

    def slope(t: float) -> float:
        # This is the derivative in alpha, at alpha = 1 + exp(t).
        return (2 * math.exp(t) + 1) * rho - epsilon - math.log1p(math.exp(-t))

    # Any alpha gives a valid delta, so at an inexact minimum delta is only a little larger.
    t = crossing(lambda t: slope(t) >= 0, -40.0, 60.0)[1]
    u = math.exp(t)
    return u * ((1 + u) * rho - epsilon) - math.log1p(u) - u * math.log1p(1 / u)


def crossing(above: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return two numbers between `low` and `high` that differ by rounding only, found by bisection:
    `above` is false up to the first and true from the second on.

    `above` must be a monotone predicate. If it is true at `low` already or still false at `high`,
    both numbers are at that end.
    """
    while low < (middle := (low + high) / 2) < high and high - low > 1e-15 * abs(high):
        low, high = (low, middle) if above(middle) else (middle, high)
    return low, high


def crossing_from_zero(above: Callable[[float], bool]) -> tuple[float, float]:
    """Return two numbers of at least 0 that differ by rounding only, found by bisection: `above` is
    false up to the first and true from the second on. `above` must be a monotone predicate that is
    true from some number on; if it is true from 0 on, the first is 0 and the second nearly 0.
    """
    upper = 1.0
    while not above(upper):
        upper *= 2
    return crossing(above, 0.0, upper)


def positive(name: str, value: float) -> None:
    """Raise InvalidInput unless the value is a finite number above 0."""
    if not _finite(value) or value <= 0:
        usual = "; 0.1 to 10 are usual" if name == "epsilon" else ""
        raise InvalidInput(f"{name} must be a finite number above 0, got {shown(value)}{usual}")


def not_negative(name: str, value: float) -> None:
    """Raise InvalidInput unless the value is a finite number, 0 or more."""
    if not _finite(value) or value < 0:
        raise InvalidInput(f"{name} must be a finite number, 0 or more, got {shown(value)}")


def open_delta(delta: float) -> None:
    """Raise InvalidInput unless delta is above 0 and below 1."""
    if not _finite(delta) or not 0 < delta < 1:
        raise InvalidInput(f"delta must be above 0 and below 1, got {shown(delta)}")


def _finite(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(number(value))
