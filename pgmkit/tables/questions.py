"""Questions in words, answered by a model with a schema: tables, CDFs, sums, means, quantiles.

The grammar is in `pgmkit.tables.question_grammar`. In a table missing values are values of their
own. Every summary (cdf, sum, mean, median, quantile) leaves them out, as pandas and SQL do, and the
reply says how many.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pgmkit.queries import FactoredQuery, identity
from pgmkit.tables.bins import Binned
from pgmkit.tables.question_grammar import Question, parse
from pgmkit.tables.reply import Reply

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgmkit.model import GraphicalModel
    from pgmkit.tables.columns import Column
    from pgmkit.tables.schema import Schema
    from pgmkit.uncertainty import Interval

    Array = NDArray[np.float64]

__all__ = ["UNRELIABLE", "ask"]

UNRELIABLE = 1 / 3
"""The largest standard error, as a share of a count or of the standard deviation of what a mean
averages, that is not called unreliable. Statistics Canada's guidelines suppress estimates with
coefficients of variation above 33.3%.
"""
_ROUNDING = float(np.finfo(np.float64).eps) ** 0.5
"""The share of the records up to which a sum counts as zero; the rounding of very many cells is
less.
"""
_COMPUTED = ("count", "share", "stderr", "low", "high", "note")


class Answering(Protocol):
    """A model, or one of its replicates."""

    def answer(self, query: FactoredQuery) -> Array: ...


class Bars(Protocol):
    """Error bars of factored queries, and of any other function of a model."""

    def answer(self, query: FactoredQuery, *, level: float = 0.95) -> Interval: ...
    def statistic(
        self, function: Callable[[GraphicalModel], Any], *, level: float = 0.95
    ) -> Interval: ...


def ask(
    model: Answering,
    schema: Schema,
    text: str,
    *,
    bars: Bars | None = None,
    level: float = 0.95,
) -> Reply:
    """Return the model's reply: a line for each combination of the grouped columns' values.

    The reply's `count` is the expected number of records. Its `share` refers to the records that
    meet the conditions; for `count` alone to all records; for a cdf to the group's records whose
    value is not missing. A sum, mean, median or quantile is over the values in each group that are
    not missing. Bins count at their middles in sums and means, and as evenly filled in quantiles
    (the smallest value that at least this share of the records do not exceed).

    With `bars`, counts and sums get a standard error and an interval; for a mean, median or
    quantile these refer to the mean, median or quantile itself. `note` says "unreliable" if the
    standard error is above a third of a count, or of the standard deviation of the values averaged.

    >>> from pgmkit import Measurement, estimate
    >>> from pgmkit.tables.schema import Categorical, Integer, Schema
    >>> schema = Schema({"age": Integer(0, 1), "sex": Categorical(("F", "M"))})
    >>> noisy = [Measurement(("age", "sex"), [[10.0, 20.0], [30.0, 40.0]], 1.0)]
    >>> print(ask(estimate(schema.domain, noisy, total=100), schema, "sex | age = 1"))
    sex  count  share
    F    30     0.4286
    M    40     0.5714
    (share: of the 70 records that meet the conditions)
    """
    plan = _Plan(schema, parse(schema, text))
    summary = plan.question.summary
    if summary is None:
        return _table(model, plan, bars, level)
    left_out = float(model.answer(plan.absent()).sum()) if plan.leaves_out else 0.0
    notes = (
        [f"left out: {left_out:.6g} records without a value of {summary.column}"]
        if plan.leaves_out
        else []
    )
    made = _curve if summary.kind == "cdf" else _sums if summary.kind == "sum" else _averages
    reply = made(model, plan, bars, level)
    return Reply(reply.columns, (*notes, *reply.notes), summary.kind == "cdf")


class _Plan:
    """A question with its schema: the factors of its queries and the labels of its lines."""

    def __init__(self, schema: Schema, question: Question) -> None:
        self.question = question
        self.columns = schema.columns
        self.groups: dict[str, Sequence[str]] = {}
        self.factors: dict[str, Array] = {}
        for name in question.groups:
            kept = self._allowed(name)
            labels = schema.columns[name].labels
            self.groups[name] = [text for text, keep in zip(labels, kept, strict=True) if keep]
            self.factors[name] = identity(len(kept))[kept]
        for name, mask in question.allowed.items():
            if name not in self.factors:
                self.factors[name] = mask[None, :].astype(np.float64)
        if question.summary is not None:
            self.column: Column = schema.columns[question.summary.column]
            self.codes = self._codes(question.summary.column)

    def _allowed(self, name: str) -> NDArray[np.bool_]:
        return self.question.allowed.get(name, np.ones(self.columns[name].size, dtype=bool))

    def _codes(self, name: str) -> NDArray[np.intp]:
        """Return the summarised column's codes that count, in the order of their values."""
        column = self.columns[name]
        codes = np.flatnonzero(self._allowed(name) & _present(column))
        if column.midpoints is None:
            return codes
        codes = codes[~np.isnan(column.midpoints[codes])]
        return codes[np.argsort(column.midpoints[codes], kind="stable")]

    @property
    def leaves_out(self) -> bool:
        """True if records can meet the conditions without having a value to summarise."""
        assert self.question.summary is not None
        return int(self._allowed(self.question.summary.column).sum()) > len(self.codes)

    def counted(self) -> FactoredQuery:
        """Return the query for the number of records in each group."""
        return FactoredQuery(self.factors)

    def met(self) -> FactoredQuery:
        """Return the query for the number of all records that meet the conditions."""
        masks = self.question.allowed.items()
        return FactoredQuery({name: mask[None, :].astype(np.float64) for name, mask in masks})

    def absent(self) -> FactoredQuery:
        """Return the query for the number of records in each group whose value is left out."""
        assert self.question.summary is not None
        name = self.question.summary.column
        mask = self._allowed(name).astype(np.float64)
        mask[self.codes] = 0.0
        return self.weighted(mask[None, :])

    def weighted(self, rows: Array) -> FactoredQuery:
        """Return the query that sums the summarised column's codes in each group, with weights
        (sums, codes).
        """
        assert self.question.summary is not None
        own = self.question.summary.column
        order = [*self.groups, *(n for n in self.factors if n not in self.groups and n != own)]
        return FactoredQuery({name: self.factors[name] for name in order} | {own: rows})

    def rows(self, matrix: Array) -> Array:
        """Return weights of the codes that count as weights of all codes, with zeros for the
        others.
        """
        spread = np.zeros((len(matrix), self.column.size))
        spread[:, self.codes] = matrix
        return spread

    def tables(self, model: Answering) -> Array:
        """Return the counts, shape (groups, codes that count)."""
        query = self.weighted(self.rows(np.eye(len(self.codes))))
        return np.maximum(model.answer(query).reshape(-1, len(self.codes)), 0.0)


def _present(column: Column) -> NDArray[np.bool_]:
    """Return a Boolean for each code: True if it stands for a value, False for missing ones."""
    present = np.ones(column.size, dtype=bool)
    present[column.size - (column.missing is not None) :] = False
    return present


def _table(model: Answering, plan: _Plan, bars: Bars | None, level: float) -> Reply:
    """Return the counts of the groups' combinations; without groups, of all records that meet the
    conditions.
    """
    query = plan.counted()
    counts = model.answer(query).reshape(-1)
    whole = float(model.answer(plan.met() if plan.groups else FactoredQuery({})).sum())
    columns: dict[str, Any] = {**_labelled(plan.groups), "count": counts}
    columns["share"] = counts / whole if whole > 0 else np.zeros_like(counts)
    notes = []
    if plan.question.allowed:
        met = f"the {whole:.6g} records that meet the conditions"
        notes = [f"share: of {met if plan.groups else f'all {whole:.6g} records'}"]
    return _with_bars(columns, notes, counts, bars, lambda b: b.answer(query, level=level))


def _curve(model: Answering, plan: _Plan, bars: Bars | None, level: float) -> Reply:
    """Return the records with values up to and including each value, and their share within the
    group.
    """
    steps = len(plan.codes)
    query = plan.weighted(plan.rows(np.tri(steps)))
    counts = model.answer(query).reshape(-1, steps)
    ends = counts[:, -1:]
    assert plan.question.summary is not None
    own = [f"up to {plan.column.labels[code]}" for code in plan.codes]
    columns: dict[str, Any] = _labelled({**plan.groups, plan.question.summary.column: own})
    columns["count"] = counts.reshape(-1)
    columns["share"] = np.divide(counts, ends, out=np.zeros_like(counts), where=ends > 0).reshape(
        -1
    )
    return _with_bars(columns, [], columns["count"], bars, lambda b: b.answer(query, level=level))


def _sums(model: Answering, plan: _Plan, bars: Bars | None, level: float) -> Reply:
    middles = plan.column.midpoints
    assert plan.question.summary is not None and middles is not None
    query = plan.weighted(plan.rows(middles[plan.codes][None, :]))
    sums = model.answer(query).reshape(-1)
    columns: dict[str, Any] = {**_labelled(plan.groups), plan.question.summary.title: sums}
    columns["count"] = plan.tables(model).sum(axis=1)
    return _with_bars(columns, [], np.abs(sums), bars, lambda b: b.answer(query, level=level))


def _averages(model: Answering, plan: _Plan, bars: Bars | None, level: float) -> Reply:
    """Return means, medians or quantiles, with the number of records they are computed from."""
    assert plan.question.summary is not None

    def both(each: Answering) -> Array:
        tables = plan.tables(each)
        return np.stack([_average(plan, tables), tables.sum(axis=1)])

    values, counts = both(model)
    spread = _deviations(plan, plan.tables(model))
    columns: dict[str, Any] = {**_labelled(plan.groups), plan.question.summary.title: values}
    columns["count"] = counts
    if bars is None:
        return Reply(columns)
    found = bars.statistic(both, level=level)
    columns |= {"stderr": found.stddev[0], "low": found.low[0], "high": found.high[0]}
    weak = ~(found.stddev[0] <= UNRELIABLE * spread) & ~(found.stddev[0] == 0.0)
    weak |= ~(found.stddev[1] <= UNRELIABLE * counts)
    return Reply(*_judged(columns, weak, found.method))


def _average(plan: _Plan, tables: Array) -> Array:
    summary, middles = plan.question.summary, plan.column.midpoints
    assert summary is not None and middles is not None
    if summary.kind != "mean":
        return _quantiles(plan.column, plan.codes, tables, summary.level)
    sizes = tables.sum(axis=1)
    sums = tables @ middles[plan.codes]
    return np.divide(sums, sizes, out=np.full_like(sums, np.nan), where=sizes > 0)


def _deviations(plan: _Plan, tables: Array) -> Array:
    """Return the standard deviation of the values in each group, with bins at their middles."""
    assert plan.column.midpoints is not None
    middles, sizes = plan.column.midpoints[plan.codes], tables.sum(axis=1)
    shares = np.divide(tables, sizes[:, None], out=np.zeros_like(tables), where=sizes[:, None] > 0)
    centred = middles[None, :] - (shares @ middles)[:, None]
    return np.sqrt((shares * centred**2).sum(axis=1))


def _quantiles(column: Column, codes: NDArray[np.intp], tables: Array, level: float) -> Array:
    """Return for each row the smallest value that at least the share `level` does not exceed.

    NaN if there are no records. Within a bin the values are taken as evenly spread: over its whole
    numbers, or continuously.
    """
    assert column.midpoints is not None
    low, high = column.midpoints.copy(), column.midpoints.copy()
    if isinstance(column, Binned):
        bins = len(column.positions) - 1
        low[:bins], high[:bins] = column.positions[:-1], column.positions[1:]
    low, width = low[codes], (high - low)[codes]
    sizes = tables.sum(axis=1)
    goals = level * sizes
    tiny = _ROUNDING * sizes[:, None]
    reached = (np.cumsum(tables, axis=1) >= goals[:, None] - tiny) & (tables > tiny)
    place = np.argmax(reached, axis=1)
    lines = np.arange(len(tables))
    before = np.cumsum(tables, axis=1)[lines, place] - tables[lines, place]
    own = np.where(sizes > 0, tables[lines, place], 1.0)
    into = np.clip((goals - before) / own, 0.0, 1.0) * width[place]
    if isinstance(column, Binned) and column.whole:
        into = np.maximum(np.ceil(into - _ROUNDING * width[place]) - 1.0, 0.0)
    return np.where(sizes > 0, low[place] + into, np.nan)


def _with_bars(
    columns: dict[str, Any],
    notes: list[str],
    sizes: Array,
    bars: Bars | None,
    interval: Callable[[Bars], Interval],
) -> Reply:
    """Return the reply with intervals for its first numbers, which are counts or sums."""
    if bars is None:
        return Reply(columns, tuple(notes))
    found = interval(bars)
    parts = {"stderr": found.stddev, "low": found.low, "high": found.high}
    columns |= {name: values.reshape(-1) for name, values in parts.items()}
    weak = ~(found.stddev.reshape(-1) <= UNRELIABLE * sizes)
    judged, said = _judged(columns, weak, found.method)
    return Reply(judged, (*notes, *said))


def _judged(
    columns: dict[str, Any], weak: NDArray[np.bool_], method: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Add a column "note" that marks the unreliable lines, if there are any, and return the columns
    and the notes below the table. For "bootstrap" one of these says what the intervals leave out.
    """
    notes = []
    if weak.any():
        columns["note"] = ["unreliable" if each else "" for each in weak]
        notes.append(
            f"UNRELIABLE: {int(weak.sum())} of {len(weak)} lines are mostly noise, with a standard "
            "error above a third of their size; combine values or drop conditions"
        )
    if method == "bootstrap":
        notes.append(
            "the intervals hold what noise did to the model, not the model's own error where these "
            "columns were not measured together"
        )
    return columns, tuple(notes)


def _labelled(shown: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return each column's labels for every combination, in C order."""
    lines = list(itertools.product(*shown.values()))
    return {title: [line[i] for line in lines] for i, title in enumerate(_titles(shown))}


def _titles(names: Mapping[str, object]) -> Iterator[str]:
    """Yield the names of the data's columns, in quotes if the reply has a number column of that
    name.
    """
    for name in names:
        yield f'"{name}"' if name in _COMPUTED else name
