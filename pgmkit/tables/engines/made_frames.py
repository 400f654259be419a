"""Frames of records that an engine makes itself, in parts, when they are read.

The engine gets an object that makes the records of a part from the part's number, not the records
themselves. For Spark it is a data frame whose plan begins with a range of numbers, for Dask a data
frame with a partition for each part, for DuckDB a relation over a stream. A part is the same
whenever it is made, so a task that runs again, or a second reading, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from pgmkit.errors import InvalidInput
from pgmkit.tables.columns import BATCH_ROWS
from pgmkit.tables.engines.frames import FrameForm, pandas_frame
from pgmkit.tables.records import arrow_schema, plain_table
from pgmkit.tables.schema import Schema


class TableParts(Protocol):
    """Records in parts; the object can be pickled, and makes a part from its number alone."""

    @property
    def count(self) -> int: ...
    def tables(self, start: int, stop: int) -> Iterator[Any]:
        """Yield parts `start` to `stop` - 1 as pyarrow tables of the schema's types."""
        ...


def made_frame(parts: TableParts, schema: Schema, form: FrameForm, like: Any = None) -> Any:
    """Return the records as a frame of Spark or Dask with a partition for each part, or as a
    relation of DuckDB.

    `like`: a frame of the session in which a Spark frame is made; by default the active session.
    Raises InvalidInput for Spark if there is no session. The workers need pgmkit installed.
    """
    library = form.implementation
    if library.is_dask():
        import dask.dataframe

        empty = pandas_frame(arrow_schema(schema).empty_table(), schema)
        made = partial(_pandas_part, parts, schema)
        return dask.dataframe.from_map(made, range(parts.count), meta=empty)
    if library.is_duckdb():
        import duckdb

        return duckdb.from_arrow(_Stream(parts, schema))
    from pyspark.sql.pandas.types import from_arrow_schema

    session = _active_session(library) if like is None else like.sparkSession
    numbers = session.range(0, parts.count, 1, parts.count)
    plain = plain_table(arrow_schema(schema).empty_table()).schema
    types = from_arrow_schema(plain, prefer_timestamp_ntz=True)
    return numbers.mapInArrow(partial(_batches, parts), types)


def _batches(parts: TableParts, numbers: Iterable[Any]) -> Iterator[Any]:
    """Yield the records of some parts, as Arrow batches. The first column of the batches
    `numbers` has the numbers of these parts.
    """
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for table in parts.tables(number, number + 1):
                yield from plain_table(table).to_batches(max_chunksize=BATCH_ROWS)


def _pandas_part(parts: TableParts, schema: Schema, number: int) -> Any:
    """Return part `number` of the records as a pandas frame: a partition of a Dask data frame."""
    (table,) = parts.tables(number, number + 1)
    return pandas_frame(table, schema)


def _active_session(library: Any) -> Any:
    room = "connect.session" if library.is_pyspark_connect() else "session"
    session = import_module(f"pyspark.sql.{room}").SparkSession.getActiveSession()
    if session is None:
        raise InvalidInput("there is no active Spark session to make the records in; give like=")
    return session


@dataclass(frozen=True)
class _Stream:
    """A stream that DuckDB reads from the beginning each time, one part at a time."""

    parts: TableParts
    schema: Schema

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        made = (
            batch
            for table in self.parts.tables(0, self.parts.count)
            for batch in table.to_batches(max_chunksize=BATCH_ROWS)
        )
        reader = pa.RecordBatchReader.from_batches(arrow_schema(self.schema), made)
        return reader.__arrow_c_stream__(requested_schema)
