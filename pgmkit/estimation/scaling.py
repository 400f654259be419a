"""Iterative scaling: a start for the search whose marginals are near given tables of all
cliques.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf

import numpy as np
import torch

from pgmkit.estimation.cluster_expansion import LEAST_SHARE, ClusterExpansion, cluster_expansion
from pgmkit.estimation.problem import Point, Problem
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import FEW_ROUNDS, SOLVED

START_STEPS = 2 * FEW_ROUNDS
"""The largest number of passes that each part of finding a start may take."""


def scale(problem: Problem, start: Point, tables: Sequence[Array], enough: float) -> Point:
    """Return a point whose marginals are near the tables, or ``start`` if no point that was found
    has a lower loss.

    ``tables`` has one table in counts for each clique. If the cliques have short cycles, the
    cluster expansion is tried first (``_expand``). If the loss is then still above ``enough``,
    damped steps of iterative scaling follow.
    """
    # Cells below LEAST_SHARE of the total are raised to it, so that their logarithms are moderate.
    floor = LEAST_SHARE * problem.total
    flat = np.concatenate([np.maximum(table, floor).reshape(-1) for table in tables])
    target = torch.as_tensor(flat).to(start.potentials)
    expansion = cluster_expansion(problem.inference)
    near = start if expansion is None else _expand(problem, start, target, expansion, enough)
    close = problem.loss.value(near.marginals) <= enough
    return near if close else _damped(problem, near, target)


def _expand(
    problem: Problem,
    start: Point,
    target: torch.Tensor,
    expansion: ClusterExpansion,
    enough: float,
) -> Point:
    """Solve marginals(theta) = target by theta += K(target) - K(marginals), from theta = K(target),
    and return the last point of falling loss.

    K, the cluster expansion, is nearly the inverse of inference, so a few steps suffice. The search
    ends at a loss of ``enough``, or without further descent.
    """
    split = problem.inference.layout.split

    def expand(marginals: torch.Tensor) -> torch.Tensor:
        floored = marginals.clamp_min(LEAST_SHARE * problem.total)
        return expansion.potentials(torch.cat([(t / t.sum()).view(-1) for t in split(floored)]))

    wanted = expand(target)
    potentials, best = wanted, start
    lowest = problem.loss.value(start.marginals)
    for _ in range(START_STEPS):
        point = problem.attempt(potentials)
        loss = inf if point is None else problem.loss.value(point.marginals)
        gained = lowest - loss
        if point is None or not gained > 0:
            break
        best, lowest = point, loss
        if loss <= enough or gained < SOLVED * loss:
            break
        potentials = point.potentials + wanted - expand(point.marginals)
    return best


def _damped(problem: Problem, start: Point, target: torch.Tensor) -> Point:
    """Run damped parallel iterative scaling, theta += (log target - log marginal) / overlap, and
    return the point of lowest loss.

    ``overlap`` is the largest number of cliques that share an attribute.
    """
    floor, wanted = LEAST_SHARE * problem.total, target.log()
    cliques = problem.inference.layout.cliques
    overlap = max(Counter(name for clique in cliques for name in clique).values())
    point, best = start, start
    lowest, before = problem.loss.value(start.marginals), problem.inference.log_passes
    for _ in range(START_STEPS):
        # A pass fails in linear space if the tables contradict each other, so the search ends.
        if problem.late() or problem.inference.log_passes > before:
            break
        missing = wanted - point.marginals.clamp_min(floor).log()
        point = problem.point(point.potentials + missing / overlap)
        loss = problem.loss.value(point.marginals)
        gained, lowest = lowest - loss, min(loss, lowest)
        if gained > 0:
            best = point
        if 0 < gained < SOLVED * loss:
            break
    return best
