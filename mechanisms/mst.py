"""MST: the maximum spanning tree of the pairs, measured once.

McKenna, Miklau and Sheldon, "Winning the NIST contest" (2021): one-way marginals, then a tree of
pairs that the independent model answers worst, drawn edge by edge with the exponential mechanism
(Kruskal's algorithm), then these pairs. The measured cliques are decomposable, so the estimate is
in closed form.

The paper gives each of the three steps a third of the budget. Here drawing the tree gets a tenth,
which finds nearly the same one, and the rest is divided between the one-way marginals and the pairs
by public figures. With d columns of n codes on average, a one-way marginal's noise enters d - 1
pairs, a measured pair's only its own, but on n times as many cells; the error of all pairs grows
with

    d^(3/2) n / sqrt(share of the one-way marginals) + d^(1/2) n^2 / sqrt(share of the pairs),

which is least where the ratio of the shares is (d / n)^(2/3). On 27 problems (the nine tables that
`benchmarks/regret.py` lists under "choosing", three budgets) the error of all pairs is on average
6% lower than with thirds; the largest fall is 19%, and the largest rise 0.4%.

If the workload asks queries other than cells, errors are those of the queries, and every clique is
measured by the rows of least error for them (`mechanisms.strategies.clique_queries`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mechanisms.families.graphical import estimator
from mechanisms.privacy.curator import Curator
from mechanisms.rounds.drawn import draw_forest
from mechanisms.rounds.loop import Outcome, mechanism
from mechanisms.rounds.select_and_measure import measure_one_way
from mechanisms.settings import Settings, fraction, leave_something, setting, torch_device
from mechanisms.strategies.clique_queries import CliqueQueries
from mechanisms.workload import Workload, pairs_of, varied
from pgmkit import Domain, Measurement
from pgmkit.records.counting import check_memory


@dataclass(frozen=True)
class Mst(Settings):
    """Settings of MST; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below, or shares that leave nothing for pairs.

    Attributes:
        one_way_share: The share of the budget for the one-way marginals, above 0 and below 1; None
            for the rule in the module's docstring.
        select_share: The share of the budget for drawing the tree, above 0 and below 1. The rest of
            the budget measures the tree's pairs.
        device: Where models are estimated: "cpu", a CUDA GPU such as "cuda", or "auto": a GPU if
            there is one and the model is large enough to gain (`pgmkit.runtime.devices`).
    """

    one_way_share: float | None = setting(None, fraction())
    select_share: float = setting(0.1, fraction())
    device: str = setting("cpu", torch_device())

    def conflict(self) -> str | None:
        """Return a message if the shares leave nothing to measure the pairs with, else None."""
        if self.one_way_share is None:
            return None
        return leave_something("the pairs", self, "one_way_share", "select_share")

    def one_way(self, domain: Domain) -> float:
        """Return the share of the budget for the one-way marginals, if there are pairs to measure:
        `one_way_share` or, if that is None, the share by the rule in the module's docstring.

        >>> Mst().one_way(Domain({f"x{i}": 8 for i in range(8)}))
        0.45
        """
        if self.one_way_share is not None:
            return self.one_way_share
        names = varied(domain)
        codes = sum(domain.sizes[name] for name in names) / len(names)
        ratio = (len(names) / codes) ** (2 / 3)
        return (1 - self.select_share) * ratio / (1 + ratio)


@mechanism("mst", Mst)
def mst(
    curator: Curator, workload: Workload, settings: Mst, *, first: Sequence[Measurement] = ()
) -> Outcome:
    """Spend all that remains of the Curator's budget on a tree of pairs, and return the release of
    a graphical model.

    Edges are pairs of attributes that some workload clique holds together; the result is a spanning
    tree of them, or a forest. `first`: measurements made before, which the model uses too; one-way
    marginals are measured again with their share of what remains. Raises, before anything is
    spent, InvalidInput for a workload over another domain, and ModelTooLarge for pairs whose tables
    are too large to count.
    """
    domain = curator.domain
    pairs = pairs_of(domain, workload.cliques)
    check_memory(pairs, domain.sizes)  # before the first charge
    whole = curator.remaining
    # Without pairs everything goes to the one-way marginals.
    one_way = settings.one_way(domain) if pairs else 1.0
    update = estimator(domain, curator.public_total, device=settings.device)

    queries = CliqueQueries(workload, pure=curator.ledger.budget.pure)
    again, _ = measure_one_way(curator, one_way, queries)
    independent = update(None, [*first, *again])
    cost = settings.select_share * whole
    tree = draw_forest(curator, independent, pairs, cost, queries.of(pairs))
    rest = curator.remaining / len(tree) if tree else 0.0
    second = [queries.measure(curator, pair, rest, step="tree: measure") for pair in tree]
    measurements = (*first, *again, *second)
    return update(independent, measurements), measurements
