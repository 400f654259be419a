"""The first look of "auto" before AIM: whether columns depend on each other enough for pairs.

First the single columns are measured, which every mechanism needs. Then, for at most a fiftieth of
the budget that was left before, the distances of all pairs from the product of their columns are
measured together. Their mean has little noise, however many pairs there are. It is compared with
the mean that independent columns would give, which is simulated from the noisy columns, with
Gaussian noise of the same standard deviation.

Among many pairs a few strong relations hardly move the mean. Pairs are therefore also measured if
a single one of them stands out: if its distance, less the mean that chance gives, is more than
chance and noise explain, and more than the noise that its table would have if it cost as much as
all single columns did.

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
from mechanisms.rounds.drawn import measure_distances
from mechanisms.rounds.merging import MOST_GROUPS, chance_distance
from mechanisms.workload import Workload, downward_closure
from pgmkit import Measurement, Schema
from pgmkit.domain import Clique
from pgmkit.runtime.chances import DEVIATIONS, SIGNIFICANT, deviations
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
        stddev: The standard deviation that noise and chance give `excess` if columns are
            independent.
        needed: The excess above which pairs are worth measuring.
        chance: The mean total variation distance of independent columns, without noise.
        noise: The mean total variation distance that noise adds to pairs if the remaining budget
            measures all of them.
        outstanding: The pairs that stand out. A pair does if its distance, less the mean that
            chance gives, exceeds two limits. If all columns are independent, any pair exceeds the
            first one with a probability of at most `SIGNIFICANT`. The second one is the noise that
            the pair's table would have if it cost as much as all single columns did.
    """

    measurements: tuple[Measurement, ...]
    excess: float
    stddev: float
    needed: float
    chance: float
    noise: float
    outstanding: tuple[Clique, ...]

    @property
    def dependent(self) -> bool:
        """True if pairs are worth measuring: if the look shows dependence, or if `noise` is less
        than `_OF_CHANCE` times `chance`.
        """
        shown = self.excess > self.needed or bool(self.outstanding)
        return shown or self.noise < _OF_CHANCE * self.chance


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
    """Measure the marginal of each of the workload's columns, for a sixteenth of the remaining
    budget together, and, for at most a fiftieth, the distance of each pair's marginal from the
    product of its columns' marginals. The caller sees to it that the workload has at least one
    pair.
    """
    closure = downward_closure(workload)
    singles, pairs = ([c for c in closure if len(c) == k] for k in (1, 2))
    whole = curator.remaining
    # Each column costs as much as a round of AIM, which plans 16 rounds for each column. A larger
    # share would hardly improve the decision: the noise in the columns is part of the distances
    # that independent columns are expected to show.
    cost = whole / 16
    measurements = [curator.measure(c, cost / len(singles), step="auto: measure") for c in singles]
    model = estimator(curator.domain, curator.public_total)(None, measurements)
    columns = {name: model.marginal((name,)) for (name,) in singles}
    deciding = _OF_NOISE * _loss(curator, pairs)
    noises = {pair: curator.domain.size(pair) * curator.expected_error(cost) for pair in pairs}
    price = _price(curator, noises, whole, deciding)
    distances = measure_distances(curator, model, pairs, price, step="auto: errors of pairs")
    found = np.array([distances.of[pair] for pair in pairs]) / (2 * model.total)
    by_chance, bare = distances_by_chance(columns, pairs, model.total, measurements[0].stddev)
    means = by_chance.mean(1)
    # If the columns are independent, the records' distances vary as those of one simulated draw.
    # The mean of the n draws, which is subtracted, adds 1 / n of that variance: `again` is the
    # factor by which the standard deviation grows.
    again = math.sqrt(1 + 1 / len(by_chance))
    noise = distances.stddev / (2 * model.total)
    # Noise in the mean of all pairs is that of one distance, divided by the root of their number.
    stddev = math.hypot(noise / math.sqrt(len(pairs)), again * means.std(ddof=1))
    needed = max(DEVIATIONS * stddev, deciding / (2 * model.total))
    loss = _loss(curator, pairs) / (2 * model.total)
    excess = found - by_chance.mean(0)
    # Each pair's standard deviation is estimated from few draws, so the largest is used for all.
    of_each = math.hypot(noise, again * by_chance.std(0, ddof=1).max())
    surely = deviations(SIGNIFICANT / len(pairs), laplace=curator.ledger.budget.pure) * of_each
    outstanding = tuple(
        pair
        for pair, distance in zip(pairs, excess, strict=True)
        if distance > max(surely, noises[pair] / (2 * model.total))
    )
    return FirstLook(
        tuple(measurements), float(excess.mean()), stddev, needed, bare, loss, outstanding
    )


def _loss(curator: Curator, pairs: Sequence[Clique]) -> float:
    """Return the expected L1 noise of a pair's table, in counts and on average over the pairs, if
    the remaining budget measures all of them.
    """
    cells = sum(map(curator.domain.size, pairs)) / len(pairs)
    return cells * curator.expected_error(curator.remaining / len(pairs))


def _price(
    curator: Curator, noises: Mapping[Clique, float], whole: float, deciding: float
) -> float:
    """Return the cost at which the distances of pairs are measured. It follows from public figures
    alone.

    Distances are L1 distances in counts. `noises`: by pair, the distance above which it can stand
    out. `whole`: the budget that was left before the first look. `deciding`: by how much the mean
    distance must exceed that of independent columns for pairs to be worth measuring.

    The cost is a fiftieth of `whole`, or less if that suffices for two things: the noise of the
    mean has a standard deviation of at most 0.37 `deciding`, so that two of them are below
    `deciding`; and noise does not explain a distance as large as the least of `noises`. Less noise
    would hardly improve the decision. For tables of many rows and many codes that is about a
    thousandth of the budget.
    """
    most, pure = 0.02 * whole, curator.ledger.budget.pure
    noise = curator.errors_stddev(len(noises), most)
    surely = deviations(SIGNIFICANT / len(noises), laplace=pure) * noise
    ratio = max(noise / math.sqrt(len(noises)) / (0.37 * deciding), surely / min(noises.values()))
    # The noise of an answer is proportional to 1 / cost under pure DP, and to 1 / sqrt(cost)
    # otherwise.
    return most * min(1.0, ratio if pure else ratio**2)


def distances_by_chance(
    columns: Mapping[str, NDArray[np.float64]], pairs: Sequence[Clique], total: float, stddev: float
) -> tuple[NDArray[np.float64], float]:
    """Return the total variation distances that pairs of independent columns show from the product
    of their noisy marginals, in eight random tables a pair, as an array of shape (8, number of
    pairs); and the expected distance without noise, as a mean over all pairs.

    `columns`: the counts of each column. `total`: the number of records. `stddev`: the standard
    deviation of the noise in the marginals of single columns. The tables are the same for the same
    columns.
    """
    rng, draws = np.random.default_rng(0), 8
    rows = max(1, round(total))
    counts = {name: rows * each / each.sum() for name, each in columns.items()}
    bare = math.fsum(chance_distance(counts[a], counts[b]) for a, b in pairs) / (2 * rows)
    found = np.zeros((draws, len(pairs)))
    for place, (a, b) in enumerate(pairs):
        shares = np.outer(columns[a], columns[b]).ravel()
        shares /= shares.sum()
        drawn = rng.multinomial(rows, shares, draws)
        for i, table in enumerate(drawn.reshape(draws, len(columns[a]), len(columns[b]))):
            one, other = (
                nearest_counts(table.sum(axis) + rng.normal(0, stddev, table.shape[1 - axis]), rows)
                for axis in (1, 0)
            )
            found[i, place] = np.abs(table - np.outer(one, other) / rows).sum() / (2 * rows)
    return found, bare / len(pairs)
