"""Draws of the cliques that a model answers worst, by the exponential mechanism. The model stays
the same for all draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mechanisms.privacy.counting import Queries
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.scores import Tables
from mechanisms.rounds.loop import Answers
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement


def worst_pairs(
    curator: Curator,
    pairs: Sequence[Clique],
    estimates: Tables,
    most: int,
    cost: float,
    penalties: Sequence[float] | None = None,
) -> list[Clique]:
    """Draw `most` of the pairs (all if there are fewer) whose marginals differ most in L1 norm from
    the `estimates`, which are in counts. `cost` pays for all draws.

    Each pair is drawn by the exponential mechanism among those that are left. `penalties`: for each
    pair a number of counts that is subtracted from its distance.
    """
    wanted = min(len(pairs), most)
    scored = curator.scored(pairs, estimates, penalties=penalties)
    left, picked = np.arange(len(pairs)), []
    for i in range(wanted):
        place = scored.choose(left, cost / wanted, step=f"pair {i + 1}: select")
        picked.append(pairs[place])
        left = left[left != place]
    return picked


def measure_worst(
    curator: Curator, model: Answers, sets: Sequence[Clique], select_share: float
) -> Measurement:
    """Draw one of the sets by the exponential mechanism and measure its marginal, with all that
    remains of the budget: `select_share` of it for the draw, the rest for the measurement. The
    score of a set is the L1 error of the model's marginal minus the expected noise of measuring it.
    """
    cost = select_share * curator.remaining
    noise = curator.expected_error(curator.remaining - cost)
    penalties = [noise * curator.domain.size(clique) for clique in sets]
    estimates = model.marginals(sets)
    picked = curator.choose(sets, estimates, cost, penalties=penalties, step="set: select")
    return curator.measure(picked, curator.remaining, step="set: measure")


def draw_forest(
    curator: Curator,
    model: Answers,
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
