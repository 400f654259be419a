"""Tables shrunk towards independence by as much as their own noise requires.

The best fit follows the noise as closely as agreeing tables can. Nearer to the truth is

    minimise  sum (x - y)^2 / (2 stddev^2) + w sum x log(x / q)

over the local polytope, for measured tables y and an entropic prior (Skilling and Gull) with weight
w and tables q. Either q are the products of the best fit's one-way tables, and the penalty is w
times the information that attributes have about each other; or, for tables of three attributes and
more, q has the best fit's two-way tables and no higher interaction. Among both priors and all
weights, the one of least risk by Stein's unbiased estimate (1981) is used,

    sum (x - y)^2 / stddev^2 + 2 sum dx/dy,

whose second sum is taken along one random direction (Ramani and others, 2008): it needs neither the
truth nor further measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from math import inf

import numpy as np
from numpy.typing import NDArray
from scipy.special import wrightomega, xlogy

from pgmkit.errors import NumericalFailure
from pgmkit.losses import MeasuredLoss
from pgmkit.regions.deadline import OutOfTime, check_time
from pgmkit.regions.polytope import LocalPolytope
from pgmkit.regions.raking import raked
from pgmkit.regions.relaxation import UNSEEN
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.iterations import FEW_ROUNDS
from pgmkit.runtime.precision import CLOSE
from pgmkit.runtime.randomness import generator

_MOST = 32.0
"""The first weight, in units of the weight with which prior and measurement count equally."""
_COARSE = 4.0
"""The factor by which the weights fall; the best of them is refined by its square root."""
_EVIDENCE = 2.0
"""The standard deviations by which the risk has to fall before the best fit is given up."""
_ELSEWHERE = 1e-3
"""The share of a one-way table that is made uniform, and of a two-way table that is made
independent, so that cells in which the fit has no record stay possible.
"""


@dataclass(frozen=True)
class EntropicPrior:
    """The penalty weight (x log(x / q) - x + q), summed over cells."""

    weight: float
    q: Array

    def cells(self, free: Array, curvature: Array) -> Array:
        """Return the x with curvature (x - free) + weight log(x / q) = 0."""
        scale = self.weight / curvature
        found: Array = scale * wrightomega(free / scale + np.log(self.q / scale))
        return found

    def slopes(self, x: Array, curvature: Array) -> Array:
        """Return the derivatives of ``cells`` by ``free``."""
        return x / (x + self.weight / curvature)

    def penalty(self, x: Array) -> float:
        """Return the penalty at x."""
        return self.weight * float((xlogy(x, x / self.q) - x + self.q).sum())


@dataclass(frozen=True)
class Shrunk:
    """Tables, the prior's weight and penalty, and a bound on how much smaller loss plus penalty of
    other tables could be.
    """

    tables: Array
    weight: float
    penalty: float
    gap: float


def shrunk(
    polytope: LocalPolytope,
    loss: MeasuredLoss,
    squares: Array,
    best: Array,
    deadline: float = inf,
) -> Shrunk | None:
    """Return the tables of least estimated risk; None if that risk is not significantly below the
    best fit's, or at ``deadline`` (``time.perf_counter``).

    ``loss`` is the squared loss of whole tables; ``squares`` are the inverse variances of all cells
    (0: not measured); ``best`` is the best fit.
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
            weights = (_MOST * alike / _COARSE**i for i in range(FEW_ROUNDS))
            _ = all(search.improved(weight) for weight in weights)  # until one is no better
            for side in (_COARSE**0.5, _COARSE**-0.5):
                search.improved(side * search.chosen.weight)
            if search.surely:
                found.append(search)
    except OutOfTime:
        return None
    if not found:
        return None
    return min(found, key=lambda search: search.risk).chosen


class RiskSearch:
    """The tables of least risk so far, with the prior that the function ``made`` derives from the
    best fit.
    """

    def __init__(
        self,
        polytope: LocalPolytope,
        best: Array,
        target: Array,
        curvature: Array,
        seen: NDArray[np.bool_],
        made: Callable[[LocalPolytope, Array], Array],
        deadline: float,
    ) -> None:
        self.polytope, self.best, self.target, self.curvature = polytope, best, target, curvature
        self.seen, self.q, self.deadline = seen, made(polytope, best), deadline
        signs = np.where(generator(0).random(len(best)) < 0.5, -1.0, 1.0)
        self._direction = signs * seen
        along = polytope.moved(best, curvature, self._direction, deadline=deadline)
        step = CLOSE * polytope.total / float(np.abs(along).sum() + 1)
        # The prior depends on the data through the tables that it is derived from.
        self._prior = np.log(made(polytope, best + step * along) / self.q) / step
        self.unshrunk = self._risk(best, along)
        self.chosen, self.risk = Shrunk(best, 0.0, 0.0, 0.0), inf
        self._start: Array | None = None

    def improved(self, weight: float) -> bool:
        """Compute the tables of this weight; True if their risk is the least so far, and they are
        kept.
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
        gap = abs(float(start @ self.polytope.off(tables)))
        unseen = (self.curvature * (tables - self.target) ** 2)[~self.seen].sum() / 2
        penalty = prior.penalty(tables) + float(unseen)
        self.chosen, self.risk = Shrunk(tables, weight, penalty, gap), risk
        return True

    @property
    def surely(self) -> bool:
        """True if that risk is below the best fit's by more than one cell's noise and the
        estimate's own error.
        """
        apart = self.curvature * (self.chosen.tables - self.best) ** 2
        noise = 2 * float(apart[self.seen].sum()) ** 0.5
        return self.unshrunk - self.risk > 1 + _EVIDENCE * noise

    def _risk(self, tables: Array, along: Array) -> float:
        """Return Stein's estimate of the risk, without the terms that do not depend on the
        tables.
        """
        apart = (self.curvature * (tables - self.target) ** 2)[self.seen].sum()
        return float(apart + 2 * self._direction @ along)


def independent(polytope: LocalPolytope, tables: Array) -> Array:
    """Return the products of one-way tables."""
    domain, margins = polytope.domain, dict[str, Array]()
    shapes = [domain.shape(clique) for clique in polytope.cliques]
    for clique, start, shape in zip(polytope.cliques, polytope.offsets, shapes, strict=False):
        table = tables[start : start + int(np.prod(shape))].reshape(shape)
        for axis, name in enumerate(clique):
            if name not in margins:
                counts = table.sum(axis=tuple(i for i in range(table.ndim) if i != axis))
                share = np.maximum(counts, 0) / polytope.total
                margins[name] = (1 - _ELSEWHERE) * share + _ELSEWHERE / len(share)
    products = []
    for clique in polytope.cliques:
        product = np.full(1, polytope.total)
        for name in clique:
            product = np.multiply.outer(product, margins[name]).reshape(-1)
        products.append(product)
    return np.concatenate(products)


def of_pairs(polytope: LocalPolytope, tables: Array) -> Array:
    """Return the tables of maximum entropy with these two-way tables."""
    products, found = independent(polytope, tables), []
    for clique, start in zip(polytope.cliques, polytope.offsets, strict=False):
        shape = polytope.domain.shape(clique)
        part = slice(start, start + int(np.prod(shape)))
        fitted = products[part].reshape(shape)
        mixed = (1 - _ELSEWHERE) * np.maximum(tables[part].reshape(shape), 0) + _ELSEWHERE * fitted
        rest = [
            tuple(set(range(len(shape))) - set(pair)) for pair in combinations(range(len(shape)), 2)
        ]
        wanted = [mixed.sum(axis=axes, keepdims=True) for axes in rest]
        if len(shape) > 2:
            fitted = raked(fitted, wanted, FEW_ROUNDS)
        found.append(fitted.reshape(-1))
    return np.concatenate(found)
