"""The part of the Curator that charges and draws: every cost is on the ledger before noise is
drawn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.privacy import conversions, noise_scales, scores
from mechanisms.privacy.counting import Counting
from mechanisms.privacy.ledger import Ledger
from mechanisms.privacy.noise import Noise
from pgmkit.errors import InvalidInput
from pgmkit.runtime.typed import typed_class


@typed_class
class Charging(Counting):
    """The part of the Curator that holds the ledger and the source of noise: every noisy draw is
    charged first.
    """

    ledger: Ledger
    _noise: Noise

    @property
    def remaining(self) -> float:
        """The rest of the budget, in its unit, without the part kept for other tables."""
        return self.ledger.remaining

    def scale(self, cost: float) -> float:
        """Return the noise scale that `measure` uses at this cost: that of the discrete Gaussian
        (l2 / sqrt(2 rho), or more under Gaussian accounting) or, for a pure budget, of the discrete
        Laplace (l1 / epsilon), with the relation's sensitivities l2 and l1. If
        `Curator.placed` adds an attribute of p codes to the clique, each noisy cell has this scale
        divided by sqrt(p), so that the sums over that attribute have this scale.
        """
        budget = self.ledger.budget
        return noise_scales.additive(budget, self.neighbours.l1, self.neighbours.l2, cost)

    def expected_error(self, cost: float) -> float:
        """Return the expected absolute noise, in counts, of one cell measured at this cost, as if
        noise were continuous: that of discrete noise is less for scales below about 1.
        """
        return self.scale(cost) * (1.0 if self.ledger.budget.pure else float(np.sqrt(2 / np.pi)))

    def errors_stddev(self, number: int, cost: float) -> float:
        """Return the standard deviation, in counts, of the noise in each of `number` distances that
        `measure_errors` measures together at this cost; an upper bound for scales below about 1.
        Raises InvalidInput unless the number and the cost are finite and above 0.
        """
        conversions.positive("number", number)
        l1, l2 = self.neighbours.l1 * number, self.neighbours.l1 * number**0.5
        scale = noise_scales.additive(self.ledger.budget, l1, l2, cost)
        return scale * 2**0.5 if self.ledger.budget.pure else scale

    def _noisy(
        self, step: str, exact: ArrayLike, most: float, cost: float
    ) -> tuple[NDArray[np.int64], float]:
        """Charge, then return the whole numbers `exact` with discrete noise, and the noise's
        standard deviation (an upper bound for scales below about 1). `most`: the most by which each
        of the numbers changes between neighbours.
        """
        values = np.array(exact, dtype=np.int64)
        self._charged(step, cost)
        return self._drawn(values, most * len(values), most * len(values) ** 0.5, cost)

    def _charged(self, step: str, cost: float) -> None:
        pure = self.ledger.budget.pure
        self.ledger.charge(step, "discrete Laplace" if pure else "discrete Gaussian", cost)

    def _drawn(
        self, exact: NDArray[np.int64], l1: float, l2: float, cost: float
    ) -> tuple[NDArray[np.int64], float]:
        """Return the values `exact` with the noise that this cost, charged already, pays for, and
        the noise's standard deviation (an upper bound for scales below about 1). `l1` and `l2`: the
        sensitivities of the values.
        """
        scale = noise_scales.additive(self.ledger.budget, l1, l2, cost)
        if self.ledger.budget.pure:
            return self._noise.laplace(exact, scale), scale * 2**0.5
        return self._noise.gaussian(exact, scale), scale

    def _selected(
        self,
        step: str,
        found: NDArray[np.float64],
        sensitivity: float,
        cost: float,
        *,
        flip: bool = False,
        passes: Callable[[int], bool] | None = None,
    ) -> int:
        """Charge, then return the place of one of the scores `found`, which change by at most
        `sensitivity`, selected by the exponential mechanism or, with `flip`, by permute-and-flip.

        The exponential mechanism draws again, without the rejected places, until `passes(place)` is
        true. Raises InvalidInput, after the charge, if it is true of no place.
        """
        budget = self.ledger.budget
        self.ledger.charge(step, "permute-and-flip" if flip else "exponential mechanism", cost)
        if flip:
            scale = noise_scales.permute_and_flip(budget, sensitivity, cost)
            return self._noise.flip(found, scale)
        scale = noise_scales.exponential(budget, sensitivity, cost)
        left = np.arange(len(found))
        while len(left):
            drawn = self._noise.softmax(found[left], scale)
            if passes is None or passes(int(left[drawn])):
                return int(left[drawn])
            left = np.delete(left, drawn)
        raise InvalidInput("allowed is true of no candidate; leave one to choose")

    def _top(
        self, step: str, what: str, errors: NDArray[np.int64], count: int, cost: float
    ) -> list[int]:
        """Charge, then return the places of the `count` largest of `errors` plus Gumbel noise. The
        errors are in units of 2^-11 counts, and each changes by at most `max_rows` counts. `what`:
        the kind of candidate, for the ledger.
        """
        self.ledger.charge(step, f"top {count} of {what}, Gumbel noise", cost)
        return self._noise.top(scores.in_counts(errors), count, self._several(count, cost))

    def _several(self, count: int, cost: float) -> float:
        """Return the noise scale of each of `count` selections that share the cost evenly. It is in
        counts, and includes the sensitivity: one unit changes the scores, as it does the count of
        one cell, by at most `max_rows`.
        """
        return noise_scales.exponential(self.ledger.budget, self.neighbours.max_rows, cost / count)
