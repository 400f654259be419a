"""Records near tables that agree only locally, drawn one attribute after the other.

Each attribute is drawn from a conditional distribution given the attributes that the records
already have: the one of maximum entropy whose tables over the new attribute and earlier ones are
the given tables (``pgmkit.regions.conditional``). It depends on all these tables at once, so they
need not fit into a tree. Tables with later attributes have no influence on it, so the records'
tables may differ from the given ones even if some distribution has them all.

The attributes of tables that are missed are then drawn again, given all others. If that does not
help, all attributes are drawn in another order, in which such tables come earlier. Values that
structural zeros rule out have probability zero (``pgmkit.regions.possible``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import inf

import numpy as np

from pgmkit.domain import Clique, Domain
from pgmkit.graphs.clique_index import maximal
from pgmkit.records.dataset import Dataset
from pgmkit.regions import chain
from pgmkit.regions.conditional import FOLLOWED, Conditional, Statistics, fit, scopes
from pgmkit.regions.possible import Possible, possible_values
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import FEW_ROUNDS, SLIGHT
from pgmkit.runtime.sizes import TABLE_CELLS
from pgmkit.structural_zeros import Zeros

Tables = Mapping[Clique, Array]

_ORDERS = 5
"""The largest number of orders of drawing that are tried. In a test with 200 random sets of pairs,
whose 1,300 tables some distribution has nearly exactly, records miss 24 tables by more than a
fiftieth if they are drawn once, and 2 with these orders and redraws.
"""
_EARLIER = 4.0
"""The factor by which the weight of a missed table grows for the next order of drawing."""
_LOOSE = 5 * FOLLOWED
"""The distance, as a share of a mean cell, that is tolerated for a table which its measurements
determine only in part. It is five times ``FOLLOWED``: the table may ask for e^5 times what the
others imply.
"""


@dataclass(frozen=True)
class Missed:
    """A table that is farther from the records' own than noise and sampling explain.

    ``counts`` is half the sum of the cells' absolute differences, that is, the number of counts in
    wrong cells (a fraction if the table is in fractions). ``noise_units`` is the root mean squared
    difference of a cell, in standard deviations of the table's noise.
    """

    clique: Clique
    counts: float
    noise_units: float


@dataclass(frozen=True)
class Agreement:
    """The ``mean`` and the ``worst`` of the total variation distances, from 0 to 1, between given
    tables and those of the records; ``worst_clique`` is the clique with the largest distance.

    ``missed`` are the tables whose distance is larger than their noise and the sampling of the
    records explain, those with the most ``counts`` first.
    """

    mean: float
    worst: float
    worst_clique: Clique
    missed: tuple[Missed, ...] = ()


@dataclass(frozen=True, eq=False)
class Joint(chain.Chain):
    """A distribution near given tables, and the artificial records `fit_joint` fitted it on."""

    records: Dataset

    def last_drawn(self, names: Iterable[str]) -> str | None:
        """Return the attribute of ``names`` that was drawn last, or None if ``names`` is empty.
        Return None also if an attribute that it was conditioned on has been drawn again since, so
        that the probabilities it was drawn from no longer apply.
        """
        name = max(names, key=self._places.__getitem__, default=None)
        if name is None:
            return None
        given = itertools.chain.from_iterable(self.steps[self._places[name]][1].scopes)
        return name if all(self._places[other] < self._places[name] for other in given) else None

    @cached_property
    def chances(self) -> Callable[[str], Array]:
        """A function of an attribute, one that ``last_drawn`` returned, which returns the
        probabilities from which its values were drawn, a row for each record. The last results
        are kept.
        """
        largest = len(self.records) * max(self.records.domain.shape())
        return lru_cache(max(1, 4 * TABLE_CELLS // largest))(self._chances)

    def __getstate__(self) -> dict[str, object]:
        """Return the attributes without ``chances``, whose cache does not pickle."""
        return {name: value for name, value in vars(self).items() if name != "chances"}

    def _chances(self, name: str) -> Array:
        conditional, records = self.steps[self._places[name]][1], self.records
        cells = chain.cells_of(records.domain, conditional.scopes, records.columns, len(records))
        return conditional.chances(cells)

    @cached_property
    def _places(self) -> dict[str, int]:
        """The number of the last step that drew each attribute."""
        return {name: place for place, (name, _) in enumerate(self.steps)}


def fit_joint(
    domain: Domain,
    tables: Tables,
    variances: Mapping[Clique, float],
    records: int,
    rng: np.random.Generator,
    zeros: Sequence[Zeros] = (),
) -> Joint:
    """Fit a joint distribution near ``tables``, which are fractions that agree on shared
    attributes.

    Args:
        domain: all attributes.
        tables: the target table of each clique.
        variances: the variance of a cell of each table, in squared fractions. If no distribution
            has all tables, those with less noise are approached more closely.
        records: the number of records on which each conditional distribution is fitted.
        rng: the generator for the records.
        zeros: combinations that no record has.

    Raises ``InvalidInput`` if zeros leave no record, or if they rule out nearly all records drawn.

    >>> half = {("a", "b"): np.array([[0.5, 0.0], [0.0, 0.5]])}
    >>> domain, rng = Domain({"a": 2, "b": 2}), np.random.default_rng(0)
    >>> joint = fit_joint(domain, half, {("a", "b"): 0.0}, 1000, rng)
    >>> agreement(half, {("a", "b"): 0.0}, joint.sample(1000, rng)).worst < 0.01
    True
    """
    weights = dict.fromkeys(tables, 1.0)
    best, least = None, inf
    for _ in range(_ORDERS):
        fitting = _Fitting(domain, tables, variances, records, rng)
        order = _order(domain, tables, weights)
        possible = possible_values(domain, order, zeros)
        for name in order:
            fitting.draw(name, possible[name])
        missed = fitting.missed()
        left = sum(fitting.redraw(missed, zeros).values())
        if left < least:
            best, least = fitting, left
        if not left:
            break
        for clique in missed:
            weights[clique] *= _EARLIER
    assert best is not None
    return Joint(domain, tuple(best.steps), Dataset(domain, best.columns))


@dataclass
class _Fitting:
    """The records drawn so far, column by column, and the steps that drew them."""

    domain: Domain
    tables: Tables
    variances: Mapping[Clique, float]
    records: int
    rng: np.random.Generator
    columns: chain.Columns = field(default_factory=dict)
    steps: list[tuple[str, Conditional]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.strata = chain.Strata(self.records, len(self.domain), self.rng)

    def draw(self, name: str, possible: Sequence[Possible]) -> None:
        """Draw the attribute, for the first time or again, given all others drawn so far. The masks
        ``possible`` say which of its values zeros allow; new records replace those for which all
        values are ruled out.
        """
        targets = _targets(self.tables, self.variances, name, self.columns)
        self.columns = self._refilled(name, possible)
        given = scopes([each.given for each in targets], possible)
        cells = chain.cells_of(self.domain, given, self.columns, self.records)
        kinds = chain.Kinds(cells, self.strata.levels(self.domain.attributes.index(name)))
        conditional = fit(kinds.cells, kinds.counts, self.domain.sizes[name], targets, possible)
        self.columns = {**self.columns, name: kinds.pick(conditional)}
        self.steps.append((name, conditional))

    def _refilled(self, name: str, possible: Sequence[Possible]) -> chain.Columns:
        """Return the records with new ones in place of those for which no value of the attribute is
        possible.
        """
        domain, before = self.domain, chain.Chain(self.domain, tuple(self.steps))

        def drawn(n: int) -> chain.Columns:
            found = before.drawn(n, self.rng)
            count = chain.length_of(found, n)
            some = chain.has_possible_value(domain, name, possible, found, count)
            return {key: codes[some] for key, codes in found.items()}

        some = chain.has_possible_value(domain, name, possible, self.columns, self.records)
        if some.all():
            return self.columns
        others = chain.enough(drawn, int((~some).sum()))
        columns = {key: codes.copy() for key, codes in self.columns.items()}
        for key, codes in columns.items():
            codes[~some] = others[key]
        return columns

    def missed(self) -> dict[Clique, float]:
        """Return the tables whose distance from those of the records is larger than noise and
        sampling explain, each with this distance divided by the one that they explain.
        """
        apart = _apart(self.tables, self.variances, Dataset(self.domain, self.columns))
        return {clique: by for clique, (_, by, _) in apart.items() if by > 1}

    def redraw(self, missed: dict[Clique, float], zeros: Sequence[Zeros]) -> dict[Clique, float]:
        """Draw the attributes of missed tables again, given all others, for up to ``FEW_ROUNDS``
        rounds, since they were first drawn without regard to later ones. ``missed`` is what the
        method ``missed`` returns before them; return what it returns after them. A round that
        lowers the sum of these numbers by less than a hundredth is undone and is the last.
        """
        for _ in range(FEW_ROUNDS):  # each round adds steps to every later sample
            if not missed:
                break
            columns, steps, before = self.columns, len(self.steps), missed
            self.strata = chain.Strata(self.records, len(self.domain), self.rng)
            for name in dict.fromkeys(itertools.chain.from_iterable(missed)):
                own = [_given_others(each, name) for each in zeros if name in each.clique]
                self.draw(name, own)
            missed = self.missed()
            if sum(missed.values()) > (1 - SLIGHT) * sum(before.values()):
                self.columns = columns
                del self.steps[steps:]
                return before
        return missed


def agreement(tables: Tables, variances: Mapping[Clique, float], records: Dataset) -> Agreement:
    """Return the total variation distances between the tables, of which there must be at least one,
    and the records' own tables. The tables may be in fractions or in counts.

    ``variances`` has the variance of a cell of each table, in squared units of the tables.
    """
    totals = {clique: float(table.sum()) for clique, table in tables.items()}
    fractions = {clique: table / totals[clique] for clique, table in tables.items()}
    noise = {clique: variances[clique] / totals[clique] ** 2 for clique in tables}
    apart = _apart(fractions, noise, records)
    worst = max(apart, key=lambda clique: apart[clique][0])
    far = [
        Missed(clique, distance * totals[clique], float(np.sqrt(square / noise[clique])))
        for clique, (distance, by, square) in apart.items()
        if by > 1
    ]
    far.sort(key=lambda each: -each.counts)
    mean = float(np.mean([distance for distance, *_ in apart.values()]))
    return Agreement(mean, apart[worst][0], worst, tuple(far))


def _apart(
    tables: Tables, variances: Mapping[Clique, float], records: Dataset
) -> dict[Clique, tuple[float, float, float]]:
    """Return, for each table of fractions, the total variation distance between it and that of the
    records; this distance divided by the one that noise and sampling explain; and the mean squared
    difference of a cell.
    """
    counted, found = records.marginals(list(tables)), {}
    for clique, table in tables.items():
        off = counted[clique] / len(records) - table
        distance = float(np.abs(off).sum() / 2)
        by = distance / explained(table, variances[clique], len(records))
        found[clique] = distance, by, (off**2).mean()
    return found


def explained(table: Array, variance: float, records: int) -> float:
    """Return the total variation distance between a table of fractions and the table of
    ``records`` drawn records that noise and sampling explain: half the sum of the cells' standard
    deviations. ``variance`` is that of the noise of a cell. If the variances of all cells sum to
    more than 1/2, the measurements determine the table only in part, and the standard deviation of
    a cell's noise is taken to be ``_LOOSE`` divided by the number of cells.
    """
    # A direction that no measurement determines has the variance of the squared total, here 1. So
    # if the variances sum to less than 1/2, there is none.
    if 2 * variance * table.size > 1:
        variance = (_LOOSE / table.size) ** 2
    return float(np.sqrt(variance + table / records).sum() / 2)


def _given_others(zeros: Zeros, name: str) -> Possible:
    """Return the mask of an attribute's values that zeros allow, given the other attributes of the
    zeros' clique.
    """
    others = tuple(other for other in zeros.clique if other != name)
    table = np.moveaxis(zeros.allowed, zeros.clique.index(name), -1)
    return Possible(others, table.reshape(-1, table.shape[-1]))


def _order(domain: Domain, tables: Tables, weights: Mapping[Clique, float]) -> list[str]:
    """Return an order of drawing: the next attribute is always the one whose mutual information
    with each attribute before it has the largest sum. Ties, as at the start, go to the largest sum
    over all others, then to the attribute with the heaviest table; those without a table come last.
    The information in a table is multiplied by the table's entry of ``weights``.

    Related attributes come close together, so two attributes that depend on each other only through
    a third are rarely both drawn before it.
    """
    near: dict[str, dict[str, float]] = {name: {} for name in domain}
    heaviest = dict.fromkeys(domain, 0.0)
    for clique, table in tables.items():
        for i, a in enumerate(clique):
            heaviest[a] = max(heaviest[a], weights[clique])
            for j, b in enumerate(clique[:i]):
                told = max(weights[clique] * _information(table, i, j), near[a].get(b, 0.0))
                near[a][b] = near[b][a] = told
    left, order = dict.fromkeys(domain, 0.0), list[str]()
    while left:
        first = max(left, key=lambda n: (left[n], sum(near[n].values()), heaviest[n]))
        order.append(first)
        del left[first]
        for other, told in near[first].items():
            if other in left:
                left[other] += told
    return order


def _information(table: Array, i: int, j: int) -> float:
    """Return the mutual information of two axes of a table of fractions, in nats."""
    pair = table.sum(axis=tuple(k for k in range(table.ndim) if k not in (i, j)))
    apart = np.multiply.outer(pair.sum(1), pair.sum(0))
    positive = pair > 0
    return float((pair[positive] * np.log(pair[positive] / apart[positive])).sum())


def _targets(
    tables: Tables, variances: Mapping[Clique, float], name: str, drawn: Mapping[str, chain.Codes]
) -> list[Statistics]:
    """Return the tables over the attribute ``name`` and attributes drawn so far, computed from
    ``tables`` by summing over the others: those whose attributes no other of them contains, and
    those that are known more precisely than every table that contains their attributes.
    """
    found: dict[frozenset[str], Statistics] = {}
    for clique, table in tables.items():
        if name not in clique:
            continue
        given = tuple(other for other in clique if other in drawn and other != name)
        axes = [other for other in clique if other == name or other in drawn]
        summed = tuple(i for i, other in enumerate(clique) if other not in axes)
        smaller = np.moveaxis(table.sum(axis=summed), axes.index(name), -1)
        variance = variances[clique] * table.size / smaller.size
        known = found.get(frozenset(given))
        if known is None or variance < known.variance:
            found[frozenset(given)] = Statistics(given, smaller, variance)
    kept = list(found.values())
    largest = set(maximal([each.given for each in kept]))
    return [
        each
        for place, each in enumerate(kept)
        if place in largest or all(_better(each, other) for other in kept if other is not each)
    ]


def _better(smaller: Statistics, other: Statistics) -> bool:
    """Return True unless the table ``other`` contains the attributes of ``smaller`` and determines
    its cells at least as precisely.
    """
    cells = other.table.size / smaller.table.size
    return not set(smaller.given) <= set(other.given) or smaller.variance < cells * other.variance
