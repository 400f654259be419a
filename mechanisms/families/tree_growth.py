"""An upper bound on the size of a junction tree that has to contain one more pair of attributes.

The bound is at least the size of a valid junction tree that is built from the present one, so the
best tree is no larger. To build it, one clique of the present tree that has one attribute of the
pair is chosen, the *home*, and the other attribute is *carried* to it: it is added to every
separator on the path to the home from the nearest clique that has it. Each clique inside the path
gives its place there to a new one, the union of its two separators on the path and the carried
attribute, and is attached to that one. The home is likewise attached to the union of the pair and
the last separator of the path. The bounds of all pairs take less time than one search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pgmkit.graphs.junction_tree import JunctionTree

_Neighbours = list[tuple[int, frozenset[int]]]


def cells_with_pairs(tree: JunctionTree) -> NDArray[np.float64]:
    """Return, for every pair of attributes, the number of cells of a junction tree that holds the
    cliques of this tree and the pair; the smallest such tree may have fewer.

    The result is a symmetric matrix with rows and columns in the domain's order. Either attribute
    is carried to a clique of the other, whichever costs less.

    >>> from pgmkit.domain import Domain
    >>> from pgmkit.graphs.junction_tree import junction_tree
    >>> domain = Domain({"a": 2, "b": 3, "c": 4})
    >>> cells_with_pairs(junction_tree(domain, [("a", "b"), ("b", "c")]))
    array([[18., 18., 42.],
           [18., 18., 18.],
           [42., 18., 18.]])
    """
    places, sizes = tree.domain.places, tree.domain.shape()
    count, lengths = len(sizes), np.array(sizes, dtype=np.float64)
    sets = [frozenset(map(places.__getitem__, clique)) for clique in tree.cliques]
    # For every clique of the tree, the place of each neighbour and the separator between them.
    # Roots of further trees are neighbours of the first clique, with empty separators.
    near: list[_Neighbours] = [[] for _ in sets]
    for child in range(1, len(sets)):
        above = max(tree.parents[child], 0)
        shared = frozenset(map(places.__getitem__, tree.separators[child]))
        near[child].append((above, shared))
        near[above].append((child, shared))
    ways: dict[frozenset[int], int] = {}
    cells, way = np.zeros((count, len(sets))), np.zeros((count, len(sets)), int)
    for i in range(count):
        carried = _carried(i, sizes, sets, near)
        cells[i] = [each for each, _ in carried]
        way[i] = [ways.setdefault(separator, len(ways)) for _, separator in carried]
    inside = np.array([[i in separator for i in range(count)] for separator in ways])
    last = np.where(inside, lengths, 1.0).prod(axis=1)
    holds = np.array([[i in members for i in range(count)] for members in sets], int)
    added = np.empty((count, count))
    for j in range(count):
        homes = np.flatnonzero(holds[:, j])
        # If j is in the last separator on the path to a home, j counts twice here. But then the
        # clique before that separator has j too, and is a home that adds less.
        joined = cells[:, homes] + lengths[:, None] * last[way[:, homes]] * lengths[j]
        added[:, j] = joined.min(axis=1)
    added[holds.T @ holds > 0] = 0.0
    return tree.cells + np.minimum(added, added.T)


def _carried(
    i: int, sizes: Sequence[int], sets: Sequence[frozenset[int]], near: Sequence[_Neighbours]
) -> list[tuple[int, frozenset[int]]]:
    """Return, for every clique, the number of cells of the new cliques on the path that carries
    attribute ``i`` to it, without the last one, and the last separator on the path.
    """
    nothing: frozenset[int] = frozenset()
    found = [(0, nothing)] * len(sets)
    queue = [(start, -1) for start, members in enumerate(sets) if i in members]
    for place, before in queue:
        cells, separator = found[place]
        for other, shared in near[place]:
            if other == before or i in sets[other]:
                continue
            through = 0
            if before >= 0:
                through = sizes[i] * math.prod(sizes[j] for j in separator | shared)
            found[other] = cells + through, shared
            queue.append((other, place))
    return found
