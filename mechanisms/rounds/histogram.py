"""What MWEM, PMW-Pub and PEP share: a histogram, rounds of queries, and an update of all of them.

The start is the public distribution, or the product of the measured one-way marginals, or uniform.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mechanisms.families.histogram import (
    FullDomain,
    Histogram,
    HistogramModel,
    PublicSupport,
)
from mechanisms.families.targets import measured_cell
from mechanisms.privacy.curator import Curator
from mechanisms.queries.cells import Cell
from mechanisms.release.record import Release
from mechanisms.rounds.loop import Round, adapt
from mechanisms.rounds.select_and_measure import (
    CellRounds,
    MarginalRounds,
    QuerySettings,
    RoundsRule,
    check_queries,
    measure_one_way,
)
from mechanisms.workload import Workload
from pgmkit.dataset import Dataset
from pgmkit.errors import InvalidInput
from pgmkit.measurement import Measurement

if TYPE_CHECKING:
    from pgmkit.domain import Domain

__all__ = ["Fact", "HistogramState", "check_public", "facts", "run_histogram"]


@dataclass(frozen=True)
class Fact:
    """A measured query: its cell, the noisy answer and the noise's stddev, as shares of n.

    The answer is put inside (0, 1), where answers of any data lie (but for the ends, which would
    need infinite weights).
    """

    cell: Cell
    answer: float
    stddev: float


@dataclass(frozen=True, eq=False)
class HistogramState:
    """The histogram between updates, and the sum of all so far (for the average iterate)."""

    histogram: Histogram
    summed: np.ndarray[Any, Any] | None = None
    round: int = 0


class HistogramSettings(QuerySettings, Protocol):
    """What the settings of the three mechanisms have in common."""

    @property
    def select_share(self) -> float: ...


def facts(measurements: Sequence[Measurement], total: float) -> list[Fact]:
    """One fact a query: repeated measurements are merged by inverse variance, the latest is last.

    >>> twice = [Measurement(("a",), [4.0, 6.0], 1.0), Measurement(("a",), [7.0, 3.0], 2.0)]
    >>> [round(fact.answer, 2) for fact in facts(twice, 10.0)]
    [0.46, 0.54]
    """
    merged: dict[Cell, tuple[float, float]] = {}
    for m in measurements:
        if m.matrix is None:
            cells = [Cell(m.clique, i) for i in range(len(m.values))]
        else:
            clique, index = measured_cell(m)
            cells = [Cell(clique, index)]
        weight = (total / m.stddev) ** 2
        for cell, value in zip(cells, m.values, strict=True):
            old, sum_of_weights = merged.pop(cell, (0.0, 0.0))
            merged[cell] = (old + weight * float(value) / total, sum_of_weights + weight)
    found = []
    for cell, (weighted, weight) in merged.items():
        stddev = weight**-0.5
        least = min(0.5, 1e-3 / total + 1e-9)
        found.append(Fact(cell, float(np.clip(weighted / weight, least, 1 - least)), stddev))
    return found


def run_histogram(
    name: str,
    curator: Curator,
    workload: Workload,
    settings: HistogramSettings,
    rule: RoundsRule,
    update: Callable[[Histogram, Sequence[Fact], int, np.random.Generator], None],
    *,
    public: Dataset | None = None,
    average: bool = False,
    repeat: bool = False,
    seed: int = 0,
    progress: Callable[[Round[HistogramState, Any]], None] | None = None,
) -> Release:
    """Select, measure, update until the budget is spent.

    `rule`: of the number of rounds. `repeat`: whether a measured query may be selected again.
    `update(histogram, facts, latest, rng)` changes the histogram in place; the last `latest` of the
    facts are this round's.
    """
    check_queries(curator, workload, settings)
    domain = curator.domain
    if public is None:
        support: Any = FullDomain(domain)
        first_weights = np.ones(support.shape)
    else:
        check_public(domain, public)
        support, first_weights = PublicSupport.of(public)
    # Public records need the one-way marginals for the total alone.
    needless = public is not None and curator.public_total is not None
    first, total = measure_one_way(curator, 0.0 if needless else settings.one_way_share)
    if first and public is None:
        first_weights = _product(domain, first)
    rounds = rule.of(curator, workload, settings, total)
    count, share = settings.queries or 1, settings.select_share
    steps: Any
    if settings.select == "queries":
        steps = CellRounds(curator, workload, rounds, count, share, repeat=repeat)
    else:
        steps = MarginalRounds(curator, workload, rounds, share)
    rng = np.random.default_rng(seed)

    def updated(state: HistogramState, measurements: Sequence[Measurement]) -> HistogramState:
        taken = measurements[len(first) :]
        latest = len(taken[-1].values) if settings.select == "marginals" else count
        histogram = state.histogram.copy()
        known = facts(taken, total)
        update(histogram, known, min(latest, len(known)), rng)
        shares = histogram.weights / histogram.mass if average else None
        summed = shares if state.summed is None or shares is None else state.summed + shares
        return replace(state, histogram=histogram, summed=summed, round=state.round + 1)

    def estimates(state: HistogramState) -> Any:
        tables = state.histogram.tables(workload.cliques)
        return {clique: table * total for clique, table in tables.items()}

    state, measurements = adapt(
        HistogramState(Histogram(support, first_weights)),
        first,
        select=lambda state, _last: steps.select(lambda: estimates(state)),
        measure=steps.measure,
        update=updated,
        progress=progress,
    )
    weights = state.histogram.weights if state.summed is None else state.summed
    model = HistogramModel(support, weights, total)
    return Release(name, model, measurements, curator.ledger, settings)


def check_public(domain: Domain, public: Dataset) -> None:
    """Raises InvalidInput unless the public records are over the private domain."""
    if not isinstance(public, Dataset):
        raise InvalidInput(f"public must be a Dataset, got {type(public).__name__}")
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


def _product(domain: Domain, first: Sequence[Measurement]) -> np.ndarray[Any, Any]:
    """The product of the noisy one-way marginals, each held above zero."""
    weights = np.ones(())
    for name, m in zip(domain, first, strict=True):
        shares = np.maximum(m.values, 0.5)
        shape = [1] * len(domain)
        shape[domain.attributes.index(name)] = len(shares)
        weights = weights * (shares / shares.sum()).reshape(shape)
    return np.broadcast_to(weights, domain.shape())
