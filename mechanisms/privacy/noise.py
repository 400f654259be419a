"""The randomness that protects privacy: exact samplers, or a seeded replacement.

`ExactNoise` calls OpenDP, whose samplers work in exact arithmetic on cryptographic random bits:
floating-point noise breaks the guarantee in principle (Mironov 2012). `SeededNoise` draws from the
same distributions with numpy, reproducibly, for tests and simulations; its results are not private.

**Many draws from one exponential mechanism** (`exact_draws`) are exact like OpenDP's, but compute
weights once: OpenDP adds fresh noise to every score for every draw, and a mechanism may draw dozens
of times from the same scores of a million queries. Floating point alone would not suffice: it
rounds probabilities, and the rounding depends on the data. Here it only proposes: a candidate is
drawn from integer upper bounds of the weights, and accepted with the exact ratio, which is decided
by as many random bits and digits as needed. Candidates of score zero that are not listed have one
weight, so they are drawn as a group without being enumerated.
"""

from __future__ import annotations

import math
import secrets
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.runtime.precision import SUM_ROUNDING


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


class ExactNoise:
    """Noise by OpenDP's samplers, and by `exact_draws` for many draws from the same scores."""

    secure = True

    def __init__(self) -> None:
        # `opendp.prelude` also loads scikit-learn, which takes a second and has no part in this.
        from opendp import domains, measurements, measures, metrics
        from opendp.mod import enable_features

        enable_features("contrib")
        self._measurements: Any = measurements
        counts = domains.vector_domain(domains.atom_domain(T="i64"))
        self._gaussian = counts, metrics.l2_distance(T=float)
        self._laplace = counts, metrics.l1_distance(T="i64")
        numbers = domains.vector_domain(domains.atom_domain(T=float, nan=False))
        self._scores = numbers, metrics.linf_distance(T=float)
        self._zcdp, self._pure = measures.zero_concentrated_divergence(), measures.max_divergence()

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "a Curator cannot be pickled or copied deeply: each copy could spend the budget again; "
            "make one in each process that needs it, on a ledger across runs (Ledger.create)"
        )

    def gaussian(self, counts: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
        """Return `counts` plus discrete Gaussian noise, with mass proportional to exp(-x^2/(2
        scale^2)).
        """
        return self._noisy(self._measurements.make_gaussian(*self._gaussian, scale=scale), counts)

    def laplace(self, counts: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
        """Return `counts` plus discrete Laplace noise, with mass proportional to
        exp(-|x|/scale).
        """
        return self._noisy(self._measurements.make_laplace(*self._laplace, scale=scale), counts)

    def softmax(self, scores: NDArray[np.float64], scale: float) -> int:
        """Return an index with probability proportional to exp(score/scale): the exponential
        mechanism.
        """
        # Under zCDP OpenDP's noisy max adds Gumbel noise, which is the exponential mechanism; under
        # pure DP it adds exponential noise, which is permute-and-flip: another distribution, with
        # another cost in zCDP.
        choose = self._measurements.make_noisy_max(*self._scores, self._zcdp, scale=scale)
        return int(choose(scores.tolist()))

    def flip(self, scores: NDArray[np.float64], scale: float) -> int:
        """Return an index by permute-and-flip: candidates come in random order, and each is
        accepted with probability exp((score - best)/scale), until one is. The index at which score
        plus exponential noise of this scale is largest has the same distribution.
        """
        choose = self._measurements.make_noisy_max(*self._scores, self._pure, scale=scale)
        return int(choose(scores.tolist()))

    def top(self, scores: NDArray[np.float64], count: int, scale: float) -> list[int]:
        """Return the indices of the `count` largest of the scores plus Gumbel noise of this scale.
        This is equivalent to repeated `softmax` without replacement.
        """
        make = self._measurements.make_noisy_top_k
        choose = make(*self._scores, self._zcdp, k=count, scale=scale)
        return [int(index) for index in choose(np.ascontiguousarray(scores))]

    def draws(self, scores: SparseScores, count: int, scale: float) -> list[int]:
        """Return `count` candidates, each with probability proportional to exp(score/scale), with
        replacement.
        """
        return exact_draws(scores, count, scale)

    @staticmethod
    def _noisy(measurement: Any, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        flat = np.ascontiguousarray(counts, dtype=np.int64).reshape(-1)
        return np.array(measurement(flat), dtype=np.int64).reshape(counts.shape)


class SeededNoise:
    """Noise with the distributions of `ExactNoise`, drawn from a numpy generator: it is fast and
    reproducible, and gives no privacy.
    """

    secure = False

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def gaussian(self, counts: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
        """Return `counts` plus discrete Gaussian noise of this scale, drawn by rejection from the
        discrete Laplace distribution (Canonne et al., Algorithm 3).
        """
        t = math.floor(scale) + 1.0
        noise = np.empty(counts.size, dtype=np.int64)
        todo = np.arange(counts.size)
        while todo.size:
            proposed = self._discrete_laplace(todo.size, t)
            excess = np.abs(proposed) - scale**2 / t
            accepted = self._rng.random(todo.size) < np.exp(-(excess**2) / (2 * scale**2))
            noise[todo[accepted]] = proposed[accepted]
            todo = todo[~accepted]
        return counts + noise.reshape(counts.shape)

    def laplace(self, counts: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
        """Return `counts` plus discrete Laplace noise of this scale, drawn as the difference of two
        geometric variables.
        """
        return counts + self._discrete_laplace(counts.size, scale).reshape(counts.shape)

    def softmax(self, scores: NDArray[np.float64], scale: float) -> int:
        """Return an index with probability proportional to exp(score/scale): that of the largest
        score / scale plus Gumbel noise.
        """
        return int(np.argmax(scores / scale + self._rng.gumbel(size=scores.size)))

    def flip(self, scores: NDArray[np.float64], scale: float) -> int:
        """Return an index by permute-and-flip: that of the largest score / scale plus exponential
        noise.
        """
        return int(np.argmax(scores / scale + self._rng.exponential(size=scores.size)))

    def top(self, scores: NDArray[np.float64], count: int, scale: float) -> list[int]:
        """Return the indices of the `count` largest of the scores plus Gumbel noise of this scale,
        the largest first.
        """
        noisy = scores / scale + self._rng.gumbel(size=scores.size)
        return [int(index) for index in np.argsort(-noisy)[:count]]

    def draws(self, scores: SparseScores, count: int, scale: float) -> list[int]:
        """Return `count` candidates, each with probability proportional to exp(score/scale), with
        replacement. They are drawn by inversion of the cumulative weights, where the candidates
        whose scores are not listed, which are 0, are one group.
        """
        values = np.append(scores.values, 0.0) if scores.others else scores.values
        weights = np.exp((values - values.max()) / scale)
        if scores.others:
            weights[-1] *= scores.others
        reached = np.cumsum(weights)
        # The largest uniform number is 1 - 2^-53. Its product with the sum of all weights is
        # rounded to less than this sum, so every drawn number finds a place.
        at = np.searchsorted(reached, self._rng.random(count) * reached[-1], side="right")
        listed = len(scores.places)
        return [
            scores.candidate(
                index if index < listed else listed + int(self._rng.integers(scores.others))
            )
            for index in at.tolist()
        ]

    def _discrete_laplace(self, size: int, scale: float) -> NDArray[np.int64]:
        p = -math.expm1(-1 / scale)
        return self._rng.geometric(p, size) - self._rng.geometric(p, size)


Noise: TypeAlias = ExactNoise | SeededNoise
"""A source of noise: exact and private, or seeded and without privacy."""


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
    # The margin is above the rounding of all floating point here, so the bounds are above the
    # weights.
    bounds = np.maximum(np.ceil(weights * (1 + SUM_ROUNDING) * 2.0**bits), 1).astype(np.uint64)
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
