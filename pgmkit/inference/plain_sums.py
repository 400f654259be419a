"""Sums and maxima over all records, attribute by attribute, on plain arrays of logarithms.

Nothing here is shared with inference, which plans a contraction, runs it in flat buffers and
differentiates it; so these sums can contradict it (``self_check``, ``answer_checks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import chain
from math import inf, isinf, log, prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import BLOCK_CELLS, FEW_CELLS

Table = tuple[Clique, NDArray[np.float64] | NDArray[np.complex128]]
_ALL = slice(None)

CELL_SECONDS = 5e-8
"""The seconds that a slow machine takes for each cell of the tables built when attributes are
summed out.
"""
CALL_SECONDS = 1e-5
"""The seconds that a slow machine takes for each table and attribute, apart from their cells."""
_COPIES = 4
"""The arrays of a block's cells that are held at once: the sum of tables before and after the last
one is added, its exponentials, and their arguments.
"""


def _order(cliques: Iterable[Sequence[str]], sizes: Mapping[str, int]) -> list[str]:
    """Return the attributes in a greedy order of elimination: next is always the one whose summing
    out builds the smallest table.
    """
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
        if cells.get(name) != size:  # eliminated already, or an outdated entry
            continue
        order.append(name)
        del cells[name]
        near = around.pop(name)
        near.discard(name)
        for other in near:
            # Sizes are updated by differences, so that a hub of thousands is not recounted each
            # time.
            joined = near - around[other]
            around[other] |= joined
            around[other].discard(name)
            cells[other] += sum([logs[n] for n in joined]) - logs[name]
            heappush(heap, (cells[other], other))
    return order


class TooLong(Exception):
    """Raised if a sum would take longer, or more memory, than it may."""


@dataclass(frozen=True, eq=False)
class PlainSums:
    """Sums over all records of exp(sum of the tables), computed by summing out attribute by
    attribute.

    Args:
        tables: logarithms, each over a few of the attributes, axes in their order.
        sizes: the sizes of the attributes; one that no table holds multiplies the sum by its size.
        children: in a Bayesian network the variable of each table; None for other tables.
        order: attributes in an order of elimination that is known to be cheap. Any order gives the
            same sums; attributes that it lacks follow by the greedy order.
        plain: whether the tables hold numbers instead; the logarithms of the part that agrees with
            the evidence are then taken when they are needed, and not kept.
        power: what the tables' logarithms are multiplied by.
        room: the most bytes that a sum may hold beside the tables.

    >>> sums = PlainSums([(("a", "b"), np.log([[4.0, 1.0], [1.0, 4.0]]))], {"a": 2, "b": 2})
    >>> round(float(np.exp(sums.log_sum({"a": 0}))), 6), round(float(np.exp(sums.largest())), 6)
    (5.0, 4.0)
    >>> np.exp(sums.table(("b",), {"a": 0})).round(6)
    array([4., 1.])
    """

    tables: Sequence[Table]
    sizes: Mapping[str, int]
    children: Sequence[str] | None = None
    order: Sequence[str] = ()
    plain: bool = False
    power: float = 1.0
    room: float = inf

    def about(self, names: Iterable[str]) -> PlainSums:
        """Return the part of the sums that matters to evidence or weights on these attributes: in a
        Bayesian network the tables of the attributes and their ancestors, since the others sum to
        one.
        """
        if self.children is None:
            return self
        waiting, found = list(names), dict[str, Table]()
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = self.tables[self._places[name]]
                waiting += found[name][0]
        sizes = {name: self.sizes[name] for name in found}
        return replace(self, tables=list(found.values()), sizes=sizes, children=None)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {child: place for place, child in enumerate(self.children or ())}

    @cached_property
    def _rank(self) -> dict[str, int]:
        """The place of each attribute in the order of elimination."""
        known = [name for name in self.order if name in self.sizes]
        if len(known) < len(self.sizes):
            left = {name: size for name, size in self.sizes.items() if name not in {*known}}
            cliques = [[name for name in clique if name in left] for clique, _ in self.tables]
            known += _order(cliques, left)
        return {name: place for place, name in enumerate(known)}

    @cached_property
    def size(self) -> float:
        """The sum of the tables' largest magnitudes; rounding is in proportion to it."""
        return abs(self.power) * sum(self._size_of(table) for _, table in self.tables)

    def _size_of(self, table: Any) -> float:
        if not self.plain:
            return size_of(table)
        least = float(table.min(initial=inf, where=table > 0))
        return max(abs(log(least)), abs(log(float(table.max())))) if least < inf else 0.0

    def logarithms(self, table: Table, evidence: Mapping[str, int]) -> Table:
        """Return the logarithms of the part of one of the tables that agrees with the evidence,
        without the observed axes.
        """
        clique, values = sliced(table, evidence)
        if self.plain:
            with np.errstate(divide="ignore"):
                values = np.log(values)
        return clique, values if self.power == 1.0 else self.power * values

    @cached_property
    def log_total(self) -> float:
        """The logarithm of the sum over all records."""
        return self.log_sum().real

    def further_evidence(self, evidence: Mapping[str, int], seconds: float) -> dict[str, int]:
        """Return values to hold fixed, in addition to ``evidence``, so that the sum takes at most
        these seconds.
        """
        more: dict[str, int] = {}
        while True:
            fixed = {**evidence, **more}
            cliques = [[name for name in c if name not in fixed] for c, _ in self.tables]
            cost, largest = self._work(cliques)
            wide = [union for union in largest if len(union) > 1]
            if cost <= seconds or not wide:
                return more
            # The number of fixed values doubles, so that few rounds suffice.
            for union in wide[: len(more) + 1]:
                if union.isdisjoint(more):
                    name = max(union, key=self.sizes.__getitem__)
                    more[name] = self.likely(name, {**evidence, **more})

    def _work(self, cliques: Sequence[Sequence[str]]) -> tuple[float, list[set[str]]]:
        """Return the seconds that the sum takes, and the attributes of each table it builds,
        largest first.
        """
        rank = self._rank
        holders: dict[str, list[set[str]]] = {name: [] for name in rank}
        for clique in cliques:
            if clique:
                holders[min(clique, key=rank.__getitem__)].append(set(clique))
        built: list[tuple[int, set[str]]] = []
        for name in rank:
            if holders[name]:
                union = set().union(*holders[name])
                built.append((prod([self.sizes[n] for n in union]), union))
                if left := union - {name}:
                    holders[min(left, key=rank.__getitem__)].append(left)
        built.sort(key=lambda each: -each[0])
        cells = sum(count for count, _ in built)
        return cells * CELL_SECONDS, [union for _, union in built]

    def likely(self, name: str, evidence: Mapping[str, int]) -> int:
        """Return a value of the attribute that the tables favour, given the evidence."""
        score: Array | float = 0.0
        for clique, table in self.tables:
            if name in clique:
                left, kept = self.logarithms((clique, table), evidence)
                others = tuple(axis for axis, other in enumerate(left) if other != name)
                score = score + kept.max(axis=others)
        return int(np.argmax(score))

    def log_sum(
        self,
        evidence: Mapping[str, int] = MappingProxyType({}),
        weights: Sequence[Table] = (),
        seconds: float = inf,
    ) -> complex:
        """Return the logarithm of the sum over the records with the evidence.

        ``weights`` are further tables of logarithms, complex ones for negative numbers; the result
        is complex only if some are. Raises TooLong instead of building tables for longer than
        ``seconds``, or of more bytes than there is ``room`` for.
        """
        found: complex = self._eliminated((), evidence, weights, _log_sum, seconds).item()
        return found

    def table(
        self,
        kept: Clique,
        evidence: Mapping[str, int] = MappingProxyType({}),
        weights: Sequence[Table] = (),
        seconds: float = inf,
    ) -> Array:
        """Return for each cell of the attributes ``kept`` what ``log_sum`` returns with the cell as
        further evidence; axes in the order of ``kept``, none of which is in the evidence.
        """
        return np.asarray(self._eliminated(kept, evidence, weights, _log_sum, seconds).real)

    def largest(
        self,
        evidence: Mapping[str, int] = MappingProxyType({}),
        weights: Sequence[Table] = (),
        seconds: float = inf,
    ) -> float:
        """Return the largest sum of the tables at a record with the evidence."""
        return float(self._eliminated((), evidence, weights, _maximum, seconds).real)

    def at(self, record: Mapping[str, int], weights: Sequence[Table] = ()) -> float:
        """Return the sum of the tables at one record."""
        own = [self.logarithms(table, record)[1] for table in self.tables]
        return float(sum(own) + sum(sliced(weight, record)[1].real for weight in weights))

    def _eliminated(
        self,
        kept: Clique,
        evidence: Mapping[str, int],
        weights: Sequence[Table],
        over: Callable[[Array], Array],
        seconds: float,
    ) -> Any:
        """Return the tables' combination by ``over`` (sum or maximum) of all attributes but those
        ``kept``.

        Axes are held in the reverse of the elimination order, so that the next to go is always the
        last; those kept come first.
        """
        if CALL_SECONDS * (len(self.tables) + len(self.sizes)) > seconds:
            raise TooLong
        rank = {name: -place for name, place in self._rank.items()}
        for place, name in enumerate(kept):
            rank[name] = place - len(rank) - len(kept)
        buckets: dict[str, list[Table]] = {name: [] for name in self._rank}
        left: list[Table] = []
        held = 0
        constant: complex = 0.0
        for table in (*self.tables, *weights):
            held += sliced(table, evidence)[1].nbytes
        self._check_room(held)
        for axes, values in chain(
            (self.logarithms(table, evidence) for table in self.tables),
            (sliced(weight, evidence) for weight in weights),
        ):
            turned = tuple(sorted(axes, key=rank.__getitem__))
            if turned != axes:
                values = values.transpose([axes.index(name) for name in turned])
            (buckets[turned[-1]] if turned else left).append((turned, values))
        for name in self._rank:
            inside = buckets.pop(name)
            if name in kept:
                left += inside
                continue
            if not inside:
                if name not in evidence:
                    constant += float(over(np.zeros(self.sizes[name])))
                continue
            union = inside[0][0]
            if any(axes != union for axes, _ in inside):
                names = {name for axes, _ in inside for name in axes}
                union = tuple(sorted(names, key=rank.__getitem__))
            shape = [self.sizes[n] for n in union]
            seconds -= CELL_SECONDS * prod(shape)
            if seconds < 0:
                raise TooLong
            size = max(values.itemsize for _, values in inside)
            self._check_room(held + size * (prod(shape[:-1]) + _COPIES * _block(shape)))
            made = _in_blocks([self._spread(each, union) for each in inside], shape, over)
            held += made.nbytes - sum(values.nbytes for _, values in inside)
            axes = union[:-1]
            (buckets[axes[-1]] if axes and axes[-1] not in kept else left).append((axes, made))
        found = np.zeros([self.sizes[name] for name in kept])
        return sum([self._spread(each, kept) for each in left], found) + constant

    def _check_room(self, held: int) -> None:
        if held > self.room:
            raise TooLong

    def _spread(self, table: Table, union: Clique) -> Any:
        """Return the table, whose attributes are some of ``union`` in its order, in a shape that
        broadcasts.
        """
        held, values = table
        if held == union[len(union) - len(held) :]:
            return values
        return values.reshape([self.sizes[name] if name in held else 1 for name in union])


def sliced(table: Table, evidence: Mapping[str, int]) -> Table:
    """Return the part of the table that agrees with the evidence, without the observed axes."""
    clique, values = table
    places = tuple([evidence.get(name, _ALL) for name in clique])
    return tuple([name for name in clique if name not in evidence]), values[places]


def _in_blocks(
    spread: Sequence[Any], shape: Sequence[int], over: Callable[[Array], Array]
) -> Array:
    """Reduce the sum of tables that broadcast to ``shape`` by ``over``, along its last axis; only a
    block of the sum is held at once.
    """
    first = shape[0]
    rows = _block(shape) // prod(shape[1:])
    if rows >= first:
        return over(sum(spread[1:], spread[0]))
    # A table with fewer axes than the sum, or length 1 along the first, is the same in each block.
    cut = [table.ndim == len(shape) and len(table) > 1 for table in spread]
    blocks = [
        [
            table[start : start + rows] if along else table
            for table, along in zip(spread, cut, strict=True)
        ]
        for start in range(0, first, rows)
    ]
    return np.concatenate([over(sum(block[1:], block[0])) for block in blocks])


def _block(shape: Sequence[int]) -> int:
    """Return the cells of a sum of this shape that are held at once."""
    rows = max(1, BLOCK_CELLS // prod(shape[1:])) if len(shape) > 1 else shape[0]
    return min(rows, shape[0]) * prod(shape[1:])


def _maximum(values: Array) -> Array:
    """Return the maximum over the last axis."""
    return np.asarray(values.max(axis=-1))


def _log_sum(values: Array) -> Array:
    """Return the logarithm of the sum of exponentials over the last axis."""
    if values.size < FEW_CELLS and not np.iscomplexobj(values):
        found: Array = np.logaddexp.reduce(values, axis=-1)
        return found
    highest = values.real.max(axis=-1)
    peaks = np.where(np.isneginf(highest), 0.0, highest)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(values - peaks[..., None]).sum(axis=-1)) + peaks)


def size_of(table: Any) -> float:
    """Return the largest finite entry in absolute value; 0 if there is none."""
    size = float(np.abs(table).max())
    if not isinf(size):
        return size
    finite = table[np.isfinite(table)]
    return float(np.abs(finite).max()) if finite.size else 0.0
