"""An upper bound on the size of a junction tree that has to contain one more clique.

The bound is at least the size of a valid junction tree that is built from the present one, so the
best tree is no larger. To build it, one clique of the present tree is chosen, the *home*. Each
attribute of the new clique that the home lacks is *carried* to it: the attribute is added to every
separator on the path to the home from the nearest clique that has it. Each clique inside the path
gives its place there to a new one, the union of its two separators on the path and the carried
attribute, and is attached to that one. The home is likewise attached to the union of the new clique
and the last separators of all paths. The bound takes a few look-ups instead of a search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pgmkit.graphs.junction_tree import JunctionTree


class TreeGrowth:
    """Upper bounds of the cells of junction trees that hold this tree's cliques and one more.

    >>> from pgmkit.domain import Domain
    >>> from pgmkit.graphs.junction_tree import junction_tree
    >>> domain = Domain({"a": 2, "b": 3, "c": 4, "d": 5})
    >>> growth = TreeGrowth(junction_tree(domain, [("a", "b"), ("b", "c"), ("c", "d")]))
    >>> growth.tree.cells, growth.cells_with(("a", "b")), growth.cells_with(("a", "c"))
    (38, 38, 62)
    """

    def __init__(self, tree: JunctionTree) -> None:
        self.tree = tree
        self._place = tree.domain.places
        self._lengths = tree.domain.shape()
        self._sets = [frozenset(map(self._place.__getitem__, c)) for c in tree.cliques]
        self._carried: dict[int, list[tuple[int, frozenset[int]]]] = {}

    @cached_property
    def _near(self) -> list[list[tuple[int, frozenset[int]]]]:
        """For every clique of the tree, the place of each neighbour and the separator between them.
        Roots of further trees are neighbours of the first clique, with empty separators.
        """
        near: list[list[tuple[int, frozenset[int]]]] = [[] for _ in self._sets]
        for child in range(1, len(self._sets)):
            above = max(self.tree.parents[child], 0)
            shared = frozenset(map(self._place.__getitem__, self.tree.separators[child]))
            near[child].append((above, shared))
            near[above].append((child, shared))
        return near

    @cached_property
    def _holders(self) -> list[list[int]]:
        """For every attribute, the places of the cliques that have it."""
        holders: list[list[int]] = [[] for _ in self._lengths]
        for place, members in enumerate(self._sets):
            for i in members:
                holders[i].append(place)
        return holders

    def cells_with(self, clique: Sequence[str]) -> int:
        """Return the number of cells of a junction tree that holds the tree's cliques and this one;
        the smallest such tree may have fewer.

        Raises InvalidInput for a clique that is not in the domain.
        """
        if self.tree.holds(clique) is not None:
            return self.tree.cells
        members = frozenset(self._place[name] for name in clique)
        at = min(members, key=lambda i: len(self._holders[i]))
        return self.tree.cells + min(self._added(members, home) for home in self._holders[at])

    def cells_with_pairs(self) -> NDArray[np.float64]:
        """Return the bound of `cells_with` for every pair of attributes, as a symmetric matrix.

        Rows and columns are in the domain's order. Either attribute is carried to a clique of the
        other, whichever costs less.

        >>> from pgmkit.domain import Domain
        >>> from pgmkit.graphs.junction_tree import junction_tree
        >>> domain = Domain({"a": 2, "b": 3, "c": 4})
        >>> TreeGrowth(junction_tree(domain, [("a", "b"), ("b", "c")])).cells_with_pairs()
        array([[18., 18., 42.],
               [18., 18., 18.],
               [42., 18., 18.]])
        """
        count = len(self._lengths)
        lengths = np.array(self._lengths, dtype=np.float64)
        ways: dict[frozenset[int], int] = {}
        cells, way = np.zeros((count, len(self._sets))), np.zeros((count, len(self._sets)), int)
        for i in range(count):
            carried = self._carry(i)
            cells[i] = [each for each, _ in carried]
            way[i] = [ways.setdefault(separator, len(ways)) for _, separator in carried]
        inside = np.array([[i in separator for i in range(count)] for separator in ways])
        shared = np.where(inside, lengths, 1.0).prod(axis=1)
        added = np.empty((count, count))
        for j in range(count):
            homes = self._holders[j]
            # If j is in the last separator on the path to a home, j counts twice here. But then the
            # clique before that separator has j too, and is a home that adds less.
            joined = cells[:, homes] + lengths[:, None] * shared[way[:, homes]] * lengths[j]
            added[:, j] = joined.min(axis=1)
        holds = np.array([[i in members for i in range(count)] for members in self._sets], int)
        added[holds.T @ holds > 0] = 0.0
        return self.tree.cells + np.minimum(added, added.T)

    def _added(self, members: frozenset[int], home: int) -> int:
        """Return the number of cells that the tree gains if the attributes `members` become a
        clique and those that the clique `home` lacks are carried to it.
        """
        carried = members - self._sets[home]
        whole = math.prod(self._lengths[i] for i in carried)
        added, joined = 0, set(members)
        for i in carried:
            cells, separator = self._carry(i)[home]
            # Several carried attributes may take the same path, and every new clique on it then
            # contains all of them. The bound assumes this of all carried attributes.
            added += cells * (whole // self._lengths[i])
            joined |= separator
        return added + math.prod(self._lengths[i] for i in joined)

    def _carry(self, i: int) -> list[tuple[int, frozenset[int]]]:
        """Return, for every clique, the number of cells of the new cliques on the path that carries
        attribute ``i`` to it, without the last one, and the last separator on the path.
        """
        found = self._carried.get(i)
        if found is not None:
            return found
        length = self._lengths[i]
        nothing: frozenset[int] = frozenset()
        found = self._carried[i] = [(0, nothing)] * len(self._sets)
        queue = [(start, -1) for start in self._holders[i]]
        for place, before in queue:
            cells, separator = found[place]
            for other, shared in self._near[place]:
                if other == before or i in self._sets[other]:
                    continue
                through = 0
                if before >= 0:
                    through = length * math.prod(self._lengths[j] for j in separator | shared)
                found[other] = cells + through, shared
                queue.append((other, place))
        return found
