"""Training of GEM's generator on noisy answers or on public data; nothing here sees a Curator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from mechanisms.families.descent import descend
from mechanisms.families.generator import Generator
from mechanisms.families.product_mixture import ProductAnswers, ProductRows
from mechanisms.families.targets import Targets
from mechanisms.settings import Settings
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement
from pgmkit.records.dataset import Dataset


class TrainingSettings(Settings):
    """The settings for the training of a generator on noisy answers, which `Gem` describes."""

    select: str
    learning_rate: float
    steps: int
    worst: int
    tolerance: float
    gradient: str
    records: int
    seed: int

    def loss(
        self, errors: torch.Tensor, stddevs: torch.Tensor, threshold: torch.Tensor
    ) -> torch.Tensor | None:
        """Return the loss that an update minimises, given errors, the standard deviations of their
        noise and the threshold of each, all as fractions of the total; None if there is nothing to
        train. For single queries it is that of `worst_errors`, for whole marginals that of
        `squared_errors` (appendix D.4), which uses no thresholds.
        """
        if self.select == "marginals":
            return squared_errors(errors, stddevs)
        return worst_errors(errors, threshold, self.worst)


class PretrainingSettings(TrainingSettings):
    """The settings of `TrainingSettings`, and those for the fit to public data, which `GemPub`
    describes.
    """

    pretrain_steps: int
    pretrain_rate: float


@dataclass(frozen=True, eq=False)
class GemState(ProductRows):
    """The generator between updates: its rows of probabilities and the weights of its network.

    `average`: the moving average of the weights over the rounds that end after half of the rounds'
    budget is spent; None before the first of them. `error`: the moving average over all rounds of
    the largest error on noisy answers, as a fraction of the total; None before the first round.
    """

    weights: tuple[torch.Tensor, ...] = ()
    average: tuple[torch.Tensor, ...] | None = None
    error: float | None = None


def trainer(
    generator: Generator,
    settings: TrainingSettings,
    smoothing: Callable[[], float | None],
    total: float,
) -> Callable[[GemState, Sequence[Measurement]], GemState]:
    """Return GEM-UPDATE (Algorithm 3), which trains on all noisy answers so far with a new Adam
    each time.

    `smoothing` returns the factor of the previous moving average of the network's weights in this
    round, or None before the averaging starts (`GemState`). `total`: the number of records, which
    may be noisy, by which noisy answers are divided.
    """
    device = generator.noise.device
    random = torch.Generator(device).manual_seed(settings.seed)

    def update(state: GemState, measurements: Sequence[Measurement]) -> GemState:
        known = state.frequent.measured(measurements) if state.frequent else measurements
        targets = Targets(generator.columns, known, total, device)
        generator.set_weights(state.weights)
        rows = generator()
        errors = targets.errors(rows)
        largest = float(errors.detach().abs().max())
        error = largest if state.error is None else (state.error + largest) / 2
        # The threshold of an answer is half of the averaged largest error, or `tolerance` standard
        # deviations of the answer's noise if that is more.
        threshold = (settings.tolerance * targets.stddevs).clamp_min(error / 2)

        def losses() -> Iterator[torch.Tensor | None]:
            now, off = rows, errors
            while True:
                if settings.gradient == "reinforce":
                    off = targets.score_errors(now, settings.records, random)
                yield settings.loss(off, targets.stddevs, threshold)
                now = generator()
                off = targets.errors(now)

        optimizer = torch.optim.Adam(generator.parameters(), lr=settings.learning_rate, fused=True)
        # The learning rate falls along a cosine, so far that the last steps hardly change weights.
        descend(optimizer, losses(), settings.steps, last_rate=min(1e-8, settings.learning_rate))
        weights, average, factor = generator.weights_now(), state.average, smoothing()
        if factor is not None:
            pairs = zip(average or weights, weights, strict=True)
            average = tuple(factor * before + (1 - factor) * now for before, now in pairs)
        rows = generator().detach()
        return replace(state, rows=rows, weights=weights, average=average, error=error)

    return update


def worst_errors(errors: torch.Tensor, threshold: torch.Tensor, most: int) -> torch.Tensor | None:
    """Return the mean absolute error over the active set: the `most` largest of the errors that
    reach their threshold in absolute value.

    Return None if no error reaches it, so that there is nothing to train.

    >>> errors = torch.tensor([0.5, -0.2, 0.1])
    >>> worst_errors(errors, torch.full((3,), 0.15), 100).item()
    0.3499...
    """
    active = errors.abs()[errors.detach().abs() >= threshold]
    if not len(active):
        return None
    return active.topk(min(most, len(active))).values.mean()


def squared_errors(errors: torch.Tensor, stddevs: torch.Tensor) -> torch.Tensor | None:
    """Return the mean squared error in units of the noise's variance; None if it is at most 1,
    which noise alone explains.

    >>> squared_errors(torch.tensor([2.0, 4.0]), torch.tensor([2.0, 1.0])).item()
    8.5
    """
    loss = (errors / stddevs).square().mean()
    return None if float(loss.detach()) <= 1 else loss


def pretrain(
    generator: Generator, cliques: Sequence[Clique], public: Dataset, settings: PretrainingSettings
) -> None:
    """Fit the generator to the public data's marginals over those cliques whose attributes are all
    public (section 6.1).

    Each step uses the squared errors on up to 32 of these marginals, drawn at random.
    """
    known = [clique for clique in cliques if all(name in public.domain for name in clique)]
    counts = public.marginals(known)
    device = generator.noise.device
    tables = {
        clique: torch.tensor(counts[clique] / len(public), dtype=torch.float32).to(device)
        for clique in known
    }
    random = torch.Generator().manual_seed(settings.seed)

    def losses() -> Iterator[torch.Tensor]:
        while True:
            # Each step uses a batch of marginals, as there may be thousands of them.
            order = torch.randperm(len(known), generator=random)[:32]
            picked = [known[place] for place in order.tolist()]
            answers = ProductAnswers(generator.columns, picked)(generator())
            yield torch.stack([(answers[c] - tables[c]).square().sum() for c in picked]).mean()

    rate = settings.pretrain_rate
    optimizer = torch.optim.Adam(generator.parameters(), lr=rate, fused=True)
    descend(optimizer, losses(), settings.pretrain_steps, last_rate=rate / 100)
