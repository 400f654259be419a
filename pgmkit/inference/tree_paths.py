"""Paths between the cliques of a junction tree: at which clique the paths of attributes meet, and
which neighbour leads to them.

Sets of attributes are integers here, with one bit for each attribute, and the axes of every table
follow the domain's order, so a set of attributes determines a table's axes.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache, lru_cache, partial

from pgmkit.domain import Clique
from pgmkit.graphs.bit_sets import cells_of, each_bit
from pgmkit.graphs.junction_tree import JunctionTree
from pgmkit.runtime.deferred import torch


@lru_cache(maxsize=64)
def tree_paths(tree: JunctionTree) -> TreePaths:
    """Return the `TreePaths` of a tree. They do not depend on beliefs, so they are cached for the
    last 64 trees.
    """
    return TreePaths(tree)


class TreePaths:
    """The facts about a tree that inference needs, whatever its tables: which neighbour of a clique
    leads to an attribute.

    The roots of different components are connected by edges with an empty separator.
    """

    def __init__(self, tree: JunctionTree) -> None:
        self.names = tree.domain.attributes
        self.sizes = tree.domain.sizes
        self.lengths = tree.domain.shape()
        self.bits = {name: 1 << index for index, name in enumerate(self.names)}
        self.cliques = [self.members(clique) for clique in tree.cliques]
        self.tree = tree
        self.above = [max(parent, 0) for parent in tree.parents]
        self.children: list[list[int]] = [[] for _ in tree.cliques]
        self.separators: dict[tuple[int, int], int] = {}
        for child in range(1, len(tree.cliques)):
            above = self.above[child]
            self.children[above].append(child)
            shared = self.members(tree.separators[child])
            self.separators[child, above] = self.separators[above, child] = shared
        self._number()
        self.cells = cache(partial(cells_of, sizes=self.lengths))
        """A function of a set of attributes that returns the number of cells of a table over it."""

    def _number(self) -> None:
        """Number the cliques so that the cliques of each subtree have consecutive numbers, and find
        each attribute's top clique, which is the one nearest to the root.

        An attribute that a clique lacks lies below it exactly if its top clique does.
        """
        count = len(self.cliques)
        below = [1] * count
        for child in range(count - 1, 0, -1):
            below[self.above[child]] += below[child]
        self.numbers = [0] * count
        for v, children in enumerate(self.children):
            number = self.numbers[v] + 1
            for child in children:
                self.numbers[child] = number
                number += below[child]
        self.last = [number + size - 1 for number, size in zip(self.numbers, below, strict=True)]
        self.child_numbers = [[self.numbers[child] for child in some] for some in self.children]
        self.top: dict[int, int] = {}
        for v, clique in enumerate(self.cliques):
            for index in each_bit(clique):
                self.top.setdefault(index, v)

    def members(self, clique: Clique) -> int:
        return sum(self.bits[name] for name in clique)

    def axes(self, members: int) -> Clique:
        return tuple(self.names[index] for index in each_bit(members))

    def arranged(self, table: torch.Tensor, clique: Clique) -> torch.Tensor:
        """Return a table, whose axes are in the domain's order, with its axes in the order of
        `clique`.
        """
        places = sorted(clique, key=self.bits.__getitem__)
        return table.permute([places.index(name) for name in clique])

    def holder(self, members: int) -> int | None:
        """Return the number of the smallest clique that contains all of `members`, or None if there
        is none.
        """
        return self.tree.holds(self.axes(members))

    def meeting(self, members: int) -> int:
        """Return the number of the smallest clique that contains all of `members` or, if there is
        none, of a clique at which the paths of `members` meet: no neighbour of it leads to more
        than half of them.
        """
        holder = self.holder(members)
        if holder is not None:
            return holder
        # The walk starts at a clique of the attribute with the most values, so that attributes with
        # fewer values are carried along the tree.
        here = self.holder(max((1 << index for index in each_bit(members)), key=self.cells))
        assert here is not None  # every attribute is in some clique
        half = members.bit_count() // 2
        while True:
            sides = self.sides(here, members)
            heaviest = max(sides, key=lambda side: sides[side].bit_count())
            left_behind = members & self.cliques[here] & ~self.cliques[heaviest]
            if sides[heaviest].bit_count() <= half and (len(sides) > 1 or left_behind):
                return here
            here = heaviest

    def sides(self, here: int, members: int) -> dict[int, int]:
        """Return, for each neighbour of the clique `here` that leads to some of `members` that
        `here` lacks, the set of these attributes.
        """
        found: dict[int, int] = {}
        first, last = self.numbers[here], self.last[here]
        missing = members & ~self.cliques[here]
        while missing:
            bit = missing & -missing
            missing ^= bit
            number = self.numbers[self.top[bit.bit_length() - 1]]
            if first < number <= last:
                side = self.children[here][bisect_right(self.child_numbers[here], number) - 1]
            else:
                side = self.above[here]
            found[side] = found.get(side, 0) | bit
        return found
