"""Units of several rows, such as persons: which rows of each unit are used.

A promise about units holds if each has a bounded number of rows, and if the choice among its rows
depends on nothing that other units hold: then neighbouring data sets, which differ in a unit,
differ in at most this number of rows after the choice. Every unit's choice is uniform and
independent, so the order of the rows does not matter. Randomness is the operating system's; the
promise does not depend on its being secret.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_COUNTED = 3
"""The most left-out rows that are counted for one unit, as a multiple of `max_rows`; the noise of
the count grows with it.
"""


@dataclass(frozen=True)
class Excess:
    """The number of rows that were left out because their unit has more than `max_rows` rows.

    `rows`: this number without noise, with at most `most` rows counted for each unit. It is
    private, and only `Curator.measure_excess` may use it. `most`: that limit.
    """

    rows: int
    most: int


def random_keys(count: int, rng: np.random.Generator | None) -> NDArray[np.uint64]:
    """Return 64 random bits for each of `count` rows: the operating system's if `rng` is None, else
    those of this seeded generator (INSECURE).

    >>> len(random_keys(3, None))
    3
    """
    if rng is not None:
        return rng.integers(0, 2**64, count, dtype=np.uint64)
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def bounded(
    units: NDArray[np.intp], max_rows: int, keys: NDArray[np.uint64]
) -> tuple[NDArray[np.intp], Excess]:
    """Keep at most `max_rows` rows of each unit, those with the smallest keys. Return the places of
    the kept rows in rising order, and the number of rows left out as `Excess` counts them.

    `units`: for each row, the number of its unit, or a number below 0 if it belongs to nobody. The
    rows of nobody are dropped and not counted as left out: one person could have any number of
    them. `keys`: a random number for each row (`random_keys`).

    >>> places, excess = bounded(np.array([0, 0, 1, 0, -1]), 2, np.arange(5, dtype=np.uint64))
    >>> places.tolist(), excess
    ([0, 1, 2], Excess(rows=1, most=6))
    """
    owned = np.flatnonzero(units >= 0)
    order = owned[np.lexsort((keys[owned], units[owned]))]
    starts = np.flatnonzero(np.diff(units[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    ranks = np.arange(len(order)) - np.repeat(starts, sizes)
    most = _COUNTED * max_rows
    left_out = np.clip(sizes - max_rows, 0, most).sum()
    return np.sort(order[ranks < max_rows]), Excess(int(left_out), most)
