"""The proximal point method with Newton steps in the dual, on the joint distribution written out.

It is for small problems of any conditioning. One proximal step from p_k, of length eta, solves

    minimise  L(mu) + D(p, p_k) / eta   over all distributions p of the total,

where D is the total times the Kullback-Leibler divergence. Its dual has one multiplier u for each
measured value, p is proportional to p_k exp(-eta u A) with A the measurements' matrix on the joint
cells, and Newton's method solves it in a few steps. As eta grows, the steps converge faster than
linearly, and every u gives a lower bound on the loss. Bounds on u (Huber, absolute) are enforced by
a logarithmic barrier. The logarithm of p is always a sum of functions of the measured cliques, so p
is a graphical model over them.

Weights may differ by fifteen orders of magnitude. Probabilities computed from the multipliers would
therefore have the multipliers' rounding errors times the largest weight. So both probabilities and
multipliers are variables, and the equation between them is one of those that Newton's method
solves, as in primal-dual interior point methods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite, log

import numpy as np
import scipy.sparse
import torch
from scipy.linalg import lstsq, qr, solve_triangular
from scipy.sparse.linalg import lsqr

from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.losses import MeasuredLoss
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ROUNDS, PATIENCE, SOLVED, WINDOW
from pgmkit.runtime.precision import CLOSE, EPSILON, FAR, ULPS
from pgmkit.runtime.sizes import CACHE_CELLS, CALL_CELLS, MULTIPLICATIONS_A_SECOND

_MOST_WORK = MULTIPLICATIONS_A_SECOND / 5
"""The largest number of multiplications that the factorisation of a Newton step may take."""
_PATIENCE = 5 * PATIENCE
"""The number of steps without progress after which the search ends. The first steps are far shorter
than useful ones, and grow.
"""
_GROWTH = 5.0
"""The factor by which the length of the proximal steps grows from one step to the next."""
_FAR_BELOW = 2 * log(EPSILON)
"""Cells whose log probability is this far below the largest one, or farther, affect no sum."""
_REFINEMENTS = round(log(EPSILON) / log(CLOSE))
"""The number of refinements of a linear solution. Each leaves a share ``CLOSE`` of the error, all
together no more than rounding.
"""
_NEGLIGIBLE = EPSILON / CALL_CELLS
"""Smaller probabilities are left out of Newton steps: all together are lost in rounding."""


def is_small(problem: Problem) -> bool:
    """Return True if a Newton step's factorisation takes at most ``_MOST_WORK`` multiplications."""
    return _work(problem) <= _MOST_WORK


def is_tiny(problem: Problem) -> bool:
    """Return True if a step takes at most ``_MOST_WORK`` / 10; no other method is then faster."""
    return _work(problem) <= _MOST_WORK / 10


def _work(problem: Problem) -> float:
    """Return the multiplications that a Newton step's factorisation takes; infinity, so that the
    problem is not small, if the loss is a callable, or if the joint distribution has more than
    ``CALL_CELLS`` cells.
    """
    if not isinstance(problem.loss, MeasuredLoss):
        return inf
    layout = problem.inference.layout
    cells = layout.domain.size({name for clique in layout.cliques for name in clique})
    if cells > CALL_CELLS:
        return inf
    rows = len(problem.loss.observations.target)
    return min(rows, cells) ** 2 * (rows + cells)


def newton(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise the measured loss of a small problem (``is_small``), and return the last point.

    The loss recorded first is that of ``start``, but the search starts from the uniform
    distribution: cells that a start nearly excludes would regain probability slowly. The patience
    of ``monitor`` is raised.
    """
    joint, monitor.patience = _Joint(problem), _PATIENCE
    point, state = start, joint.start(monitor.goal)
    step, failures = joint.first_step(state, monitor.goal), 0
    while not monitor.record(point, problem.loss.value(point.marginals)):
        precision = max(monitor.goal, SOLVED * (joint.loss(state) - monitor.bound))
        taken, solved = joint.proximal_step(state, step, precision, monitor)
        bound = joint.bound(taken.dual)
        monitor.raise_bound(bound)
        point = problem.attempt(joint.potentials(taken, start)) or point
        if solved:
            barrier = (joint.loss(taken) - bound) / (20 * len(taken.dual))
            barrier = max(barrier, joint.least_barrier)
            state = replace(taken, barrier=min(state.barrier, barrier))
            step, failures = min(step * _GROWTH, FAR), 0
        else:
            step, failures = step / _GROWTH**1.5, failures + 1
        if failures > WINDOW:
            monitor.stopped = "precision: Newton steps no longer resolve the loss"
            break
    return point


@dataclass(frozen=True)
class _State:
    """A point of the search. Every array but ``logs`` has one entry for each measured value.

    ``logs`` are the log probabilities of the joint cells less the largest of them, and ``dual`` the
    multipliers. ``above`` and ``below`` are the distances of the multipliers from their upper and
    lower bounds. They are variables of their own, since they become far smaller than the
    multipliers' rounding. ``barrier`` is the weight of the logarithmic barrier.
    """

    logs: Array
    dual: Array
    above: Array
    below: Array
    barrier: float

    def moved(self, share: float, way: _Way) -> _State:
        logs, change = self.logs + share * way[0], share * way[1]
        return replace(
            self,
            logs=logs - logs.max(),
            dual=self.dual + change,
            above=self.above - change,
            below=self.below + change,
        )

    @property
    def shares(self) -> Array:
        """The probabilities of the cells."""
        weights = np.exp(self.logs)
        return weights / weights.sum()


_Way = tuple[Array, Array]
"""A direction of search: the changes of the state's ``logs`` and ``dual``."""


class _Joint:
    """This class states the problem as a function of the joint distribution's cells p: minimise
    phi(T A p - b), with phi the penalty, T the total, and A (``matrix``) and b (``target``) the
    measurements' matrix and values in units of the noise.
    """

    def __init__(self, problem: Problem) -> None:
        assert isinstance(problem.loss, MeasuredLoss)
        self.total, layout = problem.total, problem.inference.layout
        domain, observations = layout.domain, problem.loss.observations
        names = [n for n in domain if any(n in clique for clique in layout.cliques)]
        maps = [domain.cell_map(names, clique) for clique in layout.cliques]
        self.places = np.array([m + s.start for m, s in zip(maps, layout.slices, strict=True)])
        blank = torch.zeros(layout.cells, dtype=observations.target.dtype).to(observations.target)
        impossible = torch.isneginf(problem.inference.masked(blank)).cpu().numpy()
        self.places = self.places[:, ~impossible[self.places].any(axis=0)]
        self.target = observations.target.detach().cpu().numpy().astype(np.float64)
        by_table, count = observations.matrix(), self.places.shape[1]
        columns, cells = self.places.reshape(-1), np.tile(np.arange(count), len(self.places))
        shape = (count, layout.cells)
        self.design = scipy.sparse.csr_array((np.ones(len(cells)), (cells, columns)), shape)
        self.matrix = (by_table @ self.design.T).toarray()
        self._limit_precision()
        self.penalty = problem.loss.penalty
        self.curvature, self.steepest = self.penalty.curvature, self.penalty.steepest

    def _limit_precision(self) -> None:
        """Reduce the weight of measured values whose noise is smaller than their own rounding at
        this total. This can only make the loss smaller, so a lower bound on it is also one on the
        real loss.
        """
        largest = np.abs(self.matrix).max(axis=1)
        scale = 1 / np.maximum(1.0, ULPS * EPSILON * (largest * self.total + np.abs(self.target)))
        self.matrix *= scale[:, None]
        self.target = self.target * scale

    def start(self, goal: float) -> _State:
        """Return the first state: the uniform distribution, and multipliers well within their
        bounds, near the penalty's slopes at that distribution. ``goal`` sets the least barrier.
        """
        logs = np.zeros(self.matrix.shape[1])
        residual = self.residual(np.full(len(logs), 1 / len(logs)))
        wide = residual / (self.curvature + np.abs(residual) / self.steepest + 1e-300)
        dual, barrier = np.clip(wide, -self.steepest / 2, self.steepest / 2), 0.0
        self.least_barrier = goal / (20 * len(residual))
        if isfinite(self.steepest):  # without bounds there is no barrier
            barrier = max(self.least_barrier, float(np.abs(residual).max()) * self.steepest)
        return _State(logs, dual, self.steepest - dual, self.steepest + dual, barrier)

    def residual(self, shares: Array) -> Array:
        return np.asarray(self.total * (self.matrix @ shares) - self.target)

    def loss(self, state: _State) -> float:
        return float(self.penalty.value(torch.as_tensor(self.residual(state.shares))))

    def first_step(self, state: _State, goal: float) -> float:
        """Return the length of the first step, at most total / ``goal`` and FAR: the one at which
        loss and entropy have about the same curvature.
        """
        shares = state.shares
        spread = (self.matrix**2) @ shares - (self.matrix @ shares) ** 2
        longest = self.total / max(goal, 1 / FAR)
        return min(1 / max(self.total * float(spread.max()), 1 / FAR), longest)

    def bound(self, dual: Array) -> float:
        """Return the lower bound on the loss by these multipliers (Fenchel's inequality), less its
        rounding.
        """
        conjugate = 0.5 * self.curvature * (dual @ dual)
        slopes = dual @ self.matrix
        size = conjugate + np.abs(dual) @ np.abs(self.target)
        size += self.total * (np.abs(dual) @ np.abs(self.matrix)).max()
        found = -conjugate - dual @ self.target + self.total * slopes.min()
        return float(found - ULPS * EPSILON * size)

    def potentials(self, state: _State, like: Point) -> torch.Tensor:
        """Return potentials, in the format of ``like``, whose sums over the cliques are the
        logarithms of the state's probabilities, up to a constant. Among all such potentials small
        ones are chosen, since large terms that cancel each other would be rounded.

        The probability of a cell at or below exp(``_FAR_BELOW``) times the largest is negligible.
        Its sum need not equal the logarithm but only be low, and one that is too high is fitted
        again to a lower number, up to MOST_ROUNDS times. The errors of the other sums are then
        fitted, twice at most, unless they are rounding: the solver would run until its own limit.
        """
        target = np.maximum(state.logs, _FAR_BELOW)
        far = target <= _FAR_BELOW
        tables = self._fit(target, np.ones(len(target)))
        for _ in range(MOST_ROUNDS):
            sums = tables[self.places].sum(axis=0)
            if not (far & (sums > 0.9 * _FAR_BELOW)).any():
                break
            tables = self._fit(
                np.where(far, np.minimum(sums, _FAR_BELOW), target), np.where(far, 0.1, 1.0)
            )
        weights = np.sqrt(np.where(state.shares > _NEGLIGIBLE, state.shares, 0.0))
        rounding = ULPS * EPSILON * float(np.abs(target[weights > 0]).max())
        for _ in range(2):
            missing = state.logs - tables[self.places].sum(axis=0)
            if np.abs(missing[weights > 0]).max() <= rounding:
                break
            tables = tables + self._fit(missing, weights)
        return torch.as_tensor(tables).to(like.potentials)

    def _fit(self, sums: Array, weights: Array) -> Array:
        """Return the cells of one table for each clique, whose sums are closest to ``sums`` by
        least squares; of several such tables, the smallest. The sum at a cell of the joint
        distribution is that of the cells of all tables in which it lies. ``weights`` multiply the
        differences before they are squared.
        """
        if self.design.shape[0] * self.design.shape[1] <= CACHE_CELLS:
            dense = self.design.toarray() * weights[:, None]
            return np.asarray(lstsq(dense, sums * weights, cond=1e-12, check_finite=False)[0])
        scaled = self.design * weights[:, None]
        return np.asarray(lsqr(scaled, sums * weights, atol=1e-15, btol=1e-15)[0])

    def proximal_step(
        self, origin: _State, step: float, precision: float, monitor: Monitor
    ) -> tuple[_State, bool]:
        """Return the state after the step, of at most PATIENCE rounds of Newton's method, and
        whether they have solved it to ``precision``. If the time is over or a round fails, the
        state is that of the round before, or ``origin``.

        Logarithms and multipliers are changed together until the logarithms equal those that the
        multipliers imply. Computing the logarithms from the multipliers directly would multiply the
        multipliers' rounding by the weights.
        """
        state, solved = origin, False
        shares, force = self._force(state)
        curvature, lag = self._curvature(state), self._lag(state, origin, step, shares)
        for _ in range(PATIENCE):
            if monitor.problem.late():
                break
            way, falls = self._newton_direction(shares, step, curvature, force, lag)
            if not isfinite(falls):
                break
            found = self._search(state, way, falls)
            if found is None:
                break
            state, shares, force = found
            curvature, lag = self._curvature(state), self._lag(state, origin, step, shares)
            unsolved = 0.5 * float(force @ (force / curvature))
            unsolved += 0.5 * self.total / step * float(shares @ lag**2)
            solved = unsolved < precision
            if falls < 1e-3 * precision and unsolved < 0.1 * precision:
                break
        return state, solved

    def _lag(self, state: _State, origin: _State, step: float, shares: Array) -> Array:
        """Return, for each cell, the state's logarithm minus the one that its multipliers imply,
        which is origin.logs - step * dual @ matrix. The mean of this difference under ``shares`` is
        subtracted.
        """
        lag = state.logs - origin.logs + step * (state.dual @ self.matrix)
        return np.asarray(lag - shares @ lag)

    def _force(self, state: _State) -> tuple[Array, Array]:
        """Return the probabilities of the cells, and the gradient of the dual objective with its
        barrier, less rounding errors.
        """
        shares = state.shares
        force = self.curvature * state.dual - self.residual(shares)
        force += state.barrier * (1 / state.above - 1 / state.below)
        # Every entry of the gradient is moved towards zero by the rounding error of its residual,
        # at most to zero. Otherwise the steps would follow rounding errors, and the multipliers
        # would drift.
        rounding = EPSILON * (self.total * (np.abs(self.matrix) @ shares) + np.abs(self.target))
        return shares, force - np.clip(force, -rounding, rounding)

    def _curvature(self, state: _State) -> Array:
        return self.curvature + state.barrier * (state.above**-2 + state.below**-2)

    def _search(self, state: _State, way: _Way, falls: float) -> tuple[_State, Array, Array] | None:
        """Return the state after a step along ``way``, its probabilities and its gradient; None if
        none of PATIENCE lengths passes the test below.

        The longest step, at most 1, that keeps the multipliers within their bounds is shortened
        until the slope of the dual objective at its end is at most 0.9 ``falls``, the squared
        length of ``way`` (``_newton_direction``).
        """
        change = way[1]
        ahead = np.where(change > 0, state.above, state.below)
        share = min(1.0, 0.95 * float((ahead / np.maximum(np.abs(change), 1e-300)).min()))
        for _ in range(PATIENCE):
            moved = state.moved(share, way)
            shares, force = self._force(moved)
            if float(force @ change) <= 0.9 * falls:
                return moved, shares, force
            share /= 2
        return None

    def _newton_direction(
        self, shares: Array, step: float, curvature: Array, force: Array, lag: Array
    ) -> tuple[_Way, float]:
        """Return the solution of both linearised equations (C is ``curvature``, eta ``step``, and
        ``force`` and ``lag`` are from the methods of these names), and its squared length in their
        metric (minus the dual's slope along it if ``lag`` is 0):

            C du - T A dp = -force,    d(log p) = -lag - eta du A.

        The factorisation is orthogonal, with rows sorted by size, as weights may differ by many
        orders of magnitude. Where possible it gives the change of the logarithms, since computing
        this from the multipliers would multiply their rounding by large weights.
        """
        scale = np.sqrt(curvature)
        centre = self.matrix @ shares
        kept = shares > _NEGLIGIBLE
        spread = np.sqrt(step * self.total * shares[kept])
        wide = (self.matrix[:, kept] - centre[:, None]) * spread / scale[:, None]
        slack, inner = _least_norm(wide, -force / scale - wide @ (lag[kept] * spread / step))
        dual = slack / scale
        logs = -lag - step * (dual @ self.matrix - dual @ centre)
        logs[kept] = -lag[kept] - step * inner / spread
        return (logs, dual), float(slack @ slack + inner @ inner)


def _least_norm(wide: Array, right: Array) -> tuple[Array, Array]:
    """Return the s and z that minimise |s|^2 + |z|^2 subject to s + G z = f, where G is ``wide``
    and f ``right``. The solution also has G' s = z.

    Both equations hold nearly to the last digit: the smaller vector comes from the factors, the
    other from refinement.
    """
    rows, columns = wide.shape
    if columns <= rows:
        padded = np.append(right, np.zeros(columns))
        found, residual = _least_squares(np.vstack([wide, np.eye(columns)]), padded)
        return residual[:rows], found
    padded = np.append(np.zeros(columns), right)
    found, residual = _least_squares(np.vstack([wide.T, np.eye(rows)]), padded)
    return found, -residual[:columns]


def _least_squares(tall: Array, right: Array) -> tuple[Array, Array]:
    """Return the x that minimises |``tall`` x - ``right``|, and the residual ``right`` - ``tall``
    x, which is refined to be orthogonal to the columns of ``tall``.
    """
    order = np.argsort(-np.abs(tall).max(axis=1), kind="stable")
    tall, right = tall[order], right[order]
    q, r, pivots = qr(tall, mode="economic", pivoting=True, check_finite=False)
    found, residual = np.zeros(tall.shape[1]), np.zeros(len(right))
    for _ in range(_REFINEMENTS):
        lacks, leans = right - residual - tall @ found, tall.T @ residual
        share = q.T @ lacks + solve_triangular(r, leans[pivots], trans="T", check_finite=False)
        found[pivots] += solve_triangular(r, share, check_finite=False)
        residual += lacks - q @ share
    leans = tall.T @ residual
    residual -= q @ solve_triangular(r, leans[pivots], trans="T", check_finite=False)
    back = np.empty_like(residual)
    back[order] = residual
    return found, back
