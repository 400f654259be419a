"""Tables scaled until they have given sums (iterative proportional fitting: Deming and Stephan,
1940).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import AGREEMENT


def raked(table: Array, wanted: Sequence[Array], rounds: int) -> Array:
    """Return the table after at most ``rounds`` rounds, in each of which it is scaled to each of
    the ``wanted`` sums in turn. The rounds end when no sum is off by more than rounding.

    Each wanted array has the axes of ``table``, with length 1 along those that are summed. If some
    table has all these sums, the result approaches the one that is nearest to ``table`` in relative
    entropy. The last sums are always met, except those of cells that are all zero.

    >>> sums = np.array([[30.0], [70.0]]), np.array([[40.0, 60.0]])
    >>> raked(np.array([[1.0, 1.0], [1.0, 1.0]]), sums, 10)
    array([[12., 18.],
           [28., 42.]])
    """
    away = [tuple(np.flatnonzero(np.equal(each.shape, 1))) for each in wanted]
    for _ in range(rounds):
        change = 0.0
        for axes, goal in zip(away, wanted, strict=True):
            found = table.sum(axis=axes, keepdims=True)
            change = max(change, float(np.abs(goal - found).max()))
            table = table * np.divide(goal, found, out=np.ones_like(found), where=found > 0)
        if change <= AGREEMENT * table.sum():
            break
    return table
