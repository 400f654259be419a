"""Error bars of any model's answers from the measured tables alone, without re-estimated models.

The interval of unbiased least squares for a query within measured tables
(``pgmkit.least_squares.linear_estimate``) covers the true count whatever model answers the query.
The intervals here are widened to hold the model's own answer. They do not show by how much a good
model is more accurate than the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Domain
from pgmkit.errors import NotMeasured, TotalUndetermined
from pgmkit.least_squares.linear_estimate import LinearEstimate
from pgmkit.linear.axes import sums_up_to
from pgmkit.measurement import Measurement
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arguments import instance
from pgmkit.total import estimate_total
from pgmkit.uncertainty.interval import Interval, checked_level, closed_form


class Answers(Protocol):
    """The interface of a model that ``MeasuredBars`` needs; models of every kind have it."""

    @property
    def domain(self) -> Domain: ...
    @property
    def total(self) -> float: ...
    def answer(self, query: FactoredQuery) -> NDArray[np.float64]: ...


class MeasuredBars:
    """Error bars in closed form of a model's answers within measured tables.

    ``measurements`` are those that the model was fitted to, with independent noise. ``answer`` and
    ``marginal`` raise ``NotMeasured`` for a query that no measured table determines.

    >>> from pgmkit import Domain, Measurement, estimate
    >>> noisy = [Measurement(("a", "b"), [[400.0, 100.0], [300.0, 203.0]], stddev=10.0)]
    >>> bars = MeasuredBars(estimate(Domain({"a": 2, "b": 2}), noisy, total=1000), noisy)
    >>> bars.marginal(["a"]).stddev.round(1)
    array([14.1, 14.1])
    """

    def __init__(self, model: Answers, measurements: Sequence[Measurement]) -> None:
        self._model = model
        # The model's total may be noisy, so the tables' own sums are used instead; if the
        # measurements do not determine a total, the model's was known.
        try:
            estimate_total(measurements)
            known = None
        except TotalUndetermined:
            known = model.total
        self._linear = LinearEstimate(model.domain, measurements, known)

    def __repr__(self) -> str:
        return f"MeasuredBars({self._model!r})"

    def marginal(self, attrs: Iterable[str], *, level: float = 0.95) -> Interval:
        """Return error bars of every cell of a marginal; axes in the given order."""
        return self.answer(FactoredQuery.marginal(self._model.domain, attrs), level=level)

    def answer(
        self, query: FactoredQuery, *, level: float = 0.95, cumulative: bool = False
    ) -> Interval:
        """Return error bars of every answer to a factored query; ``level`` is the coverage of each
        single interval, and ``cumulative`` as in `Uncertainty.answer`.
        """
        checked = checked_level(level)
        estimate = self._model.answer(instance(query, FactoredQuery, "query"))
        run = (1, *query.shape)[-1] if cumulative else 1
        found = self._linear.answer(query, run)
        if found is None:
            _refuse(f"a question of {', '.join(query.attributes)}")
        return closed_form(sums_up_to(estimate, run), found, checked)

    def statistic(self, function: Callable[[Any], Any], *, level: float = 0.95) -> Interval:
        """Raise ``NotMeasured``: ratios and similar statistics need re-estimated models."""
        _refuse("ratios and other statistics of a whole model")


def _refuse(what: str) -> NoReturn:
    """Raise NotMeasured for ``what``, a kind of question."""
    raise NotMeasured(
        f"there are no error bars for {what}: this model cannot be re-estimated, so only counts, "
        "sums, means and quantiles within one measured table have them, if it was measured without "
        "merging its bins; a graphical model, as of mechanism='aim' or 'mst', has them for all "
        "questions"
    )
