"""Sums and maxima over all records, attribute by attribute on plain arrays of logarithms.

Nothing here is shared with inference, which plans a contraction, runs it in flat buffers and
differentiates it: so these sums can contradict it (``self_check``, ``answer_checks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import isinf, log, prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique

__all__ = ["PlainSums", "Table", "size_of", "sliced"]

Array = NDArray[np.float64]
Table = tuple[Clique, NDArray[np.float64] | NDArray[np.complex128]]

_CELL_SECONDS = 5e-8
"""The seconds that a slow machine takes for each cell that summing out attributes builds."""
_CALL_SECONDS = 1e-5
"""The seconds that a slow machine takes for each table and attribute, beside its cells."""
_FEW_CELLS = 400
"""Below this, one call that is slow for each cell is quicker than several that are not."""
_BLOCK_CELLS = 1 << 18
"""The most cells of a table that is built only to be summed; it costs little memory and time."""


def _order(cliques: Sequence[Clique], sizes: Mapping[str, int]) -> list[str]:
    """The attributes, always the one next whose summing out builds the smallest table."""
    around: dict[str, set[str]] = {name: {name} for name in sizes}
    for clique in cliques:
        for name in clique:
            around[name].update(clique)
    logs = {name: log(size) for name, size in sizes.items()}
    cells = {name: sum([logs[n] for n in near]) for name, near in around.items()}
    heap = [(size, name) for name, size in cells.items()]
    heapify(heap)
    order: list[str] = []
    while heap:
        size, name = heappop(heap)
        if cells.get(name) != size:  # gone, or its entry of now is elsewhere in the heap
            continue
        order.append(name)
        del cells[name]
        near = around.pop(name)
        near.discard(name)
        for other in near:
            # Counted up and down: a hub of thousands is not gone through for each of them.
            joined = near - around[other]
            around[other] |= joined
            around[other].discard(name)
            cells[other] += sum([logs[n] for n in joined]) - logs[name]
            heappush(heap, (cells[other], other))
    return order


@dataclass(frozen=True, eq=False)
class PlainSums:
    """Sums over all records of exp(sum of the tables), attribute by attribute.

    Args:
        tables: logarithms, each over a few of the attributes, axes in their order.
        sizes: of the attributes; one that no table holds multiplies the sum by its size.
        children: of a Bayesian network the variable of each table; None for other tables.

    >>> sums = PlainSums([(("a", "b"), np.log([[4.0, 1.0], [1.0, 4.0]]))], {"a": 2, "b": 2})
    >>> round(float(np.exp(sums.log_sum({"a": 0}))), 6), round(float(np.exp(sums.largest())), 6)
    (5.0, 4.0)
    """

    tables: Sequence[Table]
    sizes: Mapping[str, int]
    children: Sequence[str] | None = None

    def about(self, names: Iterable[str]) -> PlainSums:
        """As much as sums with evidence on these attributes, or weights of them, need: of a
        Bayesian network the tables of their ancestors, since the others sum to one.
        """
        if self.children is None:
            return self
        waiting, found = list(names), dict[str, Table]()
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = self.tables[self._places[name]]
                waiting += found[name][0]
        return PlainSums(list(found.values()), {name: self.sizes[name] for name in found})

    @cached_property
    def _places(self) -> dict[str, int]:
        return {child: place for place, child in enumerate(self.children or ())}

    @cached_property
    def order(self) -> list[str]:
        """The order in which the attributes are summed out."""
        return _order([clique for clique, _ in self.tables], self.sizes)

    @cached_property
    def size(self) -> float:
        """The largest distance of a logarithm from zero; rounding is in proportion to it."""
        return sum(size_of(table) for _, table in self.tables)

    def within(self, seconds: float, evidence: Mapping[str, int]) -> bool:
        """True if a sum with this evidence, planning included, fits in these seconds."""
        calls = _CALL_SECONDS * (len(self.tables) + len(self.sizes))
        if calls > seconds:
            return False
        cliques = [[name for name in c if name not in evidence] for c, _ in self.tables]
        return calls + self.work(cliques)[0] <= seconds

    @cached_property
    def log_total(self) -> float:
        """The logarithm of the sum over all records."""
        return self.log_sum().real

    def further_evidence(self, evidence: Mapping[str, int], seconds: float) -> dict[str, int]:
        """Values to hold fixed beside ``evidence`` so that the sum takes these seconds."""
        more: dict[str, int] = {}
        while True:
            fixed = {**evidence, **more}
            cliques = [[name for name in c if name not in fixed] for c, _ in self.tables]
            cost, largest = self.work(cliques)
            wide = [union for union in largest if len(union) > 1]
            if cost <= seconds or not wide:
                return more
            # As many again, so that few rounds find what many values take.
            for union in wide[: len(more) + 1]:
                if union.isdisjoint(more):
                    name = max(union, key=self.sizes.__getitem__)
                    more[name] = self.likely(name, {**evidence, **more})

    def work(self, cliques: Sequence[Sequence[str]]) -> tuple[float, list[set[str]]]:
        """Seconds that the sum takes, and the attributes of the tables it builds, largest first."""
        holders: dict[str, list[set[str]]] = {name: [] for name in self.order}
        rank = {name: place for place, name in enumerate(self.order)}
        for clique in cliques:
            if clique:
                holders[min(clique, key=rank.__getitem__)].append(set(clique))
        built: list[tuple[int, set[str]]] = []
        for name in self.order:
            if holders[name]:
                union = set().union(*holders[name])
                built.append((prod([self.sizes[n] for n in union]), union))
                if left := union - {name}:
                    holders[min(left, key=rank.__getitem__)].append(left)
        built.sort(key=lambda each: -each[0])
        cells = sum(count for count, _ in built)
        return cells * _CELL_SECONDS, [union for _, union in built]

    def likely(self, name: str, evidence: Mapping[str, int]) -> int:
        """A value of the attribute that the tables favour, given the evidence."""
        score: Array | float = 0.0
        for clique, table in self.tables:
            if name in clique:
                left, kept = sliced((clique, table), evidence)
                others = tuple(axis for axis, other in enumerate(left) if other != name)
                score = score + kept.max(axis=others)
        return int(np.argmax(score))

    def log_sum(
        self, evidence: Mapping[str, int] = MappingProxyType({}), weights: Sequence[Table] = ()
    ) -> complex:
        """The logarithm of the sum over the records with the evidence.

        ``weights`` are further tables, of logarithms; those of negative numbers are complex, and
        only then is the result.
        """
        return self._eliminated(evidence, weights, _log_sum)

    def largest(
        self, evidence: Mapping[str, int] = MappingProxyType({}), weights: Sequence[Table] = ()
    ) -> float:
        """The largest sum of the tables that a record with the evidence has."""
        return self._eliminated(evidence, weights, _maximum).real

    def at(self, record: Mapping[str, int], weights: Sequence[Table] = ()) -> float:
        """The sum of the tables at one record."""
        return float(sum(sliced(table, record)[1].real for table in (*self.tables, *weights)))

    def _eliminated(
        self, evidence: Mapping[str, int], weights: Sequence[Table], over: Callable[[Array], Array]
    ) -> complex:
        """Axes are kept in the reverse of the order, so that the next to go is always the last."""
        rank = {name: -place for place, name in enumerate(self.order)}
        buckets: dict[str, list[Table]] = {name: [] for name in self.order}
        constant: complex = 0.0

        def put(axes: Clique, values: Any) -> complex:
            if not axes:
                return values.item()
            buckets[axes[-1]].append((axes, values))
            return 0.0

        for axes, values in (sliced(table, evidence) for table in (*self.tables, *weights)):
            turned = sorted(range(len(axes)), key=lambda i: rank[axes[i]])
            constant += put(tuple([axes[i] for i in turned]), values.transpose(turned))
        for name in self.order:
            held = buckets.pop(name)
            if not held:
                if name not in evidence:
                    constant += float(over(np.zeros(self.sizes[name])))
                continue
            union = sorted({n for axes, _ in held for n in axes}, key=rank.__getitem__)
            spread = [
                values.reshape([self.sizes[n] if n in axes else 1 for n in union])
                for axes, values in held
            ]
            constant += put(tuple(union[:-1]), _in_blocks(spread, over))
        return constant


def sliced(table: Table, evidence: Mapping[str, int]) -> Table:
    """The table where the records have the evidence, without the axes of it."""
    clique, values = table
    places = tuple(evidence.get(name, slice(None)) for name in clique)
    return tuple(name for name in clique if name not in evidence), values[places]


def _in_blocks(spread: Sequence[Any], over: Callable[[Array], Array]) -> Array:
    """Over the last axis of a sum of tables that broadcast; the whole of it is never held."""
    first, *inner = np.broadcast_shapes(*(table.shape for table in spread))
    rows = max(1, _BLOCK_CELLS // prod(inner)) if inner else first
    if rows >= first:
        return over(sum(spread[1:], spread[0]))
    blocks = [
        [table[start : start + rows] if len(table) > 1 else table for table in spread]
        for start in range(0, first, rows)
    ]
    return np.concatenate([over(sum(block[1:], block[0])) for block in blocks])


def _maximum(values: Array) -> Array:
    """Over the last axis."""
    return np.asarray(values.max(axis=-1))


def _log_sum(values: Array) -> Array:
    """Over the last axis."""
    if values.size < _FEW_CELLS and not np.iscomplexobj(values):
        return np.asarray(np.logaddexp.reduce(values, axis=-1))
    highest = values.real.max(axis=-1)
    peaks = np.where(np.isneginf(highest), 0.0, highest)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(values - peaks[..., None]).sum(axis=-1)) + peaks)


def size_of(table: Any) -> float:
    """The largest finite entry, in absolute value."""
    size = float(np.abs(table).max())
    if not isinf(size):
        return size
    finite = table[np.isfinite(table)]
    return float(np.abs(finite).max()) if finite.size else 0.0
