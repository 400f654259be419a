"""Forward and backward pass of a scalar contraction plan in two flat buffers, for many repetitions.

Small trees are ruled by the overhead per operation. Here every value of the plan lives in one
buffer and every adjoint in another; the views are made once, an operation writes in place, and
steps of one level that have the same shape run as one batched product over gathered operands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from math import prod

import torch

from pgmkit.contraction import Axes, Kernel, Plan, Step, transposes

Action = Callable[[], object]

_SMALLEST_GROUP = 3
_LARGEST_GROUPED_STEP = 1 << 13
"""Steps above this many multiplications gain nothing from sharing a call."""


class MessagePassing:
    """Values and adjoints of a scalar plan; inputs are ``values[: inputs]``, flattened one after
    another.

    ``run(seed)`` takes what was written to ``inputs`` and leaves the plan's result in ``result``
    and, times ``seed``, the derivative of the result by each input in ``input_adjoints``.
    """

    def __init__(self, plan: Plan, device: torch.device, dtype: torch.dtype) -> None:
        self.plan, self.device = plan, device
        steps = _by_level(plan)
        self.offsets = _layout(plan, steps)
        cells = sum(plan.cells(value) for value in range(len(plan.axes)))
        self.values = torch.zeros(cells, dtype=dtype, device=device)
        self.adjoint = torch.zeros(cells, dtype=dtype, device=device)
        used = sum(plan.cells(value) for value in range(len(plan.inputs)))
        self.inputs, self.input_adjoints = self.values[:used], self.adjoint[:used]
        last = self.offsets[-1]
        self.result = self.values[last : last + 1]
        self._seed = self.adjoint[last : last + 1]
        self._up: list[Action] = []
        self._down: list[Action] = []
        for group in steps:
            self._bind(group)
        self._down.reverse()

    def forward(self) -> torch.Tensor:
        """The plan's result, a tensor of one element that the next run overwrites."""
        for action in self._up:
            action()
        return self.result

    def backward(self, seed: torch.Tensor) -> torch.Tensor:
        """``seed`` times the result's derivatives by the inputs; overwritten by the next run."""
        self._seed.copy_(seed)
        for action in self._down:
            action()
        return self.input_adjoints

    def _bind(self, group: list[Step]) -> None:
        first = group[0]
        if first.kernel is None:
            for step in group:
                self._bind_reduction(step)
        elif len(group) >= _SMALLEST_GROUP:
            self._bind_group(group)
        else:
            for step in group:
                self._bind_pair(step)

    def _view(self, buffer: torch.Tensor, value: int) -> torch.Tensor:
        start = self.offsets[value]
        shape = [self.plan.sizes[name] for name in self.plan.axes[value]]
        return buffer[start : start + self.plan.cells(value)].view(shape)

    def _bind_reduction(self, step: Step) -> None:
        source, out = self._view(self.values, step.left), self._view(self.values, step.out)
        dims = [i for i, name in enumerate(step.source) if name not in step.kept]
        shape = [self.plan.sizes[name] if name in step.kept else 1 for name in step.source]
        target = self._view(self.adjoint, step.left)
        spread = self._view(self.adjoint, step.out).view(shape).expand(target.shape)
        self._up.append(lambda: torch.sum(source, dims, out=out))
        self._down.append(lambda: target.copy_(spread))

    def _bind_pair(self, step: Step) -> None:
        assert step.kernel is not None and step.right is not None
        to_left, to_right = transposes(step.kernel)
        left, right = self._view(self.values, step.left), self._view(self.values, step.right)
        upper = self._view(self.adjoint, step.out)
        self._up.append(_action(step.kernel, left, right, self._view(self.values, step.out)))
        down_left = _action(to_left, upper, right, self._view(self.adjoint, step.left))
        down_right = _action(to_right, upper, left, self._view(self.adjoint, step.right))
        self._down.append(lambda: (down_left(), down_right()))

    def _bind_group(self, group: list[Step]) -> None:
        kernel = group[0].kernel
        assert kernel is not None
        batch, rows, summed, columns = kernel.extents
        size = len(group)
        start = self.offsets[group[0].out]
        cells = size * batch * rows * columns
        values, adjoint = self.values, self.adjoint
        out = values[start : start + cells].view(size * batch, rows, columns)
        upper = adjoint[start : start + cells].view(size * batch, rows, columns)
        upper_t = upper.transpose(1, 2)
        left_cells, right_cells = self._gather(group)
        left_shape, right_shape = (size * batch, rows, summed), (size * batch, summed, columns)

        def up() -> None:
            left = values.index_select(0, left_cells).view(left_shape)
            right = values.index_select(0, right_cells).view(right_shape)
            _multiply(left, right, out)

        def down() -> None:
            left = values.index_select(0, left_cells).view(left_shape)
            right = values.index_select(0, right_cells).view(right_shape)
            to_left = _product(upper, right.transpose(1, 2))
            to_right = _product(upper_t, left).transpose(1, 2)
            adjoint.index_copy_(0, left_cells, to_left.reshape(-1))
            adjoint.index_copy_(0, right_cells, to_right.reshape(-1))

        self._up.append(up)
        self._down.append(down)

    def _gather(self, group: list[Step]) -> tuple[torch.Tensor, torch.Tensor]:
        """Buffer positions of the operands, in (step, batch, rows, summed, columns) order."""
        left, right = [], []
        for step in group:
            k = step.kernel
            assert k is not None and step.right is not None
            left.append(self._positions(step.left, k.batch + k.rows + k.summed))
            right.append(self._positions(step.right, k.batch + k.summed + k.columns))
        return torch.cat(left), torch.cat(right)

    def _positions(self, value: int, order: Axes) -> torch.Tensor:
        axes = self.plan.axes[value]
        shape = [self.plan.sizes[name] for name in axes]
        cells = torch.arange(prod(shape), device=self.device).view(shape) + self.offsets[value]
        return cells.permute([axes.index(name) for name in order]).reshape(-1)


def _by_level(plan: Plan) -> list[list[Step]]:
    """Steps in an executable order, those of one level and one small shape together."""
    level = [0] * len(plan.axes)
    groups: dict[tuple[object, ...], list[Step]] = defaultdict(list)
    for step in plan.steps:
        right = level[step.right] if step.right is not None else 0
        level[step.out] = 1 + max(level[step.left], right)
        small = step.kernel is not None and step.kernel.cost <= _LARGEST_GROUPED_STEP
        shape = step.kernel.extents if small and step.kernel else (step.out,)
        groups[(level[step.out], *shape)].append(step)
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]  # type: ignore[arg-type, return-value]


def _layout(plan: Plan, groups: list[list[Step]]) -> list[int]:
    """Offset of every value: inputs in order, then the groups' results side by side."""
    order = [*range(len(plan.inputs)), *(step.out for group in groups for step in group)]
    offsets, end = [0] * len(plan.axes), 0
    for value in order:
        offsets[value] = end
        end += plan.cells(value)
    return offsets


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Batched matrix product; element by element where one side has nothing to sum."""
    if left.shape[2] == 1:
        return left * right
    if left.shape[1] == 1 and right.shape[2] == 1:
        return (left * right.transpose(1, 2)).sum(2, keepdim=True)
    return torch.bmm(left, right)


def _multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    if left.shape[2] == 1:
        torch.mul(left, right, out=out)
    else:
        out.copy_(_product(left, right))


def _action(kernel: Kernel, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Action:
    """``out = kernel(left, right)`` on fixed storage, in as few calls as strides allow."""
    if not kernel.summed:
        a, b = _aligned(left, kernel.left, kernel.out), _aligned(right, kernel.right, kernel.out)
        return lambda: torch.mul(a, b, out=out)
    if kernel.batch and not kernel.rows and not kernel.columns:
        axes = kernel.batch + kernel.summed
        a, b = _aligned(left, kernel.left, axes), _aligned(right, kernel.right, axes)
        dims = list(range(len(kernel.batch), len(axes)))
        target = out.permute([kernel.out.index(name) for name in kernel.batch])
        return lambda: (
            torch.sum(a * b, dims, out=target)
            if target.is_contiguous()
            else target.copy_((a * b).sum(dims))
        )
    return _matrix_action(kernel, left, right, out)


def _aligned(value: torch.Tensor, axes: Axes, target: Axes) -> torch.Tensor:
    """A view that broadcasts against an array with axes ``target``."""
    present = [name for name in target if name in axes]
    moved = value.permute([axes.index(name) for name in present])
    return moved[tuple(slice(None) if name in axes else None for name in target)]


def _matrix_action(
    kernel: Kernel, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor
) -> Action:
    single = not kernel.batch
    read_left = _matrix(left, kernel.left, kernel.batch, kernel.rows, kernel.summed)
    read_right = _matrix(right, kernel.right, kernel.batch, kernel.summed, kernel.columns)
    axes = kernel.batch + kernel.rows + kernel.columns
    if axes == kernel.out:
        batch, rows, _, columns = kernel.extents
        if single:
            flat = out.view(rows, columns)
            return lambda: torch.mm(read_left()[0], read_right()[0], out=flat)
        target = out.view(batch, rows, columns)
        return lambda: torch.bmm(read_left(), read_right(), out=target)
    return lambda: out.copy_(kernel.restore(torch.bmm(read_left(), read_right())))


def _matrix(value: torch.Tensor, axes: Axes, *groups: Axes) -> Callable[[], torch.Tensor]:
    """Reads ``value`` as a stack of matrices: a view where strides allow, else a copy a call."""
    moved = value.permute([axes.index(name) for group in groups for name in group])
    shape, start = [], 0
    for group in groups:
        shape.append(prod(moved.shape[start : start + len(group)]))
        start += len(group)
    try:
        fixed = moved.view(shape)
    except RuntimeError:
        return lambda: moved.reshape(shape)
    return lambda: fixed
