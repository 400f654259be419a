"""Evaluation of a contraction plan on tensors, without fixed buffers.

A plan is evaluated in one of the semirings of ``pgmkit.contraction.semirings``, as often as needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgmkit.contraction.plan import Axes, Plan, transposes
from pgmkit.contraction.semirings import Semiring
from pgmkit.runtime.deferred import torch


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
    >>> from pgmkit.contraction.semirings import LINEAR
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
