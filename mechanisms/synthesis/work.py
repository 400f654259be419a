"""The time of AIM and of a mixture, predicted from public figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from mechanisms.privacy.budget import Budget
from pgmkit.domain import Clique, Domain

FEW_ROWS = 25.0
"""The rows per column, in units of one marginal's noise, below which noise hides pairs.

It was measured on six of the tables that `benchmarks.regret` lists under "choosing". Below 25, AIM
has 1.03 to 1.5 times the error of independent columns; between 25 and 45 it has 0.90 to 1.02 times
that error, depending on how much the columns depend on each other, which
`mechanisms.synthesis.first_look` measures.
"""

_LOG_SECONDS, _LOG_SECONDS_OF_A_PRODUCT = -5.47, 0.28
"""The numbers a and b of `aim_seconds`, fitted by `benchmarks.aim_seconds` to the tables that
`benchmarks.regret` lists under "choosing".
"""


def aim_seconds(domain: Domain, rows: int, budget: Budget) -> float:
    """Return the CPU seconds that AIM usually takes for all pairs, on a core of a shared server.

    The formula is exp(a + b log(columns) log(rows / noise)), where the noise is that of a marginal
    measured with the whole budget (`noise`), and a quotient below 1 counts as 1. How much the
    columns depend on each other is not public, and tables whose columns depend strongly take
    several times longer (`longest_aim_seconds`).
    """
    columns, signal = figures(domain, rows, budget)
    return math.exp(_LOG_SECONDS + _LOG_SECONDS_OF_A_PRODUCT * math.log(columns) * math.log(signal))


def longest_aim_seconds(domain: Domain, rows: int, budget: Budget, model_mb: float) -> float:
    """Return the CPU seconds that AIM takes, with a model of at most `model_mb` MB, for a table
    whose columns depend strongly on each other.

    The result is the smaller of two estimates. One is six times `aim_seconds`, which is what the
    slowest of the tables of `benchmarks.regret` took. The other is the time of five rounds a
    column. A round takes 5e-6 s times the number of rows divided by the scale of the noise (with
    less noise estimates must be more exact), but at least 0.05 s, and 0.15 s more for each MB of
    the model. The table `gss_abortion` takes 0.2 s a round at epsilon 1, and 1.0 s at epsilon 10
    with a model of 2 MB (99 s in all; `mixture` takes 16 s and has 0.7 times its error).

    The result is not a bound: if columns rule most pairs of values out (such as places within
    districts), an estimate can take hundreds of passes. The table `MplsStops` of `benchmarks.zoo`,
    at epsilon 1 with a target, is predicted at 18 s and takes 15 to 21 s over five draws of the
    noise.

    >>> domain, budget = Domain({f"q{i}": 5 for i in range(20)}), Budget(1.0, 1e-9)
    >>> usual = aim_seconds(domain, 100_000, budget)
    >>> usual < longest_aim_seconds(domain, 100_000, budget, 80.0) < 10 * usual
    True
    """
    columns, signal = figures(domain, rows, budget)
    round_seconds = max(0.05, 5e-6 * signal) + 0.15 * model_mb
    return min(6.0 * aim_seconds(domain, rows, budget), 5.0 * columns * round_seconds)


def mixture_seconds(
    domain: Domain, pairs: Sequence[Clique], cells: int, rows: int, budget: Budget
) -> float:
    """Return roughly the CPU seconds that `mixture` takes to fit these pairs, on a core of a shared
    server. `cells`: the setting of that name, the most cells that it fits, but for a single larger
    pair. `rows`: the number of rows, divided by that of the largest protected unit.

    The fit takes a second, and for each level 2 ms for each code and 0.02 ms for each cell. Of a
    pair no more cells are counted than it has rows in units of its noise, since codes are merged
    that noise would hide. A single pair of more than `cells` counts whole, since bins whose
    relation is close are not merged. The number of levels is that of `MixtureFit.last_level`: if a
    pair of n cells has its records in about the root of n, the misfit of a cell for independent
    columns is near the square of these rows divided by n^(3/2). Of 20 runs on seven tables at
    epsilon 0.1, 1 and 10, 19 took 0.6 to 1.9 times as long, and one more than twice as long
    (`benchmarks/README.md`).

    >>> budget = Budget(1.0, 1e-9)
    >>> round(mixture_seconds(Domain({"a": 20, "b": 20}), [("a", "b")], 100_000, 50_000, budget), 1)
    2.7
    """
    sizes = [domain.size(pair) for pair in pairs] or [1]
    codes = sum(domain.sizes[name] for name in set(itertools.chain.from_iterable(pairs)))
    signal = max(1.0, rows / noise(budget) / len(sizes) ** (1 if budget.pure else 0.5))
    merged, largest = sum(min(size, signal) for size in sizes), max(sizes)
    fitted = largest if largest > cells else min(merged, cells)
    levels = math.log2(max(1.0, signal**2 / (sum(sizes) / len(sizes)) ** 1.5) / 0.015)
    return 1.0 + levels * (2e-3 * codes + 2e-5 * fitted)


def figures(domain: Domain, rows: int, budget: Budget) -> tuple[float, float]:
    """Return the number of columns, and the rows in units of one marginal's noise; both at
    least 1.
    """
    return float(max(1, len(domain))), max(1.0, rows / noise(budget))


def noise(budget: Budget) -> float:
    """Return roughly the scale of the noise, in counts, in each cell of one marginal that is
    measured with the whole budget.
    """
    total = budget.total
    return 2 / total if budget.pure else float((2 * total) ** -0.5)
