"""Passes over the records of a frame, each run by the engine that holds them: records are coded and
counted, or their texts are counted.

A scan is a small object that travels to the records: it holds columns and cliques, and no data.
Spark and Dask run it on every partition, in their workers, and add the resulting lines of counts
there, in any order: this process receives the sum. DuckDB streams the columns through this process,
which counts. Frames of other libraries are collected, with the needed columns only.

Columns are coded by the code that encodes frames in memory, so the counts are identical. Texts too
are made by the same code everywhere, and an engine only transports them: its own grouping may merge
values that are different texts (0.0 and -0.0, letters that a collation equates).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, TypeAlias, TypeVar

import narwhals as nw
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput
from pgmkit.records.counting import CountingPlan
from pgmkit.tables.columns import BATCH_ROWS, Column
from pgmkit.tables.labelled import OpenCategorical

T = TypeVar("T")
Codes = dict[str, NDArray[np.unsignedinteger[Any]]]
Tally: TypeAlias = Callable[[Iterable[Any]], Counter[str | None]]
"""A function that returns the number of rows of each text in frames in memory, as `text_tally` does
for a column. It holds no data and is sent to where the records are.
"""


@dataclass(frozen=True)
class Codec:
    """An encoder of frames, which returns the codes of each column in the smallest unsigned type
    that holds them; it holds `columns`, the columns' definitions, and no data.

    A value without a code of its own gets the code `size`, one more than the last code, whatever
    the column declares as `outside`. `kept`: whether the frames already contain codes of the types
    of `code_type`, as an engine keeps them.
    """

    columns: Mapping[str, Column]
    kept: bool = False

    def coded(self, frame: Any) -> Codes:
        """Return the codes of one frame in memory."""
        wrapped = nw.from_native(frame)
        found = {}
        for name, column in self.columns.items():
            if self.kept:
                codes = wrapped[name].to_numpy()
            else:
                codes, unread = column.read(wrapped[name])
                codes = np.where(unread, column.size, codes)
            found[name] = codes.astype(np.min_scalar_type(column.size))
        return found

    def pandas_codes(self, frame: Any) -> Any:
        """Return the codes of a frame of values as a pandas frame, which an engine keeps."""
        import pandas as pd

        return pd.DataFrame(self._signed(frame))

    def arrow_codes(self, frames: Iterable[Any]) -> Iterator[Any]:
        """Yield frames or Arrow batches of values as Arrow batches of codes, for an engine
        to keep.
        """
        for frame in gathered(frames):
            yield pa.RecordBatch.from_pydict(self._signed(frame))

    def _signed(self, frame: Any) -> dict[str, NDArray[np.signedinteger[Any]]]:
        codes = self.coded(frame)
        return {n: codes[n].astype(code_type(column)) for n, column in self.columns.items()}


def code_type(column: Column) -> np.dtype[np.signedinteger[Any]]:
    """Return the smallest signed integer type that holds the column's codes and the number
    ``column.size``, which stands for values without a code (`Codec`). Some engines have no unsigned
    types.
    """
    return np.min_scalar_type(-column.size - 1)


@dataclass(frozen=True)
class Scan:
    """The counts of one pass: for each column the number of rows with a value that has no code of
    its own, and a table for each clique.

    The result is a line of int64: the numbers of such rows, in the columns' order, then the cells
    of each table in turn. In the tables, such values count where `outside` says or, if the column
    declares none, as code 0.

    >>> import pyarrow
    >>> from pgmkit import Boolean
    >>> scan = Scan(Codec({"ill": Boolean()}), (("ill",), ()))
    >>> scan.line([pyarrow.table({"ill": [True, None]}), pyarrow.table({"ill": [True]})])
    array([1, 1, 2, 3])
    """

    codec: Codec
    cliques: tuple[Clique, ...]

    @cached_property
    def places(self) -> dict[Clique, slice]:
        """A slice for each clique, which cuts its table out of the result of `line`. The result
        begins with one number for each column, which counts its values without a code.
        """
        found, start = {}, len(self.codec.columns)
        for clique in self.cliques:
            cells = math.prod(self.codec.columns[name].size for name in clique)
            found[clique] = slice(start, start + cells)
            start += cells
        return found

    @property
    def length(self) -> int:
        """The number of entries of the vector that `line` returns."""
        return max((place.stop for place in self.places.values()), default=len(self.codec.columns))

    def line(self, frames: Iterable[Any]) -> NDArray[np.int64]:
        """Return all counts of the scan as one vector, over all records of these frames (pandas,
        polars, pyarrow).
        """
        line = np.zeros(self.length, dtype=np.int64)
        sizes = tuple((name, column.size) for name, column in self.codec.columns.items())
        for codes in map(self.codec.coded, frames):
            for i, (name, column) in enumerate(self.codec.columns.items()):
                unread = codes[name] == column.size
                line[i] += int(unread.sum())
                codes[name][unread] = max(column.outside_code, 0)
            if rows := len(next(iter(codes.values()))):
                # Plans are made for numbers of rows in powers of two, so that most frames share
                # one.
                plan = _plan(sizes, self.cliques, 1 << rows.bit_length())
                for clique, table in plan.count(codes, rows).items():
                    line[self.places[clique]] += table.reshape(-1)
        return line

    def rows_of_line(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield a single Arrow batch, for the records of all these batches together: the nonzero
        entries of `line`, as their places in it (`cell`) and their values (`rows`).
        """
        line = self.line(gathered(batches))
        cells = np.flatnonzero(line)
        yield pa.RecordBatch.from_pydict({"cell": pa.array(cells), "rows": pa.array(line[cells])})


def gathered(frames: Iterable[Any]) -> Iterator[Any]:
    """Yield Arrow batches joined to tables of at least `BATCH_ROWS` rows, except for the last one;
    other frames are yielded unchanged.
    """
    held, rows = list[Any](), 0
    for frame in frames:
        if not isinstance(frame, pa.RecordBatch):
            yield frame
            continue
        held.append(frame)
        rows += len(frame)
        if rows >= BATCH_ROWS:
            yield pa.Table.from_batches(held)
            held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held)


@lru_cache(maxsize=8)
def _plan(
    sizes: tuple[tuple[str, int], ...], cliques: tuple[Clique, ...], rows: int
) -> CountingPlan:
    return CountingPlan(dict(sizes), cliques, rows)


def text_tally(name: str, column: OpenCategorical, frames: Iterable[Any]) -> Counter[str | None]:
    """Return the number of rows of each text of an open column, with missing ones under None, in
    these frames in memory.

    >>> import pyarrow
    >>> from pgmkit.tables.labelled import OpenCategorical
    >>> jobs = pyarrow.table({"job": ["cook", None, "cook"]})
    >>> sorted(text_tally("job", OpenCategorical(), [jobs]).items(), key=str)
    [('cook', 2), (None, 1)]
    """
    found: Counter[str | None] = Counter()
    for frame in frames:
        found.update(column.tally(nw.from_native(frame)[name]))
    return found


def rows_of_counts(tally: Tally, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield one Arrow batch with each different text of these batches (null for missing ones) and
    the number of rows that have it.
    """
    found = tally(gathered(batches))
    texts, rows = pa.array(list(found), pa.string()), pa.array(list(found.values()), pa.int64())
    yield pa.RecordBatch.from_pydict({"text": texts, "rows": rows})


def engine_of(frame: nw.LazyFrame[Any], names: Sequence[str]) -> Engine:
    """Return the engine that holds the records of these columns. Raises InvalidInput for a version
    of DuckDB that cannot stream them.
    """
    needed = frame.select(*names)
    library, native = frame.implementation, needed.to_native()
    if library.is_pyspark() or library.is_pyspark_connect():
        return _Spark(native)
    if library.is_dask():
        return _Dask(native)
    if library.is_duckdb():
        if not hasattr(native, "to_arrow_reader"):
            raise InvalidInput(
                "this version of DuckDB cannot be read; install duckdb 1.5 or newer, or give the "
                "relation as a pyarrow table"
            )
        return _Here(lambda: gathered(native.to_arrow_reader(BATCH_ROWS)))
    return _Here(lambda: [needed.collect().to_native()])


@dataclass(frozen=True)
class _Spark:
    """A Spark data frame, classic or Connect; only the data frame's own methods are used.

    Spark runs a failed task again, and only the lines of finished tasks are added.
    """

    frame: Any

    def line(self, scan: Scan) -> NDArray[np.int64]:
        """Return the scan's counts as one vector (`Scan.line`); a group-by in Spark adds the counts
        of the partitions.
        """
        found = self.frame.mapInArrow(scan.rows_of_line, "cell long, rows long")
        added = nw.from_native(found.groupBy("cell").sum("rows").toDF("cell", "rows")).collect()
        line = np.zeros(scan.length, dtype=np.int64)
        line[added["cell"].to_numpy()] = added["rows"].to_numpy()
        return line

    def tally(self, tally: Tally) -> Counter[str | None]:
        """Return the number of rows of each text of an open column, None for missing values; this
        process adds the partitions' numbers.
        """
        found = self.frame.mapInArrow(partial(rows_of_counts, tally), "text string, rows long")
        parts = nw.from_native(found).collect()
        added: Counter[str | None] = Counter()
        for text, number in parts.select("text", "rows").iter_rows():
            added[text] += number
        return added

    def kept(self, codec: Codec) -> Engine:
        """Return an engine with the codes as a persisted data frame."""
        from pyspark.sql.types import ByteType, IntegerType, ShortType, StructType

        kinds, types = {1: ByteType(), 2: ShortType(), 4: IntegerType()}, StructType()
        for name, column in codec.columns.items():
            types.add(name, kinds[code_type(column).itemsize])
        return _Spark(self.frame.mapInArrow(codec.arrow_codes, types).persist())


@dataclass(frozen=True)
class _Dask:
    """A Dask data frame."""

    frame: Any

    def line(self, scan: Scan) -> NDArray[np.int64]:
        """Return the scan's counts as one vector: a tree of tasks adds those of the partitions."""
        return self._added(scan.line, partial(np.sum, axis=0, dtype=np.int64))

    def tally(self, tally: Tally) -> Counter[str | None]:
        """Return the number of rows of each text of an open column, None for missing values; a tree
        of tasks adds the partitions' numbers.
        """
        return self._added(tally, partial(sum, start=Counter()))

    def _added(self, counted: Callable[[list[Any]], T], added: Callable[[list[T]], T]) -> T:
        from dask.delayed import delayed

        parts = [delayed(counted)([part]) for part in self.frame.to_delayed()]
        while len(parts) > 1:
            parts = [delayed(added)(parts[i : i + 2]) for i in range(0, len(parts), 2)]
        result: T = parts[0].compute()
        return result

    def kept(self, codec: Codec) -> Engine:
        """Return an engine with the codes as a persisted data frame."""
        kinds = {name: code_type(column) for name, column in codec.columns.items()}
        return _Dask(self.frame.map_partitions(codec.pandas_codes, meta=kinds).persist())


@dataclass(frozen=True)
class _Here:
    """Records that stream through this process; each call of `frames` begins a new pass."""

    frames: Callable[[], Iterable[Any]]

    def line(self, scan: Scan) -> NDArray[np.int64]:
        """Return the scan's counts as one vector, added up over the frames as they arrive."""
        return scan.line(self.frames())

    def tally(self, tally: Tally) -> Counter[str | None]:
        """Return the number of rows of each text of an open column, None for missing values,
        counted in the frames as they arrive.
        """
        return tally(self.frames())

    def kept(self, codec: Codec) -> Engine:
        """Return an engine with the codes in memory: one byte a value for columns of up to 127
        codes.
        """
        codes = list(codec.arrow_codes(self.frames()))
        return _Here(lambda: gathered(codes))


Engine: TypeAlias = _Spark | _Dask | _Here
"""An object that counts the records of some columns where they are held."""
