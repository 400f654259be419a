"""PMW-Pub: multiplicative weights on the distinct records of public data.

Liu et al., "Leveraging public data for practical private query release" (2021), Algorithm 1: the
histogram is over the public records and starts from their distribution. Of several public data
sets one is chosen privately first. Selection is the exponential mechanism: what the authors' code
calls permute-and-flip is that too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mechanisms.mwem import check_choices, multiplicative_weights
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.rounds.histogram import HistogramState, check_public, run_histogram
from mechanisms.rounds.loop import Round
from mechanisms.rounds.select_and_measure import RoundsRule, check_queries, check_settings
from mechanisms.workload import Workload, WorkloadLike
from pgmkit.dataset import Dataset
from pgmkit.errors import InvalidInput

__all__ = ["PmwPub", "pmw_pub"]

_RULES = {
    "queries": RoundsRule(0.0035, power=2),
    "marginals": RoundsRule(0.0018, power=2),
}


@dataclass(frozen=True)
class PmwPub:
    """Settings of PMW-Pub; none may be chosen by looking at private data.

    As `Mwem`; `one_way_share` is spent only where the number of rows is private, to estimate it.
    `choose_share`: of the budget, for the choice among several public data sets.
    """

    rounds: int | None = None
    queries: int = 1
    one_way_share: float = 0.02
    select_share: float = 0.65
    select: Literal["queries", "marginals"] = "queries"
    past_queries: bool = True
    passes: int = 20
    result: Literal["last", "average"] = "last"
    choose_share: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(
            self,
            whole=["queries", "passes"],
            positive=["choose_share"],
            fractions=["select_share", "choose_share"],
        )
        check_choices(self)


def pmw_pub(
    curator: Curator,
    workload: WorkloadLike,
    settings: PmwPub | None = None,
    *,
    public: Dataset | Sequence[Dataset],
    progress: Callable[[Round[HistogramState, Any]], None] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on weights of public records.

    `public`: records over the private domain, or several such data sets. Raises InvalidInput,
    before anything is spent, for a workload or public records over another domain.
    """
    settings = settings or PmwPub()
    workload = Workload.over(curator.domain, workload)
    known = [public] if isinstance(public, Dataset) else list(public)
    if not known:
        raise InvalidInput("public is empty; give at least one data set")
    check_queries(curator, workload, settings)
    for each in known:
        check_public(curator.domain, each)
    chosen = known[0] if len(known) == 1 else _choose(curator, workload, known, settings)
    return run_histogram(
        "pmw-pub",
        curator,
        workload,
        settings,
        _RULES[settings.select],
        multiplicative_weights(settings.past_queries, settings.passes),
        public=chosen,
        average=settings.result == "average",
        repeat=not settings.past_queries,
        seed=settings.seed,
        progress=progress,
    )


def _choose(
    curator: Curator, workload: Workload, known: Sequence[Dataset], settings: PmwPub
) -> Dataset:
    """The data set whose marginals are nearest to the private ones, noisily."""
    shares = []
    for public in known:
        counts = public.marginals(workload.cliques)
        shares.append({clique: table / len(public) for clique, table in counts.items()})
    cost = settings.choose_share * curator.remaining
    return known[curator.choose_public(shares, cost, step="public: select")]
