"""Means, medians and quantiles of groups, and their intervals, computed from intervals of sums
without estimating another model.

The level-quantile of a group of N records is the first x at which the cumulative count F(x) reaches
level times N. So g(x) = F(x) - level N is below 0 before the quantile and at least 0 from there on.
The interval of the quantile has all x that the intervals of g allow: it begins at the first x where
g may be 0 or more, and ends at the value after the last x where g may be below 0 (Woodruff 1952,
with a separate interval for each g). If each interval of g covers with a given probability, so does
each end of the quantile's interval, since an end is wrong only if the interval of one g is: of g at
the quantile, or at the value before it.

A mean is the solution x of D(x) = S - x N = 0, where S is the sum of the values (those of a bin at
the bin's middle) and N the number of records. Its interval has every x between the least and the
largest value for which the interval of D(x), around the noisy tables' own S and N, contains 0
(Fieller 1954). Let m be the model's mean, u = x - m, D = D(m) by the tables' S and N, V the
variance of D, W that of N, and C the covariance of D and N. Then these x are the solutions of

    (D - u N)^2 <= z^2 (V - 2 u C + u^2 W).

If N is not above z of its own standard deviations, no bound on x follows from this, and the
interval is the whole range.
"""

from __future__ import annotations

import numpy as np

from pgmkit.linear.matrix import rows_of_identity
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import CLOSE
from pgmkit.tables.question_plan import Bars, QuestionPlan
from pgmkit.uncertainty import Interval


def average(plan: QuestionPlan, tables: Array) -> Array:
    """Return the mean, median or quantile that the question asks for, of the counts in each row of
    `tables`, which are those of a group's codes; NaN for a group without records.
    """
    if plan.summary.kind != "mean":
        return _quantiles(plan, tables, plan.summary.level)
    sizes = tables.sum(axis=1)
    sums = tables @ plan.middles
    means = np.divide(sums, sizes, out=np.full_like(sums, np.nan), where=sizes > 0)
    return np.clip(means, plan.middles.min(), plan.middles.max())


def deviations(plan: QuestionPlan, tables: Array) -> Array:
    """Return the standard deviation of the values in each group, as evenly spread in their bins as
    `_quantiles` takes them; 0 for a group without records.
    """
    middles, sizes = plan.middles, tables.sum(axis=1)
    shares = np.divide(tables, sizes[:, None], out=np.zeros_like(tables), where=sizes[:, None] > 0)
    centred = middles[None, :] - (shares @ middles)[:, None]
    low, high, in_unit = plan.spans()
    # A bin's values count as equally likely: n whole numbers have the variance (n^2 - 1) / 12.
    inside = (high - low) * (high - low + 2 * _steps(in_unit)) / 12
    return np.sqrt((shares * (centred**2 + inside)).sum(axis=1).clip(0.0))


def _quantiles(plan: QuestionPlan, tables: Array, level: float) -> Array:
    """Return for each row of `tables`, the counts of a group's codes, the smallest value v such
    that at least the share `level` of the records is at or below v. Negative counts are first
    removed by `none_negative`.

    NaN if there are no records. Within a bin the values are taken as evenly spread: over its whole
    numbers or those with the column's decimal places, or continuously.
    """
    low, high, in_unit = plan.spans()
    width = high - low + _steps(in_unit)
    tables = np.apply_along_axis(none_negative, 1, tables)
    sizes = tables.sum(axis=1)
    goals = level * sizes
    # Rounding errors of very many cells add up to less than this share of the records.
    tiny = CLOSE * sizes[:, None]
    sums = np.cumsum(tables, axis=1)
    reached = (sums >= goals[:, None] - tiny) & (tables > tiny)
    place = np.argmax(reached, axis=1)
    lines = np.arange(len(tables))
    before = sums[lines, place] - tables[lines, place]
    own = np.where(sizes > 0, tables[lines, place], 1.0)
    values = low[place] + np.clip((goals - before) / own, 0.0, 1.0) * width[place]
    # If the bin's values have gaps between them, the result is the last of them below this place.
    scale = in_unit[place]
    above = np.ceil((values - CLOSE * width[place]) * scale) - 1.0
    listed = np.divide(above, scale, out=values.copy(), where=scale > 0)
    values = np.where(scale > 0, np.maximum(listed, low[place]), values)
    return np.where(sizes > 0, values, np.nan)


def _steps(in_unit: Array) -> Array:
    """Return for each bin by how much neighbouring values in it differ, from how many values an
    interval of length 1 can have in it; 0 if that is 0, which stands for values without gaps.
    """
    return np.divide(1.0, in_unit, out=np.zeros_like(in_unit), where=in_unit > 0)


def none_negative(counts: Array) -> Array:
    """Return the counts of a group's codes if none is negative, and otherwise those without a
    negative one, of the same total (0 if it is negative), whose cumulative counts are nearest the
    given ones.

    If each negative count became 0, the noise of codes that no record has would add up, and move a
    quantile towards them.
    """
    if (counts >= 0.0).all():
        return counts
    from scipy.optimize import isotonic_regression

    total = max(counts.sum(), 0.0)
    reached = np.clip(isotonic_regression(np.cumsum(counts)).x, 0.0, total)
    return np.diff([*reached[:-1], total], prepend=0.0)


def average_bars(
    plan: QuestionPlan, bars: Bars, values: Array, counts: Array, level: float
) -> Interval | None:
    """Return intervals in the shape (2, groups): those of the groups' averages `values` in the
    first row, and those of their numbers of records `counts` in the second. Each covers with
    probability `level`; that of an average of no records is NaN. None if the sums from which they
    are computed have no intervals in closed form.
    """
    from scipy.special import ndtri

    records = bars.answer(plan.weighted(plan.rows(np.ones((1, len(plan.codes))))), level=level)
    if records.method != "closed form":
        return None
    z = float(ndtri((1 + level) / 2))
    if plan.summary.kind == "mean":
        stddev, low, high = _of_means(plan, bars, values, counts, level, z)
    else:
        low, high = _of_quantiles(plan, bars, level)
        stddev = (high - low) / (2 * z)
    of_values = np.where(counts > 0, np.stack([stddev, low, high]), np.nan)
    of_counts = np.stack([records.stddev, records.low, records.high]).reshape(3, -1)
    stddev, low, high = np.stack([of_values, of_counts], axis=1)
    return Interval(np.stack([values, counts]), stddev, low, high, level, "closed form")


def _of_means(
    plan: QuestionPlan, bars: Bars, means: Array, counts: Array, level: float, z: float
) -> tuple[Array, Array, Array]:
    ones = np.ones(len(plan.codes))
    least, most = plan.middles.min(), plan.middles.max()
    width = max(most - least, 1.0)
    found = []
    shape = [len(labels) for labels in plan.groups.values()]
    for line, (mean, count) in enumerate(zip(means, counts, strict=True)):
        if not count > 0:
            found.append((np.nan, np.nan, np.nan))
            continue
        centred = plan.middles - mean
        query = plan.weighted(plan.rows(np.stack([centred, -ones, centred - width])))
        places = dict(zip(plan.question.groups, np.unravel_index(line, shape), strict=True))
        factors = {
            name: factor[[places[name]]] if name in places else factor
            for name, factor in query.factors.items()
        }
        sums = bars.answer(FactoredQuery(factors), level=level)
        away, less, _ = _unbiased(sums, z)
        own, noise, both = sums.stddev.reshape(-1) ** 2  # V, W, V - 2 width C + width^2 W
        together = (own + width**2 * noise - both) / (2 * width)
        square = less**2 - z**2 * noise
        if less >= 0 or square <= 0:
            found.append((np.sqrt(own) / count, least, most))
            continue
        middle = (-away * less - z**2 * together) / square
        reach = np.sqrt(max(middle**2 - (away**2 - z**2 * own) / square, 0.0))
        low, high = np.clip([mean + middle - reach, mean + middle + reach], least, most)
        found.append((np.sqrt(own) / -less, min(low, mean), max(high, mean)))
    stddevs, lows, highs = np.array(found, dtype=np.float64).T
    return stddevs, lows, highs


def _unbiased(found: Interval, z: float) -> Array:
    """Return the noisy tables' own answers, which are `z` standard deviations from the ends of the
    intervals. An interval that did not contain the model's answer was extended to it at one end;
    the other end is used then.
    """
    reach = z * found.stddev
    return np.where(found.high > found.estimate, found.high - reach, found.low + reach).reshape(-1)


def _of_quantiles(plan: QuestionPlan, bars: Bars, level: float) -> tuple[Array, Array]:
    from scipy.sparse import csr_array, vstack

    # The sums up to each row are g; that of the first row alone, -level N, is left out.
    steps = len(plan.codes)
    goal = plan.rows(np.full((1, steps), -plan.summary.level))
    each = csr_array(rows_of_identity(plan.codes, plan.column.size))
    query = plan.weighted(vstack([csr_array(goal), each], format="csr"))
    away = bars.answer(query, level=level, cumulative=True)
    reached = away.high.reshape(-1, steps + 1)[:, 1:] >= 0
    before = away.low.reshape(-1, steps + 1)[:, 1:] < 0
    first = np.where(reached.any(axis=1), reached.argmax(axis=1), steps - 1)
    last = np.where(before.any(axis=1), steps - before[:, ::-1].argmax(axis=1), 0)
    low, high = plan.ends()
    return low[first], high[np.minimum(last, steps - 1)]
