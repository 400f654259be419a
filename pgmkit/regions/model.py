"""The model of the relaxed problem: tables that agree locally, and records near them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import inf
from typing import NoReturn

import numpy as np

from pgmkit.domain import Clique, Domain
from pgmkit.errors import FromRecords, InvalidInput
from pgmkit.graphs.clique_index import CliqueIndex, maximal
from pgmkit.inference.query_answers import QueryAnswers, answers_of_table, check_held
from pgmkit.least_squares.goodness import Fit, goodness_of_fit
from pgmkit.linear.axes import spread, sum_to
from pgmkit.measurement import Measurement
from pgmkit.queries import FactoredQuery
from pgmkit.records.dataset import Dataset
from pgmkit.records.sampling import check_draw
from pgmkit.regions import checks
from pgmkit.regions.beyond import expected_answer, expected_marginals, expected_product
from pgmkit.regions.file import read_regions, write_regions
from pgmkit.regions.given import GivenRegions
from pgmkit.regions.joint import Agreement, Joint, agreement, fit_joint
from pgmkit.regions.raking import raked
from pgmkit.runtime.arguments import Rng, generator, listed, mapped
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ROUNDS
from pgmkit.runtime.untrusted import LARGEST, FilePath
from pgmkit.structural_zeros import Zeros

RECORDS = 20_000
"""The number of records that the joint distribution is fitted with and answers are computed from.
Tables with more cells than this are not scaled to known sums, since most of their cells would be
empty.
"""


@dataclass(frozen=True, eq=False, repr=False)
class RegionModel(QueryAnswers):
    """Tables that fit the measurements and agree wherever they overlap.

    They are the best fit among all such tables, or that fit shrunk towards independence by as much
    as the noise requires (``pgmkit.regions.shrinkage``). The model is a relaxation: there need not
    be a distribution that has all these tables at once.

    Marginals and queries within a region are answered from its table. All others, and records, come
    from ``joint``, a distribution near the tables; ``agreement`` says how near, and such answers
    warn with ``FromRecords``. Marginals from ``joint`` of up to ``RECORDS`` cells are scaled until
    their sums over attributes within one region agree with the region's table. There is no most
    probable record (``map`` refuses).

    Attributes:
        domain: the attributes.
        tables: one table for each region, in counts; axes in the region's order. Regions are the
            measured cliques. Tables agree on shared attributes up to rounding (1e-9 of the total).
        variances: the noise variance of a cell of each table, in squared counts.
        total: the number of records that each table sums to.
        loss: the loss of the measurements at the tables.
        gap: an upper bound on how much smaller loss plus penalty could be for any other tables that
            agree locally.
        bound: a lower bound on the loss of any tables that agree locally, and so of any
            distribution. The loss of the best distribution may be well above it.
        weight, penalty: the weight w of the penalty on relations between attributes
            (``pgmkit.regions.shrinkage``), and what the penalty adds to the loss, w included; 0 if
            the tables are the best fit.
        unit: the noise unit, the standard deviation of the loss at the true tables, with which to
            compare the gap.
        certified: whether the gap of the relaxed problem is within the requested tolerance.
        iterations, stopped: how long the search took and why it ended.
        zeros: combinations that cannot occur, neither in the tables nor in any record.
        measurements: the measurements that ``fit`` needs: those that the model was estimated from,
            if the loss is the squared one. ``save`` leaves them out; a release's file has them.

    >>> from pgmkit import Measurement, estimate
    >>> y = [Measurement(("a", "b"), [[40.0, 10.0], [12.0, 38.0]], 1.0)]
    >>> model = estimate(Domain({"a": 2, "b": 2}), y, total=100, inference="region")
    >>> model.marginal(("b",))
    array([52., 48.])
    """

    domain: Domain
    tables: Mapping[Clique, Array]
    variances: Mapping[Clique, float]
    total: float
    loss: float
    gap: float = inf
    bound: float = 0.0
    weight: float = 0.0
    penalty: float = 0.0
    unit: float = 1.0
    certified: bool = False
    iterations: int = 0
    stopped: str = ""
    zeros: tuple[Zeros, ...] = ()
    measurements: tuple[Measurement, ...] = ()

    def __repr__(self) -> str:
        return (
            f"RegionModel({len(self.domain)} attributes, {len(self.tables)} regions, "
            f"total={self.total:.6g}, loss={self.loss:.6g}, weight={self.weight:.3g}, "
            f"gap={self.gap:.3g}, certified={self.certified}, iterations={self.iterations}, "
            f"stopped={self.stopped!r})"
        )

    @cached_property
    def fit(self) -> Fit | None:
        """The test of how well the measurements agree with each other; None if the model does not
        hold its measurements, as after ``load`` or with a loss other than the squared one.
        """
        return goodness_of_fit(self, self.measurements) if self.measurements else None

    @property
    def structural_zeros(self) -> tuple[Zeros, ...]:
        """Combinations that cannot occur."""
        return self.zeros

    @property
    def certificate(self) -> str:
        """A sentence on how close the search came to the best fit of the relaxed problem."""
        noise = f"{self.gap / self.unit:.2g} noise units from the relaxed problem's best fit"
        if self.certified:
            return f"certified, of the relaxed problem: within {noise}"
        return f"not certified: up to {noise} ({self.stopped})"

    @property
    def poor_fit(self) -> bool:
        """True if the model is not certified, and its gap is above one noise unit."""
        return not self.certified and self.gap > self.unit

    @property
    def cliques(self) -> tuple[Clique, ...]:
        """The regions."""
        return tuple(self.tables)

    def region(self, attrs: Iterable[str]) -> Clique | None:
        """Return the smallest region that contains ``attrs``, or None if there is none, so that
        ``joint`` answers.
        """
        places = self._index.containing(self.domain.clique(attrs))
        return min([self.cliques[place] for place in places], key=self.domain.size, default=None)

    @cached_property
    def joint(self) -> Joint:
        """A distribution whose marginals are near the tables; it answers queries that lie in no
        region. The same model always gives the same distribution, also after ``save`` and ``load``.

        It is fitted on first use, which takes seconds: one attribute after the other, each given
        those before it (``pgmkit.regions.joint``). Raises ``InvalidInput`` if structural zeros
        leave no record, or if they rule out nearly all records drawn.
        """
        fractions = {clique: table / self.total for clique, table in self.tables.items()}
        noise = {clique: each / self.total**2 for clique, each in self.variances.items()}
        return fit_joint(self.domain, fractions, noise, RECORDS, generator(0), self.zeros)

    @cached_property
    def agreement(self) -> Agreement:
        """The distances between the regions' tables and those of the records that were drawn while
        ``joint`` was fitted; the first access fits it if nothing has yet.
        """
        return agreement(self.tables, self.variances, self.joint.records)

    def marginal(self, attrs: Iterable[str]) -> Array:
        """Return the expected counts over ``attrs``; axes in the given order.

        They come from the smallest region that contains the attributes or, if there is none, from
        ``joint``, with a warning, and are scaled to agree with the regions if they have at most
        ``RECORDS`` cells. The first such call fits ``joint``, which takes seconds and may raise.
        Raises ``InvalidInput`` for unknown or duplicate attributes, and ``ModelTooLarge`` for a
        table without room in memory.
        """
        clique = self.domain.clique(attrs)
        return self.marginals([clique])[clique]

    def marginals(self, cliques: Iterable[Iterable[str]]) -> dict[Clique, Array]:
        """Return a mapping from each clique to its marginal, as ``marginal`` returns it."""
        asked = [self.domain.clique(clique) for clique in listed(cliques, "cliques", "cliques")]
        found = {clique: table for clique in asked if (table := self._within(clique)) is not None}
        for clique, table in found.items():
            self._check_marginal(("marginal", clique), clique, table)
        if outside := [clique for clique in asked if clique not in found]:
            self._warn(f"marginals over {', '.join(map(repr, outside[:3]))}")
            found |= self._beyond(outside)
        return {clique: found[clique] for clique in asked}

    def _within(self, clique: Clique) -> Array | None:
        """Return the marginal over ``clique`` from the smallest region that contains it, or None if
        no region does.
        """
        region = self.region(clique)
        return None if region is None else np.array(sum_to(self.tables[region], region, clique))

    def _beyond(self, cliques: Sequence[Clique]) -> dict[Clique, Array]:
        """Return the marginals over cliques that no region contains: those of ``joint``. Tables
        of at most ``RECORDS`` cells are then scaled to agree with the regions (``_raked``).
        """
        found = {}
        for clique, shares in expected_marginals(self.joint, cliques).items():
            table = shares * self.total
            self._check_marginal(("marginal", clique), clique, table)
            found[clique] = self._raked(clique, table) if table.size <= RECORDS else table
        return found

    def _raked(self, clique: Clique, table: Array) -> Array:
        """Return the table over ``clique`` that is nearest to ``table`` in relative entropy and
        agrees with the regions about all attributes of the clique that lie within one region. If
        there is no such table, the result agrees with some regions only nearly, or is ``table``.
        """
        index = self._index
        near = dict.fromkeys(place for name in clique for place in index.places.get(name, ()))
        parts = [tuple([n for n in clique if n in index.sets[place]]) for place in near]
        parts = [parts[place] for place in maximal(parts)]
        if not parts:
            return table
        wanted = [
            spread(clique, part, sums) for part in parts if (sums := self._within(part)) is not None
        ]
        found = raked(table, wanted, MOST_ROUNDS)
        if not found.any():  # the regions rule out all records
            return table
        self._check_marginal(("sums", clique), parts[-1], sum_to(found, clique, parts[-1]))
        # Cells that no record has stay empty; the others are scaled, so that the table sums to the
        # total.
        return found * (self.total / found.sum())

    @cached_property
    def _index(self) -> CliqueIndex:
        return CliqueIndex(self.cliques)

    def map(self) -> NoReturn:
        """Raise ``InvalidInput``: many distributions are near the tables, and their most probable
        records may be different.
        """
        raise InvalidInput(
            "a region model has no most probable record: many distributions are near its tables. "
            "Take the most frequent of model.sample(n), whose distance from the tables is "
            'model.agreement, or a model that fits a tree (inference="exact"), whose map is exact'
        )

    def sample(self, n: int, *, rng: Rng = None) -> Dataset:
        """Draw ``n`` records from ``joint``, which the first call fits.

        ``rng``: a seed, a numpy Generator, or None for a fresh one. If ``joint`` is farther from
        some table than its noise explains, the warning ``FromRecords`` names the table and the
        distance; ``agreement.missed`` has all such tables. This happens if no distribution has all
        tables at once, or if none was found. Raises ``InvalidInput`` if ``n`` is not a positive
        integer or structural zeros rule out nearly all records drawn, and ``ModelTooLarge`` for
        more records than there is memory for.
        """
        check_draw(n, self.domain)
        drawn = self.joint.sample(int(n), generator(rng))
        missed = self.agreement.missed
        if missed:
            worst = missed[0]
            warnings.warn(
                f"records are further from {len(missed)} of {len(self.tables)} tables than noise "
                f"and sampling explain; furthest from that of {worst.clique!r}, by "
                f"{worst.counts:,.4g} of {self.total:,.6g} counts and {worst.noise_units:.3g} "
                "noise units of a cell: no distribution was found that has all of them at once",
                FromRecords,
                stacklevel=2,
            )
        if "sample" not in self._checked:
            checks.check_sample(drawn, self.joint.records, self.cliques, self.zeros)
            self._checked.add("sample")
        return drawn

    def given(self, evidence: Mapping[str, int | Sequence[int]]) -> GivenRegions:
        """Return a model of only those records in which each attribute of ``evidence`` has the
        given code, or one of the given codes. If no record has them, all counts are 0.

        Raises ``InvalidInput`` for unknown attributes or codes.

        >>> from pgmkit import Measurement, estimate
        >>> y = [Measurement(("a", "b"), [[40.0, 10.0], [12.0, 38.0]], 1.0)]
        >>> model = estimate(Domain({"a": 2, "b": 2}), y, total=100, inference="region")
        >>> model.given({"a": 0}).marginal(["b"])
        array([40., 10.])
        """
        given = mapped(evidence, "evidence", "attributes to codes")
        allowed = {name: self.domain.allowed(name, codes) for name, codes in given.items()}
        return GivenRegions(self, allowed)

    def save(self, path: FilePath) -> None:
        """Write the model, without its ``measurements``, to one file, completely or not at all;
        ``load`` reads it.
        """
        write_regions({each.name: getattr(self, each.name) for each in fields(self)}, path)

    @classmethod
    def load(cls, path: FilePath, *, max_bytes: int = LARGEST) -> RegionModel:
        """Read a model that ``save`` wrote. Raises ``InvalidInput`` for any other file.

        A file that would expand to more than ``max_bytes`` is refused.
        """
        return cls(**read_regions(path, max_bytes))

    def _answered(self, query: FactoredQuery) -> Array:
        """Return the answer to a query from the marginal over its attributes. If no region contains
        them, a warning says so; if the marginal then would have more than ``RECORDS`` cells, it is
        not computed, and the answer comes from the records of ``joint``.
        """
        query.check(self.domain)
        names = query.attributes
        table = self._within(names)
        if table is None:
            self._warn(f"the attributes {names!r} of a query")
            if self.domain.size(names) <= RECORDS:
                table = self._beyond([names])[names]
        if table is None:
            found = expected_answer(self.joint, query) * self.total
        else:
            found = answers_of_table(query, table)
        check_held([found])
        self._check(("answer", names, query.shape), *checks.row_weights(query, found), table)
        return found.reshape(query.answer_shape)

    @cached_property
    def _checked(self) -> set[object]:
        """The structures of questions of which one answer agreed with a second computation."""
        return set()

    def _check_marginal(self, structure: object, clique: Clique, found: Array) -> None:
        """Compare the largest cell of the marginal ``found`` over a clique with a second
        computation, if no answer to a question of this structure was checked before.
        """
        if structure not in self._checked:
            query = FactoredQuery.marginal(self.domain, clique)
            self._check(structure, *checks.row_weights(query, found))

    def _check(
        self, structure: object, weights: checks.Weights, found: float, table: Array | None = None
    ) -> None:
        """Compare ``found``, one number of an answer, with a second computation
        (``pgmkit.regions.checks``), if it is the first answer to a question of this structure.

        ``weights`` define the sum over records that the number is. It is computed again from a
        region that contains their attributes, if there is one; otherwise from ``table``, the
        marginal from which the answer was computed, or from the records if that is None.
        """
        if structure in self._checked:
            return
        places, region = self._index.containing(weights), tuple(weights)
        if places:
            region = self.cliques[places[-1]]
            table = self.tables[region]
        if table is not None:
            mine = checks.weighted_sum(table, region, weights)
            source = f"the table of the region {region!r}"
        else:
            mine = expected_product(self.joint, weights) * self.total
            source = "the model's records"
        checks.check_answer(mine, found, weights, self.total, source)
        self._checked.add(structure)

    def _warn(self, what: str) -> None:
        warnings.warn(
            f"{what} lie within no region: answered from {RECORDS:,} records that come within a "
            f"mean total variation of {self.agreement.mean:.3g} (at most "
            f"{self.agreement.worst:.3g}) of the tables",
            FromRecords,
            stacklevel=4,
        )
