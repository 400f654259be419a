"""Files of JSON lines: each line is an object and one record, and does not change other records.

If columns are asked for, a line that lacks a column's key has a missing value there. Otherwise, as
for a draft, the columns are the keys of the first line. Numbers are read as the texts in the file,
with the decimal sign of its format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pgmkit.errors import InvalidInput
from pgmkit.tables.files.csv_lines import MOST_BYTES, whole_lines
from pgmkit.tables.files.file_bytes import chunks
from pgmkit.tables.values import LONE_SURROGATE


def json_names(path: str) -> list[str]:
    """Return the keys of the first line. Raises InvalidInput if it is no JSON object or has more
    than `MOST_BYTES` bytes.
    """
    first = _record(next(whole_lines(chunks(path, MOST_BYTES)), b"").partition(b"\n")[0])
    if first is not None:
        return list(first)
    raise InvalidInput(f"{path} does not begin with a JSON object; each line must be one")


def json_batches(
    path: str, wanted: Sequence[str], broken: list[object] | None, decimal: str
) -> Iterator[dict[str, Any]]:
    """Yield the wanted columns as Arrow texts, some megabytes at a time. Numbers have the sign
    `decimal` in place of JSON's decimal point, like the texts of numbers beside them.

    A line that is no JSON object, or has more than `MOST_BYTES` bytes, raises InvalidInput or, if
    `broken` is a list, adds an entry to this list. Blank lines are skipped.
    """
    line = 0
    # Blocks are small, since a record that has become Python objects takes about twenty times as
    # much memory as in the file.
    for block in whole_lines(chunks(path, 4 * MOST_BYTES)):
        columns: dict[str, list[str | None]] = {name: [] for name in wanted}
        for text in block.split(b"\n")[:-1]:
            line += 1
            if not text.strip():
                continue
            record = _record(text, decimal)
            if record is None:
                if broken is None:
                    raise InvalidInput(
                        f"{path}, line {line} is no JSON object; each line must be one"
                    )
                broken.append(None)
                continue
            for name, values in columns.items():
                values.append(_text(record.get(name)))
        yield {name: pa.array(values, pa.string()) for name, values in columns.items()}


def _record(text: bytes, decimal: str = ".") -> dict[str, Any] | None:
    """Return the JSON object of a line, its numbers as texts with this decimal sign; None for a
    line that is no object or is longer than `MOST_BYTES`.
    """

    def fraction(number: str) -> str:
        return number.replace(".", decimal)

    if len(text) > MOST_BYTES:
        return None
    try:
        found = json.loads(text, parse_int=str, parse_float=fraction, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(value: object) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return LONE_SURROGATE.sub("\ufffd", text)
