"""What the start of a CSV file tells of how it is written: its byte order mark and header line.

The header line holds names, not values, so a contradiction between it and the declared format is an
error. Nothing below the header line decides whether a file is read.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pgmkit.errors import InvalidInput
from pgmkit.tables.files.foreign import is_excel, sheet_hint

if TYPE_CHECKING:
    from pgmkit.tables.schema_file import FileFormat

__all__ = ["check_mark", "header_hint"]

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""The encoding of each byte order mark; the marks of UTF-32 begin with those of UTF-16."""
_LIKELY_ENCODINGS = ("utf-8", "cp1252", "cp1250", "cp850", "mac-roman", "utf-16")
_LINES_ABOVE = 20
"""Lines above a header that are looked for: titles of tables have fewer."""


def check_mark(path: str, form: FileFormat, start: bytes) -> None:
    """Raises InvalidInput where the file's first bytes are the mark of another encoding.

    Zero bytes in what should be a line of names are those of UTF-16 without a mark.
    """
    marked = next((name for mark, name in _MARKS.items() if start.startswith(mark)), None)
    declared = codecs.lookup(form.encoding).name.removesuffix("-sig")
    if marked is None and declared == "utf-8" and b"\0" in start:
        raise InvalidInput(
            f"the first line of {path} holds zero bytes, as UTF-16 has; name its encoding: "
            "--encoding utf-16-le, or `encoding` in the schema's `file`"
        )
    if marked is not None and not declared.startswith(marked):
        raise InvalidInput(
            f"{path} begins with the byte order mark of {marked.upper()}, but is read as "
            f"{form.encoding}; name its encoding: --encoding {marked}, or `encoding` in the "
            "schema's `file`"
        )


def header_hint(
    path: str | os.PathLike[str], form: FileFormat, found: Sequence[str], absent: Iterable[str]
) -> str:
    """A clause on how the file may be written, where its header lacks the names `absent`.

    Rows of a sheet are compared with the wanted names alone.

    It is empty where no other format is likely. `found`: the names that were read.

    >>> from pgmkit.tables.schema_file import FileFormat
    >>> header_hint("sheet.parquet", FileFormat(), ["age", "wages"], ["wage"])
    "; did you mean 'wages' for 'wage'"
    """
    from pgmkit.tables.files.csv_file import is_csv

    wanted = list(absent)
    if is_csv(path) and form.names is None:
        for other, options in _other_formats(form):
            if _has(os.fspath(path), other, wanted):
                return f"; with {options} its header has them"
    if is_excel(path):
        hint = sheet_hint(path, form, wanted)
        if hint:
            return hint
    near = {name: get_close_matches(name, [n for n in found if n], 1) for name in wanted}
    likely = [f"{close[0]!r} for {name!r}" for name, close in near.items() if close]
    return f"; did you mean {', '.join(likely[:3])}" if likely else ""


def _other_formats(form: FileFormat) -> Iterable[tuple[FileFormat, str]]:
    """Formats that differ in one point, and the options that name it."""
    from pgmkit.tables.files.csv_file import SEPARATORS

    if form.separator is not None:
        for separator in SEPARATORS:
            if separator not in (form.separator, form.decimal):
                shown = "tab" if separator == "\t" else f"'{separator}'"
                yield replace(form, separator=separator), f"--separator {shown}"
    for encoding in _LIKELY_ENCODINGS:
        if encoding != form.encoding:
            yield replace(form, encoding=encoding), f"--encoding {encoding}"
    for lines in range(1, _LINES_ABOVE + 1):
        above = form.skip_lines + lines
        yield replace(form, skip_lines=above), f"--skip-lines {above}"
    if form.skip_lines:
        yield replace(form, skip_lines=0), "--skip-lines 0"


def _has(path: str, form: FileFormat, wanted: Collection[str]) -> bool:
    from pgmkit.tables.files.csv_file import csv_names

    try:
        return set(wanted) <= set(csv_names(path, form))
    except (InvalidInput, UnicodeError):
        return False
