"""The memory that answers by an elimination tree hold at once, before any of it is taken.

Counted are the inputs, the tables that are kept, and beside them the largest step: the copies of
its operands in the order of a matrix product, its result, and that divided by its peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgmkit.conditioning.elimination import EliminationTree
from pgmkit.conditioning.modes import pointer_type
from pgmkit.runtime.memory import check_room, counted, room
from pgmkit.runtime.sizes import CELL_BYTES

__all__ = ["check_marginals", "check_record", "check_sum", "records_within", "surely_fits"]

_SMALL_PASS = 1 << 28
"""Bytes of the bound below from which a pass takes thirty times as long as reading the system's
counters, a millisecond; what it holds at once is a tenth of the bound or so."""
_COPIES = 2
"""The arrays that a step makes: the result, and the result divided by its peak."""


def surely_fits(tree: EliminationTree, limit: int, cells: int) -> bool:
    """True if a pass fits, with tables of so many cells spread over all of its own, by a bound that
    takes no time: twice ``tree.cells``, the multiplications, is more than the cells of all tables
    and copies together.
    """
    bound = 2 * CELL_BYTES * tree.cells * cells
    return bound <= limit and (bound <= _SMALL_PASS or bound <= room())


def check_sum(tree: EliminationTree, limit: int) -> None:
    """Raises ModelTooLarge where the sum of the product does not fit, its operands freed."""
    _check(tree, _upward(tree, _own_cells(tree), kept=False), limit, "the sum over all records")


def check_marginals(tree: EliminationTree, limit: int, sets: Iterable[int], *, made: bool) -> None:
    """Raises ModelTooLarge where the marginals of these sets of attributes do not fit; ``made``
    says that the values are there already.
    """
    own = _own_cells(tree)
    upward = _upward(tree, own, kept=True)
    needed = max(upward, sum(own) + _downward(tree, own, sets))
    _check(tree, needed, limit, "marginals", sum(own) if made else sum(own[: tree.inputs]))


def check_record(tree: EliminationTree, limit: int) -> None:
    """Raises ModelTooLarge where the most likely record does not fit: beside the tables that are
    still needed, a place for each cell of every maximum.
    """
    own, places = _own_cells(tree), 0
    for node in tree.made:
        gone = tree.cells_of(tree.summed(node))
        if gone > 1:
            places += own[node] * pointer_type(gone).itemsize
    cells = _upward(tree, own, kept=False) + -(-places // CELL_BYTES)
    _check(tree, cells, limit, "the search for the most likely record")


def records_within(tree: EliminationTree, count: int, limit: int) -> int:
    """The number of records, of so many, that fit side by side, by the tree of one: its
    multiplications are more than the cells of all its tables and their copies.
    """
    each = 2 * CELL_BYTES * max(tree.cells, 1.0)
    if count * each > _SMALL_PASS:
        limit = min(limit, room())
    return int(limit // each)


def _own_cells(tree: EliminationTree) -> list[int]:
    """Cells of each node's table; none of what is 1 everywhere."""
    pairs = zip(tree.tables, tree.barren, strict=True)
    return [0 if barren else tree.cells_of(table) for table, barren in pairs]


def _upward(tree: EliminationTree, own: Sequence[int], *, kept: bool) -> int:
    """Cells held at most on the way up, with every value ``kept``, or until it is multiplied."""
    held = most = sum(own[: tree.inputs])
    for node in tree.made:
        operands = [own[operand] for operand in tree.operands[node]]
        most = max(most, held + sum(operands) + _COPIES * own[node])
        held += own[node]
        if not kept:
            held -= sum([own[v] for v in tree.operands[node] if v >= tree.inputs])
    return most


def _downward(tree: EliminationTree, own: Sequence[int], sets: Iterable[int]) -> int:
    """Cells beside the values for the marginals of these sets: adjoints, steps and answers."""
    reached: set[int] = set()
    held = largest = 0
    for members in set(sets):
        held += tree.cells_of(members)
        inside = [(own[n], n) for n, table in enumerate(tree.tables) if not members & ~table]
        nodes = [min(inside)[1]] if inside else []
        if not inside:
            for node, part in tree.lowest(members):
                nodes.append(node)
                products = list(tree.products_across(node, part))
                largest = max(
                    largest,
                    sum([tree.cells_of(made) for _, made in products])
                    + max([tree.cells_of(product) for product, _ in products], default=0),
                )
        for start in nodes:
            node = start
            while node >= 0 and node not in reached:
                reached.add(node)
                above = tree.parents[node]
                step = _COPIES * tree.cells_of(tree.scopes[node])
                if above >= 0:
                    beside = [own[v] for v in tree.operands[above] if v != node]
                    step += tree.cells_of(tree.scopes[above]) + sum(beside)
                largest = max(largest, step)
                held += tree.cells_of(tree.scopes[node])
                node = above
    return held + largest


def _check(tree: EliminationTree, cells: int, limit: int, what: str, held: int = 0) -> None:
    check_room(
        CELL_BYTES * cells,
        f"{what} (a product of tables over {counted(tree.largest)} cells)",
        limit,
        "observe more, ask for fewer attributes at once",
        CELL_BYTES * held,
    )
