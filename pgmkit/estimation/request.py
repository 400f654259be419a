"""The arguments of ``estimate`` and their checks."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import inf

from pgmkit.domain import Domain, check_domain
from pgmkit.errors import InvalidInput
from pgmkit.estimation.methods import METHODS
from pgmkit.losses import LossLike
from pgmkit.measurement import Measurement, check_scale, checked_measurements
from pgmkit.runtime.arguments import check_seconds, number, one_of, shown
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.memory import check_limit
from pgmkit.runtime.precision import CLOSE
from pgmkit.total import estimate_total


@dataclass(frozen=True)
class Request:
    """The arguments of an estimate, as the caller gave them."""

    domain: Domain
    measurements: list[Measurement]
    total: float | None
    loss: LossLike
    method: str
    tolerance: float

    @property
    def used(self) -> list[Measurement]:
        """The measurements except those of the empty clique, which are used only for the total."""
        return [m for m in self.measurements if m.clique]

    def check(
        self, max_seconds: float | None, memory_limit: int | None, dtype: torch.dtype
    ) -> None:
        """Raise InvalidInput if the request's domain, measurements, method or tolerance, or one of
        these three arguments, has a wrong type or is out of range, and if the loss is a callable
        but no attribute was measured.
        """
        check_domain(self.domain)
        checked_measurements(self.measurements, self.domain)
        one_of(self.method, ("auto", *METHODS), "method")
        one_of(dtype, (torch.float32, torch.float64), "dtype")
        if not 0 <= number(self.tolerance) < inf:
            raise InvalidInput(
                f"tolerance must be a finite number, 0 or above, got {shown(self.tolerance)}"
            )
        check_seconds(max_seconds)
        if memory_limit is not None:
            check_limit(memory_limit)

        if callable(self.loss) and not self.used:
            raise InvalidInput(
                "loss is a callable of the measured marginals, but measurements holds no "
                "measurement of an attribute; pass one for each clique that the loss uses, for "
                f"example Measurement({self.domain.attributes[:1]!r}, values, stddev)"
            )

    def known_total(self) -> float:
        """Return the given total or, if it is None, an estimate from the measurements. In the
        second case, also warn of the first table whose cells are shares (they sum to 1) although
        its stddev is in counts (1 or more). Raises InvalidInput if the total, given or estimated,
        is not a finite number above 0, or if a stddev is too small or too large beside the counts
        (``check_scale``); and TotalUndetermined if no total is given and none can be estimated.
        """
        if self.total is None:
            total = positive(estimate_total(self.measurements).value)
            if (shares := next(filter(_holds_shares, self.used), None)) is not None:
                warnings.warn(
                    f"the table over {shares.clique!r} has fractions that sum to 1, but stddev "
                    f"{shares.stddev:g}; both must be in counts, and the total is taken for "
                    f"{total:.3g}. Multiply shares by the number of records, or pass total=1",
                    stacklevel=4,
                )
        elif not 0 < number(self.total) < inf:
            raise InvalidInput(f"total must be a finite number above 0, got {shown(self.total)}")
        else:
            total = float(self.total)
        for m in self.measurements:
            check_scale(m, m.values, total)
        return total


def _holds_shares(m: Measurement) -> bool:
    """Return True if the cells of a measured table must be shares of 1 and its stddev in counts.

    The cells then sum to 1 to half of all digits, none is negative and not all are whole numbers,
    although the stddev is 1 or more. Noise of that size produces such counts with a probability of
    about 1e-8, and shares cannot have it, since it would exceed their sum.
    """
    sums_to_one = m.matrix is None and abs(m.values.sum() - 1) < CLOSE
    return bool(sums_to_one and m.stddev >= 1 and (m.values >= 0).all() and (m.values % 1).any())


def positive(estimated: float) -> float:
    """Return an estimated total. Raises InvalidInput if it is 0 or below; that it is finite is for
    the caller to check.
    """
    if estimated <= 0:
        raise InvalidInput(
            f"the measurements imply a total of {estimated:.6g}, which is not above 0: the noise "
            "exceeds the data. Pass total= explicitly"
        )
    return estimated
