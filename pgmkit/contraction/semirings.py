"""Three semirings in which tensors are multiplied and summed.

``LINEAR`` has ordinary sums of products, whose entries may be negative. ``LOG`` works on
logarithms: its product is ``+`` and its sum log-sum-exp, for values of any range, exact also at
minus infinity. ``MAX`` has the product ``+`` and the sum ``max``, for most probable assignments
(MAP).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from pgmkit.contraction import kernels
from pgmkit.contraction.plan import Axes, Kernel
from pgmkit.runtime.deferred import torch


def arrange(value: torch.Tensor, axes: Axes, *groups: Axes) -> torch.Tensor:
    """Return ``value`` with its axes in the order of ``groups`` and each group flattened into one
    dimension; a view if the strides allow it.
    """
    shape = []
    order = []
    for group in groups:
        places = [axes.index(name) for name in group]
        order += places
        shape.append(prod(value.shape[place] for place in places))
    return value.permute(order).reshape(shape)


class Linear:
    """The semiring of ordinary sums and products."""

    one = 1.0

    def reduce(self, value: torch.Tensor, axes: Axes, kept: Axes) -> torch.Tensor:
        return arrange(value, axes, kept, tuple(n for n in axes if n not in kept)).sum(1)

    def contract(self, left: torch.Tensor, right: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        a = arrange(left, kernel.left, kernel.batch, kernel.rows, kernel.summed)
        b = arrange(right, kernel.right, kernel.batch, kernel.summed, kernel.columns)
        return torch.bmm(a, b)


@dataclass(frozen=True)
class LogSpace:
    """A semiring on logarithms, whose product is ``+``."""

    one: ClassVar[float] = 0.0
    over: Callable[[torch.Tensor], torch.Tensor]
    """The semiring's sum over the last dimension: log-sum-exp, minus infinity if all terms are, or
    the maximum.
    """
    stacks: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """The semiring's product of two stacks of matrices, of shapes (batch, rows, summed) and (batch,
    columns, summed).
    """

    def reduce(self, value: torch.Tensor, axes: Axes, kept: Axes) -> torch.Tensor:
        return self.over(arrange(value, axes, kept, tuple(n for n in axes if n not in kept)))

    def contract(self, left: torch.Tensor, right: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        a = arrange(left, kernel.left, kernel.batch, kernel.rows, kernel.summed)
        b = arrange(right, kernel.right, kernel.batch, kernel.columns, kernel.summed)
        return self.stacks(a, b)


Semiring = Linear | LogSpace
LINEAR = Linear()
LOG = LogSpace(kernels.log_sum, kernels.log_contract)
MAX = LogSpace(lambda value: value.amax(-1), kernels.max_contract)
