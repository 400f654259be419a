"""Records written for Excel, SPSS and Stata, with the labels of their values."""

from __future__ import annotations

import io
import itertools
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgmkit.errors import InvalidInput
from pgmkit.runtime.precision import EXACT
from pgmkit.runtime.untrusted import FilePath
from pgmkit.tables.columns import Column
from pgmkit.tables.files.foreign import needing
from pgmkit.tables.files.formats import format_of
from pgmkit.tables.labelled import Boolean, Categorical
from pgmkit.tables.numbers import Integer, Numeric
from pgmkit.tables.records import plain_table
from pgmkit.tables.schema import Schema
from pgmkit.tables.values import number_of, text_of

_MOST_ROWS = 2**20 - 1
"""The most rows below its header that an Excel sheet can have."""
_LONGEST_NAME = {".sav": 64, ".dta": 32}
"""The most bytes of a variable's name."""
_MOST_MISSING = 3
"""The most single values of a variable that SPSS can declare missing."""


def foreign_content(path: FilePath, tables: Iterable[Any], schema: Schema) -> tuple[bytes, int]:
    """Return the bytes of a file of the path's kind for tables of values, and the number of
    records.

    Excel gets the values as cells; a text that begins like a formula stays a text, a space replaces
    a character that Excel does not allow, and dates before 1900, which it lacks, are texts. SPSS
    and Stata get a number for each value of a categorical column of texts, with the text as its
    label. If the text or its alias is a whole number that no other value has, this is the number;
    the other values get the next whole numbers above all of these, from 1. Truth values become 0
    and 1 there.

    In SPSS files, the special values of a column of numbers are declared missing, unless they are
    more than three, which SPSS does not allow. A name that these programs do not allow is changed,
    and the original becomes the variable's label, in Stata its first 80 characters. Labels in SPSS
    files are cut to 120 bytes, and texts in Excel's cells to 32,767 characters.

    Raises InvalidInput for more records than a sheet has rows, for whole numbers beyond 2^53, for
    dates outside the years 1 to 9999, and if the library that writes is not installed.
    """
    write = _excel if format_of(path) == "Excel" else _statistics
    try:
        with needing(path):
            return write(path, map(plain_table, tables), schema)
    except OverflowError:  # Python has no such date
        raise InvalidInput(
            f"{os.fspath(path)} cannot hold dates outside the years 1 to 9999; write CSV or parquet"
        ) from None


def check_sheet(path: FilePath, rows: int) -> None:
    """Raise InvalidInput if the file is an Excel file and there are more records than a sheet has
    rows.
    """
    if format_of(path) == "Excel" and rows > _MOST_ROWS:
        raise InvalidInput(
            f"{os.fspath(path)} cannot hold more than {_MOST_ROWS:,} records, as an Excel sheet "
            "has no more rows; write CSV or parquet, or fewer records"
        )


def _excel(path: FilePath, tables: Iterable[Any], schema: Schema) -> tuple[bytes, int]:
    import openpyxl
    from openpyxl.cell import WriteOnlyCell

    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("records")

    def cell(value: Any) -> Any:
        if isinstance(value, int) and abs(value) > EXACT:
            raise _inexact(path)
        if isinstance(value, date) and value.year < 1900:
            value = value.isoformat()
        if not isinstance(value, str):
            return value
        found = WriteOnlyCell(sheet, value=openpyxl.cell.cell.ILLEGAL_CHARACTERS_RE.sub(" ", value))
        found.data_type = "s"  # a text such as =1+1 is no formula
        return found

    rows = 0
    with closing(sheet):
        sheet.append([cell(name) for name in schema.shown])
        for table in tables:
            rows += table.num_rows
            check_sheet(path, rows)
            for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                sheet.append([cell(value) for value in row])
    content = io.BytesIO()
    book.save(content)
    return content.getvalue(), rows


def _statistics(path: FilePath, tables: Iterable[Any], schema: Schema) -> tuple[bytes, int]:
    import pandas as pd
    import pyreadstat

    suffix = Path(path).suffix.lower()
    whole = pa.concat_tables(list(tables))
    names = dict(zip(schema.shown, _legal_names(schema.shown, suffix), strict=True))
    columns: dict[str, Any] = {}
    labels: dict[str, dict[int | float, str]] = {}
    for name, column in schema.shown.items():
        values = whole.column(name).to_pylist()
        codes = _numbered(column)
        if codes is not None:
            labels[names[name]] = {number: label for label, number in codes.items()}
            values = [None if v is None else codes.get(text_of(v), v) for v in values]
        numbers = codes is not None or column.kind in ("integer", "number")
        if any(isinstance(v, int) and abs(v) > EXACT for v in values):
            raise _inexact(path)
        only_missing = numbers and all(v is None for v in values)
        columns[names[name]] = pd.Series(values, dtype=float if only_missing else None)
        if column.kind == "datetime":
            columns[names[name]] = pd.to_datetime(columns[names[name]])
    frame = pd.DataFrame(columns)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, f"records{suffix}")
        missing = {
            names[name]: column.special_positions
            for name, column in schema.shown.items()
            if isinstance(column, Integer | Numeric) and column.kind != "text"
            if 0 < len(column.special) <= _MOST_MISSING
        }
        own = {"missing_ranges": missing} if suffix == ".sav" else {}
        longest = 80 if suffix == ".dta" else None
        titles: dict[str, str | None] = {new: old[:longest] for old, new in names.items()}
        write = getattr(pyreadstat, f"write_{suffix[1:]}")
        write(frame, str(target), column_labels=titles, variable_value_labels=labels, **own)
        return target.read_bytes(), whole.num_rows


def _numbered(column: Column) -> Mapping[str, int] | None:
    """Return the whole number that is written for each text of a column of texts or truth values,
    also for that of missing values. It is the text's alias, or the text itself if it has none,
    where this is a whole number below 2^30 and no other text's. All other texts have the next
    numbers above the largest of these, from 1, or for truth values from 0. Return None for columns
    of other types.
    """
    truth = isinstance(column, Boolean)
    if not truth and not (isinstance(column, Categorical) and column.kind in ("text", "category")):
        return None
    words = getattr(column, "words", None) if column.kind == "text" else None
    texts = [*map(text_of, words or column.own_labels), *filter(None, [column.missing_text])]
    aliases = dict(getattr(column, "aliases", ()))
    given = {text_of(label): spelling for spelling, label in aliases.items()}
    numbers = dict[str, int]()
    for text in texts:
        with suppress(ValueError):  # the alias, or the text if it has none, may be no number
            number = number_of(given.get(text, text))
            if isinstance(number, int) and abs(number) < 2**30:  # Stata labels none above 2^31
                numbers[text] = number
    times = Counter(numbers.values())
    own = {text: number for text, number in numbers.items() if times[number] == 1}
    others = itertools.count(1 + max([-1 if truth else 0, *own.values()]))
    return {text: own[text] if text in own else next(others) for text in texts}


def _legal_names(names: Iterable[str], suffix: str) -> Iterator[str]:
    """Yield for each name one that is legal in files with this suffix, of letters, digits and
    underscores. All of them differ by more than case.
    """
    seen: set[str] = set()
    most = _LONGEST_NAME[suffix] - 4
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
        plain = (plain if re.match("[A-Za-z]", plain) else f"v_{plain}")[:most]
        legal, again = plain, 1
        while legal.upper() in seen or _RESERVED.fullmatch(legal.upper()):
            again += 1
            legal = f"{plain}_{again}"
        seen.add(legal.upper())
        yield legal


_RESERVED = re.compile(
    "ALL|AND|BY|EQ|GE|GT|LE|LT|NE|NOT|OR|TO|WITH|BYTE|DOUBLE|FLOAT|IF|IN|INT|LONG|USING|STR(L|[0-9]+)"
)
"""This pattern matches words that no variable of SPSS or Stata may have as its name."""


def _inexact(path: FilePath) -> InvalidInput:
    return InvalidInput(
        f"{os.fspath(path)} cannot hold whole numbers beyond 2^53 exactly; write CSV or "
        'parquet, or declare the column with decode_as: "text"'
    )
