"""Messages for many records of evidence at once: their tables have one more axis, the first.

This axis has an entry for each record. It is treated as an attribute that is never summed out, so
the tree, its order and its products are those of a single record. Only the numbers that tables are
divided by are found for each record separately.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgmkit.conditioning.elimination import EliminationTree, Planning, elimination_tree
from pgmkit.conditioning.message_passing import LOST, Messages, Scale, Table
from pgmkit.graphs.bit_sets import union
from pgmkit.runtime.arrays import Array

RECORDS = 0b1
"""The bit of the axis of records in a set of attributes. The bit of each attribute is one place
higher than in the graph.
"""


def batched_tree(
    scopes: Sequence[int], heads: Sequence[int], own: Sequence[bool], sizes: Sequence[int]
) -> EliminationTree:
    """Return the elimination tree for many records. In the sets of its nodes, ``RECORDS`` is the
    axis of records, and the bit of each attribute is one place higher than in the graph.

    Args:
        scopes: the attributes of each input, as sets in the graph's bits.
        heads: the attributes that each input is a conditional distribution of, as a set in the
            graph's bits; -1 for any other table.
        own: whether each input differs from record to record.
        sizes: the number of records, then the sizes of the attributes.

    The tree has one more input, the last one, which is the number 1.
    """
    order = Planning(scopes, heads, tuple(sizes[1:])).best().order
    # An attribute is summed out as soon as no other node holds it. The additional last input has
    # the axis of records and is never multiplied, so that axis is never summed out.
    placed = [scope << 1 | RECORDS for scope in (*scopes, 0)]
    moved = [head << 1 if head >= 0 else head for head in (*heads, -1)]
    tree = elimination_tree(placed, moved, [v + 1 for v in order], tuple(sizes))
    for node, different in enumerate((*own, False)):
        if not different:
            tree.tables[node] &= ~RECORDS
    for node in range(tree.inputs, len(tree.scopes)):
        held = union([tree.tables[operand] for operand in tree.operands[node]])
        tree.tables[node] = 0 if tree.barren[node] else held & tree.scopes[node]
    return tree


class BatchedMessages(Messages):
    """``Messages`` of many records, on a tree of ``batched_tree``. Every table is divided by one
    number for each record instead of one for all.

    Sets of attributes have the bits that ``batched_tree`` gives its nodes. The boolean array
    ``lost`` marks the records whose products underflow; their results are not valid.
    """

    always = RECORDS

    def pass_upward(self, tables: Sequence[Array]) -> None:
        self.lost = np.zeros(self.tree.sizes[0], dtype=bool)
        super().pass_upward([*tables, np.ones(())])

    def rescaled(self, table: Table) -> tuple[Array, Scale]:
        peaks = self._divisors(table[1].max(axis=_others(table)))
        return table[1] / _along(table, peaks), np.log(peaks)

    def log_of(self, value: Array) -> Scale:
        return np.log(self._divisors(value))

    def settled(self, found: Table) -> Table:
        return found[0], found[1] / _along(found, self._divisors(found[1].sum(axis=_others(found))))

    def marginal(self, members: int) -> Array:
        """Return the marginals over the attributes ``members``: the axis of records comes first,
        then the others ascending.
        """
        held, values = self.table(members)
        values = values if held & RECORDS else values[None]
        return np.broadcast_to(values, (self.tree.sizes[0], *values.shape[1:]))

    def _divisors(self, numbers: Array) -> Array:
        """Return ``numbers``, one for each record or one for all, with 1 in place of those that are
        too small or not finite, so that a table can be divided by the result. The records of the
        replaced numbers are marked as lost.
        """
        wrong = ~((numbers > LOST) & np.isfinite(numbers))
        self.lost |= wrong
        return np.where(wrong, 1.0, numbers)


def _others(table: Table) -> tuple[int, ...]:
    """Return the positions of all axes of a table except that of the records."""
    return tuple(range(table[0] & RECORDS, table[1].ndim))


def _along(table: Table, numbers: Array) -> Array:
    """Return ``numbers``, one for each record or one for all, in a shape that broadcasts against
    the table.
    """
    return numbers.reshape(-1, *[1] * (table[1].ndim - 1)) if numbers.ndim else numbers
