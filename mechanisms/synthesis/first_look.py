"""The first look of "auto" before AIM: whether columns depend on each other enough for pairs.

First the single columns are measured, which every mechanism needs. Then, for at most a fiftieth of
the budget that was left before, the distances of all pairs from the product of their columns are
measured together. Their mean has little noise, however many pairs there are. It is compared with
the mean that independent columns would give, which is simulated from the noisy columns for up to a
thousand pairs, with Gaussian noise of the same standard deviation.

If no dependence shows, nothing is lost: the rest of the budget goes to the same columns. If the
noise of all pairs is less than twice the distances that independent columns give, pairs are
measured in any case, since even chance relations of these records are then visible.
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
from mechanisms.rounds.distances import measure_distances
from mechanisms.rounds.merging import MOST_GROUPS, chance_distance
from mechanisms.workload import Workload, downward_closure
from pgmkit import Measurement, Schema
from pgmkit.domain import Clique
from pgmkit.runtime.chances import DEVIATIONS
from pgmkit.tables.bins import Binned

_OF_NOISE = 0.04
"""The excess of the distances over those of independent columns from which pairs are worth
measuring, in units of the noise of all pairs. On tables that `benchmarks.regret` lists under
"choosing", AIM has 1.02 to 1.25 times the error of independent columns at 0.03 to 0.05, 0.90 to
0.92 times at 0.08 to 0.14, and 0.63 to 0.83 times at 0.18.
"""
_OF_CHANCE = 2.0
"""Pairs are always measured if their noise is below this many times the distances that independent
columns give in so many rows. On three of the same tables, with each column shuffled, AIM had 0.91
to 0.97 times the error of independent columns if the noise was twice these distances, and 0.59
times at 0.6.
"""


@dataclass(frozen=True)
class FirstLook:
    """The measured single columns, and how much farther pairs are from independence than by chance.

    Attributes:
        measurements: The noisy marginals of single columns.
        excess: The mean total variation distance of pairs from the product of their columns, less
            the mean of independent columns under the same noise.
        stddev: The standard deviation of the noise in `excess`.
        needed: The excess above which pairs are worth measuring.
        chance: The mean total variation distance of independent columns, without noise.
        noise: The mean total variation distance that noise adds to pairs if the remaining budget
            measures all of them.
    """

    measurements: tuple[Measurement, ...]
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
    """Return the number of bins of each column that has bins, by name. The bins are the column's
    first codes, in order.

    A column of whole numbers in which each number is a bin of its own is left out if it has at most
    `MOST_GROUPS` numbers: it is often no quantity, but months, hours or codes of answers.
    """
    found = {}
    for name, column in schema.columns.items():
        if isinstance(column, Binned):
            bins = len(column.positions) - 1
            if bins > MOST_GROUPS or column.bins is not None or column.edges is not None:
                found[name] = bins
    return found


def first_look(curator: Curator, workload: Workload) -> FirstLook:
    """Measure the marginal of each of the workload's columns, and the distance of each pair's
    marginal from the product of its columns' marginals. The workload must have at least one pair.
    """
    closure = downward_closure(workload)
    singles, pairs = ([c for c in closure if len(c) == k] for k in (1, 2))
    whole = curator.remaining
    # Each column costs as much as a round of AIM, which plans 16 rounds for each column. A larger
    # share would hardly improve the decision: the noise in the columns is part of the distances
    # that independent columns are expected to show.
    cost = whole / (16 * len(singles))
    measurements = [curator.measure(c, cost, step="auto: measure") for c in singles]
    model = estimator(curator.domain, curator.public_total)(None, measurements)
    columns = {name: model.marginal((name,)) for (name,) in singles}
    deciding = _OF_NOISE * _loss(curator, pairs)
    price = _price(curator, len(pairs), whole, deciding)
    distances = measure_distances(curator, model, pairs, price, step="auto: errors of pairs")
    found = math.fsum(distances.of.values()) / (len(pairs) * 2 * model.total)
    chance, spread, bare = _chance(columns, some_pairs(pairs), model.total, measurements[0].stddev)
    # The noise of a mean of n distances is that of one distance, divided by sqrt(n).
    stddev = math.hypot(distances.stddev / math.sqrt(len(pairs)) / (2 * model.total), spread)
    needed = max(DEVIATIONS * stddev, deciding / (2 * model.total))
    loss = _loss(curator, pairs) / (2 * model.total)
    return FirstLook(tuple(measurements), found - chance, stddev, needed, bare, loss)


def some_pairs(pairs: Sequence[Clique]) -> Sequence[Clique]:
    """Return the pairs, or a thousand of them chosen independently of the data if there are
    more.
    """
    most = 1000
    if len(pairs) <= most:
        return pairs
    kept = np.random.default_rng(0).choice(len(pairs), most, replace=False)
    return [pairs[place] for place in np.sort(kept)]


def _loss(curator: Curator, pairs: Sequence[Clique]) -> float:
    """Return the expected L1 noise of a pair's table, in counts and on average over the pairs, if
    the remaining budget measures all of them.
    """
    cells = sum(map(curator.domain.size, pairs)) / len(pairs)
    return cells * curator.expected_error(curator.remaining / len(pairs))


def _price(curator: Curator, pairs: int, whole: float, deciding: float) -> float:
    """Return the cost at which the distances of `pairs` pairs are measured, from public figures
    alone.

    `deciding`: the excess, in counts, above which pairs are worth measuring. The cost is at most a
    fiftieth of `whole`. It is less if noise of 0.37 times `deciding` costs less, since less noise
    would hardly improve the decision. For tables of many rows that is about a thousandth of the
    budget.
    """
    most = 0.02 * whole
    ratio = curator.errors_stddev(pairs, most) / math.sqrt(pairs) / (0.37 * deciding)
    # The noise of an answer is proportional to 1 / cost under pure DP, and to 1 / sqrt(cost)
    # otherwise.
    return most * min(1.0, ratio if curator.ledger.budget.pure else ratio**2)


def _chance(
    columns: Mapping[str, NDArray[np.float64]],
    pairs: Sequence[Clique],
    total: float,
    stddev: float,
) -> tuple[float, float, float]:
    """Return the mean total variation distance that pairs of independent columns show from the
    product of their noisy marginals, its standard deviation, and the mean distance without noise.

    `columns`: the counts of each column. `total`: the number of records. `stddev`: the standard
    deviation of the noise in the marginals of single columns. The first two results are from eight
    random tables a pair, which are the same for the same columns.
    """
    rng, draws = np.random.default_rng(0), 8
    rows = max(1, round(total))
    counts = {name: rows * each / each.sum() for name, each in columns.items()}
    bare = math.fsum(chance_distance(counts[a], counts[b]) for a, b in pairs) / (2 * rows)
    means = np.zeros(draws)
    for a, b in pairs:
        shares = np.outer(columns[a], columns[b]).ravel()
        shares /= shares.sum()
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
