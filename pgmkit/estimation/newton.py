"""The proximal point method with Newton steps in the dual, on the joint distribution written out.

For small problems of any conditioning. One proximal step solves

    minimise  L(mu) + D(p, p_k) / eta   over all distributions p of the total,

D the total times the Kullback-Leibler divergence. Its dual has one multiplier u for each measured
value, p is proportional to p_k exp(-eta u A), and Newton's method solves it in a few steps. As
eta grows the steps converge faster than linearly, and every u bounds the loss from below. Bounds
on u (Huber, absolute) are kept by a logarithmic barrier. The logarithm of p is always a sum of
functions of the measured cliques, so it is a model's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite, prod

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from scipy.linalg import qr, solve_triangular
from scipy.sparse.linalg import lsqr

from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.losses import ULPS, MeasuredLoss

Array = NDArray[np.float64]

_MOST_CELLS = 4096
_MOST_WORK = 2e8
"""Multiplications of one Newton step's factorisation above which other methods are faster."""
_MOST_FAILURES = 8
_PATIENCE = 150
"""Steps without progress before the search ends: they grow from far below a useful length."""
_MOST_NEWTON = 30
_LARGEST_GROWTH = 5.0
_NEGLIGIBLE = 1e-18
"""Probabilities below this do not enter a Newton step."""


def is_small(problem: Problem) -> bool:
    """Whether the joint distribution can be written out and its Newton steps are cheap."""
    if not isinstance(problem.loss, MeasuredLoss):
        return False
    layout = problem.inference.layout
    names = {name for clique in layout.cliques for name in clique}
    cells = prod(layout.domain.sizes[name] for name in names)
    if cells > _MOST_CELLS:
        return False
    rows = len(problem.loss.observations.target)
    return min(rows, cells) ** 2 * (rows + cells) <= _MOST_WORK


def newton(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise the problem's measured loss; the problem must be small (``is_small``).

    ``start`` is where the best loss starts. The search starts from the uniform distribution: cells
    that a start all but excludes are slow to come back.
    """
    joint, monitor.patience = _Joint(problem), _PATIENCE
    point, state = start, joint.start(monitor.goal)
    step, growth, failures = joint.first_step(state, monitor.goal), _LARGEST_GROWTH, 0
    while not monitor.saw(point, problem.loss.value(point.marginals)):
        taken, solved, rounds = joint.proximal_step(state, step, monitor.goal)
        monitor.raise_bound(joint.bound(taken.dual))
        point = problem.attempt(joint.potentials(taken, start)) or point
        if solved:
            gap = monitor.gap / (20 * len(taken.dual))
            state = replace(taken, barrier=min(state.barrier, max(joint.least_barrier, gap)))
            growth = min(2 * growth, _LARGEST_GROWTH) if rounds <= 8 else max(2.0, growth / 2)
            step, failures = step * growth, 0
        else:
            step, growth, failures = step / growth**1.5, max(1.5, growth**0.5), failures + 1
        if failures > _MOST_FAILURES or not isfinite(step):
            monitor.stopped = "precision: Newton steps no longer resolve the loss"
            break
    return point


@dataclass(frozen=True)
class _State:
    """A point of the search; every array but ``tables`` and ``logs`` has one entry a value.

    ``logs`` are the cells' log probabilities up to a constant, ``tables`` the potentials they are
    the sums of up to rounding. ``above`` and ``below`` are the multipliers' distances to their
    bounds, kept apart because they get far smaller than the multipliers' rounding.
    """

    logs: Array
    tables: Array
    dual: Array
    above: Array
    below: Array
    barrier: float

    def moved(self, share: float, way: _Way) -> _State:
        logs = self.logs + share * way.logs
        return replace(
            self,
            logs=logs - logs.max(),
            tables=self.tables + share * way.tables,
            dual=self.dual + share * way.dual,
            above=self.above - share * way.dual,
            below=self.below + share * way.dual,
        )

    @property
    def shares(self) -> Array:
        """The probabilities of the cells."""
        weights = np.exp(self.logs - self.logs.max())
        return weights / weights.sum()


@dataclass(frozen=True)
class _Way:
    """A direction: what it adds to the state's parts."""

    logs: Array
    tables: Array
    dual: Array


class _Joint:
    """The problem on the cells of the joint distribution: the loss is phi(T A p - b)."""

    def __init__(self, problem: Problem) -> None:
        assert isinstance(problem.loss, MeasuredLoss)
        self.total, layout = problem.total, problem.inference.layout
        domain, observations = layout.domain, problem.loss.observations
        names = [n for n in domain if any(n in clique for clique in layout.cliques)]
        maps = [domain.cell_map(names, clique) for clique in layout.cliques]
        self.places = np.array([m + s.start for m, s in zip(maps, layout.slices, strict=True)])
        blank = torch.zeros(layout.cells, dtype=problem.inference.dtype)
        impossible = torch.isneginf(problem.inference.masked(blank)).numpy()
        self.places = self.places[:, ~impossible[self.places].any(axis=0)]
        self.target = _array(observations.target)
        units = torch.eye(len(self.target), dtype=problem.inference.dtype)
        self.by_table = np.array([_array(observations.adjoint(unit)) for unit in units])
        self._limit_precision()
        self.matrix = self.by_table[:, self.places].sum(axis=1)
        penalty = problem.loss.penalty
        self.curvature, self.steepest = penalty.curvature, penalty.steepest
        self.bounded = isfinite(self.steepest)
        self.least_barrier = 0.0

    def _limit_precision(self) -> None:
        """Weigh no value by more than what its own rounding, beside the total, allows.

        The loss only gets smaller, so that a bound of it is one of the real loss.
        """
        largest = np.abs(self.by_table[:, self.places]).sum(axis=1).max(axis=1) * self.total
        rounding = ULPS * np.finfo(np.float64).eps * (largest + np.abs(self.target))
        scale = 1 / np.maximum(1.0, rounding)
        self.by_table *= scale[:, None]
        self.target = self.target * scale

    def start(self, goal: float) -> _State:
        tables, logs = np.zeros(self.by_table.shape[1]), np.zeros(self.matrix.shape[1])
        residual = self.residual(np.full(len(logs), 1 / len(logs)))
        if not self.bounded:
            far = np.full(len(residual), np.inf)
            return _State(logs, tables, residual, far, far, 0.0)
        self.least_barrier = goal / (20 * len(residual))
        wide = residual / (self.curvature + np.abs(residual) / self.steepest + 1e-300)
        dual = np.clip(wide, -self.steepest / 2, self.steepest / 2)
        barrier = max(self.least_barrier, float(np.abs(residual).max()) * self.steepest)
        return _State(logs, tables, dual, self.steepest - dual, self.steepest + dual, barrier)

    def residual(self, shares: Array) -> Array:
        return np.asarray(self.total * (self.matrix @ shares) - self.target)

    def first_step(self, state: _State, goal: float) -> float:
        """About as long as the loss's curvature balances the entropy's."""
        shares = state.shares
        spread = (self.matrix**2) @ shares - (self.matrix @ shares) ** 2
        return min(1 / max(self.total * float(spread.max()), 1e-300), self.total / goal)

    def bound(self, dual: Array) -> float:
        """What no loss is below, by these multipliers (Fenchel), less its rounding."""
        conjugate = 0.5 * self.curvature * float(dual @ dual)
        slopes = dual @ self.matrix
        size = conjugate + float(np.abs(dual) @ np.abs(self.target))
        size += self.total * float((np.abs(dual) @ np.abs(self.matrix)).max())
        found = -conjugate - float(dual @ self.target) + self.total * float(slopes.min())
        return found - ULPS * float(np.finfo(np.float64).eps) * size

    def potentials(self, state: _State, like: Point) -> torch.Tensor:
        """The tables, corrected to sum to the logarithms where those are the more precise ones."""
        missing = state.logs - state.tables[self.places].sum(axis=0)
        weights = np.sqrt(state.shares)
        missing -= missing[weights.argmax()]
        tables = state.tables
        if np.abs(missing * weights).max() > 1e-14:
            count = self.places.shape[1]
            columns, rows = self.places.reshape(-1), np.tile(np.arange(count), len(self.places))
            shape = (count, len(tables))
            design = scipy.sparse.csr_array((weights[rows], (rows, columns)), shape)
            tables = tables + lsqr(design, missing * weights, atol=1e-14, btol=1e-14)[0]
        return torch.as_tensor(tables).to(like.potentials)

    def proximal_step(self, state: _State, step: float, goal: float) -> tuple[_State, bool, int]:
        """The state after the step, whether Newton's method got there, and in how many rounds."""
        pull = step * state.dual
        state = replace(
            state, logs=state.logs - pull @ self.matrix, tables=state.tables - pull @ self.by_table
        )
        shares, force = self._force(state)
        for rounds in range(1, _MOST_NEWTON + 1):
            curvature = self._curvature(state)
            way = self._newton_way(shares, step, curvature, force)
            falls = -float(force @ way.dual)
            unsolved = 0.5 * float(force @ (force / curvature))
            if not (falls > 0 and isfinite(falls)):
                return state, unsolved < goal, rounds
            longest = self._longest(state, way)
            found = self._search(state, way, longest, falls)
            if found is None:
                return state, unsolved < goal, rounds
            state, shares, force = found
            unsolved = 0.5 * float(force @ (force / self._curvature(state)))
            if falls < 1e-3 * goal and unsolved < 0.1 * goal:
                return state, True, rounds
        return state, False, _MOST_NEWTON

    def _force(self, state: _State) -> tuple[Array, Array]:
        """The probabilities, and the gradient of the dual objective."""
        shares = state.shares
        force = self.curvature * state.dual - self.residual(shares)
        if self.bounded:
            force += state.barrier * (1 / state.above - 1 / state.below)
        return shares, force

    def _curvature(self, state: _State) -> Array:
        curvature = np.full(len(state.dual), self.curvature)
        if self.bounded:
            curvature += state.barrier * (state.above**-2 + state.below**-2)
        return curvature

    def _longest(self, state: _State, way: _Way) -> float:
        """At most 1, and short of the bounds."""
        if not self.bounded:
            return 1.0
        ahead = np.where(way.dual > 0, state.above, state.below)
        return min(1.0, 0.95 * float((ahead / np.maximum(np.abs(way.dual), 1e-300)).min()))

    def _search(
        self, state: _State, way: _Way, share: float, falls: float
    ) -> tuple[_State, Array, Array] | None:
        """Shorten the step until the dual objective has not turned steeply upwards."""
        for attempt in range(_MOST_NEWTON):
            moved = state.moved(share, way)
            shares, force = self._force(moved)
            if float(force @ way.dual) <= 0.9 * falls:
                return moved, shares, force
            share /= 2 if attempt < 4 else 8
        return None

    def _newton_way(self, shares: Array, step: float, curvature: Array, force: Array) -> _Way:
        """Minus the Hessian's inverse, (C + eta T A Cov A')^-1, times the force.

        By an orthogonal factorisation of the smaller side, rows sorted by size: weights may differ
        by many orders of magnitude. The change of the logarithms follows from the factorisation
        too where it can, since the multipliers' own rounding is multiplied by large weights.
        """
        scale = np.sqrt(curvature)
        centre = self.matrix @ shares
        kept = shares > _NEGLIGIBLE
        spread = np.sqrt(step * self.total * shares[kept])
        tall = (self.matrix[:, kept] - centre[:, None]) * spread / scale[:, None]
        right = -force / scale
        if tall.shape[1] > len(right):
            dual = _ridge_rows(tall, right) / scale
            logs = -step * (dual @ self.matrix - dual @ centre)
            return _Way(logs, -step * (dual @ self.by_table), dual)
        inner = _ridge_columns(tall, right)
        dual = (right - tall @ inner) / scale
        logs = -step * (dual @ self.matrix - dual @ centre)
        logs[kept] = -step * inner / spread
        return _Way(logs, -step * (dual @ self.by_table), dual)


def _ridge_columns(tall: Array, right: Array) -> Array:
    """The y of least |G y - f|^2 + |y|^2."""
    columns = tall.shape[1]
    stacked = np.vstack([tall, np.eye(columns)])
    order = np.argsort(-np.abs(stacked).max(axis=1), kind="stable")
    padded = np.concatenate([right, np.zeros(columns)])[order]
    q, r, pivots = qr(stacked[order], mode="economic", pivoting=True, check_finite=False)
    found = np.empty(columns)
    found[pivots] = solve_triangular(r, q.T @ padded, check_finite=False)
    return found


def _ridge_rows(wide: Array, right: Array) -> Array:
    """(I + G G')^-1 f, with one step of refinement."""
    rows = len(right)
    stacked = np.vstack([wide.T, np.eye(rows)])
    order = np.argsort(-np.abs(stacked).max(axis=1), kind="stable")
    r, pivots = qr(stacked[order], mode="r", pivoting=True, check_finite=False)
    r = r[:rows]

    def solve(vector: Array) -> Array:
        half = solve_triangular(r, vector[pivots], trans="T", check_finite=False)
        found = np.empty(rows)
        found[pivots] = solve_triangular(r, half, check_finite=False)
        return found

    found = solve(right)
    return found + solve(right - found - wide @ (wide.T @ found))


def _array(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().numpy().astype(np.float64)
