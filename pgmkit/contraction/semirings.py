"""Three semirings in which tensors are multiplied and summed.

``LINEAR`` has ordinary sums of products, whose entries may be negative. ``LOG`` works on
logarithms: its product is ``+`` and its sum log-sum-exp, for values of any range, exact also at
minus infinity. ``MAX`` has the product ``+`` and the sum ``max``, for most probable assignments
(MAP).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod

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

    def multiply(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left * right

    def contract(self, left: torch.Tensor, right: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        a = arrange(left, kernel.left, kernel.batch, kernel.rows, kernel.summed)
        b = arrange(right, kernel.right, kernel.batch, kernel.summed, kernel.columns)
        return torch.bmm(a, b)


class _LogSpace(ABC):
    """A semiring on logarithms, whose product is ``+``; each subclass defines the sum."""

    one = 0.0

    @abstractmethod
    def over(self, value: torch.Tensor) -> torch.Tensor:
        """Return the semiring's sum over the last dimension: log-sum-exp or the maximum."""

    @abstractmethod
    def stacks(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return the semiring's product of two stacks of matrices, of shapes (batch, rows, summed)
        and (batch, columns, summed).
        """

    def reduce(self, value: torch.Tensor, axes: Axes, kept: Axes) -> torch.Tensor:
        return self.over(arrange(value, axes, kept, tuple(n for n in axes if n not in kept)))

    def multiply(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + right

    def contract(self, left: torch.Tensor, right: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        a = arrange(left, kernel.left, kernel.batch, kernel.rows, kernel.summed)
        b = arrange(right, kernel.right, kernel.batch, kernel.columns, kernel.summed)
        return self.stacks(a, b)


class Log(_LogSpace):
    """The semiring of logarithms: the sum is log-sum-exp, minus infinity if all terms are."""

    def over(self, value: torch.Tensor) -> torch.Tensor:
        return kernels.log_sum(value)

    def stacks(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return kernels.log_contract(left, right)


class Max(_LogSpace):
    """The semiring of maxima: the product is ``+`` and the sum ``max``."""

    def over(self, value: torch.Tensor) -> torch.Tensor:
        return value.amax(-1)

    def stacks(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return kernels.max_contract(left, right)


Semiring = Linear | Log | Max
LINEAR, LOG, MAX = Linear(), Log(), Max()
