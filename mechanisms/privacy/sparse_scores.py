"""Scores of many candidates, where most of the scores are zero.

Nearly all cells of a large marginal hold no record, neither of the data nor of an estimate that is
made of a few records. Their scores are zero, and a draw treats them as one group.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SparseScores:
    """Scores of `size` candidates, which are numbered from 0.

    >>> scores = SparseScores(np.array([1, 4]), np.array([2.0, -1.0]), 6)
    >>> scores.dense().tolist()
    [0.0, 2.0, 0.0, 0.0, -1.0, 0.0]
    >>> [scores.candidate(i) for i in range(6)]
    [1, 4, 0, 2, 3, 5]

    Attributes:
        places: The candidates whose scores are listed, distinct and in rising order. Which ones
            they are may depend on private data.
        values: Their scores, in counts; the scores of all other candidates are zero.
        size: The number of candidates.
    """

    places: NDArray[np.int64]
    values: NDArray[np.float64]
    size: int

    @classmethod
    def of(cls, scores: NDArray[np.float64]) -> SparseScores:
        """Return scores all of which are listed."""
        return cls(np.arange(len(scores)), scores, len(scores))

    @property
    def others(self) -> int:
        """The number of candidates that are not listed."""
        return self.size - len(self.places)

    def candidate(self, index: int) -> int:
        """Return the candidate at this index, in 0..size - 1, of the order in which the listed
        candidates come first and the others after them.
        """
        if index < len(self.places):
            return int(self.places[index])
        index -= len(self.places)
        # `places[i] - i` candidates before `places[i]` are not listed.
        listed = range(len(self.places))
        return index + bisect_right(listed, index, key=lambda i: int(self.places[i]) - i)

    def dense(self) -> NDArray[np.float64]:
        """Return the scores of all candidates."""
        found: NDArray[Any] = np.zeros(self.size)
        found[self.places] = self.values
        return found
