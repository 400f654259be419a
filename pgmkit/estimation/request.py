"""The arguments of ``estimate`` and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, prod

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.estimation.methods import METHODS
from pgmkit.linear.kronecker import Kronecker
from pgmkit.losses import CallableLoss, Penalty
from pgmkit.measurement import Measurement
from pgmkit.total import estimate_total

__all__ = ["Request", "check_scale", "positive"]

HELD = 2.0**53
"""Up to here float64 holds every integer: a number's rounding is a share of its inverse."""


@dataclass(frozen=True)
class Request:
    """The arguments of an estimate, as the caller gave them."""

    domain: Domain
    measurements: list[Measurement]
    total: float | None
    loss: str | Penalty | CallableLoss
    method: str
    tolerance: float

    @property
    def used(self) -> list[Measurement]:
        """Without those of the empty clique, which only inform the total."""
        return [m for m in self.measurements if m.clique]

    def check(self, max_seconds: float | None) -> None:
        """Raises InvalidInput for an argument that cannot be."""
        if not isinstance(self.domain, Domain):
            raise InvalidInput(
                f"domain must be a Domain, got {type(self.domain).__name__}; build one with "
                'Domain({"age": 10, "sex": 2})'
            )
        for m in self.measurements:
            if not isinstance(m, Measurement):
                raise InvalidInput(
                    f"measurements must be Measurement records, got {type(m).__name__}; wrap each "
                    "as Measurement(clique, values, stddev)"
                )
            m.check(self.domain)
        if self.method not in ("auto", *METHODS):
            known = ", ".join(("auto", *METHODS))
            raise InvalidInput(f"method {self.method!r} is unknown; known methods: {known}")
        if not 0 <= self.tolerance < inf:
            raise InvalidInput(f"tolerance ({self.tolerance}) must be a finite number, 0 or above")
        if max_seconds is not None and not max_seconds > 0:
            raise InvalidInput(f"max_seconds ({max_seconds}) must be above 0, or None for no limit")

        if callable(self.loss) and not self.used:
            raise InvalidInput(
                "loss is a callable of the measured marginals, but measurements holds no "
                "measurement of an attribute; pass one for each clique that the loss uses, for "
                f"example Measurement({self.domain.attributes[:1]!r}, values, stddev)"
            )

    def known_total(self) -> float:
        """The total that was given, or else estimated. Measurements' scales are checked by it."""
        if self.total is None:
            total = positive(estimate_total(self.measurements).value)
        elif isinstance(self.total, bool) or not isfinite(self.total) or self.total <= 0:
            raise InvalidInput(f"total ({self.total}) must be a finite number above 0")
        else:
            total = float(self.total)
        for m in self.used:
            check_scale(m, m.values, total)
        return total


def check_scale(m: Measurement, values: NDArray[np.float64], total: float) -> None:
    """Raises InvalidInput unless the noise and what was measured of the ``total`` are numbers of
    comparable size, so that no sum of squares loses one to the other's rounding or overflows.
    """
    if not 1 / HELD <= total <= HELD:
        raise InvalidInput(
            f"total ({total:.6g}) must lie between 2^-53 and 2^53 (9.0e15), up to where float64 "
            "numbers tell one count from the next; use another unit"
        )
    answers = total * _largest(m)
    largest = max(answers, float(np.abs(values).max()))
    if not largest / HELD <= m.stddev:
        raise InvalidInput(
            f"measurement of {m.clique!r} has stddev {m.stddev!r} beside counts of up to "
            f"{largest:.3g}, but must have one of at least 2^-53 of them, by which numbers are "
            f"rounded; use {2 * largest / HELD:.2g} or more for an answer that is nearly exact, "
            "and look for values that cannot be right"
        )
    if answers and not m.stddev <= answers * HELD:
        raise InvalidInput(
            f"measurement of {m.clique!r} has stddev {m.stddev!r} beside counts of up to "
            f"{answers:.3g}, but must have one of at most 2^53 times as much ({answers * HELD:.2g})"
            ": no float64 number tells them apart beside such noise; leave the measurement out"
        )


def _largest(m: Measurement) -> float:
    """The largest entry of the matrix."""
    if m.matrix is None:
        return 1.0
    factors = m.matrix.factors if isinstance(m.matrix, Kronecker) else (m.matrix,)
    return prod(max(float(each.max()), -float(each.min())) for each in factors)


def positive(estimated: float) -> float:
    """The total that measurements imply, if there can be records."""
    if estimated <= 0:
        raise InvalidInput(
            f"the measurements imply a total of {estimated:.6g}, which is not above 0: the noise "
            "exceeds the data. Pass total= explicitly"
        )
    return estimated
