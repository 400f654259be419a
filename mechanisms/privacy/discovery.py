"""Measurements of the records as they were read: the values of a column that nobody listed in
advance, the rows that were left out, and the values that could not be read.

Values that nobody listed are found by noisy counts, and by a threshold that rare ones rarely pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from mechanisms.privacy.neighbours import Neighbours
from mechanisms.privacy.selecting import Selecting
from mechanisms.privacy.units import Excess
from pgmkit.errors import InvalidInput
from pgmkit.runtime.typed import typed_class


def distinct(values: Iterable[str] | Mapping[str, int]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the different texts in sorted order, and their counts. `values`: texts, or the
    counts by text. Raises InvalidInput for values that are no texts, and counts that are not whole.

    The texts are returned as a list: a numpy array would give each of them the memory of the
    longest one.

    >>> distinct(["b", "a", "b"])
    (['a', 'b'], array([1, 2]))
    >>> distinct({"b": 2, "a": 1})
    (['a', 'b'], array([1, 2]))
    """
    counts = Counter(values)
    if not all(isinstance(text, str) and isinstance(n, Integral) for text, n in counts.items()):
        raise InvalidInput("values must be texts, or a mapping from texts to numbers of rows")
    texts = sorted(counts)
    return texts, np.array([counts[text] for text in texts], dtype=np.int64)


def threshold(scale: float, delta: float, neighbours: Neighbours) -> float:
    """Return a threshold, in counts: the probability that a noisy count is above it, for any of the
    values that a data set holds and one of its neighbours lacks, is at most `delta`. `scale`: the
    scale of the noise, in counts.

    There are up to `l1` such values, each in up to `max_rows` rows; each gets an equal part of
    delta. The threshold is raised by 1 because the tail of the discrete Gaussian from k on is below
    that of the continuous one from k - 1 on.
    """
    # The lower tail is used, since 1 - delta would lose the digits of a small delta.
    return 1 + neighbours.max_rows - scale * NormalDist().inv_cdf(delta / neighbours.l1)


@typed_class
class Discovering(Selecting):
    """The part of the Curator that answers questions about the records as they were read; each
    answer is charged first.
    """

    def discover(
        self,
        values: Sequence[str] | Mapping[str, int],
        cost: float,
        delta: float,
        *,
        step: str = "discover",
    ) -> list[str]:
        """Return the frequent values of a column, which nobody listed in advance.

        `values` has one text for each row of the same records, or the number of rows of each text.
        The count of each distinct value gets discrete Gaussian noise at this cost. The values whose
        noisy count is above a threshold are returned, the most frequent first. For each row (or
        unit), the probability that the result includes a value which no other row (or unit) has is
        at most `delta`, which gives (rho, delta)-approximate zCDP.

        Raises InvalidInput for a pure budget, and unless `delta` is above 0 and at most what the
        budget reserves; BudgetExceeded if `cost`, or this much of the reserved delta, is not
        available.
        """
        budget = self.ledger.budget
        if not 0 < delta <= budget.reserved * (1 + 1e-9):
            raise InvalidInput(
                f"delta must be above 0 and at most what the budget reserves for finding values, "
                f"{budget.reserved:g}, got {delta!r}; reserve more, or list the values"
            )
        texts, counts = distinct(values)  # may raise before the charge
        self.ledger.charge(step, "discrete Gaussian, threshold", cost, delta)
        scale = self.scale(cost)
        noisy = self._noise.gaussian(counts, scale)
        above = threshold(scale, delta, self.neighbours)
        return [texts[i] for i in np.argsort(-noisy, kind="stable") if noisy[i] > above]

    def measure_excess(self, excess: Excess, cost: float) -> tuple[float, float]:
        """Return the noisy number of rows that the bound on a unit's rows left out, and the noise's
        standard deviation.

        At most `Excess.most` rows of a unit are counted, so the number changes by at most that
        between neighbours. Raises InvalidInput for a wrong cost, BudgetExceeded if cost is not
        available.
        """
        noisy, stddev = self._noisy("rows left out", [excess.rows], excess.most, cost)
        return float(noisy[0]), stddev

    def measure_unread(self, cost: float) -> tuple[dict[str, float], float, float]:
        """Return, by column, the number of values that could not be read; then the number of rows,
        and the standard deviation of the noise.

        The values were counted as the records were coded (`Dataset.unread`). All numbers are noisy,
        except a public number of rows. Each of them changes by at most the relation's `max_rows` m
        between neighbours, the vector of k numbers by k m (L1) or sqrt(k) m (L2).

        Raises InvalidInput for a wrong cost and if the unread values were not counted,
        BudgetExceeded if cost is not available.
        """
        unread = getattr(self._data, "unread", None)
        if unread is None:
            raise InvalidInput(
                "it is not known which values of these records could be read; give a data frame, "
                "or records of encode_file"
            )
        exact = [*unread.values(), *([] if self.neighbours.rows_public else [len(self._data)])]
        noisy, stddev = self._noisy("unread values", exact, self.neighbours.max_rows, cost)
        rows = float(noisy[-1] if self.public_total is None else self.public_total)
        return dict(zip(unread, noisy[: len(unread)].tolist(), strict=True)), rows, stddev
