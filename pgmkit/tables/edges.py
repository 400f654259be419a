"""The ends of bins of equal width, and how large and how many the ends of bins may be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.runtime.sizes import BLOCK_CELLS

LARGEST = np.iinfo(np.int64).max // 2 + 1
"""The largest whole number accepted: positions, and sums with them, are int64."""
MOST_BINS = BLOCK_CELLS
"""The most bins of a column: the labels of more fill hundreds of megabytes."""
_DIGITS = np.finfo(np.float64).precision - round(math.log10(MOST_BINS))
"""The digits of a bin's width to which its ends are rounded; an end has up to six digits more."""


def equal_widths(first: float, last: float, bins: int, *, whole: bool) -> NDArray[Any]:
    """Return `bins` + 1 ends from `first` to `last`: whole numbers (int64) or real ones. They
    ascend, but real ones may be equal if floats cannot tell them apart.

    Raises InvalidInput for more than `MOST_BINS` bins; for whole numbers, also for more than `last
    - first` bins; for real ones, also if `last - first` is beyond all floats.

    >>> equal_widths(0, 10, 3, whole=True)
    array([ 0,  3,  6, 10])
    >>> equal_widths(0.4, 3, 20, whole=False)[6]
    np.float64(1.18)
    """
    if bins > MOST_BINS:
        raise InvalidInput(f"{bins:,} codes are too many; give at most {MOST_BINS:,} bins")
    if not whole:
        if not math.isfinite(last - first):
            raise InvalidInput(
                f"the ends {first:g} and {last:g} are farther apart than the largest float; give "
                "nearer ones, or a larger unit"
            )
        return _rounded(np.linspace(first, last, bins + 1))
    if bins > last - first:
        raise InvalidInput(f"bins is {bins}, but there are {last - first} values only")
    return np.array([first + (last - first) * i // bins for i in range(bins + 1)], dtype=np.int64)


def _rounded(ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ends rounded to decimal places, far finer than a bin is wide, so that an end such
    as 1.18 equals the number that a file writes.

    The first and last ends are kept, and all of them if floats cannot tell two of them apart.
    Python's `round` gives the float nearest to the decimal number; numpy's is off by rounding
    errors where there are more than 22 places.
    """
    width = float(np.diff(ends).min())
    if not width > 0:
        return ends
    places = _DIGITS - math.floor(math.log10(width))
    return np.array([ends[0], *[round(end, places) for end in ends[1:-1].tolist()], ends[-1]])
