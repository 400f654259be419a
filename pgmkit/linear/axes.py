"""Tables whose axes have names, their broadcasting over further axes, and sums over axes.

numpy sums short trailing axes one stretch at a time, in up to ten nanoseconds a cell. Here short
trailing axes are summed by a matrix product, and others by adding long vectors, which takes half a
nanosecond a cell. A large array that is not contiguous is copied first.
"""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import CALL_CELLS

if TYPE_CHECKING:
    import torch

Axes = tuple[str, ...]

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


def spread(axes: Axes, held: Axes, table: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of a table with axes ``held`` that broadcasts against tables over ``axes``: its
    axes come in the order of ``axes``, and those that it lacks have length 1.

    >>> import numpy as np
    >>> spread(("a", "b", "c"), ("c", "a"), np.ones((4, 2))).shape
    (2, 1, 4)
    """
    order = [name for name in axes if name in held]
    moved = table.transpose([held.index(name) for name in order]).copy()
    return moved[tuple([slice(None) if name in held else None for name in axes])]


def sum_to(table: Array, held: Axes, axes: Axes) -> Array:
    """Return the table, whose axes are ``held``, summed to ``axes``, in that order. If nothing is
    summed, the result shares the table's memory.

    >>> import numpy as np
    >>> sum_to(np.ones((2, 3, 4)), ("a", "b", "c"), ("c", "a")).shape
    (4, 2)
    """
    away = tuple([place for place, name in enumerate(held) if name not in axes])
    left = [name for name in held if name in axes]
    return sum_axes(table, away).transpose([left.index(name) for name in axes])


def tensor_sum_to(table: torch.Tensor, held: Axes, axes: Axes) -> torch.Tensor:
    """Return the tensor, whose axes are ``held``, summed to ``axes``, in that order. If nothing is
    summed, the result shares the tensor's memory.
    """
    away = [place for place, name in enumerate(held) if name not in axes]
    left = [name for name in held if name in axes]
    # torch reads an empty list of axes as all axes.
    return (table.sum(away) if away else table).permute([left.index(name) for name in axes])
