"""The arguments of a run as one record, made at the entry point and checked there as a whole."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np

from mechanisms.dispatch import accounted, check_public, only_measures
from mechanisms.privacy.budget import Accounting, Budget
from mechanisms.privacy.ledger import FileLedger
from mechanisms.privacy.neighbours import Neighbours, relation
from mechanisms.privacy.scores import LARGEST
from mechanisms.registry import MECHANISMS, configure
from mechanisms.rounds.loop import Progress
from mechanisms.strategies.best import Goal
from mechanisms.synthesis import questions
from mechanisms.synthesis.auto import Choice, check_limits, choose_mechanism, noise
from mechanisms.synthesis.open_columns import DISCOVERY_SHARE, assumed, unlisted
from mechanisms.synthesis.units import check_unit
from mechanisms.synthesis.unread import COST_SHARE, UnreadValues, exact_shares
from mechanisms.workload import Workload, WorkloadLike, table_workload, with_predictors
from pgmkit import InvalidInput, Schema
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.arguments import generator, in_order, instance
from pgmkit.runtime.devices import device_of
from pgmkit.runtime.typed import typed_class
from pgmkit.tables.engines.frames import encode, names_of

_MOST_NOISE = LARGEST / 2**16
"""The largest scale of noise, in records, that a marginal measured with the whole budget may have
(`noise`, times the rows of a unit). Penalties of selections sum the noise of all cells of a table
measured with a small part of the budget, and the penalties that scores can compare are at most
`LARGEST`.
"""


@typed_class
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Request:
    """The arguments of `synthesize`, described there, without the data; nothing in a request is
    private.

    Raises InvalidInput for arguments of a wrong type, values that are not allowed, and arguments
    that contradict each other.

    >>> from pgmkit import Boolean
    >>> Request(schema=Schema({"ill": Boolean()}), epsilon=1.0, delta=1e-9).budget.accounting
    'gaussian'
    """

    schema: Schema
    epsilon: float | None = None
    delta: float
    neighbours: str = "add/remove"
    unit: str | None = None
    max_rows: int | None = None
    report_dropped: bool = False
    report_unread: bool | Callable[[UnreadValues], None] = False
    mechanism: str = "auto"
    settings: Mapping[str, Any] | None = None
    workload: int | WorkloadLike | None = None
    queries: Sequence[str] | None = None
    within: float | None = None
    target: str | None = None
    public: Any = None
    seconds: float | None = None
    memory_mb: float | None = None
    strict: bool = False
    seed: int | np.random.Generator | None = None
    ledger: FileLedger | None = None
    accounting: Accounting | None = None
    device: str | None = None
    progress: bool | Progress = None

    def __post_init__(self) -> None:
        generator(self.seed, "seed")
        for name in self.settings or ():
            instance(name, str, "a setting's name")
        if self.queries is not None:
            asked = in_order(self.queries, "queries", "questions in words")
            questions.check_questions(self.schema, asked)
            object.__setattr__(self, "queries", asked)
        self._check_queries()
        _ = self.options, self.relation
        check_unit(self.unit, self.schema, self.report_dropped)
        self._check_mechanism()
        check_limits(self.schema, self.public is not None, self.seconds, self.memory_mb)
        _ = self.likely
        self._check_noise()
        self._check_public_records()

    @cached_property
    def placed(self) -> Schema:
        """The schema by which records are coded: with a place for every value, unless `strict`."""
        return self.schema if self.strict else self.schema.placed()

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """The settings of the mechanism that was named: the argument `settings`, with the device
        and, for `matrix` and `matrix+pgm` with questions or levels, the objective. For "auto",
        which takes no settings, they are the argument `settings` as it is.

        Raises InvalidInput for a device that does not exist or is given twice.
        """
        settings = {} if self.settings is None else self.settings
        if self.mechanism != "auto" and self._plans and (self.queries or self.schema.levels):
            settings = {"objective": self._goal, **settings}
        if self.device is None:
            return settings
        device_of(self.device)
        if "device" in settings:
            raise InvalidInput(
                f"device is given twice, as {self.device!r} and in settings as "
                f"{settings['device']!r}; give it once"
            )
        return settings if self.mechanism == "auto" else {**settings, "device": self.device}

    @cached_property
    def relation(self) -> Neighbours:
        """The neighbour relation, between tables that differ in a row or in a unit's rows."""
        return relation(self.neighbours, self.unit, self.max_rows)

    @cached_property
    def likely(self) -> Workload:
        """The workload over the schema in which open columns have made-up values (`assumed`)."""
        return self._over(assumed(self.schema))

    def workload_over(self, schema: Schema) -> Workload:
        """Return the workload over `schema`, in which all values of open columns have been
        found.
        """
        if self.queries or isinstance(self.workload, Integral | None):
            return self._over(schema)
        return Workload.of(schema.domain, self.likely.sets, sought=self.likely.sought)

    def _over(self, schema: Schema) -> Workload:
        """Return the workload over a schema without open columns.

        With `queries` it is that of the questions or, for mechanisms that measure whole tables, of
        the tables that the questions are about, with equal weights. Without `queries` it is that of
        the argument `workload`: with queries at every level of the columns for `matrix` and
        `matrix+pgm`, and with sets of columns that may predict the target for mechanisms that
        select tables.
        """
        if self.queries:
            found = questions.question_workload(schema, self.queries)
            entry = MECHANISMS.get(self.mechanism)
            by_queries = self._plans if entry is None else entry.queries
            return found if by_queries else Workload(schema.domain, found.cliques)
        wanted = table_workload(schema.domain, self.workload, self.target)
        if self.mechanism != "auto" and self._plans:
            return questions.at_every_level(schema, wanted)
        if self.target is None or not self._selects_tables:
            return wanted
        return with_predictors(wanted, self.target)

    @property
    def _selects_tables(self) -> bool:
        """True if the mechanism, or one that "auto" may take, selects whole tables of the workload
        to measure: `mixture`, and those that build a graphical model in rounds.
        """
        if self.mechanism == "auto":
            return self.public is None
        entry = MECHANISMS.get(self.mechanism)
        return self.mechanism == "mixture" or bool(entry and entry.rounds and entry.graphical)

    @property
    def _plans(self) -> bool:
        """True for the mechanisms whose errors for questions are known before the run: `matrix`,
        `matrix+pgm`, and, without public records, "auto", which takes one of these for questions.
        """
        if self.mechanism == "auto":
            return self.public is None
        entry = MECHANISMS.get(self.mechanism)
        return entry is not None and entry.name in ("matrix", "matrix+pgm")

    @property
    def _goal(self) -> Goal:
        return "mean" if self.within is None else "largest"

    @property
    def _left(self) -> float:
        """The share of the budget that remains for the mechanism after the reports that are asked
        for (`report_unread`, `report_dropped`).
        """
        return (1 - COST_SHARE) ** (bool(self.report_unread) + bool(self.report_dropped))

    @cached_property
    def planned(self) -> tuple[questions.PlannedQuestion, ...]:
        """The errors that the questions will have; empty without questions, or if the errors are
        not known before the run.
        """
        cost, pure = self._left * self.budget.total, self.budget.pure
        return tuple(each.at(cost, pure) for each in self._planned_at_1)

    @cached_property
    def _planned_at_1(self) -> tuple[questions.PlannedQuestion, ...]:
        if not self.queries or not self._plans or self.schema.unresolved:
            return ()
        goal = self.options.get("objective", self._goal)
        pure = self.delta == 0
        return questions.planned(self.schema, self.queries, self.relation, pure=pure, goal=goal)

    @cached_property
    def budget(self) -> Budget:
        """The budget with its accounting. If labels are to be found, a tenth of delta is reserved
        for that.

        Raises InvalidInput if columns are to be found and the budget is pure. With `within` it also
        raises InvalidInput for questions about sums and means, and if no budget can have the
        epsilon that the questions need.
        """
        if self.within is not None:
            of_ledger = None if self.ledger is None else self.ledger.budget.accounting
            accounting = self.accounting or of_ledger
            return questions.least_budget(
                self._planned_at_1, self.within, self.delta, accounting, self._left
            )
        assert self.epsilon is not None
        budget = Budget(self.epsilon, self.delta)
        if self.schema.unresolved and budget.pure:
            raise InvalidInput(
                f"column {self.schema.unresolved[0]!r} is to be found in the data, which needs "
                f"delta above 0; got {self.delta!r}. Give its values or edges to use pure "
                "differential privacy"
            )
        if unlisted(self.schema):
            budget = replace(budget, reserved=DISCOVERY_SHARE * self.delta)
        return accounted(budget, self.accounting, self._measures, self.ledger)

    @property
    def _measures(self) -> bool:
        """True if the run is known, before its first charge, to only measure, or to do little else.

        "auto" chooses by a noisy number of rows, and an accounting must not depend on answers. So
        "auto" has the accounting of `independent`; its other choices without public records select
        with about a tenth of the budget, and also gain by it. A mixture selects if there are many
        cells, which is not known while columns are open.
        """
        if self.mechanism == "auto":
            return self.public is None
        entry, chosen = configure(self.mechanism, **self.options)
        return (
            entry.measures if self.schema.unresolved else only_measures(entry, chosen, self.likely)
        )

    def choice(self, schema: Schema, workload: Workload, rows: int | None = None) -> Choice:
        """Return the mechanism that was named, with its `options`, or for "auto" `matrix+pgm` if
        there are questions and no public records, and otherwise the one that `choose_mechanism`
        takes.

        `schema`, `workload`: the schema and the workload, with all values known. `rows`: the number
        of rows if it is public or paid for.
        """
        if self.mechanism != "auto":
            return Choice(self.mechanism, "as asked", self.options)
        if self.queries and self.public is None:
            return Choice(
                "matrix+pgm",
                "the questions are measured with least noise; their errors are known beforehand",
                {"objective": self._goal, "inference": "auto"},
            )
        return choose_mechanism(
            schema,
            workload,
            self.budget,
            rows=rows,
            max_rows=self.relation.max_rows,
            public=self._public_names,
            seconds=self.seconds,
            memory_mb=self.memory_mb,
        )

    @property
    def _public_names(self) -> Collection[str] | None:
        """The names of the public records' columns; None if there are no public records."""
        if isinstance(self.public, Dataset):
            return self.public.domain.attributes
        return None if self.public is None else names_of(self.public)

    def public_records(self, schema: Schema) -> Dataset | None:
        """Return the public records, coded by those columns of the schema that they have; None if
        there are none. A Dataset is returned as it is. Raises InvalidInput for a frame that has
        none of the schema's columns, or no rows.
        """
        public = self.public
        if public is None:
            return None
        if not isinstance(public, Dataset):
            known = [name for name in names_of(public) if name in schema.columns]
            if not known:
                raise InvalidInput("the public records have no column of the schema; rename theirs")
            public = encode(public, schema.restricted(known))
        if not len(public):
            raise InvalidInput("the public records have no rows; give at least one")
        return public

    def _check_noise(self) -> None:
        """Raise InvalidInput, before anything is spent, if a marginal that takes the whole budget
        has noise above `_MOST_NOISE`.
        """
        of_all = self.relation.max_rows * noise(self.budget)
        if of_all > _MOST_NOISE:
            raise InvalidInput(
                f"epsilon = {self.budget.epsilon:g} and delta = {self.delta:g} mean noise of "
                f"{of_all:.2g} records in the counts of a single table, which hides all data; "
                f"choose a larger epsilon{', or a smaller max_rows' if self.unit else ''}"
            )

    def _check_queries(self) -> None:
        """Raise InvalidInput for arguments that cannot be combined with questions or with `within`,
        and unless exactly one of `epsilon` and `within` is given.
        """
        if self.queries and not (self.workload is None and self.target is None):
            raise InvalidInput(
                "queries are the workload; leave workload and target out, or ask for their tables "
                'in words: "age x sex"'
            )
        given = self.epsilon, self.within
        if given.count(None) != 1:
            raise InvalidInput(f"give either epsilon or within; got {given}")
        if self.within is None:
            return
        if not 0 < self.within < math.inf:
            raise InvalidInput(f"within must be a number of records above 0, got {self.within!r}")
        if not self.queries or not self._plans or self.schema.unresolved:
            raise InvalidInput(
                "within needs queries, a schema without open columns and a mechanism whose errors "
                "are known beforehand (auto without public records, matrix, matrix+pgm)"
            )
        if self.settings and "objective" in self.settings:
            raise InvalidInput("within takes the objective 'largest'; leave the setting out")

    def _check_mechanism(self) -> None:
        """Raise InvalidInput for a mechanism or settings that do not fit the schema or the public
        records.
        """
        if self.mechanism == "auto":
            if self.settings:
                raise InvalidInput(
                    f"settings {sorted(self.settings)} need a mechanism by name; name it, or leave "
                    "them away: auto chooses its own"
                )
            return
        entry, chosen = configure(self.mechanism, **self.options)
        check_public(entry, self.public is not None)
        inference = getattr(chosen, "inference", None)
        if self.schema.constraints and not entry.graphical and inference in (None, "exact"):
            setting = f"settings={{'inference': 'auto'}} with {self.mechanism}, or "
            raise InvalidInput(
                f"the schema has constraints, which the model of {self.mechanism} cannot hold; use "
                f"{setting if inference else ''}aim, mst or mwem+pgm, or take the constraints out"
            )

    def _check_public_records(self) -> None:
        """Raise InvalidInput for public records that are coded although the schema has open
        columns, and for a frame that has none of the schema's columns, or no rows. Warn of values
        in them that could not be read.
        """
        if isinstance(self.public, Dataset) and self.schema.unresolved:
            raise InvalidInput(
                "public records must be a data frame where the schema has open columns, whose "
                "codes are not known yet"
            )
        found = self.public_records(assumed(self.placed))
        if found is not None and (lost := exact_shares(found)):
            warnings.warn(f"public records: {lost}", stacklevel=6)
