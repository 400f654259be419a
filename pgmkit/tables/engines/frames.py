"""Conversion of data frames to codes and back: pandas, polars, pyarrow, DuckDB, Spark, Dask.

Frames in memory become a `Dataset`. Frames in an engine stay there: `counts_of` gives their
marginals, which the engine counts in passes over the records (`pgmkit.tables.engines.pushdown`).

An engine makes frames of records itself, in parts, when they are read (`made_frame`). It gets an
object that makes the records of a part from the part's number, not the records themselves. For
Spark it is a data frame whose plan begins with a range of numbers, for Dask a data frame with a
partition for each part, for DuckDB a relation over a stream. A part is the same whenever it is
made, so a task that runs again, or a second reading, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import narwhals as nw
import numpy as np
import pyarrow as pa

from pgmkit.errors import InvalidInput, unquoted
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.arguments import one_of
from pgmkit.runtime.typed import typed
from pgmkit.tables.columns import BATCH_ROWS
from pgmkit.tables.engines.pushdown import FrameCounts
from pgmkit.tables.engines.scan import engine_of, text_tally
from pgmkit.tables.files.csv_file import is_index
from pgmkit.tables.labelled import OpenCategorical
from pgmkit.tables.records import arrow_schema, arrow_table, plain_table
from pgmkit.tables.schema import Schema

Frame = nw.DataFrame[Any] | nw.LazyFrame[Any]

_LIBRARIES = ("pandas", "polars", "pyarrow")


@unquoted
def encode(frame: Any, schema: Schema) -> Dataset:
    """Return the frame's columns as codes in memory; columns that the schema does not have are
    ignored.

    Of a lazy frame only the needed columns are collected. Raises InvalidInput for anything but a
    data frame, for missing or duplicate columns, and (unless `Schema.placed` made the schema) for
    no rows, values outside the schema and broken constraints.

    >>> import pyarrow
    >>> from pgmkit import Boolean
    >>> encode(pyarrow.table({"ill": [True, False, True]}), Schema({"ill": Boolean()}))
    Dataset(Domain({'ill': 2}))
    """
    schema.check_names(names_of(frame))
    table = in_memory(frame, list(schema.columns))
    return schema.encode({name: table[name] for name in schema.columns})


@unquoted
def in_memory(frame: Any, names: list[str]) -> nw.DataFrame[Any]:
    """Return the columns `names` of a frame as a narwhals frame in memory; an engine's are
    fetched.
    """
    needed = _wrapped(frame).select(*names)
    return needed.collect() if isinstance(needed, nw.LazyFrame) else needed


@unquoted
def names_of(frame: Any) -> list[str]:
    """Return the frame's column names; raise InvalidInput for anything but a data frame.

    >>> import pyarrow
    >>> names_of(pyarrow.table({"ill": [True], "age": [30]}))
    ['ill', 'age']
    """
    return _wrapped(frame).collect_schema().names()


def other_columns(frame: Any, schema: Schema, also: Iterable[str | None] = ()) -> list[str]:
    """Return the frame's columns that are neither in the schema, nor ignored by its `file`, nor in
    `also`, nor an index of rows.

    >>> import pyarrow
    >>> from pgmkit import Boolean
    >>> other_columns(pyarrow.table({"ill": [True], "age": [30]}), Schema({"ill": Boolean()}))
    ['age']
    """
    known = {*schema.shown, *schema.file.ignore, *also}
    return [name for name in names_of(frame) if name not in known and not is_index(name)]


@typed
@unquoted
def counts_of(
    frame: Any, schema: Schema, expected: Iterable[Iterable[str]] = (), *, keep: bool = False
) -> Dataset | FrameCounts:
    """Return the records to count: codes in memory, or counts by the engine that holds the frame.

    Frames of pandas, polars and pyarrow are encoded here. Those of DuckDB, Spark, Dask and other
    engines are counted there, with the `expected` cliques in the first pass as far as memory
    allows. With `keep` the codes are kept for later passes: Spark and Dask persist them, and for
    DuckDB this process holds them. `mechanisms.synthesize` accepts the result in place of the
    frame, so that many releases can share one pass.

    Raises InvalidInput as `encode` does, and EngineFailed if the engine fails.

    >>> import duckdb
    >>> from pgmkit import Boolean
    >>> schema = Schema({"ill": Boolean(), "old": Boolean()})
    >>> people = duckdb.sql("select true as ill, false as old union all select true, true")
    >>> counts = counts_of(people, schema, [("ill", "old")])
    >>> counts.marginal(("old", "ill")), counts.scans
    (array([[0, 1],
           [0, 1]]), 1)
    """
    wrapped = _wrapped(frame)
    if isinstance(wrapped, nw.LazyFrame) and not wrapped.implementation.is_polars():
        schema.check_names(wrapped.collect_schema().names())
        return FrameCounts(wrapped, schema, expected, keep=keep)
    return encode(frame, schema)


@unquoted
def tally_of(frame: Any, name: str, column: OpenCategorical) -> Counter[str | None]:
    """Return the number of rows of each text of an open column, with that of missing values under
    None. Spark and Dask count in their workers; rows of other frames are counted in this process.

    >>> import pyarrow
    >>> tally_of(pyarrow.table({"job": ["cook", "cook"]}), "job", OpenCategorical())
    Counter({'cook': 2})
    """
    return engine_of(_wrapped(frame).lazy(), [name]).tally(partial(text_tally, name, column))


@dataclass(frozen=True)
class FrameForm:
    """The library of a frame, and whether its frames are lazy; it holds no data and no types.

    >>> import pyarrow
    >>> FrameForm.of(pyarrow.table({"ill": [True]})).lazy
    False
    """

    implementation: Any
    lazy: bool

    @property
    def distributed(self) -> bool:
        """True if workers make such frames: for Spark and Dask."""
        its = self.implementation
        return bool(its.is_pyspark() or its.is_pyspark_connect() or its.is_dask())

    @classmethod
    def of(cls, frame: Any) -> FrameForm:
        """Return the form of a data frame, of the frame that a `FrameCounts` counts, or of frames
        in memory of the library named "pandas", "polars" or "pyarrow".

        Raises InvalidInput for another name and for an object that is not a data frame.
        """
        if isinstance(frame, str):
            known = one_of(frame, _LIBRARIES, "a library (for others give a data frame)")
            return cls(nw.Implementation(known), lazy=False)
        if isinstance(frame, FrameCounts):
            return cls(frame.library, lazy=True)
        wrapped = _wrapped(frame)
        return cls(wrapped.implementation, isinstance(wrapped, nw.LazyFrame))


def decode(data: Dataset, schema: Schema, rng: np.random.Generator, form: FrameForm) -> Any:
    """Return the values of the coded records as a frame of this form, made in this process (by
    `made_frame` engines make frames themselves).

    The order and types of its columns are the schema's; they do not depend on the frame that was
    encoded. A lazy form gives a lazy frame, or a relation, over the records in memory.
    """
    return framed(arrow_table(data, schema, rng), schema, form)


def framed(table: Any, schema: Schema, form: FrameForm) -> Any:
    """Return a pyarrow table of values as a frame of this form; `schema` gives the types for
    pandas.
    """
    library = form.implementation
    if library.is_pandas():
        return pandas_frame(table, schema)
    if not form.lazy:
        return nw.DataFrame.from_arrow(table, backend=library).to_native()
    return nw.from_native(table).lazy(library).to_native()


def pandas_frame(table: Any, schema: Schema) -> Any:
    """Return a pyarrow table as a pandas frame, in which whole numbers and truth values keep their
    types also in columns that can have missing values.
    """
    import pandas as pd

    nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    columns = {}
    for name in table.column_names:
        column = schema.shown.get(name)
        types = nullable.get if column is not None and column.nullable else None
        frame = table.select([name]).to_pandas(date_as_object=False, types_mapper=types)
        columns[name] = frame[name]
    return pd.DataFrame(columns)


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


def _wrapped(frame: Any) -> Frame:
    try:
        wrapped: Frame = nw.from_native(frame)
        names = wrapped.collect_schema().names()
    except TypeError:
        known = "pandas, polars, pyarrow, DuckDB, PySpark or Dask"
        raise InvalidInput(
            f"the data must be a data frame ({known}), got {type(frame).__name__}; make one of "
            "rows by pandas.DataFrame(rows, columns=names)"
        ) from None
    except nw.exceptions.DuplicateError as error:
        said = " ".join(str(error).split())
        raise InvalidInput(
            f"the data have several columns of one name; rename them ({said:.80})"
        ) from None
    for name, times in Counter(names).items():
        if times > 1:
            raise InvalidInput(f"the data have {times} columns named {name!r}; rename them")
    return wrapped
