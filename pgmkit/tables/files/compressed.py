"""Files that may be compressed: their suffix without the compression's, and their bytes in
chunks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa


def plain_suffix(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a file in small letters, without that of its compression.

    >>> plain_suffix("people.CSV.gz")
    '.csv'
    """
    found = Path(path)
    compressed = found.suffix.lower() in (".gz", ".bz2", ".zst")
    return (found.with_suffix("") if compressed else found).suffix.lower()


def chunks(path: str, size: int) -> Iterator[bytes]:
    """Yield the uncompressed bytes of a file, `size` at a time."""
    with pa.input_stream(path, compression="detect") as raw:
        yield from iter(lambda: raw.read(size), b"")
