"""The best records of a product of tables: maxima on an elimination tree, in logarithms.

The *value* of a node is the sum of the inputs' logarithms below it, maximised over the attributes
that leave at or below it; a best record is read from the roots down. The adjoint of an input is the
best of all the others, so that both together give what each value of an attribute can reach.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pgmkit.bit_sets import each_bit
from pgmkit.conditioning.elimination import EliminationTree

__all__ = ["Modes"]

Array = NDArray[np.float64]
Table = tuple[int, Array]
"""Attributes as a set, and the table with its axes ascending."""


class Modes:
    """Maxima of one set of tables.

    Args:
        tree: an elimination tree of which no node is barren.
        tables: of its inputs, logarithms, axes ascending.

    >>> from pgmkit.conditioning.elimination import elimination_tree
    >>> tree = elimination_tree([0b01, 0b11], [-1, -1], [0, 1], (2, 2))
    >>> modes = Modes(tree, [np.log([0.4, 0.6]), np.log([[0.9, 0.1], [0.5, 0.5]])])
    >>> sorted(modes.record().items()), round(float(np.exp(modes.best)), 3)
    ([(0, 0), (1, 0)], 0.36)
    """

    def __init__(self, tree: EliminationTree, tables: Sequence[Array]) -> None:
        self.tree = tree
        self.values: list[Table] = list(zip(tree.scopes, tables, strict=False))
        for node in range(tree.inputs, len(tree.scopes)):
            self.values.append(self._best(self._operands(node), tree.scopes[node]))
        self.best = float(sum([self.values[root][1] for root in tree.roots]))

    def record(self) -> dict[int, int]:
        """A value of each attribute, by its number, so that no record is better."""
        found: dict[int, int] = {}
        for node in range(len(self.tree.scopes) - 1, self.tree.inputs - 1, -1):
            members, table = self._sum([_fixed(each, found) for each in self._operands(node)])
            best = np.unravel_index(int(table.argmax()), table.shape)
            found.update(zip(each_bit(members), map(int, best), strict=True))
        return found

    def reached(self) -> dict[int, Array]:
        """Of each attribute, by its number, the best that a record with each of its values has."""
        tree = self.tree
        found: dict[int, Array] = {}
        adjoints: list[Table] = [(0, np.array(0.0))] * len(tree.scopes)
        for root in tree.roots:
            others = [self.values[other][1] for other in tree.roots if other != root]
            adjoints[root] = 0, np.asarray(sum(others, start=np.array(0.0)))
        for node in range(len(tree.scopes) - 1, -1, -1):
            for operand in tree.operands[node]:
                beside = [self.values[each] for each in tree.operands[node] if each != operand]
                adjoints[operand] = self._best([adjoints[node], *beside], tree.scopes[operand])
            if node < tree.inputs:
                both = [self.values[node], adjoints[node]]
                for v in each_bit(tree.scopes[node]):
                    if v not in found:
                        found[v] = self._best(both, 1 << v)[1]
        return found

    def _operands(self, node: int) -> list[Table]:
        return [self.values[operand] for operand in self.tree.operands[node]]

    def _sum(self, tables: Sequence[Table]) -> Table:
        members = 0
        for held, _ in tables:
            members |= held
        axes, sizes = each_bit(members), self.tree.sizes
        total = np.zeros(())
        for held, table in tables:
            total = total + table.reshape([sizes[v] if held >> v & 1 else 1 for v in axes])
        return members, total

    def _best(self, tables: Sequence[Table], kept: int) -> Table:
        """The sum of tables, maximised over what is not kept."""
        members, total = self._sum(tables)
        away = tuple([axis for axis, v in enumerate(each_bit(members)) if not kept >> v & 1])
        return members & kept, np.asarray(total.max(away)) if away else total


def _fixed(table: Table, codes: dict[int, int]) -> Table:
    """A table where some attributes have these codes."""
    members, values = table
    at = tuple([codes.get(v, slice(None)) for v in each_bit(members)])
    for v in each_bit(members):
        if v in codes:
            members ^= 1 << v
    return members, values[at]
