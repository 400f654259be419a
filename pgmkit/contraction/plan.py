"""The parts of a contraction of named tensors: kernels of two operands, steps, and plans of
steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from pgmkit.runtime.deferred import torch

Axes = tuple[str, ...]


class Kernel:
    """One pairwise contraction ``left, right -> out`` as a batched matrix product.

    ``batch`` axes are in both operands and kept, ``rows`` in the left only, ``columns`` in the
    right only, ``summed`` in both and summed out; ``groups`` are (batch, rows, summed, columns),
    and ``extents`` their cells.
    """

    def __init__(self, left: Axes, right: Axes, out: Axes, sizes: Mapping[str, int]) -> None:
        self.left, self.right, self.out, self.sizes = left, right, out, sizes
        self.batch = tuple([n for n in out if n in left and n in right])
        self.rows = tuple([n for n in out if n not in right])
        self.summed = tuple([n for n in left if n not in out])
        self.columns = tuple([n for n in out if n not in left])
        self.groups = self.batch, self.rows, self.summed, self.columns
        self.extents = tuple([prod([sizes[n] for n in group]) for group in self.groups])

    @classmethod
    def product(
        cls, left: Axes, right: Axes, gone: Collection[str], sizes: Mapping[str, int]
    ) -> Kernel:
        """Return the kernel that sums the axes ``gone`` out of ``left * right``.

        Only this function orders the axes of products. The order is (batch, rows, columns), in
        which a batched matrix product returns them, so no evaluation of a plan has to permute a
        result.
        """
        batch = tuple(n for n in left if n in right and n not in gone)
        rows = tuple(n for n in left if n not in right)
        columns = tuple(n for n in right if n not in left)
        return cls(left, right, batch + rows + columns, sizes)

    @property
    def cost(self) -> int:
        """The number of multiplications."""
        return prod(self.extents)

    def restore(self, value: torch.Tensor) -> torch.Tensor:
        """Return ``value``, a result of shape (batch, rows, columns), with one dimension for each
        of the axes ``out``, in this order.
        """
        axes = self.batch + self.rows + self.columns
        named = value.reshape([self.sizes[name] for name in axes])
        return named.permute([axes.index(name) for name in self.out])


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan, which computes value number ``out``.

    It contracts the values ``left`` and ``right`` as ``kernel`` says. If ``right`` and ``kernel``
    are None, it sums ``left`` over all axes but ``kept``. ``source`` are the axes of ``left``, and
    ``kept`` those of the result.
    """

    left: int
    right: int | None
    out: int
    kernel: Kernel | None
    source: Axes
    kept: Axes


@dataclass(frozen=True)
class Plan:
    """The steps that contract tensors with axes ``inputs`` to one with axes ``output``.

    The values of a plan are numbered: first its inputs, then the result of every step.
    """

    inputs: tuple[Axes, ...]
    output: Axes
    sizes: Mapping[str, int]
    steps: tuple[Step, ...]
    axes: tuple[Axes, ...]
    """The axes of every value; those of a product are the batch axes, rows and columns of its
    kernel, in this order.
    """

    def __post_init__(self) -> None:
        for step in self.steps:
            k = step.kernel
            own = step.kept if k is None else k.batch + k.rows + k.columns
            assert self.axes[step.out] == own, f"value {step.out} has axes {self.axes[step.out]}"

    def cells(self, value: int) -> int:
        """Return the number of cells of a value, given its number."""
        return self._cells[value]

    @cached_property
    def _cells(self) -> tuple[int, ...]:
        return tuple(prod([self.sizes[name] for name in axes]) for axes in self.axes)

    @cached_property
    def largest(self) -> int:
        """The number of cells of the plan's largest value, which may be an input."""
        return max(self.cells(value) for value in range(len(self.axes)))

    @cached_property
    def cost(self) -> int:
        """The approximate number of multiplications and additions of one evaluation."""
        return sum(s.kernel.cost if s.kernel else self.cells(s.left) for s in self.steps)


def transposes(kernel: Kernel) -> tuple[Kernel, Kernel]:
    """Return the kernels that compute the adjoint of the left operand from (adjoint of the result,
    right operand), and that of the right operand from (adjoint of the result, left operand).
    """
    to_left = Kernel(kernel.out, kernel.right, kernel.left, kernel.sizes)
    return to_left, Kernel(kernel.out, kernel.left, kernel.right, kernel.sizes)


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
    axis = "*" * (1 + max(map(len, plan.sizes), default=0))  # no attribute has a name so long
    sizes = {axis: count, **plan.sizes}

    def beside(axes: Axes) -> Axes:
        return (axis, *axes)

    def step(each: Step) -> Step:
        k = each.kernel
        kernel = k and Kernel(beside(k.left), beside(k.right), beside(k.out), sizes)
        return replace(each, kernel=kernel, source=beside(each.source), kept=beside(each.kept))

    inputs, axes = tuple(map(beside, plan.inputs)), tuple(map(beside, plan.axes))
    return Plan(inputs, beside(plan.output), sizes, tuple(map(step, plan.steps)), axes)
