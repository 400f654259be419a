"""PEP: private entropy projection on a histogram, and PEP-Pub on public records.

Liu, Vietri and Wu, "Iterative Methods for Private Synthetic Data" (2021), section 4 and Algorithm
4: among all distributions that agree with the noisy answers so far, the one nearest to the start.
The worst violated query is projected on, again and again.

Decided here: answers are put inside (0, 1) on both sides of the projection, which would meet log 0;
the search starts from the last round's histogram, as the authors' code does, not from uniform; a
query measured twice is one constraint of the inverse-variance mean; gamma, the error that is no
violation, is the answer's own noise. A query that no record with a weight satisfies, or that all
do, as happens on public records, cannot be projected on and is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mechanisms.families.histogram import Histogram
from mechanisms.mwem import check_choices
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.rounds.histogram import Fact, HistogramState, run_histogram
from mechanisms.rounds.loop import Round
from mechanisms.rounds.select_and_measure import RoundsRule, check_settings
from mechanisms.workload import Workload, WorkloadLike
from pgmkit.dataset import Dataset

__all__ = ["Pep", "PepPub", "entropy_projection", "pep", "pep_pub"]

_RULES = {"queries": RoundsRule(1.4), "marginals": RoundsRule(0.35)}
_PUBLIC_RULES = {
    "queries": RoundsRule(0.0035, power=2),
    "marginals": RoundsRule(0.0018, power=2),
}
_LEAST = 1e-12


@dataclass(frozen=True)
class Pep:
    """Settings of PEP; none may be chosen by looking at private data.

    `rounds`, `queries`, `one_way_share`, `select_share`, `select` as in `Mwem`; by section 3.1
    alpha = 0.67 selection gets 0.8 of a round's zCDP. `steps`: projections a round at most
    (Tmax). `gamma`: the error that is left alone, in units of the answer's noise.
    """

    rounds: int | None = None
    queries: int = 1
    one_way_share: float = 0.1
    select_share: float = 0.8
    select: Literal["queries", "marginals"] = "queries"
    steps: int = 100
    gamma: float = 0.5

    def __post_init__(self) -> None:
        check_settings(
            self,
            whole=["queries", "steps"],
            positive=["gamma"],
            fractions=["select_share"],
        )
        check_choices(self)


@dataclass(frozen=True)
class PepPub(Pep):
    """Settings of PEP-Pub, as those of `Pep`.

    `one_way_share` is spent only where the number of rows is private, to estimate it. `gamma` is
    larger: public records are nearer to the truth than small noisy differences.
    """

    gamma: float = 2.0


def pep(
    curator: Curator,
    workload: WorkloadLike,
    settings: Pep | None = None,
    *,
    progress: Callable[[Round[HistogramState, Any]], None] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on a histogram for the workload.

    Raises InvalidInput (before anything is spent) for a workload over another domain, ModelTooLarge
    for a domain that is too large.
    """
    settings = settings or Pep()
    workload = Workload.over(curator.domain, workload)
    rule = _RULES[settings.select]
    update = entropy_projection(settings.steps, settings.gamma)
    return run_histogram("pep", curator, workload, settings, rule, update, progress=progress)


def pep_pub(
    curator: Curator,
    workload: WorkloadLike,
    settings: PepPub | None = None,
    *,
    public: Dataset,
    progress: Callable[[Round[HistogramState, Any]], None] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on weights of public records.

    The histogram is over the public records and starts from their distribution. Raises InvalidInput
    (before anything is spent) for a workload or public records over another domain.
    """
    settings = settings or PepPub()
    workload = Workload.over(curator.domain, workload)
    rule = _PUBLIC_RULES[settings.select]
    update = entropy_projection(settings.steps, settings.gamma)
    return run_histogram(
        "pep-pub", curator, workload, settings, rule, update, public=public, progress=progress
    )


def entropy_projection(
    steps: int, gamma: float
) -> Callable[[Histogram, Sequence[Fact], int, np.random.Generator], None]:
    """At most so many projections on the worst violated fact (Algorithm 4).

    The projection on q(D) = a multiplies the satisfying records by a (1 - q(D)) / ((1 - a) q(D)).

    >>> from mechanisms.queries.cells import Cell
    >>> from mechanisms.families.histogram import FullDomain
    >>> from pgmkit.domain import Domain
    >>> histogram = Histogram(FullDomain(Domain({"a": 2})), np.ones(2))
    >>> update = entropy_projection(steps=1, gamma=0.5)
    >>> update(histogram, [Fact(Cell(("a",), 1), 0.9, 0.01)], 1, np.random.default_rng(0))
    >>> round(histogram.answer(Cell(("a",), 1)), 3)
    0.9
    """

    def update(
        histogram: Histogram, known: Sequence[Fact], latest: int, rng: np.random.Generator
    ) -> None:
        for _ in range(steps):
            answers = [histogram.answer(fact.cell) for fact in known]
            violations = [
                abs(fact.answer - now) - gamma * fact.stddev if 0 < now < 1 - _LEAST else 0.0
                for fact, now in zip(known, answers, strict=True)
            ]
            worst = int(np.argmax(violations))
            if violations[worst] <= 0:
                break
            fact, now = known[worst], max(answers[worst], _LEAST)
            odds = math.log(fact.answer) - math.log1p(-fact.answer)
            histogram.scale(fact.cell, math.exp(odds + math.log1p(-now) - math.log(now)))

    return update
