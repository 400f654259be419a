"""PMW-Pub: multiplicative weights on the distinct records of public data.

Liu et al., "Leveraging public data for practical private query release" (2021), Algorithm 1: the
histogram is over the public records and starts from their distribution. If there are several public
data sets, one is chosen privately first. Selection is the exponential mechanism: what the authors'
code calls permute-and-flip is that too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mechanisms.mwem import multiplicative_weights
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.rounds.histogram import HistogramState, check_public, run_histogram
from mechanisms.rounds.loop import Round
from mechanisms.rounds.select_and_measure import (
    SELECTIONS,
    RoundsRule,
    SelectionSettings,
    check_queries,
)
from mechanisms.settings import (
    flag,
    fraction,
    one_of,
    or_none,
    random_seed,
    setting,
    torch_device,
    whole_number,
)
from mechanisms.workload import Workload, WorkloadLike
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset

__all__ = ["PmwPub", "pmw_pub"]

_RULES = {
    "queries": RoundsRule(0.0035, power=2),
    "marginals": RoundsRule(0.0018, power=2),
}


@dataclass(frozen=True)
class PmwPub(SelectionSettings):
    """Settings of PMW-Pub; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        rounds: The number of rounds, 1 or more; None for a rule from the number of rows and the
            budget (`RoundsRule`).
        queries: The number of queries of a round, 1 or more; 1 if whole marginals are selected.
        one_way_share: The share of the budget for the one-way marginals, at least 0 and below 1. It
            is spent only if the number of rows is private, to estimate it.
        select_share: The share of each round's budget for selection, above 0 and below 1.
        select: What a round selects: single "queries" (cells of the workload's marginals), or whole
            "marginals" (the marginal trick).
        past_queries: Whether a round updates by the queries of past rounds too.
        passes: The number of passes over these queries in a round, 1 or more.
        result: What is released: the "last" histogram or the "average" of all.
        choose_share: The share of the budget for the choice among several public data sets, above 0
            and below 1; nothing is spent on a single one.
        device: Where the weights are: "cpu", a CUDA GPU such as "cuda", or "auto": a GPU if there
            is one and there are enough weights to gain (`pgmkit.runtime.devices`).
        seed: The seed of the order of updates; it protects nothing.
    """

    rounds: int | None = setting(None, or_none(whole_number()))
    queries: int = setting(1, whole_number())
    one_way_share: float = setting(0.02, fraction(zero=True))
    select_share: float = setting(0.65, fraction())
    select: Literal["queries", "marginals"] = setting("queries", one_of(*SELECTIONS))
    past_queries: bool = setting(True, flag())
    passes: int = setting(20, whole_number())
    result: Literal["last", "average"] = setting("last", one_of("last", "average"))
    choose_share: float = setting(0.05, fraction())
    device: str = setting("cpu", torch_device())
    seed: int = setting(0, random_seed())


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
    """Return the data set whose marginals are nearest to the private ones, selected with noise."""
    shares = []
    for public in known:
        counts = public.marginals(workload.cliques)
        shares.append({clique: table / len(public) for clique, table in counts.items()})
    cost = settings.choose_share * curator.remaining
    return known[curator.choose_public(shares, cost, step="public: select")]
