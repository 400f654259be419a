"""The most likely records of a product of tables, by maxima on an elimination tree, in logarithms.

The *value* of a node is the sum of the logarithms of the inputs below it, maximised over the
attributes that are eliminated at or below it. Each maximisation also stores, for every remaining
cell, the index at which the maximum is attained, so that its operands' values can be freed. A best
record is read from these indices, from the last maximisation to the first. The best record with
each value of an attribute comes from messages in which maxima take the place of sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from math import prod

import numpy as np
from numpy.typing import NDArray

from pgmkit.conditioning.elimination import EliminationTree
from pgmkit.conditioning.message_passing import Messages, Scale, Table
from pgmkit.graphs.bit_sets import each_bit
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import CACHE_CELLS

Places = NDArray[np.unsignedinteger]


class MaxKernel:
    """A callable that returns the sum of two log tables, broadcast over the attributes of both and
    maximised over all but the wanted attributes.

    The sum has first the axes of the attributes kept, then those maximised over, both ascending;
    the result has the axes kept. A large sum is not built as a whole but in blocks, one for each
    cell of the first few of the attributes that are maximised over.
    """

    def __init__(self, one: int, other: int, wanted: int, sizes: Sequence[int]) -> None:
        members = one | other
        self.kept, self.gone = each_bit(members & wanted), each_bit(members & ~wanted)
        order = self.kept + self.gone
        self.views = [_view(held, order, sizes) for held in (one, other)]
        self.shape = tuple([sizes[v] for v in self.kept])
        self.cells, inner = prod(self.shape), prod([sizes[v] for v in self.gone])
        looped = 0
        while self.cells * inner > CACHE_CELLS and looped < len(self.gone):
            inner //= sizes[self.gone[looped]]
            looped += 1
        self.looped, self.inner = tuple([sizes[v] for v in self.gone[:looped]]), inner

    def __call__(self, one: Array, other: Array) -> Array:
        tops = (term.max(1) for _, term in self._terms(one, other))
        return reduce(lambda best, top: np.maximum(best, top, out=best), tops).reshape(self.shape)

    def attained(self, one: Array, other: Array) -> tuple[Array, Places]:
        """Return the maxima of the sum of the two log tables, and for each the flat index, over the
        attributes maximised over, at which it is attained (the first of several).
        """
        best: Array | None = None
        kind = np.min_scalar_type(prod(self.looped) * self.inner - 1)
        places = np.zeros(self.cells, dtype=kind)
        for first, term in self._terms(one, other):
            within = term.argmax(1) if self.inner > 1 else np.zeros((), dtype=np.int64)
            top = term.max(1)
            if best is None:
                best = top
                places[...] = within
                continue
            better = top > best
            np.copyto(best, top, where=better)
            np.copyto(places, (first + within).astype(kind), where=better)
        assert best is not None
        return best.reshape(self.shape), places.reshape(self.shape)

    def _terms(self, one: Array, other: Array) -> Iterator[tuple[int, Array]]:
        """Yield the sum of the two tables in blocks of columns, each with the number of its first
        column. A row is a cell of the attributes that are kept, a column one of those that are
        maximised over.
        """
        pairs = zip((one, other), self.views, strict=True)
        views = [table.transpose(axes).reshape(shape) for table, (axes, shape) in pairs]
        left, right = np.broadcast_arrays(*views)
        kept = (slice(None),) * len(self.shape)
        for number, at in enumerate(np.ndindex(self.looped)):
            term = np.add(left[kept + at], right[kept + at], order="C")
            yield number * self.inner, term.reshape(self.cells, self.inner)


class MaxMessages(Messages):
    """Messages whose tables are logarithms and in which maxima take the place of sums. ``marginal``
    then returns max-marginals: the largest log weight of a record with each cell.

    Args:
        tree: an elimination tree whose inputs all have the head -1: they do not count as
            conditional distributions, so every node has a table.
        tables: the logarithms of its inputs, axes ascending.

    >>> from pgmkit.conditioning.elimination import elimination_tree
    >>> tree = elimination_tree([0b01, 0b11], [-1, -1], [0, 1], (2, 2))
    >>> tables = [np.log([0.4, 0.6]), np.log([[0.9, 0.1], [0.5, 0.5]])]
    >>> np.exp(MaxMessages(tree, tables).marginal(0b10)).round(3)
    array([0.36, 0.3 ])
    """

    def __init__(self, tree: EliminationTree, tables: Sequence[Array]) -> None:
        super().__init__(tree, tables, conditional=False, limit=0, kernels={})

    def rescaled(self, table: Table) -> tuple[Array, Scale]:
        return table[1], 0.0

    def log_of(self, value: Array) -> Scale:
        return float(value)

    def settled(self, found: Table) -> Table:
        return found

    def reduced(self, table: Table, wanted: int) -> Table:
        return table if not table[0] & ~wanted else self.product(table, _NOTHING, wanted)

    def product(self, one: Table, other: Table, wanted: int) -> Table:
        found = MaxKernel(one[0], other[0], wanted, self.tree.sizes)(one[1], other[1])
        return (one[0] | other[0]) & wanted, found

    def root_adjoint(self, node: int) -> Array:
        """Return what the components of the other roots add to the max-marginals of this one: the
        sum of their largest log weights.
        """
        others = [self.values[root] for root in self.tree.roots if root != node]
        return np.asarray(sum([value for value in others if value is not None], np.array(0.0)))


def most_likely(tree: EliminationTree, tables: Sequence[Array]) -> tuple[dict[int, int], float]:
    """Return a record of the largest weight, as a mapping from the attributes' numbers to their
    codes, and the logarithm of its weight. If that is minus infinity, no record is possible, and
    the codes mean nothing.

    Args:
        tree: an elimination tree whose inputs all have the head -1, so that every node has a table.
        tables: the logarithms of its inputs, axes ascending.

    >>> from pgmkit.conditioning.elimination import elimination_tree
    >>> tree = elimination_tree([0b01, 0b11], [-1, -1], [0, 1], (2, 2))
    >>> record, best = most_likely(tree, [np.log([0.4, 0.6]), np.log([[0.9, 0.1], [0.5, 0.5]])])
    >>> sorted(record.items()), round(float(np.exp(best)), 3)
    ([(0, 0), (1, 0)], 0.36)
    """
    values: list[Table | None] = list(zip(tree.scopes, tables, strict=False))
    maxima: list[tuple[MaxKernel, Places]] = []
    for node in range(tree.inputs, len(tree.scopes)):
        operands = [each for v in tree.operands[node] if (each := values[v]) is not None]
        one, other = (*operands, _NOTHING)[:2]
        kernel = MaxKernel(one[0], other[0], tree.scopes[node], tree.sizes)
        if kernel.gone:
            value, places = kernel.attained(one[1], other[1])
            maxima.append((kernel, places))
        else:
            value = kernel(one[1], other[1])
        values.append((tree.scopes[node], value))
        for operand in tree.operands[node]:
            values[operand] = None
    best = float(sum([each[1] for root in tree.roots if (each := values[root]) is not None]))
    record: dict[int, int] = {}
    for kernel, places in reversed(maxima):
        place = int(places[tuple([record[v] for v in kernel.kept])])
        for v in reversed(kernel.gone):
            place, record[v] = divmod(place, tree.sizes[v])
    return record, best


_NOTHING: Table = (0, np.array(0.0))
"""A table without attributes. Its only cell is 0, the logarithm of 1."""


def _view(
    held: int, order: Sequence[int], sizes: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the permutation that brings a table's axes into the order ``order`` of attributes, and
    the shape that the table then gets, with length 1 for attributes that it lacks. ``held``: the
    table's attributes as a bit mask; its axes are in ascending order.
    """
    axes = each_bit(held)
    moved = tuple([axes.index(v) for v in order if held >> v & 1])
    return moved, tuple([sizes[v] if held >> v & 1 else 1 for v in order])
