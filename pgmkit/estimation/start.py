"""A start from consistent tables: the product of cliques over separators, then a little scaling.

Exact where the cliques are decomposable. Otherwise the most informative decomposable subset of
them, grown clique by clique like a Chow-Liu tree, gives the first potentials, the other cliques
start with potentials of zero, and the cluster expansion or some damped steps of iterative scaling
bring the marginals near all the tables.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.estimation.cluster_expansion import ClusterExpansion, cluster_expansion
from pgmkit.estimation.problem import Point, Problem
from pgmkit.junction_tree import junction_tree

Table = NDArray[np.float64]

_FLOOR = 1e-9
"""Smallest cell, as a fraction of the total: its potential stays finite, so data can raise it."""
_SCALING_FLOOR = 1e-7
_SCALING_STEPS = 20
_REFIT_STEPS = 10
_SCALING_PROGRESS = 2e-3
"""Relative fall of the loss below which a scaling step is the last."""


def tree_potentials(
    domain: Domain,
    cliques: Sequence[Clique],
    tables: Mapping[Clique, Table],
    deadline: float = inf,
) -> list[Table]:
    """Potentials of a normalised model, one array per clique; cliques without a table get zeros,
    and so do those that are not reached by the ``deadline`` of ``time.perf_counter``.
    """
    fractions = {clique: _fractions(table) for clique, table in tables.items()}
    potentials = {clique: np.zeros(domain.shape(clique)) for clique in cliques}
    held = [clique for clique in cliques if clique in fractions]
    for clique, separator in _growth(domain, held, fractions, deadline):
        summed = tuple(i for i, name in enumerate(clique) if name not in separator)
        table = fractions[clique]
        potentials[clique] = np.log(table) - np.log(table.sum(axis=summed, keepdims=True))
    return [potentials[clique] for clique in cliques]


def _fractions(table: Table) -> Table:
    """The table summing to 1, without zeros; uniform where noise left nothing positive."""
    positive = np.maximum(table, 0.0)
    total = positive.sum()
    if total <= 0:
        return np.full(table.shape, 1 / table.size)
    floored = np.maximum(positive / total, _FLOOR)
    return floored / floored.sum()


def _growth(
    domain: Domain, cliques: Sequence[Clique], fractions: Mapping[Clique, Table], deadline: float
) -> list[tuple[Clique, Clique]]:
    """Cliques in an order with the running-intersection property, each with its separator."""
    if not cliques:
        return []
    held = {frozenset(clique): clique for clique in cliques}
    covered = set().union(*cliques)
    # Over the whole domain, as the model will ask for it: one search serves both.
    tree = junction_tree(domain, cliques)
    names = [
        (clique, separator)
        for clique, separator in zip(tree.cliques, tree.separators, strict=True)
        if covered.intersection(clique)
    ]
    if all(frozenset(clique) in held for clique, _ in names):
        return [(held[frozenset(clique)], separator) for clique, separator in names]
    return _greedy_growth(cliques, fractions, deadline)


def _greedy_growth(
    cliques: Sequence[Clique], fractions: Mapping[Clique, Table], deadline: float
) -> list[tuple[Clique, Clique]]:
    left = sorted(cliques, key=lambda clique: -_information(fractions[clique]))
    covered: set[str] = set()
    grown: list[tuple[Clique, Clique]] = []
    grown_sets: list[set[str]] = []
    # Any beginning of the growth is a tree: what is left over starts without potentials.
    while left and time.perf_counter() < deadline:
        best = None
        for clique in left:
            separator = tuple(name for name in clique if name in covered)
            if len(separator) == len(clique):
                continue
            attached = any(held.issuperset(separator) for held in grown_sets)
            if separator and attached:
                best = (clique, separator)
                break
            if not separator and best is None:
                best = (clique, separator)
        if best is None:
            break
        grown.append(best)
        grown_sets.append(set(best[0]))
        covered.update(best[0])
        left.remove(best[0])
    return grown


def _information(table: Table) -> float:
    """Total correlation in nats: how far the table is from the product of its one-way marginals."""
    total = float((table * np.log(table)).sum())
    for axis in range(table.ndim):
        single = table.sum(axis=tuple(i for i in range(table.ndim) if i != axis))
        total -= float((single * np.log(single)).sum())
    return total


def scale(problem: Problem, start: Point, tables: Sequence[Table], enough: float) -> Point:
    """A point whose marginals are near the tables, or ``start`` where none has a lower loss.

    ``tables`` has one positive table in counts for each clique. With short cycles the potentials
    are those of the cluster expansion (``_expand``) if that helps; damped steps of iterative
    scaling follow. Ends at a loss of ``enough``.
    """
    floor = _SCALING_FLOOR * problem.total
    flat = np.concatenate([np.maximum(table, floor).reshape(-1) for table in tables])
    target = torch.as_tensor(flat).to(start.potentials)
    expansion = cluster_expansion(problem.inference)
    near = start if expansion is None else _expand(problem, start, target, expansion, enough)
    close = problem.loss.value(near.marginals) <= enough
    return near if close else _damped(problem, near, target)


def refit(problem: Problem, start: Point, tables: Sequence[Table], enough: float) -> Point:
    """An earlier model brought up to new measurements: iterative scaling, the worst table first.

    ``tables`` has one positive table in counts for each clique. Most of them fit already: each step
    makes the marginal of the clique that is farthest from its table equal to it. Ends at a loss of
    ``enough``, or when a step brings less than a tenth of the way to it.
    """
    floor = _SCALING_FLOOR * problem.total
    split = problem.inference.layout.split
    flat = np.concatenate([np.maximum(table, floor).reshape(-1) for table in tables])
    target = torch.as_tensor(flat).to(start.potentials)
    point, loss = start, problem.loss.value(start.marginals)
    for _ in range(_REFIT_STEPS):
        if loss <= enough:
            break
        missing = target.log() - point.marginals.clamp_min(floor).log()
        apart = [float(part.sum()) for part in split(target * missing)]
        worst = problem.inference.layout.slices[int(np.argmax(apart))]
        potentials = point.potentials.clone()
        potentials[worst] += missing[worst]
        new = problem.attempt(potentials)
        reached = inf if new is None else problem.loss.value(new.marginals)
        if new is None or loss - reached < (loss - enough) / 10:
            break
        point, loss = new, reached
    return point


def _expand(
    problem: Problem,
    start: Point,
    target: torch.Tensor,
    expansion: ClusterExpansion,
    enough: float,
) -> Point:
    """Solve marginals(theta) = target by theta += K(target) - K(marginals), from theta = K(target).

    K, the cluster expansion, is nearly the inverse of inference, so that a few steps do.
    """
    split = problem.inference.layout.split

    def expand(marginals: torch.Tensor) -> torch.Tensor:
        floored = marginals.clamp_min(_SCALING_FLOOR * problem.total)
        return expansion.potentials(torch.cat([(t / t.sum()).view(-1) for t in split(floored)]))

    wanted = expand(target)
    potentials, best = wanted, start
    lowest = problem.loss.value(start.marginals)
    for _ in range(_SCALING_STEPS):
        point = problem.attempt(potentials)
        loss = inf if point is None else problem.loss.value(point.marginals)
        gained = lowest - loss
        if point is None or not gained > 0:
            break
        best, lowest = point, loss
        if loss <= enough or gained < _SCALING_PROGRESS * loss:
            break
        potentials = point.potentials + wanted - expand(point.marginals)
    return best


def _damped(problem: Problem, start: Point, target: torch.Tensor) -> Point:
    """Damped parallel iterative scaling, theta += (log target - log marginal) / overlap.

    ``overlap`` is the largest number of cliques that share an attribute. Of the points visited the
    one with the lowest loss is returned.
    """
    floor, wanted = _SCALING_FLOOR * problem.total, target.log()
    cliques = problem.inference.layout.cliques
    overlap = max(Counter(name for clique in cliques for name in clique).values())
    point, best = start, start
    lowest = problem.loss.value(start.marginals)
    for _ in range(_SCALING_STEPS):
        if problem.late():
            break
        missing = wanted - point.marginals.clamp_min(floor).log()
        point = problem.point(point.potentials + missing / overlap)
        loss = problem.loss.value(point.marginals)
        gained, lowest = lowest - loss, min(loss, lowest)
        if gained > 0:
            best = point
        if 0 < gained < _SCALING_PROGRESS * loss:
            break
    return best
