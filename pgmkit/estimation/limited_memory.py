"""L-BFGS for many smooth convex functions of one kind at once, each with its own line search, or
for a single one: a quasi-Newton method that remembers a few steps (Nocedal and Wright, algorithm
7.5).

scipy's L-BFGS-B serves problems with bounds and those with few variables. It has no method that
evaluates many functions in one call, from which batches get their speed, and it spends time on
bounds even if there are none: as long as an inference pass with 80,000 variables.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray

from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ITERATIONS, MOST_ROUNDS, SUFFICIENT, WINDOW
from pgmkit.runtime.precision import EPSILON

Function = Callable[[Array], tuple[Array, Array]]
"""A function from points, one in each column, to their values and gradients (columns again)."""

_MEMORY = 12
"""The number of steps that L-BFGS remembers."""


def minimise_many(
    functions: Callable[[NDArray[np.int64]], Function],
    start: Array,
    precision: Array,
    deadline: float = inf,
) -> tuple[Array, Array]:
    """Minimise several functions at once by L-BFGS, each from a column of ``start``, of shape
    (variables, functions). Return an array of this shape, whose columns are the points where the
    searches end, and the functions' values there.

    ``functions(columns)`` returns a ``Function`` that evaluates the functions with these indices
    only. The search for one function ends when its value has fallen by less than its entry of
    ``precision`` in the last WINDOW iterations; the others continue. All searches end after
    MOST_ITERATIONS steps, or at ``deadline``, a time of ``time.perf_counter``.

    >>> centres = np.array([[1.0, 2.0, 3.0]])
    >>> def functions(columns):
    ...     c = centres[:, columns]
    ...     return lambda x: (((x - c) ** 2).sum(axis=0), 2 * (x - c))
    >>> minimise_many(functions, np.zeros((1, 3)), np.full(3, 1e-12))[0].round(6)
    array([[1., 2., 3.]])
    """
    function = functions(np.arange(start.shape[1]))
    at_start = function(start)
    steepest = np.sqrt(_dots(at_start[1], at_start[1]))
    run = Run(function, start, at_start, 1 / np.maximum(steepest, 1e-300))
    return run.until(
        lambda left: run.fallen() < precision[left], functions, MOST_ITERATIONS, deadline
    )


def minimum(
    function: Callable[[torch.Tensor], tuple[float, torch.Tensor]],
    start: torch.Tensor,
    settled: Callable[[], bool],
) -> torch.Tensor:
    """Return the point at which the search for the minimum of a single function ends: when
    ``settled()``, called after each step that lowers the value, returns True, when no step lowers
    the value, or after ``2 * MOST_ROUNDS`` steps.

    ``function`` returns its value, which may be infinite or NaN, and its gradient.

    >>> def bowl(x):
    ...     return float(x @ x), 2 * x
    >>> minimum(bowl, torch.tensor([3.0, -4.0]), lambda: False)
    tensor([0., 0.])
    """

    def of_column(points: Array) -> tuple[Array, Array]:
        value, gradient = function(torch.from_numpy(points[:, 0]).to(start))
        return np.array([value]), gradient.cpu().numpy()[:, None]

    point = start.cpu().numpy()[:, None]
    known = of_column(point)
    run = Run(of_column, point, known, 1 / np.maximum(1.0, np.abs(known[1]).sum(axis=0)))
    for _ in range(2 * MOST_ROUNDS):
        before = run.values[0]
        run.step()
        taken = run.share[0] == 1
        if run.share[0] < EPSILON or (taken and (run.values[0] >= before or settled())):
            break
    return torch.from_numpy(run.points[:, 0]).to(start)


class Run:
    """The L-BFGS searches for the minima of several functions: their present points, and the last
    steps of each. Every function has a column of each array.

    ``known`` are the values and gradients at the points. The first step of a column is minus
    ``scale`` times its gradient.
    """

    def __init__(
        self, function: Function, points: Array, known: tuple[Array, Array], scale: Array
    ) -> None:
        self.function, self.points, self.scale = function, points, scale
        self.values, self.gradients = known
        self.share = np.ones_like(self.values)
        self.pairs: deque[tuple[Array, Array, Array]] = deque(maxlen=_MEMORY)
        self.history = [self.values]

    def until(
        self,
        ended: Callable[[NDArray[np.int64]], NDArray[np.bool_]],
        functions: Callable[[NDArray[np.int64]], Function],
        most: int,
        deadline: float,
    ) -> tuple[Array, Array]:
        """Take at most ``most`` steps, at least one, until the searches of all columns have ended
        or ``deadline`` has passed. Return the columns' last points and values.

        ``ended(columns)`` returns a mask of the searches that have ended among ``columns``, the
        indices of those that still move. When at least half of these have ended, those that have
        are left out. ``functions(columns)`` returns a function that evaluates these columns only.
        """
        found, values = self.points.copy(), self.values.copy()
        left = np.arange(len(values))
        for _ in range(most):
            self.step()
            done = ended(left)
            found[:, left], values[left] = self.points, self.values
            if done.all() or time.perf_counter() >= deadline:
                break
            if 2 * done.sum() >= len(done):
                left = left[~done]
                self.keep(~done, functions(left))
        return found, values

    def step(self) -> None:
        """Move each column along its direction. A column whose value would not fall enough stays
        where it is, and its next step is a quarter as long.
        """
        way = self._direction()
        slope = _dots(self.gradients, way)
        moved = self.share * way
        values, gradients = self.function(self.points + moved)
        taken = values <= self.values + SUFFICIENT * self.share * slope
        turned = gradients - self.gradients
        moved[:, ~taken] = turned[:, ~taken] = 0.0
        curvature, length = _dots(moved, turned), _dots(turned, turned)
        curved = curvature > EPSILON * length
        inverse = np.where(curved, 1 / np.where(curved, curvature, 1.0), 0.0)
        if taken.any():  # a pair of zeros would take the place of one that is known
            self.pairs.append((moved, turned, inverse))
        self.scale = np.where(curved, curvature / np.where(curved, length, 1.0), self.scale)
        self.points = self.points + moved
        self.values = np.where(taken, values, self.values)
        self.gradients = self.gradients + turned
        self.share = np.where(taken, 1.0, self.share / 4)
        self.history.append(self.values)

    def fallen(self) -> Array:
        """Return by how much each value has fallen in the last WINDOW iterations; infinity before
        there have been WINDOW iterations.
        """
        if len(self.history) <= WINDOW:
            return np.full_like(self.values, inf)
        return self.history[-1 - WINDOW] - self.history[-1]

    def keep(self, columns: NDArray[np.bool_], function: Function) -> None:
        """Continue only with the columns for which the mask ``columns`` is True; ``function``
        evaluates these.
        """
        self.function = function
        self.points, self.gradients = self.points[:, columns], self.gradients[:, columns]
        self.values, self.scale = self.values[columns], self.scale[columns]
        self.share = self.share[columns]
        self.history = [values[columns] for values in self.history[-WINDOW:]]
        pairs = [(s[:, columns], y[:, columns], r[columns]) for s, y, r in self.pairs]
        self.pairs = deque(pairs, maxlen=_MEMORY)

    def _direction(self) -> Array:
        """Return the direction of each column, by the two loops of Nocedal (1980)."""
        way, shares = -self.gradients, []
        for moved, turned, inverse in reversed(self.pairs):
            shares.append(inverse * _dots(moved, way))
            way -= shares[-1] * turned
        way *= self.scale
        for (moved, turned, inverse), share in zip(self.pairs, reversed(shares), strict=True):
            way += (share - inverse * _dots(turned, way)) * moved
        return way


def _dots(left: Array, right: Array) -> Array:
    """Return the inner product of each pair of columns."""
    return np.asarray(np.einsum("ij,ij->j", left, right))
