"""The run that MWEM, PMW-Pub and PEP share: a histogram is updated in rounds by measured queries.

The first histogram is the distribution of public records, the product of the measured one-way
marginals, or uniform.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from mechanisms.families.histogram import (
    FullDomain,
    Histogram,
    HistogramModel,
    PublicSupport,
    on_host,
)
from mechanisms.privacy.cell_line import measured_cell
from mechanisms.privacy.curator import Curator
from mechanisms.queries.cells import Cell
from mechanisms.rounds.loop import Outcome, Progress
from mechanisms.rounds.select_and_measure import (
    SELECTIONS,
    RoundsRule,
    SelectionSettings,
    check_queries,
    measure_one_way,
)
from mechanisms.settings import fraction, one_of, setting, torch_device, whole_number
from mechanisms.workload import Workload
from pgmkit import Dataset, InvalidInput, Measurement
from pgmkit.domain import Clique, Domain
from pgmkit.linear.axes import spread
from pgmkit.runtime.devices import check_room, device_of, gpu_memory
from pgmkit.runtime.sizes import CELL_BYTES

_PUBLIC_RULES = {"queries": RoundsRule(0.0035, power=2), "marginals": RoundsRule(0.0018, power=2)}
"""The rules for the number of rounds on public records, by the value of the setting `select`."""
_ROUND_BYTES = 6 * CELL_BYTES
"""The bytes for each weight on a GPU, where at most six arrays of their size exist at once: the
weights before and after an update, the sum of all histograms, partial sums, and copies.
"""


@dataclass(frozen=True)
class HistogramSettings(SelectionSettings):
    """The settings that MWEM and PEP share; the subclass of each mechanism describes them."""

    rounds: int | None = setting(None, whole_number())
    queries: int = setting(1, whole_number())
    one_way_share: float = setting(0.1, fraction(zero=True))
    select_share: float = setting(0.5, fraction())
    select: Literal["queries", "marginals"] = setting("queries", one_of(*SELECTIONS))
    device: str = setting("cpu", torch_device())

    @abstractmethod
    def updates(self) -> Updates:
        """Return how the mechanism updates its histogram."""


@dataclass(frozen=True)
class MeasuredCell:
    """A measured query: its cell, the noisy answer and the noise's standard deviation, both as
    fractions of the total.

    The answer is strictly between 0 and 1 (`measured_cells`): at 0 and 1 weights would be infinite.
    """

    cell: Cell
    answer: float
    stddev: float


Update: TypeAlias = Callable[[Histogram, Sequence[MeasuredCell], int], None]
"""A function that changes a histogram in place by the measured cells; its third argument is how
many of the last cells are new.
"""


class Updates(NamedTuple):
    """The update rule of a mechanism that keeps a histogram.

    Attributes:
        change: The function that changes the histogram after each round.
        rule: The rule for the number of rounds without public records.
        average: Whether the mean of all histograms is released, and not the last.
        repeat: Whether a measured query may be selected again.
    """

    change: Update
    rule: RoundsRule
    average: bool = False
    repeat: bool = False


@dataclass(frozen=True, eq=False)
class HistogramState:
    """The histogram between updates.

    `total`: the number of records. `summed`: the sum of the histograms after all updates so far,
    each with the sum 1; None before the first update, or if their average is not released. `known`:
    the number of measurements so far.
    """

    histogram: Histogram
    total: float
    summed: Any = None
    known: int = 0

    def marginals(self, cliques: Iterable[Clique]) -> dict[Clique, np.ndarray[Any, Any]]:
        """Return marginals in counts, by clique."""
        tables = self.histogram.tables(cliques)
        return {clique: table * self.total for clique, table in tables.items()}


def measured_cells(measurements: Sequence[Measurement], total: float) -> list[MeasuredCell]:
    """Return each measured query once: repeated ones are merged by inverse variance, and the latest
    is last. Answers are fractions of the total, strictly between 0 and 1. `measurements`, in
    counts: whole marginals, or single cells from `Curator.measure_cells`.

    >>> twice = [Measurement(("a",), [4.0, 6.0], 1.0), Measurement(("a",), [7.0, 3.0], 2.0)]
    >>> [round(each.answer, 2) for each in measured_cells(twice, 10.0)]
    [0.46, 0.54]
    """
    merged: dict[Cell, tuple[float, float]] = {}
    for m in measurements:
        whole = m.matrix is None
        cells = [Cell(m.clique, i) for i in range(len(m.values))] if whole else [measured_cell(m)]
        weight = (total / m.stddev) ** 2
        for cell, value in zip(cells, m.values, strict=True):
            old, sum_of_weights = merged.pop(cell, (0.0, 0.0))
            merged[cell] = (old + weight * float(value) / total, sum_of_weights + weight)
    found = []
    least = min(0.5, 1e-3 / total + 1e-9)
    for cell, (weighted, weight) in merged.items():
        answer = float(np.clip(weighted / weight, least, 1 - least))
        found.append(MeasuredCell(cell, answer, weight**-0.5))
    return found


def run_histogram(
    curator: Curator,
    workload: Workload,
    settings: HistogramSettings,
    *,
    public: Dataset | None = None,
    progress: Progress = None,
) -> Outcome:
    """Measure the one-way marginals, then select, measure and update in rounds until the budget is
    spent. Return the histogram to release and all measurements.

    `public`: public records; the histogram is then over these, in place of all records of the
    domain, and the one-way marginals are measured only if the total is private. Raises InvalidInput
    for settings that the rounds do not support (`check_queries`) and for public records over
    another domain, and ModelTooLarge for a histogram or marginals that are too large.
    """
    check_queries(curator, workload, settings)
    domain = curator.domain
    if public is None:
        support: Any = FullDomain(domain)
        first_weights = np.ones(support.shape)
    else:
        check_public(domain, public)
        support, first_weights = PublicSupport.of(public)
    device = device_of(settings.device, lambda: prod(support.shape))
    check_room(device, _ROUND_BYTES * prod(support.shape), "a histogram")
    # With public records, the one-way marginals serve only to estimate the total.
    needless = public is not None and curator.public_total is not None
    first, total = measure_one_way(curator, 0.0 if needless else settings.one_way_share)
    if first and public is None:
        first_weights = product_of_marginals(domain, first)
    updates = settings.updates()
    rule = updates.rule if public is None else _PUBLIC_RULES[settings.select]
    rounds = rule.of(curator, workload, settings, total)
    cells = {"repeat": updates.repeat, "anneal": settings.rounds is None}
    options = cells if settings.select == "queries" else {}
    steps = SELECTIONS[settings.select](
        curator, workload, rounds, settings.queries, settings.select_share, **options
    )
    with gpu_memory(device):
        start = HistogramState(Histogram(support, first_weights, device), total, known=len(first))
        update = updater(updates.change, len(first), total, updates.average)
        state, measurements = steps.run(start, first, update, progress)
        (held,) = on_host([state.histogram.weights if state.summed is None else state.summed])
    return HistogramModel(support, held, total), measurements


def updater(
    update: Update, first: int, total: float, average: bool
) -> Callable[[HistogramState, Sequence[Measurement]], HistogramState]:
    """Return the update step of the rounds, a function of the last state and all measurements. It
    copies the state's histogram and changes the copy by `update`, by all measurements but the first
    `first`. `total`: the number of records. `average`: whether the states keep the sum of all
    histograms.
    """

    def updated(state: HistogramState, measurements: Sequence[Measurement]) -> HistogramState:
        histogram = state.histogram.copy()
        cells = measured_cells(measurements[first:], total)
        update(histogram, cells, sum(len(m.values) for m in measurements[state.known :]))
        shares = histogram.weights / histogram.mass if average else None
        summed = shares if state.summed is None or shares is None else state.summed + shares
        return HistogramState(histogram, total, summed, len(measurements))

    return updated


def check_public(domain: Domain, public: Dataset) -> None:
    """Raise InvalidInput unless the public records are over the private domain."""
    absent = [name for name in domain if name not in public.domain]
    if absent:
        raise InvalidInput(
            f"the public data lack {', '.join(map(repr, absent))}; add what is missing, or use "
            "gem-pub, which takes public data of some attributes"
        )
    if public.domain != domain:
        raise InvalidInput(
            "the public data are over another domain than the private ones; recode them with the "
            "same attributes and sizes"
        )


def product_of_marginals(domain: Domain, first: Sequence[Measurement]) -> np.ndarray[Any, Any]:
    """Return the product of the noisy one-way marginals as fractions, of the domain's shape; noisy
    counts below 0.5 count as 0.5. Every attribute of more than one value needs a marginal.
    """
    weights = np.ones(())
    for m in first:
        counts = np.maximum(m.values, 0.5)
        weights = weights * spread(domain.attributes, m.clique, counts / counts.sum())
    return np.broadcast_to(weights, domain.shape())
