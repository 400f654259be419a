"""Error bars of one array of answers, in closed form or from replicates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import number
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import CLOSE, HALVINGS
from pgmkit.runtime.printed import exactly
from pgmkit.runtime.sizes import CALL_CELLS

if TYPE_CHECKING:
    from pgmkit.least_squares.linear_estimate import Answer

_SMALLEST_MEAN = CLOSE**0.5
"""The first mean of the grid, in standard deviations. At a level of 0.95, values down to 10,000
standard deviations below zero are accepted there.
"""


@dataclass(frozen=True, eq=False)
class Interval:
    """Error bars of one array of answers; every array has the answers' shape and unit: counts for
    queries, and that of the function for ``Uncertainty.statistic``.

    ``estimate`` is the model's own answer and lies within [low, high]. ``stddev`` is the standard
    error. If ``method`` is "closed form", it is that of unbiased least squares, which is an upper
    bound for that of ``estimate`` where the model holds small counts at zero. (Tables that were not
    made to agree, or were clipped at 0, as those of the mechanism "gaussian", may be farther off
    than it says; their intervals hold at their level.) If ``method`` is
    "bootstrap", it is the root mean square distance of the replicates' answers from the estimate,
    and the error bars are those of noise alone: the model may have an error of its own about
    attributes that were not measured together, and the truth may then lie far outside.
    """

    estimate: Array
    stddev: Array
    low: Array
    high: Array
    level: float
    method: Literal["closed form", "bootstrap"]

    def _repr_html_(self) -> str:
        from pgmkit.runtime import html

        columns = (self.estimate, self.stddev, self.low, self.high)
        rows = [
            [", ".join(map(str, cell)), *(f"{column[cell]:.6g}" for column in columns)]
            for cell in islice(np.ndindex(self.estimate.shape), html.MOST_BARS)
        ]
        header = ["cell", "estimate", "standard error", "low", "high"]
        noise = "" if self.method == "closed form" else " (of noise alone, not of the model)"
        said = f"intervals at level {exactly(self.level)}, {self.method}{noise}"
        caption = said + html.more_rows(self.estimate.size)
        return html.table(header, rows, numbers=range(1, 5), caption=caption)


def bootstrap(estimate: Array, drawn: Array, nonnegative: bool, level: float) -> Interval:
    """Return the interval around the model's answer ``estimate``. The standard error is the root
    mean square distance of the replicates' answers ``drawn`` (one row each) from it, and the ends
    lie a quantile of Student's t times that error below and above it. If ``nonnegative``, lower
    ends are at least 0.
    """
    from scipy.special import stdtrit

    # The rows are flat, since an answer may have as many axes as an array can have.
    drawn = drawn.reshape(len(drawn), -1)
    # The spread is around the model's answer, not the replicates' mean, so that the bias caused by
    # nonnegativity counts as error.
    stddev = np.sqrt(((drawn - estimate.reshape(-1)) ** 2).mean(axis=0)).reshape(estimate.shape)
    reach = float(stdtrit(len(drawn), (1 + level) / 2)) * stddev
    low = np.asarray(np.maximum(estimate - reach, 0.0 if nonnegative else -np.inf))
    return Interval(estimate, stddev, low, np.asarray(estimate + reach), level, "bootstrap")


def closed_form(estimate: Array, answer: Answer, level: float) -> Interval:
    """Return the interval of coverage ``level`` from the unbiased ``answer``: that of
    ``nonnegative_interval`` if the true answers cannot be negative, otherwise symmetric around the
    answer. It is widened so that it holds the model's answer ``estimate``.
    """
    from scipy.special import ndtri

    if answer.nonnegative:
        low, high = nonnegative_interval(answer.values, answer.stddev, level)
    else:
        reach = float(ndtri((1 + level) / 2)) * answer.stddev
        low, high = answer.values - reach, answer.values + reach
    shape = estimate.shape
    return Interval(
        estimate,
        answer.stddev.reshape(shape),
        np.asarray(np.minimum(low.reshape(shape), estimate)),
        np.asarray(np.maximum(high.reshape(shape), estimate)),
        level,
        "closed form",
    )


def checked_level(level: Any) -> float:
    """Return the level as a float. Raises InvalidInput unless it is a number above 0 and below 1,
    and not so near to either that (1 + level) / 2 is rounded to 0.5 or 1.
    """
    if not 0.5 < (1 + number(level)) / 2 < 1:
        raise InvalidInput(
            f"level must be above 0 and below 1 by more than rounding, got {level!r}; 0.95 is usual"
        )
    return float(level)


def nonnegative_interval(values: Array, stddev: Array, level: float) -> tuple[Array, Array]:
    """Return the lower and upper ends of an interval for each of the Gaussian ``values``. It covers
    the value's mean, known to be at least 0, with probability ``level``. Some of the standard
    deviations ``stddev`` may be 0; the interval then is the value, or 0 if that is negative.

    It is that of Feldman and Cousins, "Unified approach to the classical statistical analysis of
    small signals", Physical Review D 57 (1998), section IV.B. Near zero it passes smoothly from
    two-sided to one-sided, and it is never empty. Cutting ``x +- z s`` off at zero covers true
    zeros too often, and can leave the single point 0.

    Below a level of about 0.55, means near zero are covered more often than stated, and a mean of
    zero with a probability of at least one half.

    >>> low, high = nonnegative_interval(np.array([-1.0, 0.0, 5.0]), np.ones(3), 0.95)
    >>> low.round(2), high.round(2)  # the paper's table X
    (array([0.  , 0.  , 3.04]), array([1.1 , 1.96, 6.96]))
    """
    from scipy.special import ndtri

    z = float(ndtri((1 + level) / 2))
    noisy = stddev > 0
    standard = np.divide(values, stddev, out=np.zeros_like(values), where=noisy)
    means, lowest, highest = _acceptance(level)
    # For x >= 0 the upper end is x + z, and for x >= 2 z the lower end is x - z. All other ends
    # come from inverting the acceptance region.
    low = np.where(standard >= 2 * z, standard - z, np.interp(standard, highest, means, left=0.0))
    high = np.where(standard >= 0, standard + z, np.interp(standard, lowest, means))
    exact = np.maximum(values, 0.0)
    return np.where(noisy, low * stddev, exact), np.where(noisy, high * stddev, exact)


@lru_cache(maxsize=16)
def _acceptance(level: float) -> tuple[Array, Array, Array]:
    """Return means mu in (0, z], z being the two-sided quantile of the level, and the ends
    ``lowest`` and ``highest`` of the values accepted for each mean, all in units of the standard
    deviation. For mu = z the ends are 0 and 2 z.

    A value with mean mu lies between the ends with probability ``level``, and both ends have the
    same likelihood ratio to the best nonnegative mean: (highest - mu)^2 = mu^2 - 2 mu lowest, as
    lowest <= 0.
    """
    from scipy.special import ndtr, ndtri

    z = float(ndtri((1 + level) / 2))
    means = np.geomspace(_SMALLEST_MEAN, z, CALL_CELLS)
    # The distance of the upper end from mu lies between the one-sided and the two-sided quantile.
    least = np.full(CALL_CELLS, max(0.0, float(ndtri(level))))
    most = np.full(CALL_CELLS, z)
    for _ in range(HALVINGS):
        excess = (least + most) / 2
        lowest = (means**2 - excess**2) / (2 * means)
        enough = ndtr(excess) - ndtr(lowest - means) >= level
        most, least = np.where(enough, excess, most), np.where(enough, least, excess)
    return means, (means**2 - most**2) / (2 * means), means + most
