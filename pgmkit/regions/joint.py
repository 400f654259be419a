"""Records near tables that agree only locally, drawn one attribute after the other.

Each attribute is drawn from a conditional distribution given those that the records have already:
the one of maximum entropy whose tables over the new attribute and the earlier ones are the given
tables. That is ``pgmkit.regions.conditional``; it depends on every table at once, so that no tree
has to hold them. Values that structural zeros rule out have no chance
(``pgmkit.regions.possible``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgmkit.clique_index import maximal
from pgmkit.dataset import Dataset
from pgmkit.domain import Clique, Domain
from pgmkit.regions.chain import Chain, Codes, Columns, Kinds, cells_of, enough, going_on, length_of
from pgmkit.regions.conditional import Conditional, Statistics, fit, scopes
from pgmkit.regions.possible import Possible, possible_values
from pgmkit.structural_zeros import Zeros

Array = NDArray[np.float64]
Tables = Mapping[Clique, Array]


@dataclass(frozen=True)
class Agreement:
    """Total variation distances, from 0 to 1, between given tables and those of the records."""

    mean: float
    worst: float
    worst_clique: Clique


@dataclass(frozen=True, eq=False)
class Joint:
    """A distribution near tables, and the records that it was fitted with."""

    chain: Chain
    records: Dataset

    def sample(self, n: int, rng: np.random.Generator) -> Dataset:
        """``n`` records, in random order; see ``Chain.sample``."""
        return self.chain.sample(n, rng)


def fit_joint(
    domain: Domain,
    tables: Tables,
    variances: Mapping[Clique, float],
    records: int,
    rng: np.random.Generator,
    zeros: Sequence[Zeros] = (),
) -> Joint:
    """A joint distribution near ``tables``: fractions that agree on what they share.

    ``variances``: of a cell of each table, in fractions; what lies within a table's noise is not
    followed. ``records``: how many each conditional is fitted on. ``zeros``: what no record has.

    Raises ``InvalidInput`` where zeros leave no record, or nearly all that is drawn without a
    value.

    >>> half = {("a", "b"): np.array([[0.5, 0.0], [0.0, 0.5]])}
    >>> domain, rng = Domain({"a": 2, "b": 2}), np.random.default_rng(0)
    >>> joint = fit_joint(domain, half, {("a", "b"): 0.0}, 1000, rng)
    >>> agreement(half, joint.sample(1000, rng)).worst < 0.01
    True
    """
    columns: Columns = {}
    conditionals: dict[str, Conditional] = {}
    order = _order(domain, tables)
    possible = possible_values(domain, order, zeros)
    for place, name in enumerate(order):
        targets = _targets(tables, variances, name, columns)
        if not targets and not possible[name]:
            columns[name] = rng.permutation(np.arange(records) % domain.sizes[name])
            continue
        before = Chain(domain, tuple(order[:place]), conditionals)
        columns = _refilled(before, name, possible[name], columns, records, rng)
        given = scopes([each.given for each in targets], possible[name])
        kinds = Kinds(cells_of(domain, given, columns, records), rng)
        conditionals[name] = fit(kinds.cells, kinds.counts, targets, possible[name])
        columns[name] = kinds.pick(conditionals[name], rng)
    population = Dataset(domain, {name: columns[name] for name in domain})
    return Joint(Chain(domain, tuple(order), conditionals), population)


def _refilled(
    before: Chain,
    name: str,
    possible: Sequence[Possible],
    columns: Columns,
    records: int,
    rng: np.random.Generator,
) -> Columns:
    """As many records as there were, all with some value of the attribute left."""

    def drawn(n: int) -> Columns:
        return going_on(before.domain, name, possible, before.drawn(n, rng))

    left = going_on(before.domain, name, possible, columns)
    missing = records - length_of(left, records)
    if not missing:
        return left
    others = enough(drawn, missing)
    return {key: np.concatenate([codes, others[key]]) for key, codes in left.items()}


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
