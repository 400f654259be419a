"""Reading CSV files: header, separator, compression, encoding, ill-formed lines."""

from __future__ import annotations

import codecs
import csv
import itertools
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgmkit.errors import InvalidInput

if TYPE_CHECKING:
    from pgmkit.tables.schema_file import FileFormat

__all__ = [
    "csv_batches",
    "csv_names",
    "first_lines",
    "is_csv",
    "is_index",
    "likely_separator",
    "separator_of",
]

_SUFFIXES = (".csv", ".data", ".txt", ".tsv")
_COMPRESSED = (".gz", ".bz2", ".zst")
_SEPARATORS = (",", ";", "\t", "|")
_BLOCK = 1 << 24
"""Bytes read at a time: each distinct text of a block is looked at once."""


def is_csv(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name says that it is CSV, compressed or not."""
    return _plain(path).suffix.lower() in _SUFFIXES


def is_index(name: str) -> bool:
    """Whether a column is the row numbers that pandas and R write: unnamed, or named so."""
    return name in ("", "Unnamed: 0") or name.startswith("__index_level_")


def _plain(path: str | os.PathLike[str]) -> Path:
    found = Path(path)
    return found.with_suffix("") if found.suffix.lower() in _COMPRESSED else found


def csv_names(path: str, form: FileFormat) -> list[str]:
    """The column names: given, or the file's first line."""
    if form.names is not None:
        return list(form.names)
    _, line = _header(path, form)
    header = next(csv.reader([line], delimiter=separator_of(path, form)), [])
    names = [name.strip() for name in header]
    if not any(names):
        raise InvalidInput(f"{path} is empty, or its first line holds no column names")
    return names


def separator_of(path: str, form: FileFormat) -> str:
    """The separator: given, or the one that the file's name or its header line shows."""
    if form.separator is not None:
        return form.separator
    if _plain(path).suffix.lower() == ".tsv":
        return "\t"
    if form.names is not None:
        return ";" if form.decimal == "," else ","
    return likely_separator(_header(path, form)[1])


def likely_separator(line: str) -> str:
    """The separator that occurs most in a line, quoted texts aside.

    >>> likely_separator('"a,b,c";d')
    ';'
    """
    unquoted = "".join(line.split('"')[::2])
    return max(_SEPARATORS, key=unquoted.count)


def first_lines(path: str, form: FileFormat, most: int) -> list[str]:
    """The first lines of a file, comments among them, without their ends."""
    return list(itertools.islice(_lines(path, form), most))


def _header(path: str, form: FileFormat) -> tuple[int, str]:
    """The first line that is no comment, and how many are before it."""
    for before, line in enumerate(_lines(path, form)):
        if form.comment is None or not line.startswith(form.comment):
            return before, line
    return 0, ""


def _lines(path: str, form: FileFormat) -> Iterator[str]:
    """The first line alone must be text: what follows must not decide whether it can be read."""
    import io

    import pyarrow as pa

    try:
        with pa.input_stream(path, compression="detect") as raw:
            buffered = io.BufferedReader(raw)
            if _is_utf8(form):
                yield buffered.readline().decode("utf-8-sig").rstrip("\r\n")
            for line in io.TextIOWrapper(buffered, form.encoding, errors="replace"):
                yield line.rstrip("\r\n")
    except UnicodeError:
        raise InvalidInput(_not_text(path, form)) from None


def _is_utf8(form: FileFormat) -> bool:
    return codecs.lookup(form.encoding).name == "utf-8"


def csv_batches(
    path: str,
    form: FileFormat,
    header: list[str],
    wanted: list[str],
    broken: list[object] | None,
    repeating: Collection[str] = (),
) -> Iterator[dict[str, Any]]:
    """The wanted columns as Arrow texts, those `repeating` as dictionaries of texts.

    See `pgmkit.tables.files.batches`.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    malformed: list[int | None] = []

    def judge(row: Any) -> str:
        if form.comment is not None and row.text.startswith(form.comment):
            return "skip"
        if broken is not None:
            broken.append(None)
            return "skip"
        malformed.append(row.number)
        return "error"

    # Bytes are decoded by the column: one that is no text must not stop a placed schema.
    utf8 = _is_utf8(form)
    kind = pa.binary() if utf8 else pa.string()
    # The reader finds distinct texts in the time that it takes to hold all of them.
    few = pa.dictionary(pa.int32(), kind)
    kinds = {name: few if name in repeating else kind for name in header}
    try:
        with pa.input_stream(path, compression="detect") as raw:
            reader = arrow_csv.open_csv(
                raw,
                read_options=arrow_csv.ReadOptions(
                    column_names=header,
                    skip_rows=0 if form.names else 1 + _header(path, form)[0],
                    use_threads=False,
                    block_size=_BLOCK,
                    encoding="utf8" if utf8 else form.encoding,
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=separator_of(path, form), invalid_row_handler=judge
                ),
                convert_options=arrow_csv.ConvertOptions(
                    include_columns=wanted,
                    column_types=kinds,
                    strings_can_be_null=False,
                    quoted_strings_can_be_null=False,
                ),
            )
            for batch in reader:
                yield {
                    name: _texts(batch.column(name), broken is not None)
                    for name in batch.schema.names
                }
    except pa.ArrowInvalid as error:
        if "mpty" in str(error) and broken is not None:
            return
        raise InvalidInput(_fault(path, form, header, malformed, str(error))) from None
    except UnicodeError:
        raise InvalidInput(_not_text(path, form)) from None


def _texts(values: Any, tolerant: bool) -> Any:
    """Bytes as texts; with `tolerant`, those that are no UTF-8 with replacement signs."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        return pa.DictionaryArray.from_arrays(values.indices, _texts(values.dictionary, tolerant))
    if pa.types.is_string(values.type):
        return values
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        if not tolerant:
            raise
    known = values.dictionary_encode()
    texts = [each.decode("utf-8", "replace") for each in known.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(known.indices)


def _not_text(path: str, form: FileFormat) -> str:
    return (
        f"{path} is not text in {form.encoding.upper()}; name its encoding: --encoding, or "
        "`encoding` in the schema's `file`"
    )


def _fault(
    path: str, form: FileFormat, header: list[str], malformed: list[int | None], said: str
) -> str:
    if malformed:
        line = "" if malformed[0] is None else f", line {malformed[0]}"
        return (
            f"{path}{line}: a record does not have {len(header)} values, as the columns have "
            f"(separator {separator_of(path, form)!r}; name another: --separator)"
        )
    if "UTF8" in said or "UTF-8" in said:
        return _not_text(path, form)
    if "mpty" in said:
        return f"{path} holds no records"
    # The reader's own message could quote values.
    return f"{path} is not a well-formed CSV file"
