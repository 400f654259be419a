"""All small steps of one level of a contraction in one GPU launch, whatever their shapes.

On a GPU a small step costs its launch. Steps of one level do not depend on each other, so one
kernel does all of them, forward or backward, given a table of where their operands lie: cell
(batch, row, summed) of a left operand lies at ``start + places[batch] + places[row] +
places[summed]``, whatever the order of its axes, so nothing is copied first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgmkit.contraction import kernels
from pgmkit.contraction.plan import Axes, Kernel, Plan, Step, transposes
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.sizes import BLOCK_CELLS, CALL_CELLS


@dataclass(frozen=True)
class Operand:
    """A value of the plan: its start in its buffer, and its axes there."""

    start: int
    axes: Axes


@dataclass(frozen=True)
class Launch:
    """One kernel launch of ``out[...] = sum of left[...] * right[...]`` for several steps on fixed
    buffers.
    """

    left: torch.Tensor
    right: torch.Tensor
    out: torch.Tensor
    table: kernels.Table

    def __call__(self) -> None:
        kernels.contract_steps(self.left, self.right, self.out, self.table)


def is_small(plan: Plan, step: Step) -> bool:
    """True if a step shares the launch of its level.

    One program adds up the terms of its results one after the other, forward and backward; steps
    with longer sums are left to the library, which divides a sum among many programs.
    """
    if step.kernel is None:
        cells = plan.cells(step.left)
        return cells <= BLOCK_CELLS and cells <= CALL_CELLS * plan.cells(step.out)
    _, rows, summed, columns = step.kernel.extents
    matrix = min(rows, summed, columns) >= kernels.TERMS
    short = max(rows, summed, columns) <= CALL_CELLS
    # A longer sum takes some tens of microseconds of dependent loads, as long as a few launches.
    return step.kernel.cost <= BLOCK_CELLS and short and not matrix


def launches(
    plan: Plan,
    steps: list[Step],
    offsets: list[int],
    values: torch.Tensor,
    adjoint: torch.Tensor,
) -> tuple[Launch, Launch]:
    """Return the forward and the backward launch of these steps; the last cell of ``values`` holds
    1 and belongs to no value.
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
        up.add(left, right, out, _groups(step.kernel))
        down.add(out, right, left, _groups(to_left))
        down.add(out, left, right, _groups(to_right))
    device = values.device
    return (
        Launch(values, values, values, up.tensors(device)),
        Launch(adjoint, values, adjoint, down.tensors(device)),
    )


def _groups(kernel: Kernel) -> tuple[Axes, Axes, Axes, Axes]:
    return kernel.batch, kernel.rows, kernel.summed, kernel.columns


class _Table:
    """The kernel's table, a row of numbers for each step; equal runs of places are kept once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rows: list[list[int]] = []
        self.runs: list[NDArray[np.int64]] = []
        self.known: dict[tuple[tuple[int, int], ...], int] = {}
        self.end = 0

    def add(
        self,
        left: Operand,
        right: Operand,
        out: Operand,
        groups: tuple[Axes, Axes, Axes, Axes],
    ) -> None:
        """Add one step; an operand is repeated along axes that it lacks."""
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
        """Return where the run of the places of the group's cells begins; places are relative to
        the operand's start.
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
        """Return the steps (one a row), the places, and the tiles, each (step, first cell of its
        result).
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
