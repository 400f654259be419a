"""Messages on an elimination tree: every table's sum from below, and its adjoint from above.

The *value* of a node is the product of the inputs below it, with attributes summed out; its
*adjoint* is the product of all the others with all other attributes summed out, divided by the
whole sum. Their product is the marginal over the node's attributes (Darwiche 2003; Shafer and
Shenoy 1990 on a binary tree). Values are computed once; adjoints where an answer asks for them,
from the root down, and kept; a marginal of attributes that lie apart is found on the part of the
tree between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pgmkit.conditioning.axis_sums import sum_axes
from pgmkit.conditioning.elimination import EliminationTree
from pgmkit.errors import ModelTooLarge
from pgmkit.graphs.bit_sets import each_bit

__all__ = [
    "LEAST_ENTRY",
    "LEAST_SUM",
    "LOST",
    "Kernel",
    "Messages",
    "Sums",
    "Table",
    "Underflow",
    "kernel_of",
]

Array = NDArray[np.float64]
Table = tuple[int, Array]
"""Attributes as a set, and the table with its axes ascending."""
Scale = float | Array
"""A logarithm, or one for each of many records."""

LEAST_ENTRY = 1e-290
"""Entries of tables with peak 1 below this are not for plain numbers."""

LOST = 1e-100
"""Peaks of products of tables with peaks near 1 below which underflow may have lost terms."""
FAR = 1e-20
"""Peaks of tables that are near enough to 1 to be multiplied once more before ``LOST`` is near."""
LEAST_SUM = 1e-280
"""A sum of numbers in [0, 1] this large has lost nothing that counts."""


_FEW_CELLS = 512
"""Cells of a product that takes less time by itself than to be arranged as one of matrices."""


class Underflow(ArithmeticError):
    """The sum is zero, or too small for floating-point numbers."""


class SpreadKernel:
    """The product of two tables, each spread over the attributes of both, and summed to the
    attributes wanted.
    """

    __slots__ = ("away", "cells", "first", "second")

    def __init__(self, one: int, other: int, wanted: int, sizes: Sequence[int]) -> None:
        axes, held, more = each_bit(one | other), each_bit(one), each_bit(other)
        # Sets of few attributes are sooner looked into as tuples: integers may have many digits.
        left = each_bit((one | other) & wanted)
        self.first = [sizes[v] if v in held else 1 for v in axes]
        self.second = [sizes[v] if v in more else 1 for v in axes]
        self.away = tuple([axis for axis, v in enumerate(axes) if v not in left])
        self.cells = _cells(left, sizes)

    def __call__(self, one: Array, other: Array) -> Array:
        made = one.reshape(self.first) * other.reshape(self.second)
        return np.asarray(np.add.reduce(made, self.away)) if self.away else made


class MatrixKernel:
    """The product of two tables, summed to the attributes wanted.

    The attributes are a batch (in both tables, and wanted), summed ones (in both), rows and columns
    (in one of the tables): a batch of matrix products. Without summed attributes the tables are
    spread over the attributes of both, and laid out as the larger one is.
    """

    __slots__ = ("cells", "first", "form", "left", "out", "right", "second", "shape")
    left: tuple[list[int] | None, tuple[int, ...]]
    right: tuple[list[int] | None, tuple[int, ...]]

    def __init__(self, one: int, other: int, wanted: int, sizes: Sequence[int]) -> None:
        self.first = _axes_alone(one, other | wanted)
        self.second = _axes_alone(other, one | wanted)
        one &= other | wanted
        other &= one | wanted
        both = one & other
        batch, summed = each_bit(both & wanted), each_bit(both & ~wanted)
        rows, columns = each_bit(one & ~other), each_bit(other & ~one)
        b, r, s, c = (_cells(group, sizes) for group in (batch, rows, summed, columns))
        self.cells = b * r * c
        if s == 1:
            self.form, axes = "multiply", each_bit(one | other)
            left, right = (
                tuple([sizes[v] if held >> v & 1 else 1 for v in axes]) for held in (one, other)
            )
            self.left, self.right = (None, left), (None, right)
            # What is summed has one value each: its axes go without a sum.
            self.shape, self.out = [sizes[v] for v in axes if wanted >> v & 1], None
            return
        # Without rows and columns a matrix product would be called for every cell of the batch.
        self.form = "inner" if r == c == 1 else "matrix"
        orders = [batch + rows + summed, batch + summed + columns]
        order = batch + rows + columns
        shapes = [(b, r, s), (b, s, c)]
        self.left = _permuted(one, orders[0]), shapes[0]
        self.right = _permuted(other, orders[1]), shapes[1]
        self.shape = [sizes[v] for v in order]
        ascending = sorted(order)
        self.out = None if ascending == list(order) else [order.index(v) for v in ascending]

    def __call__(self, one: Array, other: Array) -> Array:
        order, shape = self.left
        one = sum_axes(one, self.first)
        a = (one if order is None else one.transpose(order)).reshape(shape)
        order, shape = self.right
        other = sum_axes(other, self.second)
        b = (other if order is None else other.transpose(order)).reshape(shape)
        if self.form == "multiply":
            made = a * b
        elif self.form == "inner":
            made = np.einsum("brs,bsc->b", a, b)
        else:
            made = np.matmul(a, b)
        made = made.reshape(self.shape)
        return made if self.out is None else made.transpose(self.out)


Kernel = SpreadKernel | MatrixKernel


def kernel_of(
    kernels: dict[tuple[int, int, int], Kernel],
    sizes: Sequence[int],
    limit: int,
    one: int,
    other: int,
    wanted: int,
) -> Kernel:
    """The kernel, kept for the next time; ModelTooLarge where its result exceeds so many bytes."""
    key = (one, other, wanted)
    found = kernels.get(key)
    if found is None:
        few = _cells(each_bit(one | other), sizes) <= _FEW_CELLS
        found = (SpreadKernel if few else MatrixKernel)(one, other, wanted, sizes)
        if 8 * found.cells > limit:
            raise ModelTooLarge(
                f"a table of {found.cells:,} cells ({8 * found.cells:,} bytes) is needed; the "
                f"limit is {limit:,} bytes. Ask for fewer attributes at once, observe "
                "more, or raise memory_limit"
            )
        kernels[key] = found
    return found


def _cells(members: tuple[int, ...], sizes: Sequence[int]) -> int:
    cells = 1
    for v in members:
        cells *= sizes[v]
    return cells


def _axes_alone(members: int, others: int) -> tuple[int, ...]:
    if not members & ~others:
        return ()
    return tuple(axis for axis, v in enumerate(each_bit(members)) if not others >> v & 1)


def _permuted(members: int, order: tuple[int, ...]) -> list[int] | None:
    held = each_bit(members)
    if held == order:
        return None
    return [held.index(v) for v in order]


class Messages:
    """One calibration: of inputs' tables on a tree.

    Args:
        tree: the elimination tree.
        tables: of its inputs, axes ascending; in [0, 1].
        conditional: whether all values and adjoints stay in [0, 1], as products of conditional
            distributions and likelihoods do; then they need no scaling.
        limit: bytes that a table may take.

    Raises Underflow where the sum is zero or was lost.
    """

    def __init__(
        self,
        tree: EliminationTree,
        tables: Sequence[Array],
        conditional: bool,
        limit: int,
        kernels: dict[tuple[int, int, int], Kernel],
    ) -> None:
        self.tree, self.limit, self.kernels = tree, limit, kernels
        self.scaled = not conditional
        self.adjoints: dict[int, Table] = {}
        self._upward(tables)

    def _upward(self, tables: Sequence[Array]) -> None:
        self.values: list[Array | None] = list(tables)
        scales: list[Scale] = [0.0] * self.tree.inputs
        for node in range(self.tree.inputs, len(self.tree.scopes)):
            value: Array | None = None
            scale: Scale = 0.0
            if not self.tree.barren[node]:  # one that is has a sum of 1, whatever is below it
                value = self._made(node)
                for operand in self.tree.operands[node]:
                    scale = scale + scales[operand]
                if self.scaled:
                    value, log_peak = self.rescaled((self.tree.tables[node], value))
                    scale = scale + log_peak
            self.values.append(value)
            scales.append(scale)
        self.log_sum: Scale = 0.0
        for root in self.tree.roots:
            if (value := self.values[root]) is not None:
                self.log_sum = self.log_sum + scales[root] + self.log_of(value)

    def rescaled(self, table: Table) -> tuple[Array, Scale]:
        """The table with a peak that products leave in range, and log of what it was divided by."""
        peak = float(table[1].max())
        if not LOST < peak < math.inf:
            raise Underflow
        if FAR < peak < 1 / FAR:
            return table[1], 0.0
        return table[1] / peak, math.log(peak)

    def log_of(self, value: Array) -> Scale:
        """The logarithm of a root's sum."""
        if not LEAST_SUM < float(value) < math.inf:
            raise Underflow
        return math.log(float(value))

    def _made(self, node: int) -> Array:
        tree = self.tree
        present = [v for v in tree.operands[node] if not tree.barren[v]]
        wanted = tree.tables[node]
        if len(present) == 1:
            return self.reduced((tree.tables[present[0]], self._value(present[0])), wanted)[1]
        one, other = [(tree.tables[v], self._value(v)) for v in present]
        return self.product(one, other, wanted)[1]

    def _value(self, node: int) -> Array:
        value = self.values[node]
        assert value is not None
        return value

    def kernel(self, one: int, other: int, wanted: int) -> Kernel:
        return kernel_of(self.kernels, self.tree.sizes, self.limit, one, other, wanted)

    def reduced(self, table: Table, wanted: int) -> Table:
        """The table summed to the wanted ones of its attributes."""
        members, values = table
        axes = _axes_alone(members, wanted)
        return members & wanted, sum_axes(values, axes)

    def product(self, one: Table, other: Table, wanted: int) -> Table:
        """The product, summed to the wanted ones of its attributes."""
        if not one[0]:  # a number
            return self.reduced((other[0], one[1] * other[1]), wanted)
        if not other[0]:
            return self.reduced((one[0], one[1] * other[1]), wanted)
        made = self.kernel(one[0], other[0], wanted)(one[1], other[1])
        return (one[0] | other[0]) & wanted, made

    def adjoint(self, node: int) -> Table:
        """The factor of the node's value, over its scope; constant along attributes it lacks."""
        path = []
        while node not in self.adjoints:
            path.append(node)
            above = self.tree.parents[node]
            if above < 0:
                self.adjoints[node] = 0, self.root_adjoint(node)
                path.pop()
                break
            node = above
        for below in reversed(path):
            self.adjoints[below] = self._downward(below)
        return self.adjoints[path[0] if path else node]

    def root_adjoint(self, node: int) -> Array:
        """The factor of a component's sum."""
        value = self.values[node]
        return np.array(1.0 if value is None or self.scaled else 1.0 / float(value))

    def _downward(self, node: int) -> Table:
        tree = self.tree
        above = tree.parents[node]
        upper, wanted = self.adjoints[above], tree.scopes[node]
        beside = [v for v in tree.operands[above] if v != node and not tree.barren[v]]
        if beside:
            sibling = tree.tables[beside[0]], self._value(beside[0])
            found = self.product(upper, sibling, wanted)
        else:
            found = self.reduced(upper, wanted)
        if self.scaled:
            found = found[0], self.rescaled(found)[0]
        return found

    def belief(self, node: int, wanted: int) -> Table:
        """The marginal over attributes of a node's scope that its table and adjoint know."""
        upper = self.adjoint(node)
        value = self.values[node]
        if value is None:
            found = self.reduced(upper, wanted)
        else:
            found = self.product((self.tree.tables[node], value), upper, wanted)
        return self.settled(found)

    def settled(self, found: Table) -> Table:
        """The table as probabilities."""
        total = float(found[1].sum())
        least = LOST if self.scaled else 1.0 - 1e-6
        if not least < total < math.inf or (not self.scaled and total > 1 + 1e-6):
            raise Underflow
        return found[0], found[1] / total

    def marginal(self, members: int) -> Array:
        """The marginal of any attributes, axes ascending."""
        if members & (members - 1):
            home = self._home(members)
        else:
            home = self.homes[members.bit_length() - 1] if members else None
        found = self.joint(members) if home is None else self.belief(home, members)
        return found[1]

    @property
    def homes(self) -> list[int]:
        """For each attribute the node with the smallest table that depends on it."""
        if not hasattr(self, "_homes"):
            tree = self.tree
            cells = [math.inf] * len(tree.sizes)
            self._homes = [-1] * len(tree.sizes)
            for node, members in enumerate(tree.tables):
                value = self.values[node]
                if value is None:
                    continue
                size = value.size
                for v in each_bit(members):
                    if size <= cells[v]:
                        cells[v], self._homes[v] = size, node
        return self._homes

    def _home(self, members: int) -> int | None:
        """The node with the smallest table that depends on all of these attributes."""
        held = [
            (value.size, -node)
            for node, table in enumerate(self.tree.tables)
            if not members & ~table and (value := self.values[node]) is not None
        ]
        return -min(held)[1] if held else None

    def across(self, node: int, kept: int) -> Table:
        """A node's value with the attributes ``kept`` that are summed out below it still there."""
        memory: dict[int, Table | None] = {}
        order = [node]
        for each in order:
            if each < self.tree.inputs or not self.tree.below[each] & kept:
                value = self.values[each]
                memory[each] = None if value is None else (self.tree.tables[each], value)
            else:
                order += self.tree.operands[each]
        for each in reversed(order):
            if each in memory:
                continue
            held = [found for v in self.tree.operands[each] if (found := memory[v]) is not None]
            wanted = self.tree.scopes[each] | kept
            memory[each] = (
                self.product(held[0], held[1], wanted)
                if len(held) == 2
                else self.reduced(held[0], wanted)
            )
        found = memory[node]
        assert found is not None
        return found

    def joint(self, members: int) -> Table:
        """The joint marginal of attributes anywhere in the tree."""
        parts = [self._connected(node, inside) for node, inside in self.tree.lowest(members)]
        found = parts[0] if parts else (0, np.array(1.0))
        for part in parts[1:]:
            found = self.product(found, part, found[0] | part[0])
        return found

    def _connected(self, node: int, members: int) -> Table:
        """The marginal of attributes of one component at or below a node."""
        kept = members & self.tree.below[node]
        upper = self.adjoint(node)
        if not kept and self.values[node] is None:
            return self.settled(self.reduced(upper, members))
        value = self.across(node, kept)
        return self.settled(self.product(value, upper, members))


class Sums(Messages):
    """A calibration of which only the whole sum is asked: what was multiplied is dropped."""

    def _made(self, node: int) -> Array:
        made = super()._made(node)
        for operand in self.tree.operands[node]:
            self.values[operand] = None
        return made
