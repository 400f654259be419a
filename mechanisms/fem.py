"""FEM: perturbed best responses to selected queries.

Vietri et al. (2020), as in Liu, Vietri and Wu (2021): in each round a signed query on which the
data exceed the records most is selected by the exponential mechanism, and the next records are best
responses to all queries so far, each perturbed by exponential noise on every code. The release is
the records of all rounds. The number of rounds is fixed before them, and each gets an equal part of
the budget.

The papers leave open which records a selection compares with the data. Here they are the records of
all rounds, which are also released: the sampling error of one round's few records would mislead the
selection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechanisms.families.best_response import Oracle, Records, Weighted
from mechanisms.privacy.curator import Curator
from mechanisms.queries.cells import Cell
from mechanisms.rounds.loop import Outcome, Progress, Round, adapt, mechanism
from mechanisms.rounds.select_and_measure import RoundsRule, measure_total
from mechanisms.settings import Settings, fraction, positive, random_seed, setting, whole_number
from mechanisms.workload import Workload
from pgmkit.domain import Domain

_RULE = RoundsRule(1.5)


@dataclass(frozen=True)
class Fem(Settings):
    """Settings of FEM; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        rounds: The number of rounds, 1 or more; None for a rule from the number of rows and the
            budget (`RoundsRule`).
        samples: The number of records of each round, 1 to 1,000,000.
        noise: The mean of the perturbation of every code, divided by the square root of one more
            than the number of queries selected so far, above 0. The perturbation grows with the
            number of queries, since a constant one would lose its effect beside ever more queries.
        one_way_share: The share of the budget for the one-way marginals, at least 0 and below 1. It
            is spent only if the number of rows is private, to estimate it.
        seed: The seed of the perturbations; it protects nothing.
    """

    rounds: int | None = setting(None, whole_number())
    samples: int = setting(10, whole_number(1, 10**6))
    noise: float = setting(0.16, positive())
    one_way_share: float = setting(0.05, fraction(zero=True))
    seed: int = setting(0, random_seed())


@mechanism("fem", Fem)
def fem(
    curator: Curator, workload: Workload, settings: Fem, *, progress: Progress = None
) -> Outcome:
    """Spend all that remains of the Curator's budget on records for the workload, and return their
    release.

    Raises, before anything is spent, InvalidInput for a workload over another domain or with
    unequal weights, or one_way_share = 0 if the number of rows is private, and ModelTooLarge for
    marginals that are too large to count together.
    """
    domain = curator.domain
    first, total = measure_total(curator, workload, settings.one_way_share)
    rounds = settings.rounds or _RULE(curator, total)
    per_round = curator.remaining / rounds
    rng = np.random.default_rng(settings.seed)
    queries: list[Weighted] = []
    start = [
        tuple(int(rng.integers(0, n)) for n in domain.shape()) for _ in range(settings.samples)
    ]

    def select(records: Records, _last: Round[Records, Cell] | None) -> list[Cell] | None:
        t = len(queries) + 1
        if t > rounds:
            return None
        tables = records.sparse_marginals(workload.cliques)
        cost = curator.remaining if t == rounds else per_round
        step = f"round {t}: select"
        ((cell, sign),) = curator.draw_signed(workload.cliques, tables, cost, count=1, step=step)
        queries.append((cell, float(sign)))
        return [cell]

    records, _ = adapt(
        Records(domain, tuple(start), total),
        first,
        select=select,
        measure=lambda picked: [],  # only the selection is paid for
        update=_responder(domain, settings, queries, rng),
        progress=progress,
    )
    return records.model(), first


def _responder(
    domain: Domain, settings: Fem, queries: Sequence[Weighted], rng: np.random.Generator
) -> Callable[[Records, Sequence[Any]], Records]:
    """Return the update step, which adds `samples` records: best responses to all `queries` so far,
    each under its own perturbation. The first step drops the random start records.
    """
    oracle = Oracle(domain)

    def update(records: Records, _measurements: Sequence[Any]) -> Records:
        scale = settings.noise * (1 + len(queries)) ** 0.5
        found = []
        for _ in range(settings.samples):
            bonus = {name: rng.exponential(scale, n) for name, n in domain.sizes.items()}
            found.append(oracle.best(queries, bonus))
        # The start records, which the first selection used, are random and are not kept.
        return (records if len(queries) > 1 else Records(domain, (), records.total)).joined(found)

    return update
