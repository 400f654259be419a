"""Parquet files: the names of their columns, and their records in batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from pgmkit.errors import InvalidInput
from pgmkit.tables.columns import BATCH_ROWS
from pgmkit.tables.files.file_bytes import check_file, path_in_utf8


def parquet_names(path: str) -> list[str]:
    """Return the names of all columns. Raises InvalidInput for a file of another kind."""
    with _parquet(path) as file:
        return list(file.schema_arrow.names)


def parquet_batches(path: str, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield batches of at most `BATCH_ROWS` rows: the columns `names` as Arrow arrays, by name.
    Raises InvalidInput for a file of another kind.
    """
    with _parquet(path) as file:
        yield from map(arrays, file.iter_batches(BATCH_ROWS, columns=names))


def arrays(batch: Any) -> dict[str, Any]:
    """Return the columns of an Arrow record batch by name."""
    return {name: batch.column(name) for name in batch.schema.names}


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    check_file(path)
    try:
        with parquet.ParquetFile(path_in_utf8(path)) as file:
            yield file
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"{path} is not a parquet file: {str(error).splitlines()[0]}") from None
