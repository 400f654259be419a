"""Products of two tables of an elimination tree, each planned once for its sets of attributes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgmkit.graphs.bit_sets import cells_of, each_bit
from pgmkit.linear.axes import sum_axes
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import FEW_CELLS


class Kernel:
    """A callable that returns the product of two tables, summed over all but the wanted attributes.

    Args:
        one, other, wanted: the attributes of the two tables and those to keep, as bit sets; the
            axes of all tables are ascending.
        sizes: the sizes of all attributes.

    Up to ``FEW_CELLS`` cells are multiplied with broadcasting and then summed. More cells are
    summed by a batch of matrix products: attributes in both tables form the batch if they are
    wanted, and are summed over if not. Those in one table only are rows or columns if they are
    wanted, and are summed out before the product if not. If nothing is left to sum over, the tables
    are multiplied with broadcasting, and the result has the memory order of the larger one.
    """

    def __init__(self, one: int, other: int, wanted: int, sizes: Sequence[int]) -> None:
        self.first: tuple[int, ...] = ()  # the axes summed out of `one` before the product
        self.second: tuple[int, ...] = ()  # and those of `other`
        if cells_of(one | other, sizes) <= FEW_CELLS:
            self._broadcast(one, other, wanted, sizes)
            return
        self.first = axes_alone(one, other | wanted)
        self.second = axes_alone(other, one | wanted)
        one &= other | wanted
        other &= one | wanted
        both = one & other
        groups = both & wanted, one & ~other, both & ~wanted, other & ~one
        batch, rows, summed, columns = map(each_bit, groups)
        b, r, s, c = (cells_of(group, sizes) for group in groups)
        if s == 1:
            self._broadcast(one, other, wanted, sizes)
            return
        self.cells = b * r * c
        self.form = "matrix"
        order, turned = batch + rows + columns, (batch + rows + summed, batch + summed + columns)
        held = each_bit(one), each_bit(other)
        self.orders = [[held[i].index(v) for v in turned[i]] for i in (0, 1)]
        self.left, self.right = [b, r, s], [b, s, c]
        self.shape = [sizes[v] for v in order]
        self.out = [order.index(v) for v in sorted(order)]

    def _broadcast(self, one: int, other: int, wanted: int, sizes: Sequence[int]) -> None:
        """Plan a product with broadcasting, then a sum."""
        axes, held, more = each_bit(one | other), each_bit(one), each_bit(other)
        # Membership is faster in a short tuple than in an integer, which may have many digits.
        kept = each_bit((one | other) & wanted)
        self.form = "multiply"
        self.left = [sizes[v] if v in held else 1 for v in axes]
        self.right = [sizes[v] if v in more else 1 for v in axes]
        self.away = tuple([axis for axis, v in enumerate(axes) if v not in kept])
        self.cells = cells_of((one | other) & wanted, sizes)

    def __call__(self, one: Array, other: Array) -> Array:
        if self.first:
            one = sum_axes(one, self.first)
        if self.second:
            other = sum_axes(other, self.second)
        if self.form == "multiply":
            made = one.reshape(self.left) * other.reshape(self.right)
            return np.asarray(np.add.reduce(made, self.away)) if self.away else made
        a = one.transpose(self.orders[0]).reshape(self.left)
        b = other.transpose(self.orders[1]).reshape(self.right)
        return np.matmul(a, b).reshape(self.shape).transpose(self.out)


def axes_alone(members: int, others: int) -> tuple[int, ...]:
    """Return the axes, in a table over ``members``, of the attributes that are not in
    ``others``.
    """
    if not members & ~others:
        return ()
    return tuple(axis for axis, v in enumerate(each_bit(members)) if not others >> v & 1)
