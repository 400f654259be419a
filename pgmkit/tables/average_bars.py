"""Intervals of means, medians and quantiles, computed from intervals of sums without estimating
another model.

The level-quantile of a group of N records is the first x at which the cumulative count F(x) reaches
level times N. So g(x) = F(x) - level N is below 0 before the quantile and at least 0 from there on.
The interval of the quantile has all x that the intervals of g allow: it begins at the first x where
g may be 0 or more, and ends at the value after the last x where g may be below 0 (Woodruff 1952,
with a separate interval for each g). If each interval of g covers with a given probability, so does
each end of the quantile's interval, since an end is wrong only if the interval of one g is: of g at
the quantile, or at the value before it.

A mean m is the solution of D = S - m N = 0, where S is the sum of the values. Its interval is that
of D at the answer m, divided by the number of records (the delta method) and limited to the range
of the values, where the values of a bin count as the bin's middle.
"""

from __future__ import annotations

import numpy as np

from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arrays import Array
from pgmkit.tables.question_plan import Bars, QuestionPlan
from pgmkit.uncertainty import Interval


def average_bars(
    plan: QuestionPlan, bars: Bars, values: Array, counts: Array, level: float
) -> Interval | None:
    """Return intervals in the shape (2, groups): those of the groups' averages `values` in the
    first row, and those of their numbers of records `counts` in the second. Each covers with
    probability `level`. None if the sums from which they are computed have no intervals in closed
    form.
    """
    from scipy.special import ndtri

    every = np.ones((1, len(plan.codes)))
    records = bars.answer(plan.weighted(plan.rows(every)), level=level)
    if records.method != "closed form":
        return None
    if plan.summary.kind == "mean":
        stddev, low, high = _of_means(plan, bars, values, counts, level)
    else:
        low, high = _of_quantiles(plan, bars, level)
        stddev = (high - low) / (2 * float(ndtri((1 + level) / 2)))
    of_values = np.where(counts > 0, np.stack([stddev, low, high]), np.nan)
    of_counts = np.stack([records.stddev, records.low, records.high]).reshape(3, -1)
    stddev, low, high = np.stack([of_values, of_counts], axis=1)
    return Interval(np.stack([values, counts]), stddev, low, high, level, "closed form")


def _of_means(
    plan: QuestionPlan, bars: Bars, means: Array, counts: Array, level: float
) -> tuple[Array, Array, Array]:
    least, most = plan.middles.min(), plan.middles.max()
    found = []
    shape = [len(labels) for labels in plan.groups.values()]
    for line, (mean, count) in enumerate(zip(means, counts, strict=True)):
        if not count > 0:
            found.append((np.nan, np.nan, np.nan))
            continue
        query = plan.weighted(plan.rows((plan.middles - mean)[None, :]))
        places = dict(zip(plan.question.groups, np.unravel_index(line, shape), strict=True))
        factors = {
            name: np.asarray(factor)[[places[name]]] if name in places else factor
            for name, factor in query.factors.items()
        }
        away = bars.answer(FactoredQuery(factors), level=level)
        ends = (float(each.reshape(-1)[0]) / count for each in (away.stddev, away.low, away.high))
        stddev, low, high = ends
        low, high = np.clip((mean + low, mean + high), least, most)
        found.append((stddev, low, high))
    stddevs, lows, highs = np.array(found, dtype=np.float64).T
    return stddevs, lows, highs


def _of_quantiles(plan: QuestionPlan, bars: Bars, level: float) -> tuple[Array, Array]:
    steps = len(plan.codes)
    rows = np.tri(steps) - plan.summary.level
    away = bars.answer(plan.weighted(plan.rows(rows)), level=level)
    reached = away.high.reshape(-1, steps) >= 0
    before = away.low.reshape(-1, steps) < 0
    first = np.where(reached.any(axis=1), reached.argmax(axis=1), steps - 1)
    last = np.where(before.any(axis=1), steps - before[:, ::-1].argmax(axis=1), 0)
    low, high = plan.ends()
    return low[first], high[np.minimum(last, steps - 1)]
