"""A question with its schema: the queries that its reply is computed from, and their labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.linear.matrix import Matrix, rows_of_identity
from pgmkit.model import GraphicalModel
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arrays import Array
from pgmkit.tables.bins import Binned
from pgmkit.tables.columns import Column
from pgmkit.tables.numbers import Numbers
from pgmkit.tables.question_grammar import Question, parse
from pgmkit.tables.schema import Schema
from pgmkit.tables.summaries import SUMMARIES, Summary
from pgmkit.uncertainty import Interval


class Answering(Protocol):
    """A model, or a bootstrap replicate of one, that answers factored queries in counts."""

    def answer(self, query: FactoredQuery) -> Array: ...


class Bars(Protocol):
    """Error bars of factored queries, and of any other function of a model."""

    def answer(
        self, query: FactoredQuery, *, level: float = 0.95, cumulative: bool = False
    ) -> Interval: ...
    def statistic(
        self, function: Callable[[GraphicalModel], Any], *, level: float = 0.95
    ) -> Interval: ...


class QuestionPlan:
    """A question with its schema: the factors of its queries and the labels of its lines.

    Attributes of the plan are `groups` (a mapping from the title of each grouped column, which is
    the name of the column or of the level that is asked for, to the labels of its cells) and
    `factors` (a 0/1 matrix of shape (cells, codes) for each column with groups or conditions; a
    column with conditions alone has one cell). If the question has a summary, there are also
    `column` (the column that is summarised) and `codes` (the codes of that column from which the
    summary is computed, in the order of their values). Raises InvalidInput if there are no such
    codes.
    """

    def __init__(self, schema: Schema, question: Question) -> None:
        self.question = question
        self.columns, self.levels = schema.columns, schema.groups
        self.groups: dict[str, Sequence[str]] = {}  # the labels of cells by title
        self.factors: dict[str, Matrix] = {}
        for name in question.groups:
            title, labels, self.factors[name] = self._cells(name)
            self.groups[title] = labels
        for name, mask in question.allowed.items():
            if name not in self.factors:
                self.factors[name] = mask[None, :].astype(np.float64)
        if question.summary is not None:
            self.column: Column = schema.columns[question.summary.column]
            self.codes = self._codes(question.summary.column)
            if not len(self.codes):
                raise InvalidInput(
                    f"the conditions leave no value of {question.summary.column!r} to summarise"
                )

    def _allowed(self, name: str) -> NDArray[np.bool_]:
        every: NDArray[np.bool_] = np.ones(self.columns[name].size, dtype=bool)
        return self.question.allowed.get(name, every)

    def _cells(self, name: str) -> tuple[str, Sequence[str], Matrix]:
        """Return the title of a grouped column, the labels of its cells, and a 0/1 matrix of shape
        (cells, codes), whose entry is 1 if the code is in the cell and the conditions allow it.
        Cells of which the conditions allow no code are left out.
        """
        kept, column = self._allowed(name), self.columns[name]
        joined = self.question.steps.get(name)
        if joined is None:
            labels = [text for text, keep in zip(column.labels, kept, strict=True) if keep]
            return name, labels, rows_of_identity(np.flatnonzero(kept), len(kept))
        if isinstance(joined, str):
            title, every = joined, self.levels[joined].column.labels
            rows = self.levels[joined].members() & kept
        else:
            steps, codes = column.steps(joined), np.arange(column.size)
            title, every = name, tuple(label for label, _, _ in steps)
            rows = np.array([(start <= codes) & (codes < stop) & kept for _, start, stop in steps])
        some = np.flatnonzero(rows.any(axis=1))
        labels = [every[place] for place in some]
        return title, labels, rows[some].astype(np.float64)

    def _codes(self, name: str) -> NDArray[np.intp]:
        """Return the codes that a summary of the column is computed from, in the order of their
        values: those that the conditions allow, without missing and special values and, in a list
        of numbers, `other`.
        """
        column = self.columns[name]
        present = column.size - (column.missing is not None)
        if isinstance(column, Binned):  # special values have the codes after the bins
            present = len(column.bin_labels)
        codes = np.flatnonzero(self._allowed(name)[:present])
        if column.midpoints is None:
            return codes
        codes = codes[~np.isnan(column.midpoints[codes])]
        return codes[np.argsort(column.midpoints[codes], kind="stable")]

    @property
    def summary(self) -> Summary:
        """The summary of a question that has one."""
        assert self.question.summary is not None
        return self.question.summary

    @cached_property
    def middles(self) -> Array:
        """The middle of the values of each code in `codes`, for a column of numbers."""
        assert self.column.midpoints is not None
        return self.column.midpoints[self.codes]

    @property
    def half_widths(self) -> Array:
        """For each code in `codes`, the largest distance of one of its values from its middle."""
        low, high = self.ends()
        away = np.maximum(self.middles - low, high - self.middles)
        return np.where(np.isclose(away, 0.0, atol=1e-9 * np.abs(self.middles)), 0.0, away)

    @property
    def leaves_out(self) -> bool:
        """True if records can meet the conditions without having a value to summarise."""
        return int(self._allowed(self.summary.column).sum()) > len(self.codes)

    def on_ends(self) -> list[str]:
        """Return a note for each column of real numbers whose condition ends where two bins meet,
        neither of which is a single value: values that lie exactly there belong to the upper one,
        whether `<` or `<=` was asked for.
        """
        notes = []
        for name, mask in self.question.allowed.items():
            column = self.columns[name]
            if isinstance(column, Binned) and not column.whole:
                bins, one = mask[: len(column.single)], column.single
                between = (bins[1:] != bins[:-1]) & ~one[1:] & ~one[:-1]
                ends = ", ".join(f"{end:.15g}" for end in column.positions[1:-1][between])
                if ends:
                    notes.append(f"a value of {name} that is exactly {ends} counts as above it")
        return notes

    def counted(self) -> FactoredQuery:
        """Return the query for the number of records that meet the conditions in each group."""
        return FactoredQuery(self.factors)

    def met(self) -> FactoredQuery:
        """Return the query for the number of all records that meet the conditions."""
        masks = self.question.allowed.items()
        return FactoredQuery({name: mask[None, :].astype(np.float64) for name, mask in masks})

    def absent(self) -> FactoredQuery:
        """Return the query for the number of records in each group that meet the conditions, but
        whose value in the summarised column has none of the `codes`: a missing or special one or,
        in a list of numbers, `other`.
        """
        mask = self._allowed(self.summary.column).astype(np.float64)
        mask[self.codes] = 0.0
        return self.weighted(mask[None, :])

    def weighted(self, rows: Matrix) -> FactoredQuery:
        """Return the query for weighted sums over the summarised column, in each group, of the
        records that meet the conditions on all other columns. `rows` has the shape (sums, codes): a
        weight for each of the column's codes.
        """
        own, groups = self.summary.column, self.question.groups
        order = [*groups, *(n for n in self.factors if n not in groups and n != own)]
        return FactoredQuery({name: self.factors[name] for name in order} | {own: rows})

    def rows(self, matrix: Array) -> Array:
        """Return weights for all codes of the summarised column, in the shape (sums, codes). They
        are those of `matrix` for the codes in `codes`, one column each, and 0 for all others.
        """
        spread = np.zeros((len(matrix), self.column.size))
        spread[:, self.codes] = matrix
        return spread

    def spans(self) -> tuple[Array, Array, Array]:
        """Return three arrays with an entry for each code in `codes`: its lowest value, its highest
        value, and how many values the column can have in an interval of length 1, where 0 stands
        for all real numbers (`ends_of_bins`). For a Categorical, both ends are the value itself,
        and the number is 0.
        """
        if not isinstance(self.column, Numbers):
            return self.middles, self.middles, np.zeros(len(self.codes))
        low, high, in_unit = np.stack(self.column.ends_of_bins)[:, self.codes]
        return low, high, in_unit

    def ends(self) -> tuple[Array, Array]:
        """Return the lowest and the highest value of each code in `codes`. The last bin of real
        numbers contains its upper end, which is its highest value.
        """
        low, high, _ = self.spans()
        if isinstance(self.column, Numbers) and not self.column.whole:
            ends = self.column.positions
            high = np.where(self.codes == len(ends) - 2, ends[-1], high)
        return low, high

    def tables(self, model: Answering) -> Array:
        """Return the model's counts with a row for each combination of the groups' cells and a
        column for each code in `codes`. Counts of noisy tables that no model was fitted to may be
        negative.
        """
        return model.answer(self.by_code()).reshape(-1, len(self.codes))

    def by_code(self) -> FactoredQuery:
        """Return the query for the number of records with each of the `codes`, in each group."""
        return self.weighted(rows_of_identity(self.codes, self.column.size))


@dataclass(frozen=True)
class LinearParts:
    """A question and the linear query that its reply is computed from.

    Attributes:
        question: The question.
        query: The query, whose axes are the grouped columns, the columns with conditions and the
            summarised column.
        unit: The factor that converts the answers to the column's unit. It differs from 1 only for
            sums and means, whose weights are scaled so that the largest, without its sign, is 1.
        shown: The places along the last axis of the answers that the reply shows; the others are
            numbers of records that it needs.
    """

    question: Question
    query: FactoredQuery
    unit: float = 1.0
    shown: slice = field(default_factory=lambda: slice(None))


def linear_parts(schema: Schema, text: str) -> LinearParts:
    """Return a question with the linear query that its reply is computed from.

    A table needs its cells; a cdf, a median or a quantile the cumulative counts; a sum the weighted
    sum; a mean the number of records and the weighted sum of the values' distances from the
    midpoint between the lowest and the highest value that the conditions leave. The weights of sums
    and means are divided by `unit`. Where records without a value are left out, their number is
    needed too.

    Raises InvalidInput as `parse` does, for conditions that leave no value to summarise, and for
    the sum of values that are all 0 (bins count at their middles).

    >>> from pgmkit import Categorical, Integer, Schema
    >>> schema = Schema({"age": Integer(0, 2), "sex": Categorical(("F", "M"))})
    >>> linear_parts(schema, "mean(age) | sex").query.factors["age"]
    array([[ 1.,  1.,  1.],
           [-1.,  0.,  1.]])
    """
    question = parse(schema, text)
    plan = QuestionPlan(schema, question)
    if question.summary is None:
        return LinearParts(question, plan.counted())
    count = len(plan.codes)
    kind, unit, shown, weights = question.summary.kind, 1.0, slice(0, count), np.tri(count)
    if SUMMARIES[kind].weighted:
        values = plan.middles
        if kind == "mean":
            values = values - (values.min() + values.max()) / 2
        unit = float(np.abs(values).max()) or 1.0
        if kind == "sum" and not values.any():
            raise InvalidInput(
                f"{text!r}: every value that is left is 0, and so is the sum; ask for the count"
            )
        weights, shown = values[None, :] / unit, slice(0, 1)
        if kind == "mean":
            weights, shown = np.vstack([np.ones(count), weights]), slice(1, 2)
    rows = plan.rows(weights)
    if plan.leaves_out:
        rows = np.vstack([rows, plan.absent().factors[question.summary.column]])
    return LinearParts(question, plan.weighted(rows), unit, shown)
