"""Values that nobody listed in advance: their counts, and the threshold that rare ones
rarely pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mechanisms.privacy.neighbours import Neighbours

__all__ = ["distinct", "frequent", "threshold"]


def distinct(
    values: Sequence[str] | Mapping[str, int],
) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """Return the different texts, in order, and their counts.

    >>> distinct(["b", "a", "b"])
    (array(['a', 'b'], dtype='<U1'), array([1, 2]))
    >>> distinct({"b": 2, "a": 1})
    (array(['a', 'b'], dtype='<U1'), array([1, 2]))
    """
    rows = list(values.values()) if isinstance(values, Mapping) else [1] * len(values)
    texts, places = np.unique(np.asarray(list(values), dtype=str), return_inverse=True)
    counts = np.zeros(len(texts), dtype=np.int64)
    np.add.at(counts, places, np.asarray(rows, dtype=np.int64))
    return texts, counts


def threshold(scale: float, delta: float, neighbours: Neighbours) -> float:
    """Return the threshold that values of a single unit pass with probability at most `delta` in
    total.

    Neighbours may hold up to `one_sided_values` values that the other data set lacks, each in up to
    `max_rows` rows; each value gets an equal part of delta. The discrete Gaussian's tail is below
    the continuous one's a step earlier.
    """
    # The lower tail is used, since 1 - delta would lose the digits of a small delta.
    deviations = -NormalDist().inv_cdf(delta / neighbours.one_sided_values)
    return 1 + neighbours.max_rows + scale * deviations


def frequent(texts: NDArray[np.str_], noisy: NDArray[np.int64], above: float) -> list[str]:
    """Return the values whose noisy counts are above the threshold, the most frequent first."""
    order = np.argsort(-noisy, kind="stable")
    return [str(texts[i]) for i in order if noisy[i] > above]
