"""Sums of products of named factors: planned once by structure, evaluated many times.

A *plan* says in which order a set of tensors with named axes is multiplied and summed until only
the output axes are left. Attributes that need no larger table are summed out first, which is all of
a forest; for the rest the pairwise order comes from ``opt_einsum`` or from a junction tree. No
value is larger than the plan's ``largest``, so a clique made of small factors is never
materialised. Plans depend on names and sizes only and are cached.

A plan is evaluated in one of three semirings: ``LINEAR`` (sums of products, entries may be
negative), ``LOG`` (sums of exponentials, any range, exact minus infinities) and ``MAX`` (maxima
of sums, for MAP).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod

import torch
from opt_einsum import RandomGreedy, paths

from pgmkit import kernels
from pgmkit.domain import Domain
from pgmkit.junction_tree import junction_tree

Axes = tuple[str, ...]

_REPEATS = 16
_SEARCHED_INPUTS = 4096
"""Tensors times random orders tried: about a second."""
_SMALL_STEP = 1 << 13
"""Multiplications of a step that is worth its call only when it shares it with others."""
_WORTH_SEARCHING = 1e6
"""Operations above which a better order saves more than looking for it costs."""
_MOVE_COST = 150
"""Multiplications in the time that a pass takes to write, permute and read a cell of a value."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One pairwise contraction ``left, right -> out`` as a batched matrix product.

    ``batch`` axes are in both operands and kept, ``rows`` in the left only, ``columns`` in the
    right only, ``summed`` in both and gone.
    """

    left: Axes
    right: Axes
    out: Axes
    sizes: Mapping[str, int] = field(repr=False, hash=False, compare=False)
    batch: Axes = field(init=False, repr=False, compare=False)
    rows: Axes = field(init=False, repr=False, compare=False)
    summed: Axes = field(init=False, repr=False, compare=False)
    columns: Axes = field(init=False, repr=False, compare=False)
    extents: tuple[int, int, int, int] = field(init=False, repr=False, compare=False)
    """Cells of (batch, rows, summed, columns)."""

    def __post_init__(self) -> None:
        left, right, out, sizes = self.left, self.right, self.out, self.sizes
        groups = {
            "batch": tuple([n for n in out if n in left and n in right]),
            "rows": tuple([n for n in out if n not in right]),
            "summed": tuple([n for n in left if n not in out]),
            "columns": tuple([n for n in out if n not in left]),
        }
        extents = tuple([prod([sizes[n] for n in group]) for group in groups.values()])
        for name, value in (*groups.items(), ("extents", extents)):
            object.__setattr__(self, name, value)

    @classmethod
    def product(
        cls, left: Axes, right: Axes, gone: Collection[str], sizes: Mapping[str, int]
    ) -> Kernel:
        """The kernel that sums the axes ``gone`` out of ``left * right``.

        This is the one place that orders the axes of a plan's values: (batch, rows, columns), as a
        batched matrix product lays them out, so that no execution of a plan has to reorder any.
        """
        batch = tuple(n for n in left if n in right and n not in gone)
        rows = tuple(n for n in left if n not in right)
        columns = tuple(n for n in right if n not in left)
        return cls(left, right, batch + rows + columns, sizes)

    @property
    def cost(self) -> int:
        return prod(self.extents)

    def restore(self, value: torch.Tensor) -> torch.Tensor:
        """From (batch, rows, columns) to one dimension per output axis, in order."""
        axes = self.batch + self.rows + self.columns
        named = value.reshape([self.sizes[name] for name in axes])
        return named.permute([axes.index(name) for name in self.out])


@dataclass(frozen=True, slots=True)
class Step:
    """Value ``out`` from ``left`` and ``right``; without ``right`` a sum over unshared axes."""

    left: int
    right: int | None
    out: int
    kernel: Kernel | None
    source: Axes
    kept: Axes


@dataclass(frozen=True)
class Plan:
    """How to contract ``inputs`` to ``output``: values are the inputs, then one for every step."""

    inputs: tuple[Axes, ...]
    output: Axes
    sizes: Mapping[str, int]
    steps: tuple[Step, ...]
    axes: tuple[Axes, ...]
    """Axes of every value, inputs first; a product's are its kernel's (batch, rows, columns)."""

    def __post_init__(self) -> None:
        for step in self.steps:
            k = step.kernel
            own = step.kept if k is None else k.batch + k.rows + k.columns
            if self.axes[step.out] != own:
                raise AssertionError(f"value {step.out} has axes {self.axes[step.out]}, not {own}")

    def cells(self, value: int) -> int:
        return self._cells[value]

    @cached_property
    def _cells(self) -> tuple[int, ...]:
        return tuple(prod([self.sizes[name] for name in axes]) for axes in self.axes)

    @cached_property
    def largest(self) -> int:
        """Cells of the largest value, inputs included."""
        return max(self.cells(value) for value in range(len(self.axes)))

    @cached_property
    def cost(self) -> int:
        """Multiplications and additions of one evaluation, roughly."""
        return sum(s.kernel.cost if s.kernel else self.cells(s.left) for s in self.steps)


def plan(inputs: Sequence[Axes], output: Axes, sizes: Mapping[str, int]) -> Plan:
    """The plan for this structure; cached, so asking again costs a dictionary look-up.

    >>> p = plan([("a", "b"), ("b", "c")], ("a", "c"), {"a": 2, "b": 3, "c": 4})
    >>> len(p.steps), p.largest, p.cost
    (1, 12, 24)
    """
    used = sorted({name for axes in inputs for name in axes})
    return _plan(tuple(inputs), output, tuple((name, sizes[name]) for name in used))


@lru_cache(maxsize=4096)
def _plan(inputs: tuple[Axes, ...], output: Axes, sizes: tuple[tuple[str, int], ...]) -> Plan:
    return _Planner(inputs, output, dict(sizes)).build()


class _Planner:
    def __init__(self, inputs: tuple[Axes, ...], output: Axes, sizes: dict[str, int]) -> None:
        self.inputs, self.output, self.sizes = inputs, output, sizes
        self.axes: list[Axes] = list(inputs)
        self.counts = [prod([sizes[name] for name in axes]) for axes in inputs]
        self.steps: list[Step] = []
        self.levels = [0] * len(inputs)
        self.left: dict[int, None] = {}
        self.holders: dict[str, dict[int, None]] = {}
        named = dict.fromkeys(name for axes in inputs for name in axes)
        self.rank = {name: place for place, name in enumerate(named)}
        self.most = max(_SMALL_STEP, *map(self.cells, range(len(inputs))))
        self.uses = dict.fromkeys(output, 1)
        for axes in inputs:
            for name in axes:
                self.uses[name] = self.uses.get(name, 0) + 1

    def build(self) -> Plan:
        for key in range(len(self.inputs)):
            self.keep(self.reduce(key))
        self.eliminate()
        best = self.branch()
        best.follow_path()
        if best.work_since(self) > _WORTH_SEARCHING:
            other = self.branch()
            other.follow_tree()
            best = min(best, other, key=lambda each: each.work_since(self))
        return Plan(self.inputs, self.output, self.sizes, tuple(best.steps), tuple(best.axes))

    def branch(self) -> _Planner:
        """A planner that goes on from here by itself."""
        other = copy(self)
        other.axes, other.steps, other.levels = [*self.axes], [*self.steps], [*self.levels]
        other.counts = [*self.counts]
        other.uses, other.left = dict(self.uses), dict(self.left)
        other.holders = {name: dict(keys) for name, keys in self.holders.items()}
        return other

    def work_since(self, start: _Planner) -> float:
        """What the steps beyond those of ``start`` take of a pass, in multiplications: it moves
        every value as well.
        """
        added = self.steps[len(start.steps) :]
        products = sum(step.kernel.cost for step in added if step.kernel is not None)
        return products + _MOVE_COST * sum(self.cells(step.out) for step in added)

    def follow_path(self) -> None:
        """Multiply what is left in the order that opt_einsum finds."""
        keys = [key for key in self.left if self.axes[key]]
        scalars = [key for key in self.left if not self.axes[key]]
        for left, right in self.path(keys):
            keys.append(self.pair(keys[left], keys[right]))
            for position in sorted((left, right), reverse=True):
                del keys[position]
        self.merge(scalars + keys)

    def follow_tree(self) -> None:
        """Multiply what is left by eliminating attributes in the order of a junction tree."""
        held = [name for name in self.rank if name in self.holders]
        if not held:
            self.merge(list(self.left))
            return
        named = Domain({name: self.sizes[name] for name in held})
        cliques = [self.axes[key] for key in self.left]
        kept = [name for name in self.output if name in named]
        for name in junction_tree(named, [*cliques, kept]).order:
            if name not in self.output and name in self.holders:
                self.keep(self.merge(list(self.holders[name])))
        self.merge(list(self.left))

    def keep(self, key: int) -> None:
        """Add a value to those that are left to multiply."""
        self.left[key] = None
        for name in self.axes[key]:
            self.holders.setdefault(name, {})[key] = None

    def eliminate(self) -> None:
        """Sum out every attribute that needs no table larger than those there are.

        That alone plans forests and decomposable structures. Of the attributes that can go, one
        that waits for the fewest steps goes first, so that a chain takes a logarithm of its
        length in levels, each of many equal steps.
        """
        names = [name for name in self.holders if name not in self.output]
        queue = [entry for name in names if (entry := self.ready(name)) is not None]
        heapq.heapify(queue)
        while queue:
            entry = heapq.heappop(queue)
            name = entry[-1]
            now = self.ready(name)
            if now != entry:  # a neighbour went first: its entry of that time is in the queue
                continue
            made = self.merge(list(self.holders[name]))
            self.keep(made)
            for other in self.axes[made]:
                if other not in self.output and (entry := self.ready(other)) is not None:
                    heapq.heappush(queue, entry)

    def ready(self, name: str) -> tuple[int, int, int, str] | None:
        """Where the attribute belongs in the queue, or None where its elimination would cost."""
        around: set[str] = set()
        cells, largest, level = 1, 0, 0
        for key in self.holders.get(name, ()):
            for other in self.axes[key]:
                if other not in around:
                    around.add(other)
                    cells *= self.sizes[other]
            if cells > self.most:  # a hub is given up early, not after all its neighbours
                return None
            largest = max(largest, self.cells(key))
            level = max(level, self.levels[key])
        small = cells <= _SMALL_STEP and len(around) <= 3 and cells <= largest * self.sizes[name]
        return (level, cells, self.rank[name], name) if cells <= largest or small else None

    def cells(self, key: int) -> int:
        return self.counts[key]

    def merge(self, keys: list[int]) -> int:
        """The product of values, the smallest first and in as few levels as that allows."""
        queue = [(self.cells(key), self.levels[key], key) for key in keys]
        heapq.heapify(queue)
        while len(queue) > 1:
            left, right = heapq.heappop(queue)[-1], heapq.heappop(queue)[-1]
            key = self.pair(left, right)
            heapq.heappush(queue, (self.cells(key), self.levels[key], key))
        for key in keys:
            self.forget(key)
        return queue[0][-1]

    def forget(self, key: int) -> None:
        self.left.pop(key, None)
        for name in self.axes[key]:
            holders = self.holders.get(name, {})
            holders.pop(key, None)
            if not holders:
                self.holders.pop(name, None)

    def path(self, keys: list[int]) -> list[tuple[int, int]]:
        """Pairs of positions in the shrinking list of values, as opt_einsum gives them."""
        if len(keys) <= 2:
            return [(0, 1)][: len(keys) - 1]
        # Numbers, because sets of names are in another order in every process.
        numbers = {name: i for i, name in enumerate(self.sizes)}
        sizes = {i: self.sizes[name] for name, i in numbers.items()}
        inputs = [frozenset(numbers[name] for name in self.axes[key]) for key in keys]
        output = frozenset(numbers[name] for name in self.output)
        if len(keys) <= 4:
            return [(i, j) for i, j in paths.optimal(inputs, output, sizes, None)]
        state = random.getstate()  # opt_einsum seeds the global generator for every trial
        found = paths.greedy(inputs, output, sizes, None)
        if _path_cost(inputs, output, sizes, found) > _WORTH_SEARCHING:
            repeats = max(1, min(_REPEATS, _SEARCHED_INPUTS // len(keys)))
            found = RandomGreedy(max_repeats=repeats)(inputs, output, sizes, None)
        random.setstate(state)
        return [(step[0], step[1]) for step in found]

    def add(self, left: int, right: int | None, kernel: Kernel | None, kept: Axes) -> int:
        key = len(self.axes)
        self.steps.append(Step(left, right, key, kernel, self.axes[left], kept))
        self.axes.append(kept)
        self.counts.append(prod([self.sizes[name] for name in kept]))
        self.levels.append(1 + max(self.levels[left], 0 if right is None else self.levels[right]))
        return key

    def reduce(self, key: int) -> int:
        axes = self.axes[key]
        kept = tuple(name for name in axes if self.uses[name] > 1)
        return key if kept == axes else self.add(key, None, None, kept)

    def pair(self, left: int, right: int) -> int:
        if self.cells(left) < self.cells(right):
            left, right = right, left
        left_axes, right_axes = self.axes[left], self.axes[right]
        shared = set(left_axes) & set(right_axes)
        for name in shared:
            self.uses[name] -= 1
        gone = {name for name in shared if self.uses[name] == 1}
        kernel = Kernel.product(left_axes, right_axes, gone, self.sizes)
        return self.add(left, right, kernel, kernel.out)


def _path_cost(
    inputs: Sequence[frozenset[int]],
    output: frozenset[int],
    sizes: Mapping[int, int],
    path: Sequence[Sequence[int]],
) -> int:
    """Multiplications of a path of pairs of positions."""
    left, cost = list(inputs), 0
    for pair in path:
        union = frozenset[int]().union(*(left.pop(i) for i in sorted(pair, reverse=True)))
        cost += prod(sizes[i] for i in union)
        left.append(union & output.union(*left))
    return cost


def arrange(value: torch.Tensor, axes: Axes, *groups: Axes) -> torch.Tensor:
    """``value`` with one dimension per group of axes: a view where strides allow it."""
    shape = []
    order = []
    for group in groups:
        places = [axes.index(name) for name in group]
        order += places
        shape.append(prod(value.shape[place] for place in places))
    return value.permute(order).reshape(shape)


class Linear:
    """Sums of products of plain numbers."""

    one = 1.0

    def reduce(self, value: torch.Tensor, axes: Axes, kept: Axes) -> torch.Tensor:
        return arrange(value, axes, kept, tuple(n for n in axes if n not in kept)).sum(1)

    def multiply(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left * right

    def contract(self, left: torch.Tensor, right: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        a = arrange(left, kernel.left, kernel.batch, kernel.rows, kernel.summed)
        b = arrange(right, kernel.right, kernel.batch, kernel.summed, kernel.columns)
        return torch.bmm(a, b)


class _Tropical:
    """Semirings whose product is ``+``; subclasses sum over the last dimension."""

    one = 0.0

    def over(self, value: torch.Tensor) -> torch.Tensor:
        raise AssertionError("subclasses define the sum")

    def stacks(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The sum over the last dimension of the products of two stacks of matrices."""
        raise AssertionError("subclasses define the sum")

    def reduce(self, value: torch.Tensor, axes: Axes, kept: Axes) -> torch.Tensor:
        return self.over(arrange(value, axes, kept, tuple(n for n in axes if n not in kept)))

    def multiply(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + right

    def contract(self, left: torch.Tensor, right: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        a = arrange(left, kernel.left, kernel.batch, kernel.rows, kernel.summed)
        b = arrange(right, kernel.right, kernel.batch, kernel.columns, kernel.summed)
        return self.stacks(a, b)


class Log(_Tropical):
    """Logarithms of sums of exponentials; an all minus-infinity slice gives minus infinity."""

    def over(self, value: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(value, -1)

    def stacks(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return kernels.log_contract(left, right)


class LogBelow(Log):
    """Logarithms of sums without the terms that underflow beside their row's and column's peaks: a
    lower bound.
    """

    def stacks(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if left.shape[2] == 1:
            return left + right.transpose(1, 2)
        product, scale = kernels.contract(left, right)
        return product.log_().add_(scale)


class Max(_Tropical):
    """Maxima of sums."""

    def over(self, value: torch.Tensor) -> torch.Tensor:
        return value.amax(-1)

    def stacks(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return kernels.max_contract(left, right)


Semiring = Linear | Log | Max
LINEAR, LOG, MAX = Linear(), Log(), Max()
LOG_BELOW = LogBelow()


def forward(plan: Plan, tensors: Sequence[torch.Tensor], semiring: Semiring) -> list[torch.Tensor]:
    """All values of the plan, inputs first; the last is the result in the plan's own axis order."""
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
    """The contraction of ``tensors`` (one per plan input, axes in order) with axes ``plan.output``.

    >>> p = plan([("a", "b"), ("b",)], ("a",), {"a": 2, "b": 3})
    >>> contract(p, [torch.ones(2, 3), torch.arange(3.0)], LINEAR)
    tensor([3., 3.])
    """
    result = forward(plan, tensors, semiring)[-1]
    axes = plan.axes[-1]
    return result.permute([axes.index(name) for name in plan.output])


def adjoints(plan: Plan, values: Sequence[torch.Tensor], semiring: Semiring) -> list[torch.Tensor]:
    """For every input of a scalar plan, the contraction of all the *other* inputs, given
    ``forward``'s values.

    In linear space this is the derivative of the result with respect to the input; the input
    times its adjoint, divided by the result, is the input's marginal.
    """
    found: list[torch.Tensor | None] = [None] * len(values)
    found[-1] = torch.full_like(values[-1], semiring.one)
    for step in reversed(plan.steps):
        upper = found[step.out]
        assert upper is not None
        if step.kernel is None or step.right is None:
            shape = [plan.sizes[name] if name in step.kept else 1 for name in step.source]
            spread = upper.reshape(shape)
            found[step.left] = spread.expand(values[step.left].shape)
            continue
        to_left, to_right = transposes(step.kernel)
        right, left = values[step.right], values[step.left]
        found[step.left] = to_left.restore(semiring.contract(upper, right, to_left))
        found[step.right] = to_right.restore(semiring.contract(upper, left, to_right))
    return [value for value in found[: len(plan.inputs)] if value is not None]


def transposes(kernel: Kernel) -> tuple[Kernel, Kernel]:
    """The kernels that carry an adjoint of the output to the left and to the right operand."""
    to_left = Kernel(kernel.out, kernel.right, kernel.left, kernel.sizes)
    to_right = Kernel(kernel.out, kernel.left, kernel.right, kernel.sizes)
    return to_left, to_right


def maximiser(plan: Plan, values: Sequence[torch.Tensor]) -> dict[str, int]:
    """An assignment that attains a scalar plan's maximum, from ``forward``'s ``MAX`` values."""
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
        place = int(table.argmax())
        for name, size in zip(reversed(free), reversed(table.shape), strict=True):
            chosen[name] = place % size
            place //= size
    return chosen
