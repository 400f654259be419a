"""RAP++: relaxed rows of mixed types, fitted to thresholds by tempered sigmoids.

Vietri et al., "Private synthetic data for multitask learning and marginal queries" (2022),
Algorithms 1 and 2. Numeric attributes have many ordered codes (`mechanisms.queries.predicates`). In
each of T epochs the K worst answered predicates are selected at once and measured; every noisy
answer is kept as it was drawn, and released (re-drawing the history, as the authors' code does,
would cost it again).

Single queries of sensitivity 1 are selected, not norms of marginals. The Gumbel noise has scale
sqrt(K / (2 rho)); the K / sqrt(2 rho) of the paper's text is safe but larger by the factor sqrt(K).

A threshold has no gradient: it is replaced by a sigmoid whose inverse temperature doubles from
stage to stage, each started where the last ended. A stage ends after `steps`, when the loss is that
of noise alone, or when it has fallen by less than a thousandth over fifty steps together. The
result is the stage with the least loss on the true thresholds, not the last.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mechanisms.families.descent import descend, fitted_or_stalled
from mechanisms.families.mixed_rows import MixedRows, MixedState
from mechanisms.families.product_mixture import Columns
from mechanisms.families.records import Records
from mechanisms.families.training_memory import (
    answering_predicates_bytes,
    fitting_predicates_bytes,
)
from mechanisms.privacy.curator import Curator
from mechanisms.queries.predicates import (
    MeasuredPredicate,
    Predicate,
    Predicates,
    linear_thresholds,
    mixed_marginals,
)
from mechanisms.release.record import Measured, Release
from mechanisms.rounds.loop import Round, adapt
from mechanisms.rounds.select_and_measure import check_enough, check_total, measure_one_way
from mechanisms.settings import (
    Settings,
    fraction,
    or_none,
    positive,
    random_seed,
    setting,
    text,
    torch_device,
    tuple_of,
    whole_number,
)
from mechanisms.workload import Workload, WorkloadLike
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.runtime.devices import check_room, device_of, gpu_memory
from pgmkit.runtime.threads import one_thread


@dataclass(frozen=True)
class RapPlusPlus(Settings):
    """Settings of RAP++; none may be chosen by looking at private data.

    The cells of those marginals of the workload that have no numeric attribute are queries too.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        numeric: The names of the numeric attributes, whose codes are ordered.
        label: The categorical attribute whose codes are the classes of the class-conditional linear
            thresholds; None for no such thresholds.
        directions: The number of random linear thresholds for every class, 1 or more.
        cuts: The number of thresholds of each numeric attribute in mixed marginals, 1 or more.
        rounds: The number of rounds T, 1 or more; None for 10, or fewer if there are few queries.
        queries: The number of queries K of a round, 1 or more; None for 10, or fewer if there are
            few.
        one_way_share: The share of the budget for the one-way marginals, at least 0 and below 1;
            with 0 the number of rows must be public.
        select_share: The share of each round's budget for selection, above 0 and below 1.
        rows: The number of relaxed rows, 1 or more.
        steps: The most steps of a stage of the fit, 1 or more.
        learning_rate: Adam's rate, above 0.
        temperatures: The inverse temperatures of the fit's stages, each above 0; a single one turns
            annealing off.
        device: Where the fit runs: "cpu", "cuda", or "auto": a GPU if there is one.
        seed: The seed of the first rows, of the directions and of the drawn records; it protects
            nothing.
    """

    numeric: tuple[str, ...] = setting((), tuple_of(text(), empty=True))
    label: str | None = setting(None, or_none(text()))
    directions: int = setting(200, whole_number())
    cuts: int = setting(15, whole_number())
    rounds: int | None = setting(None, or_none(whole_number()))
    queries: int | None = setting(None, or_none(whole_number()))
    one_way_share: float = setting(0.1, fraction(zero=True))
    select_share: float = setting(0.5, fraction())
    rows: int = setting(500, whole_number())
    steps: int = setting(150, whole_number())
    learning_rate: float = setting(0.05, positive())
    temperatures: tuple[float, ...] = setting(
        (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0), tuple_of(positive())
    )
    device: str = setting("cpu", torch_device())
    seed: int = setting(0, random_seed())


def rap_pp(
    curator: Curator,
    workload: WorkloadLike,
    settings: RapPlusPlus | None = None,
    *,
    progress: Callable[[Round[MixedState, Predicate]], None] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on rows of mixed types.

    Raises InvalidInput (before anything is spent) for a workload over another domain, unknown
    attributes, more queries than there are, or one_way_share = 0 if the total is private;
    ModelTooLarge for a fit that does not fit a GPU's memory.
    """
    settings = settings or RapPlusPlus()
    workload = Workload.over(curator.domain, workload)
    domain = curator.domain
    device = device_of(settings.device)
    predicates = _predicates(domain, workload, settings)
    rounds, count = _rounds(len(predicates), settings)
    check_total(curator, settings.one_way_share)
    _check_room(device, predicates, rounds * count, settings)
    first, total = measure_one_way(curator, settings.one_way_share)
    steps = _PredicateRounds(curator, predicates, rounds, count, settings.select_share)
    family = MixedRows(domain, settings.numeric, device)
    every = family.index(predicates)

    def select(
        state: MixedState, _last: Round[MixedState, Predicate] | None
    ) -> list[Predicate] | None:
        with torch.no_grad():
            shares = family.answers(state.free, every, None)
        return steps.select(shares.double().cpu().numpy() * total)

    with one_thread(), gpu_memory(device):
        random = torch.Generator().manual_seed(settings.seed)
        update = _fitter(family, settings)
        start = family.state(family.start(settings.rows, random), total)
        usable = any(m.clique[0] not in settings.numeric for m in first)
        state, measurements = adapt(
            update(start, first) if usable else start,
            first,
            select=select,
            measure=steps.measure,
            update=update,
            progress=progress,
        )
    records = family.records(state.free, np.random.default_rng(settings.seed))
    model = Records(domain, tuple(records), total).model()
    return Release("rap++", model, measurements, curator.ledger, settings)


class _PredicateRounds:
    """The select and measure steps of equal rounds of `count` predicates each.

    The last measurement spends the rest; a measured predicate is not selected again.
    """

    def __init__(
        self,
        curator: Curator,
        predicates: Predicates,
        rounds: int,
        count: int,
        select_share: float,
    ) -> None:
        self._curator, self._predicates = curator, predicates
        self._rounds, self._count, self._done = rounds, count, 0
        self._select_cost = select_share * curator.remaining / rounds
        self._measure_cost = curator.remaining / rounds - self._select_cost
        self._taken: list[int] = []

    def select(self, estimates: NDArray[np.float64]) -> list[Predicate] | None:
        """Select, with noise, the predicates whose counts are estimated worst; None after the last
        round.
        """
        if self._done == self._rounds:
            return None
        self._done += 1
        picked = self._curator.choose_predicates(
            self._predicates,
            estimates,
            self._select_cost,
            count=self._count,
            exclude=self._taken,
            step=f"round {self._done}: select",
        )
        self._taken.extend(picked)
        return [self._predicates.list[i] for i in picked]

    def measure(self, picked: Sequence[Predicate]) -> list[MeasuredPredicate]:
        """Return the counts of the selected predicates, each with its own noise."""
        last = self._done == self._rounds
        cost = self._curator.remaining if last else self._measure_cost
        chosen = Predicates(self._predicates.domain, picked)
        step = f"round {self._done}: measure"
        values, stddev = self._curator.measure_predicates(chosen, cost, step=step)
        return [
            MeasuredPredicate(each, float(value), stddev)
            for each, value in zip(picked, values, strict=True)
        ]


def _rounds(available: int, settings: RapPlusPlus) -> tuple[int, int]:
    """Return T and K, by default ten each, or as many as the `available` queries allow.

    Raises InvalidInput if more queries are requested than there are.
    """
    count = settings.queries or min(10, available)
    rounds = settings.rounds or max(1, min(10, available // count))
    check_enough(rounds, count, available, "queries")
    return rounds, count


def _check_room(
    device: torch.device, predicates: Predicates, selected: int, settings: RapPlusPlus
) -> None:
    """Raise ModelTooLarge if a GPU's memory is too small to fit `selected` predicates and the
    one-way marginals of the categorical attributes.
    """
    domain, rows = predicates.domain, settings.rows
    codes = sum(size for name, size in domain.sizes.items() if name not in settings.numeric)
    numbers = len(settings.numeric)
    places = max(1, max(len(each.codes) for each in predicates.list))
    needed = fitting_predicates_bytes(
        Columns(domain), codes + numbers, selected + codes, places, numbers, rows
    )
    needed += answering_predicates_bytes(len(predicates), places, numbers, rows)
    check_room(device, needed, f"RAP++ with {rows:,} rows of {codes + numbers:,} parameters")


def _fitter(
    family: MixedRows, settings: RapPlusPlus
) -> Callable[[MixedState, Sequence[Measured]], MixedState]:
    """Return the update: Algorithm 1 on all noisy answers so far, in units of their noise."""

    def update(state: MixedState, measurements: Sequence[Measured]) -> MixedState:
        known = list(_answers(family.domain, settings.numeric, measurements))
        merged = Predicates(family.domain, [each.predicate for each in known])
        indexed = family.index(merged)
        targets, noise = (
            torch.tensor(np.array(each) / state.total, dtype=torch.float32, device=family.device)
            for each in ([m.value for m in known], [m.stddev for m in known])
        )

        def loss_at(free: torch.Tensor, temperature: float | None) -> torch.Tensor:
            return ((family.answers(free, indexed, temperature) - targets) / noise).square().mean()

        best, least = state.free, float(loss_at(state.free, None))
        fitted = state.free.detach().clone().requires_grad_()
        # Only thresholds depend on the temperature, so one stage is enough without them.
        stages = settings.temperatures if merged.numbers else settings.temperatures[-1:]
        for temperature in stages:
            optimizer = torch.optim.Adam([fitted], lr=settings.learning_rate)
            losses = iter(functools.partial(loss_at, fitted, temperature), None)
            descend(optimizer, losses, settings.steps, enough=fitted_or_stalled)
            reached = float(loss_at(fitted.detach(), None))
            if reached < least:
                best, least = fitted.detach().clone(), reached
        return family.state(best, state.total)

    return update


def _answers(
    domain: Domain, numeric: Sequence[str], measurements: Sequence[Measured]
) -> Iterator[MeasuredPredicate]:
    """Yield the answers to fit: measured predicates, and as predicates the cells of the one-way
    marginals of categorical attributes.
    """
    for m in measurements:
        if isinstance(m, MeasuredPredicate):
            yield m
        elif m.clique[0] not in numeric:
            (name,) = m.clique
            for code, value in enumerate(m.values):
                yield MeasuredPredicate(Predicate(((name, code),)), float(value), m.stddev)


def _predicates(domain: Domain, workload: Workload, settings: RapPlusPlus) -> Predicates:
    """Return the queries of RAP++: mixed marginals (categorical codes with thresholds of numeric
    attributes), random linear thresholds, and the cells of the workload's marginals that have no
    numeric attribute. Raises InvalidInput for unknown attributes, and for a label that is numeric
    or without numeric attributes.
    """
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
