"""Forward and backward pass of a contraction plan in two flat buffers, for plans that are run many
times.

In small trees the overhead of each operation dominates the time. Here all values of the plan lie in
one buffer and all adjoints (derivatives of the result with respect to a value) in another. The
views are made once, every operation writes in place, and on a processor at least SMALLEST_GROUP
small steps of one level that have the same shape run as one batched product. On a GPU all small
steps of a level share one launch (``kernels.levels``).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

import numpy as np

from pgmkit.contraction import kernels, products
from pgmkit.contraction.kernels.levels import is_small, launches
from pgmkit.contraction.order import SHARED_STEP
from pgmkit.contraction.plan import Axes, Plan, Step, transposes
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.sizes import CACHE_CELLS

SMALLEST_GROUP = 3
"""The fewest alike steps that are done in one call: with two, a pass over a chain of 20 attributes
with 8 values takes a seventh longer.
"""


class ContractionBuffers:
    """The values and adjoints of a plan, in flat buffers that every pass overwrites.

    Write the input tensors to ``inputs``, flattened one after another. ``forward`` then computes
    the result, ``backward`` the derivatives of the result with respect to the inputs, and
    ``weighted`` these derivatives times the inputs. ``upward`` and ``downward`` have the calls of
    the forward and of the backward pass, in the order in which they run.
    """

    def __init__(self, plan: Plan, device: torch.device, dtype: torch.dtype) -> None:
        self.plan, self.device = plan, device
        steps = by_level(plan)
        self.offsets = _layout(plan, steps)
        cells = sum(plan.cells(value) for value in range(len(plan.axes)))
        # The last cell stays 1: it is the right operand of sums in `launches`.
        self.values = torch.ones(cells + 1, dtype=dtype, device=device)
        self.adjoint = torch.zeros(cells, dtype=dtype, device=device)
        used = sum(plan.cells(value) for value in range(len(plan.inputs)))
        self.inputs, self._input_adjoints = self.values[:used], self.adjoint[:used]
        last, end = self.offsets[-1], self.offsets[-1] + plan.cells(len(plan.axes) - 1)
        self.result, self._seed = self.values[last:end], self.adjoint[last:end]
        self._scratch = products.Scratch(dtype, device)
        self.upward: list[products.Action] = []
        self.downward: list[products.Action] = []
        self._spreads: list[Spread] = []
        if kernels.on_gpu(device):
            for level in _levels(plan):
                self._bind_level(level)
        else:
            for group in steps:
                self._bind(group)
        self.downward.reverse()

    def forward(self) -> torch.Tensor:
        """Return the plan's result, with axes in the order ``plan.axes[-1]``, as a flat tensor,
        which the next call overwrites.
        """
        for action in self.upward:
            action()
        return self.result

    def backward(self, seed: torch.Tensor | float) -> torch.Tensor:
        """Return the derivatives of the result with respect to the flat inputs, multiplied by
        ``seed``.

        ``seed`` is one number, or one for each cell that ``forward`` returns; the result's
        derivatives are summed with these weights. ``forward`` must have run before. The next call
        overwrites the returned tensor.
        """
        self._propagate(seed)
        for each in self._spreads:
            each.write(self._input_adjoints)
        return self._input_adjoints

    def weighted(self, seed: torch.Tensor | float, dtype: torch.dtype) -> torch.Tensor:
        """Return the inputs times ``backward(seed)`` as a new tensor of ``dtype``: the marginals,
        if the inputs are the factors of a distribution (exponentials of its potentials) and
        ``seed`` is its total divided by the result.

        The adjoint of a large input that is only summed repeats the adjoint of its sums. The input
        is multiplied by the expanded view directly, without writing out the adjoint first.
        """
        self._propagate(seed)
        found, start = torch.empty_like(self.inputs, dtype=dtype), 0
        for each in sorted(self._spreads, key=lambda spread: spread.start):
            self._multiply_back(found, start, each.start)
            each.multiply(found)
            start = each.end
        self._multiply_back(found, start, len(found))
        return found

    def _multiply_back(self, found: torch.Tensor, start: int, end: int) -> None:
        if start < end:
            own, other = self.inputs[start:end], self._input_adjoints[start:end]
            torch.mul(own, other, out=found[start:end])

    def _propagate(self, seed: torch.Tensor | float) -> None:
        """Compute all adjoints, for a ``seed`` as ``backward`` takes it; those of the inputs in
        ``_spreads`` are views of others and need no computation.
        """
        if isinstance(seed, torch.Tensor):
            self._seed.copy_(seed)
        else:
            self._seed.fill_(seed)
        for action in self.downward:
            action()

    def _bind_level(self, level: list[Step]) -> None:
        """Prepare the calls for one level of steps on a GPU: the small steps share one launch, and
        each large step has its own, since it gains nothing from sharing.
        """
        small = [step for step in level if is_small(self.plan, step)]
        if small:
            up, down = launches(self.plan, small, self.offsets, self.values, self.adjoint)
            self.upward.append(up)
            self.downward.append(down)
        for step in level:
            if not is_small(self.plan, step):
                self._bind([step])

    def _bind(self, group: list[Step]) -> None:
        sums = group[0].kernel is None
        if len(group) >= SMALLEST_GROUP:
            (self._bind_reductions if sums else self.bind_group)(group)
            return
        for step in group:
            (self._bind_reduction if sums else self._bind_pair)(step)

    def view(self, buffer: torch.Tensor, value: int) -> torch.Tensor:
        """Return a view of the cells of a value of the plan in ``buffer``, which is ``values`` or
        ``adjoint``, in the value's shape.
        """
        start = self.offsets[value]
        shape = [self.plan.sizes[name] for name in self.plan.axes[value]]
        return buffer[start : start + self.plan.cells(value)].view(shape)

    def _bind_reduction(self, step: Step) -> None:
        source, out = self.view(self.values, step.left), self.view(self.values, step.out)
        dims = [i for i, name in enumerate(step.source) if name not in step.kept]
        shape = [self.plan.sizes[name] if name in step.kept else 1 for name in step.source]
        target = self.view(self.adjoint, step.left)
        spread = self.view(self.adjoint, step.out).view(shape).expand(target.shape)
        self.upward.append(lambda: torch.sum(source, dims, out=out))
        if is_large_input(self.plan, step.left):
            self._spreads.append(Spread(self.offsets[step.left], source, spread))
        else:
            self.downward.append(lambda: target.copy_(spread))

    def _bind_pair(self, step: Step) -> None:
        assert step.kernel is not None and step.right is not None
        to_left, to_right = transposes(step.kernel)
        scratch = self._scratch
        left, right = self.view(self.values, step.left), self.view(self.values, step.right)
        out, upper = self.view(self.values, step.out), self.view(self.adjoint, step.out)
        self.upward.append(products.product_action(step.kernel, left, right, out, scratch))
        at_left, at_right = (self.view(self.adjoint, side) for side in (step.left, step.right))
        down_left = products.product_action(to_left, upper, right, at_left, scratch)
        down_right = products.product_action(to_right, upper, left, at_right, scratch)
        self.downward.append(lambda: (down_left(), down_right()))

    def bind_group(self, group: list[Step]) -> None:
        kernels = [step.kernel for step in group if step.kernel is not None]
        batch, rows, summed, columns = kernels[0].extents
        size = len(group)
        out, upper = self._results(group, (size * batch, rows, columns))
        upper_t = upper.transpose(1, 2)
        left_orders = [k.batch + k.rows + k.summed for k in kernels]
        right_orders = [k.batch + k.summed + k.columns for k in kernels]
        left_values = [step.left for step in group]
        right_values = [step.right for step in group if step.right is not None]
        left = self.operand(left_values, left_orders, (size * batch, rows, summed))
        right = self.operand(right_values, right_orders, (size * batch, summed, columns))

        def up() -> None:
            torch.bmm(left.read(), right.read(), out=out)

        def down() -> None:
            to_left = torch.bmm(upper, right.read().transpose(1, 2))
            to_right = torch.bmm(upper_t, left.read()).transpose(1, 2)
            left.write(to_left)
            right.write(to_right)

        self.upward.append(up)
        self.downward.append(down)

    def _bind_reductions(self, group: list[Step]) -> None:
        orders = [s.kept + tuple(n for n in s.source if n not in s.kept) for s in group]
        kept = self.plan.cells(group[0].out)
        shape = (len(group), kept, self.plan.cells(group[0].left) // kept)
        out, upper = self._results(group, (len(group), kept))
        whole = self.operand([step.left for step in group], orders, shape)
        spread = upper.unsqueeze(2).expand(shape)
        self.upward.append(lambda: torch.sum(whole.read(), 2, out=out))
        # ``spread`` is a view of the adjoints, and torch does not allow writing a view of a tensor
        # into the same tensor by index, so it is copied first.
        self.downward.append(lambda: whole.write(spread.clone()))

    def _results(
        self, group: list[Step], shape: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of the results and of the adjoints of a group of steps, whose results are
        neighbours in the buffers.
        """
        start = self.offsets[group[0].out]
        end = start + prod(shape)
        return self.values[start:end].view(shape), self.adjoint[start:end].view(shape)

    def operand(self, values: list[int], orders: list[Axes], shape: tuple[int, ...]) -> Operand:
        """Return the left or the right operands of a group of steps as one ``Operand``.

        ``values`` has the number of each step's operand, and ``orders`` the order in which the axes
        of that operand are read. The first axis of the array runs over the steps and, within each,
        over the operand's batch.
        """
        patterns = {}
        cells = np.empty((len(values), prod(shape) // len(values)), dtype=np.int64)
        for place, (value, order) in enumerate(zip(values, orders, strict=True)):
            axes = self.plan.axes[value]
            sizes = tuple(self.plan.sizes[name] for name in axes)
            key = (sizes, tuple(axes.index(name) for name in order))
            if key not in patterns:
                patterns[key] = np.arange(prod(sizes)).reshape(sizes).transpose(key[1]).reshape(-1)
            np.add(patterns[key], self.offsets[value], out=cells[place])
        flat = torch.from_numpy(cells.reshape(-1)).to(self.device)
        return Operand(self.values, self.adjoint, flat, shape)


class Spread:
    """A large input that the plan only sums, so that its adjoint is the adjoint of its sums, which
    is expanded to the input's shape as a view. ``start`` is the position of its first cell among
    the cells of all inputs.
    """

    def __init__(self, start: int, cells: torch.Tensor, adjoint: torch.Tensor) -> None:
        self.start, self.end = start, start + cells.numel()
        self._cells, self._adjoint = cells, adjoint

    def write(self, adjoints: torch.Tensor) -> None:
        """Write the adjoint to its place in ``adjoints``, the flat adjoints of all inputs."""
        adjoints[self.start : self.end].view(self._adjoint.shape).copy_(self._adjoint)

    def multiply(self, found: torch.Tensor) -> None:
        """Write the input times its adjoint to its place in ``found``, a flat vector that has a
        cell for each cell of all inputs.
        """
        out = found[self.start : self.end].view(self._cells.shape)
        torch.mul(self._cells, self._adjoint, out=out)


@dataclass(frozen=True)
class Operand:
    """The left or the right operands of a group of steps as one array of ``shape``: ``read`` copies
    the ``cells`` from the values, and ``write`` copies to the same cells of the adjoints. Views,
    which the cells of some operands would allow, are no faster.
    """

    values: torch.Tensor
    adjoint: torch.Tensor
    cells: torch.Tensor
    shape: tuple[int, ...]

    def read(self) -> torch.Tensor:
        return self.values.index_select(0, self.cells).view(self.shape)

    def write(self, adjoint: torch.Tensor) -> None:
        self.adjoint.index_copy_(0, self.cells, adjoint.reshape(-1))


def is_large_input(plan: Plan, value: int) -> bool:
    """Return True if a value is an input of at least ``CACHE_CELLS`` cells."""
    return value < len(plan.inputs) and plan.cells(value) >= CACHE_CELLS


def pass_cells(plan: Plan) -> int:
    """Return an estimate of the largest number of cells that are in memory at the same time during
    passes over a plan.

    Counted are the values and adjoints in ``ContractionBuffers``, as many again for a pass in
    another semiring, the indices of gathered operands, and the copies that one step makes.
    """
    values = sum(map(plan.cells, range(len(plan.axes))))
    gathered, copied = 0, 0
    for group in by_level(plan):
        operands = [side for step in group for side in (step.left, step.right) if side is not None]
        cells = sum(map(plan.cells, operands))
        if len(group) >= SMALLEST_GROUP:
            gathered += cells
        if group[0].kernel is not None:
            copied = max(copied, cells)
    return 4 * values + gathered + copied


def _levels(plan: Plan) -> list[list[Step]]:
    """Return the steps by level, in an executable order; steps of one level do not depend on each
    other.
    """
    found: dict[int, list[Step]] = defaultdict(list)
    level = [0] * len(plan.axes)
    for step in plan.steps:
        right = level[step.right] if step.right is not None else 0
        level[step.out] = 1 + max(level[step.left], right)
        found[level[step.out]].append(step)
    return [found[number] for number in sorted(found)]


def by_level(plan: Plan) -> list[list[Step]]:
    """Return the steps in groups, in an executable order. The steps of a group are of one level and
    of one shape; a step of more than ``SHARED_STEP`` multiplications, or cells to sum, is a group
    of its own.
    """
    found: list[list[Step]] = []
    for level in _levels(plan):
        groups: dict[tuple[object, ...], list[Step]] = defaultdict(list)
        for step in level:
            groups[_likeness(plan, step)].append(step)
        found += groups.values()
    return found


def _likeness(plan: Plan, step: Step) -> tuple[object, ...]:
    """Return a key that is equal for steps of a level that may run in one call."""
    if step.kernel is None:
        cost = plan.cells(step.left)
        shape: tuple[int, ...] = (cost, plan.cells(step.out))
    else:
        cost, shape = step.kernel.cost, step.kernel.extents
    return (step.kernel is None, *((step.out,) if cost > SHARED_STEP else shape))


def _layout(plan: Plan, groups: list[list[Step]]) -> list[int]:
    """Return the place of every value's first cell: the inputs come first, in order, then the
    results of each group side by side.
    """
    order = [*range(len(plan.inputs)), *(step.out for group in groups for step in group)]
    offsets, end = [0] * len(plan.axes), 0
    for value in order:
        offsets[value] = end
        end += plan.cells(value)
    return offsets
