"""The randomness that protects privacy: exact samplers, or a seeded replacement.

`ExactNoise` calls OpenDP, whose samplers work in exact arithmetic on cryptographic random bits:
floating-point noise breaks the guarantee in principle (Mironov 2012). `SeededNoise` draws from the
same distributions with numpy, reproducibly, for tests and simulations; its results are not private.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mechanisms.privacy.exact_selection import SparseScores, exact_draws
from pgmkit.errors import InvalidInput


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
