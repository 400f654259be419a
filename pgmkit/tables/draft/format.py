"""The format of a CSV file, found from its first lines: separator, comments, header or none."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pgmkit.errors import InvalidInput
from pgmkit.tables.draft.thresholds import FEW
from pgmkit.tables.files import csv_file
from pgmkit.tables.files.foreign import title_rows, top_rows
from pgmkit.tables.files.formats import format_of
from pgmkit.tables.schema_file import FileFormat
from pgmkit.tables.values import bare, is_number, with_point

MISSING = (
    *("?", "NA", "na", "N/A", "n/a", "N/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "NAN"),
    *("null", "NULL", "Null", "None", "(missing)"),
)
"""Texts that are taken for missing values."""
_COMMENT_SIGNS = "#%|/!*"
DASHES = frozenset(("-", "--", ".", "..", "...", "\u2013", "\u2026"))
"""Texts that stand for missing values in columns of numbers or times."""
_POINT = re.compile(r"[+-]?\d+\.(\d{1,2}|\d{4,})")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_CODE = re.compile(r"\d+[eE]\d+")
"""This pattern matches numbers that may be codes; programs write a sign or a point, as in 1E+05."""
_GROUPED = re.compile(r"[+-]?\d{1,3}([. \u00a0\u202f]\d{3})+")
COMMA = re.compile(r"[+-]?\d{1,3}([. \u00a0\u202f]\d{3})*,\d+|[+-]?\d+,\d+")


def named_format(path: str | os.PathLike[str], form: FileFormat) -> FileFormat:
    """Return the format with the separator that the header line shows; nothing else is read. A
    format for files other than CSV is returned as it is.

    Raises InvalidInput if the format has no names and the line, or the first row of a sheet, has
    numbers other than years and whole numbers below 10: it may be a record, whose values must not
    become names.
    """
    kind, header = format_of(path), list[list[str]]()
    if kind == "CSV":
        form = _separated(form, csv_file.separator_of(os.fspath(path), form))
        if form.names is None:
            header = _rows(csv_file.first_lines(os.fspath(path), form, 1), form)
    elif kind == "Excel":
        header = top_rows(path, form, 1)
    if any(_is_number(each) and not _is_count(each) for row in header for each in row):
        raise _headless(path, "may be a record and no header: it holds numbers")
    return form


def _headless(path: str | os.PathLike[str], why: str) -> InvalidInput:
    """Return the error for a file whose first line, or first row of the sheet, is no header."""
    if format_of(path) == "Excel":
        return InvalidInput(
            f"the first row of {os.fspath(path)} {why}. Add a row with the columns' names above it"
        )
    return InvalidInput(
        f"the first line of {os.fspath(path)} {why}. Give the columns' names: --names "
        "age,sex,..., or `names` in the schema's `file`"
    )


def seen_format(path: str | os.PathLike[str], form: FileFormat) -> FileFormat:
    """Return the format as far as the file's first lines show it: separator, sign of comments,
    lines above the header, and numbered names if there is no header.

    At most a thousand lines are read, which must be public. The first line is taken for a record
    if it resembles the lines below it (`_is_record` has the rule). Of an Excel file only the rows
    above the header are found; the format of a file that is neither Excel nor CSV is not changed.
    Raises InvalidInput if a CSV file without declared names seems to have a second header line or
    to repeat its header among the records (`_is_second_header` has the rule), and if the first row
    of a sheet is taken for a record.
    """
    if format_of(path) == "Excel":
        form = form if form.skip_lines else replace(form, skip_lines=title_rows(path, form))
        first, *others = top_rows(path, form, 1000) or [[]]
        if _is_record(first, others):
            raise _headless(path, "is no header: it has values like those of the rows below")
        return form
    if format_of(path) != "CSV":
        return form
    lines = csv_file.first_lines(os.fspath(path), form, 1000)
    above = 0 if form.skip_lines or form.names is not None else _lines_above(lines, form)
    if above:
        form, lines = replace(form, skip_lines=above), lines[above:]
    if form.comment is None:
        form = replace(form, comment=_comment_sign(lines))
    lines = [each for each in lines if not form.comment or not each.startswith(form.comment)]
    if not lines:
        return form
    form = _separated(form, csv_file.separator_of(os.fspath(path), replace(form, names=None)))
    if form.names is None:
        first, *others = _rows(lines, form) or [[]]
        others = [row for row in others if len(row) == len(first)]
        if _is_second_header(others):
            raise InvalidInput(
                f"the second line of {os.fspath(path)} is no record: it has words where all others "
                "have numbers, as a second header line has. Delete one of the two"
            )
        once = [row for row in others if row != first]
        if len(once) < len(others) and _is_second_header([first, *once]):
            raise InvalidInput(
                f"the header of {os.fspath(path)} is repeated in record {others.index(first) + 1}, "
                "as in files that were joined; delete the lines that repeat it"
            )
        if _is_record(first, others):
            form = replace(form, names=tuple(f"column_{i + 1}" for i in range(len(first))))
    return form


def decimals_of(columns: Iterable[Iterable[str]], form: FileFormat) -> FileFormat:
    """Return the format with a decimal comma if some column is written so and none with a decimal
    point. In a file that commas separate, a column in which every number with a comma is like
    "12,345" has signs of thousands. A format is returned unchanged if it declares a comma, as its
    decimal sign or its separator, or if it declares names but no separator.

    >>> decimals_of([["1,5", "2"]], FileFormat(separator=";")).decimal
    ','
    >>> decimals_of([["12,345", "999"]], FileFormat()).decimal
    '.'
    """
    # A file without a header line and a declared separator keeps its decimal point: the reader
    # derives the separator from the decimal sign, and would split it at semicolons otherwise.
    if form.decimal != "." or form.separator == "," or (form.names and form.separator is None):
        return form
    found, absent = False, {"", *MISSING, *DASHES}
    for column in columns:
        texts = (unsigned(text) for text in column if text not in absent)
        others = [text for text in texts if not text.lstrip("+-").isdigit()]
        commas = [text for text in others if COMMA.fullmatch(text)]
        if form.written_separator == "," and all(map(_THOUSANDS.fullmatch, commas)):
            continue
        if others and all(map(_POINT.fullmatch, others)):
            return form
        grouped = sum(_GROUPED.fullmatch(text) is not None for text in others)
        found = found or (bool(commas) and len(commas) + grouped == len(others))
    return replace(form, decimal=",") if found else form


def _lines_above(lines: Sequence[str], form: FileFormat) -> int:
    """Return the number of lines above the header: titles and empty lines, which have at most about
    half as many values as the records. Empty values, with which a spreadsheet fills up such lines,
    do not count. Return 0 unless the values of the line below them are different texts, none of
    which is empty or a number.

    Lines that begin with a sign of comments are left to `_comment_sign`.

    >>> _lines_above(["Wages, 2024", "", "a;b;c", "1;2;3", "4;5;6"], FileFormat())
    2
    """
    if not lines or lines[0].startswith(tuple(_COMMENT_SIGNS)):
        return 0
    separators = csv_file.SEPARATORS if form.separator is None else (form.separator,)
    usual = max(separators, key="".join(lines[-FEW:]).count)
    for separator in (form.separator or csv_file.likely_separator(lines[0]), usual):
        rows = list(csv.reader(lines, delimiter=separator))
        widths = list(map(len, rows))
        width = max(set(widths), key=widths.count)
        if width == 1:
            continue
        full = [len(row) == width and 2 * sum(map(bool, row)) > width for row in rows]
        if len(rows) < len(lines) or full[0] or True not in full:
            return 0  # a value goes on over a line end, or nothing is above the header
        above = full.index(True)
        names = rows[above]
        if all(names) and not any(map(_is_number, names)) and len(set(names)) == width:
            return above if all(n == width or 2 * n <= width + 1 for n in widths[:above]) else 0
    return 0


def unsigned(text: str) -> str:
    """Return the text without currency signs, percent signs and spaces at its ends."""
    return text.strip("$€£¥₹% \u00a0\u202f")


def doubt(texts: Sequence[str], decimal: str) -> str:
    """Return a clause for texts that are read as numbers but may mean something else: codes such as
    1E5, or whole numbers with a sign of thousands. It is empty for other texts. `texts`: they have
    decimal points. `decimal`: the decimal sign in the file.

    >>> doubt(["1.250", "17.100", "999.999", "2.040", "3.000", "8"], ",")
    "; '1,250' is read with 3 decimals: if it is 1250, write it without the sign"
    """
    if code := next(filter(_CODE.fullmatch, texts), None):
        return f"; {code!r} is read as {float(code):g}: if it is a code, list the texts as labels"
    parted = [text for text in texts if "." in text]
    if len(parted) < FEW or not all(_THOUSANDS.fullmatch(t.replace(".", ",")) for t in parted):
        return ""
    first, whole = with_point(parted[0], decimal), parted[0].replace(".", "")
    return f"; {first!r} is read with 3 decimals: if it is {whole}, write it without the sign"


def _separated(form: FileFormat, separator: str) -> FileFormat:
    return form if separator == form.written_separator else replace(form, separator=separator)


def _comment_sign(lines: Sequence[str]) -> str | None:
    """Return the sign of comments with which the first line begins. Return None if the line begins
    with no such sign, or if it has as many values as a record.
    """
    sign = lines[0][:1] if lines else ""
    others = [line for line in lines if line and not line.startswith(sign)]
    if sign not in _COMMENT_SIGNS or not others:  # an empty sign begins every line
        return None
    separator = csv_file.likely_separator(others[0])
    widths = {len(row) for row in csv.reader(others[:-1] or others, delimiter=separator)}
    return sign if len(next(csv.reader(lines[:1], delimiter=separator))) not in widths else None


def _rows(lines: Sequence[str], form: FileFormat) -> list[list[str]]:
    reader = csv.reader(lines, delimiter=form.written_separator)
    return [[each.strip() for each in row] for row in reader if row]


def _is_record(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Return True if the first line is probably a record, and not the columns' names.

    The first line is taken for a record only if it has numbers in the columns in which all other
    lines have numbers, and if one of these conditions holds too:

    * There are columns of numbers and of texts, and one of the line's texts occurs below it; or the
      texts below differ in each column of texts, and the line's values are not 0, 1, 2, ..., nor
      its numbers all possible names of columns (`_is_count`).
    * All columns are of texts, and each of the line's texts occurs below it.
    * All columns are of numbers, and the line's are neither 0, 1, 2, ... nor possible names of
      columns in ascending order.

    A line is no record if no other line has a value.
    """
    if not first or not others:
        return False
    below = [set(column) - {"", *MISSING} for column in zip(*others, strict=True)]
    numbers = [i for i, seen in enumerate(below) if seen and all(map(_is_number, seen))]
    texts = [i for i, seen in enumerate(below) if seen and i not in numbers]
    given = [i for i in numbers if first[i] and first[i] not in MISSING]
    if not all(_is_number(first[i]) for i in given) or (numbers and not given):
        return False
    # pandas numbers columns without names from 0 on, and writes nothing above its index: a first
    # column without a name, whose values all differ, is not counted.
    shown = first[not first[0] and len(below[0]) == len(others) :]
    numbered = [*shown] == [*map(str, range(len(shown)))]
    if not texts:
        named = all(map(_is_count, first)) and sorted(set(first), key=int) == list(first)
        return bool(numbers) and not (named or numbered)
    again = [first[i] in below[i] for i in texts]
    if not numbers:
        return all(again)
    names = numbered or all(_is_count(first[i]) for i in given)
    return any(again) or (not names and all(len(below[i]) == len(others) for i in texts))


def _is_second_header(records: Sequence[Sequence[str]]) -> bool:
    """Return True if the first record consists of names: none is a number, none occurs below in its
    column, and some stand above columns of numbers. False for fewer than five records.
    """
    if len(records) < FEW:
        return False
    first, *others = records
    if not all(first) or any(map(_is_number, first)) or {*first} & {*MISSING}:
        return False
    below = [set(column) - {"", *MISSING} for column in zip(*others, strict=True)]
    if any(name in seen for name, seen in zip(first, below, strict=True)):
        return False
    return any(seen and all(map(_is_number, seen)) for seen in below)


def _is_number(text: str) -> bool:
    return is_number(bare(unsigned(text)).replace(",", "."))


def _is_count(text: str) -> bool:
    """Return True for a year and for a whole number below 10: such numbers can be the names of
    columns.
    """
    digits = re.fullmatch("[0-9]{1,4}", text) is not None
    return digits and (int(text) < 10 or 1800 <= int(text) <= 2200)
