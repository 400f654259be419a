"""Files of JSON lines: each line is an object, a record by itself that changes no other.

The keys of the first line stand for a header. A key that other lines lack is missing there, and one
that the first line lacks is not read. Numbers are read as the texts that they are written as.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pgmkit.errors import InvalidInput
from pgmkit.tables.files.csv_lines import MOST_BYTES, whole_lines

__all__ = ["JSON_LINES", "is_json_lines", "json_batches", "json_names"]

JSON_LINES = (".jsonl", ".ndjson")
_COMPRESSED = (".gz", ".bz2", ".zst")
_BLOCK = 1 << 22
"""Bytes whose records are held as Python objects at a time, some twenty times as large."""


def is_json_lines(path: str | os.PathLike[str]) -> bool:
    """True where a file's name says that it holds JSON lines, compressed or not."""
    found = Path(path)
    plain = found.with_suffix("") if found.suffix.lower() in _COMPRESSED else found
    return plain.suffix.lower() in JSON_LINES


def json_names(path: str) -> list[str]:
    """The keys of the first line."""
    for block in _blocks(path, 1 << 16):
        first = _record(block.partition(b"\n")[0])
        if first is None:
            break
        return list(first)
    raise InvalidInput(f"{path} does not begin with a JSON object; each line must be one")


def json_batches(
    path: str, wanted: Sequence[str], broken: list[object] | None
) -> Iterator[dict[str, Any]]:
    """The wanted columns as Arrow texts, some megabytes at a time.

    A line that is no JSON object is an error, or, where `broken` is a list, an entry of it.
    """
    import pyarrow as pa

    rows = line = 0
    for block in _blocks(path, _BLOCK):
        columns: list[list[str | None]] = [[] for _ in wanted]
        for text in block.split(b"\n")[:-1]:
            line += 1
            if not text.strip():
                continue
            record = _record(text)
            if record is None:
                if broken is None:
                    raise InvalidInput(
                        f"{path}, line {line} is no JSON object; each line must be one"
                    )
                broken.append(None)
                continue
            for name, values in zip(wanted, columns, strict=True):
                values.append(_text(record.get(name)))
        rows += len(columns[0]) if columns else 0
        yield {
            name: pa.array(values, pa.string())
            for name, values in zip(wanted, columns, strict=True)
        }
    if not rows and broken is None:
        raise InvalidInput(f"{path} holds no records")


def _blocks(path: str, size: int) -> Iterator[bytes]:
    import pyarrow as pa

    with pa.input_stream(path, compression="detect") as raw:
        yield from whole_lines(iter(lambda: raw.read(size), b""))


def _record(text: bytes) -> dict[str, Any] | None:
    """The object of a line; None for what is none, and for longer lines than records may be."""
    if len(text) > MOST_BYTES:
        return None
    try:
        found = json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "replace").decode()
