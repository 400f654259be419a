"""Tables whose axes have names, and their broadcasting over further axes and sums to fewer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from pgmkit.linear.axis_sums import sum_axes
from pgmkit.runtime.arrays import Array

if TYPE_CHECKING:
    import torch

Axes = tuple[str, ...]

_ALL = slice(None)


def spread(axes: Axes, held: Axes, table: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of a table with axes ``held`` that broadcasts against tables over ``axes``: its
    axes come in the order of ``axes``, and those that it lacks have length 1.

    >>> import numpy as np
    >>> spread(("a", "b", "c"), ("c", "a"), np.ones((4, 2))).shape
    (2, 1, 4)
    """
    order = [name for name in axes if name in held]
    moved = table.transpose([held.index(name) for name in order]).copy()
    return moved[tuple([_ALL if name in held else None for name in axes])]


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
