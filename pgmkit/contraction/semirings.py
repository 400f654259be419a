"""Three semirings in which tensors are multiplied and summed.

``LINEAR`` has ordinary sums of products, whose entries may be negative. ``LOG`` works on
logarithms: its product is ``+`` and its sum log-sum-exp, for values of any range, exact also at
minus infinity. ``MAX`` has the product ``+`` and the sum ``max``, for most probable assignments
(MAP).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from math import prod

from pgmkit.contraction import kernels
from pgmkit.contraction.plan import Axes, Kernel
from pgmkit.runtime.deferred import torch


def arrange(value: torch.Tensor, axes: Axes, *groups: Axes) -> torch.Tensor:
    """Return ``value`` with its axes in the order of ``groups`` and each group flattened into one
    dimension; a view if the strides allow it.
    """
    places = [[axes.index(name) for name in group] for group in groups]
    shape = [prod([value.shape[place] for place in group]) for group in places]
    return value.permute([*chain.from_iterable(places)]).reshape(shape)


@dataclass(frozen=True)
class Semiring:
    """A way to multiply and to sum the cells of tensors."""

    one: float
    """The semiring's neutral element of multiplication: 1, or its logarithm."""
    over: Callable[[torch.Tensor], torch.Tensor]
    """The semiring's sum over the last dimension: the ordinary sum, log-sum-exp (minus infinity if
    all terms are) or the maximum.
    """
    stacks: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """The semiring's product of two stacks of matrices, of shapes (batch, rows, summed) and (batch,
    columns, summed), as a stack of shape (batch, rows, columns).
    """

    def reduce(self, value: torch.Tensor, axes: Axes, kept: Axes) -> torch.Tensor:
        """Return ``value``, which has these axes, summed over all but ``kept``: a vector of the
        cells over ``kept``, in its order.
        """
        return self.over(arrange(value, axes, kept, tuple(n for n in axes if n not in kept)))

    def contract(self, left: torch.Tensor, right: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        """Return the contraction as a stack of shape (batch, rows, columns), the form that
        ``kernel.restore`` takes.
        """
        a = arrange(left, kernel.left, kernel.batch, kernel.rows, kernel.summed)
        b = arrange(right, kernel.right, kernel.batch, kernel.columns, kernel.summed)
        return self.stacks(a, b)


LINEAR = Semiring(
    1.0, lambda value: value.sum(-1), lambda left, right: torch.bmm(left, right.transpose(1, 2))
)
LOG = Semiring(0.0, kernels.log_sum, kernels.log_contract)
MAX = Semiring(0.0, lambda value: value.amax(-1), kernels.max_contract)
