"""Products of two tables of an elimination tree, each planned once for its sets of attributes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from pgmkit.graphs.bit_sets import each_bit
from pgmkit.linear.axis_sums import sum_axes
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import FEW_CELLS


class Kernel:
    """A callable that returns the product of two tables, summed over all but the wanted attributes.

    Args:
        one, other, wanted: the attributes of the two tables and those to keep, as bit sets; the
            axes of all tables are ascending.
        sizes: the sizes of all attributes.

    Few cells are multiplied with broadcasting and then summed. More cells are summed by a batch of
    matrix products: attributes in both tables form the batch if they are wanted, and are summed
    over if not. Those in one table only are rows or columns if they are wanted, and are summed out
    before the product if not. If nothing is left to sum over, the tables are multiplied with
    broadcasting, and the result has the memory order of the larger one.
    """

    __slots__ = ("away", "cells", "first", "form", "left", "out", "right", "second", "shape")
    left: tuple[list[int] | None, list[int] | tuple[int, ...]]
    right: tuple[list[int] | None, list[int] | tuple[int, ...]]

    def __init__(self, one: int, other: int, wanted: int, sizes: Sequence[int]) -> None:
        self.first: tuple[int, ...] = ()
        self.second: tuple[int, ...] = ()
        if _cells(each_bit(one | other), sizes) <= FEW_CELLS:
            self._broadcast(one, other, wanted, sizes)
            return
        self.first = axes_alone(one, other | wanted)
        self.second = axes_alone(other, one | wanted)
        one &= other | wanted
        other &= one | wanted
        both = one & other
        batch, summed = each_bit(both & wanted), each_bit(both & ~wanted)
        rows, columns = each_bit(one & ~other), each_bit(other & ~one)
        b, r, s, c = (_cells(group, sizes) for group in (batch, rows, summed, columns))
        if s == 1:
            self._broadcast(one, other, wanted, sizes)
            return
        self.cells = b * r * c
        # Without rows and columns, `matmul` would compute each cell of the batch as a matrix
        # product of its own.
        self.form = "inner" if r == c == 1 else "matrix"
        orders = [batch + rows + summed, batch + summed + columns]
        order = batch + rows + columns
        shapes = [(b, r, s), (b, s, c)]
        self.left = _permuted(one, orders[0]), shapes[0]
        self.right = _permuted(other, orders[1]), shapes[1]
        self.shape = [sizes[v] for v in order]
        ascending = sorted(order)
        self.out = None if ascending == list(order) else [order.index(v) for v in ascending]

    def _broadcast(self, one: int, other: int, wanted: int, sizes: Sequence[int]) -> None:
        """Plan a product with broadcasting, then a sum."""
        axes, held, more = each_bit(one | other), each_bit(one), each_bit(other)
        # Membership is faster in a short tuple than in an integer, which may have many digits.
        kept = each_bit((one | other) & wanted)
        self.form = "multiply"
        self.left = None, [sizes[v] if v in held else 1 for v in axes]
        self.right = None, [sizes[v] if v in more else 1 for v in axes]
        self.away = tuple([axis for axis, v in enumerate(axes) if v not in kept])
        self.cells = _cells(kept, sizes)

    def __call__(self, one: Array, other: Array) -> Array:
        if self.first:
            one = sum_axes(one, self.first)
        if self.second:
            other = sum_axes(other, self.second)
        order, shape = self.left
        a = one if order is None else one.transpose(order)
        order, columns = self.right
        b = other if order is None else other.transpose(order)
        a, b = a.reshape(shape), b.reshape(columns)
        if self.form == "multiply":
            made = a * b
            return np.asarray(np.add.reduce(made, self.away)) if self.away else made
        made = np.einsum("brs,bsc->b", a, b) if self.form == "inner" else np.matmul(a, b)
        made = made.reshape(self.shape)
        return made if self.out is None else made.transpose(self.out)


def _cells(members: tuple[int, ...], sizes: Sequence[int]) -> int:
    return prod([sizes[v] for v in members])


def axes_alone(members: int, others: int) -> tuple[int, ...]:
    """Return the axes, in a table over ``members``, of the attributes that are not in
    ``others``.
    """
    if not members & ~others:
        return ()
    return tuple(axis for axis, v in enumerate(each_bit(members)) if not others >> v & 1)


def _permuted(members: int, order: tuple[int, ...]) -> list[int] | None:
    held = each_bit(members)
    if held == order:
        return None
    return [held.index(v) for v in order]
