"""Products of two values of a plan in fixed memory, in as few calls as their strides allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

from pgmkit.contraction.plan import Axes, Kernel
from pgmkit.runtime.deferred import torch

Action = Callable[[], object]
Room: TypeAlias = "Callable[[], torch.Tensor]"
"""A function that returns reserved memory as an array of a fixed shape (``Scratch.reserve``)."""


class Scratch:
    """Memory for the copies that steps make: one buffer for each purpose (``slot``: the left
    operands, the right operands, the products), as long as the longest copy for it.

    New memory for every copy would take longer than the copy, since the system clears each page of
    new memory.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._like = torch.empty(0, dtype=dtype, device=device)
        self._cells: dict[str, int] = {}
        self._buffers: dict[str, torch.Tensor] = {}

    def reserve(self, slot: str, shape: Sequence[int]) -> Room:
        """Reserve room in the buffer of a slot, and return a function that returns this room as an
        array of ``shape``. That function may be called only after all reservations. Arrays of one
        slot share their memory.
        """
        cells = prod(shape)
        self._cells[slot] = max(cells, self._cells.get(slot, 0))

        def room() -> torch.Tensor:
            if slot not in self._buffers:
                self._buffers[slot] = self._like.new_empty(self._cells[slot])
            return self._buffers[slot][:cells].view(shape)

        return room


def product_action(
    kernel: Kernel, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, scratch: Scratch
) -> Action:
    """Return a function that writes ``kernel(left, right)`` to ``out``, from what these tensors
    contain when it is called, in as few calls of torch as their strides allow.
    """
    if not kernel.summed:
        a, b = _aligned(left, kernel.left, kernel.out), _aligned(right, kernel.right, kernel.out)
        return lambda: torch.mul(a, b, out=out)
    if kernel.batch and not kernel.rows and not kernel.columns:
        axes = kernel.batch + kernel.summed
        a, b = _aligned(left, kernel.left, axes), _aligned(right, kernel.right, axes)
        dims = list(range(len(kernel.batch), len(axes)))
        target = out.permute([kernel.out.index(name) for name in kernel.batch])
        product = scratch.reserve("product", a.shape)
        if target.is_contiguous():
            return lambda: torch.sum(torch.mul(a, b, out=product()), dims, out=target)
        return lambda: target.copy_(torch.mul(a, b, out=product()).sum(dims))
    return _matrix_action(kernel, left, right, out, scratch)


def _aligned(value: torch.Tensor, axes: Axes, target: Axes) -> torch.Tensor:
    """Return a view of ``value`` (with axes ``axes``) that broadcasts against an array with axes
    ``target``.
    """
    present = [name for name in target if name in axes]
    moved = value.permute([axes.index(name) for name in present])
    return moved[tuple(slice(None) if name in axes else None for name in target)]


def _matrix_action(
    kernel: Kernel, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, scratch: Scratch
) -> Action:
    batch, rows, _, columns = kernel.extents
    left_groups = (kernel.batch, kernel.rows, kernel.summed)
    right_groups = (kernel.batch, kernel.summed, kernel.columns)
    read_left = _matrix(left, kernel.left, left_groups, lambda s: scratch.reserve("left", s))
    read_right = _matrix(right, kernel.right, right_groups, lambda s: scratch.reserve("right", s))
    if kernel.batch + kernel.rows + kernel.columns == kernel.out:
        if not kernel.batch:
            flat = out.view(rows, columns)
            return lambda: torch.mm(read_left()[0], read_right()[0], out=flat)
        target = out.view(batch, rows, columns)
        return lambda: torch.bmm(read_left(), read_right(), out=target)
    product = scratch.reserve("product", (batch, rows, columns))
    return lambda: out.copy_(kernel.restore(torch.bmm(read_left(), read_right(), out=product())))


def _matrix(
    value: torch.Tensor, axes: Axes, groups: Sequence[Axes], reserve: Callable[[list[int]], Room]
) -> Callable[[], torch.Tensor]:
    """Return a function that reads ``value`` (with axes ``axes``) as a stack of matrices, whose
    three dimensions are the ``groups`` of axes. It returns a view if the strides allow one.
    Otherwise each call copies ``value`` into the room that ``reserve`` gives for the stack's shape,
    which later copies to the same slot overwrite.
    """
    moved = value.permute([axes.index(name) for group in groups for name in group])
    shape = [prod([value.shape[axes.index(name)] for name in group]) for group in groups]
    try:
        fixed = moved.view(shape)
    except RuntimeError:
        room = reserve(shape)

        def copied() -> torch.Tensor:
            stack = room()
            stack.view(moved.shape).copy_(moved)
            return stack

        return copied
    return lambda: fixed
