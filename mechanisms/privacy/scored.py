"""Candidates that are compared with the data once, and selected from several times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput

Selected = Callable[[str, NDArray[np.float64], float, float], int]


class Scored:
    """Candidates whose scores only the Curator knows; made by `Curator.scored`."""

    def __init__(self, found: NDArray[np.float64], sensitivity: float, selected: Selected) -> None:
        self._found, self._sensitivity, self._selected = found, sensitivity, selected

    def choose(self, places: Sequence[int] | NDArray[np.int64], cost: float, *, step: str) -> int:
        """Select one of the candidates at these places by the exponential mechanism, and return its
        place.

        Raises InvalidInput for no places or places without a candidate, BudgetExceeded if cost is
        not available.
        """
        among = np.asarray(places)
        if not len(among) or among.min() < 0 or among.max() >= len(self._found):
            raise InvalidInput(
                f"places must be at least one number in 0..{len(self._found) - 1}, got {places!r}"
            )
        return int(among[self._selected(step, self._found[among], self._sensitivity, cost)])
