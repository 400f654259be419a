"""Many draws from one exponential mechanism, exact like OpenDP's, but with weights computed once.

OpenDP adds fresh noise to every score for every draw. A mechanism that draws dozens of times from
the same scores of a million queries needs the weights only once. Floating point alone would not
suffice: it rounds probabilities, and the rounding depends on the data. Here it only proposes: a
candidate is drawn from integer upper bounds of the weights, and accepted with the exact ratio,
which is decided by as many random bits and digits as needed. Candidates of score zero that are not
listed have one weight, so they are drawn as a group without being enumerated.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pgmkit.runtime.precision import SUM_ROUNDING

_SLACK = SUM_ROUNDING
"""A relative margin above the rounding of all floating point here, so that the bounds are above the
weights.
"""


@dataclass(frozen=True)
class SparseScores:
    """Scores of `size` candidates, which are numbered from 0, most of them zero.

    Nearly all cells of a large marginal hold no record, neither of the data nor of an estimate that
    is made of a few records. Their scores are zero, and a draw treats them as one group.

    >>> scores = SparseScores(np.array([1, 4]), np.array([2.0, -1.0]), 6)
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


def exact_draws(scores: SparseScores, count: int, scale: float) -> list[int]:
    """Draw `count` candidates, independently and with replacement, each with probability
    proportional to exp(score / scale).

    The caller has made sure that scores are finite and that there are fewer than 2^40 candidates.
    Randomness is the operating system's.

    >>> exact_draws(SparseScores(np.array([1, 7]), np.array([5000.0, -3.0]), 1000), 3, 1.0)
    [1, 1, 1]
    """
    # `each` has the scores of the listed candidates and, last, a 0: the score of every other
    # candidate. If all candidates are listed, this last entry is never drawn.
    each = np.append(scores.values, 0.0)
    largest = (each if scores.others else scores.values).max()
    bits = 62 - scores.size.bit_length()
    # The minimum changes at most the last entry, and only if it is never drawn: the exponential of
    # 0 - largest could overflow where all listed scores are far below zero.
    weights = np.exp(np.minimum(each - largest, 0.0) / scale)
    bounds = np.maximum(np.ceil(weights * (1 + _SLACK) * 2.0**bits), 1).astype(np.uint64)
    reached = np.cumsum(bounds[:-1])
    listed = int(reached[-1]) if len(reached) else 0
    found: list[int] = []
    while len(found) < count:
        level = secrets.randbelow(listed + int(bounds[-1]) * scores.others)
        index = int(np.searchsorted(reached, np.uint64(level), side="right"))
        below = (Fraction(largest) - Fraction(each[index])) / Fraction(scale)
        if happens(below, Fraction(2**bits, int(bounds[index]))):
            further = (level - listed) // int(bounds[-1]) if level >= listed else 0
            found.append(scores.candidate(index + further))
    return found


def happens(exponent: Fraction, factor: Fraction) -> bool:
    """Return True with probability exactly factor * exp(-exponent), which must be at most 1.

    The first bits of a uniform random number are compared with an enclosure of the probability;
    both get more digits until the comparison is decided.
    """
    digits, drawn, drawn_bits = 20, 0, 0
    while True:
        more = 4 * digits - drawn_bits
        drawn, drawn_bits = (drawn << more) | secrets.randbits(more), drawn_bits + more
        with localcontext() as context:
            context.prec = digits + 20
            probability = _decimal(factor) * (-_decimal(exponent)).exp()
            lowest, width = Decimal(drawn) / 2**drawn_bits, Decimal(1) / 2**drawn_bits
            error = Decimal(10) ** -digits
            if lowest + width <= probability - error:
                return True
            if lowest >= probability + error:
                return False
        digits *= 2


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)
