"""Values that nobody listed in advance: their counts, and the threshold that rare ones
rarely pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from mechanisms.privacy.neighbours import Neighbours


def distinct(values: Iterable[str] | Mapping[str, int]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the different texts, in order, and their counts.

    The texts are returned as a list: a numpy array would give each of them the memory of the
    longest one.

    >>> distinct(["b", "a", "b"])
    (['a', 'b'], array([1, 2]))
    >>> distinct({"b": 2, "a": 1})
    (['a', 'b'], array([1, 2]))
    """
    counts = Counter(values)
    texts = sorted(counts)
    return texts, np.array([counts[text] for text in texts], dtype=np.int64)


def threshold(scale: float, delta: float, neighbours: Neighbours) -> float:
    """Return the threshold that values of a single unit pass with probability at most `delta` in
    total.

    Neighbours may hold up to `one_sided_values` values that the other data set lacks, each in up to
    `max_rows` rows; each value gets an equal part of delta. The threshold is raised by 1 because
    the tail of the discrete Gaussian from k on is below that of the continuous one from k - 1 on.
    """
    # The lower tail is used, since 1 - delta would lose the digits of a small delta.
    deviations = -NormalDist().inv_cdf(delta / neighbours.one_sided_values)
    return 1 + neighbours.max_rows + scale * deviations


def frequent(texts: Sequence[str], noisy: NDArray[np.int64], above: float) -> list[str]:
    """Return the values whose noisy counts are above the threshold, the most frequent first."""
    order = np.argsort(-noisy, kind="stable")
    return [texts[i] for i in order if noisy[i] > above]
