"""RAP++: relaxed rows of mixed types, fitted to marginals and thresholds by tempered sigmoids.

Vietri et al., "Private synthetic data for multitask learning and marginal queries" (2022),
Algorithms 1 and 2. Numeric attributes have many ordered codes (`mechanisms.queries.predicates`).
Every attribute is measured first, together with each label if there are labels; the first rows are
records of these answers. In each of T epochs the marginal that is answered worst is selected and
measured, and then the K worst answered linear thresholds. Every noisy answer is kept as it was
drawn, and released (re-drawing the history, as the authors' code does, would cost it again).

Marginals are measured whole: a table of any size costs at most twice what one of its cells does.
Thresholds are drawn through the first rows, in directions in which numeric attributes weigh alike.
The Gumbel noise has scale sqrt(K / (2 rho)); the K / sqrt(2 rho) of the paper's text is safe but
larger by sqrt(K).

A threshold has no gradient: it is replaced by a sigmoid whose inverse temperature grows from stage
to stage, each started where the last ended. A stage ends after `steps`, when the loss is that of
noise alone, or when it has fallen by less than a thousandth over fifty steps together. The result
is the stage with the least loss on the true thresholds, not the last.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mechanisms.families.descent import descend, fitted_or_stalled
from mechanisms.families.mixed_rows import MixedRows, MixedState, Ranks
from mechanisms.families.product_mixture import Columns, ProductAnswers, ProductMixtureModel
from mechanisms.families.training_memory import (
    answering_bytes,
    answering_predicates_bytes,
    fitting_predicates_bytes,
    fitting_tables_bytes,
)
from mechanisms.privacy.curator import Curator
from mechanisms.queries.cells import Question, clique_of
from mechanisms.queries.predicates import (
    MeasuredPredicate,
    Predicate,
    Predicates,
    linear_thresholds,
)
from mechanisms.release.record import Measured, Release
from mechanisms.rounds.loop import Round, adapt
from mechanisms.rounds.merging import MOST_GROUPS, groups_of
from mechanisms.rounds.select_and_measure import check_enough, known_total
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
from mechanisms.workload import Workload, WorkloadLike, varied
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.estimation import estimate
from pgmkit.measurement import Measurement
from pgmkit.runtime.devices import check_room, device_of, gpu_memory
from pgmkit.runtime.threads import one_thread
from pgmkit.runtime.typed import typed


@dataclass(frozen=True)
class RapPlusPlus(Settings):
    """Settings of RAP++; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        numeric: The names of the numeric attributes, whose codes are ordered.
        labels: The categorical attributes that will be predicted: each other attribute is measured
            together with them, and their codes are the classes of linear thresholds. Without labels
            there are no thresholds.
        directions: The number of random linear thresholds for every class, 1 or more.
        rounds: The number of rounds T, 1 or more; None for one less than there are categorical
            attributes, as in the paper, but at most 10 and no more than there are marginals.
        queries: The number of thresholds K of a round, 1 or more; no more than there are.
        one_way_share: The share of the budget for what is measured first, above 0 and below 1.
        threshold_share: The share of the rounds' budget for thresholds, above 0 and below 1, if
            there are both marginals and thresholds.
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
    labels: tuple[str, ...] = setting((), tuple_of(text(), empty=True))
    directions: int = setting(500, whole_number())
    rounds: int | None = setting(None, or_none(whole_number()))
    queries: int = setting(50, whole_number())
    one_way_share: float = setting(0.3, fraction())
    threshold_share: float = setting(0.5, fraction())
    select_share: float = setting(0.5, fraction())
    rows: int = setting(500, whole_number())
    steps: int = setting(100, whole_number())
    learning_rate: float = setting(0.05, positive())
    temperatures: tuple[float, ...] = setting((16.0, 64.0, 256.0), tuple_of(positive()))
    device: str = setting("cpu", torch_device())
    seed: int = setting(0, random_seed())


@typed
def rap_pp(
    curator: Curator,
    workload: WorkloadLike,
    settings: RapPlusPlus | None = None,
    *,
    progress: Callable[[Round[MixedState, Question]], None] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on rows of mixed types.

    Raises InvalidInput (before anything is spent) for a workload over another domain, unknown
    attributes, labels that are numeric or without numeric attributes, and more rounds or thresholds
    than there are; ModelTooLarge for a fit that does not fit a GPU's memory.
    """
    settings = settings or RapPlusPlus()
    workload = Workload.over(curator.domain, workload)
    domain, device = curator.domain, device_of(settings.device)
    plan = _Plan.of(workload, settings)
    _check_room(device, plan, domain, settings)
    share = settings.one_way_share if plan.rounds else 1.0
    cost = share * curator.remaining / len(plan.first)
    first = [curator.measure(clique, cost, step="first: measure") for clique in plan.first]
    total = known_total(curator, first)
    with one_thread(), gpu_memory(device):
        # The first answers give the ranks of numeric attributes and the first rows.
        known = estimate(domain, first, total=total)
        counts = {name: known.marginal([name]) for name in settings.numeric}
        groups = {name: groups_of(c, MOST_GROUPS, len(c)) for name, c in counts.items()}
        family = MixedRows(Ranks(domain, counts, groups), device)
        update = _fitter(family, settings)
        records = known.sample(settings.rows, rng=settings.seed)
        random = torch.Generator().manual_seed(settings.seed)
        start = family.state(family.start(records, random), total)
        pool = _thresholds(family, start, settings) if plan.thresholds else None
        steps = _MixedRounds(curator, plan, family, pool, settings)
        state, measurements = adapt(
            update(start, first),
            first,
            select=steps.select,
            measure=steps.measure,
            update=update,
            progress=progress,
        )
    model = ProductMixtureModel(domain, state.whole_rows(), total)
    return Release("rap++", model, measurements, curator.ledger, settings)


@dataclass(frozen=True)
class _Plan:
    """The first measurements, the questions that rounds select from, and the number of rounds."""

    first: list[Clique]
    marginals: dict[Clique, float]
    """The marginals that rounds select from, and their weights."""
    thresholds: int
    rounds: int

    @classmethod
    def of(cls, workload: Workload, settings: RapPlusPlus) -> _Plan:
        """Raise InvalidInput for attributes, or numbers of rounds and queries, that do not fit the
        domain.
        """
        domain, labels = workload.domain, settings.labels
        domain.clique(settings.numeric, "numeric")
        domain.clique(labels, "labels")
        if labels and (not settings.numeric or set(labels) & set(settings.numeric)):
            raise InvalidInput(
                "labels must be categorical attributes, and need numeric ones beside them: "
                "name these in numeric"
            )
        names = varied(domain)
        features = [name for name in names if name not in labels]
        pairs = [*itertools.product(features, labels), *itertools.combinations(labels, 2)]
        first: list[Clique] = [*pairs] or [(name,) for name in names]
        seen = {frozenset(clique) for clique in (*first, *((name,) for name in names))}
        weighted = zip(workload.cliques, workload.weights, strict=True)
        marginals = {clique: w for clique, w in weighted if frozenset(clique) not in seen}
        thresholds = settings.directions * sum(domain.sizes[name] for name in labels)
        usual = min(10, max(1, len(domain) - len(settings.numeric) - 1))
        most = len(marginals) or (usual if thresholds else 0)
        rounds = settings.rounds or min(usual, most)
        if thresholds:
            check_enough(rounds, settings.queries, thresholds, "thresholds")
        else:
            check_enough(rounds, 1, most, "marginals")
        return cls(first, marginals, thresholds, rounds)


class _MixedRounds:
    """The select and measure steps of equal rounds: one marginal, then K thresholds.

    What is measured is not selected again, and the last measurement spends the rest.
    """

    def __init__(
        self,
        curator: Curator,
        plan: _Plan,
        family: MixedRows,
        pool: Predicates | None,
        settings: RapPlusPlus,
    ) -> None:
        self._curator, self._family, self._pool = curator, family, pool
        self._settings, self._left = settings, dict(plan.marginals)
        self._rounds, self._done = plan.rounds, 0
        self._taken: list[int] = []
        self._costs = (0.0, 0.0)

    def select(
        self, state: MixedState, _last: Round[MixedState, Question] | None
    ) -> list[Question] | None:
        """Select, with noise, the marginal and the thresholds that the rows answer worst: both
        kinds, except where no marginal is left or there are no thresholds. Return None after the
        last round.
        """
        if self._done == self._rounds:
            return None
        whole = self._curator.remaining / (self._rounds - self._done)
        self._done += 1
        share = self._settings.threshold_share if self._left else 1.0
        share *= self._pool is not None
        chosen = self._settings.select_share
        self._costs = (whole * (1 - share) * (1 - chosen), whole * share * (1 - chosen))
        picked: list[Question] = []
        if share < 1:
            picked.append(self._marginal(state, whole * (1 - share) * chosen))
        if share > 0:
            picked += self._thresholds(state, whole * share * chosen)
        return picked

    def _marginal(self, state: MixedState, cost: float) -> Clique:
        noise = self._curator.expected_error(self._costs[0])
        picked = self._curator.choose(
            list(self._left),
            state.marginals(list(self._left)),
            cost,
            penalties=[noise * self._curator.domain.size(clique) for clique in self._left],
            weights=list(self._left.values()),
            step=f"round {self._done}: select",
        )
        del self._left[picked]
        return picked

    def _thresholds(self, state: MixedState, cost: float) -> list[Predicate]:
        assert self._pool is not None
        with torch.no_grad():
            lines = self._family.thresholds(self._pool)
            shares = self._family.satisfied(*self._family.rows(state.free, None), lines, None)
        picked = self._curator.choose_predicates(
            self._pool,
            shares.double().cpu().numpy() * state.total,
            cost,
            count=self._settings.queries,
            exclude=self._taken,
            step=f"round {self._done}: select thresholds",
        )
        self._taken.extend(picked)
        return [self._pool.list[place] for place in picked]

    def measure(self, picked: Sequence[Question]) -> list[Measured]:
        """Return the noisy answers to the selected marginal or thresholds."""
        found: list[Measured] = []
        asked = [each for each in picked if isinstance(each, Predicate)]
        costs = list(self._costs)
        if self._done == self._rounds:
            costs[bool(asked)] = self._curator.remaining - (costs[0] if asked else 0.0)
        for each in picked:
            if not isinstance(each, Predicate):
                step = f"round {self._done}: measure"
                found.append(self._curator.measure(clique_of(each), costs[0], step=step))
        if asked:
            predicates = Predicates(self._curator.domain, asked)
            step = f"round {self._done}: measure thresholds"
            values, stddev = self._curator.measure_predicates(predicates, costs[1], step=step)
            found += [
                MeasuredPredicate(each, float(value), stddev)
                for each, value in zip(asked, values, strict=True)
            ]
        return found


def _thresholds(family: MixedRows, state: MixedState, settings: RapPlusPlus) -> Predicates:
    """Return the linear thresholds that rounds select from: through the numbers of the rows, which
    come from noisy answers.
    """
    domain, rng = family.ranks.whole, np.random.default_rng(settings.seed)
    with torch.no_grad():
        points = family.rows(state.free, None)[1].double().cpu().numpy()
    found: list[Predicate] = []
    for label in settings.labels:
        found += linear_thresholds(domain, family.numbers, label, settings.directions, rng, points)
    return Predicates(domain, found)


def _check_room(device: torch.device, plan: _Plan, domain: Domain, settings: RapPlusPlus) -> None:
    """Raise ModelTooLarge if a GPU's memory is too small for the fit."""
    columns, rows, numbers = Columns(domain), settings.rows, len(settings.numeric)
    largest = sorted(plan.marginals, key=domain.size, reverse=True)[: plan.rounds]
    free = columns.width - sum(domain.sizes[name] for name in settings.numeric) + numbers
    needed = fitting_tables_bytes(columns, [*plan.first, *largest], rows)
    needed = max(needed, answering_bytes(columns, plan.marginals, rows))
    if plan.thresholds:
        selected = plan.rounds * settings.queries
        needed += fitting_predicates_bytes(columns, free, selected, 1, numbers, rows)
        needed += answering_predicates_bytes(plan.thresholds, 1, numbers, rows)
    check_room(device, needed, f"RAP++ with {rows:,} rows of {free:,} parameters")


def _fitter(
    family: MixedRows, settings: RapPlusPlus
) -> Callable[[MixedState, Sequence[Measured]], MixedState]:
    """Return the update: Algorithm 1 on all noisy answers so far, in units of their noise."""

    def update(state: MixedState, measurements: Sequence[Measured]) -> MixedState:
        loss_at = _loss(family, measurements, state.total)
        with torch.no_grad():
            best, least = state.free, float(loss_at(state.free, None))
        fitted = state.free.detach().clone().requires_grad_()
        # Only thresholds depend on the temperature, so one stage is enough without them.
        stages = settings.temperatures if family.numbers else settings.temperatures[-1:]
        for temperature in stages:
            optimizer = torch.optim.Adam([fitted], lr=settings.learning_rate)
            losses = iter(functools.partial(loss_at, fitted, temperature), None)
            descend(optimizer, losses, settings.steps, enough=fitted_or_stalled)
            with torch.no_grad():
                reached = float(loss_at(fitted, None))
            if reached < least:
                best, least = fitted.detach().clone(), reached
        return family.state(best, state.total)

    return update


def _loss(
    family: MixedRows, measurements: Sequence[Measured], total: float
) -> Callable[[torch.Tensor, float | None], torch.Tensor]:
    """Return the mean squared error of all noisy answers in units of their noise, as a function of
    the rows' parameters and of the inverse temperature.
    """
    tables = [m for m in measurements if isinstance(m, Measurement)]
    predicates = [m for m in measurements if isinstance(m, MeasuredPredicate)]
    merged = [family.ranks.merged(m) for m in tables]
    merged += [(np.array([m.value]), np.array([m.stddev])) for m in predicates]
    targets, noise = (
        torch.tensor(np.concatenate(part) / total, dtype=torch.float32, device=family.device)
        for part in zip(*merged, strict=True)
    )
    cliques = [m.clique for m in tables]
    answers = ProductAnswers(family.columns, cliques)
    lines = None
    if predicates:
        asked = Predicates(family.ranks.whole, [m.predicate for m in predicates])
        lines = family.thresholds(asked)

    def loss_at(free: torch.Tensor, temperature: float | None) -> torch.Tensor:
        rows, numbers = family.rows(free, temperature)
        found = answers(rows)
        parts = [found[clique].reshape(-1) for clique in cliques]
        if lines is not None:
            parts.append(family.satisfied(rows, numbers, lines, temperature))
        return ((torch.cat(parts) - targets) / noise).square().mean()

    return loss_at
