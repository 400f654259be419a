"""Exact counts of many marginals, with one pass over coded columns for each block of attributes.

Counting a table costs a pass over the rows; summing axes of a small table costs next to nothing. So
the requested cliques are covered greedily by blocks (larger sets of attributes whose tables stay in
cache), each block is counted once, and the cliques inside it are summed out of it. All of it takes
one thread: two threads, with a block for each, take longer than one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique
from pgmkit.errors import ModelTooLarge
from pgmkit.runtime import memory
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import BLOCK_CELLS, CACHE_CELLS

MEMORY_LIMIT = memory.MEMORY_LIMIT // 2
"""The most bytes that the int64 tables returned by one call may take together (2 GiB)."""

BATCH = 512
"""The number of cliques that are planned together; the time for planning grows with its square."""

Codes = NDArray[np.unsignedinteger[Any]]
Table = NDArray[np.int64]
Block = tuple[Clique, list[Clique]]
"""The attributes of a table that is counted, and the cliques whose tables are summed out of it."""


class CountingPlan:
    """The blocks that are counted to obtain the tables of `cliques`, planned once for data that
    may come in several pieces.

    `rows` is the approximate number of rows of a piece. It decides which blocks are fastest; counts
    are exact for any number. Raises ModelTooLarge if the tables need more than MEMORY_LIMIT.

    >>> columns = {"a": np.array([0, 1, 1], np.uint8), "b": np.array([2, 0, 0], np.uint8)}
    >>> CountingPlan({"a": 2, "b": 3}, [("a", "b")], 3).count(columns, 3)[("a", "b")]
    array([[0, 0, 1],
           [2, 0, 0]])
    """

    def __init__(self, sizes: Mapping[str, int], cliques: Sequence[Clique], rows: int) -> None:
        self._cliques = tuple(dict.fromkeys(cliques))
        self._sizes = sizes
        check_memory(self._cliques, sizes)
        # One table serves all orders of the same attributes. Small attributes come first, so that
        # the contiguous runs of the tables are long, which makes summing an axis away fast.
        rank = {a: i for i, a in enumerate(sorted(sizes, key=lambda a: (sizes[a], a)))}
        self._orders: dict[Clique, list[Clique]] = {}
        for clique in self._cliques:
            self._orders.setdefault(tuple(sorted(clique, key=rank.__getitem__)), []).append(clique)
        self.blocks = list(blocks(list(self._orders), sizes, rows))

    def count(self, columns: Mapping[str, Codes], rows: int) -> dict[Clique, Table]:
        """Return the table of every clique, counted over one piece of the data: exact int64 counts,
        axes in the clique's order. `columns` has `rows` unsigned codes of each attribute, each
        below its size; the codes are not checked here.
        """
        result: dict[Clique, Table] = dict.fromkeys(self._cliques, np.empty(0, np.int64))
        for block in self.blocks:
            result.update(self._block(block, columns, rows))
        return result

    def _block(self, block: Block, columns: Mapping[str, Codes], rows: int) -> dict[Clique, Table]:
        """Return the tables of one block's cliques."""
        attributes, members = block
        if members == [attributes] and len(self._orders[attributes]) == 1:
            (clique,) = self._orders[attributes]
            return {clique: _count(columns, self._sizes, clique, rows)}
        tables: dict[Clique, Table] = {}
        table = _count(columns, self._sizes, attributes, rows)
        sum_out(table, attributes, attributes[::-1], members, tables)
        return {
            clique: np.array(table.transpose([source.index(a) for a in clique]), order="C")
            for source, table in tables.items()
            for clique in self._orders[source]
        }


def check_memory(cliques: Collection[Clique], sizes: Mapping[str, int]) -> None:
    """Raise ModelTooLarge if the tables need more than MEMORY_LIMIT bytes together."""
    cells = {clique: math.prod(sizes[a] for a in clique) for clique in cliques}
    needed = 8 * sum(cells.values())
    if needed <= MEMORY_LIMIT:
        return
    largest = max(cells, key=cells.__getitem__)
    if 8 * cells[largest] > MEMORY_LIMIT:
        problem = f"needs {memory.counted(8 * cells[largest])} bytes"
        remedy = "leave out attributes, or merge values of the largest ones"
    else:
        problem = f"is the largest of tables that need {memory.counted(needed)} bytes"
        remedy = "ask for fewer marginals at once"
    raise ModelTooLarge(
        f"the marginal over {largest!r} ({memory.counted(cells[largest])} cells) {problem}; "
        f"the limit is {memory.counted(MEMORY_LIMIT)} bytes a call: {remedy}"
    )


def _count(
    columns: Mapping[str, Codes], sizes: Mapping[str, int], attributes: Clique, rows: int
) -> Table:
    """Return the table over `attributes` of the first `rows` rows: each row's cell is computed as a
    mixed-radix number, and bincount counts the rows of each cell.
    """
    cells = math.prod(sizes[a] for a in attributes)
    # Each bincount allocates and returns a whole table, so it gets at least four rows for each cell
    # as long as there are so many.
    chunk = max(1, min(rows, max(CACHE_CELLS, 4 * cells)))
    codes = np.empty(chunk, np.intp)
    table: Table | None = None
    for start in range(0, max(1, rows), chunk):
        stop = min(rows, start + chunk)
        for piece in range(start, stop, CACHE_CELLS):
            end = min(stop, piece + CACHE_CELLS)
            codes[piece - start : end - start] = codes_of(columns, sizes, attributes, piece, end)
        counts = np.bincount(codes[: stop - start], minlength=cells)
        if table is None:
            table = counts.astype(np.int64, copy=False)
        else:
            table += counts
    assert table is not None
    return table.reshape([sizes[a] for a in attributes])


def codes_of(
    columns: Mapping[str, Codes], sizes: Mapping[str, int], attributes: Clique, start: int, end: int
) -> Codes:
    """Return the flat index, in the table over `attributes`, of the cell of each row from `start`
    to before `end`: zeros if there are no attributes, the column itself, not copied, if there is
    one, otherwise an array of the smallest unsigned type that can hold each index, and also the
    size of the last attribute, by which the codes before it are multiplied.
    """
    if not attributes:
        return np.zeros(end - start, np.uint8)
    codes = columns[attributes[0]][start:end]
    cells = sizes[attributes[0]]
    for attribute in attributes[1:]:
        cells *= sizes[attribute]
        kind = np.min_scalar_type(max(cells - 1, sizes[attribute]))
        codes = np.multiply(codes, sizes[attribute], dtype=kind)
        codes += columns[attribute][start:end]
    return codes


def sum_out(
    table: Any, held: Clique, order: Clique, wanted: Sequence[Clique], into: dict[Clique, Any]
) -> None:
    """Add to ``into`` the table of every clique of ``wanted``, a subset of ``held`` in its order.
    They are summed out of ``table``, an array or a tensor, whose axes are ``held``.

    Each attribute of ``order`` is in turn summed out for the cliques without it and kept for those
    with it, so cliques that agree on the first attributes share the sums. Large attributes should
    come first, so that tables shrink early.

    >>> found: dict[Clique, Any] = {}
    >>> sum_out(np.ones((2, 3, 4)), ("a", "b", "c"), ("c", "b"), [("a", "c"), ("b",)], found)
    >>> found[("b",)]
    array([8., 8., 8.])
    """
    if len(wanted) == 1:
        away = tuple(place for place, name in enumerate(held) if name not in wanted[0])
        into[wanted[0]] = table.sum(axis=away) if away else table  # torch sums all axes for none
        return
    first, rest = order[0], order[1:]
    if without := [clique for clique in wanted if first not in clique]:
        fewer = tuple(name for name in held if name != first)
        sum_out(table.sum(axis=held.index(first)), fewer, rest, without, into)
    if having := [clique for clique in wanted if first in clique]:
        sum_out(table, held, rest, having, into)


def blocks(cliques: Sequence[Clique], sizes: Mapping[str, int], rows: int) -> Iterator[Block]:
    """Yield pairs of a block's attributes and the cliques that are summed out of it, until all
    cliques are covered. Each clique is in the order of `CountingPlan`: small attributes first.
    """
    # With fewer than half of CACHE_CELLS rows, planning blocks takes longer than they save.
    if 2 * rows < CACHE_CELLS or len(cliques) == 1:
        yield from ((clique, [clique]) for clique in cliques)
        return
    # Cliques are sorted so that those of one batch have few attributes altogether, and a block
    # covers many of them.
    names = sorted({a for clique in cliques for a in clique})
    side = max(2, round(BATCH ** (1 / max([1, *map(len, cliques)]))))
    tile = {a: place // side for place, a in enumerate(names)}
    ordered = sorted(cliques, key=lambda clique: (sorted(tile[a] for a in clique), clique))
    for first in range(0, len(ordered), BATCH):
        yield from _cover(ordered[first : first + BATCH], sizes, rows)


def _cover(cliques: list[Clique], sizes: Mapping[str, int], rows: int) -> Iterator[Block]:
    """Yield blocks as `blocks` does, by a greedy covering: a block is grown, attribute by
    attribute, around the largest clique that is not covered yet, and its best stage is kept.

    The best stage saves the most time of direct counting for each second spent on the block.
    """
    names = sorted({a for clique in cliques for a in clique}, key=lambda a: (sizes[a], a))
    member = np.array([[a in clique for a in names] for clique in cliques], np.float64)
    size = np.array([sizes[a] for a in names], np.float64)
    cells = np.exp(member @ np.log(size))
    direct = seconds_of(cells, member.sum(axis=1), rows)
    left = np.ones(len(cliques), bool)
    for seed in np.argsort(-cells, kind="stable"):
        if not left[seed]:
            continue
        inside = _grown(member[seed], member[left], direct[left], size, rows)
        covered = left & (member @ (1 - inside) == 0)
        if cells[seed] > BLOCK_CELLS:
            # A sum over a table of so many cells costs more than counting a small one, so no other
            # clique is obtained from it.
            covered &= np.arange(len(cliques)) == seed
        left &= ~covered
        attributes = tuple(a for a, used in zip(names, inside, strict=True) if used)
        yield attributes, [cliques[i] for i in np.flatnonzero(covered)]


def _grown(start: Array, member: Array, direct: Array, size: Array, rows: int) -> Array:
    """Return the best block that contains the attributes `start`; `start` and the result are 0/1
    vectors over the attributes. The best block has the largest ratio of the seconds of counting its
    cliques one by one to those of counting the block and summing. `member` has a 0/1 vector for
    each clique that is not covered yet, `direct` the seconds of counting each of these alone in
    `rows` records, and `size` the attributes' sizes.
    """
    inside, best, best_rate = start.copy(), start.copy(), 0.0
    cells = float(np.prod(size[inside > 0]))
    while True:
        missing = member @ (1 - inside)
        rate = float(direct[missing == 0].sum()) / float(seconds_of(cells, inside.sum(), rows))
        if rate > best_rate:
            best, best_rate = inside.copy(), rate
        room = (inside == 0) & (cells * size <= BLOCK_CELLS)
        if not room.any():
            return best
        # An attribute is worth the counting time of the cliques for which it is missing, divided by
        # 4 for each attribute that is missing for the clique, and less if the attribute is large,
        # since it leaves less room for others.
        worth = (direct * (missing > 0) * 0.25**missing) @ member / np.log2(1 + size)
        chosen = int(np.argmax(np.where(room, worth, -1.0)))
        inside[chosen] = 1.0
        cells *= size[chosen]


def seconds_of(cells: Any, attributes: Any, rows: int) -> Any:
    """Return the approximate seconds that it takes to count a table with this number of `cells` and
    of `attributes` in `rows` records, and to obtain the tables of its subsets by sums. The formula
    was fitted on one core.

    Every row takes 0.3 ns for each attribute and one increment of a cell (slower in tables that
    exceed the cache), every cell 8 ns for allocation and sums, and every table 20 us for calls.
    """
    increment = 1.2 + 0.06 * np.log2(1 + cells) + 1.5e-6 * cells
    return 1e-9 * (rows * (0.3 * attributes + increment) + 8.0 * cells + 2e4)
