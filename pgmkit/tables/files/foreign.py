"""Files of Excel, SPSS, Stata and SAS, read by the libraries for them."""

from __future__ import annotations

import codecs
import os
import re
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import date, time, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from pgmkit.errors import InvalidInput, installing
from pgmkit.runtime.precision import EXACT
from pgmkit.runtime.printed import shell_word
from pgmkit.runtime.threads import process_wide
from pgmkit.runtime.untrusted import LARGEST, FilePath
from pgmkit.tables.files.file_bytes import check_file
from pgmkit.tables.files.formats import format_of
from pgmkit.tables.files.moments import CALENDARS
from pgmkit.tables.schema_file import FileFormat
from pgmkit.tables.values import is_null, text_of

_READERS = {".zsav": "read_sav", ".xpt": "read_xport"}
"""pyreadstat's functions for formats that are not called like their suffix."""
_DECLARING = (".sav", ".zsav", ".dta")
"""The formats that declare which codes mean a missing value, and still store these codes."""
MOST_TITLES = 20
"""The most lines or rows above a header that are searched: titles of tables have fewer."""


@contextmanager
def needing(path: FilePath) -> Iterator[None]:
    """Raise InvalidInput if the library that the block imports for this file is not installed."""
    try:
        yield
    except ImportError as error:
        raise InvalidInput(
            f"files that end in {Path(path).suffix.lower()} need {error.name}: "
            f"{installing('files')}, or use a data frame in Python"
        ) from None


def foreign_table(path: FilePath, form: FileFormat) -> Any:
    """Return the whole file, or one sheet of an Excel file, as a pyarrow table. Values that the
    file labels are returned as their codes.

    Needs the extra `files`. Raises InvalidInput if it is not installed, and for a file that cannot
    be read.
    """
    return _excel(path, form) if format_of(path) == "Excel" else _statistics(path, form)


def foreign_names(path: FilePath, form: FileFormat) -> list[str]:
    """Return the column names; no record is read."""
    if format_of(path) == "Excel":
        return _header(path, form, _rows(path, form.sheet))
    return list(_read(path, form.user_missing, metadataonly=True)[1].column_names)


def _header(path: FilePath, form: FileFormat, rows: Iterator[tuple[Any, ...]]) -> list[str]:
    """Return the names in the header's row, empty for a cell without one; `rows`, the rows of the
    sheet, then continues with the records. Raises InvalidInput if the header's row has no name.
    """
    header = next(islice(rows, form.skip_lines, None), ())
    if not any(name is not None for name in header):
        raise InvalidInput(
            f"{os.fspath(path)} has no header in row {form.skip_lines + 1}; say how many rows are "
            "above it: --skip-lines, or `skip_lines` in the schema's `file`"
            f"{other_sheets(path, form)}"
        )
    return ["" if name is None else str(name).strip() for name in header]


def _excel(path: FilePath, form: FileFormat) -> Any:
    """Return the records of a sheet; rows without any cell are skipped, as empty lines of a CSV
    file are, and cells beside the header's columns are not read. Raises InvalidInput for more cells
    than `LARGEST` bytes hold: a row of one cell in the last column stands for 16,384.
    """
    rows = _rows(path, form.sheet)
    names = _header(path, form, rows)
    records = []
    for row in rows:
        if any(cell is not None for cell in row):
            records.append(row[: len(names)])
        if 8 * len(records) * len(names) > LARGEST:
            raise InvalidInput(
                f"{os.fspath(path)} has more than {LARGEST // 8:,} cells; save it as CSV or parquet"
            )
    columns = [[row[i] if i < len(row) else None for row in records] for i in range(len(names))]
    return pa.Table.from_arrays([cell_array(each) for each in columns], names)


@process_wide
@contextmanager
def _unwarned() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="openpyxl")
        yield


@contextmanager
def _sheets(path: FilePath) -> Iterator[list[Any]]:
    """Give the sheets of an Excel file, without openpyxl's warnings, which would name cells. The
    file is closed at the end of the ``with`` statement. Raises InvalidInput if the file would
    expand to more than `LARGEST` bytes, since openpyxl reads all texts of a file at once.
    """
    with needing(path):
        import openpyxl

    with zipfile.ZipFile(path) as archive:
        if sum(part.file_size for part in archive.infolist()) > LARGEST:
            raise InvalidInput(
                f"{os.fspath(path)} would expand to more than {LARGEST:,} bytes; save it as CSV or "
                "parquet"
            )
    with (
        _unwarned(),
        closing(openpyxl.load_workbook(path, read_only=True, data_only=True)) as book,
    ):
        yield book.worksheets


def _rows(path: FilePath, sheet: str | None) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a sheet, each up to its last cell; without a name, those of the first
    sheet.

    The size that a sheet states is not used: it may be missing, or too small.
    """
    try:
        with _sheets(path) as sheets:
            names = [each.title for each in sheets]
            if sheet is not None and sheet not in names:
                raise InvalidInput(
                    f"{os.fspath(path)} has no sheet {sheet!r}; it has {_listed(names)}"
                )
            rows = sheets[0 if sheet is None else names.index(sheet)]
            rows.reset_dimensions()
            for above, row in enumerate(rows.iter_rows(values_only=True)):
                if above == 1 << 20:  # openpyxl also yields the rows that the file leaves out
                    raise InvalidInput(
                        f"{os.fspath(path)} has rows below row {1 << 20:,}, the last one that "
                        "Excel has; save it as CSV or parquet"
                    )
                yield row
    except (OSError, InvalidInput):
        raise
    except Exception as error:
        # openpyxl raises the errors of zip and XML, whose messages could quote values.
        raise InvalidInput(
            f"{os.fspath(path)} cannot be read as an Excel file ({type(error).__name__}); save it "
            "again, or as CSV"
        ) from None


def title_rows(path: FilePath, form: FileFormat) -> int:
    """Return the number of rows of a sheet above its header: titles, merged cells and empty rows.

    The header is the first row that has a cell in at least half of the columns. But if the rows
    that follow, except empty ones, consist of texts, each with more cells than the one before, the
    last of them is the header: the others are titles, or have merged cells, which name several
    columns. The result is 0 for a sheet without cells. The first forty rows of the sheet are read,
    so these must be public.
    """
    top = islice(_rows(path, form.sheet), 2 * MOST_TITLES)
    rows = [[cell for cell in row if not is_null(cell)] for row in top]
    width = max(map(len, rows), default=0)
    header = next((i for i, cells in enumerate(rows) if cells and 2 * len(cells) >= width), 0)
    for place, cells in enumerate(rows):
        if place > header and cells:
            if len(cells) <= len(rows[header]) or not all(isinstance(cell, str) for cell in cells):
                break
            header = place
    return header


def top_rows(path: FilePath, form: FileFormat, most: int) -> list[list[str]]:
    """Return the texts of at most `most` rows of a sheet from its header on, without rows that have
    no cell; each is as long as the header.
    """
    top = islice(_rows(path, form.sheet), form.skip_lines, form.skip_lines + most)
    rows = [["" if cell is None else text_of(cell).strip() for cell in row] for row in top]
    width = len(rows[0]) if rows else 0
    return [[*row, *[""] * width][:width] for row in rows if any(row)]


def foot_notes(path: FilePath, form: FileFormat) -> list[str]:
    """Return the texts of the rows below a sheet's records that have a cell only in the first
    column. There are none for other files, and for sheets of one or two columns.

    The rows are read, so they must be public.
    """
    if format_of(path) != "Excel":
        return []
    notes: list[str] = []
    rows = islice(_rows(path, form.sheet), form.skip_lines, None)
    header = next(rows, ())
    for row in rows:
        if len(header) > 2 and all(cell is None for cell in row[1:]):
            notes += [text_of(cell) for cell in row[:1] if cell is not None]
        else:
            notes.clear()
    return notes


def other_sheets(path: FilePath, form: FileFormat) -> str:
    """Return a clause with the names of an Excel file's sheets, at most twenty, if it has several
    and none was asked for; otherwise an empty text.
    """
    if format_of(path) != "Excel" or form.sheet is not None:
        return ""
    with _sheets(path) as sheets:
        names = [each.title for each in sheets]
    return f"; the first of its sheets was read, of {_listed(names)}: --sheet" if names[1:] else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:20]))


def sheet_hint(path: FilePath, form: FileFormat, wanted: Collection[str]) -> str:
    """Return a clause that names the options (sheet, lines to skip) with which the header of an
    Excel file has all the names `wanted`; an empty text if no options do.
    """
    with _sheets(path) as sheets:
        for sheet in sheets:
            for above, row in enumerate(islice(_rows(path, sheet.title), MOST_TITLES)):
                if set(wanted) <= {str(cell).strip() for cell in row if cell is not None}:
                    other = (
                        "" if sheet.title == form.sheet else f" --sheet {shell_word(sheet.title)}"
                    )
                    lines = f" --skip-lines {above}" if above != form.skip_lines else ""
                    return f"; with{other}{lines} its header has them"
    return ""


def _statistics(path: FilePath, form: FileFormat) -> Any:
    calendar = CALENDARS[str(format_of(path))]
    columns, about = _columns(path, form.user_missing)
    forms = about.original_variable_types
    return pa.table({n: cell_array(calendar.read(v, forms[n])) for n, v in columns.items()})


def _columns(path: FilePath, user_missing: bool) -> tuple[dict[str, list[Any]], Any]:
    """Return the columns, in which dates are numbers, and the metadata.

    One text that is not in the file's encoding ends pyreadstat's reading. Then all texts are read
    again as Latin 1, in which every byte is a character, and are decoded here.
    """
    options: dict[str, Any] = {"user_missing": user_missing, "disable_datetime_conversion": True}
    try:
        columns, about = _read(path, **options)
    except InvalidInput:
        about = _read(path, user_missing, metadataonly=True)[1]
        encoding = _encoding(path, about.file_encoding)
        found, _ = _read(path, encoding="LATIN1", **options)
        values = ([_decoded(each, encoding) for each in own] for own in found.values())
        return dict(zip(about.column_names, values, strict=True)), about
    return {name: list(values) for name, values in columns.items()}, about


def _decoded(value: Any, encoding: str) -> Any:
    if not isinstance(value, str):
        return value
    text = value.encode("latin-1").decode(encoding, "replace")
    # Of Shift JIS, pyreadstat reads these two signs as a yen sign and an overline.
    return text.translate({ord("\\"): "¥", ord("~"): "‾"}) if encoding == "shift_jis" else text


def _encoding(path: FilePath, named: str | None) -> str:
    """Return the encoding `named` in a file, if Python knows it. Otherwise return that of Windows
    for a file of Stata before version 14, and UTF-8 for any other.
    """
    with suppress(LookupError):
        if named is not None:
            return codecs.lookup(named.replace("BIG-5", "BIG5")).name
    with Path(path).open("rb") as file:
        new = re.match(rb"<stata_dta><header><release>1(1[89]|[2-9])", file.read(64))
    return "cp1252" if Path(path).suffix.lower() == ".dta" and not new else "utf-8"


def _read(path: FilePath, user_missing: bool, **options: Any) -> tuple[Any, Any]:
    """Return the columns and the metadata from pyreadstat."""
    with needing(path):
        import pyreadstat

    check_file(path)
    suffix = Path(path).suffix.lower()
    if user_missing and suffix in _DECLARING:
        options["user_missing"] = True
    read = getattr(pyreadstat, _READERS.get(suffix, f"read_{suffix[1:]}"))
    try:
        found: tuple[Any, Any] = read(os.fspath(path), output_format="dict", **options)
    except OSError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"{os.fspath(path)} cannot be read by pyreadstat ({type(error).__name__}); save it "
            "again, or as CSV"
        ) from None
    return found


class Labels(NamedTuple):
    """The labels and missing codes that an SPSS or Stata file declares for a column.

    `names`: the label of each labelled code. `ranges`: the ranges of codes declared missing, with
    both ends.
    """

    names: Mapping[str, str] = {}
    ranges: Sequence[tuple[Any, Any]] = ()

    def is_missing(self, text: str) -> bool:
        """Return True for the text of a code that the file declares missing."""
        for low, high in self.ranges:
            with suppress(ValueError):
                if text == text_of(low) if isinstance(low, str) else low <= float(text) <= high:
                    return True
        return False


def value_labels(path: FilePath) -> dict[str, Labels]:
    """Return the labels and missing codes that an SPSS or Stata file declares, by column; the
    result is empty for other files.
    """
    if format_of(path) not in CALENDARS:
        return {}
    _, about = _read(path, True, metadataonly=True)
    found = {}
    for name in about.column_names:
        named = about.variable_value_labels.get(name, {})
        ranges = [(each["lo"], each["hi"]) for each in about.missing_ranges.get(name, [])]
        texts = {text_of(code): text_of(label) for code, label in named.items()}
        found[name] = Labels({c: label for c, label in texts.items() if label}, ranges)
    return found


def cell_array(cells: list[Any]) -> Any:
    """Return the cells of a column as an Arrow array, of a union type if their types differ. Only
    cells of types or sizes that Arrow does not have become texts.

    Arrow would convert mixed cells to one type, so that one row decided how others are read: as a
    text, 2020 is a year, and 1234 is not the label "01234".
    """
    held = list(map(_held, cells))
    kinds = list(dict.fromkeys(type(each) for each in held if each is not None))
    parts = [
        pa.array([each if type(each) is kind else None for each in held], from_pandas=True)
        for kind in kinds
    ]
    if len(parts) < 2:
        return parts[0] if parts else pa.nulls(len(held))
    places = [kinds.index(type(each)) if each is not None else 0 for each in held]
    return pa.UnionArray.from_sparse(pa.array(places, pa.int8()), parts)


def _held(cell: Any) -> Any:
    """Return the value that stands for a cell in an Arrow array: a whole number up to `EXACT` in
    absolute value as a float, so that all numbers of a column have one type; None, a Boolean, a
    float, a date or a time unchanged, as are larger whole numbers and durations that Arrow can
    hold; and the text (`text_of`) of anything else.
    """
    if cell is None or isinstance(cell, bool | float | date | time):
        return cell
    if isinstance(cell, int) and abs(cell) <= EXACT:
        return float(cell)
    kind = {int: pa.int64(), timedelta: pa.duration("us")}.get(type(cell))
    if kind is not None:
        with suppress(OverflowError, pa.ArrowInvalid):
            return pa.scalar(cell, kind).as_py()
    return text_of(cell)
