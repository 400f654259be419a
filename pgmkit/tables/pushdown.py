"""Marginals of a frame that lives in an engine, counted there by group-by.

A column is grouped by its code where the engine can compute it from numbers or dates, and by its
values otherwise, which then get their codes from the column itself: both are the codes that
encoding in memory gives.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import narwhals as nw
import numpy as np

from pgmkit.domain import Clique, Domain
from pgmkit.tables.bins import Binned
from pgmkit.tables.columns import Column
from pgmkit.tables.dates import Date, DateTime
from pgmkit.tables.numbers import Integer, Numeric
from pgmkit.tables.schema import Schema, outside_error
from pgmkit.tables.values import numbers_among, series_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FrameCounts", "code_expression"]

_LARGEST_GROUPING = 1 << 18
"""Cells of a joint table that is fetched once to answer several marginals."""


class FrameCounts:
    """Exact counts over a lazy frame, by the methods that a Dataset has for counting.

    Every column is counted once at the start, and so are the constraints' columns: values outside
    the schema are found before anything is answered. Raises InvalidInput for them, and for a frame
    without rows.
    """

    def __init__(self, frame: nw.LazyFrame[Any], schema: Schema) -> None:
        self._domain = schema.domain
        self._columns = schema.columns
        kinds = frame.collect_schema()
        self._keys = {
            name: code_expression(column, name, kinds[name])
            for name, column in schema.columns.items()
        }
        self._frame = frame
        singles = {name: self._one_way(name) for name in schema.columns}
        self._rows = int(next(iter(singles.values())).sum())
        schema.check_rows(self._rows)
        schema.check_constraints(self)

    @property
    def domain(self) -> Domain:
        """The schema's domain."""
        return self._domain

    def __len__(self) -> int:
        return self._rows

    def marginal(self, attrs: Iterable[str]) -> NDArray[np.int64]:
        """The counts (int64) over the attributes, axes in their order."""
        clique = self.domain.clique(attrs)
        return self.marginals([clique])[clique]

    def marginals(self, cliques: Iterable[Iterable[str]]) -> dict[Clique, NDArray[np.int64]]:
        """Many marginals: few group-bys over unions of cliques, summed down to each."""
        asked = [self.domain.clique(clique) for clique in cliques]
        found = {}
        for joint, members in _unions(self.domain, asked):
            table = self._count(joint)
            for clique in members:
                summed = tuple(i for i, name in enumerate(joint) if name not in clique)
                kept = [name for name in joint if name in clique]
                small = np.asarray(table.sum(axis=summed, dtype=np.int64))
                found[clique] = small.transpose([kept.index(name) for name in clique])
        return {clique: found[clique] for clique in asked}

    def _one_way(self, name: str) -> NDArray[np.int64]:
        codes, counts = self._grouped((name,))
        outside = int(counts[codes[0] < 0].sum())
        if outside:
            raise outside_error(name, outside)
        return counts

    def _count(self, clique: Clique) -> NDArray[np.int64]:
        if not clique:
            return np.array(self._rows, dtype=np.int64)
        table = np.zeros(self.domain.shape(clique), dtype=np.int64)
        codes, counts = self._grouped(clique)
        np.add.at(table, tuple(codes), counts)
        return table

    def _grouped(self, clique: Clique) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """The engine's groups: a list of codes for each column, and the rows of each group."""
        keys = [f"key{i}" for i in range(len(clique))]
        expressions = [
            self._expression(name).alias(key) for name, key in zip(clique, keys, strict=True)
        ]
        found = self._frame.select(*expressions).group_by(*keys).agg(rows=nw.len()).collect()
        codes = [
            column.to_numpy().astype(np.int64)
            if self._keys[name] is not None
            else self._columns[name].encode(series_values(column))
            for name, column in zip(clique, (found[key] for key in keys), strict=True)
        ]
        return codes, found["rows"].to_numpy().astype(np.int64)

    def _expression(self, name: str) -> nw.Expr:
        key = self._keys[name]
        return nw.col(name) if key is None else key

    def __repr__(self) -> str:
        return f"<FrameCounts: {len(self.domain)} attributes, counted where the data are>"


def code_expression(column: Column, name: str, kind: Any) -> nw.Expr | None:
    """The code of a value as an expression, -1 outside; None where the values are grouped instead.

    Numbers and dates are compared with the bins' ends, which every engine can do.
    """
    numbers = isinstance(column, Integer | Numeric) and kind.is_numeric()
    times = isinstance(column, Date | DateTime) and _comparable(column, kind)
    if not isinstance(column, Binned) or not (numbers or times):
        return None
    if times and column.special:
        return None  # special dates are told apart by the column itself
    value = nw.col(name)
    ends = [_literal(column, end, kind) for end in column.positions.tolist()]
    last = len(ends) - 2
    code = nw.lit(-1)
    for end in ends[:-1]:
        code = code + (value >= end).cast(nw.Int64)
    outside = column.outside_code
    beyond = value >= ends[-1] if column.whole else value > ends[-1]
    if column.outside == "clip":
        code = nw.when(code < 0).then(nw.lit(0)).otherwise(code)
    else:
        code = nw.when(beyond | (code < 0)).then(nw.lit(outside)).otherwise(code)
    if isinstance(column, Integer) and kind.is_float() and column.outside != "clip":
        broken = value != value.floor()
        code = nw.when(broken).then(nw.lit(outside)).otherwise(code)
    for i, special in enumerate(column.special):
        single = _literal(column, column.position(special), kind)
        code = nw.when(value == single).then(nw.lit(last + 1 + i)).otherwise(code)
    missing = int(column.encode(np.array([None], dtype=object))[0])
    absent = value.is_null() | value.is_nan() if kind.is_float() else value.is_null()
    for number in numbers_among(column.missing or ()) if kind.is_numeric() else ():
        absent = absent | (value == number)
    return nw.when(absent).then(nw.lit(missing)).otherwise(code).cast(nw.Int64)


def _comparable(column: Date | DateTime, kind: Any) -> bool:
    """Whether the engine's type has no time zone, and is no coarser than the column."""
    if kind == nw.Datetime:
        return kind.time_zone is None
    return bool(kind == nw.Date) and column.step in "DMY"


def _literal(column: Binned, position: float, kind: Any) -> Any:
    """A bin's end as the engine compares it."""
    if not isinstance(column, Date | DateTime):
        return int(position) if column.whole else float(position)
    moment = np.int64(position).astype(f"datetime64[{column.step}]")
    day: datetime.date = moment.astype("datetime64[D]").item()
    if kind == nw.Date:
        return day
    found: datetime.datetime = moment.astype("datetime64[us]").item()
    return found


def _unions(domain: Domain, cliques: Sequence[Clique]) -> list[tuple[Clique, list[Clique]]]:
    """Cliques together with a union of theirs that is small enough to fetch, greedily."""
    groups: list[tuple[set[str], list[Clique]]] = []
    for clique in sorted(dict.fromkeys(cliques), key=domain.size, reverse=True):
        for held, members in groups:
            grown = held | set(clique)
            if grown == held or domain.size(_ordered(domain, grown)) <= _LARGEST_GROUPING:
                held |= set(clique)
                members.append(clique)
                break
        else:
            groups.append((set(clique), [clique]))
    return [(_ordered(domain, held), members) for held, members in groups]


def _ordered(domain: Domain, names: set[str]) -> Clique:
    return tuple(name for name in domain.attributes if name in names)
