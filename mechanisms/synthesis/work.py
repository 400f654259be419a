"""The time of AIM and of a mixture, predicted from public figures."""

from __future__ import annotations

import math

from mechanisms.privacy.budget import Budget
from pgmkit.domain import Domain

__all__ = ["FEW_ROWS", "aim_seconds", "figures", "longest_aim_seconds", "mixture_seconds", "noise"]

FEW_ROWS = 25.0
"""Rows a column, in units of the noise of one marginal: fewer leave pairs under noise.

Measured on six tables of the half "choosing" of `benchmarks.regret`: below, AIM is worse than
independence, 1.03 to 1.5 times; between 25 and 45 it has 0.90 to 1.02 times its error, by how much
the columns depend on each other, which `mechanisms.synthesis.first_look` sees."""

_LOG_SECONDS, _LOG_SECONDS_OF_A_PRODUCT = -5.47, 0.28
"""Fitted by `benchmarks.aim_seconds` to the tables of the half "choosing"."""


def aim_seconds(domain: Domain, rows: int, budget: Budget) -> float:
    """CPU seconds that AIM usually takes for all pairs, on a core of a shared server.

    exp(a + b log(columns) log(rows / noise)). How much the columns depend on each other is not
    public, and tables that depend much take several times longer (`longest_aim_seconds`).
    """
    columns, signal = figures(domain, rows, budget)
    return math.exp(_LOG_SECONDS + _LOG_SECONDS_OF_A_PRODUCT * math.log(columns) * math.log(signal))


def longest_aim_seconds(domain: Domain, rows: int, budget: Budget, model_mb: float) -> float:
    """CPU seconds of a table whose columns depend much, with a model of at most so many MB.

    No bound: where columns rule most pairs of values out (places within districts) an estimate can
    take hundreds of passes. `MplsStops` of the zoo at epsilon 1 with a target, predicted at 18 s,
    takes 15 to 21 s over five draws of the noise.

    The slowest table of either half took six times the usual time. There are five rounds a column
    at most. A round takes 0.05 s at least; 5e-6 s for each row in units of the noise, as estimates
    take more steps to be as near as less noise asks for; and 0.15 s for each MB that the model may
    have. `gss_abortion`, of the half "choosing", takes 0.2 s a round at epsilon 1 and 1.0 s at
    epsilon 10 with a model of 2 MB (99 s in all, where `mixture` takes 16 s and has 0.7 of its
    error).

    >>> domain, budget = Domain({f"q{i}": 5 for i in range(20)}), Budget(1.0, 1e-9)
    >>> usual = aim_seconds(domain, 100_000, budget)
    >>> usual < longest_aim_seconds(domain, 100_000, budget, 80.0) < 10 * usual
    True
    """
    columns, signal = figures(domain, rows, budget)
    round_seconds = max(0.05, 5e-6 * signal) + 0.15 * model_mb
    return min(6.0 * aim_seconds(domain, rows, budget), 5.0 * columns * round_seconds)


def mixture_seconds(domain: Domain) -> float:
    """CPU seconds that a mixture of the default settings takes for all pairs, about.

    >>> mixture_seconds(Domain({f"q{i}": 10 for i in range(40)}))
    41.0
    """
    cells = sum(domain.shape()) ** 2 / 2
    # A second for any table, and half a millisecond for each cell of all pairs.
    return 1.0 + 5e-4 * cells


def figures(domain: Domain, rows: int, budget: Budget) -> tuple[float, float]:
    """Columns, and rows in units of the noise of one marginal, both at least 1."""
    return float(max(1, len(domain))), max(1.0, rows / noise(budget))


def noise(budget: Budget) -> float:
    """The noise in counts, about, of one marginal measured with the whole budget."""
    total = budget.total
    return 2 / total if budget.pure else float((2 * total) ** -0.5)
