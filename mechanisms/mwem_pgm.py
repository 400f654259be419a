"""MWEM+PGM: the multiplicative-weights exponential mechanism with a graphical model inside.

McKenna, Sheldon and Miklau, "Graphical-model based estimation and inference for differential
privacy" (2019), section 5: in each round a marginal that the model answers badly is selected and
measured, and the model is estimated anew from all measurements. Before the rounds the one-way
marginal of every attribute with more than one value is measured; candidates are limited to those
that keep the model small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mechanisms.families.graphical import Affordable, check_fits_workload, estimator
from mechanisms.privacy.curator import Curator
from mechanisms.rounds.loop import Outcome, Progress, Round, adapt, mechanism
from mechanisms.rounds.select_and_measure import measure_one_way
from mechanisms.settings import Settings, fraction, positive, setting, torch_device, whole_number
from mechanisms.strategies.clique_queries import CliqueQueries
from mechanisms.workload import Workload
from pgmkit import GraphicalModel, Measurement
from pgmkit.domain import Clique


@dataclass(frozen=True)
class MwemPgm(Settings):
    """Settings of MWEM+PGM; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        rounds: The number of rounds, 1 or more; None for the number of attributes.
        one_way_share: The share of the budget for the one-way marginals, above 0 and below 1.
        select_share: The share of each round's budget for selection, above 0 and below 1.
        model_mb: The largest model, in MB (2^20 bytes) of float64 cells of its junction tree, above
            0; round t of T may use t/T of it.
        device: Where models are estimated: "cpu", a CUDA GPU such as "cuda", or "auto": a GPU if
            there is one and the model is large enough to gain (`pgmkit.runtime.devices`).
    """

    rounds: int | None = setting(None, whole_number())
    one_way_share: float = setting(0.2, fraction())
    select_share: float = setting(0.1, fraction())
    model_mb: float = setting(25.0, positive())
    device: str = setting("cpu", torch_device())


@mechanism("mwem+pgm", MwemPgm)
def mwem_pgm(
    curator: Curator, workload: Workload, settings: MwemPgm, *, progress: Progress = None
) -> Outcome:
    """Spend all that remains of the Curator's budget on a graphical model for the workload, and
    return its release.

    `progress` is called with each finished Round. Raises, before anything is spent, InvalidInput
    for a workload over another domain, for one that asks for the total alone, and for a model limit
    that no workload clique fits or that is above what estimation accepts, and ModelTooLarge for
    candidates of the first round that are too large to count together.
    """
    domain = curator.domain
    rounds = settings.rounds or len(domain)
    check_fits_workload(domain, workload, settings.model_mb)
    per_round = (1 - settings.one_way_share) * curator.remaining / rounds
    select_cost = settings.select_share * per_round
    measure_cost = per_round - select_cost
    noise = curator.expected_error(measure_cost)
    queries = CliqueQueries(workload, pure=curator.ledger.budget.pure)
    weights = workload.by_clique
    affordable = Affordable(domain, [clique for clique in workload.cliques if clique])
    affordable.check_countable(settings.model_mb / rounds, settings.model_mb)
    picked: list[Clique] = []

    def select(
        model: GraphicalModel, _last: Round[GraphicalModel, Clique] | None
    ) -> list[Clique] | None:
        if len(picked) == rounds:
            return None
        limit = settings.model_mb * (len(picked) + 1) / rounds
        candidates, fits = affordable.within(picked, limit, settings.model_mb)
        chosen = curator.choose(
            candidates,
            model.each_marginal(candidates),
            select_cost,
            # Measuring c replaces its error by noise of this expected size.
            penalties=[noise * queries.noise(c) for c in candidates],
            weights=[weights[c] for c in candidates],
            allowed=fits,
            queries=queries.of(candidates),
            step=f"round {len(picked) + 1}: select",
        )
        return [chosen]

    def measure(chosen: Sequence[Clique]) -> list[Measurement]:
        (clique,) = chosen
        picked.append(clique)
        step = f"round {len(picked)}: measure"
        return [queries.measure(curator, clique, measure_cost, step=step)]

    first, _ = measure_one_way(curator, settings.one_way_share, queries)
    update = estimator(domain, curator.public_total, device=settings.device)
    return adapt(
        update(None, first), first, select=select, measure=measure, update=update, progress=progress
    )
