"""The start of a search: an earlier model, a model near consistent tables (in closed form, or by
iterative scaling), or the uniform model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf, log

import numpy as np
import torch

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.estimation.accelerated_mirror_descent import accelerated
from pgmkit.estimation.cluster_expansion import LEAST_SHARE, ClusterExpansion, cluster_expansion
from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.estimation.request import Request
from pgmkit.estimation.tree_potentials import tree_potentials
from pgmkit.factor import Factor
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.least_squares.consistency import consistent_tables
from pgmkit.least_squares.sufficient_statistics import Statistics
from pgmkit.losses import Squared, known_loss
from pgmkit.model import GraphicalModel
from pgmkit.runtime.arguments import instance
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import FEW_ROUNDS, SLIGHT, SOLVED
from pgmkit.structural_zeros import Zeros

_STEPS = 2 * FEW_ROUNDS
"""The largest number of passes that each part of finding a start may take."""


def best_start(
    problem: Problem,
    monitor: Monitor,
    request: Request,
    statistics: Statistics,
    zeros: Sequence[Zeros],
    warm_start: GraphicalModel | None,
) -> Point:
    """Return the point of lowest loss among the possible starts: the earlier model
    (``warm_start``); a model near consistent tables; and, if inference needs log space on the way
    to those tables, the end of a few steps from the uniform model. The last two are tried if tables
    were measured, the loss is no callable, the method is "auto", "accelerated" or "proximal", and
    the earlier model is not certified already. If there is none of the three, or no time for them,
    the start is the uniform model.

    If all measurements are tables and the loss is the squared one, the loss of the consistent
    tables is a lower bound, to which the bound of ``monitor`` is raised.
    """
    starts = []
    if warm_start is not None:
        starts.append(problem.point(fold(problem.inference, request.domain, warm_start)))
    used, tabular = statistics.measurements, statistics.tables
    if tabular and not callable(request.loss) and not problem.late():
        precision = SLIGHT * monitor.goal
        consistent = consistent_tables(
            request.domain, tabular, problem.total, precision, zeros, problem.deadline
        )
        if len(tabular) == len(used) and known_loss(request.loss) == Squared():
            monitor.raise_bound(consistent.bound)
        enough = monitor.bound + monitor.goal
        solved = bool(starts) and problem.loss.value(starts[0].marginals) <= enough
        wanted = request.method in ("auto", "accelerated", "proximal")
        if wanted and not solved and not problem.late():
            before = problem.inference.log_passes
            starts.append(_consistent_start(problem, monitor, request.domain, consistent.tables))
            if problem.inference.log_passes > before:
                starts.append(_from_uniform(problem, monitor))
    if not starts:
        starts.append(problem.point(uniform(problem.inference)))
    return min(starts, key=lambda point: problem.loss.value(point.marginals))


def _consistent_start(
    problem: Problem, monitor: Monitor, domain: Domain, tables: Mapping[Clique, Array]
) -> Point:
    """Return a point whose marginals are near these tables, which are in counts: the potentials of
    the tables in closed form. If that is not close enough and every clique has a table, the cluster
    expansion is tried, if the cliques have short cycles (``_expand``), and then, if the loss is
    still too high, damped steps of iterative scaling.
    """
    inference = problem.inference
    cliques = inference.layout.cliques
    parts = tree_potentials(domain, cliques, tables, problem.deadline)
    flat = np.concatenate([part.reshape(-1) for part in parts])
    start = problem.point(torch.as_tensor(flat, dtype=inference.dtype, device=inference.device))
    enough = monitor.bound + monitor.goal
    certified = problem.loss.value(start.marginals) <= enough
    if certified or not all(clique in tables for clique in cliques):
        return start
    # Cells below LEAST_SHARE of the total are raised to it, so that their logarithms are moderate.
    floor = LEAST_SHARE * problem.total
    flat = np.concatenate([np.maximum(tables[clique], floor).reshape(-1) for clique in cliques])
    target, expansion = torch.as_tensor(flat).to(start.potentials), cluster_expansion(inference)
    if expansion is not None:
        start = _expand(problem, start, target, expansion, enough)
    close = problem.loss.value(start.marginals) <= enough
    return start if close else _damped(problem, start, target)


def _expand(
    problem: Problem, start: Point, target: torch.Tensor, expansion: ClusterExpansion, enough: float
) -> Point:
    """Solve marginals(theta) = target by theta += K(target) - K(marginals), from theta = K(target),
    and return the last point of falling loss, or ``start`` if there is none.

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
    for _ in range(_STEPS):
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
    for _ in range(_STEPS):
        # If the tables contradict each other, a pass fails in linear space and is computed in log
        # space instead, and the search ends.
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


def _from_uniform(problem: Problem, monitor: Monitor) -> Point:
    """Return the best point of a few accelerated steps from the uniform distribution. The best one
    has the lowest loss or, for a loss that is not smooth, the lowest value of the first of the
    smooth functions that approach it from below.

    If measured tables contradict each other by more than their noise, the consistent tables have
    many cells of zero. Potentials that nearly exclude those cells have a lower loss than uniform
    ones, but a search that starts from them takes long to raise the cells again. After a few steps
    the uniform start can be compared with them.
    """
    inner = monitor.of_stage(problem.loss.smooth_stages()[0])
    inner.max_iterations = _STEPS
    start = problem.point(uniform(problem.inference))
    accelerated(inner.problem, start, inner)
    monitor.iterations += inner.iterations
    return inner.best or start


def uniform(inference: MarginalOracle) -> torch.Tensor:
    """Return potentials of zero, those of the uniform model."""
    return torch.zeros(inference.layout.cells, dtype=inference.dtype, device=inference.device)


def fold(inference: MarginalOracle, domain: Domain, model: GraphicalModel) -> torch.Tensor:
    """Return the potentials of ``model``, an earlier model over ``domain``, as flat potentials over
    the oracle's cliques: each factor is added to a clique that contains its attributes.

    Minus infinity is replaced by 0, and values that nearly exclude a cell are raised until they are
    log(1 / `LEAST_SHARE`) below the factor's largest. Raises InvalidInput for anything but a
    GraphicalModel over this domain, and if no clique of the oracle contains one of the model's.
    """
    instance(model, GraphicalModel, "warm_start")
    if model.domain != domain:
        raise InvalidInput("warm_start is a model of another domain; pass one of the same domain")
    flat = uniform(inference)
    layout = inference.layout
    tables = layout.split(flat)
    for factor in model.potentials:
        clique = factor.domain.attributes
        places = layout.index.containing(clique)
        if not places:
            raise InvalidInput(
                f"warm_start has the clique {clique}, which no measured clique contains; pass its "
                "measurements too, or start afresh"
            )
        held = domain.project(layout.cliques[places[0]])
        values = factor.values.to(device=flat.device, dtype=flat.dtype)
        values = values.masked_fill(values.isneginf(), 0.0)
        # A search takes long to raise potentials below this limit again, or ends before it has.
        values = values.clamp_min(float(values.max()) + log(LEAST_SHARE))
        tables[places[0]].add_(Factor(factor.domain, values).expand(held).values)
    return flat
