"""A plan for many contractions of the same structure at once: every value has one more axis."""

from __future__ import annotations

from dataclasses import replace

from pgmkit.contraction.plan import Axes, Kernel, Plan, Step


def batched(plan: Plan, count: int) -> Plan:
    """Return a plan that runs ``plan`` on ``count`` sets of input tensors at once, in the same
    order of steps.

    Every input, every value and the output has one more axis, the first, which numbers the sets. No
    step sums over it, so every kernel has it among its batch axes.

    >>> from pgmkit.contraction.order import plan
    >>> p = batched(plan([("a", "b"), ("b",)], (), {"a": 2, "b": 3}), 5)
    >>> [len(axes) for axes in p.axes], p.cells(0), p.cells(len(p.axes) - 1)
    ([3, 2, 2, 1], 30, 5)
    """
    axis = "*" * (1 + max(map(len, plan.sizes), default=0))  # longer, so no attribute's name
    sizes = {axis: count, **plan.sizes}

    def beside(axes: Axes) -> Axes:
        return (axis, *axes)

    def step(each: Step) -> Step:
        k = each.kernel
        kernel = k and Kernel(beside(k.left), beside(k.right), beside(k.out), sizes)
        return replace(each, kernel=kernel, source=beside(each.source), kept=beside(each.kept))

    inputs, axes = tuple(map(beside, plan.inputs)), tuple(map(beside, plan.axes))
    return Plan(inputs, beside(plan.output), sizes, tuple(map(step, plan.steps)), axes)
