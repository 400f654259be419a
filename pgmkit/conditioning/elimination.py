"""Elimination trees: the order in which tables are multiplied and attributes summed out.

A tree's first nodes are the inputs. Every further node is the product of two nodes, or a copy of
one, with those attributes summed out that no other remaining node holds. Sets of attributes are
integers with one bit for each attribute.

If the inputs are conditional distributions, a product from which all attributes that it is a
distribution of have been summed out is 1 everywhere (*barren*: Shachter 1986). Such a node is part
of the tree, since its attributes connect others, but holds no table, and a product with it is a
copy. So a node has two sets of attributes: those of its place in the tree (``scope``) and those its
table depends on.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pgmkit.contraction.order import MOVE_COST
from pgmkit.graphs.bit_sets import cells_of, each_bit, union
from pgmkit.graphs.elimination_search import RANKS, Search, Step
from pgmkit.runtime.sizes import CACHE_CELLS

_MEASURES_OF_A_CELL = 0.0002
"""The number of attributes that the order search measures in the time that a pass and its adjoints
spend on one cell.
"""
_MEASURES_OF_A_TABLE = 4
"""The number of attributes that the order search measures in the time that planning one table of
the tree takes.
"""
WRITTEN = 2
"""The number of multiplications in the time that writing one cell of a table takes, its allocation
included.
"""
_NEARLY = 1.5
"""The factor by which an order's cliques may exceed the fewest cells found and still have their
tree built; the best tree is chosen by its own cells.
"""
_PATIENCE = 12
"""The search stops after this many orders beyond twice the number tried at the last improvement."""


@dataclass
class EliminationTree:
    """A sum of products as a tree of nodes, listed so that operands come before the node made of
    them.

    All lists but ``roots`` and ``order`` have one entry for each node; ``inputs`` is the number of
    inputs.
    """

    sizes: tuple[int, ...]
    scopes: list[int]
    """The attributes that each node may depend on by its place in the tree, as a set."""
    tables: list[int]
    """The attributes that each node's table depends on; a subset of its scope."""
    barren: list[bool]
    """True for each node that is 1 everywhere."""
    operands: list[tuple[int, ...]]
    """The nodes that each node is made of: () for an input, one node for a sum, two for a
    product.
    """
    parents: list[int]
    """The node that each node is an operand of; -1 for a root."""
    inputs: int
    roots: list[int] = field(default_factory=list)
    cells: float = 0.0
    """Multiplications of a pass upward and downward, and the time for the cells that it writes in
    the same unit.
    """
    order: list[int] = field(default_factory=list)
    """The order of elimination that the tree was built from."""

    @property
    def largest(self) -> int:
        """The cells of the largest product, before attributes are summed out of it."""
        return max([self.cells_of(self.scopes[n] | self.summed(n)) for n in self.made], default=1)

    @property
    def attributes(self) -> int:
        """All attributes of the inputs."""
        return union(self.scopes[: self.inputs])

    @property
    def made(self) -> range:
        """The nodes that are not inputs."""
        return range(self.inputs, len(self.scopes))

    def cells_of(self, members: int) -> int:
        """Return the cells of a table over these attributes."""
        return cells_of(members, self.sizes)

    def summed(self, node: int) -> int:
        """Return the attributes that are summed out at this node."""
        scope = 0
        for operand in self.operands[node]:
            scope |= self.scopes[operand]
        return scope & ~self.scopes[node]

    @cached_property
    def below(self) -> list[int]:
        """For each node the attributes that are summed out at the node or below it."""
        found = [0] * self.inputs
        for node in range(self.inputs, len(self.scopes)):
            gone = self.summed(node)
            for operand in self.operands[node]:
                gone |= found[operand]
            found.append(gone)
        return found

    def lowest(self, members: int) -> Iterator[tuple[int, int]]:
        """Yield for each component with some of the attributes ``members`` the lowest node that has
        all of them in its scope or summed out below it, and these attributes.
        """
        below = self.below
        for root in self.roots:
            inside = members & (below[root] | self.scopes[root])
            node, held = root, [root] if inside else []
            while held:
                node = held[0]
                held = [v for v in self.operands[node] if not inside & ~(below[v] | self.scopes[v])]
            if inside:
                yield node, inside

    def joint_cells(self, members: int) -> int:
        """Return the multiplications for the joint marginal of some attributes by messages on the
        tree, with what is written on the way; 0 if a node's table has them all.
        """
        if not members & (members - 1) or any(not members & ~table for table in self.tables):
            return 0
        return sum(
            [
                self.cells_of(product) + WRITTEN * self.cells_of(made)
                for node, inside in self.lowest(members)
                for product, made in self.products_across(node, inside)
            ]
        )

    def products_across(self, node: int, inside: int) -> Iterator[tuple[int, int]]:
        """Yield the products on the way to a node's value in which the attributes ``inside`` are
        kept: for each product its attributes, and those left after the sum.
        """
        kept, left = inside & self.below[node], [node]
        for each in left:
            if each >= self.inputs and (lost := self.below[each] & kept):
                for operand in self.operands[each]:
                    # A barren operand is no longer 1 everywhere if an attribute that it sums out is
                    # kept.
                    known = self.scopes if self.below[operand] & kept else self.tables
                    lost |= known[operand]
                yield lost, lost & (self.scopes[each] | kept)
                left += self.operands[each]


Cost = Callable[[EliminationTree], float]


def cost_of_maxima(tree: EliminationTree) -> float:
    """Return the cost of maxima over a tree: every product is gone through cell by cell."""
    return tree.cells


def cost_of_sums(tree: EliminationTree) -> float:
    """Return the cost of sums over a tree, in multiplications.

    Products are matrix products, so moving tables that a core's cache does not hold may take longer
    than the products themselves.
    """
    if tree.cells <= CACHE_CELLS:
        return tree.cells
    sizes = [tree.cells_of(tree.scopes[node]) for node in tree.made]
    return tree.cells + MOVE_COST * sum([cells for cells in sizes if cells > CACHE_CELLS])


class Planning:
    """The search for the elimination tree with the fewest multiplications, over many orders.

    Args:
        scopes, heads, sizes: as ``elimination_tree`` takes them.
    """

    def __init__(self, scopes: Sequence[int], heads: Sequence[int], sizes: tuple[int, ...]) -> None:
        neighbours, held = [0] * len(sizes), 0
        for scope in scopes:
            held |= scope
            for v in each_bit(scope):
                neighbours[v] |= scope
        self.scopes, self.heads, self.sizes = scopes, heads, sizes
        for v in each_bit(held):
            neighbours[v] ^= 1 << v
        self._search = Search(neighbours, sizes, held)
        self._ways = self._search.ways(seed=0)
        steps = self._search.order(next(self._ways))
        assert steps is not None
        self.first = self._tree(steps)
        """The tree of one greedy order."""
        self._least = self._search.cells_of(steps)

    def _tree(self, steps: Sequence[Step]) -> EliminationTree:
        return elimination_tree(self.scopes, self.heads, [v for v, _ in steps], self.sizes)

    def best(
        self,
        start: EliminationTree | None = None,
        cost: Cost = cost_of_sums,
    ) -> EliminationTree:
        """Return the tree with the fewest multiplications among many orders and ``start``, or the
        tree of a sweep through the graph if its ``cost`` is lower.

        The search stops when another order would cost more time than the best tree so far takes to
        run, or when many orders in a row brought no improvement: a small graph gets one greedy
        order. The search measures work, not time, so the same graph gets the same tree on every
        machine.
        """
        best, improved, planned, least = self.first, 1, 1, self._least
        if start is not None and start.cells <= best.cells:
            best, improved = start, 0
        tried = 1
        while tried <= _PATIENCE + 2 * improved:
            spent = self._search.measured + _MEASURES_OF_A_TABLE * planned * len(self.scopes)
            if spent * (tried + 1) / tried > _MEASURES_OF_A_CELL * best.cells:
                break
            if (way := next(self._ways, None)) is None:
                break
            tried += 1
            # The cliques' cells are known during the search, and are nearly proportional to the
            # tree's.
            steps = self._search.order(way, _NEARLY * least)
            if steps is not None:
                least, planned = min(least, self._search.cells_of(steps)), planned + 1
                tree = self._tree(steps)
                if tree.cells < best.cells:
                    best, improved = tree, tried
        if tried <= len(RANKS):
            return best
        steps = self._search.order(self._search.sweep)
        assert steps is not None
        return min(best, self._tree(steps), key=cost)


class _Growing:
    """A tree under construction: the nodes that are not operands yet, and which of them hold each
    attribute.
    """

    def __init__(self, scopes: Sequence[int], heads: Sequence[int], sizes: tuple[int, ...]) -> None:
        count = len(scopes)
        self.sizes = sizes
        self.heads = list(heads)
        self.tree = EliminationTree(
            sizes, list(scopes), list(scopes), [False] * count, [()] * count, [-1] * count, count
        )
        self.holders: defaultdict[int, set[int]] = defaultdict(set)
        for node, scope in enumerate(scopes):
            for v in each_bit(scope):
                self.holders[v].add(node)
        self.known: dict[int, float] = {}

    def cells(self, members: int) -> float:
        found = self.known.get(members)
        if found is None:
            found = 1.0  # a scope of a thousand attributes has more cells than floats count: inf
            for v in each_bit(members):
                found *= self.sizes[v]
            self.known[members] = found
        return found

    def eliminate(self, v: int) -> None:
        held = self.holders[v]
        if not held:
            return
        tree = self.tree
        if len(held) == 1:
            self.join(next(iter(held)), None)
            return
        queue = [(self.cells(tree.tables[node]), node) for node in held]
        heapq.heapify(queue)
        while len(queue) > 1:
            made = self.join(heapq.heappop(queue)[1], heapq.heappop(queue)[1])
            heapq.heappush(queue, (self.cells(tree.tables[made]), made))

    def join(self, left: int, right: int | None) -> int:
        """Add the product of two nodes (or a copy of one), with the attributes summed out that no
        other node holds, and return the new node.
        """
        tree, holders = self.tree, self.holders
        node = len(tree.scopes)
        operands = (left,) if right is None else (left, right)
        scope = tree.scopes[left] | (0 if right is None else tree.scopes[right])
        table = tree.tables[left] | (0 if right is None else tree.tables[right])
        gone = 0
        for v in each_bit(scope):
            held = holders[v]
            held.discard(left)
            if right is not None:
                held.discard(right)
            if held:
                held.add(node)
            else:
                gone |= 1 << v
        heads = self.heads[left]
        if right is not None:
            other = self.heads[right]
            heads = -1 if heads < 0 or other < 0 else heads | other
        if heads > 0:
            heads &= ~gone
        barren = heads == 0
        # One product upward and one downward for each operand, and the cells that each writes.
        value = 0.0 if barren else self.cells(table) + WRITTEN * self.cells(table & ~gone)
        adjoint = len(operands) * self.cells(scope) + WRITTEN * self.cells(scope & ~gone)
        tree.cells += value + adjoint
        tree.scopes.append(scope & ~gone)
        tree.tables.append(0 if barren else table & ~gone)
        tree.barren.append(barren)
        tree.operands.append(operands)
        tree.parents.append(-1)
        self.heads.append(heads)
        for operand in operands:
            tree.parents[operand] = node
        return node


def elimination_tree(
    scopes: Sequence[int], heads: Sequence[int], order: Sequence[int], sizes: tuple[int, ...]
) -> EliminationTree:
    """Return the elimination tree of an order.

    Args:
        scopes: the attributes of each input.
        heads: the attributes each input is a conditional distribution of; -1 for any other table.
        order: every attribute of the inputs; others are passed over.
        sizes: of all attributes.

    >>> tree = elimination_tree([0b1, 0b11], [0b1, 0b10], [1, 0], (2, 3))
    >>> tree.operands[2:], tree.scopes[2:], tree.barren[2:]
    ([(1,), (2, 0)], [1, 0], [True, True])
    """
    growing = _Growing(scopes, heads, sizes)
    for v in order:
        growing.eliminate(v)
    tree = growing.tree
    tree.order = list(order)
    tree.roots = [node for node, parent in enumerate(tree.parents) if parent < 0]
    return tree
