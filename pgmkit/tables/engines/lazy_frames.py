"""The engines that hold the records of lazy frames, and the scans that run there.

Spark and Dask run a scan (`Scan`) on every partition, in their workers, and add the resulting lines
of counts there: this process receives the sum. DuckDB streams the columns through this process,
which counts. Frames of other libraries are collected, with the needed columns only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.tables.columns import BATCH_ROWS
from pgmkit.tables.engines.scan import Codec, Scan, Tally, code_type, gathered, rows_of_counts

T = TypeVar("T")


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
