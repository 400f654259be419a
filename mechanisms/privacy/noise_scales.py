"""Noise scales from costs: the price list of every draw.

Costs are epsilon of pure differential privacy, or rho of zCDP. Sources: Dwork and Roth, "The
Algorithmic Foundations of Differential Privacy" (2014), for pure budgets; Bun and Steinke,
"Concentrated Differential Privacy" (2016), for the Gaussian; Rogers and Steinke, "A Better Privacy
Analysis of the Exponential Mechanism" (2021), for selections under zCDP.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mechanisms.privacy import gaussian_dp

if TYPE_CHECKING:
    from mechanisms.privacy.budget import Budget

__all__ = ["additive", "exponential", "permute_and_flip", "several"]


def additive(budget: Budget, l1: float, l2: float, cost: float) -> float:
    """Of discrete Laplace noise (l1 / epsilon), or of discrete Gaussian noise (l2 / sqrt(2 rho));
    a little more where the accounting is Gaussian, see `gaussian_dp.scale`.

    >>> from mechanisms.privacy.budget import Budget
    >>> additive(Budget(1.0), 2, 1.5, 0.5), additive(Budget(1.0, 1e-6), 2, 1.5, 0.125)
    (4.0, 3.0)
    >>> additive(Budget(1.0, 1e-6, accounting="gaussian"), 2, 1.5, 0.125)
    3.017...
    """
    if budget.gaussian:
        return gaussian_dp.scale(l2, cost)
    return l1 / cost if budget.pure else l2 / math.sqrt(2 * cost)


def exponential(pure: bool, sensitivity: float, cost: float) -> float:
    """Of the exponential mechanism, 2 sensitivity / epsilon; it has rho = epsilon^2 / 8.

    >>> exponential(True, 1.0, 0.5), exponential(False, 1.0, 0.5)
    (4.0, 1.0)
    """
    return 2 * sensitivity / (cost if pure else math.sqrt(8 * cost))


def permute_and_flip(pure: bool, sensitivity: float, cost: float) -> float:
    """Of permute-and-flip, 2 sensitivity / epsilon; it has rho = epsilon^2 / 2 (any mechanism has).

    >>> permute_and_flip(True, 1.0, 0.5), permute_and_flip(False, 1.0, 0.5)
    (4.0, 2.0)
    """
    return 2 * sensitivity / (cost if pure else math.sqrt(2 * cost))


def several(pure: bool, sensitivity: float, count: int, cost: float) -> float:
    """Of `count` exponential mechanisms, which share the cost evenly.

    >>> several(True, 1.0, 4, 2.0) == exponential(True, 1.0, 0.5)
    True
    >>> several(False, 1.0, 4, 2.0) == exponential(False, 1.0, 0.5)
    True
    """
    return exponential(pure, sensitivity, cost / count)
