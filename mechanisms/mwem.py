"""MWEM: multiplicative weights on a histogram of the whole domain.

Hardt, Ligett and McSherry (2012), with the practice of Liu et al., "Leveraging public data" (2021),
C.3: weights are updated by past queries too, namely those whose noisy error is at least half of the
current query's, in random order, with the histogram's answer computed anew for each; and the last
iterate is the result. The settings `past_queries` and `result` turn these off. Without past queries
a measured query may be selected again, as one step leaves most of its error; its answers are
averaged. Selection is by the exponential mechanism; noise is Gaussian, or Laplace for a pure
budget. The sign of the update is that of Algorithm 1 of Liu et al.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mechanisms.families.histogram import Histogram
from mechanisms.privacy.curator import Curator
from mechanisms.rounds.histogram import (
    HistogramSettings,
    MeasuredCell,
    Update,
    Updates,
    run_histogram,
)
from mechanisms.rounds.loop import Outcome, Progress, mechanism
from mechanisms.rounds.select_and_measure import RoundsRule
from mechanisms.settings import flag, one_of, random_seed, setting, whole_number
from mechanisms.workload import Workload

_RULES = {
    ("queries", True): RoundsRule(2.8),
    ("marginals", True): RoundsRule(0.35),
    # If a round does not repeat the updates of past queries, it moves one answer only a little, so
    # there are twice as many rounds.
    ("queries", False): RoundsRule(5.6),
    ("marginals", False): RoundsRule(0.7),
}


@dataclass(frozen=True)
class Mwem(HistogramSettings):
    """Settings of MWEM; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        rounds: The number of rounds, 1 or more; None for the number that `RoundsRule` derives from
            the number of rows and the budget, or fewer if rounds of single queries find only noise.
        queries: The number of queries of a round, 1 or more; 1 if whole marginals are selected.
        one_way_share: The share of the budget for the one-way marginals, whose product is the
            start, at least 0 and below 1. With 0, as in the paper, the start is uniform and the
            number of rows must be public.
        select_share: The share of each round's budget for selection, above 0 and below 1.
        select: What a round selects: single "queries" (cells of the workload's marginals), or whole
            "marginals" (the marginal trick).
        past_queries: Whether a round updates by the queries of past rounds too.
        passes: The number of passes over the past queries in a round, 1 or more.
        result: What is released: the "last" histogram or the "average" of all.
        device: Where the weights are: "cpu", a CUDA GPU such as "cuda", or "auto": a GPU if there
            is one and there are enough weights to gain (`pgmkit.runtime.devices`).
        seed: The seed of the order of updates; it protects nothing.
    """

    past_queries: bool = setting(True, flag())
    passes: int = setting(5, whole_number())
    result: Literal["last", "average"] = setting("last", one_of("last", "average"))
    seed: int = setting(0, random_seed())

    def updates(self) -> Updates:
        rng = np.random.default_rng(self.seed)
        change = multiplicative_weights(self.past_queries, self.passes, rng)
        rule = _RULES[self.select, self.past_queries]
        return Updates(change, rule, self.result == "average", repeat=not self.past_queries)


@mechanism("mwem", Mwem)
def mwem(
    curator: Curator, workload: Workload, settings: Mwem, *, progress: Progress = None
) -> Outcome:
    """Spend all that remains of the Curator's budget on a histogram for the workload, and return
    its release.

    Raises InvalidInput (before anything is spent) for a workload over another domain, for unequal
    weights if single queries are selected, for rounds that select more queries or marginals than
    the workload has, or for one_way_share = 0 if the number of rows is private; ModelTooLarge for a
    domain, or for marginals together, that are too large to count.
    """
    return run_histogram(curator, workload, settings, progress=progress)


def multiplicative_weights(past_queries: bool, passes: int, rng: np.random.Generator) -> Update:
    """Return the update A(x) <- A(x) exp(q(x) (a - q(A)) / 2) of the histogram A by the answer a to
    query q.

    The returned function takes the histogram, all answers, and how many of the last answers are
    new. It applies the update once to each new answer; or, with `past_queries`, to all answers
    whose error is at least half of the largest error of a new one, in `passes` passes of random
    order, which `rng` draws.

    >>> from mechanisms.queries.cells import Cell
    >>> from mechanisms.families.histogram import FullDomain
    >>> from pgmkit.domain import Domain
    >>> histogram = Histogram(FullDomain(Domain({"a": 2})), np.ones(2))
    >>> update = multiplicative_weights(False, passes=1, rng=np.random.default_rng(0))
    >>> update(histogram, [MeasuredCell(Cell(("a",), 1), 0.9, 0.01)], 1)
    >>> round(histogram.answer(Cell(("a",), 1)), 3)
    0.55
    """

    def update(histogram: Histogram, known: Sequence[MeasuredCell], latest: int) -> None:
        def apply(each: MeasuredCell) -> None:
            histogram.scale(each.cell, math.exp((each.answer - histogram.answer(each.cell)) / 2))

        if not past_queries:
            for each in known[-latest:]:
                apply(each)
            return
        for _ in range(passes):
            answers = histogram.answers(each.cell for each in known)
            errors = [abs(a - each.answer) for a, each in zip(answers, known, strict=True)]
            threshold = max(errors[-latest:]) / 2
            large = [each for each, e in zip(known, errors, strict=True) if e >= threshold]
            for i in rng.permutation(len(large)):
                apply(large[i])

    return update
