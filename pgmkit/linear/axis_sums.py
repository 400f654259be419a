"""Sums over any axes of an array, one group of neighbouring axes after the other.

numpy sums short trailing axes one stretch at a time, in up to ten nanoseconds a cell. Here short
trailing axes are summed by a matrix product, and others by adding long vectors, which takes half a
nanosecond a cell. A large array that is not contiguous is copied first.
"""

from __future__ import annotations

from itertools import groupby
from math import prod

import numpy as np

from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import CALL_CELLS

_LONG = 16
"""The fewest cells after the summed axes with which numpy's own sum is as fast as a product."""


def sum_axes(table: Array, away: tuple[int, ...]) -> Array:
    """Return the table summed over the axes ``away``, which the result lacks; the table itself if
    there are none.

    >>> sum_axes(np.arange(24.0).reshape(2, 3, 4), (0, 2))
    array([ 60.,  92., 124.])
    """
    if not away:
        return table
    if table.size <= CALL_CELLS:
        return np.asarray(np.add.reduce(table, away))
    found, after = np.ascontiguousarray(table), table.size
    for summed, axes in groupby(range(table.ndim), away.__contains__):
        cells = prod([table.shape[axis] for axis in axes])
        after //= cells
        if summed:
            found = _sum_middle(found.reshape(-1, cells, after))
    return found.reshape([n for axis, n in enumerate(table.shape) if axis not in away])


def sums_up_to(values: Array, run: int) -> Array:
    """Return, for each of the values in C order, its sum with those before it in the same run of
    ``run`` neighbouring values.

    >>> sums_up_to(np.arange(6.0), 3)
    array([ 0.,  1.,  3.,  3.,  7., 12.])
    """
    return values.reshape(-1, run).cumsum(axis=1).reshape(values.shape)


def _sum_middle(table: Array) -> Array:
    """Return the sum of a table with three axes over the middle one."""
    _, summed, after = table.shape
    if after >= _LONG:
        return np.asarray(table.sum(1))
    if summed * after > CALL_CELLS:  # the matrix of the product would be large
        return np.asarray(np.einsum("ijk->ik", table))
    found: Array = table.reshape(len(table), -1) @ np.tile(np.eye(after), (summed, 1))
    return found
