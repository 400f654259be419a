"""Messages on an elimination tree: every node's value from below, and its adjoint from above.

The *value* of a node is the product of the inputs below it, with attributes summed out. Its
*adjoint* is the product of all other inputs with all other attributes summed out, divided by the
sum over all records. Value times adjoint is the marginal over the node's attributes (Darwiche 2003;
Shafer and Shenoy 1990 on a binary tree). Tables that might underflow are divided by their maxima;
values and adjoints are then known up to a factor, and a marginal is their product divided by its
sum. Values are computed first; adjoints are computed from the root down when an answer needs them,
and kept. The marginal of attributes that share no node is computed on the part of the tree between
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from pgmkit.conditioning.elimination import EliminationTree
from pgmkit.conditioning.kernels import Kernel, axes_alone
from pgmkit.graphs.bit_sets import each_bit
from pgmkit.linear.axes import sum_axes
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.memory import check_room
from pgmkit.runtime.precision import CLOSE, EPSILON, TINY
from pgmkit.runtime.sizes import CALL_CELLS, CELL_BYTES

Table = tuple[int, Array]
"""Attributes as a set, and a table over them with its axes ascending."""
Scale = float | Array
"""The logarithm of a number that a table was divided by, or an array with one for each of many
records.
"""

LEAST_ENTRY = TINY / EPSILON
"""The smallest positive entry, of a table with maximum 1, with which products without logarithms
are safe from underflow.
"""

LOST = TINY ** (1 / 3)
"""If the maximum of a product of tables with maxima near 1 is below this, terms that matter may
have been lost to underflow.
"""
FAR = LOST ** (1 / 5)
"""A table whose maximum is between this and its inverse may be multiplied once more without
rescaling, since it is far above ``LOST``.
"""
LEAST_SUM = LEAST_ENTRY / EPSILON
"""A sum of numbers in [0, 1] that is at least this large has lost only negligible terms to
underflow.
"""


class Underflow(ArithmeticError):
    """Raised if a sum is zero, not finite, or so small that floating-point numbers may have lost
    part of it, if entries are so small that this may happen, or if probabilities do not sum to 1.
    """


class Messages:
    """Messages on one elimination tree for one set of input tables.

    Args:
        tree: the elimination tree.
        tables: the tables of its inputs, axes ascending, entries in [0, 1].
        conditional: whether all values stay in [0, 1], as products of conditional distributions
            and likelihoods do; then no table is rescaled, and adjoints are divided by the sum.
        limit: the largest number of bytes that the result of a product of two tables may take.
        kernels: the kernels made so far, by their attributes; new ones are added.

    Raises Underflow if the sum, over all records, of the product of the tables is zero or too small
    to be reliable.
    """

    always = 0
    """The attributes that are never summed out, as a set."""

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
        self.pass_upward(tables)

    def pass_upward(self, tables: Sequence[Array]) -> None:
        self.values: list[Array | None] = list(tables)
        scales: list[Scale] = [0.0] * self.tree.inputs
        for node in range(self.tree.inputs, len(self.tree.scopes)):
            value: Array | None = None
            scale: Scale = 0.0
            if not self.tree.barren[node]:  # a barren node is 1 everywhere and needs no product
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
        """Return the table, divided by its maximum unless that is between ``FAR`` and 1 / ``FAR``,
        and the logarithm of the divisor. Raises Underflow if the maximum is not finite, or so small
        that terms may have been lost.
        """
        peak = float(table[1].max())
        if not LOST < peak < math.inf:
            raise Underflow
        if FAR < peak < 1 / FAR:
            return table[1], 0.0
        return table[1] / peak, math.log(peak)

    def log_of(self, value: Array) -> Scale:
        """Return the logarithm of a root's value. Raises Underflow if the value is too small or not
        finite.
        """
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
        """Return the kernel that multiplies tables over the attributes ``one`` and ``other`` and
        sums over all but ``wanted``. Raises ModelTooLarge if the result of a kernel that was not
        used before exceeds the limit or free memory.
        """
        found = self.kernels.get((one, other, wanted))
        if found is None:
            found = Kernel(one, other, wanted, self.tree.sizes)
            check_room(CELL_BYTES * found.cells, "a product of tables", self.limit, "observe more")
            self.kernels[one, other, wanted] = found
        return found

    def reduced(self, table: Table, wanted: int) -> Table:
        """Return the table, summed over all attributes but the wanted ones."""
        members, values = table
        return members & wanted, sum_axes(values, axes_alone(members, wanted))

    def product(self, one: Table, other: Table, wanted: int) -> Table:
        """Return the product of two tables, summed over all attributes but the wanted ones."""
        if not one[0]:  # the first table is a number
            return self.reduced((other[0], one[1] * other[1]), wanted)
        if not other[0]:
            return self.reduced((one[0], one[1] * other[1]), wanted)
        return (one[0] | other[0]) & wanted, self.kernel(one[0], other[0], wanted)(one[1], other[1])

    def adjoint(self, node: int) -> Table:
        """Return a node's adjoint. Attributes of the node's scope along which the adjoint is
        constant are left out.
        """
        path, above = list[int](), node
        while above >= 0 and above not in self.adjoints:
            path.append(above)
            above = self.tree.parents[above]
        for below in reversed(path):
            self.adjoints[below] = self._downward(below)
        return self.adjoints[node]

    def root_adjoint(self, node: int) -> Array:
        """Return the adjoint of a root: 1 divided by its value, or 1 if tables are rescaled."""
        value = self.values[node]
        return np.array(1.0 if value is None or self.scaled else 1.0 / float(value))

    def _downward(self, node: int) -> Table:
        tree = self.tree
        if (above := tree.parents[node]) < 0:
            return 0, self.root_adjoint(node)
        upper, wanted = self.adjoints[above], tree.scopes[node] | self.always
        beside = [v for v in tree.operands[above] if v != node and not tree.barren[v]]
        if beside:
            found = self.product(upper, (tree.tables[beside[0]], self._value(beside[0])), wanted)
        else:
            found = self.reduced(upper, wanted)
        if self.scaled:
            found = found[0], self.rescaled(found)[0]
        return found

    def belief(self, node: int, wanted: int) -> Table:
        """Return the marginal over those of the wanted attributes that the node's value or adjoint
        depends on.
        """
        upper = self.adjoint(node)
        value = self.values[node]
        if value is None:
            found = self.reduced(upper, wanted)
        else:
            found = self.product((self.tree.tables[node], value), upper, wanted)
        return self.settled(found)

    def settled(self, found: Table) -> Table:
        """Return the table divided by its sum. Raises Underflow if the sum is infinite, NaN, or so
        small that terms may have been lost; where tables are not rescaled (``conditional``), for
        every sum that is not nearly 1.
        """
        total = float(np.add.reduce(found[1], None))  # faster than the method `sum`
        least = LOST if self.scaled else 1.0 - CLOSE
        if not least < total < math.inf or (not self.scaled and total > 1 + CLOSE):
            raise Underflow
        return found[0], found[1] / total

    def marginal(self, members: int) -> Array:
        """Return the marginal of the attributes in a bit mask, with axes in the domain's order."""
        return self.table(members)[1]

    def table(self, members: int) -> Table:
        """Return the marginal over these attributes, as its attributes and its array. An attribute
        of ``always``, which are never summed out, is an axis too, unless the marginal is the same
        for all its values.
        """
        if members & (members - 1):
            home = self._home(members)
        else:
            home = self.homes[members.bit_length() - 1] if members else None
        return self.joint(members) if home is None else self.belief(home, members | self.always)

    @cached_property
    def homes(self) -> list[int]:
        """For each attribute, the node whose value has the fewest cells of all that depend on the
        attribute; -1 if no value does.
        """
        cells, found = [math.inf] * len(self.tree.sizes), [-1] * len(self.tree.sizes)
        for node, members in enumerate(self.tree.tables):
            if (value := self.values[node]) is not None:
                size = value.size
                for v in each_bit(members):
                    if size <= cells[v]:
                        cells[v], found[v] = size, node
        return found

    def _home(self, members: int) -> int | None:
        """Return the node whose value has the fewest cells of all that depend on all these
        attributes; None if no value does.
        """
        held = [
            (value.size, -node)
            for node in self.tree.holding(members)
            if (value := self.values[node]) is not None
        ]
        return -min(held)[1] if held else None

    def across(self, node: int, kept: int) -> Table:
        """Return the value that a node would have if the attributes ``kept`` were not summed out at
        the node or below it.
        """
        tree, values = self.tree, self.values
        memory: dict[int, Table | None] = {}
        made: list[tuple[int, tuple[int, ...]]] = []
        order = [node]
        for each in order:
            if not tree.below[each] & kept:
                value = values[each]
                memory[each] = None if value is None else (tree.tables[each], value)
                continue
            operands = tree.operands[each]
            if each in tree.links and (chain := self._chain(each, kept)) is not None:
                # The matrix of the path is an operand without a node, so in `memory` it gets the
                # negative number ~low.
                low, matrix = chain
                operands = low, ~low
                memory[~low] = matrix
                order.append(low)
            else:
                order += operands
            made.append((each, operands))
        for each, operands in reversed(made):
            held = [found for v in operands if (found := memory[v]) is not None]
            wanted = tree.scopes[each] | kept | self.always
            memory[each] = (
                self.product(held[0], held[1], wanted)
                if len(held) == 2
                else self.reduced(held[0], wanted)
            )
        found = memory[node]
        assert found is not None
        return found

    def _chain(self, node: int, kept: int) -> tuple[int, Table] | None:
        """Follow the path down from ``node`` on which every product replaces one attribute by
        another of the same size. The path ends before a product that sums out an attribute of
        ``kept``, before one whose matrix comes from such a product, and before one below which no
        product sums out an attribute of ``kept``. Return the node below the path's last product and
        the matrix that replaces its attribute by that of ``node``, or None if the path has fewer
        than two products.

        The matrices of the path are multiplied as batches of pairs. That takes a few calls for each
        hundred of them, where ``product`` takes several calls for each: the joint marginal of two
        attributes of a chain of 1,000 attributes with two values takes an eighth of the time. If
        tables are rescaled, the result is None, since a product of many tables could lose terms.
        """
        tree, matrices, low = self.tree, list[Array](), node
        while not self.scaled and (link := tree.links.get(low)) is not None:
            matrix, below = link
            if (tree.scopes[below] | tree.below[matrix]) & kept or not tree.below[below] & kept:
                break
            value = self._value(matrix)
            matrices.append(value if tree.scopes[low] < tree.scopes[below] else value.T)
            low = below
        if len(matrices) < 2:
            return None
        made, upper, lower = multiplied(matrices), tree.scopes[node], tree.scopes[low]
        return low, (upper | lower, made if upper < lower else made.T)

    def joint(self, members: int) -> Table:
        """Return the joint marginal of the attributes in the bit set ``members``, even if no single
        node contains all of them.
        """
        lowest = self.tree.lowest(members)
        parts = [self._connected(node, inside | self.always) for node, inside in lowest]
        found = parts[0] if parts else (0, np.array(1.0))
        for part in parts[1:]:
            found = self.product(found, part, found[0] | part[0])
        return found

    def _connected(self, node: int, members: int) -> Table:
        """Return the joint marginal of attributes that all are in the scope of a node or summed out
        at or below it.
        """
        kept = members & self.tree.below[node]
        upper = self.adjoint(node)
        if not kept and self.values[node] is None:
            return self.settled(self.reduced(upper, members))
        return self.settled(self.product(self.across(node, kept), upper, members))


class Sums(Messages):
    """Messages that are used only for the sum over all records: the value of an operand is freed as
    soon as it has been multiplied.
    """

    def _made(self, node: int) -> Array:
        made = super()._made(node)
        for operand in self.tree.operands[node]:
            self.values[operand] = None
        return made


def multiplied(matrices: Sequence[Array]) -> Array:
    """Return the product of square matrices of one size, the first on the left.

    Neighbours are multiplied as a batch, then neighbours among the products, and so on. A batch has
    two matrices, or more as long as all of them fit into a core's first cache.

    >>> multiplied([np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([2.0, 3.0]), np.diag([5.0, 7.0])])
    array([[ 0., 21.],
           [10.,  0.]])
    """
    most = max(2, CALL_CELLS // matrices[0].size)
    while len(matrices) > 1:
        made = []
        for start in range(0, len(matrices), most):
            stack = np.array(matrices[start : start + most])
            while len(stack) > 1:
                pairs = len(stack) // 2
                left = stack[2 * pairs :]
                stack = np.matmul(stack[: 2 * pairs : 2], stack[1 : 2 * pairs : 2])
                stack = np.concatenate([stack, left]) if len(left) else stack
            made.append(stack[0])
        matrices = made
    return matrices[0]
