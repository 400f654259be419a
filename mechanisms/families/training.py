"""The training, on noisy answers or on public data, of GEM's generator, a network that turns a
fixed batch of Gaussian noise into product rows; nothing here sees a Curator.

Liu, Vietri and Wu (2021), section 5 and appendix B.1: G(z) is a row of per-attribute
probabilities, and the batch z_1 ... z_B stands for B sub-populations. Each hidden layer is linear,
normalised over the batch, rectified, and passed on together with its own input.

The batch is drawn once and belongs to the model. Normalisation always uses the batch's own mean and
variance (training mode), so a row depends on the whole batch and there are no running statistics:
the weights are all that an average of generators has to average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from mechanisms.families.fitting import ProductRows, Targets, descend
from mechanisms.families.product_mixture import Columns, ProductAnswers
from mechanisms.settings import Settings
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement
from pgmkit.records.dataset import Dataset


class Generator(torch.nn.Module):
    """Product rows (batch x columns.width, float32) from `batch` fixed noise vectors.

    `noise_width` is the length of a noise vector and `hidden` the widths of the hidden layers: the
    paper's network has 512 and (1024, 1024). Weights and noise come only from `random` (on the CPU,
    so that they do not depend on the device). `precision`: the format of the layers' products;
    weights and rows are always float32.

    >>> from pgmkit.domain import Domain
    >>> columns = Columns(Domain({"a": 2, "b": 3}))
    >>> generator = Generator(columns, 4, (8, 8), 10, torch.Generator().manual_seed(0))
    >>> generator().shape
    torch.Size([10, 5])
    """

    noise: torch.Tensor

    def __init__(
        self,
        columns: Columns,
        noise_width: int,
        hidden: Sequence[int],
        batch: int,
        random: torch.Generator,
        precision: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.columns = columns
        inputs = [noise_width]
        self.layers = torch.nn.ModuleList()
        for width in (*hidden, columns.width):
            self.layers.append(_Linear(inputs, width, random))
            inputs.append(width)
        # The normalisation's shift makes a bias of the hidden layers redundant.
        self.scales = torch.nn.ParameterList(torch.ones(width) for width in hidden)
        self.shifts = torch.nn.ParameterList(torch.zeros(width) for width in hidden)
        self.bias = torch.nn.Parameter(torch.zeros(columns.width))
        self.register_buffer("noise", torch.randn(batch, noise_width, generator=random))
        self._precision = precision

    def forward(self) -> torch.Tensor:
        """Return the rows; differentiable in the weights."""
        values = [self.noise.to(self._precision)]
        *hidden, last = self.layers
        for layer, scale, shift in zip(hidden, self.scales, self.shifts, strict=True):
            normal = functional.batch_norm(layer(values), None, None, scale, shift, training=True)
            values.append(functional.relu(normal))
        return self.columns.softmax(last(values).float() + self.bias)

    @property
    def multiplications(self) -> int:
        """An estimate of the number of multiplications in a training step: one pass forward and two
        passes back.

        The passes back compute the gradients with respect to the weights and to the layers' inputs.
        The gradient with respect to the noise is not computed, though it is counted here.
        """
        matrices = sum(parameter.numel() for parameter in self.parameters() if parameter.ndim == 2)
        return 3 * len(self.noise) * matrices

    @property
    def parameter_count(self) -> int:
        """The number of trained parameters: the layers' weights, the normalisations' scales and
        shifts, and the last layer's bias.
        """
        return sum(parameter.numel() for parameter in self.parameters())

    def weights_now(self) -> tuple[torch.Tensor, ...]:
        """Return a copy of all weights."""
        return tuple(parameter.detach().clone() for parameter in self.parameters())

    @torch.no_grad()
    def set_weights(self, weights: Sequence[torch.Tensor]) -> None:
        """Set the weights to a result of `weights_now`, or to an average of several results."""
        for parameter, weight in zip(self.parameters(), weights, strict=True):
            parameter.copy_(weight)


class _Linear(torch.nn.Module):
    """A linear layer without bias, from several inputs to `width` outputs. Its result is that for
    the concatenated inputs, computed as the sum of each input times a weight matrix of its own.

    Separate inputs need not be copied into one array, and no gradient is computed for the noise,
    which is fixed.
    """

    def __init__(self, inputs: Sequence[int], width: int, random: torch.Generator) -> None:
        super().__init__()
        # The weights have torch's distribution for a linear layer, drawn from the given generator.
        bound = 1 / math.sqrt(sum(inputs))
        self.weights = torch.nn.ParameterList(
            torch.empty(width, size).uniform_(-bound, bound, generator=random) for size in inputs
        )

    def forward(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        weights = [weight.to(values[0].dtype) for weight in self.weights]
        total = functional.linear(values[0], weights[0])
        for value, weight in zip(values[1:], weights[1:], strict=True):
            total = torch.addmm(total, value, weight.t())
        return total


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
