"""Searches for what one model answers badly, without updating it: draws of several cliques by the
exponential mechanism, or noisy distances of all given pairs of columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mechanisms.privacy.curator import Curator
from mechanisms.privacy.scores import Queries, Tables
from mechanisms.rounds.loop import Answers
from mechanisms.rounds.merging import OneWay
from pgmkit import GraphicalModel
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.chances import expected_positive


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
    pair a number of counts that is subtracted from its distance; None for none.
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
    """Draw one of these sets of attributes by the exponential mechanism and measure its marginal,
    with all that remains of the budget: `select_share` of it for the draw, the rest for the
    measurement. The score of a set is the L1 error of the model's marginal minus the expected noise
    of measuring it.
    """
    cost = select_share * curator.remaining
    noise = curator.expected_error(curator.remaining - cost)
    penalties = [noise * curator.domain.size(clique) for clique in sets]
    estimates = model.marginals(sets)
    picked = curator.choose(sets, estimates, cost, penalties=penalties, step="set: select")
    return curator.measure(picked, curator.remaining, step="set: measure")


def draw_forest(
    curator: Curator,
    model: GraphicalModel,
    pairs: Sequence[Clique],
    cost: float,
    queries: Queries | None = None,
) -> list[Clique]:
    """Draw a maximum spanning forest of the pairs by Kruskal's algorithm: each edge is drawn by the
    exponential mechanism among the pairs that join two components, with the L1 errors of the pairs'
    marginals as scores. Return the edges in the order of the draws; without pairs there are none,
    and nothing is spent.

    `model`: the model whose marginals are compared with those of the data. `cost`: the cost of all
    draws together, in equal parts. `queries`: for some pairs, matrices of queries; the error of
    such a pair is that of their answers in place of its cells (`Curator.choose`).
    """
    edges = spanning_edges(pairs)
    if not edges:
        return []
    scored = curator.scored(pairs, model.each_marginal(pairs), queries=queries)
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


@dataclass(frozen=True)
class Distances:
    """The noisy L1 distances ||marginal - the model's marginal||_1 of pairs, in counts.

    `of`: the noisy distance of each pair, which may be negative. `stddev`: the standard deviation
    of the noise in each.
    """

    of: Mapping[Clique, float]
    stddev: float

    def likely(self, pairs: Sequence[Clique], known: Mapping[str, OneWay], *, pure: bool) -> Array:
        """Return the likely distances of the pairs' marginals from the product of their exact
        one-way marginals, in counts and at least 0. The model must have independent columns.

        `known`: by attribute, the model's counts of its codes, and their noise. Since counts are
        not below 0, the noise is taken to be at most twice the count. `pure`: True for Laplace
        noise, False for Gaussian.

        Distances are first shrunk towards their mean by the factor 1 - (noise variance) / (observed
        variance). The square of a distance from the model is then near the sum of two squares: of
        the distance from the product of exact marginals, and of the L1 noise in the model's counts
        of both attributes. The latter is subtracted. With the L1 noise a and b of the two
        attributes it is a^2 + b^2 if noise is Gaussian, and otherwise the square of (a^2 + a b +
        b^2) / (a + b), the mean absolute value of a sum of two Laplace variables. The rest is noisy
        and may be negative, so the result is the root of the expected value of its positive part.

        >>> found = Distances({("a", "b"): 50.0}, stddev=0.1)
        >>> known = {"a": OneWay(np.array([40.0, 60.0]), 15.0), "b": OneWay(np.full(2, 50.0), 0.0)}
        >>> found.likely([("a", "b")], known, pure=False).round(2)
        array([40.])
        """
        found = np.array([self.of[pair] for pair in pairs])
        mean, variance = found.mean(), found.var()
        trust = max(0.0, 1 - self.stddev**2 / variance) if variance > 0 else 0.0
        whole = np.maximum(mean + trust * (found - mean), 0.0)
        wrong = {n: np.minimum(one.noise, 2 * one.counts).sum() for n, one in known.items()}
        ends = np.array([[wrong[a], wrong[b]] for a, b in pairs])
        squares, both = (ends**2).sum(1), np.maximum(ends.sum(1), np.finfo(float).eps)
        excess = whole**2 - (((squares + ends.prod(1)) / both) ** 2 if pure else squares)
        # A shrunk distance is `trust` times a distance plus 1 - `trust` times the mean of all n,
        # whose noise is that of one distance, divided by sqrt(n).
        noise = self.stddev * math.sqrt(trust**2 + (1 - trust**2) / len(pairs))
        return np.sqrt(expected_positive(excess, 2 * whole * noise + np.finfo(float).eps))


def measure_distances(
    curator: Curator, columns: Answers, pairs: Sequence[Clique], cost: float, *, step: str
) -> Distances:
    """Return the noisy L1 distances of the marginals of `pairs` from those of the model `columns`,
    which often has independent columns. `cost` pays for all distances together; `step` names the
    charge in the ledger.

    >>> from mechanisms.privacy.budget import Budget
    >>> from pgmkit import Dataset, Domain, Measurement, estimate
    >>> data = Dataset(Domain({"a": 2, "b": 2}), {"a": [0, 1] * 500, "b": [0, 1] * 500})
    >>> columns = estimate(data.domain, [Measurement((c,), [500, 500], 1.0) for c in "ab"])
    >>> curator = Curator(data, Budget(5.0, 1e-6), neighbours="add/remove", seed=0)
    >>> found = measure_distances(curator, columns, [("a", "b")], 0.1, step="errors")
    >>> abs(found.of["a", "b"] - 1000) < 6 * found.stddev
    True
    """
    noisy = curator.measure_errors(pairs, columns.marginals(pairs), cost, step=step)
    stddev = curator.errors_stddev(len(pairs), cost)
    return Distances(dict(zip(pairs, noisy.tolist(), strict=True)), stddev)
