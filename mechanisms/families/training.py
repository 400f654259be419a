"""Training GEM's generator on noisy answers or on public data; no Curator in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mechanisms.families.generator import Generator
from mechanisms.families.product_mixture import Columns, ProductAnswers
from mechanisms.families.targets import Targets
from pgmkit.dataset import Dataset
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement

if TYPE_CHECKING:
    from mechanisms.gem import Gem, GemPub

__all__ = ["GemState", "pretrain", "trainer"]

_LEAST_RATE = 1e-8
_MARGINALS_A_STEP = 32


@dataclass(frozen=True, eq=False)
class GemState:
    """The generator between updates: its weights and its rows of probabilities.

    `average`: the moving average of the weights over the last half of the rounds, None before it.
    `error`: the moving average of the largest error on noisy answers, a fraction of the total.
    `round` counts finished rounds.
    """

    weights: tuple[torch.Tensor, ...]
    rows: torch.Tensor
    average: tuple[torch.Tensor, ...] | None = None
    error: float | None = None
    round: int = 0


def trainer(
    generator: Generator, columns: Columns, settings: Gem, rounds: int, total: float
) -> Callable[[GemState, Sequence[Measurement]], GemState]:
    """GEM-UPDATE (Algorithm 3) on all noisy answers so far, with a new Adam each time."""
    random = torch.Generator(settings.device).manual_seed(settings.seed)

    def update(state: GemState, measurements: Sequence[Measurement]) -> GemState:
        targets = Targets(columns, measurements, total, settings.device)
        generator.set_weights(state.weights)
        optimizer = torch.optim.Adam(generator.parameters(), lr=settings.learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, settings.steps, min(_LEAST_RATE, settings.learning_rate)
        )
        rows = generator()
        errors = targets.errors(rows)
        largest = float(errors.detach().abs().max())
        error = largest if state.error is None else (state.error + largest) / 2
        # Half of the (averaged) largest error; an error within the noise is none.
        threshold = (settings.tolerance * targets.stddevs).clamp_min(error / 2)
        for _ in range(settings.steps):
            if settings.gradient == "reinforce":
                errors = targets.score_errors(rows, settings.records, random)
            loss = (
                squared_errors(errors, targets.stddevs)
                if settings.select == "marginals"
                else worst_errors(errors, threshold, settings.worst)
            )
            if loss is None:
                break
            optimizer.zero_grad()
            torch.autograd.backward([loss])
            optimizer.step()
            schedule.step()
            rows = generator()
            errors = targets.errors(rows)
        return _next(state, generator, rows.detach(), error, rounds, settings.smoothing)

    return update


def _next(
    state: GemState,
    generator: Generator,
    rows: torch.Tensor,
    error: float,
    rounds: int,
    smoothing: float,
) -> GemState:
    weights = generator.weights_now()
    done = state.round + 1
    average = state.average
    if 2 * done >= rounds:
        average = average or weights
        average = tuple(
            smoothing * before + (1 - smoothing) * now
            for before, now in zip(average, weights, strict=True)
        )
    return GemState(weights, rows, average, error, done)


def worst_errors(errors: torch.Tensor, threshold: torch.Tensor, most: int) -> torch.Tensor | None:
    """The mean absolute error over the active set: the `most` worst of those at the threshold.

    None when the set is empty: there is nothing to train.

    >>> errors = torch.tensor([0.5, -0.2, 0.1])
    >>> worst_errors(errors, torch.full((3,), 0.15), 100).item()
    0.3499...
    """
    active = errors.abs()[errors.detach().abs() >= threshold]
    if not len(active):
        return None
    return active.topk(min(most, len(active))).values.mean()


def squared_errors(errors: torch.Tensor, stddevs: torch.Tensor) -> torch.Tensor | None:
    """The mean squared error in units of the noise; None when it is 1 or less, as noise itself is.

    >>> squared_errors(torch.tensor([2.0, 4.0]), torch.tensor([2.0, 1.0])).item()
    8.5
    """
    loss = (errors / stddevs).square().mean()
    return None if float(loss.detach()) <= 1 else loss


def pretrain(
    generator: Generator,
    columns: Columns,
    cliques: Sequence[Clique],
    public: Dataset,
    settings: GemPub,
) -> None:
    """Fit the generator to public marginals (section 6.2): the cliques over public attributes.

    Squared errors on a few marginals a step, drawn at random; attributes that the public data
    lack are left as they are.
    """
    known = [clique for clique in cliques if all(name in public.domain for name in clique)]
    counts = public.marginals(known)
    tables = {
        clique: torch.tensor(counts[clique] / len(public), dtype=torch.float32).to(settings.device)
        for clique in known
    }
    random = torch.Generator().manual_seed(settings.seed)
    rate = settings.pretrain_rate
    optimizer = torch.optim.Adam(generator.parameters(), lr=rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, settings.pretrain_steps, rate / 100
    )
    for _ in range(settings.pretrain_steps):
        order = torch.randperm(len(known), generator=random)[:_MARGINALS_A_STEP]
        picked = [known[place] for place in order.tolist()]
        answers = ProductAnswers(columns, picked)(generator())
        loss = torch.stack([(answers[c] - tables[c]).square().sum() for c in picked]).mean()
        optimizer.zero_grad()
        torch.autograd.backward([loss])
        optimizer.step()
        schedule.step()
