"""Sums and maxima over all records, attribute by attribute, on plain arrays of logarithms.

This shares nothing with inference but the search for an elimination order, and any order gives the
same sums. Inference plans a contraction, runs it in flat buffers and differentiates it, so these
sums can contradict it (``self_check``, ``answer_checks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, isinf, log, prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique
from pgmkit.graphs.bit_sets import neighbours
from pgmkit.graphs.elimination_search import Search
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import BLOCK_CELLS, FEW_CELLS, MULTIPLICATIONS_A_SECOND

Table = tuple[Clique, NDArray[np.float64] | NDArray[np.complex128]]
_ALL = slice(None)

CELL_SECONDS = 50 / MULTIPLICATIONS_A_SECOND
"""The seconds that a slow machine takes for each cell of the tables built when attributes are
summed out.
"""
CALL_SECONDS = 200 * CELL_SECONDS
"""The seconds that a slow machine takes for each table and each attribute, however small they
are.
"""


def _order(cliques: Iterable[Sequence[str]], sizes: Mapping[str, int]) -> list[str]:
    """Return all attributes of ``sizes``, also those in no clique, in a greedy order of
    elimination.
    """
    names = list(sizes)
    bits = {name: 1 << place for place, name in enumerate(names)}
    scopes = [sum([bits[name] for name in clique]) for clique in cliques]
    search = Search(neighbours(scopes, len(names)), tuple(sizes.values()))
    return [names[v] for v, _ in next(search.ways())()]


class TooLong(Exception):
    """Raised if a sum would take more time or memory than it may."""


@dataclass(frozen=True, eq=False)
class PlainSums:
    """Sums of exp(sum of the tables) over all records, that is all combinations of values, computed
    by summing out attribute by attribute.

    Args:
        tables: logarithms, each over a few of the attributes, axes in their order.
        sizes: the sizes of the attributes; one that no table holds multiplies the sum by its size.
        children: for a Bayesian network, the variable whose conditional distribution each table
            is; None for any other tables.
        order: attributes in an order of elimination that is known to be cheap. Any order gives the
            same sums; attributes that it lacks follow by a greedy order.
        plain: whether the tables hold the numbers themselves instead of their logarithms. The
            logarithms of the part that agrees with the evidence are then computed in every sum.
        power: a number that the tables' logarithms are multiplied by.
        room: the most bytes that a sum may take, those of the tables' parts that agree with the
            evidence included.

    >>> sums = PlainSums([(("a", "b"), np.log([[4.0, 1.0], [1.0, 4.0]]))], {"a": 2, "b": 2})
    >>> np.exp([sums.log_sum({"a": 0}), sums.largest({}, (), 1.0)]).round(6)
    array([5., 4.])
    >>> np.exp(sums.table(("b",), {"a": 0}, (), 1.0)).round(6)
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
        """Return sums over only the tables that the result depends on if the evidence, weights and
        kept attributes are all among ``names``. For a Bayesian network these are the tables of
        ``names`` and their ancestors, since all others sum to one; otherwise all tables.
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
        """The position of each attribute in the order of elimination."""
        known = [name for name in self.order if name in self.sizes]
        if len(known) < len(self.sizes):
            left = {name: size for name, size in self.sizes.items() if name not in {*known}}
            cliques = [[name for name in clique if name in left] for clique, _ in self.tables]
            known += _order(cliques, left)
        return {name: place for place, name in enumerate(known)}

    @cached_property
    def size(self) -> float:
        """The sum, over the tables, of the largest magnitude of a finite logarithm, multiplied by
        the magnitude of ``power``. Rounding errors are proportional to it.
        """
        return abs(self.power) * sum(self._size_of(table) for _, table in self.tables)

    def _size_of(self, table: Any) -> float:
        if not self.plain:
            return size_of(table)
        least = float(table.min(initial=inf, where=table > 0))
        return max(abs(log(least)), abs(log(float(table.max())))) if least < inf else 0.0

    def logarithms(self, table: Table, evidence: Mapping[str, int]) -> Table:
        """Return ``power`` times the logarithms of the part of one of the tables that agrees with
        the evidence, without the observed axes.
        """
        clique, values = sliced(table, evidence)
        with np.errstate(divide="ignore"):
            return clique, self._logarithm(values)

    def _logarithm(self, values: Any) -> Any:
        if self.plain:
            values = np.log(values)
        return values if self.power == 1.0 else self.power * values

    def further_evidence(self, evidence: Mapping[str, int], seconds: float) -> dict[str, int]:
        """Return ``likely`` values of further attributes that, held fixed in addition to
        ``evidence``, make the sum take at most ``seconds`` by estimate, or leave each table that it
        builds at most one attribute. The result is empty if no values are needed for that.
        """
        more: dict[str, int] = {}
        while True:
            fixed = {**evidence, **more}
            cliques = [[name for name in c if name not in fixed] for c, _ in self.tables]
            cost, largest = self._work(cliques)
            wide = [union for union in largest if len(union) > 1]
            if cost <= seconds or not wide:
                return more
            # A round fixes at most one attribute more than all rounds before it together. So it
            # about doubles the number of fixed attributes, and few rounds suffice.
            for union in wide[: len(more) + 1]:
                if union.isdisjoint(more):
                    name = max(union, key=self.sizes.__getitem__)
                    more[name] = self.likely(name, {**evidence, **more})

    def _work(self, cliques: Sequence[Sequence[str]]) -> tuple[float, list[set[str]]]:
        """Return an estimate of the seconds that a sum over tables with these cliques takes, and
        the attributes of each table that the sum builds, the largest first.
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
        return sum(count for count, _ in built) * CELL_SECONDS, [union for _, union in built]

    def likely(self, name: str, evidence: Mapping[str, int]) -> int:
        """Return the value of the attribute with the largest sum, over the tables that hold the
        attribute, of a table's largest logarithm at this value and the evidence.
        """
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
        """Return the logarithm of the sum, over all records with the evidence, of exp(sum of the
        tables and ``weights`` at the record).

        ``weights`` are further tables of logarithms, which are complex if they stand for negative
        numbers; the result is complex only in this case. Raises TooLong if building the tables
        would take longer than ``seconds`` or more bytes than ``room``.
        """
        found: complex = self._eliminated((), evidence, weights, _log_sum, seconds).item()
        return found

    def table(
        self, kept: Clique, evidence: Mapping[str, int], weights: Sequence[Table], seconds: float
    ) -> Array:
        """Return a table over the attributes ``kept``, axes in their order. Each cell is the real
        part of what ``log_sum`` returns with the codes of the cell as further evidence. No
        attribute of ``kept`` may be in the evidence. Raises TooLong if building the tables would
        take longer than ``seconds`` or more bytes than ``room``.
        """
        return np.asarray(self._eliminated(kept, evidence, weights, _log_sum, seconds).real)

    def largest(
        self, evidence: Mapping[str, int], weights: Sequence[Table], seconds: float
    ) -> float:
        """Return the maximum, over all records with the evidence, of the sum of the log tables and
        ``weights`` at the record. Raises TooLong if building the tables would take longer than
        ``seconds`` or more bytes than ``room``.
        """
        over = partial(np.max, axis=-1)
        return float(self._eliminated((), evidence, weights, over, seconds).real)

    def at(self, record: Mapping[str, int], weights: Sequence[Table] = ()) -> float:
        """Return the log weight of one record: the sum of the entries at the record of the log
        tables and of the real parts of ``weights``, which are as in ``log_sum``.
        """
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
        """Return the table over ``kept``, given the evidence, that remains when all other
        attributes are eliminated by ``over``, which reduces the last axis of an array (log-sum-exp
        or maximum). Raises TooLong if building the tables would take longer than ``seconds`` or
        more bytes than ``room``.

        The axes of every table are in the reverse of the elimination order, so that the next
        attribute to be eliminated is always the last one; those in ``kept`` come first.
        """
        if CALL_SECONDS * (len(self.tables) + len(self.sizes)) > seconds:
            raise TooLong
        order = [*kept, *(name for name in reversed(self._rank) if name not in kept)]
        rank = {name: axis for axis, name in enumerate(order)}
        buckets: dict[str, list[Table]] = {name: [] for name in self._rank}
        left: list[Table] = []
        constant: complex = 0.0
        parts = [sliced(table, evidence) for table in (*self.tables, *weights)]
        self._check_room(held := sum([values.nbytes for _, values in parts]))
        with np.errstate(divide="ignore"):
            logs = [self._logarithm(values) for _, values in parts[: len(self.tables)]]
        logs += [values for _, values in parts[len(self.tables) :]]
        for (axes, _), values in zip(parts, logs, strict=True):
            turned = tuple(sorted(axes, key=rank.__getitem__))
            if turned != axes:
                values = values.transpose([axes.index(name) for name in turned])
            (buckets[turned[-1]] if turned else left).append((turned, values))
        for name in self._rank:
            inside = buckets.pop(name)
            if name in kept or not inside:
                left += inside
                if name not in kept and name not in evidence and over is _log_sum:
                    constant += log(self.sizes[name])
                continue
            names = set[str]().union(*[axes for axes, _ in inside])
            union = tuple(sorted(names, key=rank.__getitem__))
            shape = [self.sizes[n] for n in union]
            seconds -= CELL_SECONDS * prod(shape)
            if seconds < 0:
                raise TooLong
            size = max([values.itemsize for _, values in inside])
            # At most three arrays of a block are held at once: the sum of the tables, the arguments
            # of the exponentials, and the exponentials. One more is counted as a reserve.
            block = _block(shape)
            self._check_room(held + size * (prod(shape[:-1]) + 4 * block))
            made = _in_blocks([self._spread(each, union) for each in inside], shape, block, over)
            held += made.nbytes - sum([values.nbytes for _, values in inside])
            axes = union[:-1]
            (buckets[axes[-1]] if axes and axes[-1] not in kept else left).append((axes, made))
        found = np.zeros([self.sizes[name] for name in kept])
        return sum([self._spread(each, kept) for each in left], found) + constant

    def _check_room(self, held: int) -> None:
        if held > self.room:
            raise TooLong

    def _spread(self, table: Table, union: Clique) -> Any:
        """Return the table's values with an axis of length 1 for each attribute of ``union`` that
        the table lacks, so that they broadcast against a table over ``union``; such axes before all
        others may be left out. ``union`` must have all attributes of the table, in the same order.
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
    spread: Sequence[Any], shape: Sequence[int], block: int, over: Callable[[Array], Array]
) -> Array:
    """Return the sum of tables that broadcast to ``shape``, reduced by ``over`` along its last
    axis. Only a block of the sum, of ``block`` cells, is in memory at a time.
    """
    first, rows = shape[0], block // prod(shape[1:])
    if rows >= first:
        return over(sum(spread[1:], spread[0]))
    # A table that lacks the first axis, or has length 1 along it, is the same for every block.
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
    """Return the number of cells of a sum of this shape that are in memory at a time: at most
    ``BLOCK_CELLS``, but at least those of one index of the first axis; all cells of a vector.
    """
    rows = max(1, BLOCK_CELLS // prod(shape[1:])) if len(shape) > 1 else shape[0]
    return min(rows, shape[0]) * prod(shape[1:])


def _log_sum(values: Array) -> Array:
    """Return the logarithm of the sum of exponentials over the last axis."""
    if values.size < FEW_CELLS and values.dtype.kind != "c":
        return np.asarray(np.logaddexp.reduce(values, axis=-1))
    highest = values.real.max(axis=-1)
    peaks = np.where(np.isneginf(highest), 0.0, highest)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(values - peaks[..., None]).sum(axis=-1)) + peaks)


def size_of(table: Any) -> float:
    """Return the largest absolute value of the finite entries: 0 if there are none, NaN if an entry
    is NaN.
    """
    size = float(np.abs(table).max())
    if not isinf(size):
        return size
    finite = table[np.isfinite(table)]
    return float(np.abs(finite).max()) if finite.size else 0.0
