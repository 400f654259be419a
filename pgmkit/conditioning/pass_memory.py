"""Upper bounds on the memory that answers by an elimination tree need, checked before any is
allocated.

They count the inputs, the tables that are kept, and the largest single step: the copies of its
operands in the order of a matrix product, its result, and the result divided by its maximum. An
answer fits into memory if these are within ``limit`` bytes and ``check_room`` finds room for those
that are not in memory yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pgmkit.conditioning.elimination import EliminationTree
from pgmkit.runtime.memory import check_room, counted, room
from pgmkit.runtime.sizes import CELL_BYTES, TABLE_CELLS

_SMALL_PASS = 8 * TABLE_CELLS * CELL_BYTES
"""If the quick bound of ``surely_fits`` is at most this many bytes, the free memory of the machine
is not asked for. Asking takes a millisecond, a thirtieth of the time of a pass with this bound;
such a pass needs about a tenth of these bytes.
"""


def surely_fits(tree: EliminationTree, limit: int, joint: Sequence[int]) -> bool:
    """Return True if a quick bound shows that a pass fits into memory with the joint marginals of
    these sets of attributes. If the result is False, ``check_marginals`` has to decide.

    The quick bound is two cells for each multiplication, which is more than all tables and copies
    have. The multiplications are counted as those of the pass times the cells of the largest
    marginal, as if every table had the axes of that marginal too. If this gives more than
    `_SMALL_PASS` or the limit, they are also counted exactly, for the pass and each marginal, and
    the smaller bound is taken.
    """
    cells = [tree.cells_of(members) for members in joint]
    bound = 2 * CELL_BYTES * tree.cost * max(cells, default=1)
    if bound > min(limit, _SMALL_PASS):
        across = sum([tree.joint_cost(members) for members in joint])
        bound = min(bound, 2 * CELL_BYTES * (tree.cost + across + sum(cells)))
    return bound <= limit and (bound <= _SMALL_PASS or bound <= room())


def check_sum(tree: EliminationTree, limit: int) -> None:
    """Raise ModelTooLarge if the sum over all records does not fit into memory, with each operand
    freed once it is multiplied.
    """
    _check(tree, _upward(tree, _own_cells(tree), kept=False), limit, "the sum over all records")


def check_marginals(tree: EliminationTree, limit: int, sets: Iterable[int], *, made: bool) -> None:
    """Raise ModelTooLarge if the marginals of these sets of attributes do not fit into memory.
    ``made`` says whether the nodes' values are in memory already.
    """
    own = _own_cells(tree)
    needed = max(_upward(tree, own, kept=True), sum(own) + _downward(tree, own, sets))
    _check(tree, needed, limit, "marginals", sum(own) if made else sum(own[: tree.inputs]))


def check_record(tree: EliminationTree, limit: int) -> None:
    """Raise ModelTooLarge if the search for the most likely record does not fit into memory. Beside
    the tables that are still needed, it stores an index for each cell of every maximum.
    """
    own, places = _own_cells(tree), 0
    for node in tree.made:
        gone = tree.cells_of(tree.summed(node))
        if gone > 1:
            places += own[node] * np.min_scalar_type(gone - 1).itemsize
    cells = _upward(tree, own, kept=False) + -(-places // CELL_BYTES)
    _check(tree, cells, limit, "the search for the most likely record")


def records_within(tree: EliminationTree, count: int, limit: int) -> int:
    """Return the largest number of records of evidence that can be answered at the same time within
    ``limit`` bytes, and also within the free memory if ``count`` records need more than
    ``_SMALL_PASS`` bytes. ``tree`` is the elimination tree of one record.

    A record counts as two cells for each of the tree's multiplications, which is more than all its
    tables and copies have.
    """
    each = 2 * CELL_BYTES * max(tree.cost, 1)
    if count * each > _SMALL_PASS:
        limit = min(limit, room())
    return limit // each


def kept_bytes(tree: EliminationTree, limit: int) -> float:
    """Return an upper bound on the bytes of the inputs, values and adjoints that stay in memory
    after marginals were computed. A second computation has to fit beside them. The bound is a quick
    one, or a tighter one if the quick one is above ``limit``.
    """
    if (bound := 2 * CELL_BYTES * tree.cost) <= limit:
        return bound
    adjoints = sum([tree.cells_of(scope) for scope in tree.scopes])
    return CELL_BYTES * (sum(_own_cells(tree)) + adjoints)


def _own_cells(tree: EliminationTree) -> list[int]:
    """Return the number of cells of each node's table; 0 for a barren node, which has none."""
    pairs = zip(tree.tables, tree.barren, strict=True)
    return [0 if barren else tree.cells_of(table) for table, barren in pairs]


def _upward(tree: EliminationTree, own: Sequence[int], *, kept: bool) -> int:
    """Return the largest number of cells in memory during the upward pass. If ``kept`` is True,
    every value stays in memory; otherwise only the inputs do, and each product is freed once it is
    multiplied. ``own`` has the number of cells of each node's table.
    """
    held = most = sum(own[: tree.inputs])
    for node in tree.made:
        operands = [own[operand] for operand in tree.operands[node]]
        # A step allocates copies of its operands, its result, and the result divided by its
        # maximum.
        most = max(most, held + sum(operands) + 2 * own[node])
        held += own[node]
        if not kept:
            held -= sum([own[v] for v in tree.operands[node] if v >= tree.inputs])
    return most


def _downward(tree: EliminationTree, own: Sequence[int], sets: Iterable[int]) -> int:
    """Return the number of cells that the marginals of these sets need in addition to the values:
    those of the adjoints, of the largest step, and of the answers. ``own`` has the number of cells
    of each node's table.
    """
    adjoints: set[int] = set()  # these are the nodes whose adjoints the answers need
    answers, largest = set(sets), 0
    for members in answers:
        inside = [(own[n], n) for n in tree.holding(members)]
        parts = [] if inside else list(tree.lowest(members))
        for node, part in parts:
            products = list(tree.products_across(node, part))
            results = sum([tree.cells_of(made) for _, made in products])
            widest = max([tree.cells_of(product) for product, _ in products], default=0)
            largest = max(largest, results + widest)
        for node in [min(inside)[1]] if inside else [node for node, _ in parts]:
            while node >= 0 and node not in adjoints:
                adjoints.add(node)
                node = tree.parents[node]
    for node in adjoints:
        above, step = tree.parents[node], 2 * tree.cells_of(tree.scopes[node])
        if above >= 0:
            beside = [own[v] for v in tree.operands[above] if v != node]
            step += tree.cells_of(tree.scopes[above]) + sum(beside)
        largest = max(largest, step)
    return sum(map(tree.cells_of, [*answers, *(tree.scopes[node] for node in adjoints)])) + largest


def _check(tree: EliminationTree, cells: int, limit: int, what: str, held: int = 0) -> None:
    check_room(
        CELL_BYTES * cells,
        f"{what} (a product of tables over {counted(tree.largest)} cells)",
        limit,
        "observe more, ask for fewer attributes at once",
        CELL_BYTES * held,
    )
