"""Goodness of fit: whether the measurements of a model can all be right about one population.

Two statements hold whatever the truth is, however small its counts:

* The squared distance between the measurements and the least squares estimate without nonnegativity
  (``pgmkit.least_squares.linear_estimate``), in units of the noise, is a chi-square with
  ``degrees`` of freedom: the number of measured values minus the parameters that they determine.
  Nonnegativity plays no part in it.
* The loss of the best fit is at most that of the truth, half a chi-square with as many degrees as
  there are measured values. Nonnegativity can only bring the best fit nearer to the truth.

The first statement detects tables that disagree; the second also detects tables that no nonnegative
counts can have. Both assume Gaussian noise. The p-value of the fit is twice the smaller of the two
p-values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log, prod, sqrt
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pgmkit.domain import Clique, Domain
from pgmkit.measurement import Measurement
from pgmkit.runtime.chances import RARE
from pgmkit.runtime.printed import NAMED
from pgmkit.runtime.sizes import BLOCK_CELLS
from pgmkit.structural_zeros import Zeros

if TYPE_CHECKING:
    from pgmkit.least_squares.linear_estimate import LinearEstimate

_WORST = NAMED // 4
"""The largest number of cliques that the text of a fit names, each with its distance."""


@dataclass(frozen=True)
class Fit:
    """A test of how well a model's measurements agree with each other.

    Attributes:
        p_value: an upper bound on the probability that Gaussian noise leaves measurements of one
            population, with the total that ``estimate`` was given, if any, as far apart as these or
            further. Bounds at zero can only raise it.
        statistic, degrees: the squared distance, in standard deviations of the noise, between the
            measurements and unbiased tables that agree; for one population the statistic has a
            chi-square distribution with ``degrees`` degrees of freedom. Tables that are not
            determined by their measurements do not enter the statistic; they, and bounds at zero,
            enter the ``p_value`` through the model's loss.
        scale: the factor by which error bars are widened, as by the Particle Data Group:
            sqrt(statistic / degrees) if the statistic is beyond what noise of any usual
            distribution gives by chance (3 in 1,000 data sets with Laplace noise), else 1.
        worst: up to three measured cliques whose own misfit exceeds the noise, the largest first,
            each with the root mean square of its residuals in standard deviations; only the largest
            if the misfit of all cliques together exceeds the noise and that of no single one does,
            and empty if neither does.
        gross: whether no noise of any usual distribution explains the misfit (``estimate`` then
            warns).
    """

    p_value: float
    statistic: float
    degrees: int
    scale: float
    worst: tuple[tuple[Clique, float], ...]
    gross: bool

    def __str__(self) -> str:
        from scipy.special import chdtrc

        said = f"chi-square {self.statistic:.4g} with {self.degrees:,} degrees of freedom"
        if self.p_value < (chdtrc(self.degrees, self.statistic) if self.degrees else 1.0):
            said = f"of the model's loss; negative counts of any total would have a {said}"
        said = f"p-value {self.p_value:.2g} ({said})"
        if self.worst:
            missed = (f"{', '.join(clique) or 'total'} by {far:.3g}" for clique, far in self.worst)
            said += f"; furthest off, in standard deviations: {'; '.join(missed)}"
        if self.scale > 1:
            said += f"; error bars are widened {self.scale:.3g} times"
            if not self.gross:
                said += (
                    f", without a warning, which takes a chi-square of {_limit(self.degrees):.4g}"
                )
        return said


class Fitted(Protocol):
    """A model with its loss and a certified lower bound on the loss of every distribution."""

    @property
    def domain(self) -> Domain: ...
    @property
    def total(self) -> float: ...
    @property
    def bound(self) -> float: ...
    @property
    def loss(self) -> float: ...
    @property
    def structural_zeros(self) -> Sequence[Zeros]: ...
    def marginals(self, cliques: Any) -> Mapping[Clique, Any]: ...


def goodness_of_fit(model: Fitted, measurements: Sequence[Measurement]) -> Fit:
    """Test the fit of a model that was estimated from these measurements with the squared loss.

    >>> from pgmkit import estimate
    >>> y = [Measurement(("a",), [600.0, 400.0], 1.0), Measurement(("a",), [300.0, 700.0], 2.0)]
    >>> fit = goodness_of_fit(estimate(Domain({"a": 2}), y[:1]), y)
    >>> fit.degrees, fit.statistic, fit.p_value < 1e-9
    (2, 36000.0, True)
    """
    from scipy.special import chdtrc

    squares = _squares(model, measurements)
    values = sum(count for _, count in squares.values())
    # The loss is half a sum of squares. Twice the certified lower bound on the loss of every
    # distribution is tested, or the model's own sum of squares if rounding makes that smaller. The
    # latter alone would be too large if the search for the model ended early.
    missed = min(2 * max(0.0, model.bound), sum(square for square, _ in squares.values()))
    linear = _linear(model, measurements)
    excess = {c: (square - n) / sqrt(5 * n) for c, (square, n) in squares.items()}
    ordered = sorted(squares, key=lambda c: -excess[c])
    gross = is_gross(missed, values) or is_gross(linear.statistic, linear.degrees)
    missing = [c for c in ordered if is_gross(*squares[c])] or ordered[: 1 if gross else 0]
    return Fit(
        p_value=min(1.0, 2 * float(chdtrc(values, missed)), 2 * linear.p_value),
        statistic=linear.statistic,
        degrees=linear.degrees,
        scale=linear.scale,
        worst=tuple((c, sqrt(squares[c][0] / squares[c][1])) for c in missing[:_WORST]),
        gross=gross,
    )


def contradiction(model: Fitted, measurements: Sequence[Measurement]) -> str:
    """Return the text of a warning if no distribution fits the measurements as well as noise
    allows, else an empty text.

    Twice the loss plus the squared residuals of measured totals, which the loss leaves out, is at
    least the statistic of the fit. This sum costs little, and if noise explains it, the statistic
    is not computed.
    """
    total, missed = np.array([model.total]), 2 * model.loss
    for each in (m for m in measurements if not m.clique):
        missed += float((((each.applied(total) - each.values) / each.stddev) ** 2).sum())
    if not is_gross(missed, max(1, least_degrees(model.domain, measurements))):
        return ""
    linear, values = _linear(model, measurements), sum(len(m.values) for m in measurements)
    if not (is_gross(linear.statistic, linear.degrees) or is_gross(2 * model.bound, values)):
        return ""
    fit = goodness_of_fit(model, measurements)
    if not fit.gross:
        return ""
    return (
        f"the tables contradict each other by more than their noise explains: {fit}. Look for a "
        "wrong stddev, total or order of values; the model is a compromise between them"
    )


def is_gross(statistic: float, degrees: int) -> bool:
    """Return True if ``statistic``, a sum of ``degrees`` squared standardised residuals, is larger
    than even Laplace noise would make it; False without degrees of freedom.

    A square has mean 1 and variance 5; the largest of them is below log(degrees / p)^2 / 2 with
    probability 1 - p. With p = RARE, the limit is the mean plus 6 standard deviations plus twice
    that largest square. Gaussian sums are far below it.
    """
    return degrees > 0 and statistic > _limit(degrees)


def _limit(degrees: int) -> float:
    return degrees + 6 * sqrt(5 * degrees) + log(degrees / RARE) ** 2


def least_degrees(domain: Domain, measurements: Sequence[Measurement]) -> int:
    """Return a lower bound on the degrees of freedom of tables that agree on all that they share:
    the number of the measured tables' values minus an upper bound on the number of parameters.
    (``LinearEstimate`` has fewer where it leaves out constraints beyond DENSE_ROWS.) The table of a
    clique is determined by the residuals of its subsets, and two cliques share the residuals of
    each subset that they share. Measurements with matrices may determine no table and then add no
    degrees of freedom. The bound is 0 if the cliques have more subsets than the tables have values.
    """
    tables = [m for m in measurements if m.matrix is None]
    values = sum(len(m.values) for m in tables)
    cliques = {frozenset(n for n in m.clique if domain.sizes[n] > 1) for m in tables}
    if sum(2 ** len(clique) for clique in cliques) > values:
        return 0
    subsets = {s for c in cliques for k in range(len(c) + 1) for s in combinations(sorted(c), k)}
    return values - sum(prod(domain.sizes[name] - 1 for name in each) for each in subsets)


def _linear(model: Fitted, measurements: Sequence[Measurement]) -> LinearEstimate:
    """Return the least squares estimate without nonnegativity. If the tables have more than
    BLOCK_CELLS cells it uses no measurements, and then has no degrees of freedom. The total is not
    fixed at the model's, which may come from other measurements and have their noise.
    """
    from pgmkit.least_squares.linear_estimate import LinearEstimate

    cells = sum(map(model.domain.size, {frozenset(m.clique) for m in measurements}))
    used = measurements if cells <= BLOCK_CELLS else ()
    return LinearEstimate(model.domain, used, None, model.structural_zeros)


def _squares(model: Fitted, measurements: Sequence[Measurement]) -> dict[Clique, tuple[float, int]]:
    """Return for each measured clique the sum of the squares of its residuals, in standard
    deviations of the noise, and the number of its measured values.
    """
    tables = model.marginals(dict.fromkeys(m.clique for m in measurements))
    found: dict[Clique, tuple[float, int]] = {}
    for m in measurements:
        clique = model.domain.ordered(m.clique)
        apart = (m.applied(np.ravel(tables[m.clique])) - m.values) / m.stddev
        square, count = found.get(clique, (0.0, 0))
        found[clique] = square + float((apart**2).sum()), count + len(apart)
    return found
