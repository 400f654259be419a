"""MWEM: multiplicative weights on a histogram of the whole domain.

Hardt, Ligett and McSherry (2012), with the practice of Liu et al., "Leveraging public data"
(2021), C.3: weights are updated by past queries too, those whose noisy error is at least half of
the current one's, in random order and with answers that are up to date; and the last iterate is
the result. Both can be turned off. Without past queries a measured one may be selected again, as
one step leaves most of its error; its answers are averaged. Selection by the exponential
mechanism, Gaussian measurement. The sign of the update is that of Algorithm 1 there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mechanisms.families.histogram import Histogram
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.rounds.histogram import Fact, HistogramState, run_histogram
from mechanisms.rounds.loop import Round
from mechanisms.rounds.select_and_measure import RoundsRule, check_settings
from mechanisms.workload import Workload, WorkloadLike
from pgmkit.errors import InvalidInput

__all__ = ["Mwem", "check_choices", "multiplicative_weights", "mwem"]

_RULES = {
    ("queries", True): RoundsRule(2.8),
    ("marginals", True): RoundsRule(0.35),
    # Without past queries each round moves one query only a little.
    ("queries", False): RoundsRule(5.6),
    ("marginals", False): RoundsRule(0.7),
}


@dataclass(frozen=True)
class Mwem:
    """Settings of MWEM; none may be chosen by looking at private data.

    `rounds`: None for a rule from the rows and the budget (`RoundsRule`). `queries`: of a
    round. `one_way_share`: of the budget, for one-way marginals whose product is the start; 0, as
    in the paper, starts uniform and needs a public total. `select_share`: of a round's budget.
    `select`: single "queries", or whole "marginals" (the marginal trick). `past_queries`: update
    by them too. `passes` over them a round. `result`: the "last" iterate or the "average". `seed`:
    of the order of updates.
    """

    rounds: int | None = None
    queries: int = 1
    one_way_share: float = 0.1
    select_share: float = 0.5
    select: Literal["queries", "marginals"] = "queries"
    past_queries: bool = True
    passes: int = 5
    result: Literal["last", "average"] = "last"
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self, whole=["queries", "passes"], positive=[], fractions=["select_share"])
        check_choices(self)


def check_choices(settings: Any) -> None:
    """Raises InvalidInput for an unknown `select` or `result`, or select_share 0."""
    for name, known in [("select", ("queries", "marginals")), ("result", ("last", "average"))]:
        value = getattr(settings, name, known[0])
        if value not in known:
            raise InvalidInput(f"{name} must be one of {', '.join(known)}; got {value!r}")
    if settings.select_share == 0:
        raise InvalidInput("select_share must be above 0 and below 1, got 0")
    if settings.select == "marginals" and settings.queries != 1:
        raise InvalidInput("queries must be 1 where whole marginals are selected")


def mwem(
    curator: Curator,
    workload: WorkloadLike,
    settings: Mwem | None = None,
    *,
    progress: Callable[[Round[HistogramState, Any]], None] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on a histogram for the workload.

    Raises InvalidInput (before anything is spent) for a workload over another domain, ModelTooLarge
    for a domain that is too large.
    """
    settings = settings or Mwem()
    workload = Workload.over(curator.domain, workload)
    return run_histogram(
        "mwem",
        curator,
        workload,
        settings,
        _RULES[settings.select, settings.past_queries],
        multiplicative_weights(settings.past_queries, settings.passes),
        average=settings.result == "average",
        repeat=not settings.past_queries,
        seed=settings.seed,
        progress=progress,
    )


def multiplicative_weights(
    past_queries: bool, passes: int
) -> Callable[[Histogram, Sequence[Fact], int, np.random.Generator], None]:
    """The update A(x) <- A(x) exp(q(x) (a - q(A)) / 2), for the latest facts or for all large ones.

    >>> from mechanisms.queries.cells import Cell
    >>> from mechanisms.families.histogram import FullDomain
    >>> from pgmkit.domain import Domain
    >>> histogram = Histogram(FullDomain(Domain({"a": 2})), np.ones(2))
    >>> update = multiplicative_weights(past_queries=False, passes=1)
    >>> update(histogram, [Fact(Cell(("a",), 1), 0.9, 0.01)], 1, np.random.default_rng(0))
    >>> round(histogram.answer(Cell(("a",), 1)), 3)
    0.55
    """

    def update(
        histogram: Histogram, known: Sequence[Fact], latest: int, rng: np.random.Generator
    ) -> None:
        def apply(fact: Fact) -> None:
            histogram.scale(fact.cell, math.exp((fact.answer - histogram.answer(fact.cell)) / 2))

        for fact in known[-latest:]:
            if not past_queries:
                apply(fact)
        if not past_queries:
            return
        for _ in range(passes):
            errors = [abs(histogram.answer(fact.cell) - fact.answer) for fact in known]
            threshold = max(errors[-latest:]) / 2
            large = [fact for fact, e in zip(known, errors, strict=True) if e >= threshold]
            for i in rng.permutation(len(large)):
                apply(large[i])

    return update
