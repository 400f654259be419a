"""RAP++: relaxed rows of mixed types, fitted to thresholds by tempered sigmoids.

Vietri et al., "Private synthetic data for multitask learning and marginal queries" (2022),
Algorithms 1 and 2. Numbers are ordered attributes of many codes (`mechanisms.queries.predicates`).
In each of T epochs the K worst answered predicates are selected at once and measured; every noisy
answer is kept as it was drawn (re-drawing the history, as the authors' code does, would cost it
again).
Selected are single queries of sensitivity 1, not norms of marginals. The Gumbel noise has scale
sqrt(K / (2 rho)); the text's K / sqrt(2 rho) is safe but sqrt(K) too large.

A threshold has no gradient: it is replaced by a sigmoid whose inverse temperature doubles from
stage to stage, each started where the last ended. A stage ends after `steps`, when the loss is that
of noise alone, or when it gained less than a thousandth over fifty steps together; the stage with
the least loss on the true thresholds is the result, not the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mechanisms.dual_query import records_model
from mechanisms.families.targets import one_thread
from mechanisms.privacy.curator import Curator
from mechanisms.queries.predicates import (
    Predicate,
    Predicates,
    linear_thresholds,
    mixed_marginals,
)
from mechanisms.rap import stalled
from mechanisms.release.record import Release
from mechanisms.rounds.loop import Round, adapt
from mechanisms.rounds.select_and_measure import check_device, check_settings, measure_one_way
from mechanisms.workload import Workload, WorkloadLike
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.measurement import Measurement

__all__ = ["MixedRows", "RapPlusPlus", "rap_pp"]

_RECORDS_PER_ROW = 10
_ROUNDS, _QUERIES = 10, 10


@dataclass(frozen=True)
class RapPlusPlus:
    """Settings of RAP++; none may be chosen by looking at private data.

    `numeric`: the attributes that are numbers. `label`: the class of class-conditional linear
    thresholds, of which there are `directions` random ones; None for none. `cuts`: thresholds a
    number for mixed marginals. Cells of the workload's marginals over other attributes are queries
    too. `rounds`, `queries`: T and K; None for 10 and 10, or fewer where there are few queries.
    `one_way_share`, `select_share`: of the budget, and of each round's. `rows`, `steps`,
    `learning_rate`: of the fit. `temperatures`: inverse ones of the stages; a single one turns
    annealing off. `device`: "cpu" or "cuda". `seed`: of the rows and directions.

    Raises InvalidInput for values out of range.
    """

    numeric: tuple[str, ...] = ()
    label: str | None = None
    directions: int = 200
    cuts: int = 15
    rounds: int | None = None
    queries: int | None = None
    one_way_share: float = 0.1
    select_share: float = 0.5
    rows: int = 500
    steps: int = 150
    learning_rate: float = 0.05
    temperatures: tuple[float, ...] = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(
            self,
            whole=["directions", "cuts", "rows", "steps", *(["queries"] if self.queries else [])],
            positive=["learning_rate"],
            fractions=["select_share"],
        )
        if self.select_share == 0 or not self.temperatures or min(self.temperatures) <= 0:
            raise InvalidInput("select_share and all temperatures must be above 0; give some")
        check_device(self.device)


class MixedRows:
    """Rows of probabilities of codes and of numbers between 0 and 1, and what they answer.

    Parameters are free: a softmax and a sigmoid make rows of them.
    """

    def __init__(self, domain: Domain, numeric: Sequence[str], device: str = "cpu") -> None:
        self.device = device
        self.domain, self.numbers = domain, tuple(n for n in domain if n in numeric)
        self.codes = tuple(n for n in domain if n not in numeric)
        sizes = [domain.sizes[name] for name in self.codes]
        ends = np.cumsum([0, *sizes])
        self.starts = dict(zip(self.codes, ends.tolist(), strict=False))
        self.sizes, self.width = sizes, int(ends[-1])

    def start(self, rows: int, random: torch.Generator) -> torch.Tensor:
        """Random parameters, rows x (codes + numbers)."""
        return torch.randn(rows, self.width + len(self.numbers), generator=random).to(self.device)

    def rows(self, free: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Probabilities of codes, with a last column of ones, and numbers."""
        parts = torch.split(free[:, : self.width], self.sizes, dim=1) if self.sizes else ()
        ones = free.new_ones(len(free), 1)
        return (
            torch.cat([*(part.softmax(1) for part in parts), ones], dim=1),
            free[:, self.width :].sigmoid(),
        )

    def index(self, predicates: Predicates) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Columns of each predicate's codes, its weights on the numbers, its bound."""
        longest = max((len(each.codes) for each in predicates.list), default=0)
        columns = torch.full((len(predicates), max(1, longest)), self.width, dtype=torch.long)
        for line, each in enumerate(predicates.list):
            for place, (name, code) in enumerate(each.codes):
                columns[line, place] = self.starts[name] + code
        weights = torch.zeros(len(predicates), len(self.numbers))
        for place, name in enumerate(predicates.numbers):
            weights[:, self.numbers.index(name)] = torch.tensor(
                predicates.matrix[:, place], dtype=torch.float32
            )
        bounds = torch.tensor(predicates.bounds, dtype=torch.float32)
        return columns.to(self.device), weights.to(self.device), bounds.to(self.device)

    def answers(
        self,
        free: torch.Tensor,
        indexed: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        temperature: float | None,
    ) -> torch.Tensor:
        """Shares that satisfy each predicate; the true thresholds for None."""
        columns, weights, bounds = indexed
        codes, numbers = self.rows(free)
        product = codes[:, columns[:, 0]]
        for place in range(1, columns.shape[1]):
            product = product * codes[:, columns[:, place]]
        reach = bounds - numbers @ weights.t()
        met = (reach >= 0).float() if temperature is None else (temperature * reach).sigmoid()
        return (product * met).mean(0)

    def records(self, free: torch.Tensor, rng: np.random.Generator) -> list[tuple[int, ...]]:
        """Records of each row: codes drawn from its probabilities, its numbers as they are."""
        codes, numbers = (part.detach().double().cpu().numpy() for part in self.rows(free))
        codes, numbers = (np.repeat(part, _RECORDS_PER_ROW, axis=0) for part in (codes, numbers))
        columns = {}
        for name, size in zip(self.codes, self.sizes, strict=True):
            start = self.starts[name]
            reached = codes[:, start : start + size].cumsum(axis=1)
            drawn = rng.random((len(codes), 1)) * reached[:, -1:]
            columns[name] = (drawn >= reached).sum(axis=1).clip(max=size - 1)
        for place, name in enumerate(self.numbers):
            size = self.domain.sizes[name]
            columns[name] = np.floor(numbers[:, place] * size).astype(int).clip(0, size - 1)
        stacked = np.stack([columns[name] for name in self.domain], axis=1)
        return [tuple(map(int, line)) for line in stacked]


def rap_pp(
    curator: Curator,
    workload: WorkloadLike,
    settings: RapPlusPlus | None = None,
    *,
    progress: Callable[[Round[torch.Tensor, Any]], None] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on rows of mixed types.

    Raises InvalidInput (before anything is spent) for a workload over another domain, unknown
    attributes, more queries than there are, or one_way_share = 0 where the total is private.
    """
    settings = settings or RapPlusPlus()
    workload = Workload.over(curator.domain, workload)
    domain = curator.domain
    predicates = _predicates(domain, workload, settings)
    rounds, count = _rounds(len(predicates), settings)
    if settings.one_way_share == 0 and curator.public_total is None:
        raise InvalidInput("one_way_share must be above 0 where the number of rows is private")
    first, total = measure_one_way(curator, settings.one_way_share)
    known = [_as_predicates(domain, m) for m in first if m.clique[0] not in settings.numeric]
    taken: list[int] = []
    select_cost = settings.select_share * curator.remaining / rounds
    measure_cost = curator.remaining / rounds - select_cost
    family = MixedRows(domain, settings.numeric, settings.device)
    every = family.index(predicates)

    def select(free: torch.Tensor, last: Round[torch.Tensor, Any] | None) -> list[int] | None:
        done = len(taken) // count
        if done == rounds:
            return None
        with torch.no_grad():
            estimates = family.answers(free, every, None).double().cpu().numpy() * total
        step = f"round {done + 1}: select"
        picked = curator.choose_predicates(
            predicates, estimates, select_cost, count=count, exclude=taken, step=step
        )
        taken.extend(picked)
        return picked

    def measure(picked: Sequence[int]) -> list[Measurement]:
        done = len(taken) // count
        cost = curator.remaining if done == rounds else measure_cost
        chosen = Predicates(domain, [predicates.list[i] for i in picked])
        values, stddev = curator.measure_predicates(chosen, cost, step=f"round {done}: measure")
        known.append((chosen, values, np.full(len(values), stddev)))
        return []

    with one_thread():
        random = torch.Generator().manual_seed(settings.seed)
        update = _fitter(family, settings, total, known)
        start = family.start(settings.rows, random)
        start = update(start, []) if known else start
        free, _ = adapt(
            start, first, select=select, measure=measure, update=update, progress=progress
        )
    records = family.records(free, np.random.default_rng(settings.seed))
    model = records_model(domain, records, total)
    return Release("rap++", model, tuple(first), curator.ledger, settings)


def _rounds(available: int, settings: RapPlusPlus) -> tuple[int, int]:
    """T and K. Raises InvalidInput where more queries are asked for than there are."""
    count = settings.queries or min(_QUERIES, available)
    rounds = settings.rounds or max(1, min(_ROUNDS, available // count))
    if rounds * count > available:
        raise InvalidInput(
            f"rounds x queries a round is {rounds * count}, but there are {available} queries; ask "
            "for fewer"
        )
    return rounds, count


Known = tuple[Predicates, "np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]


def _fitter(
    family: MixedRows, settings: RapPlusPlus, total: float, known: Sequence[Known]
) -> Callable[[torch.Tensor, Sequence[Measurement]], torch.Tensor]:
    """Algorithm 1 on all noisy answers so far, in units of their noise."""

    def update(free: torch.Tensor, _measurements: Sequence[Measurement]) -> torch.Tensor:
        merged = Predicates(family.domain, [each for p, _, _ in known for each in p.list])
        indexed = family.index(merged)
        values, stddevs = (np.concatenate([each[i] for each in known]) / total for i in (1, 2))
        targets = torch.tensor(values, dtype=torch.float32, device=family.device)
        noise = torch.tensor(stddevs, dtype=torch.float32, device=family.device)

        def loss_at(values: torch.Tensor, temperature: float | None) -> torch.Tensor:
            return (
                ((family.answers(values, indexed, temperature) - targets) / noise).square().mean()
            )

        best, least = free, float(loss_at(free, None))
        fitted = free.detach().clone().requires_grad_()
        # Without thresholds a temperature changes nothing.
        stages = settings.temperatures if merged.numbers else settings.temperatures[-1:]
        for temperature in stages:
            optimizer = torch.optim.Adam([fitted], lr=settings.learning_rate)
            losses: list[float] = []
            for _ in range(settings.steps):
                loss = loss_at(fitted, temperature)
                losses.append(float(loss.detach()))
                if losses[-1] <= 1 or stalled(losses):
                    break
                optimizer.zero_grad()
                torch.autograd.backward([loss])
                optimizer.step()
            reached = float(loss_at(fitted.detach(), None))
            if reached < least:
                best, least = fitted.detach().clone(), reached
        return best

    return update


def _predicates(domain: Domain, workload: Workload, settings: RapPlusPlus) -> Predicates:
    """Mixed marginals, linear thresholds, and cells of marginals without numbers."""
    domain.clique(settings.numeric, "numeric")
    found = mixed_marginals(domain, settings.numeric, settings.cuts) if settings.numeric else []
    if settings.label is not None:
        domain.clique([settings.label], "label")
        if settings.label in settings.numeric or not settings.numeric:
            raise InvalidInput("label must be a categorical attribute, beside some numeric ones")
        rng = np.random.default_rng(settings.seed)
        found += linear_thresholds(
            domain, settings.numeric, settings.label, settings.directions, rng
        )
    for clique in workload.cliques:
        if not set(clique) & set(settings.numeric):
            found += [
                Predicate(tuple(zip(clique, map(int, codes), strict=True)))
                for codes in np.ndindex(*domain.shape(clique))
            ]
    return Predicates(domain, found)


def _as_predicates(domain: Domain, measured: Measurement) -> Known:
    name = measured.clique[0]
    cells = [Predicate(((name, code),)) for code in range(domain.sizes[name])]
    return Predicates(domain, cells), measured.values, np.full(len(cells), measured.stddev)
