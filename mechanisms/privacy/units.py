"""Units of several rows: which rows of each are looked at.

A promise about units holds where each has a bounded number of rows, and where the choice among its
rows depends on nothing that other units hold: then neighbouring data sets, which differ in a unit,
differ in at most so many rows after the choice. Every unit's choice is uniform and independent, so
no order of the rows favours any. Randomness is the operating system's; the promise does not rest on
its being secret.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Excess", "bounded", "random_keys"]

_COUNTED = 3
"""The limit, in times `max_rows`, up to which a unit's lost rows are counted; noise grows with
it.
"""


@dataclass(frozen=True)
class Excess:
    """The exact number of rows left out: private, for `Curator.measure_excess` alone.

    `most`: how many of a unit's are counted at most.
    """

    rows: int
    most: int


def random_keys(count: int, rng: np.random.Generator | None) -> NDArray[np.uint64]:
    """64 random bits a row: the operating system's, or (INSECURE) a seeded generator's.

    >>> len(random_keys(3, None))
    3
    """
    if rng is not None:
        return rng.integers(0, 2**64, count, dtype=np.uint64)
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def bounded(
    units: NDArray[np.intp], max_rows: int, keys: NDArray[np.uint64]
) -> tuple[NDArray[np.intp], Excess]:
    """The places of at most `max_rows` rows a unit, those of its smallest keys, in order.

    `units`: a whole number for each row's unit, below 0 for a row of nobody, which is left out (and
    not counted as left out: one person could have any number of them).

    >>> places, excess = bounded(np.array([0, 0, 1, 0, -1]), 2, np.arange(5, dtype=np.uint64))
    >>> places.tolist(), excess
    ([0, 1, 2], Excess(rows=1, most=6))
    """
    owned = np.flatnonzero(units >= 0)
    order = owned[np.lexsort((keys[owned], units[owned]))]
    sorted_units = units[order]
    starts = np.flatnonzero(np.diff(sorted_units, prepend=-1))
    sizes = np.diff(starts, append=len(order))
    ranks = np.arange(len(order)) - np.repeat(starts, sizes)
    most = _COUNTED * max_rows
    left_out = np.clip(sizes - max_rows, 0, most).sum()
    return np.sort(order[ranks < max_rows]), Excess(int(left_out), most)
