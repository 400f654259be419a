"""GEM's generator: a network that turns a fixed batch of Gaussian noise into product rows.

Liu, Vietri and Wu (2021), section 5 and appendix B.1: G(z) is a row of per-attribute
probabilities, and the batch z_1 ... z_B stands for B sub-populations. Each hidden layer is linear,
normalised over the batch, rectified, and passed on together with its own input.

The batch is drawn once and belongs to the model. Normalisation always uses the batch's own mean and
variance (training mode), so a row depends on the whole batch and there are no running statistics:
the weights are all that an average of generators has to average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from mechanisms.families.product_mixture import Columns


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
