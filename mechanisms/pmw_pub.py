"""PMW-Pub: multiplicative weights on the distinct records of public data.

Liu et al., "Leveraging public data for practical private query release" (2021), Algorithm 1: the
histogram is over the public records and starts from their distribution. If there are several public
data sets, one is chosen privately first. Selection is by the exponential mechanism, which is also
what the authors' code does under the name permute-and-flip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mechanisms.mwem import Mwem
from mechanisms.privacy.curator import Curator
from mechanisms.rounds.histogram import check_public, run_histogram
from mechanisms.rounds.loop import Outcome, Progress, mechanism
from mechanisms.rounds.select_and_measure import check_queries
from mechanisms.settings import fraction, setting, whole_number
from mechanisms.workload import Workload
from pgmkit import Dataset, InvalidInput


@dataclass(frozen=True)
class PmwPub(Mwem):
    """Settings of PMW-Pub: those of `Mwem` with other defaults for three, and one more.

    Attributes:
        one_way_share: The share of the budget for the one-way marginals, at least 0 and below 1. It
            is spent only if the number of rows is private, to estimate it.
        select_share: The share of each round's budget for selection, above 0 and below 1.
        passes: The number of passes over the past queries in a round, 1 or more.
        choose_share: The share of the budget for the choice among several public data sets, above 0
            and below 1; nothing is spent on a single one.
    """

    one_way_share: float = setting(0.02, fraction(zero=True))
    select_share: float = setting(0.65, fraction())
    passes: int = setting(20, whole_number())
    choose_share: float = setting(0.05, fraction())


@mechanism("pmw-pub", PmwPub)
def pmw_pub(
    curator: Curator,
    workload: Workload,
    settings: PmwPub,
    *,
    public: Dataset | Sequence[Dataset],
    progress: Progress = None,
) -> Outcome:
    """Spend all that remains of the Curator's budget on weights of public records, and return the
    release of this histogram.

    `public`: records over the private domain, or several such data sets. Raises InvalidInput,
    before anything is spent, for no public data set, for a workload or public records over another
    domain, for unequal weights if single queries are selected, for rounds that select more queries
    or marginals than the workload has, or for one_way_share = 0 if the number of rows is private;
    ModelTooLarge for marginals that are too large to count together.
    """
    known = [public] if isinstance(public, Dataset) else list(public)
    if not known:
        raise InvalidInput("public is empty; give at least one data set")
    check_queries(curator, workload, settings)
    for each in known:
        check_public(curator.domain, each)
    chosen = known[0] if len(known) == 1 else _choose(curator, workload, known, settings)
    return run_histogram(curator, workload, settings, public=chosen, progress=progress)


def _choose(
    curator: Curator, workload: Workload, known: Sequence[Dataset], settings: PmwPub
) -> Dataset:
    """Return the public data set of `known` whose marginals are nearest to the private ones,
    selected with noise.
    """
    shares = []
    for public in known:
        counts = public.marginals(workload.cliques)
        shares.append({clique: table / len(public) for clique, table in counts.items()})
    cost = settings.choose_share * curator.remaining
    return known[curator.choose_public(shares, cost, step="public: select")]
