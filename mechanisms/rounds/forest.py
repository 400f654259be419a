"""Maximum spanning forests of pairs of attributes, drawn edge by edge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mechanisms.privacy.counting import Queries
from mechanisms.privacy.curator import Curator
from pgmkit.domain import Clique
from pgmkit.model import GraphicalModel


def draw_forest(
    curator: Curator,
    model: GraphicalModel,
    pairs: Sequence[Clique],
    cost: float,
    queries: Queries | None = None,
) -> list[Clique]:
    """Draw a maximum spanning forest of the pairs by Kruskal's algorithm: each edge is drawn by the
    exponential mechanism, with the L1 errors of the pairs' marginals as scores.

    `model`: the model whose marginals are compared with those of the data. `cost`: the cost of all
    draws together, in equal parts. `queries`: as in `Curator.choose`.
    """
    edges = spanning_edges(pairs)
    if not edges:
        return []
    scored = curator.scored(pairs, model.marginals(pairs), queries=queries)
    place = curator.domain.places
    ends = np.array([[place[name] for name in pair] for pair in pairs])
    component = np.arange(len(place))
    joining = np.arange(len(pairs))
    forest: list[Clique] = []
    for i in range(edges):
        chosen = scored.choose(joining, cost / edges, step=f"edge {i + 1}: select")
        forest.append(pairs[chosen])
        joined, other = component[ends[chosen]]
        component[component == other] = joined
        joining = joining[np.not_equal(*component[ends[joining]].T)]
    return forest


def spanning_edges(pairs: Sequence[Clique]) -> int:
    """Return the number of edges of a spanning forest of the pairs: the number of attributes minus
    the number of connected components.

    >>> spanning_edges([("a", "b"), ("b", "c"), ("a", "c"), ("d", "e")])
    3
    """
    from scipy.cluster.hierarchy import DisjointSet

    joined = DisjointSet(name for pair in pairs for name in pair)
    return sum(joined.merge(*pair) for pair in pairs)
