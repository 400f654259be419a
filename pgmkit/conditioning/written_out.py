"""The joint distribution of a few attributes, written out cell by cell.

For a few thousand cells that takes less time than to look for an order of elimination.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pgmkit.conditioning.message_passing import LEAST_SUM, Underflow
from pgmkit.graphs.bit_sets import each_bit

__all__ = ["MOST_CELLS", "WrittenOut", "product"]

Array = NDArray[np.float64]

MOST_CELLS = 1 << 10
"""Cells that are gone through faster than an elimination is planned."""


class WrittenOut:
    """The normalised product of tables.

    Args:
        scopes: of each table its attributes as a set.
        tables: axes ascending; in [0, 1].
        sizes: of all attributes.

    Raises Underflow where the sum is zero or was lost.

    >>> found = WrittenOut([0b01, 0b11], [np.array([0.5, 0.5]), np.eye(2)], (2, 2))
    >>> found.marginal(0b10), round(found.log_sum, 12)
    (array([0.5, 0.5]), 0.0)
    """

    def __init__(
        self, scopes: Sequence[int], tables: Sequence[Array], sizes: Sequence[int]
    ) -> None:
        held = 0
        for scope in scopes:
            held |= scope
        self.axes = each_bit(held)
        joint = product(scopes, tables, self.axes, sizes)
        total = float(joint.sum())
        if not LEAST_SUM < total < math.inf:
            raise Underflow
        joint /= total
        self.joint, self.log_sum = joint, math.log(total)

    def marginal(self, members: int) -> Array:
        """The marginal of any of the attributes, axes ascending."""
        away = tuple([axis for axis, v in enumerate(self.axes) if not members >> v & 1])
        return np.asarray(self.joint.sum(away)) if away else self.joint.copy()


def product(
    scopes: Sequence[int], tables: Sequence[Array], axes: Sequence[int], sizes: Sequence[int]
) -> Array:
    """The product of tables with ascending axes, over axes that hold them all."""
    found = np.ones([sizes[v] for v in axes])
    for scope, table in zip(scopes, tables, strict=True):
        found *= table.reshape([sizes[v] if scope >> v & 1 else 1 for v in axes])
    return found
