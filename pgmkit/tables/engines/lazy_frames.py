"""Engines that hold the records of lazy frames, and scans that run there.

Spark and Dask run a scan on every partition, in their workers, and add the lines there: this
process receives the sum. DuckDB streams the columns through this process, which counts. Frames of
other libraries are collected, the needed columns only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import narwhals as nw
import numpy as np

from pgmkit.tables.columns import BATCH_ROWS
from pgmkit.tables.engines.scan import Codec, Scan, code_type, gathered
from pgmkit.tables.engines.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Engine", "engine_of"]

T = TypeVar("T")

_ADDED_TOGETHER = 8
"""Lines that one Dask task adds: a tree of tasks, so that no worker holds many."""


class Engine(ABC):
    """Records somewhere, of some columns."""

    @abstractmethod
    def line(self, scan: Scan) -> NDArray[np.int64]:
        """One pass over the records; see `Scan`."""

    @abstractmethod
    def tally(self, tally: Tally) -> Counter[str | None]:
        """One pass over the records of one column; see `Tally`."""

    @abstractmethod
    def kept(self, codec: Codec) -> Engine:
        """The records as codes, which later scans need not code again."""


def engine_of(frame: nw.LazyFrame[Any], names: Sequence[str]) -> Engine:
    """The engine that holds the records of these columns."""
    needed = frame.select(*names)
    library, native = frame.implementation, needed.to_native()
    if library.is_pyspark() or library.is_pyspark_connect():
        return _Spark(native)
    if library.is_dask():
        return _Dask(native)
    if library.is_duckdb():
        # Its name before DuckDB 1.5.
        stream = getattr(native, "to_arrow_reader", None) or native.fetch_record_batch
        return _Here(lambda: gathered(stream(BATCH_ROWS)))
    return _Here(lambda: [needed.collect().to_native()])


@dataclass(frozen=True)
class _Spark(Engine):
    """A Spark data frame, classic or Connect: nothing but the data frame's own methods is used.

    A task that fails is run again by Spark, and only the lines of finished tasks are added.
    """

    frame: Any

    def line(self, scan: Scan) -> NDArray[np.int64]:
        """Every partition gives the numbers of its line; a group-by adds them."""
        found = self.frame.mapInArrow(scan.rows_of_line, "cell long, rows long")
        added = nw.from_native(found.groupBy("cell").sum("rows").toDF("cell", "rows")).collect()
        line = np.zeros(scan.length, dtype=np.int64)
        line[added["cell"].to_numpy()] = added["rows"].to_numpy()
        return line

    def tally(self, tally: Tally) -> Counter[str | None]:
        """The partitions' texts are added in this process."""
        found = self.frame.mapInArrow(tally.rows_of_counts, "text string, rows long")
        parts = nw.from_native(found).collect()
        added: Counter[str | None] = Counter()
        for text, number in parts.select("text", "rows").iter_rows():
            added[text] += number
        return added

    def kept(self, codec: Codec) -> Engine:
        """The codes as a persisted data frame."""
        from pyspark.sql.types import ByteType, IntegerType, ShortType, StructField, StructType

        kinds = {1: ByteType(), 2: ShortType(), 4: IntegerType()}
        fields = [
            StructField(name, kinds[code_type(column).itemsize])
            for name, column in codec.columns.items()
        ]
        return _Spark(self.frame.mapInArrow(codec.arrow_codes, StructType(fields)).persist())


@dataclass(frozen=True)
class _Dask(Engine):
    """A Dask data frame."""

    frame: Any

    def line(self, scan: Scan) -> NDArray[np.int64]:
        """Every partition gives its line; a tree of tasks adds them."""
        return self._added(scan.line, partial(np.sum, axis=0, dtype=np.int64))

    def tally(self, tally: Tally) -> Counter[str | None]:
        """Every partition gives its counts; a tree of tasks adds them."""
        return self._added(tally.counted, _sum_of_counts)

    def _added(self, counted: Callable[[list[Any]], T], added: Callable[[list[T]], T]) -> T:
        from dask.delayed import delayed

        parts = [delayed(counted)([part]) for part in self.frame.to_delayed()]
        while len(parts) > 1:
            groups = range(0, len(parts), _ADDED_TOGETHER)
            parts = [delayed(added)(parts[i : i + _ADDED_TOGETHER]) for i in groups]
        result: T = parts[0].compute()
        return result

    def kept(self, codec: Codec) -> Engine:
        """The codes as a persisted data frame."""
        kinds = {name: code_type(column) for name, column in codec.columns.items()}
        return _Dask(self.frame.map_partitions(codec.pandas_codes, meta=kinds).persist())


@dataclass(frozen=True)
class _Here(Engine):
    """Records that stream through this process: `frames` begins a new pass."""

    frames: Callable[[], Iterable[Any]]

    def line(self, scan: Scan) -> NDArray[np.int64]:
        """Coded and counted as they come."""
        return scan.line(self.frames())

    def tally(self, tally: Tally) -> Counter[str | None]:
        """Counted as they come."""
        return tally.counted(self.frames())

    def kept(self, codec: Codec) -> Engine:
        """The codes in memory: a byte for each value of a column of up to 127."""
        codes = list(codec.arrow_codes(self.frames()))
        return _Here(lambda: gathered(codes))


def _sum_of_counts(counts: Sequence[Counter[str | None]]) -> Counter[str | None]:
    added: Counter[str | None] = Counter()
    for each in counts:
        added.update(each)
    return added
