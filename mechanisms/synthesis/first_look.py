"""The first look of "auto": whether columns depend on each other enough for pairs to be measured.

First the single columns are measured, which every mechanism needs. Then, for at most a fiftieth of
the budget, the distances of all pairs from the product of their columns are measured together.
Their mean has little noise, however many pairs there are. It is compared with the mean that
independent columns would give, which is simulated from the noisy columns for up to a thousand
pairs, with the same noise.

If no dependence shows, nothing is lost: the rest of the budget goes to the same columns. If the
noise is far below the distances that independent columns give, pairs are measured in any case,
since even chance relations of these records are then visible.
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
    """The excess from which pairs are worth measuring, and the share of the budget for single
    columns.

    The distances must exceed those of independent columns by `of_noise` times the noise of all
    pairs, and by `deviations` standard deviations of the look's noise. Single columns get the share
    `rows_of_a_share` / (rows per column in units of the noise), limited to `least` … `most`.
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
"""The rule of each mechanism, measured on tables of the half "choosing" of `benchmarks.regret`.

AIM has 1.02 to 1.25 times the error of independent columns if the distances are 0.03 to 0.05 of the
noise of all pairs, 0.90 to 0.92 times at 0.08 to 0.14, and 0.63 to 0.83 times at 0.18.

`mixture` loses less: with each column shuffled it has 0.97 to 1.14 times the error of independent
columns (HMDA, Wage, Chile at epsilon 1, Arrests at 0.3, CPS1988 at 0.1; two seeds). Unshuffled it
has 0.65 to 0.92 times (three seeds), with distances of 0.06 of the noise and more. The look's own
noise is up to 0.09 there, so two deviations were too many to require. With half of the budget for
single columns instead of a quarter, or a third instead of a sixth, "auto" has 1.03 times its
present error on these tables (three seeds, 18 runs); with a tenth for all it misses the dependence
of HMDA.
"""
_OF_FEW_ROWS = 3.0
"""The deviations required if pairs are mostly noise, when a false alarm costs most: up to 1.3 times
the error of independent columns (Wage and Chile at epsilon 0.3, with one deviation required).
"""
_OF_CHANCE = 2.0
"""Pairs are always measured if their noise is below this many times the distances that independent
columns give in so many rows. On three tables of the half "choosing", with each column shuffled, AIM
had 0.91 to 0.97 times the error of independent columns if the noise was twice these distances, and
0.59 times at 0.6.
"""


@dataclass(frozen=True)
class FirstLook:
    """The measured single columns, and how much farther pairs are from independence than by chance.

    Attributes:
        measurements: The noisy marginals of single columns.
        distances: The noisy distances of all pairs from the product of their columns, in counts.
        excess: The mean total variation distance of pairs from the product of their columns, less
            the mean of independent columns under the same noise.
        stddev: The standard deviation of the noise in `excess`.
        needed: The excess above which pairs are worth measuring.
        chance: The mean total variation distance of independent columns, without noise.
        noise: The mean total variation distance that noise adds to pairs if the remaining budget
            measures all of them.
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
        """True if pairs are worth measuring."""
        return self.excess > self.needed or self.noise < _OF_CHANCE * self.chance


def bins_of(schema: Schema) -> dict[str, int]:
    """Return the number of bins of each column that has bins; they are its first codes, in
    order.
    """
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
    """Measure the workload's columns and the distances of its pairs, of which there must be one.

    `rows`: the approximate number of rows. `mechanism`: the one that would measure pairs,
    "mixture" or "aim". `bins`: the number of bins of each binned column, as in `bins_of`.
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
    # The noise of a mean of n distances is that of one, divided by the root of n.
    stddev = math.hypot(distances.stddev / math.sqrt(len(pairs)) / (2 * model.total), spread)
    deviations = max(rule.deviations, _OF_FEW_ROWS) if signal < FEW_ROWS else rule.deviations
    needed = max(deviations * stddev, deciding / (2 * model.total))
    loss = _loss(curator, pairs, {}) / (2 * model.total)
    return FirstLook(tuple(measurements), distances, found - chance, stddev, needed, bare, loss)


def _some(pairs: Sequence[Clique]) -> Sequence[Clique]:
    """Return the pairs, or a thousand of them chosen independently of the data if there are
    more.
    """
    most = 1000
    if len(pairs) <= most:
        return pairs
    kept = np.random.default_rng(0).choice(len(pairs), most, replace=False)
    return [pairs[place] for place in np.sort(kept)]


def _loss(curator: Curator, pairs: Sequence[Clique], bins: Mapping[str, int]) -> float:
    """Return the mean noise of a pair's cells together, in counts, if the rest measures all pairs.

    The `bins` of a column are counted as four groups at most, as a mixture may merge them; fewer
    groups lose more than half of a dependence (`mechanisms.rounds.merging`).
    """
    sizes = {
        name: size - bins.get(name, 0) + min(bins.get(name, 0), 4)
        for name, size in curator.domain.sizes.items()
    }
    cells = math.fsum(sizes[a] * sizes[b] for a, b in pairs) / len(pairs)
    return cells * curator.expected_error(curator.remaining / len(pairs))


def _price(curator: Curator, pairs: int, whole: float, deciding: float) -> float:
    """Return the highest cost of measuring the distances, from public figures alone.

    `deciding`: the excess, in counts, above which pairs are worth measuring. Noise of 0.37 times
    this decides as well as less noise would; large tables reach it for a thousandth of the budget.
    """
    most = 0.02 * whole
    ratio = curator.errors_stddev(pairs, most) / math.sqrt(pairs) / (0.37 * deciding)
    # The noise of an answer is proportional to 1 / cost, or to the root of that.
    return most * min(1.0, ratio if curator.ledger.budget.pure else ratio**2)


def _chance(
    columns: Mapping[str, NDArray[np.float64]],
    pairs: Sequence[Clique],
    total: float,
    stddev: float,
    draws: int = 8,
) -> tuple[float, float, float]:
    """Return the mean distance of independent pairs, its spread between tables, and the mean
    without noise.

    The first two are from random draws, which are the same for the same columns.
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
