"""RAP++: relaxed rows of mixed types, fitted to marginals and thresholds by tempered sigmoids.

Vietri et al., "Private synthetic data for multitask learning and marginal queries" (2022),
Algorithms 1 and 2. Numeric attributes have many ordered codes (`mechanisms.queries.predicates`).
Every attribute is measured first, together with each label if there are labels; the first rows are
records of these answers. In each of T epochs the marginal that is answered worst is selected and
measured, and then the K worst answered linear thresholds. Every noisy answer is kept as it was
drawn, and released (re-drawing the history, as the authors' code does, would cost it again).

Marginals are measured whole: a table of any size costs at most twice what one of its cells does.
Thresholds have random directions, in which numeric attributes weigh alike, and each passes through
the numbers of a random one of the first rows.
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
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mechanisms import settings as rules
from mechanisms.families import training_memory
from mechanisms.families.fitting import FreeRows, descend, fitted_or_stalled
from mechanisms.families.mixed_rows import MixedRows, Ranks
from mechanisms.families.product_mixture import Columns, ProductAnswers, ProductMixtureModel
from mechanisms.privacy.curator import Curator
from mechanisms.queries.cells import Question, clique_of
from mechanisms.queries.predicates import (
    MeasuredPredicate,
    Predicate,
    Predicates,
    linear_thresholds,
)
from mechanisms.release.record import Measured
from mechanisms.rounds.loop import Outcome, Progress, mechanism
from mechanisms.rounds.merging import MOST_GROUPS, groups_of
from mechanisms.rounds.select_and_measure import SelectionRounds, check_enough, known_total
from mechanisms.settings import Settings, setting
from mechanisms.workload import Workload, varied
from pgmkit import InvalidInput, Measurement, estimate
from pgmkit.domain import Clique, Domain
from pgmkit.graphs.junction_tree import check_fits, junction_tree
from pgmkit.records.counting import check_memory
from pgmkit.runtime.devices import check_room, device_of, gpu_memory
from pgmkit.runtime.memory import MEMORY_LIMIT
from pgmkit.runtime.threads import one_thread


@dataclass(frozen=True)
class RapPlusPlus(Settings):
    """Settings of RAP++; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        numeric: The names of the numeric attributes, whose codes are ordered.
        labels: The categorical attributes that will be predicted: each other attribute is measured
            together with them, and their codes are the classes of linear thresholds. Without labels
            there are no thresholds.
        directions: The number of random linear thresholds for every class, 1 to 1,000,000.
        rounds: The number of rounds T, 1 or more; None for one less than there are categorical
            attributes, as in the paper, but from 1 to 10 and no more than there are marginals (if
            there are thresholds but no marginals, this limit does not apply).
        queries: The number of thresholds K of a round, 1 or more; all rounds together select no
            more than there are.
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

    numeric: tuple[str, ...] = setting((), rules.tuple_of(rules.text(), empty=True))
    labels: tuple[str, ...] = setting((), rules.tuple_of(rules.text(), empty=True))
    directions: int = setting(500, rules.whole_number(1, 10**6))
    rounds: int | None = setting(None, rules.whole_number())
    queries: int = setting(50, rules.whole_number())
    one_way_share: float = setting(0.3, rules.fraction())
    threshold_share: float = setting(0.5, rules.fraction())
    select_share: float = setting(0.5, rules.fraction())
    rows: int = setting(500, rules.whole_number())
    steps: int = setting(100, rules.whole_number())
    learning_rate: float = setting(0.05, rules.positive())
    temperatures: tuple[float, ...] = setting((16.0, 64.0, 256.0), rules.tuple_of(rules.positive()))
    device: str = setting("cpu", rules.torch_device())
    seed: int = setting(0, rules.random_seed())


@mechanism("rap++", RapPlusPlus)
def rap_pp(
    curator: Curator, workload: Workload, settings: RapPlusPlus, *, progress: Progress = None
) -> Outcome:
    """Spend all that remains of the Curator's budget on rows of mixed types, and return the release
    of their product distributions.

    Raises InvalidInput (before anything is spent) for a workload over another domain, unknown
    attributes, labels that are numeric or without numeric attributes, more thresholds than there
    are, thresholds if an engine holds the records and, without thresholds, more rounds than
    marginals; ModelTooLarge for a fit, a model of what is measured first, or marginals of the
    workload that do not fit into memory.
    """
    domain, device = curator.domain, device_of(settings.device)
    plan = Plan.of(workload, settings)
    if plan.thresholds:
        curator.check_in_memory()
    _check_room(device, plan, domain, settings)
    # The first rows are drawn from a graphical model of the first measurements. It must fit into
    # the memory, too.
    check_fits(junction_tree(domain, plan.first), MEMORY_LIMIT)
    check_memory(plan.marginals, domain.sizes)
    cost = (settings.one_way_share if plan.rounds else 1.0) * curator.remaining / len(plan.first)
    first = [curator.measure(clique, cost, step="first: measure") for clique in plan.first]
    total = known_total(curator, first)
    with one_thread(), gpu_memory(device):
        # The first answers give the ranks of numeric attributes and the first rows.
        known = estimate(domain, first, total=total)
        counts = {name: known.marginal([name]) for name in settings.numeric}
        groups = {name: groups_of(c, MOST_GROUPS, len(c)) for name, c in counts.items()}
        family = MixedRows(Ranks(domain, counts, groups), device)
        update = fitter(family, settings)
        records = known.sample(settings.rows, rng=settings.seed)
        random = torch.Generator().manual_seed(settings.seed)
        start = family.state(family.start(records, random), total)
        pool = thresholds_of(family, start, settings) if plan.thresholds else None
        state = update(start, first)
        measurements: Sequence[Measured] = first
        # Without rounds, rounding may leave a last bit of the budget, which buys no question.
        if plan.rounds:
            split = curator, workload, plan.rounds, settings.queries, settings.select_share
            steps = _MixedRounds(*split, settings.threshold_share, plan.marginals, family, pool)
            state, measurements = steps.run(state, first, update, progress)
    return ProductMixtureModel(domain, state.whole_rows(), total), measurements


@dataclass(frozen=True)
class Plan:
    """The first measurements, the questions that rounds select from, and the number of rounds."""

    first: list[Clique]
    """The marginals that are measured before the rounds."""
    marginals: dict[Clique, float]
    """The marginals that rounds select from, and their weights; rounds take out what they measure.
    """
    thresholds: int
    """The number of linear thresholds that rounds select from; 0 without labels."""
    rounds: int
    """The number of rounds; 0 if there is nothing to select from."""

    @classmethod
    def of(cls, workload: Workload, settings: RapPlusPlus) -> Plan:
        """Return the plan of a run. Raises InvalidInput for attributes that are not the domain's,
        for labels without numeric attributes or among them, and for numbers of rounds and queries
        that need more questions than there are.
        """
        domain, labels = workload.domain, settings.labels
        domain.clique(settings.numeric, "numeric")
        domain.clique(labels, "labels")
        if labels and (not settings.numeric or set(labels) & set(settings.numeric)):
            raise InvalidInput(
                f"labels must be categorical attributes, with others that are numeric: got labels "
                f"{labels} and numeric {settings.numeric}; name these in numeric"
            )
        names = varied(domain)
        features = [name for name in names if name not in labels]
        pairs = [*itertools.product(features, labels), *itertools.combinations(labels, 2)]
        first: list[Clique] = [*pairs] or [(name,) for name in names]
        seen = {frozenset(clique) for clique in (*first, *((name,) for name in names))}
        weighted = workload.by_clique.items()
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


@dataclass(eq=False)
class _MixedRounds(SelectionRounds):
    """The select and measure steps of equal rounds: one marginal and K thresholds, except where no
    marginal is left or there are no thresholds. Nothing is selected twice: a selected marginal is
    taken out of `left`, which has the marginals' weights, and thresholds are noted in `_taken`.
    """

    threshold_share: float
    left: dict[Clique, float]
    family: MixedRows
    pool: Predicates | None
    _taken: list[int] = field(default_factory=list, init=False)

    def _select(self, model: Any, step: str) -> list[Question]:
        share = (self.threshold_share if self.left else 1.0) * (self.pool is not None)
        self._share, cost = share, self._select_cost
        picked: list[Question] = []
        if share < 1:
            picked.append(self._worst(self.left, model, 1 - share, step))
        if self.pool is not None:
            picked += self._thresholds(model, self.pool, share * cost, step)
        return picked

    def _thresholds(
        self, state: FreeRows, pool: Predicates, cost: float, step: str
    ) -> list[Predicate]:
        with torch.no_grad():
            lines = self.family.thresholds(pool)
            shares = self.family.satisfied(*self.family.rows(state.free, None), lines, None)
        counts = shares.double().cpu().numpy() * state.total
        picked = self.curator.choose_predicates(
            pool, counts, cost, count=self.queries, exclude=self._taken, step=f"{step} thresholds"
        )
        self._taken.extend(picked)
        return [pool.list[place] for place in picked]

    def _measure(self, picked: Sequence[Question], cost: float, step: str) -> list[Measured]:
        asked = [each for each in picked if isinstance(each, Predicate)]
        of_marginals = cost if not asked else (1 - self._share) * cost
        cliques = [clique_of(each) for each in picked if not isinstance(each, Predicate)]
        found: list[Measured] = [
            self.curator.measure(clique, of_marginals, step=step) for clique in cliques
        ]
        if asked:
            predicates, rest = Predicates(self.curator.domain, asked), cost - of_marginals
            step = f"{step} thresholds"
            values, stddev = self.curator.measure_predicates(predicates, rest, step=step)
            answers = zip(asked, values.tolist(), strict=True)
            found += [MeasuredPredicate(each, value, stddev) for each, value in answers]
        return found


def thresholds_of(family: MixedRows, state: FreeRows, settings: RapPlusPlus) -> Predicates:
    """Return the linear thresholds that rounds select from. Each passes through the numbers of one
    of the rows, which come from noisy answers.
    """
    domain, rng = family.ranks.whole, np.random.default_rng(settings.seed)
    with torch.no_grad():
        points = family.rows(state.free, None)[1].double().cpu().numpy()
    found: list[Predicate] = []
    for label in settings.labels:
        found += linear_thresholds(domain, family.numbers, label, settings.directions, rng, points)
    return Predicates(domain, found)


def _check_room(device: torch.device, plan: Plan, domain: Domain, settings: RapPlusPlus) -> None:
    """Raise ModelTooLarge if memory is too small for the fit."""
    columns, rows, numbers = Columns(domain), settings.rows, len(settings.numeric)
    largest = sorted(plan.marginals, key=domain.size, reverse=True)[: plan.rounds]
    free = columns.width - sum(domain.sizes[name] for name in settings.numeric) + numbers
    needed = training_memory.fitting_tables_bytes(columns, [*plan.first, *largest], rows)
    needed = max(needed, training_memory.answering_bytes(columns, plan.marginals, rows))
    if plan.thresholds:
        selected = plan.rounds * settings.queries
        needed += training_memory.fitting_predicates_bytes(columns, free, selected, numbers, rows)
        needed += training_memory.answering_predicates_bytes(plan.thresholds, numbers, rows)
    check_room(device, needed, f"RAP++ with {rows:,} rows of {free:,} parameters")


def fitter(
    family: MixedRows, settings: RapPlusPlus
) -> Callable[[FreeRows, Sequence[Measured]], FreeRows]:
    """Return the update step: Algorithm 1, which fits the rows to all noisy answers so far, with
    errors in units of their noise. The rows before the step stay if no stage of the fit has a
    smaller loss on the exact thresholds.
    """

    def update(state: FreeRows, measurements: Sequence[Measured]) -> FreeRows:
        loss_at = loss_of(family, measurements, state.total)
        with torch.no_grad():
            best, least = state.free, float(loss_at(state.free, None))
        fitted = state.free.detach().clone().requires_grad_()
        # Only numeric attributes depend on the temperature, so one stage is enough without them.
        for temperature in settings.temperatures if family.numbers else settings.temperatures[-1:]:
            optimizer = torch.optim.Adam([fitted], lr=settings.learning_rate)
            losses = iter(functools.partial(loss_at, fitted, temperature), None)
            descend(optimizer, losses, settings.steps, enough=fitted_or_stalled)
            with torch.no_grad():
                reached = float(loss_at(fitted, None))
            if reached < least:
                best, least = fitted.detach().clone(), reached
        return family.state(best, state.total)

    return update


def loss_of(
    family: MixedRows, measurements: Sequence[Measured], total: float
) -> Callable[[torch.Tensor, float | None], torch.Tensor]:
    """Return the mean squared error of all noisy answers in units of their noise, as a function of
    the rows' parameters and of the inverse temperature. None instead of a temperature makes all
    thresholds exact.
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
        lines = family.thresholds(Predicates(family.ranks.whole, [m.predicate for m in predicates]))

    def loss_at(free: torch.Tensor, temperature: float | None) -> torch.Tensor:
        rows, numbers = family.rows(free, temperature)
        found = answers(rows)
        parts = [found[clique].reshape(-1) for clique in cliques]
        if lines is not None:
            parts.append(family.satisfied(rows, numbers, lines, temperature))
        return ((torch.cat(parts) - targets) / noise).square().mean()

    return loss_at
