"""Data frames in, coded data out, and back: pandas, polars, pyarrow, DuckDB, Spark, Dask.

Frames in memory become a `Dataset`. Frames that live in an engine stay there: `counts_of` gives
their marginals by group-by on that engine (see `pgmkit.tables.pushdown`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import narwhals as nw
import numpy as np

from pgmkit.dataset import Dataset
from pgmkit.errors import InvalidInput
from pgmkit.tables.pushdown import FrameCounts
from pgmkit.tables.schema import Schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FrameForm", "counts_of", "decode", "encode", "names_of"]

Frame = nw.DataFrame[Any] | nw.LazyFrame[Any]


def encode(frame: Any, schema: Schema) -> Dataset:
    """The frame's columns as codes in memory; columns that the schema does not have are ignored.

    A lazy frame is collected, its needed columns only. Raises InvalidInput for what is no data
    frame, for missing or duplicate columns, and for values outside the schema.

    >>> import pyarrow
    >>> from pgmkit.tables.schema import Boolean
    >>> encode(pyarrow.table({"ill": [True, False, True]}), Schema({"ill": Boolean()}))
    Dataset(Domain({'ill': 2}))
    """
    wrapped = _wrapped(frame)
    schema.check_names(_names(wrapped))
    needed = wrapped.select(*schema.columns)
    table = needed.collect() if isinstance(needed, nw.LazyFrame) else needed
    if len(table) == 0:
        raise InvalidInput("the data have no rows; give at least one")
    return schema.encode({name: table[name].to_numpy() for name in schema.columns})


def names_of(frame: Any) -> list[str]:
    """The frame's column names. Raises InvalidInput for what is no data frame.

    >>> import pyarrow
    >>> names_of(pyarrow.table({"ill": [True], "age": [30]}))
    ['ill', 'age']
    """
    return _names(_wrapped(frame))


def counts_of(frame: Any, schema: Schema) -> Dataset | FrameCounts:
    """What is counted from: codes in memory, or the engine that holds the frame.

    Frames in memory (pandas, polars, pyarrow) are encoded; those of DuckDB, Spark, Dask and other
    engines are counted where they are.
    """
    wrapped = _wrapped(frame)
    if isinstance(wrapped, nw.LazyFrame) and not wrapped.implementation.is_polars():
        schema.check_names(_names(wrapped))
        return FrameCounts(wrapped, schema)
    return encode(frame, schema)


@dataclass(frozen=True)
class FrameForm:
    """What kind of frame it was: names, types and narwhals implementation, without any data.

    >>> import pyarrow
    >>> FrameForm.of(pyarrow.table({"ill": [True]})).kinds
    {'ill': Boolean}
    """

    kinds: Mapping[str, Any]
    implementation: Any
    lazy: bool

    @classmethod
    def of(cls, frame: Any) -> FrameForm:
        """The form of a frame; InvalidInput for what is none."""
        wrapped = _wrapped(frame)
        kinds = dict(wrapped.collect_schema())
        return cls(kinds, wrapped.implementation, isinstance(wrapped, nw.LazyFrame))


def decode(data: Dataset, schema: Schema, rng: np.random.Generator, form: FrameForm) -> Any:
    """The codes as a frame of this form, its columns' order and types.

    Columns that the schema does not have are left out. Engines get a frame of theirs back: a
    LazyFrame, a DuckDB relation, a Dask or (in the active session) a Spark data frame.
    """
    names = [name for name in form.kinds if name in schema.columns]
    implementation = form.implementation
    eager: Any = (
        nw.Implementation.PYARROW
        if form.lazy and not implementation.is_polars()
        else implementation
    )
    values = schema.decode(data, rng)
    table = nw.from_dict({name: _plain(values[name]) for name in names}, backend=eager)
    table = table.with_columns(*(_cast(table, name, form.kinds[name]) for name in names))
    if not form.lazy:
        return table.to_native()
    session = None
    if implementation.is_pyspark():
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
    return table.lazy(implementation, session=session).to_native()


def _wrapped(frame: Any) -> Frame:
    try:
        wrapped: Frame = nw.from_native(frame)
        names = _names(wrapped)
    except (TypeError, ValueError) as error:
        known = "pandas, polars, pyarrow, DuckDB, PySpark or Dask"
        raise InvalidInput(
            f"the data must be a data frame ({known}) with distinct column names, "
            f"got {type(frame).__name__}: {type(error).__name__}"
        ) from None
    for name, times in Counter(names).items():
        if times > 1:
            raise InvalidInput(f"the data have {times} columns named {name!r}; rename them")
    return wrapped


def _names(frame: Frame) -> list[str]:
    if isinstance(frame, nw.LazyFrame):
        return frame.collect_schema().names()
    return frame.columns


def _plain(values: NDArray[Any]) -> Any:
    """What every library builds a column from: an array, or a list where values are mixed."""
    return values.tolist() if values.dtype == object else values


def _cast(table: nw.DataFrame[Any], name: str, kind: Any) -> nw.Expr:
    """The column in its original type, where the values still fit it."""
    column = nw.col(name)
    if table[name].dtype == kind or isinstance(kind, nw.Unknown | nw.Object):
        return column
    if kind.is_integer() and table[name].is_null().any():
        return column
    return column.cast(kind)
