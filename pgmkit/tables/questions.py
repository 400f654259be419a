"""Replies to questions in words by a model with a schema: tables, CDFs, sums, means and quantiles,
to be printed, shown in a notebook or drawn.

The grammar is in `pgmkit.tables.question_grammar`. In a table missing values are values of their
own. Every summary leaves out missing values, as pandas and SQL do, and special ones; a note of the
reply says how many records these are, if they are half a record or more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.queries import FactoredQuery
from pgmkit.runtime import html, plots
from pgmkit.runtime.arguments import instance
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.printed import on_one_line
from pgmkit.tables.averages import average, average_bars, deviations
from pgmkit.tables.question_grammar import parse
from pgmkit.tables.question_plan import Answering, Bars, QuestionPlan
from pgmkit.tables.schema import Schema

UNRELIABLE = 1 / 3
"""The largest standard error that is not called unreliable, as a share of the count or sum or, for
an average, of the standard deviation of the values. Statistics Canada's guidelines suppress
estimates with coefficients of variation above 33.3%.
"""
_COMPUTED = ("count", "share", "stderr", "low", "high", "note")
_FORMATS = {"count": ".4g", "share": ".4f"}
"""Formats of columns of estimates, used where no standard error tells the number of digits."""


@dataclass(frozen=True, eq=False)
class Reply:
    """A table: named columns of equal length, with texts or numbers; counts are expected records.

    `notes`: what a reader must know: what the shares refer to, what was left out, what is
    unreliable. `curve`: True for a CDF; its last column of texts then has the values up to which
    counts go.
    """

    columns: Mapping[str, Sequence[str] | Array]
    notes: tuple[str, ...] = ()
    curve: bool = False

    @property
    def _numbers(self) -> dict[str, Array]:
        return {n: v for n, v in self.columns.items() if isinstance(v, np.ndarray)}

    def __str__(self) -> str:
        texts = [list(map(on_one_line, (name, *each))) for name, each in self.texts().items()]
        widths = [max(map(len, column)) for column in texts]
        lines = [
            "  ".join(map(str.ljust, line, widths)).rstrip() for line in zip(*texts, strict=True)
        ]
        return "\n".join([*lines, *(f"({on_one_line(note)})" for note in self.notes)])

    __repr__ = __str__

    def texts(self) -> dict[str, list[str]]:
        """Return the columns as texts. Estimates with standard errors, and these errors and their
        intervals, are rounded to the second significant digit of the smallest finite standard
        error above 0, or to whole numbers if that digit is left of the decimal point. Other counts
        have up to four significant digits, or are whole numbers if the largest is 1,000 or more;
        other shares have four decimal places, and other numbers up to six significant digits.
        `columns` has the numbers in full.

        >>> Reply({"count": np.array([801.441]), "stderr": np.array([14.524])}).texts()
        {'count': ['801'], 'stderr': ['15']}
        """
        numbers = self._numbers
        errors = numbers.get("stderr", np.zeros(0))
        errors = errors[(errors > 0) & np.isfinite(errors)]
        known = {next(iter(numbers), ""), "stderr", "low", "high"} if errors.size else set()
        digits = max(0, 1 - math.floor(math.log10(errors.min()))) if errors.size else 0

        def written(name: str, value: Any) -> str:
            if name not in numbers:
                return str(value)
            if name in known:
                return f"{value:.{digits}f}"
            whole = name == "count" and np.max(numbers[name]) >= 1000
            return f"{value:{'.0f' if whole else _FORMATS.get(name, '.6g')}}"

        return {name: [written(name, v) for v in column] for name, column in self.columns.items()}

    def to_pandas(self) -> Any:
        """Return the columns as a pandas DataFrame; raise InvalidInput if pandas is not
        installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise InvalidInput("to_pandas needs pandas: pip install pandas") from None
        return pd.DataFrame(dict(self.columns))

    def plot(self, axes: Any = None) -> Any:
        """Draw a bar for each line, or the steps of a CDF, with intervals if there are error bars,
        and return matplotlib's axes.

        The first column of numbers is drawn: counts, sums, means or quantiles. `axes`: where to
        draw; by default a new figure. Needs the extra `plot`; raises InvalidInput if it is not
        installed, and if `axes` are no axes of matplotlib.
        """
        numbers = self._numbers
        title, values = next(iter(numbers.items()))
        ends = (numbers["low"], numbers["high"]) if "low" in numbers else None
        texts = [name for name in self.columns if name not in numbers and name != "note"]
        groups = [list(map(str, self.columns[name])) for name in texts]
        steps = groups.pop() if self.curve else []
        lines = list(map(", ".join, zip(*groups, strict=True))) or ["all"] * len(values)
        if self.curve:
            axes = plots.steps(axes, lines, steps, values, ends)
            axes.set_ylabel(plots.plain(title))
        else:
            axes = plots.bars(axes, lines, values, ends)
            axes.set_xlabel(plots.plain(title))
        return axes

    def _repr_html_(self) -> str:
        texts, numbers = self.texts(), self._numbers
        rows = list(zip(*texts.values(), strict=True))
        shown = html.table(
            list(texts),
            rows[: html.MOST_BARS],
            numbers=[place for place, name in enumerate(texts) if name in numbers],
            caption=html.more_rows(len(rows)).removeprefix("; "),
            filled={p: numbers[n] for p, n in enumerate(texts) if n == "share" and n in numbers},
        )
        notes = (f"<p><small>{html.escape(note)}</small></p>" for note in self.notes)
        return "".join([shown, *notes])


def ask(
    model: Answering, schema: Schema, text: str, *, bars: Bars | None = None, level: float = 0.95
) -> Reply:
    """Return the model's reply: a line for each combination of the grouped columns' values.

    The reply's `count` is the expected number of records. Its `share` is the share of the records
    that meet the conditions or, with groups on both sides of the bar, of those in the same groups
    behind it. For a question without groups it is the share of all records, and for a cdf that of
    the group's records that have a value, which is neither missing nor special. A share of no
    records is 0.

    A sum, mean, median or quantile is over the values in each group that are neither missing nor
    special, and `count` is the number of records that have one. Without such records a sum is 0,
    and a mean, median or quantile is NaN. In sums and means every value of a bin counts as the
    bin's middle; in quantiles the values of a bin are taken as evenly spread. A quantile is the
    smallest value that at least the asked share of the records do not exceed.

    With `bars`, counts and sums get a standard error and an interval that covers with probability
    `level`; for a mean, median or quantile these refer to the mean, median or quantile itself. The
    standard error of a quantile with an interval in closed form follows from the interval's length;
    if that has few values, the real one may be up to twice as large.
    The column `note` says "unreliable" if the standard error of a count or sum is above a third of
    that count or sum. A mean, median or quantile is unreliable if the count beside it is, or if the
    interval of this count contains 0. It is also unreliable if its standard error is above a third
    of the standard deviation of the group's values, unless its interval is exactly one bin of the
    schema.

    Raises InvalidInput for a question that cannot be read, is about columns or values that the
    schema does not have, or has conditions that leave no value.

    >>> from pgmkit import Measurement, estimate
    >>> from pgmkit import Categorical, Integer, Schema
    >>> schema = Schema({"age": Integer(0, 1), "sex": Categorical(("F", "M"))})
    >>> noisy = [Measurement(("age", "sex"), [[10.0, 20.0], [30.0, 40.0]], 1.0)]
    >>> print(ask(estimate(schema.domain, noisy, total=100), schema, "sex | age = 1"))
    sex  count  share
    F    30     0.4286
    M    40     0.5714
    (share: of the 70 records that meet the conditions)
    """
    for name, value, method in (("model", model, "answer"), ("bars", bars, "statistic")):
        if not hasattr(value, method) and not (value is None and name == "bars"):
            raise InvalidInput(f"{name} must have a method {method}, got {type(value).__name__}")
    plan = QuestionPlan(schema, parse(instance(schema, Schema, "schema"), text))
    summary, notes = plan.question.summary, plan.on_ends()
    if summary is None:
        reply = _table(model, plan, bars, level)
        return replace(reply, notes=(*reply.notes, *notes))
    left_out = float(model.answer(plan.absent()).sum()) if plan.leaves_out else 0.0
    if round(left_out):
        notes.append(f"records left out without a value of {summary.column}: {left_out:.0f}")
    reply = _REPLIES[summary.kind](model, plan, bars, level)
    return replace(reply, notes=(*notes, *reply.notes))


def _table(model: Answering, plan: QuestionPlan, bars: Bars | None, level: float) -> Reply:
    """Return the counts of the groups' combinations among the records that meet the conditions, and
    their shares of these records or, if some but not all groups are behind the bar, of those with
    the same groups there. Without groups, return the count of these records and their share of all.
    """
    query = plan.counted()
    counts = model.answer(query).reshape(-1)
    whole = float(model.answer(plan.met() if plan.groups else FactoredQuery({})).sum())
    columns: dict[str, Any] = {**_labelled(plan.groups), "count": counts}
    notes: tuple[str, ...] = ()
    outer = list(plan.groups)[: plan.question.within]
    if 0 < len(outer) < len(plan.groups):
        lines = counts.reshape(math.prod(len(plan.groups[name]) for name in outer), -1)
        wholes = np.repeat(lines.sum(axis=1), lines.shape[1])
        notes = (f"share: of the records of the same {', '.join(outer)}",)
    else:
        wholes = np.full(len(counts), whole)
        if plan.question.allowed:
            met = f"the {whole:.0f} records that meet the conditions"
            notes = (f"share: of {met if plan.groups else f'all {whole:.0f} records'}",)
    columns["share"] = np.divide(counts, wholes, out=np.zeros_like(counts), where=wholes > 0)
    return _counted(Reply(columns, notes), counts, query, bars, level)


def _curve(model: Answering, plan: QuestionPlan, bars: Bars | None, level: float) -> Reply:
    """Return the reply with, for each group and each code of the summarised column, the number of
    records with values up to and including that code's, and their share of the group's records that
    have a value.
    """
    counts = plan.tables(model).cumsum(axis=1)
    ends = counts[:, -1:]
    own = [f"up to {plan.column.labels[code]}" for code in plan.codes]
    columns: dict[str, Any] = _labelled({**plan.groups, plan.summary.column: own})
    columns["count"] = counts.reshape(-1)
    shares = np.divide(counts, ends, out=np.zeros_like(counts), where=ends > 0)
    columns["share"] = shares.reshape(-1)
    reply, query = Reply(columns, curve=True), plan.by_code()
    return _counted(reply, columns["count"], query, bars, level, cumulative=True)


def _sums(model: Answering, plan: QuestionPlan, bars: Bars | None, level: float) -> Reply:
    query = plan.weighted(plan.rows(plan.middles[None, :]))
    sums, tables = model.answer(query).reshape(-1), plan.tables(model)
    columns: dict[str, Any] = {**_labelled(plan.groups), plan.summary.title: sums}
    columns["count"] = tables.sum(axis=1)
    notes = _of_middles(plan, tables @ plan.half_widths)
    return _counted(Reply(columns, notes), np.abs(sums), query, bars, level)


def _averages(model: Answering, plan: QuestionPlan, bars: Bars | None, level: float) -> Reply:
    """Return the reply with the mean, median or quantile of each group, the number of records from
    which it is computed and, with `bars`, its standard error and interval.
    """

    def both(tables: Array) -> Array:
        return np.stack([average(plan, tables), tables.sum(axis=1)])

    tables = plan.tables(model)
    values, counts = both(tables)
    spread = deviations(plan, tables)
    columns: dict[str, Any] = {**_labelled(plan.groups), plan.summary.title: values}
    columns["count"] = counts
    notes: tuple[str, ...] = ()
    found = None if bars is None else average_bars(plan, bars, values, counts, level)
    if plan.summary.kind == "mean":
        within = tables @ plan.half_widths
        notes = _of_middles(plan, np.divide(within, counts, out=within, where=counts > 0))
    elif found is None:  # intervals in closed form end where bins end, and need no note
        low, high = plan.ends()
        away = np.maximum(values[:, None] - low, high - values[:, None])
        notes = _of_middles(plan, np.where(away <= high - low, away, np.inf).min(axis=1))
    if bars is None:
        return Reply(columns, notes)
    if found is None:
        found = bars.statistic(lambda each: both(plan.tables(each)), level=level)
    stddev, of_counts = found.stddev
    bins = np.stack(plan.ends())[..., None]
    low, high = np.clip([found.low[0], found.high[0]], bins[0].min(), bins[1].max())
    ends = {"stderr": stddev, "low": low, "high": high}
    wide = ~(stddev <= UNRELIABLE * spread) & ~(stddev == 0.0)
    # True for a group whose interval is exactly one bin, and so as narrow as the schema allows.
    one = (np.stack([low, high])[:, None] == bins).all(axis=0).any(axis=0)
    if (wide & one).any():
        said = (
            f"{int((wide & one).sum())} of {len(one)} intervals are a bin of "
            f"{plan.summary.column}, which is no effect of noise; narrower bins in the schema "
            "would tell more"
        )
        notes = (*notes, said)
    # A group that may have no records, as far as the noise shows, is unreliable too, but not one
    # that the constraints leave no records.
    weak = (wide & ~one) | ~(of_counts <= UNRELIABLE * counts) | ~(found.low[1] > 0)
    weak &= found.high[1] != 0
    return _with_bars(Reply(columns, notes), ends, weak, found.method)


_REPLIES = {"cdf": _curve, "sum": _sums, **dict.fromkeys(("mean", "median", "quantile"), _averages)}
"""The function that makes the reply to each kind of summary."""


def _of_middles(plan: QuestionPlan, away: Array) -> tuple[str, ...]:
    """Return a note if the answer may be off because sums and averages take values for the middles
    of their bins, and quantiles take them for evenly spread in their bins. Otherwise the result is
    empty. `away` has the largest possible difference for each line of the answer.
    """
    most = away.max(initial=0.0, where=np.isfinite(away))
    if not most > 0:
        return ()
    clipped = plan.column.outside == "clip"
    how = "the middles of" if plan.summary.kind in ("sum", "mean") else "evenly spread in"
    return (
        f"values count as {how} their bins, by which {plan.summary.title} may be off by "
        f"up to {most:.3g}, beside the noise"
        + "; values beyond the column's ends count in its outer bins, and may add to that"
        * clipped,
    )


def _counted(
    reply: Reply,
    sizes: Array,
    query: FactoredQuery,
    bars: Bars | None,
    level: float,
    *,
    cumulative: bool = False,
) -> Reply:
    """Return the reply with intervals for its first column of numbers, which holds the answers to
    `query`, or their sums if it is `cumulative` (`pgmkit.Uncertainty.answer`). A line is marked as
    unreliable if its standard error is above a third of its entry of `sizes`, or NaN. Without
    `bars`, the reply is returned as it is.
    """
    if bars is None:
        return reply
    found = bars.answer(query, level=level, cumulative=cumulative)
    parts = {"stderr": found.stddev, "low": found.low, "high": found.high}
    ends = {name: np.asarray(values).reshape(-1) for name, values in parts.items()}
    return _with_bars(reply, ends, ~(ends["stderr"] <= UNRELIABLE * sizes), found.method)


def _with_bars(
    reply: Reply, ends: Mapping[str, Array], weak: NDArray[np.bool_], method: str
) -> Reply:
    """Return the reply with standard errors and intervals (`ends`) directly behind the first column
    of numbers, to which they belong, and with a column "note" that marks the unreliable lines
    (`weak`), if there are any. If the intervals' `method` is "bootstrap", a note names the error
    that they do not include. Otherwise a note says why some answers lie near an end of their
    intervals, if any do (`_near_an_end`).
    """
    named = list(reply.columns.items())
    place, answers = next(
        (i, each) for i, (_, each) in enumerate(named, 1) if isinstance(each, np.ndarray)
    )
    columns, notes = dict([*named[:place], *ends.items(), *named[place:]]), list(reply.notes)
    if weak.any():
        columns["note"] = ["unreliable" if each else "" for each in weak]
        notes.append(
            f"UNRELIABLE: {int(weak.sum())} of {len(weak)} lines are mostly noise: the standard "
            "error is above a third of the count or sum or, for an average, of the spread of the "
            "values; combine values or drop conditions"
        )
    if method == "bootstrap":
        notes.append(
            "the intervals cover the effect of noise on the model, but not the model's own error "
            "about columns that were not measured together; true values may lie far outside"
        )
    elif _near_an_end(answers, ends["low"], ends["high"]).any():
        notes.append(
            "answers are the model's, and intervals are those of the noisy table; some answers lie "
            "near an end of theirs"
        )
    return replace(reply, columns=columns, notes=tuple(notes))


def _near_an_end(answers: Array, low: Array, high: Array) -> NDArray[np.bool_]:
    """Return a Boolean for each answer: True if it is in an outer eighth of its interval or beyond
    it. The lower eighth does not count if the interval begins at 0, below which there are no
    counts.
    """
    margin = np.where(np.isfinite(high - low), high - low, 0.0) / 8
    return np.asarray((answers < low + margin) & (low != 0) | (answers > high - margin))


def _labelled(shown: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return each column's labels for every combination of them; those of the last column change
    fastest.
    """
    lines = list(itertools.product(*shown.values()))
    # A column of the data that has the name of a computed one, such as count, is in quotes.
    titles = (f'"{name}"' if name in _COMPUTED else name for name in shown)
    return {title: [line[i] for line in lines] for i, title in enumerate(titles)}
