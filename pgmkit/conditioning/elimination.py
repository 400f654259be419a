"""Elimination trees: the order in which tables are multiplied and attributes summed out.

A tree's first nodes are the inputs. Every further node is made from two nodes by multiplying them,
or from one by copying it; then the attributes that occur in no other node still to be multiplied
are summed out. Sets of attributes are integers with one bit for each attribute.

If the inputs are conditional distributions P(heads | parents), their product is one too. Once all
of its heads have been summed out, it is 1 everywhere (*barren*: Shachter 1986). A barren node stays
in the tree, since it joins the parents, but it has no table, and a product with it is a copy of the
other operand. So a node has two sets of attributes: those of its place in the tree (``scope``) and
those that its table depends on.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pgmkit.graphs.bit_sets import cells_of, each_bit, neighbours, union
from pgmkit.graphs.elimination_search import MEASURES_A_SECOND, RANKS, Search, Way
from pgmkit.runtime.iterations import FEW_ROUNDS
from pgmkit.runtime.sizes import CALL_CELLS, MULTIPLICATIONS_A_SECOND

_MEASURES_OF_A_CELL = MEASURES_A_SECOND / (5 * MULTIPLICATIONS_A_SECOND)
"""The number of attributes that the order search may measure (compute the cost of eliminating them)
for each multiplication of the best tree so far: a fifth of those that it measures in the time of
one multiplication. Of the shares from a tenth to a half, a fifth takes the least time for search
and inference together on the networks of ``benchmarks.networks``.
"""
_MEASURES_OF_A_TABLE = 4
"""The number of attributes that the order search measures in the time that planning one table of
the tree takes.
"""
_WRITTEN = 2
"""The number of multiplications in the time that writing one cell of a table takes, including the
allocation of its memory.
"""


@dataclass
class EliminationTree:
    """A sum of products as a tree of nodes, in which operands are listed before the node that is
    made from them.

    All lists except ``roots`` and ``order`` have one entry for each node; ``sizes`` has the size of
    each attribute, and ``inputs`` is the number of inputs.
    """

    sizes: tuple[int, ...]
    scopes: list[int]
    """The attributes that each node has by its place in the tree, as a set."""
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
    cost: int = 0
    """The cost of an upward and a downward pass, in multiplications: those of the products, and the
    time for writing cells in the same unit.
    """
    order: list[int] = field(default_factory=list)
    """The elimination order that the tree was built from."""
    _cells: dict[int, int] = field(default_factory=dict, init=False)
    _joint_costs: dict[int, int] = field(default_factory=dict, init=False)

    @property
    def largest(self) -> int:
        """The number of cells of the largest product, before attributes are summed out of it."""
        return max([self.cells_of(self.scopes[n] | self.summed(n)) for n in self.made], default=1)

    @property
    def made(self) -> range:
        """The nodes that are not inputs."""
        return range(self.inputs, len(self.scopes))

    def cells_of(self, members: int) -> int:
        """Return the number of cells of a table over these attributes; each number is computed
        once and kept.
        """
        found = self._cells.get(members)
        if found is None:
            found = self._cells[members] = cells_of(members, self.sizes)
        return found

    @cached_property
    def _holders(self) -> list[list[int]]:
        """For each attribute the nodes whose table has it, in ascending order."""
        found: list[list[int]] = [[] for _ in self.sizes]
        for node, table in enumerate(self.tables):
            for v in each_bit(table):
                found[v].append(node)
        return found

    def holding(self, members: int) -> Sequence[int]:
        """Return the nodes whose table has all these attributes, in ascending order; for no
        attributes, all nodes.
        """
        if not members:
            return range(len(self.tables))
        fewest = min([self._holders[v] for v in each_bit(members)], key=len)
        return [node for node in fewest if not members & ~self.tables[node]]

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
            found.append(union([self.summed(node), *(found[v] for v in self.operands[node])]))
        return found

    @cached_property
    def links(self) -> dict[int, tuple[int, int]]:
        """A node over one attribute may be the product of a vector over another attribute and a
        small matrix over both, which have the same size. For each such node: the operands that are
        the matrix and the vector.
        """
        found = {}
        for node in self.made:
            upper, operands = self.scopes[node], self.operands[node]
            if len(operands) < 2 or upper.bit_count() != 1:
                continue
            for matrix, below in (operands, operands[::-1]):
                lower = self.scopes[below]
                if lower.bit_count() != 1 or upper == lower or self.tables[matrix] != upper | lower:
                    continue
                size = self.cells_of(upper)
                if size == self.cells_of(lower) and size**3 <= CALL_CELLS:
                    found[node] = matrix, below
        return found

    def lowest(self, members: int) -> Iterator[tuple[int, int]]:
        """Yield a pair (node, set) for each connected component that has some of the attributes
        ``members``. The set has those of ``members`` that are in the component. The node is the
        lowest one such that each attribute of the set is in its scope or summed out at or below it.
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

    def joint_cost(self, members: int) -> int:
        """Return the cost, in multiplications, of the joint marginal of some attributes by messages
        on the tree: of the products within each connected component and of writing their results.
        It is 0 if the table of one node has all the attributes, and for a single attribute.
        """
        if (found := self._joint_costs.get(members)) is None:
            found = 0
            if members & (members - 1) and not self.holding(members):
                for node, inside in self.lowest(members):
                    for product, made in self.products_across(node, inside):
                        # The cells are counted in two parts. The part without `members` is that of
                        # a table of the tree, so few numbers are kept however many sets are asked.
                        both = self.cells_of(product & members), self.cells_of(product & ~members)
                        kept = self.cells_of(made & members), self.cells_of(made & ~members)
                        found += both[0] * both[1] + _WRITTEN * kept[0] * kept[1]
            self._joint_costs[members] = found
        return found

    def products_across(self, node: int, inside: int) -> Iterator[tuple[int, int]]:
        """Yield the products that compute the value of ``node`` anew, with the attributes
        ``inside`` kept where they were summed out. For each product, the first set has the
        attributes of its operands, and the second those of its result.
        """
        kept, left = inside & self.below[node], [node]
        for each in left:
            if each >= self.inputs and (lost := self.below[each] & kept):
                for operand in self.operands[each]:
                    # `lost` collects the attributes of the operands. A barren operand is 1
                    # everywhere and has none, unless an attribute is kept that is summed out at it
                    # or below.
                    lost |= (self.scopes if self.below[operand] & kept else self.tables)[operand]
                yield lost, lost & (self.scopes[each] | kept)
                left += self.operands[each]


class Planning:
    """The search for the elimination tree of the lowest cost, over many orders.

    Args:
        scopes: the attributes of each input, as a set.
        heads: the attributes that each input is a conditional distribution of, as a set; -1 for any
            other table.
        sizes: the sizes of all attributes.
    """

    def __init__(self, scopes: Sequence[int], heads: Sequence[int], sizes: tuple[int, ...]) -> None:
        self.scopes, self.heads, self.sizes = scopes, heads, sizes
        self._search = Search(neighbours(scopes, len(sizes)), sizes, union(scopes))
        self._ways = self._search.ways()
        self.first = self._tree(next(self._ways))
        """The tree of the first greedy order."""

    def _tree(self, way: Way) -> EliminationTree:
        return elimination_tree(self.scopes, self.heads, [v for v, _ in way()], self.sizes)

    def best(self) -> EliminationTree:
        """Return the cheapest tree among those of many orders, by ``EliminationTree.cost``.

        The search stops when one more order would bring its work above a fifth of the work of the
        best tree's two passes (``_MEASURES_OF_A_CELL``), or when the orders since the last
        improvement outnumber those up to it by ``FEW_ROUNDS``. If more orders than those of the
        greedy rules were tried, the one that sweeps through the graph (``Search.sweep``) is tried
        last; a small graph gets only the first greedy order. Work is counted, not timed, so the
        same graph gets the same tree on every machine.
        """
        best, improved, tried = self.first, 1, 1
        while tried <= FEW_ROUNDS + 2 * improved:
            spent = self._search.measured + _MEASURES_OF_A_TABLE * tried * len(self.scopes)
            if spent * (tried + 1) / tried / _MEASURES_OF_A_CELL > best.cost:
                break
            if (way := next(self._ways, None)) is None:
                break
            tried += 1
            tree = self._tree(way)
            if tree.cost < best.cost:
                best, improved = tree, tried
        if tried <= len(RANKS):
            return best
        return min(best, self._tree(self._search.sweep), key=lambda tree: tree.cost)


class _Growing:
    """A tree under construction. ``holders`` has, for each attribute, the nodes with this attribute
    that have not been multiplied yet.
    """

    def __init__(self, scopes: Sequence[int], heads: Sequence[int], sizes: tuple[int, ...]) -> None:
        count = len(scopes)
        self.heads = list(heads)
        self.tree = EliminationTree(
            sizes, list(scopes), list(scopes), [False] * count, [()] * count, [-1] * count, count
        )
        self.holders: defaultdict[int, set[int]] = defaultdict(set)
        for node, scope in enumerate(scopes):
            for v in each_bit(scope):
                self.holders[v].add(node)

    def eliminate(self, v: int) -> None:
        held = self.holders[v]
        if not held:
            return
        tree = self.tree
        if len(held) == 1:
            self.join(*held)
            return
        cells = tree.cells_of
        queue = [(cells(tree.tables[node]), node) for node in held]
        heapq.heapify(queue)
        while len(queue) > 1:
            made = self.join(heapq.heappop(queue)[1], heapq.heappop(queue)[1])
            heapq.heappush(queue, (cells(tree.tables[made]), made))

    def join(self, *operands: int) -> int:
        """Add the product of two nodes, or a copy of one, to the tree and return the new node. The
        attributes that no other unmultiplied node has are summed out of it.
        """
        tree, holders = self.tree, self.holders
        node = len(tree.scopes)
        scope = table = heads = gone = 0
        for operand in operands:
            scope |= tree.scopes[operand]
            table |= tree.tables[operand]
            other = self.heads[operand]
            heads = -1 if heads < 0 or other < 0 else heads | other
            tree.parents[operand] = node
        for v in each_bit(scope):
            held = holders[v]
            held.difference_update(operands)
            if held:
                held.add(node)
            else:
                gone |= 1 << v
        if heads > 0:
            heads &= ~gone
        barren = heads == 0
        # The cost is that of one product upward (none if the node is barren), one product downward
        # for each operand, and the writing of the node's own value and adjoint.
        cells = tree.cells_of
        value = 0 if barren else cells(table) + _WRITTEN * cells(table & ~gone)
        tree.cost += value + len(operands) * cells(scope) + _WRITTEN * cells(scope & ~gone)
        tree.scopes.append(scope & ~gone)
        tree.tables.append(0 if barren else table & ~gone)
        tree.barren.append(barren)
        tree.operands.append(operands)
        tree.parents.append(-1)
        self.heads.append(heads)
        return node


def elimination_tree(
    scopes: Sequence[int], heads: Sequence[int], order: Sequence[int], sizes: tuple[int, ...]
) -> EliminationTree:
    """Return the elimination tree of an order. A node is barren if `heads` show that it is 1
    everywhere (see the module's docstring), as both sums are in the example, whose inputs are P(a)
    and P(b | a).

    Args:
        scopes: the attributes of each input, as a set.
        heads: the attributes that each input is a conditional distribution of, as a set; -1 for any
            other table.
        order: every attribute of the inputs, the first eliminated first; attributes that no input
            has are skipped.
        sizes: the sizes of all attributes.

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
