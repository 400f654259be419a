"""The codes of positions: the bin, or the special value, to which a number belongs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.tables.columns import OUTSIDE, Codes

LARGEST = np.iinfo(np.int64).max // 2 + 1
"""The largest whole number accepted: positions, and sums with them, are int64."""


@dataclass(frozen=True, eq=False)
class BinCodes:
    """A division of positions (`Binned.position`) into bins: bin i contains the positions with
    ends[i] <= position < ends[i + 1], and special positions have the codes after the bins.

    Attributes:
        ends: The ends of the bins, ascending; one more than there are bins.
        special: The single positions that have a code of their own.
        whole: Whether positions are whole numbers of steps and ends are int64; otherwise ends are
            float64 and the last bin is closed.
        clip: Whether a position beyond the ends belongs to the bin at that end, and a fraction
            between whole steps to the bin of the step below; otherwise they have no code.

    >>> codes = BinCodes(np.array([0, 10, 20]), special=(99,), whole=True, clip=False)
    >>> codes.at(np.array([0, 10, 19, 20, 99])).tolist()
    [0, 1, 1, -1, 2]
    """

    ends: NDArray[Any]
    special: Sequence[int | float]
    whole: bool
    clip: bool

    def of(self, positions: Sequence[int | float]) -> Codes:
        """Return the codes of positions of mixed types; -1 for those without a code.

        Whole numbers are looked up as int64: in one array with other numbers, large ones would be
        rounded to float64.
        """
        whole = np.array([isinstance(e, int) and abs(e) <= LARGEST for e in positions], dtype=bool)
        codes, given = np.empty(len(whole), dtype=np.int64), np.array(positions, dtype=object)
        codes[whole] = self.at(given[whole].astype(np.int64))
        codes[~whole] = self.at(np.array([*map(_as_float, given[~whole])], dtype=np.float64))
        return codes

    def at(self, positions: NDArray[Any]) -> Codes:
        """Return the codes of an array of positions; -1 for those without a code."""
        codes: Codes = np.searchsorted(self.ends, positions, side="right") - 1
        last = len(self.ends) - 2
        if not self.whole:
            codes[positions == self.ends[-1]] = last
        if self.clip:
            codes = np.clip(codes, 0, last)
        codes[(codes > last) | (codes < 0)] = OUTSIDE
        if positions.dtype.kind == "f":
            codes[np.isnan(positions)] = OUTSIDE
            if self.whole and not self.clip:
                codes[positions != np.floor(positions)] = OUTSIDE
        for i, position in enumerate(self.special):
            codes[positions == position] = last + 1 + i
        return codes


def _as_float(position: int | float) -> float:
    """Return the position as a float; infinite if it is too large, and so beyond every bin."""
    try:
        return float(position)
    except OverflowError:
        return math.inf if position > 0 else -math.inf
