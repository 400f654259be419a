"""MWEM+PGM: the multiplicative-weights exponential mechanism with a graphical model inside.

McKenna, Sheldon and Miklau, "Graphical-model based estimation and inference for differential
privacy" (2019), section 5: in each round a marginal that the model answers badly is selected and
measured, and the model is estimated anew from all measurements. Before the rounds every one-way
marginal is measured; candidates are limited to those that keep the model small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechanisms.families.graphical import affordable, check_fits_workload, estimator
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.rounds.loop import Round, adapt
from mechanisms.workload import Workload, WorkloadLike
from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput
from pgmkit.measurement import Measurement

if TYPE_CHECKING:
    from pgmkit.model import GraphicalModel

__all__ = ["MwemPgm", "mwem_pgm"]


@dataclass(frozen=True)
class MwemPgm:
    """Settings of MWEM+PGM; none may be chosen by looking at private data.

    `rounds`: None stands for the number of attributes. `one_way_share`: of the budget, for the
    one-way marginals. `select_share`: of each round's budget, for the selection. `model_mb`: the
    largest model, in MB of float64 cells of its junction tree; round t of T may use t/T of it.

    Raises InvalidInput for rounds below 1, shares outside (0, 1), model_mb not above 0.
    """

    rounds: int | None = None
    one_way_share: float = 0.2
    select_share: float = 0.1
    model_mb: float = 25.0

    def __post_init__(self) -> None:
        rounds = self.rounds
        if rounds is not None and (isinstance(rounds, bool) or int(rounds) != rounds or rounds < 1):
            raise InvalidInput(f"rounds must be a whole number, 1 or more; got {rounds!r}")
        for name, share in [
            ("one_way_share", self.one_way_share),
            ("select_share", self.select_share),
        ]:
            if not 0 < share < 1:
                raise InvalidInput(f"{name} must be above 0 and below 1, got {share!r}")
        if not (math.isfinite(self.model_mb) and self.model_mb > 0):
            raise InvalidInput(f"model_mb must be a finite number above 0, got {self.model_mb!r}")


def mwem_pgm(
    curator: Curator,
    workload: WorkloadLike,
    settings: MwemPgm | None = None,
    *,
    progress: Callable[[Round[GraphicalModel, Clique]], None] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on a model for the workload.

    `progress` is called with each finished Round. Raises InvalidInput (before anything is spent)
    for a workload over another domain or a model limit that no workload clique fits.
    """
    settings = settings or MwemPgm()
    workload = Workload.over(curator.domain, workload)
    domain = curator.domain
    rounds = settings.rounds or len(domain)
    check_fits_workload(domain, workload, settings.model_mb)

    one_way = settings.one_way_share * curator.remaining
    per_round = (1 - settings.one_way_share) * curator.remaining / rounds
    select_cost = settings.select_share * per_round
    measure_cost = per_round - select_cost
    noise = curator.expected_error(measure_cost)
    weights = dict(zip(workload.cliques, workload.weights, strict=True))
    picked: list[Clique] = []

    def select(model: GraphicalModel, _last: Round[GraphicalModel, Clique] | None) -> Clique | None:
        if len(picked) == rounds:
            return None
        limit = settings.model_mb * (len(picked) + 1) / rounds
        candidates = affordable(domain, workload.cliques, picked, limit, settings.model_mb)
        return curator.choose(
            candidates,
            model.marginals(candidates),
            select_cost,
            # Measuring c replaces its error by noise of this expected size.
            penalties=[noise * domain.size(c) for c in candidates],
            weights=[weights[c] for c in candidates],
            step=f"round {len(picked) + 1}: select",
        )

    def measure(clique: Clique) -> list[Measurement]:
        picked.append(clique)
        return [curator.measure(clique, measure_cost, step=f"round {len(picked)}: measure")]

    first = [curator.measure((a,), one_way / len(domain), step="first: measure") for a in domain]
    update = estimator(domain, curator.public_total)
    model, measurements = adapt(
        update(None, first), first, select=select, measure=measure, update=update, progress=progress
    )
    return Release("mwem+pgm", model, measurements, curator.ledger, settings)
