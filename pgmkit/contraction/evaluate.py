"""Evaluation of a contraction plan on tensors, without fixed buffers, in one of three semirings.

``LINEAR`` has ordinary sums of products, whose entries may be negative. ``LOG`` works on
logarithms: its product is ``+`` and its sum log-sum-exp, for values of any range, exact also at
minus infinity. ``MAX`` has the product ``+`` and the sum ``max``, for most probable assignments
(MAP).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

import numpy as np

from pgmkit.contraction import kernels
from pgmkit.contraction.plan import Axes, Kernel, Plan, transposes
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


def forward(plan: Plan, tensors: Sequence[torch.Tensor], semiring: Semiring) -> list[torch.Tensor]:
    """Return all values of the plan: the input tensors, then the result of every step. The last one
    is the plan's result, with its axes in the order ``plan.axes[-1]`` and not yet in that of
    ``plan.output``.
    """
    values = list(tensors)
    for step in plan.steps:
        if step.kernel is None or step.right is None:
            shape = [plan.sizes[name] for name in step.kept]
            values.append(semiring.reduce(values[step.left], step.source, step.kept).reshape(shape))
        else:
            product = semiring.contract(values[step.left], values[step.right], step.kernel)
            values.append(step.kernel.restore(product))
    return values


def contract(plan: Plan, tensors: Sequence[torch.Tensor], semiring: Semiring) -> torch.Tensor:
    """Return the contraction of ``tensors``, one for each of ``plan.inputs`` with its axes in that
    order, as a tensor with axes ``plan.output``.

    >>> from pgmkit.contraction.order import plan
    >>> p = plan([("a", "b"), ("b",)], ("a",), {"a": 2, "b": 3})
    >>> contract(p, [torch.ones(2, 3), torch.arange(3.0)], LINEAR)
    tensor([3., 3.])
    """
    result = forward(plan, tensors, semiring)[-1]
    return result.permute([plan.axes[-1].index(name) for name in plan.output])


def adjoints(plan: Plan, values: Sequence[torch.Tensor], semiring: Semiring) -> list[torch.Tensor]:
    """Return, for every input of a plan without output axes, the contraction of all *other* inputs,
    with the axes of that input. ``values`` are those that ``forward`` returns.

    In the linear semiring this is the derivative of the result with respect to the input. The input
    times its adjoint, divided by the result, is the input's marginal.
    """
    found: list[torch.Tensor | None] = [None] * len(values)
    found[-1] = torch.full_like(values[-1], semiring.one)
    for step in reversed(plan.steps):
        upper = found[step.out]
        assert upper is not None
        if step.kernel is None or step.right is None:
            shape = [plan.sizes[name] if name in step.kept else 1 for name in step.source]
            found[step.left] = upper.reshape(shape).expand(values[step.left].shape)
            continue
        to_left, to_right = transposes(step.kernel)
        right, left = values[step.right], values[step.left]
        found[step.left] = to_left.restore(semiring.contract(upper, right, to_left))
        found[step.right] = to_right.restore(semiring.contract(upper, left, to_right))
    return [value for value in found[: len(plan.inputs)] if value is not None]


def maximiser(plan: Plan, values: Sequence[torch.Tensor]) -> dict[str, int]:
    """Return a record, a mapping from every attribute to a code, at which the maximum of a plan
    without output axes is attained. ``values`` are those that ``forward`` returns in the semiring
    ``MAX``.
    """
    chosen: dict[str, int] = {}

    def fixed(value: int) -> tuple[torch.Tensor, Axes]:
        axes = plan.axes[value]
        table = values[value][tuple(chosen.get(name, slice(None)) for name in axes)]
        return table, tuple(name for name in axes if name not in chosen)

    for step in reversed(plan.steps):
        table, free = fixed(step.left)
        if step.right is not None:
            other, other_free = fixed(step.right)
            table = table + other.permute([other_free.index(name) for name in free])
        codes = np.unravel_index(int(table.argmax()), table.shape)
        chosen.update(zip(free, map(int, codes), strict=True))
    return chosen
