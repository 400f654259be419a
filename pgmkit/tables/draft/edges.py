"""Bins for public numbers that are crowded at one end: round edges chosen by the number of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from pgmkit.tables.columns import equal_widths
from pgmkit.tables.draft.thresholds import BINS, FEW

_FULLEST = FEW / BINS
"""The largest share of the rows that a bin of equal width may hold: a quarter."""


def crowded_edges(
    numbers: Mapping[Any, int], low: Any, high: Any, bins: int, *, whole: bool
) -> tuple[Any, ...] | None:
    """Return edges from `low` to `high` if some bin of equal width would hold over a quarter of the
    rows.

    The edges lie at every 1 / `bins` of the rows, and in the tails at half of that, a quarter, and
    so on, as long as at least five rows lie beyond. Each is rounded to a multiple of the largest
    power of ten that is at most its distance from the nearer neighbour. None if there are no
    numbers or `low` is not below `high`, if bins of equal width suffice, or if fewer than five bins
    would remain.

    `numbers`: the number of rows of each number, without the numbers that get a code of their own.

    >>> crowded_edges({10 * i**3: 1 for i in range(40)}, 0, 640_000, 5, whole=True)
    (0, 5000, 40000, 140000, 300000, 640000)
    """
    if not numbers or not low < high:
        return None
    values = np.array(sorted(numbers), dtype=np.float64)
    rows = np.array([numbers[each] for each in sorted(numbers)], dtype=np.int64)
    reached, total = np.cumsum(rows), rows.sum()
    ends = equal_widths(low, high, bins, whole=False)
    if np.histogram(values, bins=ends, weights=rows)[0].max() <= _FULLEST * total:
        return None
    # Values are drawn uniformly within a bin. In a wide last bin they would be far from where most
    # values are, so the tails are divided further.
    further = max(0, math.floor(math.log2(total / (bins * FEW))))
    tail = [1 / (bins * 2**power) for power in range(further, 0, -1)]
    shares = [*tail, *(i / bins for i in range(1, bins)), *(1 - share for share in reversed(tail))]
    places = np.searchsorted(reached, np.array(shares) * total, side="right")
    inner = np.unique(values[np.minimum(places, len(values) - 1)])
    # Beyond 2^53 a number may be the same float as an end.
    first, last = float(low), float(high)
    marks = [first, *(each for each in inner.tolist() if first < each < last), last]
    gaps = [after - before for before, after in pairwise(marks)]
    rounded = [
        _rounded(each, min(before, after), whole)
        for each, before, after in zip(marks[1:-1], gaps[:-1], gaps[1:], strict=True)
    ]
    kept = [each for each in sorted({*rounded}) if low < each < high]
    return (low, *kept, high) if len(kept) + 1 >= FEW else None


def _rounded(value: float, gap: float, whole: bool) -> Any:
    """Return an edge rounded to a multiple of the largest power of ten that is at most `gap`; an
    int, and a multiple of at least 1, if `whole`; `value` is a whole number then.

    `gap`: the distance of the edge from the nearer of its neighbours. No edge moves by more than
    half of it, so none passes another, but two edges may become equal.
    """
    digits = math.floor(math.log10(gap))
    if whole:
        return round(round(value), -max(0, digits))
    return round(value, -digits)
