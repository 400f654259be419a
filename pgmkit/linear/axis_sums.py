"""Sums over any axes of an array."""

from __future__ import annotations

from string import ascii_letters

import numpy as np

from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import CALL_CELLS


def sum_axes(table: Array, away: tuple[int, ...]) -> Array:
    """Sum the table over the axes ``away``; the result lacks them.

    >>> sum_axes(np.arange(24.0).reshape(2, 3, 4), (0, 2)).tolist()
    [60.0, 92.0, 124.0]
    """
    if not away:
        return table
    # numpy's sum takes short trailing axes one stretch at a time, at twice einsum's time for a
    # large table. einsum has a letter for each axis.
    if table.size <= CALL_CELLS or table.ndim > len(ascii_letters):
        return np.asarray(table.sum(away))
    letters = ascii_letters[: table.ndim]
    kept = "".join([letter for axis, letter in enumerate(letters) if axis not in away])
    return np.asarray(np.einsum(f"{letters}->{kept}", table))
