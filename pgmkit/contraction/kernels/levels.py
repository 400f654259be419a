"""One GPU launch for all small steps of one level of a contraction, whatever their shapes.

On a GPU a small step takes as long as its launch. Steps of one level do not depend on each other,
so one kernel computes all of them, in the forward or in the backward pass. A table tells the kernel
where the operands lie: a cell of a left operand lies at the sum of four numbers, the place of the
operand's first cell and one distance from it for each of the cell's batch, row and summed index,
whatever the order of the axes. So no operand is copied first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pgmkit.contraction import kernels
from pgmkit.contraction.plan import Axes, Plan, Step, transposes
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.sizes import BLOCK_CELLS, FEW_CELLS


@dataclass(frozen=True)
class Operand:
    """A value of the plan: the place of its first cell in a flat buffer, and its axes in memory
    order.
    """

    start: int
    axes: Axes


Launch: TypeAlias = "Callable[[], None]"
"""A function that computes several sums of products on fixed buffers in one launch."""


def is_small(plan: Plan, step: Step) -> bool:
    """Return True if a step is computed in the shared launch of its level.

    One program of that launch adds all terms of a sum, TERMS at a time, in the forward and in the
    backward pass. Large steps, steps with long sums, and products of matrices that are at least
    TERMS wide in every direction are left to torch, which divides them among many programs.
    """
    if step.kernel is None:
        cells = plan.cells(step.left)
        return cells <= BLOCK_CELLS and cells <= FEW_CELLS * plan.cells(step.out)
    _, rows, summed, columns = step.kernel.extents
    matrix = min(rows, summed, columns) >= kernels.TERMS
    short = max(rows, summed, columns) <= FEW_CELLS
    # A program reads TERMS terms at a time, in about half a microsecond. So a sum of FEW_CELLS
    # terms takes some tens of microseconds, as long as a few launches, and a longer one is left to
    # torch.
    return step.kernel.cost <= BLOCK_CELLS and short and not matrix


def launches(
    plan: Plan, steps: list[Step], offsets: list[int], values: torch.Tensor, adjoint: torch.Tensor
) -> tuple[Launch, Launch]:
    """Return the launches that compute the forward and the backward pass of these steps, which must
    be of one level.

    ``values`` and ``adjoint`` are the flat buffers and ``offsets`` the place of each value in them.
    The last cell of ``values`` must hold 1; it is the right operand of steps that only sum.
    """
    up, down = _Table(plan), _Table(plan)
    one = Operand(len(values) - 1, ())

    def operand(value: int) -> Operand:
        return Operand(offsets[value], plan.axes[value])

    for step in steps:
        out, left = operand(step.out), operand(step.left)
        if step.kernel is None or step.right is None:
            kept = tuple(name for name in step.source if name in step.kept)
            gone = tuple(name for name in step.source if name not in step.kept)
            up.add(left, one, out, ((), kept, gone, ()))
            down.add(out, one, left, ((), step.source, (), ()))
            continue
        right = operand(step.right)
        to_left, to_right = transposes(step.kernel)
        up.add(left, right, out, step.kernel.groups)
        down.add(out, right, left, to_left.groups)
        down.add(out, left, right, to_right.groups)
    device = values.device
    return (
        partial(kernels.contract_steps, values, values, values, up.tensors(device)),
        partial(kernels.contract_steps, adjoint, values, adjoint, down.tensors(device)),
    )


class _Table:
    """The table that a launch reads, built row by row. A row describes one sum of products: where
    the operands and the result begin, the sizes of its groups of axes, and where the list of the
    places along each group begins. Equal lists are stored once. A product has one row in the table
    of the forward pass and two in that of the backward pass; a step that only sums has one in each.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rows: list[list[int]] = []
        self.runs: list[NDArray[np.int64]] = []
        self.known: dict[tuple[tuple[int, int], ...], int] = {}
        self.end = 0

    def add(
        self, left: Operand, right: Operand, out: Operand, groups: tuple[Axes, Axes, Axes, Axes]
    ) -> None:
        """Add the row of one sum of products with its groups of axes (batch, rows, summed,
        columns). An operand that lacks an axis is repeated along it.
        """
        batch, rows, summed, columns = groups
        sizes = self.plan.sizes
        self.rows.append(
            [left.start, right.start, out.start]
            + [int(np.prod([sizes[n] for n in group], dtype=np.int64)) for group in groups]
            + [self.run(left, group) for group in (batch, rows, summed)]
            + [self.run(right, group) for group in (batch, summed, columns)]
            + [self.run(out, group) for group in (batch, rows, columns)]
        )

    def run(self, operand: Operand, group: Axes) -> int:
        """Return the index, among the places of all runs, at which the run of one group of an
        operand's axes begins; add the run if it is new. A run has a place for each cell over the
        axes: the distance of that cell from the operand's first cell.
        """
        strides, stride = {}, 1
        for name in reversed(operand.axes):
            strides[name] = stride
            stride *= self.plan.sizes[name]
        key = tuple((self.plan.sizes[name], strides.get(name, 0)) for name in group)
        if key not in self.known:
            places = np.zeros(1, dtype=np.int64)
            for size, distance in key:
                places = np.add.outer(places, np.arange(size) * distance).reshape(-1)
            self.known[key] = self.end
            self.runs.append(places)
            self.end += len(places)
        return self.known[key]

    def tensors(self, device: torch.device) -> kernels.Table:
        """Return the table as three tensors: the rows, the places of all runs one after the other,
        and for each tile of work the number of its row and the place, within the row's result, of
        the first of the ``TILE_CELLS`` cells that the tile computes.
        """
        steps = np.array(self.rows, dtype=np.int64)
        tiles = [
            (number, first)
            for number, row in enumerate(self.rows)
            for first in range(0, row[3] * row[4] * row[6], kernels.TILE_CELLS)
        ]
        parts = (steps, np.concatenate(self.runs), np.array(tiles, dtype=np.int64))
        made = [torch.from_numpy(part).to(device) for part in parts]
        return made[0], made[1], made[2]
