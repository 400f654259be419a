"""PEP: private entropy projection on a histogram, and PEP-Pub on public records.

Liu, Vietri and Wu, "Iterative Methods for Private Synthetic Data" (2021), section 4 and Algorithm
4: among all distributions that agree with the noisy answers so far, the one nearest to the start.
The distribution is projected on the worst violated query, again and again.

What the paper leaves open is decided as follows. The noisy answer and the histogram's answer are
moved inside (0, 1), because the projection takes the logarithm of both. The search starts from the
last round's histogram, as the authors' code does, not from uniform. A query measured twice is one
constraint with the mean by inverse variance.

gamma, the error that counts as no violation, is a multiple of the answer's own noise. A query that
no record with a weight satisfies, or that all do, as happens on public records, cannot be projected
on and is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
from mechanisms.settings import fraction, positive, setting, whole_number
from mechanisms.workload import Workload
from pgmkit.records.dataset import Dataset

_RULES = {"queries": RoundsRule(1.4), "marginals": RoundsRule(0.35)}


@dataclass(frozen=True)
class Pep(HistogramSettings):
    """Settings of PEP; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        rounds: The number of rounds, 1 or more; None for the number that `RoundsRule` derives from
            the number of rows and the budget, or fewer if rounds of single queries find only noise.
        queries: The number of queries of a round, 1 or more; 1 if whole marginals are selected.
        one_way_share: The share of the budget for the one-way marginals, whose product is the
            start, at least 0 and below 1. With 0 the start is uniform and the number of rows must
            be public.
        select_share: The share of each round's budget for selection, above 0 and below 1. The
            default is that of section 3.1 at its alpha of 0.67.
        select: What a round selects: single "queries" (cells of the workload's marginals), or whole
            "marginals" (the marginal trick).
        steps: The most projections of a round (Tmax in the paper), 1 or more.
        gamma: The error that counts as no violation, in standard deviations of the answer's own
            noise, above 0.
        device: Where the weights are: "cpu", a CUDA GPU such as "cuda", or "auto": a GPU if there
            is one and there are enough weights to gain (`pgmkit.runtime.devices`).
    """

    select_share: float = setting(0.8, fraction())
    steps: int = setting(100, whole_number())
    gamma: float = setting(0.5, positive())

    def updates(self) -> Updates:
        return Updates(entropy_projection(self.steps, self.gamma), _RULES[self.select])


@dataclass(frozen=True)
class PepPub(Pep):
    """Settings of PEP-Pub: those of `Pep`, with another default for one.

    The one-way marginals are measured only if the number of rows is private, to estimate it.

    Attributes:
        gamma: The error that counts as no violation, in standard deviations of the answer's own
            noise, above 0. It is larger than in `Pep`: public records are nearer to the truth than
            small noisy differences.
    """

    gamma: float = setting(2.0, positive())


@mechanism("pep", Pep)
def pep(
    curator: Curator, workload: Workload, settings: Pep, *, progress: Progress = None
) -> Outcome:
    """Spend all that remains of the Curator's budget on a histogram for the workload, and return
    its release.

    Raises InvalidInput (before anything is spent) for a workload over another domain, for unequal
    weights if single queries are selected, for rounds that select more queries or marginals than
    the workload has, or for one_way_share = 0 if the number of rows is private; ModelTooLarge for a
    domain, or for marginals together, that are too large to count.
    """
    return run_histogram(curator, workload, settings, progress=progress)


@mechanism("pep-pub", PepPub)
def pep_pub(
    curator: Curator,
    workload: Workload,
    settings: PepPub,
    *,
    public: Dataset,
    progress: Progress = None,
) -> Outcome:
    """Spend all that remains of the Curator's budget on weights of public records, and return the
    release of this histogram.

    The histogram is over the public records and starts from their distribution. Raises
    InvalidInput, before anything is spent, for a workload or public records over another domain,
    for unequal weights if single queries are selected, for more queries than there are, or for
    one_way_share = 0 if the number of rows is private; ModelTooLarge for marginals that are too
    large to count together.
    """
    return run_histogram(curator, workload, settings, public=public, progress=progress)


def entropy_projection(steps: int, gamma: float) -> Update:
    """Return the update, which takes at most ``steps`` projections, each on the answer that is
    violated most (Algorithm 4). An answer is violated if the histogram's differs from it by more
    than ``gamma`` standard deviations of its noise, unless the histogram's is 0 or nearly 1, where
    no projection is possible. The update changes the histogram in place.

    The projection of the histogram D on q(D) = a multiplies the weights of the records that satisfy
    q by a (1 - q(D)) / ((1 - a) q(D)).

    >>> from mechanisms.queries.cells import Cell
    >>> from mechanisms.families.histogram import FullDomain
    >>> from pgmkit.domain import Domain
    >>> histogram = Histogram(FullDomain(Domain({"a": 2})), np.ones(2))
    >>> update = entropy_projection(steps=1, gamma=0.5)
    >>> update(histogram, [MeasuredCell(Cell(("a",), 1), 0.9, 0.01)], 1)
    >>> round(histogram.answer(Cell(("a",), 1)), 3)
    0.9
    """

    least = 1e-12  # shares are kept this far from 0 and 1, where log odds are infinite

    def update(histogram: Histogram, known: Sequence[MeasuredCell], latest: int) -> None:
        for _ in range(steps):
            answers = histogram.answers(each.cell for each in known)
            violations = [
                abs(each.answer - now) - gamma * each.stddev if 0 < now < 1 - least else 0.0
                for each, now in zip(known, answers, strict=True)
            ]
            worst = int(np.argmax(violations))
            if violations[worst] <= 0:
                break
            violated, now = known[worst], max(answers[worst], least)
            odds = math.log(violated.answer) - math.log1p(-violated.answer)
            histogram.scale(violated.cell, math.exp(odds + math.log1p(-now) - math.log(now)))

    return update
