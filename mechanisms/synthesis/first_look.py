"""Whether columns depend on each other enough to be worth measuring: what "auto" looks at first.

Single columns are measured, which every mechanism needs, and for a fiftieth of the budget the
distances of all pairs from the product of their columns, together. Their mean has little noise,
however many pairs there are. What chance alone would give is drawn from the noisy columns:
distances of random tables from the product of columns with the same noise. Nothing is lost where no
dependence shows: the budget that is left goes to the same columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.families.graphical import estimator
from mechanisms.families.mixture_fit import nearest_counts
from mechanisms.privacy.curator import Curator
from mechanisms.synthesis.work import noise
from mechanisms.workload import Workload, downward_closure
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement

__all__ = ["FirstLook", "first_look"]

_ERRORS_SHARE = 0.02
_LEAST_SHARE, _MOST_SHARE, _ROWS_OF_A_SHARE = 1 / 16, 0.5, 25.0
"""Of the budget, for the single columns: so many rows a column, in units of the noise, halve it."""
_DEVIATIONS = 2.0
"""Of the noise, by which the distances must be above chance."""
_DRAWS = 8


@dataclass(frozen=True)
class FirstLook:
    """The single columns, and how far pairs are from independence beyond what chance gives.

    `excess`: the mean total variation of pairs from the product of their columns, less that of
    chance; `stddev`: of its noise.
    """

    measurements: tuple[Measurement, ...]
    excess: float
    stddev: float

    @property
    def dependent(self) -> bool:
        """Whether noise alone is an unlikely reason."""
        return self.excess > _DEVIATIONS * self.stddev


def first_look(curator: Curator, workload: Workload, rows: int) -> FirstLook:
    """Measure the workload's columns and the distances of its pairs; there must be a pair.

    `rows`: their number, about.
    """
    closure = downward_closure(workload)
    singles, pairs = ([c for c in closure if len(c) == k] for k in (1, 2))
    budget, most = curator.ledger.budget, curator.neighbours.max_rows
    signal = max(1, rows) / (len(singles) * most * noise(budget))
    share = min(_MOST_SHARE, max(_LEAST_SHARE, _ROWS_OF_A_SHARE / signal))
    whole = curator.remaining
    cost = share * whole / len(singles)
    measurements = [curator.measure(c, cost, step="auto: measure") for c in singles]
    model = estimator(curator.domain, curator.public_total)(None, measurements)
    columns = {name: model.marginal((name,)) for (name,) in singles}
    tables = {pair: model.marginal(pair) for pair in pairs}
    price = _ERRORS_SHARE * whole
    distances = curator.measure_errors(pairs, tables, price, step="auto: errors of pairs")
    found = float(distances.mean()) / (2 * model.total)
    chance, spread = _chance(columns, pairs, model.total, measurements[0].stddev)
    stddev = _stddev(curator, len(pairs), price) / (2 * model.total)
    return FirstLook(tuple(measurements), found - chance, math.hypot(stddev, spread))


def _stddev(curator: Curator, pairs: int, cost: float) -> float:
    """Of the noise in the mean of so many distances, in counts.

    A row moves each by at most `l1`. Gaussian noise grows with the root of their number, which the
    mean takes away again.
    """
    neighbours = curator.neighbours
    if curator.ledger.budget.pure:
        return math.sqrt(2 * pairs) * neighbours.l1 / cost
    return curator.scale(cost) * neighbours.l1 / neighbours.l2


def _chance(
    columns: Mapping[str, NDArray[np.float64]],
    pairs: Sequence[Clique],
    total: float,
    stddev: float,
) -> tuple[float, float]:
    """The mean distance of pairs that are independent, and how far one table is from it.

    Both from random draws, the same ones for the same columns.
    """
    rng = np.random.default_rng(0)
    rows = max(1, round(total))
    means = np.zeros(_DRAWS)
    for a, b in pairs:
        shares = np.outer(columns[a], columns[b]).ravel()
        drawn = rng.multinomial(rows, shares / shares.sum(), _DRAWS)
        for i, table in enumerate(drawn.reshape(_DRAWS, len(columns[a]), len(columns[b]))):
            one, other = (
                nearest_counts(table.sum(axis) + rng.normal(0, stddev, table.shape[1 - axis]), rows)
                for axis in (1, 0)
            )
            means[i] += np.abs(table - np.outer(one, other) / rows).sum() / (2 * rows)
    means /= len(pairs)
    return float(means.mean()), float(means.std(ddof=1) * math.sqrt(1 + 1 / _DRAWS))
