"""One pass over the records of a frame, which are coded in pieces and counted.

A scan is a small object that travels to the records: it holds columns and cliques, and no data.
Each worker returns a line of counts, and the lines of several workers are added, in any order.
Columns are coded by the code that encodes frames in memory, so the counts are identical.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import narwhals as nw
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgmkit.domain import Clique
from pgmkit.records.counting import CountingPlan
from pgmkit.tables.columns import BATCH_ROWS, Column
from pgmkit.tables.values import series_values

T = TypeVar("T")
Codes = dict[str, NDArray[np.unsignedinteger[Any]]]

_PIECE_ROWS = 16 * BATCH_ROWS
"""Codes are held until they are of so many rows, and then counted with one plan for all."""
_PIECE_BYTES = 64 * _PIECE_ROWS
"""Codes are also counted as soon as those that are held have so many bytes."""


@dataclass(frozen=True)
class Codec:
    """An encoder of frames, which returns the codes of each column in the smallest unsigned type
    that holds them, piece by piece; it holds `columns`, the columns' definitions, and no data.

    A value that its column does not have gets the code `size`, one more than the last code.
    """

    columns: Mapping[str, Column]

    def coded(self, frame: Any) -> Codes:
        """Return the codes of one frame in memory."""
        wrapped = nw.from_native(frame)
        found = {}
        for name, column in self.columns.items():
            codes = column.encode(series_values(wrapped[name]))
            kind = np.min_scalar_type(column.size)
            found[name] = np.where(codes < 0, column.size, codes).astype(kind)
        return found

    def pieces(self, frames: Iterable[Any]) -> Iterator[Codes]:
        """Yield the codes of many frames, joined into pieces that have `_PIECE_ROWS` rows or
        `_PIECE_BYTES` bytes or more, except for the last one. Pieces without rows are left out.
        """
        width = sum(np.min_scalar_type(column.size).itemsize for column in self.columns.values())
        most = min(_PIECE_ROWS, _PIECE_BYTES // max(1, width))
        pieces = map(_joined, _grouped(map(self.coded, frames), _length, most))
        return (codes for codes in pieces if _length(codes))

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


class KeptCodes(Codec):
    """A `Codec` for frames that already contain codes of the types of `code_type`, as an engine
    keeps them.
    """

    def coded(self, frame: Any) -> Codes:
        """Return the codes of one frame in memory."""
        wrapped = nw.from_native(frame)
        return {
            name: wrapped[name].to_numpy().astype(np.min_scalar_type(column.size))
            for name, column in self.columns.items()
        }


def code_type(column: Column) -> np.dtype[np.signedinteger[Any]]:
    """Return the smallest signed integer type that holds the column's codes and the code of values
    outside. Some engines have no unsigned types.
    """
    return np.min_scalar_type(-column.size - 1)


@dataclass(frozen=True)
class Scan:
    """The counts of one pass: for each column the number of rows with a value that it does not
    have, and a table for each clique.

    The result is a line of int64: the numbers of such rows, in the columns' order, then the cells
    of each table in turn. In the tables, such values count as code 0.

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
        """The place of each clique's table in the line; the counts of values outside each column
        come before the tables.
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
        for codes in self.codec.pieces(frames):
            rows = _length(codes)
            inside = {}
            for i, (name, size) in enumerate(sizes):
                outside = codes[name] == size
                line[i] += int(outside.sum())
                inside[name] = np.where(outside, 0, codes[name]) if outside.any() else codes[name]
            # Plans are made for numbers of rows in powers of two, so that most pieces share one.
            plan = _plan(sizes, self.cliques, 1 << rows.bit_length())
            for clique, table in plan.count(inside, rows).items():
                line[self.places[clique]] += table.reshape(-1)
        return line

    def rows_of_line(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the nonzero entries of the line (`line`) over these Arrow batches, as one batch of
        their places in the line and their values.
        """
        line = self.line(gathered(batches))
        cells = np.flatnonzero(line)
        yield pa.RecordBatch.from_pydict({"cell": pa.array(cells), "rows": pa.array(line[cells])})


def gathered(frames: Iterable[Any]) -> Iterator[Any]:
    """Yield Arrow batches joined to tables of at least `BATCH_ROWS` rows, except for the last one;
    other frames are yielded unchanged.
    """
    for held in _grouped(frames, len, BATCH_ROWS):
        yield from [pa.Table.from_batches(held)] if isinstance(held[0], pa.RecordBatch) else held


def _grouped(parts: Iterable[T], rows_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yield successive parts in lists that reach `most` rows, except for the last list."""
    held: list[T] = []
    rows = 0
    for part in parts:
        held.append(part)
        rows += rows_of(part)
        if rows >= most:
            yield held
            held, rows = [], 0
    if held:
        yield held


@lru_cache(maxsize=8)
def _plan(
    sizes: tuple[tuple[str, int], ...], cliques: tuple[Clique, ...], rows: int
) -> CountingPlan:
    return CountingPlan(dict(sizes), cliques, rows)


def _length(codes: Codes) -> int:
    return len(next(iter(codes.values())))


def _joined(held: list[Codes]) -> Codes:
    if len(held) == 1:
        return held[0]
    return {name: np.concatenate([codes[name] for codes in held]) for name in held[0]}
