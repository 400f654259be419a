"""Hints from the header line on how a CSV file is written.

The header line contains names, not values, so a contradiction between it and the declared format is
an error. Nothing below the header line decides whether a file is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from pgmkit.errors import InvalidInput
from pgmkit.tables.files.csv_file import SEPARATORS, csv_names, is_csv
from pgmkit.tables.files.foreign import MOST_TITLES, is_excel, sheet_hint
from pgmkit.tables.schema_file import FileFormat

_LIKELY_ENCODINGS = ("utf-8", "cp1252", "cp1250", "cp850", "mac-roman", "utf-16")


def header_hint(path: str | os.PathLike[str], form: FileFormat, absent: Iterable[str]) -> str:
    """Return a clause that names the option with which the file's header has the names `absent`,
    which it lacks otherwise: another separator, encoding, sheet or number of lines above. The
    clause is empty if there is no such option.

    >>> from pgmkit.tables.schema_file import FileFormat
    >>> header_hint("sheet.parquet", FileFormat(), ["wage"])
    ''
    """
    wanted = set(absent)
    if is_excel(path):
        return sheet_hint(path, form, wanted)
    if is_csv(path) and form.names is None:
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
            shown = "tab" if separator == "\t" else f"'{separator}'"
            yield replace(form, separator=separator), f"--separator {shown}"
    for encoding in _LIKELY_ENCODINGS:
        if encoding != form.encoding:
            yield replace(form, encoding=encoding), f"--encoding {encoding}"
    for lines in range(1, MOST_TITLES + 1):
        above = form.skip_lines + lines
        yield replace(form, skip_lines=above), f"--skip-lines {above}"
    if form.skip_lines:
        yield replace(form, skip_lines=0), "--skip-lines 0"
