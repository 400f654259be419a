"""The queries or marginals that a round selects and measures, and the number of rounds.

Single queries are cells of the workload's marginals. The count of a cell changes by at most 1 if
one row is added, removed or replaced.
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.privacy.cell_line import index_among
from mechanisms.privacy.curator import Curator
from mechanisms.queries.cells import Cell
from mechanisms.release.record import Measured
from mechanisms.rounds.loop import Answers, Model, Progress, adapt
from mechanisms.settings import Settings
from mechanisms.strategies.clique_queries import CliqueQueries
from mechanisms.workload import Workload, varied
from pgmkit import InvalidInput, Measurement, estimate_total
from pgmkit.domain import Clique
from pgmkit.records.counting import check_memory
from pgmkit.runtime.precision import SUM_ROUNDING


class SelectionSettings(Settings):
    """The base of settings with a choice between single queries and whole marginals."""

    rounds: int | None
    queries: int | None
    one_way_share: float
    select: str

    def conflict(self) -> str | None:
        """Return a message if whole marginals are selected and `queries` is above 1, else None."""
        if self.select != "marginals" or self.queries in (None, 1):
            return None
        return f"queries must be 1 where whole marginals are selected; got {self.queries!r}"

    def available(self, workload: Workload) -> int:
        """Return the number of the workload's marginals if these are selected whole, and otherwise
        the number of their cells.
        """
        if self.select == "marginals":
            return len(workload)
        return sum(map(workload.domain.size, workload.cliques))


def check_queries(curator: Curator, workload: Workload, settings: SelectionSettings) -> None:
    """Raise InvalidInput, before anything is spent, for settings that the rounds do not support:
    unequal weights if single queries are selected, rounds that select more queries or marginals
    than the workload has, and no share for the one-way marginals if the total is private. Raise
    ModelTooLarge for marginals that are too large to count together.
    """
    if settings.select == "queries":
        check_equal_weights(workload)
    available = settings.available(workload)
    check_enough(settings.rounds or 1, settings.queries or 1, available, settings.select)
    check_total(curator, settings.one_way_share)
    check_memory(workload.cliques, workload.domain.sizes)


def check_enough(rounds: int, queries: int, available: int, named: str) -> None:
    """Raise InvalidInput if `rounds` rounds of `queries` queries each select more than the
    `available` ones. `named`: what is selected, for the message.
    """
    if rounds * queries > available:
        raise InvalidInput(
            f"rounds ({rounds}) x queries a round ({queries}) is {rounds * queries}, but there are "
            f"{available} {named}; ask for fewer"
        )


def check_equal_weights(workload: Workload) -> None:
    """Raise InvalidInput for unequal weights, which the selection of single queries ignores."""
    least, most = min(workload.weights), max(workload.weights)
    if least < most:
        raise InvalidInput(
            f"the workload has unequal weights ({least:g} to {most:g}), which the selection of "
            "single queries does not use; give equal weights, no target and one set of queries for "
            "each clique, or take a mechanism that uses weights, such as aim"
        )


def check_total(curator: Curator, one_way_share: float) -> None:
    """Raise InvalidInput if the total is private and `one_way_share` is 0, so that nothing is
    measured that determines the total.
    """
    if one_way_share == 0 and curator.public_total is None:
        raise InvalidInput(
            "one_way_share must be above 0 where the number of rows is private (add/remove): "
            "the total is estimated from the one-way marginals; got 0"
        )


def measure_one_way(
    curator: Curator, share: float, queries: CliqueQueries | None = None
) -> tuple[list[Measurement], float]:
    """Measure every one-way marginal at an equal part of `share` of what remains of the budget;
    return the measurements and the total. With `queries` each attribute is measured by the rows
    that suit its queries.

    The total is the number of rows if that is public, and is estimated from these answers
    otherwise; it is at least 1, as data sets have rows. Attributes of one value are not measured,
    unless no other exists, and none is if the share is 0; the caller has made sure that it is not
    if the total is private (`check_total`).
    """
    names = varied(curator.domain)
    cost = share * curator.remaining / len(names)
    measure = curator.measure if queries is None else partial(queries.measure, curator)
    first = [measure((name,), cost, step="first: measure") for name in names] if share else []
    return first, known_total(curator, first)


def measure_total(
    curator: Curator, workload: Workload, one_way_share: float
) -> tuple[list[Measurement], float]:
    """Return what `measure_one_way` does, for a mechanism that draws single queries and measures
    one-way marginals only if the number of rows is private, to estimate it.

    Raises, before anything is spent, the errors of `check_equal_weights` and `check_total`, and
    ModelTooLarge for marginals that are too large to count together.
    """
    check_equal_weights(workload)
    check_total(curator, one_way_share)
    check_memory(workload.cliques, workload.domain.sizes)
    return measure_one_way(curator, one_way_share if curator.public_total is None else 0.0)


def spend(
    curator: Curator,
    shares: Mapping[Clique, float],
    measure: Callable[[Clique, float], Measurement],
) -> list[Measurement]:
    """Spend all that remains of the budget on measurements of the cliques of `shares` (at least
    one), in proportion to their shares: `measure(clique, cost)` returns the measurement of a clique
    at a cost. The last clique also takes what rounding leaves.
    """
    whole, together = curator.remaining, math.fsum(shares.values())
    *others, last = shares
    found = [measure(clique, whole * shares[clique] / together) for clique in others]
    return [*found, measure(last, curator.remaining)]


def known_total(curator: Curator, first: Sequence[Measurement]) -> float:
    """Return the number of records, at least 1: the public one, or else its estimate from the
    measurements `first`.
    """
    if curator.public_total is not None:
        return max(1.0, float(curator.public_total))
    return max(1.0, estimate_total(first, curator.domain).value)


def least_total(curator: Curator) -> float:
    """Return the least number of records there can be, before anything is measured: the public
    number, at least 1, or else 1.
    """
    return 1.0 if curator.public_total is None else known_total(curator, ())


@dataclass(frozen=True)
class RoundsRule:
    """A rule that derives the number of rounds from public figures: `factor` times sqrt(total /
    noise)^power, rounded, and at least 1.

    `total` is the number of records; `noise` is the scale of the noise if all of the remaining
    budget measured one marginal. In T rounds of one query each, the noise is sqrt(T) times as large
    under zCDP; under a pure budget it is T times as large, and the square root of the rule becomes
    a cube root.

    With power 1 the noise of a round is near the errors that are left to correct. A start from
    public records has errors of about a percent whatever the budget is, and a round is useful only
    if its noise is smaller than they are, which power 2 achieves.
    """

    factor: float
    power: float = 1.0

    def __call__(self, curator: Curator, total: float, share: float = 0.0) -> int:
        """Return the rule's number of rounds if `total` is the number of records and `share` the
        share of the remaining budget that is spent before the rounds.
        """
        left = (1 - share) * curator.remaining
        root = self.power / (3 if curator.ledger.budget.pure else 2)
        return max(1, round(self.factor * (total / curator.scale(left)) ** root))

    def of(
        self,
        curator: Curator,
        workload: Workload,
        settings: SelectionSettings,
        total: float,
        share: float = 0.0,
    ) -> int:
        """Return ``settings.rounds`` if it is given. Otherwise return the rule's number of rounds,
        at least 1, limited to the rounds for which the workload has enough queries.

        `total`: the number of records. `share`: the share of the remaining budget that is spent
        before the rounds.
        """
        if settings.rounds is not None:
            return settings.rounds
        available = settings.available(workload) // (settings.queries or 1)
        return max(1, min(available, self(curator, total, share)))


@dataclass(eq=False)
class SelectionRounds(ABC):
    """The select and measure steps of `rounds` rounds, which share what remains of the budget
    equally; the last measurement spends all that is left.

    `queries`: the number of queries that a round selects. `select_share`: the share of a round's
    budget for its selection.
    """

    curator: Curator
    workload: Workload
    rounds: int
    queries: int
    select_share: float

    def __post_init__(self) -> None:
        self._whole = self.curator.remaining
        self._per_round = self._whole / self.rounds
        self._left = self.workload.by_clique
        self._spent = 0.0
        self._done = 0

    @property
    def late(self) -> bool:
        """True once half of the budget of the rounds is spent."""
        return self.curator.remaining <= self._whole * (0.5 + SUM_ROUNDING)

    @property
    def planned(self) -> float:
        """The budget that the last round has spent, divided by the budget planned for one query:
        that of all rounds divided by `rounds` times `queries`. It holds from `measure` to the next
        `select`.
        """
        return self._spent / self._whole * (self.rounds * self.queries)

    def run(
        self,
        model: Model,
        first: Sequence[Measured],
        update: Callable[[Model, Sequence[Any]], Model],
        progress: Progress,
        view: Callable[[Model], Answers] = lambda model: model,
    ) -> tuple[Model, tuple[Any, ...]]:
        """Run all rounds by `adapt`, and return the last model and all measurements, `first`
        included. Queries are selected by the answers of `view(model)`.
        """
        return adapt(
            model,
            first,
            select=lambda now, _last: self.select(view(now)),
            measure=self.measure,
            update=update,
            progress=progress,
        )

    def select(self, model: Answers) -> Sequence[Any] | None:
        """Select, with noise, the queries that the model answers worst; return None, and select
        nothing, once the budget is spent.
        """
        if self.curator.remaining <= self._whole * SUM_ROUNDING:
            return None
        self._done += 1
        self._spent = self.curator.remaining
        return self._select(model, f"round {self._done}: select")

    def measure(self, picked: Sequence[Any]) -> list[Any]:
        """Return the noisy answers to the selected queries."""
        # This round has paid its selection; it needs the rest of a round, and the next a whole one.
        # If less remains, this round spends all of it.
        last = self.curator.remaining < self._per_round * (2 - self.select_share - SUM_ROUNDING)
        cost = self.curator.remaining if last else self._measure_cost
        found = self._measure(picked, cost, f"round {self._done}: measure")
        self._spent -= self.curator.remaining
        return found

    @property
    def _select_cost(self) -> float:
        return self.select_share * min(self._per_round, self.curator.remaining)

    @property
    def _measure_cost(self) -> float:
        return (1 - self.select_share) * self._per_round

    def _worst(self, left: dict[Clique, float], model: Answers, part: float, step: str) -> Clique:
        """Select a marginal in `left` by the exponential mechanism, and take it out of `left`,
        which has the weights by clique. Its score is its weight times (L1 error minus the expected
        noise of measuring it). `part`: the fraction that this marginal has of the round's budgets
        for selecting and for measuring.
        """
        noise, cliques = self.curator.expected_error(part * self._measure_cost), list(left)
        picked = self.curator.choose(
            cliques,
            model.marginals(cliques),
            part * self._select_cost,
            penalties=[noise * self.curator.domain.size(clique) for clique in cliques],
            weights=list(left.values()),
            step=step,
        )
        del left[picked]
        return picked

    @abstractmethod
    def _select(self, model: Answers, step: str) -> Sequence[Any]: ...

    @abstractmethod
    def _measure(self, picked: Sequence[Any], cost: float, step: str) -> list[Any]: ...


@dataclass(eq=False)
class CellRounds(SelectionRounds):
    """Rounds of single queries, each measured with its own noise. A measured query is selected
    again only if `repeat` is true.

    With `anneal`, the budget of every further round doubles each time that the selections find
    nothing but noise: the median distance of the last answers from the model's answers is at most
    the standard deviation of their noise. The last answers are five, or those of a round if they
    are more, all since the last doubling. There are then fewer rounds than `rounds`. AIM anneals by
    the same principle.

    `codes`: by attribute, the codes that queries may have, in place of all codes. The models'
    tables then have the given codes first along each axis, in this order
    (`mechanisms.families.frequent`).
    """

    repeat: bool = False
    anneal: bool = False
    codes: Mapping[str, NDArray[np.int64]] | None = None
    _taken: set[Cell] = field(default_factory=set, init=False)
    _tables: Mapping[Clique, NDArray[np.float64]] = field(default_factory=dict, init=False)
    _off: list[float] = field(default_factory=list, init=False)

    def _select(self, model: Answers, step: str) -> list[Cell]:
        self._tables = model.marginals(self.workload.cliques)
        if self.codes is not None:
            self._tables = {
                clique: table[tuple(slice(len(self.codes[name])) for name in clique)]
                for clique, table in self._tables.items()
            }
        cells = self.curator.choose_cells(
            self.workload.cliques,
            self._tables,
            self._select_cost,
            count=self.queries,
            exclude=self._taken,
            codes=self.codes,
            step=step,
        )
        if not self.repeat:
            self._taken.update(cells)
        return cells

    def _measure(self, picked: Sequence[Cell], cost: float, step: str) -> list[Measurement]:
        found = self.curator.measure_cells(picked, cost, step=step)
        if self.anneal:
            for m, cell in zip(found, picked, strict=True):
                at = index_among(self.workload.domain, cell, self.codes or {})
                self._off.append(abs(m.values[0] - float(self._tables[cell.clique][at])) / m.stddev)
            latest = self._off[-max(_WINDOW, len(picked)) :]
            if len(latest) >= _WINDOW and statistics.median(latest) <= 1:
                self._per_round *= 2
                self._off = []
        return found


class MarginalRounds(SelectionRounds):
    """Rounds of one whole marginal each: the marginal trick of Liu, Vietri and Wu (2021), appendix
    A.1.

    The score of a marginal is its weight times (L1 error minus the expected noise of measuring it).
    A measured marginal is not selected again.
    """

    def _select(self, model: Answers, step: str) -> list[Clique]:
        return [self._worst(self._left, model, 1.0, step)]

    def _measure(self, picked: Sequence[Clique], cost: float, step: str) -> list[Measurement]:
        (clique,) = picked
        return [self.curator.measure(clique, cost, step=step)]


_WINDOW = 5
"""The least number of answers by which annealing is decided. If they are noise alone, their median
distance is within one standard deviation in 81 of 100 cases, or in 90 for Laplace noise.
"""
SELECTIONS: dict[str, type[SelectionRounds]] = {"queries": CellRounds, "marginals": MarginalRounds}
"""The kinds of selection, by the value of the setting `select`."""
