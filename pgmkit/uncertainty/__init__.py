"""Error bars: how far the noise of the measurements may have moved any answer of a model.

Two methods, chosen by the query:

* *Closed form*, if the query lies within a measured clique whose table the measurements determine:
  least squares without nonnegativity is unbiased, with a standard error known exactly
  (`pgmkit.least_squares.linear_estimate`), and intervals of Feldman and Cousins keep their coverage
  at a count of zero (`pgmkit.uncertainty.interval`). They cover the true count: within measured
  cliques the model has no bias of its own.
* *Parametric bootstrap* elsewhere: measurements are drawn again and again from the model, the model
  is re-estimated from each, and the spread of the answers around the model's own is the standard
  error. These intervals cover the *projection*, the answer of the model that noiseless measurements
  would have given. No measurement tells how far that is from the data (the model's bias): an
  unmeasured marginal of the data may lie far outside an interval.

Both treat the noise as Gaussian and independent. Laplace noise of the same standard deviation has
heavier tails, and 95% intervals cover a single measured count with probability 93.7%.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from pgmkit.errors import InvalidInput, TooSlow, TotalUndetermined
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.linear.axes import sums_up_to
from pgmkit.measurement import Measurement, check_scale
from pgmkit.measurement import checked_measurements as as_checked
from pgmkit.model import GraphicalModel
from pgmkit.queries import FactoredQuery
from pgmkit.regions.model import RegionModel
from pgmkit.runtime.arguments import Rng, check_seconds, float_array, generator, instance
from pgmkit.runtime.memory import MEMORY_LIMIT, check_room
from pgmkit.runtime.progress import OUT_OF_TIME, Replication, reporter
from pgmkit.runtime.sizes import CELL_BYTES
from pgmkit.runtime.typed import typed
from pgmkit.total import estimate_total
from pgmkit.uncertainty.interval import Interval, bootstrap, checked_level, closed_form

if TYPE_CHECKING:
    from pgmkit.estimation.batches.answers import BatchedAnswers
    from pgmkit.least_squares.linear_estimate import LinearEstimate
    from pgmkit.uncertainty.replicates import Estimated

__all__ = ["Interval", "Uncertainty", "checked_measurements", "error_bars"]

logger = logging.getLogger(__name__)

CACHE_BYTES = MEMORY_LIMIT // 4
"""The most bytes that the tables of all replicates together may take to be kept between queries."""


@dataclass(frozen=True, repr=False, eq=False)
class Uncertainty:
    """A model with its replicates, made by ``error_bars``; it answers queries with error bars.

    The replicates are estimated when a query first needs them; queries that have an answer in
    closed form do not.
    """

    model: Estimated
    _linear: LinearEstimate
    _count: int
    _measurements: Sequence[Measurement]
    _fixed: float | None
    """The total of every replicate; None if each set of measurements implies its own."""
    _seed: Rng
    _most: float
    """The seconds that all replicates together may take."""
    _progress: bool | Callable[[Replication], None] | None
    _refused: list[str] = field(default_factory=list)
    """The text of the TooSlow that every access to ``replicates`` raises after the first one."""

    @cached_property
    def replicates(self) -> tuple[Estimated, ...]:
        """The re-estimated models; the first access estimates all of them. It and every later
        access raise TooSlow if this would take longer than the ``max_seconds`` of ``error_bars``.
        """
        # Imported only here, since most queries have a closed form and need no search for a model.
        from pgmkit.uncertainty.replicates import re_estimated

        if self._refused:
            raise TooSlow(*self._refused)
        model, known, most, replicates = self.model, self._measurements, self._most, self._count
        wider, started = self._linear.scale, time.perf_counter()
        rng = generator(self._seed, "seed")
        logger.info("error bars: %d re-estimations", replicates)
        made: list[Estimated] = []
        # The stated noise is multiplied by `wider`, which is above 1 if the measurements are
        # farther apart than that noise explains.
        tables = model.marginals([m.clique for m in known])
        drawn = [(m, m.applied(np.ravel(tables[m.clique])), wider * m.stddev) for m in known]
        sets = [
            [replace(m, values=mean + rng.normal(0.0, wide, mean.shape)) for m, mean, wide in drawn]
            for _ in range(replicates)
        ]
        with reporter("error bars", self._progress, replicates) as report:
            for models in re_estimated(model, sets, self._fixed, started + most):
                for again in models:
                    made.append(again)
                    report(len(made))
                # The error bars are refused if the remaining replicates, at the present speed,
                # would end after the limit, or if the search for the last model ran out of time.
                needed = (time.perf_counter() - started) * replicates / len(made)
                if needed > most or made[-1].stopped == OUT_OF_TIME:
                    self._refused.append(
                        f"the error bars take about {needed:.2g} s or more, longer than the "
                        f"{most:g} s they were given; raise max_seconds, or ask within a measured "
                        "table"
                    )
                    raise TooSlow(*self._refused)
        return tuple(made)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_progress": None}  # a callback often cannot be pickled

    def __repr__(self) -> str:
        return f"Uncertainty({self.model!r}, {self._count} replicates)"

    def marginal(self, attrs: Iterable[str], *, level: float = 0.95) -> Interval:
        """Return error bars of every cell of a marginal, measured or not; axes in the given
        order. The docstring of `answer` says what the intervals cover.
        """
        return self.answer(FactoredQuery.marginal(self.model.domain, attrs), level=level)

    def answer(
        self, query: FactoredQuery, *, level: float = 0.95, cumulative: bool = False
    ) -> Interval:
        """Return error bars of every answer to a factored query. If it is ``cumulative``, each
        answer is the sum of those to the rows up to its own of the last attribute's matrix, so that
        with the identity it is a cumulative count, without a matrix of all of them.

        If a table that the measurements determine, such as one that was measured whole, has all of
        the query's attributes, ``method`` is "closed form": each interval covers the truth with
        probability ``level`` under Gaussian noise, though several do not jointly. Cells of the
        table may be missing if the query does not need them, or if the total or other tables
        determine them. For all other queries ``method`` is "bootstrap", and often for these, too,
        if an attribute of the query is also in a set of attributes of which only a few sums were
        measured, too few to determine its cells. Bootstrap intervals cover the effect of noise on
        the model's answer alone, not the model's own error, and the truth may lie far outside
        nearly all of them.

        Raises InvalidInput for a level outside (0, 1) or a query that does not fit the domain, and
        TooSlow as ``replicates`` does.
        """
        checked = checked_level(level)
        estimate = self.model.answer(instance(query, FactoredQuery, "query"))
        run = (1, *query.shape)[-1] if cumulative else 1
        estimate = sums_up_to(estimate, run)
        if (closed := self._linear.answer(query, run)) is not None:
            return closed_form(estimate, closed, checked)
        if self.batched_answers is not None:
            drawn = self.batched_answers.answer(query)
        else:
            drawn = np.stack([replicate.answer(query) for replicate in self._reused()])
        nonnegative = all(factor.min() >= 0 for factor in query.factors.values())
        return bootstrap(estimate, sums_up_to(drawn, run), nonnegative, checked)

    @typed
    def statistic(self, function: Callable[[Any], Any], *, level: float = 0.95) -> Interval:
        """Return bootstrap error bars of anything computed from a model, such as a ratio or a
        conditional mean.

        ``function`` maps a model to a number or an array, of the same shape for every model. A cell
        that is NaN for any of them has NaN as its standard error and ends.

        Raises InvalidInput for a level outside (0, 1), and if ``function`` cannot be called or
        returns anything else; TooSlow as ``replicates`` does.
        """
        checked = checked_level(level)
        models = itertools.chain([self.model], self._reused())
        estimate, *drawn = [float_array(function(each), "what function returns") for each in models]
        if shapes := {each.shape for each in drawn} - {estimate.shape}:
            raise InvalidInput(
                f"function must return arrays of one shape, got {estimate.shape} for the model and "
                f"{min(shapes)} for a replicate; fill up what is missing"
            )
        return bootstrap(estimate, np.stack(drawn), False, checked)

    @cached_property
    def batched_answers(self) -> BatchedAnswers | None:
        """An object that computes all replicates' answers at once; None for a region model, and if
        it would not be faster than one replicate after the other. For a graphical model the first
        access estimates the replicates in either case.
        """
        if isinstance(self.model, RegionModel):
            return None
        from pgmkit.estimation.batches.answers import BatchedAnswers
        from pgmkit.estimation.batches.oracle import gains_when_coarse

        small = gains_when_coarse(MarginalOracle(self.model.domain, self.model.cliques or [()]))
        replicates = [each for each in self.replicates if isinstance(each, GraphicalModel)]
        return BatchedAnswers(replicates) if small else None

    def _reused(self) -> Iterable[Estimated]:
        """Return the replicates. A replicate that is a graphical model keeps the tables that a
        query computes for the next query. If the tables of all replicates would take too much
        memory, copies of the replicates are made one by one, to be discarded after the query.
        """
        model = self.model
        if isinstance(model, RegionModel) or 2 * model.tree.bytes() * self._count <= CACHE_BYTES:
            return self.replicates
        return (replace(replicate) for replicate in self.replicates)


@typed
def error_bars(
    model: Estimated,
    measurements: Iterable[Measurement],
    *,
    replicates: int = 100,
    seed: Rng = None,
    max_seconds: float | None = None,
    progress: bool | Callable[[Replication], None] | None = None,
) -> Uncertainty:
    """Return the model's error bars, given the ``measurements`` it was estimated from.

    Most queries within tables that the measurements determine are answered at once, in closed form
    (``Uncertainty.answer`` says which ones are not). The first other query re-estimates the model
    from each of ``replicates`` redrawn sets of the measurements. One re-estimation takes about as
    long as an estimate that starts from a similar model; later queries use the same replicates.

    If the measurements lie farther apart than the stated noise explains, all error bars are widened
    accordingly. Error bars from replicates cover noise alone, not the model's own error about
    attributes that were not measured together. Only the model and the measurements are used, never
    the records.

    ``model`` must be estimated by ``pgmkit.estimate`` from the same measurements with the squared
    loss. Its structural zeros hold in the replicates, and so does its total, unless the total is
    the one that the measurements imply, or is 1 where they imply less: then it is estimated anew
    each time. Replicates are estimated on the model's device, in its precision. A ``RegionModel``
    has error bars too; for a query in none of its regions every replicate needs a joint
    distribution of its own, which takes seconds for each.

    Args:
        model: the model whose answers need error bars.
        measurements: all measurements that it was estimated from.
        replicates: at least 20; the relative error of the standard errors is about 1 / sqrt(2
            replicates).
        seed: the seed of the replicates' noise, or a numpy Generator; None for a fresh one.
        max_seconds: the most time that all replicates together may take. A query that needs them
            raises ``TooSlow`` once the first ones show that they would take longer, and so does
            every later one.
        progress: True for a bar on a terminal, or a callable that gets ``Replication`` records,
            while the replicates are estimated; copies and pickled bars have no progress.

    Raises InvalidInput for values that are not measurements, measurements of another domain or of
    other cliques than the model's, noise that ``estimate`` refuses, too few replicates, a wrong
    seed or limit of time, and a conditioned model; ModelTooLarge for so many replicates that their
    measurements do not fit into memory. Measurements of the same cliques that the model was not
    estimated from are not noticed.

    >>> from pgmkit import Domain, estimate
    >>> domain = Domain({"a": 2, "b": 2})
    >>> y = [Measurement(("a", "b"), [[400.0, 100.0], [300.0, 203.0]], stddev=10.0)]
    >>> bars = error_bars(estimate(domain, y, total=1000), y, replicates=20, seed=0)
    >>> cell = bars.marginal(["a", "b"])
    >>> cell.stddev[0, 0].round(2), cell.low[0, 0].round(1), cell.high[0, 0].round(1)
    (np.float64(8.66), np.float64(382.3), np.float64(416.2))
    """
    from pgmkit.least_squares.linear_estimate import LinearEstimate

    known = checked_measurements(model, measurements)
    if replicates < 20:
        raise InvalidInput(
            f"replicates must be 20 or more, got {replicates}; 50 to 200 are "
            "usual, and fewer than 20 give no usable standard errors"
        )
    needed = replicates * CELL_BYTES * sum(len(m.values) for m in known)
    check_room(needed, f"redrawing the measurements {replicates:,} times", remedy="take fewer")
    check_seconds(max_seconds)
    generator(seed, "seed")  # a wrong seed is refused here, not by the first query that draws
    fixed, most = _fixed_total(model, known), inf if max_seconds is None else max_seconds
    linear = LinearEstimate(model.domain, known, fixed, model.structural_zeros)
    return Uncertainty(model, linear, replicates, known, fixed, seed, most, progress)


def _fixed_total(model: Estimated, measurements: Sequence[Measurement]) -> float | None:
    """Return the model's total, which holds in every replicate, or None if it equals the one that
    the measurements imply, up to rounding: then it counts as estimated from them. So does a total
    of 1 where they imply less, since a mechanism never estimates fewer records.
    """
    try:
        implied = estimate_total(measurements).value
    except TotalUndetermined:
        return model.total
    least = implied < model.total == 1
    return None if least or math.isclose(implied, model.total, rel_tol=1e-9) else model.total


def checked_measurements(model: Any, measurements: Any) -> list[Measurement]:
    """Return the measurements as a list. Raises InvalidInput unless the model is a GraphicalModel
    or a RegionModel that is not conditioned and can have been estimated from them.

    Each measurement must lie within a clique of the model, and its noise must be neither too small
    nor too large for `estimate` (`check_scale`). Each clique of the model must lie within the
    attributes of a measurement or be the attributes of structural zeros.
    """
    if not isinstance(model, GraphicalModel | RegionModel):
        raise InvalidInput(
            f"model must be a GraphicalModel or a RegionModel, got {type(model).__name__}; "
            "error bars need a model that pgmkit.estimate made"
        )
    if model.stopped == "conditioned":
        raise InvalidInput(
            "model is conditioned; pass the model that was estimated, and condition inside "
            "Uncertainty.statistic"
        )
    known = as_checked(measurements, model.domain)
    for m in known:
        if m.clique and not any(set(m.clique) <= set(clique) for clique in model.cliques):
            raise InvalidInput(
                f"the model has no clique that contains the measured {m.clique!r}, so it was not "
                "estimated from this measurement; pass the model's own measurements"
            )
        check_scale(m, m.values, model.total)
    ruled_out = [set(each.clique) for each in model.structural_zeros]
    for clique in model.cliques:
        if not any(set(clique) <= set(m.clique) for m in known) and set(clique) not in ruled_out:
            raise InvalidInput(
                f"the model has the clique {clique!r}, which no measurement covers; pass all the "
                "measurements that it was estimated from"
            )
    return known
