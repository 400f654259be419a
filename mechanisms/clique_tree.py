"""Clique tree: the largest affordable model, grown once from noisy errors and measured at once.

The one-way marginals give an independent model; the L1 errors of all pairs under it are released
with noise, together and cheaply. A junction tree grows by the pairs of largest error first, while
it stays within its size limit. Then these pairs are measured, with the larger subsets of the
workload's cliques that lie in the tree and whose noise is small beside the total, and one model is
estimated. Nothing is selected after the tree, so the slow estimate of a large model runs once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from mechanisms.families.graphical import check_fits_workload, estimator, model_megabytes
from mechanisms.privacy.curator import Curator
from mechanisms.rounds.loop import Outcome, mechanism
from mechanisms.rounds.select_and_measure import measure_one_way, spend
from mechanisms.settings import Settings, fraction, leave_something, positive, setting, torch_device
from mechanisms.strategies.clique_queries import CliqueQueries
from mechanisms.workload import Workload, downward_closure
from pgmkit.domain import Clique, Domain
from pgmkit.graphs.junction_tree import junction_tree
from pgmkit.records.counting import check_memory


@dataclass(frozen=True)
class CliqueTree(Settings):
    """Settings of the clique tree; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below, or shares that leave nothing for the
    tree.

    Attributes:
        model_mb: The largest junction tree, in MB (2^20 bytes) of float64 cells, above 0. A larger
            model is not always better: each further pair takes budget from the others.
        one_way_share: The share of the budget for the one-way marginals, above 0 and below 1.
        select_share: The share of the budget for the errors of the pairs, by which the tree is
            grown, above 0 and below 1.
        noise_left: The share of a table's noise that is expected to remain in an estimate, above 0.
            The default is about that of tables whose cells are mostly empty.
        most_noise: The largest L1 noise, as a share of the total, that may be expected to remain in
            a table of more than two attributes for it to be measured, above 0. It is small because
            most of the information in such a table is in its pairs.
        device: Where models are estimated: "cpu", a CUDA GPU such as "cuda", or "auto": a GPU if
            there is one and the model is large enough to gain (`pgmkit.runtime.devices`).
    """

    model_mb: float = setting(4.0, positive())
    one_way_share: float = setting(0.1, fraction())
    select_share: float = setting(0.1, fraction())
    noise_left: float = setting(0.25, positive())
    most_noise: float = setting(0.05, positive())
    device: str = setting("cpu", torch_device())

    def conflict(self) -> str | None:
        """Return a message if the shares leave nothing to measure the tree with, else None."""
        return leave_something("the tree", self, "one_way_share", "select_share")


@mechanism("clique-tree", CliqueTree)
def clique_tree(curator: Curator, workload: Workload, settings: CliqueTree) -> Outcome:
    """Spend all that remains of the Curator's budget: on one-way marginals, on noisy errors of the
    workload's pairs, which choose a tree, and on the pairs and larger subsets in it. Return the
    release of a graphical model. Pairs that alone exceed the model limit are left out.

    Raises, before anything is spent, InvalidInput for a workload over another domain, for one that
    asks for the total alone, and for a model limit that no workload clique fits or that is above
    what estimation accepts, and ModelTooLarge for pairs whose tables are too large to count.
    """
    domain, whole, limit = curator.domain, curator.remaining, settings.model_mb
    check_fits_workload(domain, workload, limit)
    closure = downward_closure(workload)
    pairs = [c for c in closure if len(c) == 2 and model_megabytes(domain, [c]) <= limit]
    check_memory(pairs, domain.sizes)  # before the first charge
    # Without pairs that fit, everything goes to the one-way marginals.
    one_way = settings.one_way_share if pairs else 1.0
    update = estimator(domain, curator.public_total, device=settings.device)
    queries = CliqueQueries(workload, pure=curator.ledger.budget.pure)
    measurements, _ = measure_one_way(curator, one_way, queries)
    model = update(None, measurements)
    if pairs:
        cost = settings.select_share * whole
        errors = curator.measure_errors(pairs, model.marginals(pairs), cost, step="errors of pairs")
        # The gain of a pair is its error, minus the part of the noise that is expected to remain
        # (`noise_left`) if what is left of the budget is shared evenly.
        noise = settings.noise_left * curator.expected_error(curator.remaining / len(pairs))
        gains = (errors - noise * np.array([domain.size(pair) for pair in pairs])).tolist()
        edges = grown_tree(domain, dict(zip(pairs, gains, strict=True)), limit)
        noise = settings.noise_left * curator.expected_error(curator.remaining / len(closure))
        cliques = supported(domain, closure, edges, settings.most_noise * model.total / noise)
        # If a table of m cells is measured at cost c, its L1 noise is proportional to m / sqrt(c),
        # or to m / c for a pure budget. The sum of the expected L1 errors of all tables, or of
        # their queries, is least with costs in proportion to m^(2/3), or to m^(1/2).
        power = 1 / 2 if curator.ledger.budget.pure else 2 / 3
        shares = {clique: queries.noise(clique) ** power for clique in cliques}
        measurements += spend(
            curator, shares, partial(queries.measure, curator, step="tree: measure")
        )
        model = update(None, measurements)
    return model, measurements


def grown_tree(domain: Domain, gains: Mapping[Clique, float], limit_mb: float) -> list[Clique]:
    """Return the pairs that are chosen greedily, the largest gain first: each pair of positive gain
    that keeps the junction tree within `limit_mb`.

    If no pair of positive gain fits, the pair of largest gain that fits is returned alone, if any.
    """
    edges: list[Clique] = []
    for pair in sorted(gains, key=gains.__getitem__, reverse=True):
        if (gains[pair] > 0 or not edges) and model_megabytes(domain, [*edges, pair]) <= limit_mb:
            edges.append(pair)
    return edges


def supported(
    domain: Domain, closure: Sequence[Clique], edges: Sequence[Clique], most_cells: float
) -> list[Clique]:
    """Return the cliques of two or more attributes in `closure` that lie in the junction tree of
    `edges` and all of whose pairs are edges. A clique of more than two attributes may have at most
    `most_cells` cells.
    """
    tree, chosen = junction_tree(domain, edges), {frozenset(edge) for edge in edges}
    return [
        clique
        for clique in closure
        if len(clique) > 1
        and (len(clique) == 2 or domain.size(clique) <= most_cells)
        and tree.holds(clique) is not None
        and all(frozenset(pair) in chosen for pair in combinations(clique, 2))
    ]
