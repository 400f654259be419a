"""Records near tables that agree only locally, drawn one attribute after the other.

Each attribute is drawn from a conditional distribution given those that the records have already:
the one of maximum entropy whose tables over the new attribute and the earlier ones are the given
tables. That is ``pgmkit.regions.conditional``; it depends on every table at once, so that no tree
has to hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgmkit.clique_index import maximal
from pgmkit.dataset import Dataset
from pgmkit.domain import Clique, Domain
from pgmkit.regions.conditional import Conditional, Statistics, fit

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
Tables = Mapping[Clique, Array]

_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Agreement:
    """Total variation distances, from 0 to 1, between given tables and those of the records."""

    mean: float
    worst: float
    worst_clique: Clique


@dataclass(frozen=True, eq=False)
class Joint:
    """A distribution as a chain of conditional ones, and the records that it was fitted with.

    ``order``: the attributes, each given earlier ones; an attribute without a conditional is
    uniform.
    """

    domain: Domain
    order: tuple[str, ...]
    conditionals: Mapping[str, Conditional]
    records: Dataset

    def sample(self, n: int, rng: np.random.Generator) -> Dataset:
        """``n`` records, in random order."""
        columns: dict[str, Codes] = {}
        for name in self.order:
            size, conditional = self.domain.sizes[name], self.conditionals.get(name)
            if conditional is None:
                columns[name] = rng.permutation(np.arange(n) % size)
                continue
            kinds = _Kinds(_cells(self.domain, conditional.given, columns, n), rng)
            columns[name] = kinds.pick(conditional, rng)
        return Dataset(self.domain, {name: columns[name] for name in self.domain})


def fit_joint(
    domain: Domain,
    tables: Tables,
    variances: Mapping[Clique, float],
    records: int,
    rng: np.random.Generator,
) -> Joint:
    """A joint distribution near ``tables``: fractions that agree on what they share.

    ``variances``: of a cell of each table, in fractions; what lies within a table's noise is not
    followed. ``records``: how many each conditional is fitted on.

    >>> half = {("a", "b"): np.array([[0.5, 0.0], [0.0, 0.5]])}
    >>> domain, rng = Domain({"a": 2, "b": 2}), np.random.default_rng(0)
    >>> joint = fit_joint(domain, half, {("a", "b"): 0.0}, 1000, rng)
    >>> agreement(half, joint.sample(1000, rng)).worst < 0.01
    True
    """
    columns: dict[str, Codes] = {}
    conditionals = {}
    order = _order(domain, tables)
    for name in order:
        targets = _targets(tables, variances, name, columns)
        if not targets:
            columns[name] = rng.permutation(np.arange(records) % domain.sizes[name])
            continue
        cells = _cells(domain, [each.given for each in targets], columns, records)
        kinds = _Kinds(cells, rng)
        conditionals[name] = fit(kinds.cells, kinds.counts, targets)
        columns[name] = kinds.pick(conditionals[name], rng)
    population = Dataset(domain, {name: columns[name] for name in domain})
    return Joint(domain, tuple(order), conditionals, population)


def agreement(tables: Tables, records: Dataset) -> Agreement:
    """How near the records come to the tables, which are fractions; with at least one table."""
    counted = records.marginals(list(tables))
    apart = {
        clique: float(np.abs(counted[clique] / len(records) - table).sum() / 2)
        for clique, table in tables.items()
    }
    worst = max(apart, key=apart.__getitem__)
    return Agreement(float(np.mean(list(apart.values()))), apart[worst], worst)


def _order(domain: Domain, tables: Tables) -> list[str]:
    """Every attribute after those that tell most about it.

    Neighbours follow each other, so that attributes that depend on each other through a third one
    are rarely drawn before it.
    """
    near: dict[str, dict[str, float]] = {name: {} for name in domain}
    for clique, table in tables.items():
        for i, a in enumerate(clique):
            for j, b in enumerate(clique[:i]):
                told = max(_information(table, i, j), near[a].get(b, 0.0))
                near[a][b] = near[b][a] = told
    left = dict.fromkeys(domain, 0.0)
    order = []
    while left:
        first = max(left, key=lambda name: (left[name], sum(near[name].values())))
        order.append(first)
        del left[first]
        for other, told in near[first].items():
            if other in left:
                left[other] += told
    return order


def _information(table: Array, i: int, j: int) -> float:
    """Mutual information of two axes of a table, in nats."""
    pair = table.sum(axis=tuple(k for k in range(table.ndim) if k not in (i, j)))
    apart = np.multiply.outer(pair.sum(1), pair.sum(0))
    positive = pair > 0
    return float((pair[positive] * np.log(pair[positive] / apart[positive])).sum())


def _targets(
    tables: Tables, variances: Mapping[Clique, float], name: str, drawn: Mapping[str, Codes]
) -> list[Statistics]:
    """Tables over ``name`` and drawn attributes, none of them within another."""
    found: dict[frozenset[str], Statistics] = {}
    for clique, table in tables.items():
        if name not in clique:
            continue
        given = tuple(other for other in clique if other in drawn)
        axes = [other for other in clique if other == name or other in drawn]
        summed = tuple(i for i, other in enumerate(clique) if other not in axes)
        smaller = np.moveaxis(table.sum(axis=summed), axes.index(name), -1)
        variance = variances[clique] * table.size / smaller.size
        known = found.get(frozenset(given))
        if known is None or variance < known.variance:
            found[frozenset(given)] = Statistics(given, smaller, variance)
    kept = list(found.values())
    return [kept[place] for place in maximal([each.given for each in kept])]


class _Kinds:
    """Records sorted by the cells that they lie in; those that look the same are of one kind."""

    def __init__(self, cells: Codes, rng: np.random.Generator) -> None:
        # Records of one kind stay in random order.
        shuffled = rng.permutation(len(cells))
        self._order = shuffled[np.lexsort(cells[shuffled].T)]
        ordered = cells[self._order]
        first = np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)]
        self._kind = np.cumsum(first) - 1
        self.cells, self.counts = ordered[first], np.bincount(self._kind)

    def pick(self, conditional: Conditional, rng: np.random.Generator) -> Codes:
        """A value for each record. A low-discrepancy sequence along the records of a kind keeps
        their counts near what is expected; between kinds the draws are independent.
        """
        chances = conditional.chances(self.cells)
        # One sequence along all records would tie the draws of one attribute to those of the last.
        starts = rng.random(len(self.counts))[self._kind]
        level = (starts + _GOLDEN * np.arange(len(self._order))) % 1.0
        below = chances.cumsum(axis=1)[self._kind] < level[:, None]
        picked = np.empty(len(self._order), dtype=np.int64)
        picked[self._order] = np.minimum(below.sum(axis=1), chances.shape[1] - 1)
        return picked


def _cells(
    domain: Domain, cliques: Sequence[Clique], columns: Mapping[str, Codes], records: int
) -> Codes:
    """The cell of each record in the table of each clique: (records, cliques)."""
    cells = np.zeros((records, len(cliques)), dtype=np.int64)
    for place, clique in enumerate(cliques):
        for name in clique:
            cells[:, place] = cells[:, place] * domain.sizes[name] + columns[name]
    return cells
