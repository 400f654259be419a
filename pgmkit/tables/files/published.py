"""Tables as statistical offices publish them: suppressed and rounded counts, totals, wide layout.

A suppressed cell is not measured. A count that is known only to lie between two whole numbers,
because of rounding or as "<10", is measured as their middle, with the standard deviation of a count
that is uniform between them. An exact count gets a standard deviation far below one count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence

from pgmkit.errors import InvalidInput
from pgmkit.tables.columns import MISSING, Column
from pgmkit.tables.constraints import codes_of
from pgmkit.tables.schema import Schema

EXACT = 1e-2
"""The standard deviation given to exact counts: fitted tables agree with them to well below one
count. A smaller one, beside noise of a hundred counts, may keep a search from its certificate.
"""
TOTALS = {"total", "all", "both", "sum", "overall", "insgesamt", "gesamt", "ensemble"}
_SUPPRESSED = {
    *("..", "...", ".", ":", "c", "x", "s", "*", "#", "/", "\u2026"),
    *("n/a", "na", "suppressed", "confidential"),
}
_BELOW = re.compile(r"(<=|\u2264|<|less than |under |unter )\s*(\d+)", re.IGNORECASE)
_FROM = re.compile(
    r"(\d+)\s*(?:\+|(?:and|or|years and) (?:over|more|older|above)|und (?:mehr|\u00e4lter))",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"(-?\d+)\s*(?:-|\u2013|to|bis)\s*(\d+)", re.IGNORECASE)


def spread(values: int) -> float:
    """Return the standard deviation of a count that is uniform among `values` consecutive whole
    numbers.

    >>> spread(1), round(spread(5), 3)
    (0.0, 1.414)
    """
    return math.sqrt((values**2 - 1) / 12)


def is_suppressed(text: str) -> bool:
    """Return True if a text such as ".." stands for a count that is not published."""
    return text.strip().casefold().strip("()[]") in _SUPPRESSED


def cell_of(text: str) -> tuple[float, float]:
    """Return the count of a text such as "<10", and the standard deviation of its error.

    Raises ValueError for other texts, among them a dash: it means zero in some tables and unknown
    in others.

    >>> cell_of("<10")[0], is_suppressed("..")
    (4.5, True)
    """
    below = _BELOW.fullmatch(text.strip())
    values = _values_below(below) if below else 0
    if not values:
        raise ValueError(text)
    return (values - 1) / 2, spread(values)


def _values_below(found: re.Match[str]) -> int:
    """Return how many whole numbers from 0 on are within the bound that `_BELOW` has matched: 10
    for "<10" and 11 for "<=10".
    """
    return int(found[2]) + (found[1] in ("<=", "\u2264"))


def is_total(column: Column, text: str) -> bool:
    """Return True if a text such as "Total" means all values of a column, and is none of them."""
    known = text in (*column.labels, MISSING, *(column.missing or ()))
    return not known and text.casefold() in TOTALS


def hint_at_total(texts: Iterable[str]) -> str:
    """Return the end of a message if the first word of one of the texts, which were not understood,
    is among `TOTALS`, as in "Both sexes"; else return an empty text.
    """
    words = [text.casefold().split(" ") for text in texts]
    like = any(first in TOTALS and further for first, *further in words)
    return "; write Total for the sum over all values" * like


def range_of(column: Column, text: str) -> str:
    """Return a label such as "65+", "18-29" or "under 18" as a range "low..high". Other labels, and
    those that the column itself has, are returned unchanged.

    >>> from pgmkit.tables.numbers import Integer
    >>> [range_of(Integer(0, 99), each) for each in ("65+", "18-29", "under 18", "40")]
    ['65..', '18..29', '..17', '40']
    """
    if text in column.labels:
        return text
    if found := _FROM.fullmatch(text):
        return f"{found[1]}.."
    if found := _BETWEEN.fullmatch(text):
        return f"{found[1]}..{found[2]}"
    if found := _BELOW.fullmatch(text):
        return f"..{_values_below(found) - 1}"
    return text


def with_row_names(
    path: str, schema: Schema, header: Sequence[str], lines: Sequence[Sequence[str]]
) -> list[str]:
    """Return the header with a name for the column that has none, such as the row names that R
    writes. The name is that of the schema's column that has all texts of the nameless one as
    labels, ranges of labels or totals.

    An empty column and a first column of row numbers stay without a name, and are not read. For
    any other column without a name, raises InvalidInput unless one column of the schema fits it.
    """
    named = list(header)
    if "" not in named:
        return named
    place = named.index("")
    texts = [line[place].strip() for line in lines]
    numbers = [[str(i + first) for i in range(len(texts))] for first in (0, 1)]
    if not any(texts) or (place == 0 and texts in numbers):
        return named
    fitting = _fitting(schema, named, set(texts))
    if len(fitting) != 1:
        raise InvalidInput(
            f"column {place + 1} of {path} has no name; write one of the schema's columns above it "
            f"({', '.join(schema.shown)}), or leave it out"
        )
    named[place] = fitting[0]
    return named


def long_lines(
    path: str,
    schema: Schema,
    header: Sequence[str],
    lines: Sequence[tuple[int, list[str]]],
    kept: Sequence[str],
) -> tuple[list[str], list[tuple[int, list[str]]], str] | None:
    """Return a wide table in long form, with one line for each cell: its header, its lines with
    their numbers in the file, and the name of the column with the counts. This name is a space,
    which no other column has, since names in a header are stripped.

    In a wide table all columns except those in `kept` are values of one further column of the
    schema. None for other tables. Raises InvalidInput if they may be values of several columns.
    """
    places = [i for i, name in enumerate(header) if name and name not in kept]
    across = _fitting(schema, header, {header[i] for i in places})
    if len(places) < 2 or not across:
        return None
    if len(across) > 1:
        raise InvalidInput(
            f"{path} has columns that may be values of {' or of '.join(map(repr, across))}; write "
            "a line for each cell, or leave the others out of the schema"
        )
    beside = [i for i, name in enumerate(header) if name in kept]
    long = [
        (number, [*(line[i] for i in beside), header[place], line[place]])
        for number, line in lines
        for place in places
    ]
    return [*(header[i] for i in beside), across[0], " "], long, " "


def _fitting(schema: Schema, header: Sequence[str], texts: Collection[str]) -> list[str]:
    """Return the schema's columns that are not in the header and that have all these texts as
    labels, ranges of labels or totals.
    """
    others = {name: column for name, column in schema.columns.items() if name not in header}
    return [n for n, column in others.items() if all(_is_label(column, text) for text in texts)]


def hint_at_values(schema: Schema, header: Sequence[str], texts: Collection[str]) -> str:
    """Return the end of a message that names those of the texts that keep a table from being wide:
    they are no values of the column of which most others are. It is empty if no text is a value.
    """
    others = {name: column for name, column in schema.columns.items() if name not in header}
    wrong = {n: [t for t in texts if not _is_label(column, t)] for n, column in others.items()}
    name = min(wrong, key=lambda each: len(wrong[each]), default="")
    if not name or len(wrong[name]) == len(texts):
        return ""
    return f"; not among the values of {name!r}: {', '.join(map(repr, wrong[name]))}"


def _is_label(column: Column, text: str) -> bool:
    if is_total(column, text):
        return True
    try:
        return bool(codes_of("", column, range_of(column, text)).any())
    except InvalidInput:
        return False
