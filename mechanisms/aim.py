"""AIM: an adaptive and iterative mechanism with a graphical model inside.

McKenna, Mullins, Sheldon and Miklau, "AIM: an adaptive and iterative mechanism for differentially
private synthetic data" (2022), Algorithm 2. Candidates are all subsets of the workload's cliques.
The score of a candidate is its weight in the workload times its error beyond the noise that
measuring it would add. If the workload asks queries other than cells, error and noise are those of
the queries, and cliques are measured by the rows of least error for the queries
(`mechanisms.strategies.clique_queries`) where the paper measures cells. The budget of a round grows
fourfold when a measurement changed the model by no more than its noise would, and the last round
spends all that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mechanisms.families.graphical import Affordable, check_fits_workload, estimator
from mechanisms.privacy.curator import Curator
from mechanisms.rounds.loop import Outcome, Progress, Round, adapt, mechanism
from mechanisms.settings import Settings, fraction, positive, setting, torch_device
from mechanisms.strategies.clique_queries import CliqueQueries
from mechanisms.workload import Workload, downward_closure
from pgmkit import GraphicalModel, Measurement, Zeros
from pgmkit.domain import Clique


@dataclass(frozen=True)
class Aim(Settings):
    """Settings of AIM; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        model_mb: The largest model, in MB (2^20 bytes) of float64 cells of its junction tree, above
            0. A round may use a share of it that equals the share of the budget spent by its end.
            If measurements made before need a larger model, it is not made larger still.
        select_share: The share of each round's budget for selection, above 0 and below 1; the paper
            has a tenth.
        tolerance: The tolerance of the estimates between rounds, in units of the noise as in
            `pgmkit.estimate`, above 0. The last estimate uses the default of `pgmkit.estimate`.
        device: Where models are estimated: "cpu", a CUDA GPU such as "cuda", or "auto": a GPU if
            there is one and the model is large enough to gain (`pgmkit.runtime.devices`).
    """

    model_mb: float = setting(80.0, positive())
    select_share: float = setting(0.1, fraction())
    tolerance: float = setting(1.0, positive())
    device: str = setting("cpu", torch_device())


@mechanism("aim", Aim)
def aim(
    curator: Curator,
    workload: Workload,
    settings: Aim,
    *,
    first: Sequence[Measurement] = (),
    zeros: Sequence[Zeros] = (),
    progress: Progress = None,
) -> Outcome:
    """Spend all that remains of the Curator's budget on a model for the workload, and return its
    release.

    `first`: measurements made before, which the model uses too; each attribute of the workload that
    is in none of them is measured by itself at the start. `zeros`: combinations to which the
    released model gives probability zero; the models between rounds do not use them. `progress` is
    called with each finished Round.

    Raises, before anything is spent, InvalidInput for a workload over another domain, for one that
    asks for the total alone, and for a model limit that no workload clique fits or that is above
    what estimation accepts, and ModelTooLarge for candidates of the first round that are too large
    to count together.
    """
    domain = curator.domain
    check_fits_workload(domain, workload, settings.model_mb)
    candidates = downward_closure(workload)
    weights = relevance(workload, candidates)
    queries = CliqueQueries(workload, pure=curator.ledger.budget.pure)
    affordable = Affordable(domain, candidates, curator.placed)
    whole = curator.remaining
    # The paper plans T = 16 d rounds for d attributes; annealing ends most runs sooner.
    per_round, measuring = whole / (16 * len(domain)), 1 - settings.select_share
    measured = [each.clique for each in first]

    def measure(picked: Sequence[Clique]) -> list[Measurement]:
        (clique,) = picked
        measured.append(curator.placed(clique))
        cost = measuring * per_round
        # The last round also takes what rounding left of the budget.
        cost = curator.remaining if curator.remaining < 2 * cost else cost
        return [queries.measure(curator, clique, cost, step=f"measure {len(measured)}")]

    def select(
        model: GraphicalModel, last: Round[GraphicalModel, Clique] | None
    ) -> list[Clique] | None:
        nonlocal per_round
        if last is not None:
            noise = curator.expected_error(measuring * per_round)
            if moved_within_noise(last, queries, noise):
                per_round *= 4  # annealing: under zCDP half the noise, twice the epsilon
        if curator.remaining <= 0:
            return None
        if curator.remaining < 2 * per_round:
            per_round = curator.remaining
        limit = settings.model_mb * (1 - curator.remaining / whole + per_round / whole)
        possible, fits = affordable.within(measured, limit, settings.model_mb)
        noise = curator.expected_error(measuring * per_round)
        picked = curator.choose(
            possible,
            model.each_marginal(possible),
            settings.select_share * per_round,
            penalties=[noise * queries.noise(clique) for clique in possible],
            weights=[weights[clique] for clique in possible],
            allowed=fits,
            queries=queries.of(possible),
            step=f"select {len(measured) + 1}",
        )
        return [picked]

    known = {name for each in first for name in each.clique}
    alone = [clique for clique in candidates if len(clique) == 1 and not known.issuperset(clique)]
    begun = (measuring * len(alone) + 1) * per_round / whole  # share spent by the first round's end
    affordable.check_countable(begun * settings.model_mb, settings.model_mb)
    first = [*first, *(each for clique in alone for each in measure([clique]))]
    rough = estimator(domain, curator.public_total, settings.tolerance, device=settings.device)
    model, measurements = adapt(
        rough(None, first), first, select=select, measure=measure, update=rough, progress=progress
    )
    final = estimator(domain, curator.public_total, device=settings.device, zeros=zeros)
    if zeros:
        # A start from a model without the zeros leads to poorer fits than no start.
        return final(None, measurements), measurements
    return final_fit(final, model, measurements, plain=workload.plain), measurements


def final_fit(
    fit: Callable[[GraphicalModel | None, Sequence[Measurement]], GraphicalModel],
    start: GraphicalModel,
    measurements: Sequence[Measurement],
    *,
    plain: bool,
) -> GraphicalModel:
    """Return a model that is fitted from `start`, the last model of the rounds. If it fits poorly
    or, with dense query rows (not `plain`), is not certified, return the better of it and of a
    model that is fitted from the uniform one: the first steps from `start` may be too long if many
    cells are empty or query rows are dense.
    """
    found = fit(start, measurements)
    if found.poor_fit or not (found.certified or plain):
        found = min(found, fit(None, measurements), key=lambda each: (each.poor_fit, each.loss))
    return found


def relevance(workload: Workload, candidates: tuple[Clique, ...]) -> dict[Clique, float]:
    """Return the weight of each candidate r: the sum of c_s |r and s| over the workload's cliques
    s, where c_s is the weight of s and |r and s| the number of attributes in both.

    >>> from pgmkit.domain import Domain
    >>> pairs = Workload(Domain({"a": 2, "b": 2, "c": 2}), [("a", "b"), ("b", "c")])
    >>> relevance(pairs, (("a",), ("b",), ("a", "b")))
    {('a',): 1.0, ('b',): 2.0, ('a', 'b'): 3.0}
    """
    # w_r = sum over a in r of sum over s that hold a of c_s.
    attribute_weights = dict.fromkeys(workload.domain, 0.0)
    for clique, weight in workload.by_clique.items():
        for name in clique:
            attribute_weights[name] += weight
    return {
        candidate: sum(attribute_weights[name] for name in candidate) for candidate in candidates
    }


def moved_within_noise(
    last: Round[GraphicalModel, Clique], queries: CliqueQueries, noise: float
) -> bool:
    """Return True if the last round changed the model's marginal by no more than the noise of its
    measurement (the paper's annealing rule).

    `noise`: the expected absolute noise of one cell of the round's measurement, in counts.
    """
    (clique,) = last.picked
    change = last.after.marginal(clique) - last.before.marginal(clique)
    return queries.distance(clique, change) <= noise * queries.noise(clique)
