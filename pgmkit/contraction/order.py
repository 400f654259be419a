"""The order in which named tensors are multiplied and summed, planned from their axes and sizes
alone.

First, attributes are summed out whose elimination needs no table larger than those that it
replaces, which is all that a forest needs. The rest is multiplied in pairs in the order that
``opt_einsum`` finds, or along a junction tree if that takes less work: for many densely overlapping
tables of two attributes the tree takes up to twelve times as many multiplications as the pairwise
order, and for networks that are nearly trees the pairwise order takes many times as many as the
tree.

A step sums while it multiplies, so a clique that consists of several small factors is often never
built as one table; ``Plan.largest`` is the size of the largest table that is built. Plans are
cached.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import chain
from math import prod

from opt_einsum import paths

from pgmkit.contraction.plan import Axes, Kernel, Plan, Step
from pgmkit.domain import Domain
from pgmkit.graphs.junction_tree import junction_tree
from pgmkit.runtime.sizes import BLOCK_CELLS, CALL_CELLS

SHARED_STEP = 2 * CALL_CELLS
"""The number of multiplications up to which a step is run in one call with others of its shape, as
a call of its own would take longer than the multiplications.
"""
MOVE_COST = 150
"""The time to write, permute and read one cell of a value, in multiplications."""


def plan(inputs: Sequence[Axes], output: Axes, sizes: Mapping[str, int]) -> Plan:
    """Return a plan that contracts tensors with axes ``inputs`` to one with axes ``output``.

    All axes that are not in ``output`` are summed; ``sizes`` has the size of every axis. Plans are
    cached, so asking for the same one again takes a dictionary look-up.

    >>> p = plan([("a", "b"), ("b", "c")], ("a", "c"), {"a": 2, "b": 3, "c": 4})
    >>> len(p.steps), p.largest, p.cost
    (1, 12, 24)
    """
    used = sorted({name for axes in inputs for name in axes})
    return cached_plan(tuple(inputs), output, tuple((name, sizes[name]) for name in used))


@lru_cache(maxsize=4096)
def cached_plan(inputs: tuple[Axes, ...], output: Axes, sizes: tuple[tuple[str, int], ...]) -> Plan:
    """Return the plan of a contraction; the 4,096 plans that were used last are cached."""
    return _Planner(inputs, output, dict(sizes)).build()


class _Planner:
    """A plan in the making: methods only add its steps, and nothing is computed. ``counts`` has the
    number of cells of every value, ``levels`` the number of steps one after another that lead to
    it, ``left`` the values that remain to be multiplied, ``holders`` those of them with each
    attribute, and ``uses`` how many of these values, and of the output, have an attribute.
    """

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
        self.most = max(SHARED_STEP, *self.counts)
        self.uses = Counter(chain(output, *inputs))

    def build(self) -> Plan:
        for key in range(len(self.inputs)):
            self.keep(self.reduce(key))
        self.eliminate()
        best = self.branch()
        best.follow_path()
        # If the order takes at most BLOCK_CELLS multiplications, no other is tried: a better one
        # would save less time than the search for it takes.
        if best.work_since(self) > BLOCK_CELLS:
            other = self.branch()
            other.follow_tree()
            best = min(best, other, key=lambda each: each.work_since(self))
        return Plan(self.inputs, self.output, self.sizes, tuple(best.steps), tuple(best.axes))

    def branch(self) -> _Planner:
        """Return a copy of this planner that continues independently."""
        other = copy(self)
        other.axes, other.steps, other.levels = [*self.axes], [*self.steps], [*self.levels]
        other.counts = [*self.counts]
        other.uses, other.left = self.uses.copy(), dict(self.left)
        other.holders = {name: dict(keys) for name, keys in self.holders.items()}
        return other

    def work_since(self, start: _Planner) -> float:
        """Return the work, in multiplications, of the steps that this planner has and ``start``
        lacks; each cell of their results counts as MOVE_COST more, for writing and reading it.
        """
        added = self.steps[len(start.steps) :]
        products = sum(step.kernel.cost for step in added if step.kernel is not None)
        return products + MOVE_COST * sum(self.counts[step.out] for step in added)

    def follow_path(self) -> None:
        """Plan the products of the remaining values in the order that opt_einsum finds."""
        keys = [key for key in self.left if self.axes[key]]
        scalars = [key for key in self.left if not self.axes[key]]
        for left, right in self.path(keys):
            keys.append(self.pair(keys[left], keys[right]))
            for position in sorted((left, right), reverse=True):
                del keys[position]
        self.merge(scalars + keys)

    def follow_tree(self) -> None:
        """Plan the products of the remaining values by eliminating attributes in the order of a
        junction tree.
        """
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
        """Add a value to those that remain to be multiplied, and to the holders of its axes."""
        self.left[key] = None
        for name in self.axes[key]:
            self.holders.setdefault(name, {})[key] = None

    def eliminate(self) -> None:
        """Sum out the attributes whose elimination needs no table larger than the largest of those
        that it replaces (or a small one; see ``ready``).

        This alone plans forests and decomposable structures. Of the attributes that can be
        eliminated, one whose tables come from the fewest levels of steps goes first. So a chain has
        a number of levels that is logarithmic in its length, each with many steps of the same
        shape.
        """
        names = [name for name in self.holders if name not in self.output]
        queue = [entry for name in names if (entry := self.ready(name)) is not None]
        heapq.heapify(queue)
        while queue:
            entry = heapq.heappop(queue)
            name = entry[-1]
            if self.ready(name) != entry:  # out of date: a neighbour was eliminated since
                continue
            made = self.merge(list(self.holders[name]))
            self.keep(made)
            for other in self.axes[made]:
                if other not in self.output and (entry := self.ready(other)) is not None:
                    heapq.heappush(queue, entry)

    def ready(self, name: str) -> tuple[int, int, int, str] | None:
        """Return the entry (level, cells, rank, name) of an attribute in the queue of eliminations,
        or None if its elimination needs a table larger than the largest one with the attribute. The
        level is the highest of the tables with the attribute, the cells are those of their product,
        and the rank is the attribute's place among those of the inputs.

        A product of at most SHARED_STEP cells over at most three attributes may be larger than that
        table by a factor of the attribute's size, since the attribute is summed out at once.
        """
        around: set[str] = set()
        cells, largest, level = 1, 0, 0
        for key in self.holders.get(name, ()):
            for other in self.axes[key]:
                if other not in around:
                    around.add(other)
                    cells *= self.sizes[other]
            if cells > self.most:  # so an attribute in many tables is refused early
                return None
            largest = max(largest, self.counts[key])
            level = max(level, self.levels[key])
        small = cells <= SHARED_STEP and len(around) <= 3 and cells <= largest * self.sizes[name]
        return (level, cells, self.rank[name], name) if cells <= largest or small else None

    def merge(self, keys: list[int]) -> int:
        """Plan the product of these values in pairs, the smallest ones first and, of equal ones,
        those of the earliest level; return the number of the product. The values no longer remain
        to be multiplied.
        """
        queue = [(self.counts[key], self.levels[key], key) for key in keys]
        heapq.heapify(queue)
        while len(queue) > 1:
            left, right = heapq.heappop(queue)[-1], heapq.heappop(queue)[-1]
            key = self.pair(left, right)
            heapq.heappush(queue, (self.counts[key], self.levels[key], key))
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
        """Return the pairs of values to multiply, as opt_einsum gives them: positions in a list
        from which each pair is removed and to whose end its product is added.
        """
        if len(keys) <= 2:
            return [(0, 1)][: len(keys) - 1]
        # Numbers are used because the order of a set of names differs from process to process.
        numbers = {name: i for i, name in enumerate(self.sizes)}
        sizes = {i: self.sizes[name] for name, i in numbers.items()}
        inputs = [frozenset(numbers[name] for name in self.axes[key]) for key in keys]
        output = frozenset(numbers[name] for name in self.output)
        search = paths.optimal if len(keys) <= 4 else paths.greedy
        return [(step[0], step[1]) for step in search(inputs, output, sizes, None)]

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
        if self.counts[left] < self.counts[right]:
            left, right = right, left
        left_axes, right_axes = self.axes[left], self.axes[right]
        shared = set(left_axes) & set(right_axes)
        for name in shared:
            self.uses[name] -= 1
        gone = {name for name in shared if self.uses[name] == 1}
        kernel = Kernel.product(left_axes, right_axes, gone, self.sizes)
        return self.add(left, right, kernel, kernel.out)
