"""Columns of files of all formats: their names, whether these are those of a schema, and batches of
their values.

The line of names contains names, not values, so a contradiction between it and the declared format
is an error. Nothing below it decides whether a file is read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from pgmkit.errors import InvalidInput, did_you_mean
from pgmkit.runtime.printed import shell_word
from pgmkit.runtime.untrusted import FilePath
from pgmkit.tables.columns import BATCH_ROWS
from pgmkit.tables.files import foreign
from pgmkit.tables.files.csv_file import SEPARATORS, csv_batches, csv_names, is_index
from pgmkit.tables.files.file_bytes import check_file, path_in_utf8
from pgmkit.tables.files.formats import READ, format_of
from pgmkit.tables.files.json_lines import json_batches, json_names
from pgmkit.tables.schema import Schema
from pgmkit.tables.schema_file import FileFormat

_LIKELY_ENCODINGS = ("utf-8", "cp1252", "cp1250", "cp850", "mac-roman", "utf-16")


def check_columns(
    path: FilePath, schema: Schema, *, ignore_extra: bool = True, also: Sequence[str] = ()
) -> None:
    """Raise InvalidInput if a file lacks a column of the schema or of `also`, or, unless
    `ignore_extra`, has a column beside these, the levels, an index and ignored columns.

    Only the names are read. The keys of JSON lines are not checked if `Schema.placed` made the
    schema, since the keys of a record may tell what it holds: a column that a record lacks is then
    missing in it.
    """
    if format_of(path) == "JSON lines" and not schema.checked and schema.file.sheet is None:
        return
    found = check_names(path, schema.file, all_names(path, schema.file), tuple(schema.columns))
    remedy = "Name one of these as the unit (--unit) or, for linked tables, as the key"
    check_names(path, schema.file, found, tuple(also), remedy, header=True)
    known = {*schema.shown, *also}
    others = [n for n in found if n not in known and not is_left_out(n, schema.file)]
    if others and not ignore_extra:
        raise InvalidInput(
            f"{os.fspath(path)} has columns that the schema does not: "
            f"{', '.join(map(repr, others))}. Describe them, or ignore them: "
            "--ignore-extra-columns, ignore_extra=True, or `ignore` in the schema's `file`"
        )


def names_of(path: FilePath, form: FileFormat) -> list[str]:
    """Return the column names of a file, without an index and the columns that the format
    ignores. Raises InvalidInput for two columns of one name.
    """
    found = check_names(path, form, all_names(path, form), None)
    return [name for name in found if not is_left_out(name, form)]


def is_left_out(name: str, form: FileFormat) -> bool:
    """Return True if the format ignores the column of this name, or if it is an index."""
    return name in form.ignore or is_index(name)


def all_names(path: FilePath, form: FileFormat) -> list[str]:
    """Return the column names of a file, including an index and ignored columns.

    Raises InvalidInput for a file of another format, and for a sheet of a file that is not Excel.
    """
    kind = format_of(path)
    if form.sheet is not None and kind != "Excel":
        raise InvalidInput(f"{os.fspath(path)} is no Excel file and has no sheet {form.sheet!r}")
    if kind is None:
        listed = ", ".join(f"{name} ({', '.join(suffixes)})" for name, suffixes in READ.items())
        raise InvalidInput(
            f"{os.fspath(path)} must be {listed}; CSV and JSON lines also compressed (.gz, .bz2, "
            ".zst); read other formats into a data frame and pass that"
        )
    if kind == "CSV":
        return csv_names(os.fspath(path), form)
    if kind == "parquet":
        with _parquet(os.fspath(path)) as file:
            return list(file.schema_arrow.names)
    if kind == "JSON lines":
        return json_names(os.fspath(path))
    return foreign.foreign_names(path, form)


def check_names(
    path: FilePath,
    form: FileFormat,
    found: list[str],
    names: tuple[str, ...] | None,
    remedy: str = "Use the schema of this file",
    header: bool = False,
) -> list[str]:
    """Return `found`, the names of a file's columns. Raises InvalidInput if one of `names` is not
    among them, with `remedy` at the end of the message, and if two columns have the same of
    `names`; if `names` is None, if two have the same name, unless it is empty. `header`: True if
    the line of names is known to be no record, so that the message may show other names.
    """
    # Without a header, the "names" of a CSV file or a sheet are the values of a record.
    kind = format_of(path)
    bare = not header and (kind == "Excel" or (kind == "CSV" and form.names is None))
    known = {*(names or ())} if bare else {*found}
    shown = [repr(name) if name in known else f"column {i}" for i, name in enumerate(found, 1)]
    for name, times in Counter(found).items():
        if times > 1 and name and (names is None or name in names):
            named = "as " * (name not in known) + shown[found.index(name)]
            raise InvalidInput(f"{os.fspath(path)} has {times} columns named {named}; rename them")
    if absent := [name for name in names or () if name not in found]:
        hidden = " (names beside the schema's are not shown: without a header they are values)"
        raise InvalidInput(
            f"{os.fspath(path)} has no column {', '.join(map(repr, absent))}"
            f"{'' if bare else did_you_mean(absent[0], found)}; it has {', '.join(shown[:30])}"
            f"{hidden * bare}{_header_hint(path, form, absent)}. {remedy}"
        )
    return found


def _header_hint(path: FilePath, form: FileFormat, absent: Iterable[str]) -> str:
    """Return a clause that names the option with which the file's header has the names `absent`,
    which it lacks otherwise: another separator, encoding, sheet or number of lines above. The
    clause is empty if there is no such option.
    """
    wanted = set(absent)
    if format_of(path) == "Excel":
        return foreign.sheet_hint(path, form, wanted)
    if format_of(path) == "CSV" and form.names is None:
        for other, options in _other_formats(form):
            with suppress(InvalidInput, UnicodeError):
                if wanted <= set(csv_names(os.fspath(path), other)):
                    return f"; with {options} its header has them"
    return ""


def _other_formats(form: FileFormat) -> Iterable[tuple[FileFormat, str]]:
    """Yield formats that differ from `form` in one point (separator, encoding, or lines above the
    header), each with the option that declares it.
    """
    for separator in SEPARATORS:
        if separator not in (form.separator, form.decimal):
            shown = "tab" if separator == "\t" else shell_word(separator)
            yield replace(form, separator=separator), f"--separator {shown}"
    for encoding in _LIKELY_ENCODINGS:
        if encoding != form.encoding:
            yield replace(form, encoding=encoding), f"--encoding {encoding}"
    for lines in range(1, foreign.MOST_TITLES + 1):
        above = form.skip_lines + lines
        yield replace(form, skip_lines=above), f"--skip-lines {above}"
    if form.skip_lines:
        yield replace(form, skip_lines=0), "--skip-lines 0"


def batches(
    path: FilePath,
    form: FileFormat,
    names: tuple[str, ...] | None = None,
    broken: list[object] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield batches of records as columns by name, in Arrow arrays: some megabytes of a CSV or JSON
    file at a time, and 65,536 rows of other files. `names`: the columns to read; by default all but
    an index and those that the format ignores.

    `broken`: a list to which an entry is added for each ill-formed line; if None such lines, and a
    file without records, are errors. Raises InvalidInput as `encode_file` does.
    """
    file, given = os.fspath(path), None if names is None else list(names)
    kind = format_of(path)
    if kind == "JSON lines" and given and broken is not None and form.sheet is None:
        found = wanted = given  # unchecked, as the keys of a record may tell what it holds
    else:
        found = check_names(path, form, all_names(path, form), names)
        wanted = [n for n in found if not is_left_out(n, form)] if given is None else given
    if kind == "CSV":
        read = csv_batches(file, form, found, wanted, broken)
    elif kind == "parquet":
        read = _parquet_batches(file, wanted)
    elif kind == "JSON lines":
        read = json_batches(file, wanted, broken, form.decimal)
    else:
        read = map(_arrays, foreign.foreign_table(path, form).select(wanted).to_batches(BATCH_ROWS))
    rows = 0
    for batch in read:
        rows += len(next(iter(batch.values()), ()))
        yield batch
    if not rows and broken is None:
        raise InvalidInput(
            f"{os.fspath(path)} holds no records{foreign.other_sheets(path, form)}; give at least "
            "one"
        )


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    """Open a parquet file. Raises InvalidInput for a file of another kind."""
    check_file(path)
    try:
        with parquet.ParquetFile(path_in_utf8(path)) as file:
            yield file
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"{path} is not a parquet file: {str(error).splitlines()[0]}") from None


def _parquet_batches(path: str, names: list[str]) -> Iterator[dict[str, Any]]:
    with _parquet(path) as file:
        yield from map(_arrays, file.iter_batches(BATCH_ROWS, columns=names))


def _arrays(batch: Any) -> dict[str, Any]:
    """Return the columns of an Arrow record batch by name."""
    return dict(zip(batch.schema.names, batch.columns, strict=True))
