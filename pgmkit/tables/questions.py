"""Questions in words: "income | age in 30..44, sex = F" asked of a model with a schema.

    question    =  targets [ "|" conditions ]
    targets     =  target { "," target }           target     =  column | cdf(column) | mean(column)
    conditions  =  condition { "," condition }     condition  =  column "=" value
                                                              |  column "!=" value
                                                              |  column "in" low..high
                                                              |  column "in" { value, ... }
                                                              |  column ("<" "<=" ">" ">=") value

`count` as the only target asks for the number of records. At most one target may be a cdf or a
mean. Values with commas or blanks at their ends stand in double quotes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.queries import FactoredQuery, identity, prefix
from pgmkit.tables.constraints import codes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgmkit.model import GraphicalModel
    from pgmkit.tables.schema import Schema
    from pgmkit.uncertainty import Interval

__all__ = ["Question", "Reply", "ask", "conditions", "parse"]

_TARGET = re.compile(r"^(?:(cdf|mean)\s*\(\s*(.+?)\s*\)|(.+))$")
_CONDITION = re.compile(r"^(.+?)\s*(!=|<=|>=|=|<|>|\bin\b)\s*(.+)$")


class Answering(Protocol):
    """A model, or a model's error bars."""

    def answer(self, query: FactoredQuery) -> NDArray[np.float64]: ...


class Bars(Protocol):
    """Error bars of factored queries, and of anything else computed from a model."""

    def answer(self, query: FactoredQuery, *, level: float = 0.95) -> Interval: ...
    def statistic(
        self, function: Callable[[GraphicalModel], Any], *, level: float = 0.95
    ) -> Interval: ...


@dataclass(frozen=True)
class Question:
    """A parsed question: columns to tabulate, the one summarised, and the codes that count."""

    groups: tuple[str, ...]
    summary: tuple[str, str] | None
    allowed: Mapping[str, NDArray[np.bool_]]


@dataclass(frozen=True)
class Reply:
    """A table: named columns of equal length, texts and numbers; counts are expected records."""

    columns: Mapping[str, Sequence[str] | NDArray[np.float64]]

    def __str__(self) -> str:
        def cell(value: object) -> str:
            return value if isinstance(value, str) else f"{value:.6g}"

        body = [[cell(value) for value in column] for column in self.columns.values()]
        texts = [[name, *column] for name, column in zip(self.columns, body, strict=True)]
        widths = [max(map(len, column)) for column in texts]
        lines = zip(*texts, strict=True)
        return "\n".join(
            "  ".join(
                value.ljust(width) for value, width in zip(line, widths, strict=True)
            ).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        from pgmkit import html

        return html.columns(self.columns)


def parse(schema: Schema, text: str) -> Question:
    """The question's meaning; InvalidInput says which part is not understood.

    >>> from pgmkit.tables.schema import Integer, Schema
    >>> parse(Schema({"age": Integer(0, 3), "kids": Integer(0, 1)}), "kids | age >= 2").groups
    ('kids',)
    """
    left, bar, right = text.partition("|")
    groups: list[str] = []
    summary: tuple[str, str] | None = None
    for part in _split(left):
        found = _TARGET.match(part)
        assert found is not None
        if found[1] is None:
            groups.append(_known(schema, found[3]))
        elif summary is not None:
            raise InvalidInput(f"{part!r}: only one cdf or mean in a question; ask twice")
        else:
            summary = (found[1], _known(schema, found[2]))
    if groups == ["count"]:
        groups = []
    elif not groups and summary is None:
        raise InvalidInput(
            'the question is empty; ask, for example, "income | sex = F", or "count"'
        )
    named = [*groups, *([summary[1]] if summary else [])]
    for name in named:
        if named.count(name) > 1:
            raise InvalidInput(f"column {name!r} is asked for twice; name it once")
    if bar and not right.strip():
        raise InvalidInput('there are no conditions behind "|"; add some, or leave it out')
    averaged = summary[1] if summary is not None and summary[0] == "mean" else None
    if averaged is not None and schema.columns[averaged].midpoints is None:
        raise InvalidInput(f"mean({averaged}) needs a column of numbers")
    return Question(tuple(groups), summary, conditions(schema, right))


def conditions(schema: Schema, text: str) -> dict[str, NDArray[np.bool_]]:
    """The codes of each column that meet conditions such as "sex = F, age in 30..44"."""
    allowed: dict[str, NDArray[np.bool_]] = {}
    for condition in _split(text):
        name, mask = _condition(schema, condition)
        allowed[name] = allowed[name] & mask if name in allowed else mask
        if not allowed[name].any():
            raise InvalidInput(f"{condition!r} leaves no value of {name!r}")
    return allowed


def ask(
    model: Answering,
    schema: Schema,
    text: str,
    *,
    bars: Bars | None = None,
    level: float = 0.95,
) -> Reply:
    """The model's reply: a line for each combination of the grouped columns' values.

    `count`: expected records; `share`: of all records that meet the conditions; for a cdf the
    values up to and including each; for a mean the mean within each group, from the bins' middles.
    With `bars` counts get a standard error and an interval; a mean's are about the mean.

    >>> from pgmkit import Measurement, estimate
    >>> from pgmkit.tables.schema import Categorical, Integer, Schema
    >>> schema = Schema({"age": Integer(0, 1), "sex": Categorical(("F", "M"))})
    >>> noisy = [Measurement(("age", "sex"), [[10.0, 20.0], [30.0, 40.0]], 1.0)]
    >>> print(ask(estimate(schema.domain, noisy, total=100), schema, "sex | age = 1"))
    sex  count  share
    F    30     0.428571
    M    40     0.571429
    """
    question = parse(schema, text)
    factors = {name: mask[None, :].astype(np.float64) for name, mask in question.allowed.items()}
    whole = float(model.answer(FactoredQuery(factors)).sum())
    shown: dict[str, list[str]] = {}
    for name in question.groups:
        kept = question.allowed.get(name, np.ones(schema.columns[name].size, dtype=bool))
        factors[name] = identity(len(kept))[kept]
        shown[name] = [
            label for label, keep in zip(schema.columns[name].labels, kept, strict=True) if keep
        ]
    columns: dict[str, Sequence[str] | NDArray[np.float64]] = {}
    if question.summary is not None and question.summary[0] == "mean":
        counts, means = _means(model, schema, question, factors)
        columns |= _labelled(shown)
        columns |= {f"mean({question.summary[1]})": means, "count": counts}
        if bars is not None:
            columns |= _spread(
                bars.statistic(lambda each: _means(each, schema, question, factors)[1], level=level)
            )
        return Reply(columns)
    if question.summary is not None:
        name = question.summary[1]
        kept = question.allowed.get(name, np.ones(schema.columns[name].size, dtype=bool))
        factors[name] = (prefix(len(kept)) * kept)[kept]
        shown[name] = [
            f"up to {label}"
            for label, keep in zip(schema.columns[name].labels, kept, strict=True)
            if keep
        ]
    order = [name for name in (*shown, *factors) if name in factors]
    query = FactoredQuery({name: factors[name] for name in dict.fromkeys(order)})
    counts = model.answer(query).reshape(-1)
    columns |= _labelled(shown)
    columns["count"] = counts
    columns["share"] = counts / whole if whole > 0 else np.zeros_like(counts)
    if bars is not None:
        columns |= _spread(bars.answer(query, level=level))
    return Reply(columns)


def _spread(interval: Interval) -> dict[str, NDArray[np.float64]]:
    found = {"stderr": interval.stddev, "low": interval.low, "high": interval.high}
    return {name: values.reshape(-1) for name, values in found.items()}


def _means(
    model: Answering,
    schema: Schema,
    question: Question,
    factors: Mapping[str, NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Counts of the groups and the mean of the summarised column in each, missing values aside."""
    assert question.summary is not None
    name = question.summary[1]
    values = schema.columns[name].midpoints
    assert values is not None
    present = ~np.isnan(values) & question.allowed.get(name, True)
    rows = np.stack([present.astype(np.float64), np.where(present, values, 0.0)])
    order = [*question.groups, *(other for other in factors if other not in question.groups)]
    query = FactoredQuery(
        {other: factors[other] for other in order if other != name} | {name: rows}
    )
    counts, sums = model.answer(query).reshape(-1, 2).T
    means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return counts, means


def _labelled(shown: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Each column's labels, for every combination in C order."""
    lines = list(itertools.product(*shown.values()))
    return {name: [line[i] for line in lines] for i, name in enumerate(shown)}


def _condition(schema: Schema, text: str) -> tuple[str, NDArray[np.bool_]]:
    found = _CONDITION.match(text)
    if found is None:
        raise InvalidInput(
            f"condition {text!r} is not understood; write, for example, sex = F, age in 30..44, "
            "age < 30 or status in {single, widowed}"
        )
    name, operator, value = _known(schema, found[1]), found[2], _unquoted(found[3])
    column = schema.columns[name]
    if operator in ("=", "!="):
        mask = codes_of(name, column, [value])
        return name, mask if operator == "=" else ~mask
    if operator == "in":
        if value.startswith("{") and value.endswith("}"):
            return name, codes_of(name, column, [_unquoted(v) for v in _split(value[1:-1])])
        if ".." not in value:
            raise InvalidInput(f"condition {text!r}: write a range low..high, or {{a, b}}")
        return name, codes_of(name, column, value)
    try:
        if operator in ("<", "<="):
            return name, column.within(None, value, closed=operator == "<=")
        reached = np.zeros(column.size, dtype=bool)
        reached[: len(column.own_labels)] = True
        return name, reached & ~column.within(None, value, closed=operator == ">")
    except InvalidInput as error:
        raise InvalidInput(f"column {name!r}: {error}") from None


def _known(schema: Schema, name: str) -> str:
    stripped = _unquoted(name)
    if stripped not in schema.columns and stripped != "count":
        raise InvalidInput(
            f"there is no column {stripped!r}; columns are {', '.join(schema.columns)}"
        )
    return stripped


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _split(text: str) -> list[str]:
    """The parts between commas that are neither in quotes nor in braces."""
    parts, depth, quoted = [""], 0, False
    for sign in text:
        quoted ^= sign == '"'
        depth += 0 if quoted else (sign in "{(") - (sign in "})")
        if sign == "," and not quoted and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]
