"""FEM: perturbed best responses to selected queries.

Vietri et al. (2020), as in Liu, Vietri and Wu (2021): in each round a signed query on which the
data exceed the records most is selected by the exponential mechanism, and the next records are
best responses to all queries so far, each perturbed by exponential noise on every code. The release
is the records of all rounds. Rounds are as many as the budget pays for, and no more.

Decided here: queries are selected against the records of all rounds, which are what is released; a
few records alone have a sampling error that would mislead the selection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechanisms.dual_query import check_signed, records_model
from mechanisms.families.best_response import Oracle, Weighted
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.rounds.loop import Round
from mechanisms.rounds.select_and_measure import RoundsRule, check_settings, measure_one_way
from mechanisms.workload import Workload, WorkloadLike

__all__ = ["Fem", "fem"]

_RULE = RoundsRule(1.5)


@dataclass(frozen=True)
class Fem:
    """Settings of FEM; none may be chosen by looking at private data.

    `rounds`: None for a rule from the rows and the budget (`RoundsRule`). `samples`: records a
    round. `noise`: mean of the perturbation, in queries, times the root of their number (one that
    does not grow loses its effect). `one_way_share`: of the budget, to estimate
    the number of rows where it is private. `seed`: of the perturbations.
    """

    rounds: int | None = None
    samples: int = 10
    noise: float = 0.16
    one_way_share: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self, whole=["samples"], positive=["noise"], fractions=[])


def fem(
    curator: Curator,
    workload: WorkloadLike,
    settings: Fem | None = None,
    *,
    progress: Callable[[Round[Any, Any]], None] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on records for the workload.

    Raises InvalidInput (before anything is spent) for a workload over another domain, or
    one_way_share = 0 where the number of rows is private.
    """
    settings = settings or Fem()
    workload = Workload.over(curator.domain, workload)
    domain = curator.domain
    check_signed(curator, workload, settings.one_way_share)
    share = 0.0 if curator.public_total is not None else settings.one_way_share
    first, total = measure_one_way(curator, share)
    rounds = settings.rounds or _RULE(curator, total)
    per_round = curator.remaining / rounds
    rng = np.random.default_rng(settings.seed)
    oracle = Oracle(domain)
    queries: list[Weighted] = []
    start = [
        tuple(int(rng.integers(0, n)) for n in domain.shape()) for _ in range(settings.samples)
    ]
    records: list[tuple[int, ...]] = []
    for t in range(rounds):
        tables = records_model(domain, records or start, total).marginals(workload.cliques)
        cost = curator.remaining if t == rounds - 1 else per_round
        step = f"round {t + 1}: select"
        ((cell, sign),) = curator.draw_signed(workload.cliques, tables, cost, count=1, step=step)
        queries.append((cell, float(sign)))
        scale = settings.noise * (1 + len(queries)) ** 0.5
        for _ in range(settings.samples):
            bonus = {name: rng.exponential(scale, n) for name, n in domain.sizes.items()}
            best = oracle.best(queries, bonus)
            records.append(tuple(best[name] for name in domain))
        if progress is not None:
            progress(Round(t, cell, tuple(first), None, None))
    model = records_model(domain, records, total)
    return Release("fem", model, tuple(first), curator.ledger, settings)
