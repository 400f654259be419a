"""The grammar of questions in words: "income | age in 30..44 and sex = F".

    question    =  targets [ "|" givens ]
    targets     =  target { ("," | "x") target }
    target      =  group | summary(column) | quantile(column, level)
    group       =  column [ "in" number"-"unit "steps"  |  "in steps of" number [unit] ]
    summary     =  one of `SUMMARIES`, but not quantile
    givens      =  given { ("," | "and") given }
    given       =  group | condition
    condition   =  column "=" value  |  column "!=" value
                |  column "in" low..high  |  column "in" { value, ... }
                |  column ("<" "<=" ">" ">=") value

`count` as the only target asks for the number of records. At most one target may be a summary. A
group behind the bar is tabulated too, and shares are within its records: "income | region" is the
income of each region. Steps join the bins of a column of numbers: "age in 5-year steps" are 0..4,
5..9, and so on; the unit is not interpreted.

The value `missing`, unless it is a label of the column, or "" in quotes, stands for a missing
value. A column's levels (`pgmkit.Level`) are asked for, and have conditions, like columns. Names
and values with commas, bars or quotes, or with blanks at their ends, stand in double quotes; a
quote within quotes is written twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

import numpy as np

from pgmkit.errors import InvalidInput, check_known, did_you_mean, naming
from pgmkit.runtime.arguments import instance
from pgmkit.tables.bins import Binned
from pgmkit.tables.columns import MISSING, Column
from pgmkit.tables.constraints import Condition, Mask, codes_of
from pgmkit.tables.quoting import pieces_of, quoted, unquoted
from pgmkit.tables.schema import Schema
from pgmkit.tables.summaries import SUMMARIES, Summary

_TARGET = re.compile(rf"^({'|'.join(SUMMARIES)})\s*\(\s*(.+?)\s*\)$")
_FUNCTION = re.compile(r"^(\w+)\s*\(")
_BY = re.compile(r"^(.+?)\s+by\s+(.+)$", re.IGNORECASE)
_STEPS = re.compile(
    r"^(.+?)\s+in\s+(?:([\d.]+)-\w+\s+steps|steps\s+of\s+([\d.]+)(?:\s+\w+)?)$", re.IGNORECASE
)
_OPERATOR = re.compile(r"!=|<=|>=|=|<|>|\bin\b")
_CONDITION = re.compile(rf'^("(?:[^"]|"")*"|[^"]+?)\s*({_OPERATOR.pattern})\s*(.+)$', re.DOTALL)
_BAR, _COMMA, _TIMES = map(re.compile, (r"\|", ",", r"\s+x\s+"))
_AND, _OR = (re.compile(rf"\s+{each}\s+", re.IGNORECASE) for each in ("and", "or"))
_COUNT = "count"


@dataclass(frozen=True)
class Question:
    """A parsed question.

    Attributes:
        groups: The columns to tabulate, those behind the bar first.
        summary: The summary of one column, if any.
        allowed: A Boolean for each code of each column with conditions: True if it meets them.
        within: The number of groups behind the bar.
        steps: For each grouped column whose codes are joined, the width of the steps (a number) or
            the name of the level (a text).
    """

    groups: tuple[str, ...]
    summary: Summary | None
    allowed: Mapping[str, Mask]
    within: int = 0
    steps: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that the reply depends on."""
        own = () if self.summary is None else (self.summary.column,)
        return tuple(dict.fromkeys((*self.groups, *own, *self.allowed)))


def parse(schema: Schema, text: str) -> Question:
    """Return the parsed question. Raises InvalidInput for one that breaks the grammar or does not
    fit the schema, with the part that is at fault.

    >>> from pgmkit import Integer, Schema
    >>> schema = Schema({"age": Integer(0, 3), "kids": Integer(0, 1)})
    >>> parse(schema, "kids | age >= 2 and age != 3").allowed
    {'age': array([False, False,  True, False])}
    """
    try:
        return _parsed(schema, instance(text, str, "the question"))
    except InvalidInput as error:
        odd = (n for n in schema.shown if re.search(r'[,|"]', n) and quoted(n) not in text)
        hints = [f"the column {name} is written {quoted(name)}" for name in odd if name in text]
        raise InvalidInput("; ".join([str(error), *hints])) from None


def _parsed(schema: Schema, text: str) -> Question:
    left, *rest = pieces_of(text, _BAR, "")
    targets = [each for part in _parts(schema, left) for each in _factors(schema, part)]
    if targets == [_COUNT] and _COUNT not in schema.shown:
        targets = []
    elif not targets:
        raise InvalidInput(
            'the question is empty; ask, for example, "income | sex = F", or "count"'
        )
    if rest and not "".join(rest).strip():
        raise InvalidInput('there are no conditions behind "|"; add some, or leave it out')
    givens = _conditions(schema, "|".join(rest))
    behind = [each for each in givens if _group(schema, each) is not None]
    groups = [_known_group(schema, part) for part in behind]
    summary: Summary | None = None
    for part in targets:
        found = _summary(schema, part)
        if found is None:
            groups.append(_known_group(schema, part))
        elif summary is not None:
            raise InvalidInput(f"{part!r}: ask for one of {', '.join(SUMMARIES)} at a time")
        else:
            summary = found
    names = tuple(name for name, _ in groups)
    named = [*names, *([summary.column] if summary else [])]
    for name in named:
        if named.count(name) > 1:
            raise InvalidInput(f"column {name!r} is asked for twice; name it or a level of it once")
    allowed = _met(schema, (_condition(schema, each) for each in givens if each not in behind))
    steps = {name: joined for name, joined in groups if joined is not None}
    return Question(names, summary, allowed, len(behind), steps)


def conditions(schema: Schema, given: Mapping[str, Condition] | str) -> dict[str, Mask]:
    """Return a Boolean for each code of each column that has conditions, such as "sex = F and age
    in 30..44" or {"sex": "F", "age": "30..44"}: True if the code meets them. A condition on a level
    is one on the column at its base.

    Raises InvalidInput for unknown columns or values, and if no value of a column remains.
    """
    if isinstance(given, str):
        return _met(schema, (_condition(schema, each) for each in _conditions(schema, given)))
    check_known(given, schema.shown, "there is no column", "columns are")
    parts = ((n, each, codes_of(n, schema.shown[n], each)) for n, each in given.items())
    return _met(schema, parts)


def _conditions(schema: Schema, text: str) -> list[str]:
    return [each for part in _parts(schema, text) for each in _joined(schema, part)]


def _parts(schema: Schema, text: str) -> list[str]:
    """Return the parts between commas. Raise InvalidInput for a comma within a number."""
    parts = _split(text)
    fixed = parts[:1]
    for before, part in pairwise(parts):
        own = _divided(schema, part) or _group(schema, part)
        within = f"{before},{part}" in text and before[-1].isdigit() and part[0].isdigit()
        fixed += ["." if within and not own else ", ", part]
    if "." in fixed[1::2]:
        written = re.sub(r"\.(?=\d{3}\.\d)", "", "".join(fixed))
        raise InvalidInput(
            f"{text.strip()!r} has a comma within a number, and commas separate columns and "
            f"conditions; write a decimal point, {written!r}, thousands without a sign, "
            "and a label that has commas in double quotes"
        )
    return parts


def _met(schema: Schema, parts: Iterable[tuple[str, Condition, Mask]]) -> dict[str, Mask]:
    """Return, for each column of records with a condition on it or on one of its levels, a Boolean
    for each code: True if the code meets all conditions. Each part is a column or level, a
    condition on it, and a Boolean for each of its codes. Raises InvalidInput if no code of a column
    is left.
    """
    allowed: dict[str, Mask] = {}
    for shown, condition, own in parts:
        name, mask = schema.behind(shown, own)
        beside = " beside the conditions before it" if name in allowed else ""
        allowed[name] = allowed.get(name, True) & mask
        if not allowed[name].any():
            said = schema.shown[shown].listed()
            raise InvalidInput(f"{condition!r} leaves no value of {shown!r}{beside}; {said}")
    return allowed


def _factors(schema: Schema, part: str) -> list[str]:
    """Return the targets that " x " joins outside quotes and brackets. An " x " within the name of
    a column joins nothing.
    """
    pieces = pieces_of(part, _TIMES, "()")
    found: list[str] = []
    while pieces:
        ends = range(len(pieces), 1, -1)
        end = next((e for e in ends if _group(schema, " x ".join(pieces[:e])) is not None), 1)
        found.append(" x ".join(pieces[:end]))
        pieces = pieces[end:]
    return found


def _group(schema: Schema, part: str) -> tuple[str, float | None] | None:
    """Return the column or level that `part` names and the width of its steps (None if it has no
    steps). Return None alone if `part` is not a group, or asks for steps of an unknown column.
    """
    if unquoted(part) in schema.shown:
        return unquoted(part), None
    found = _STEPS.match(part)
    if found is None:
        return None
    try:
        return _known(schema, found[1]), float(found[2] or found[3])
    except ValueError:
        return None


def _known_group(schema: Schema, part: str) -> tuple[str, float | str | None]:
    """Return the column of a group, with the width of its steps or the name of its level; None for
    neither. Raises InvalidInput for an unknown column and for steps that the column does not have.
    """
    name, width = _group(schema, part) or _asked_for(schema, part)
    if name in schema.groups and width is None:
        return schema.groups[name].base, name
    if width is not None:
        with naming(f"column {name!r}"):
            schema.shown[name].steps(width)
    return name, width


def _summary(schema: Schema, part: str) -> Summary | None:
    """Return the summary that a target asks for; None for the name of a column or level, and for a
    text that does not call a summary. Raises InvalidInput for a summary of a level or of an unknown
    or unsuitable column, and for a quantile without exactly one level from 0 to 1.
    """
    found = _TARGET.match(part)
    if found is None or part in schema.shown:
        return None
    kind, inner, level = found[1], found[2], 0.5
    if kind == "quantile":
        pieces = _split(inner)
        try:
            inner, level = pieces[0], float(pieces[1])
        except (IndexError, ValueError):
            level = -1.0
        if len(pieces) != 2 or not 0 <= level <= 1:
            raise InvalidInput(f"{part!r}: write quantile({inner}, 0.9), a level from 0 to 1")
    name = _known(schema, inner)
    if name in schema.groups:
        raise InvalidInput(f"{part!r}: {name!r} is a level, which is counted but not summarised")
    if SUMMARIES[kind].numbers and schema.columns[name].midpoints is None:
        raise InvalidInput(
            f"{kind}({name}) needs a column of numbers; {name!r} is {schema.columns[name].type}"
        )
    return Summary(kind, name, level)


def _joined(schema: Schema, part: str) -> list[str]:
    """Return the conditions that "and" joins. An "and" before anything but a condition or the name
    of a column or level is a part of the name or value in which it stands.
    """
    found: list[str] = []
    pieces = pieces_of(part, _AND, "{}")
    for i, piece in enumerate(pieces):
        match = _divided(schema, " and ".join(pieces[i:]))
        own = match is not None and unquoted(match[1]) in schema.shown
        if found and not own and _group(schema, piece) is None:
            found[-1] += f" and {piece}"
        else:
            found.append(piece)
    return found


def _divided(schema: Schema, text: str) -> re.Match[str] | None:
    """Return the name, the operator and the value of a condition, None for other texts. A name that
    holds an operator, such as "age in years", need not be in quotes; the longest such name is
    taken, but none that ends within an operator: "c <= 3" is about "c", not about a column "c <".
    """
    inside = {m.start() + 1 for m in _OPERATOR.finditer(text) if len(m[0]) > 1}
    names = (
        name
        for name in schema.shown
        if text.startswith(name) and _OPERATOR.search(name) and len(name) not in inside
    )
    for name in sorted(names, key=len, reverse=True):
        if found := _CONDITION.match(quoted(name) + text[len(name) :]):
            return found
    return _CONDITION.match(text)


def _condition(schema: Schema, text: str) -> tuple[str, str, Mask]:
    found = _divided(schema, text)
    if found is None:
        raise InvalidInput(
            f"condition {text!r} is not understood{did_you_mean(text, schema.shown)}; write, for "
            "example, sex = F, age in 30..44, age < 30, status in {single, widowed}, pay != missing"
        )
    name = _known(schema, found[1])
    column = schema.shown[name]
    if unquoted(found[3]) not in (*column.labels, *column.missing_texts):
        _check_operators(found)
    return name, text, _compared(text, name, column, found[2], found[3].strip())


def _check_operators(condition: re.Match[str]) -> None:
    """Raise InvalidInput if a condition has "or", or an operator of other languages (== or &)."""
    name, value = condition[1].strip(), condition[3]
    if condition[2] + value[:1] in ("==", "=>", "=<", "<>"):
        raise InvalidInput(f"condition {condition[0]!r}: write =, !=, <, <=, >, >= or in")
    pieces = [piece.strip() for piece in pieces_of(value, _OR, "{}")]
    if len(pieces) == 1:
        if re.match('[^"{].*[&|<>=]', value):
            said = f"write `and` between conditions, and the column in each, as {name} > a and ..."
            raise InvalidInput(f"condition {condition[0]!r}: {said}")
        return
    others = [_CONDITION.match(piece) for piece in pieces]
    values = "a, b"
    if condition[2] == "=" and all(o is None or (o[1], o[2]) == (name, "=") for o in others):
        parts = zip(pieces, others, strict=True)
        values = ", ".join(piece if other is None else other[3] for piece, other in parts)
    raise InvalidInput(
        f"condition {condition[0]!r}: there is no `or`; list the values of one column in braces, "
        f"such as {name} in {{{values}}}, and ask once for each column"
    )


def _compared(text: str, name: str, column: Column, operator: str, value: str) -> Mask:
    """Return a Boolean for each code of the column: True if it meets the condition `text`, of which
    `name`, `operator` and `value` are the parts.
    """
    if operator in ("=", "!="):
        mask = _equal(name, column, value)
        return mask if operator == "=" else ~mask
    if operator == "in":
        if value.startswith("{") and value.endswith("}"):
            values = [_equal(name, column, each) for each in _split(value[1:-1])]
            return np.asarray(np.logical_or.reduce(values or [np.zeros(column.size, dtype=bool)]))
        if ".." not in value:
            raise InvalidInput(f"condition {text!r}: write low..high, {{a, b}} or steps of 10")
        if not isinstance(column, Binned):
            return codes_of(name, column, unquoted(value))
    end = unquoted(value)
    with naming(f"column {name!r}"):
        if operator == "in":  # the label of a bin behind a spike is a range with the spike
            low, _, high = end.partition("..")
            return column.within(low.strip() or None, high.strip() or None)
        if operator in ("<", "<="):
            return column.within(None, end, closed=operator == "<=")
        return column.within(None, None) & ~column.within(None, end, closed=operator == ">")


def _equal(name: str, column: Column, value: str) -> Mask:
    """Return a Boolean for each code: True for those equal to a value as it is written in a
    question. The word `missing`, an empty text, "(missing)" and the column's `missing` texts stand
    for a missing value, unless the column has such a label. Raises InvalidInput for a value that
    the column does not have, and for a missing one if its schema declares none.
    """
    plain = unquoted(value)
    absent = value == "missing" or plain in ("", MISSING, *(column.missing or ()))
    if absent and plain not in column.labels:
        if column.missing is None:
            raise InvalidInput(f"column {name!r} has no missing values: its schema declares none")
        plain = MISSING
    elif plain not in column.labels and re.fullmatch("'.*'", plain):
        raise InvalidInput(f"column {name!r}: write {plain[1:-1]} without the quotes of {plain}")
    return codes_of(name, column, [plain])


def _asked_for(schema: Schema, part: str) -> NoReturn:
    """Raise InvalidInput that says what to write instead of a target that is no column."""
    by, function, condition = _BY.match(part), _FUNCTION.match(part), _divided(schema, part)
    if part == _COUNT:
        raise InvalidInput("every table has its counts; leave 'count' out beside columns")
    if by and (unquoted(by[1]) in {_COUNT, *schema.shown} or _summary(schema, by[1])):
        asked = by[2] if by[1] == _COUNT else f"{by[2]}, {by[1]}"
        raise InvalidInput(f"there is no `by` in {part!r}; write {asked!r}")
    if function and function[1] in SUMMARIES:
        raise InvalidInput(f"{part!r} is not understood; write {function[1]}(column)")
    if condition and unquoted(condition[1]) in schema.shown:
        if condition[2] == "in":
            _condition(schema, part)  # refuses steps that are spelled in another way
        said = f"ask, for example, {f'{_COUNT} | {part}'!r}"
        raise InvalidInput(f"{part!r} is a condition, which stands behind a bar; {said}")
    what, known = ("function", SUMMARIES) if function else ("column", [_COUNT, *schema.shown])
    name = function[1] if function else part
    raise InvalidInput(
        f"there is no {what} {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}. "
        'A question is such as "sex, mean(income) | age < 30", and counts have shares beside them'
    )


def _known(schema: Schema, name: str) -> str:
    name = unquoted(name)
    check_known([name], schema.shown, "there is no column", "columns are")
    return name


def _split(text: str) -> list[str]:
    """Split the text at the commas outside quotes, braces and parentheses, and return the parts
    without spaces around them, leaving out empty ones.
    """
    return [part.strip() for part in pieces_of(text, _COMMA, "{}()") if part.strip()]
