"""The first look of "auto": do columns depend on each other enough to be worth measuring?

Single columns are measured, which every mechanism needs, and for at most a fiftieth of the budget
the distances of all pairs from the product of their columns, together. Their mean has little noise,
however many pairs there are. What chance alone would give is drawn from the noisy columns, of up to
a thousand pairs: distances of random tables from the product of columns with the same noise.
Nothing is lost where no dependence shows: the budget that is left goes to the same columns. Where
noise is far below what chance gives, pairs are measured nevertheless: these records have them as
they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mechanisms.families.graphical import estimator
from mechanisms.families.mixture_fit import nearest_counts
from mechanisms.privacy.curator import Curator
from mechanisms.rounds.distances import Distances, measure_distances
from mechanisms.synthesis.work import FEW_ROWS, noise
from mechanisms.workload import Workload, downward_closure
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement
from pgmkit.tables.bins import Binned
from pgmkit.tables.schema import Schema

__all__ = ["FirstLook", "first_look"]


class _Rule(NamedTuple):
    """The excess from which pairs are worth their price, and the budget share of single columns.

    Distances must be above chance by `of_noise` times the noise of all pairs, and by `deviations`
    times the noise of the look. Single columns get
    `rows_of_a_share` over the rows a column, in units of the noise, but `least` to `most`.
    """

    of_noise: float
    deviations: float
    rows_of_a_share: float
    least: float
    most: float


_RULES = {
    "mixture": _Rule(0.04, 1.0, 12.0, 0.1, 0.25),
    "aim": _Rule(0.04, 2.0, 25.0, 1 / 16, 0.5),
}
"""Measured on tables of the half "choosing" of `benchmarks.regret`.

AIM has 1.02 to 1.25 times the error of independent columns where distances are from 0.03 to 0.05 of
the noise of all pairs, 0.90 to 0.92 times from 0.08 to 0.14, and 0.63 to 0.83 times at 0.18.

`mixture` loses less: where each column is shuffled it has 0.97 to 1.14 times the error of
independent columns (HMDA, Wage, Chile at epsilon 1, Arrests at 0.3, CPS1988 at 0.1; two seeds), and
unshuffled 0.65 to 0.92 times (three seeds), with distances of 0.06 of the noise and more. There the
look's own noise is up to 0.09, so twice that was too much to ask. With half of the budget for
single columns instead of a quarter, or a third instead of a sixth, "auto" has 1.03 times the error
of now in these (three seeds, 18 runs); with a tenth for all it misses the dependence of HMDA.
"""
_OF_FEW_ROWS = 3.0
"""Deviations where pairs are mostly noise, so that a false alarm costs most: up to 1.3 times the
error of independent columns (Wage and Chile at epsilon 0.3, where one deviation decided)."""
_OF_CHANCE = 2.0
"""Times the distances that chance alone gives in so many rows: noise below that tells enough of
them. On three tables of the half "choosing", each column shuffled, AIM had 0.91 to 0.97 times the
error of independent columns where noise was twice these distances, and 0.59 times at 0.6."""


@dataclass(frozen=True)
class FirstLook:
    """The single columns, and how far pairs are from independence beyond what chance gives.

    `measurements`: of the columns; `distances`: of all pairs from their product, in counts.

    All else are mean total variations of pairs. `excess`: from the product of their columns, less
    what chance gives under the same noise; `stddev`: of its noise; `needed`: the excess from which
    on pairs are worth their price. `chance`: of independent columns, without noise. `noise`: of
    pairs, if what is left of the budget measured all of them.
    """

    measurements: tuple[Measurement, ...]
    distances: Distances
    excess: float
    stddev: float
    needed: float
    chance: float
    noise: float

    @property
    def dependent(self) -> bool:
        """True if pairs are worth their price."""
        return self.excess > self.needed or self.noise < _OF_CHANCE * self.chance


def bins_of(schema: Schema) -> dict[str, int]:
    """The number of codes that are bins in order, the first ones, of the columns that have bins."""
    return {
        name: len(column.positions) - 1
        for name, column in schema.columns.items()
        if isinstance(column, Binned) and (column.bins is not None or column.edges is not None)
    }


def first_look(
    curator: Curator,
    workload: Workload,
    rows: int,
    mechanism: str,
    bins: Mapping[str, int] | None = None,
) -> FirstLook:
    """Measure the workload's columns and the distances of its pairs; there must be a pair.

    `rows`: their number, about. `mechanism`: that would measure pairs, "mixture" or "aim".
    `bins`: as `mixture` has them.
    """
    rule = _RULES[mechanism]
    closure = downward_closure(workload)
    singles, pairs = ([c for c in closure if len(c) == k] for k in (1, 2))
    budget, most = curator.ledger.budget, curator.neighbours.max_rows
    signal = max(1, rows) / (len(singles) * most * noise(budget))
    share = min(rule.most, max(rule.least, rule.rows_of_a_share / signal))
    whole = curator.remaining
    cost = share * whole / len(singles)
    measurements = [curator.measure(c, cost, step="auto: measure") for c in singles]
    model = estimator(curator.domain, curator.public_total)(None, measurements)
    columns = {name: model.marginal((name,)) for (name,) in singles}
    merged = bins if mechanism == "mixture" and bins else {}
    deciding = rule.of_noise * _loss(curator, pairs, merged)
    price = _price(curator, len(pairs), whole, deciding)
    distances = measure_distances(curator, model, pairs, price, step="auto: errors of pairs")
    found = math.fsum(distances.of.values()) / (len(pairs) * 2 * model.total)
    chance, spread, bare = _chance(columns, _some(pairs), model.total, measurements[0].stddev)
    # Noise in the mean of so many distances is that of one over the root of their number.
    stddev = math.hypot(distances.stddev / math.sqrt(len(pairs)) / (2 * model.total), spread)
    deviations = max(rule.deviations, _OF_FEW_ROWS) if signal < FEW_ROWS else rule.deviations
    needed = max(deviations * stddev, deciding / (2 * model.total))
    loss = _loss(curator, pairs, {}) / (2 * model.total)
    return FirstLook(tuple(measurements), distances, found - chance, stddev, needed, bare, loss)


def _some(pairs: Sequence[Clique]) -> Sequence[Clique]:
    """All pairs, or a thousand of them, whatever the data: those that chance is drawn for."""
    most = 1000
    if len(pairs) <= most:
        return pairs
    kept = np.random.default_rng(0).choice(len(pairs), most, replace=False)
    return [pairs[place] for place in np.sort(kept)]


def _loss(curator: Curator, pairs: Sequence[Clique], bins: Mapping[str, int]) -> float:
    """The noise of a pair's cells together, in counts, if what is left measured so many pairs.

    The `bins` of a column are merged into four groups, as a mixture may measure them: fewer lose
    more than half of a dependence (see `mechanisms.rounds.merging`).
    """
    sizes = {
        name: size - bins.get(name, 0) + min(bins.get(name, 0), 4)
        for name, size in curator.domain.sizes.items()
    }
    cells = math.fsum(sizes[a] * sizes[b] for a, b in pairs) / len(pairs)
    return cells * curator.expected_error(curator.remaining / len(pairs))


def _price(curator: Curator, pairs: int, whole: float, deciding: float) -> float:
    """The most that the distances may cost, by public figures alone.

    `deciding` is the excess, in counts, from which pairs are worth their price. Noise of 0.37 of it
    decides as well as less noise would, and large tables have it for a thousandth of the budget.
    """
    most = 0.02 * whole
    ratio = curator.errors_stddev(pairs, most) / math.sqrt(pairs) / (0.37 * deciding)
    # The noise of a cost grows as its inverse, or as the root of that.
    return most * min(1.0, ratio if curator.ledger.budget.pure else ratio**2)


def _chance(
    columns: Mapping[str, NDArray[np.float64]],
    pairs: Sequence[Clique],
    total: float,
    stddev: float,
    draws: int = 8,
) -> tuple[float, float, float]:
    """The mean distance of independent pairs, its spread over tables, and the mean without noise.

    The first two come from random draws, the same ones for the same columns.
    """
    rng = np.random.default_rng(0)
    rows = max(1, round(total))
    means, bare = np.zeros(draws), 0.0
    for a, b in pairs:
        shares = np.outer(columns[a], columns[b]).ravel()
        shares /= shares.sum()
        stddevs = np.sqrt(rows * shares * (1 - shares))
        bare += float(np.minimum(stddevs * (2 / np.pi) ** 0.5, 2 * rows * shares).sum()) / (
            2 * rows
        )
        drawn = rng.multinomial(rows, shares, draws)
        for i, table in enumerate(drawn.reshape(draws, len(columns[a]), len(columns[b]))):
            one, other = (
                nearest_counts(table.sum(axis) + rng.normal(0, stddev, table.shape[1 - axis]), rows)
                for axis in (1, 0)
            )
            means[i] += np.abs(table - np.outer(one, other) / rows).sum() / (2 * rows)
    means /= len(pairs)
    spread = float(means.std(ddof=1) * math.sqrt(1 + 1 / draws))
    return float(means.mean()), spread, bare / len(pairs)
