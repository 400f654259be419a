"""Tables shrunk towards independence by as much as their own noise requires.

The best fit follows the noise as closely as agreeing tables can. Closer to the truth is the
solution of

    minimise  sum (x - y)^2 / (2 stddev^2) + w sum x log(x / q)

over the local polytope, for measured tables y and an entropic prior (Skilling and Gull) with weight
w and tables q. Either q are the products of the best fit's one-way tables, and the penalty is w
times the information that attributes have about each other; or, for tables of three attributes and
more, q has the best fit's two-way tables and no higher interaction. Of both priors and all weights
tried, those with the smallest estimate of the risk are used, by Stein's unbiased estimate (1981),

    sum (x - y)^2 / stddev^2 + 2 sum dx/dy.

The second sum is estimated along one random direction (Ramani and others, 2008). The estimate needs
neither the truth nor further measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from math import inf

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import NumericalFailure
from pgmkit.losses import MeasuredLoss
from pgmkit.regions.polytope import EntropicPrior, LocalPolytope
from pgmkit.regions.raking import raked
from pgmkit.regions.relaxation import UNSEEN
from pgmkit.runtime.arguments import generator
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.chances import DEVIATIONS
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.iterations import FEW_ROUNDS
from pgmkit.runtime.precision import CLOSE
from pgmkit.runtime.progress import OutOfTime, check_time

_COARSE = 4.0
"""The factor by which the weight falls from trial to trial. At the end, the best weight is
multiplied by the square root of this factor or, if that is no improvement, divided by it.
"""
_MOST = 2 * _COARSE**2
"""The first weight that is tried, in units of the weight at which prior and measurement have equal
influence.
"""
_ELSEWHERE = 1e-3
"""The share of a one-way table that is replaced by a uniform one, and of a two-way table that is
replaced by an independent one, so that cells in which the best fit has no records stay possible.
"""


@dataclass(frozen=True)
class Shrunk:
    """Tables, the weight of the prior, the penalty of the tables, and an upper bound on how much
    smaller the loss plus penalty of other tables could be.
    """

    tables: Array
    weight: float
    penalty: float
    gap: float


def shrunk(
    polytope: LocalPolytope, loss: MeasuredLoss, squares: Array, best: Array, deadline: float = inf
) -> Shrunk | None:
    """Return the shrunk tables of the smallest estimated risk; None if that risk is not
    significantly below the best fit's, or if the ``deadline`` (``time.perf_counter``) passes.

    ``loss`` is the squared loss of whole tables, ``squares`` are the inverse variances of all cells
    (0 for cells not measured), and ``best`` is the best fit.
    """
    seen = squares > 0
    _, slope = loss.value_and_gradient(torch.from_numpy(best))
    curvature = np.where(seen, squares, UNSEEN * squares[seen].min())
    even = polytope.even()
    target = np.where(seen, best - slope.numpy() / curvature, even)
    larger = any(len(clique) > 2 for clique in polytope.cliques)
    alike = float(squares[seen].mean() * even[seen].mean())
    found = []
    try:
        for made in (independent, of_pairs) if larger else (independent,):
            search = RiskSearch(polytope, best, target, curvature, seen, made, deadline)
            for i in range(FEW_ROUNDS):
                if not search.improved(_MOST * alike / _COARSE**i):
                    break
            for side in (_COARSE**0.5, _COARSE**-0.5):
                if search.improved(side * search.chosen.weight):
                    break
            if search.surely:
                found.append(search)
    except OutOfTime:
        return None
    if not found:
        return None
    return min(found, key=lambda search: search.risk).chosen


@dataclass
class RiskSearch:
    """The search for the weight of smallest estimated risk, for one kind of prior tables: those
    that the function ``made`` derives from the best fit ``best``. ``seen`` is a mask of the
    measured cells; for these, ``target`` has the measured counts and ``curvature`` the inverse
    variances. ``chosen`` has the best shrunk tables so far, ``risk`` their estimated risk
    (``best`` and infinity before there are any), and ``unshrunk`` the estimated risk of ``best``.
    """

    polytope: LocalPolytope
    best: Array
    target: Array
    curvature: Array
    seen: NDArray[np.bool_]
    made: Callable[[LocalPolytope, Array], Array]
    deadline: float

    def __post_init__(self) -> None:
        polytope, best = self.polytope, self.best
        self.q = self.made(polytope, best)
        self._direction = np.where(generator(0).random(len(best)) < 0.5, -1.0, 1.0) * self.seen
        along = polytope.moved(best, self.curvature, self._direction, deadline=self.deadline)
        step = CLOSE * polytope.total / float(np.abs(along).sum() + 1)
        # The prior is derived from the fitted tables, so it changes with the data as well: this is
        # the derivative of its logarithm along ``along``, by a finite difference.
        self._prior = np.log(self.made(polytope, best + step * along) / self.q) / step
        self.unshrunk = self._risk(best, along)
        self.chosen, self.risk = Shrunk(best, 0.0, 0.0, 0.0), inf
        self._start: Array | None = None

    def improved(self, weight: float) -> bool:
        """Compute the tables for this weight. If their estimated risk is the smallest so far, keep
        them and return True. Otherwise, for weight 0 and if no tables are found return False.
        """
        check_time(self.deadline)
        if not weight:
            return False
        prior = EntropicPrior(weight, self.q)
        try:
            tables, start = self.polytope.nearest(
                self.target, self.curvature, self._start, prior, self.deadline
            )
        except NumericalFailure:
            return False
        self._start = start
        direction = self._direction + weight / self.curvature * self._prior
        along = self.polytope.moved(tables, self.curvature, direction, prior, self.deadline)
        risk = self._risk(tables, along)
        if risk >= self.risk:
            return False
        matrix, _, sums = self.polytope.constraints
        gap = abs(float(start @ (matrix @ tables - sums)))
        unseen = (self.curvature * (tables - self.target) ** 2)[~self.seen].sum() / 2
        penalty = prior.penalty(tables) + float(unseen)
        self.chosen, self.risk = Shrunk(tables, weight, penalty, gap), risk
        return True

    @property
    def surely(self) -> bool:
        """True if the estimated risk of the chosen tables is below the best fit's by more than 1
        (the squared noise of one cell) plus ``DEVIATIONS`` standard errors of the difference.
        """
        apart = self.curvature * (self.chosen.tables - self.best) ** 2
        noise = 2 * float(apart[self.seen].sum()) ** 0.5
        return self.unshrunk - self.risk > 1 + DEVIATIONS * noise

    def _risk(self, tables: Array, along: Array) -> float:
        """Return Stein's estimate of the risk, without the terms that are the same for all tables.
        ``along`` is the derivative of the tables as the data move along ``_direction``, which was
        drawn at random: with it the divergence in Stein's formula is estimated.
        """
        apart = (self.curvature * (tables - self.target) ** 2)[self.seen].sum()
        return float(apart + 2 * self._direction @ along)


def independent(polytope: LocalPolytope, tables: Array) -> Array:
    """Return the table over each of the polytope's cliques that has the one-way tables of
    ``tables``, mixed with a little of uniform ones, and no interaction; in counts, as one vector.
    """
    margins = dict[str, Array]()
    for clique, table in zip(polytope.cliques, polytope.split(tables), strict=True):
        for axis, name in enumerate(clique):
            if name not in margins:
                counts = table.sum(axis=tuple(i for i in range(table.ndim) if i != axis))
                share = np.maximum(counts, 0) / polytope.total
                margins[name] = (1 - _ELSEWHERE) * share + _ELSEWHERE / len(share)
    shares = [[margins[name] for name in clique] for clique in polytope.cliques]
    total = np.full((), polytope.total)
    return np.concatenate([reduce(np.multiply.outer, each, total).reshape(-1) for each in shares])


def of_pairs(polytope: LocalPolytope, tables: Array) -> Array:
    """Return the table of maximum entropy over each of the polytope's cliques that has the two-way
    tables of ``tables``, mixed with a little of independent ones; in counts, as one vector. Cliques
    of fewer than three attributes have their table of ``independent`` instead.
    """
    products, found = polytope.split(independent(polytope, tables)), []
    for table, fitted in zip(polytope.split(tables), products, strict=True):
        if table.ndim > 2:
            mixed = (1 - _ELSEWHERE) * np.maximum(table, 0) + _ELSEWHERE * fitted
            axes = range(table.ndim)
            rest = [tuple(set(axes) - set(pair)) for pair in combinations(axes, 2)]
            wanted = [mixed.sum(axis=away, keepdims=True) for away in rest]
            fitted = raked(fitted, wanted, FEW_ROUNDS)
        found.append(fitted.reshape(-1))
    return np.concatenate(found)
