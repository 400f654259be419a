"""The proximal point method with a quasi-Newton method in the dual: certificates for any size.

One proximal step solves

    minimise  L(mu) + D(p, p_k) / eta   over all distributions p of the total,

D the total times the Kullback-Leibler divergence. Its dual has one multiplier u for each measured
value, and the model has the potentials theta_k - eta Q'u: a pass gives the dual's value
and gradient. L-BFGS-B solves it in multipliers scaled by the diagonal of the dual's Hessian, which
takes the noise scales and the sizes of the cells out of its conditioning. With growing eta the
multipliers' own lower bound of the loss closes in on it, where cuts at the models seen stay loose.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, OptimizeResult, minimize

from pgmkit.estimation.certificate import ascent
from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.losses import MeasuredLoss

Array = NDArray[np.float64]

_GROWTH = 2.0
_MOST_PASSES = 200
"""The most passes of one proximal step; the next step goes on from wherever it ends."""
_REACH = 30.0
"""The first step: a nat of entropy may weigh this many times the gap, so that it is easy."""
_ASCENTS = 10
"""Steps of ascent that cost about as much as a proximal step, which halves the gap: further ones
pay as long as so many, at the rate of the last one, halve it too, or close it."""
_SOLVED = 0.1
"""A proximal step is solved to this share of the gap to reach."""


def proximal(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise a squared or Huber loss from ``start``, best one that is close to the optimum."""
    return _search(problem, start, monitor, lambda: False)


def polish(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """``proximal`` up to the first step that linear space does not hold, or that is not solved.

    Up to there a step is cheap; what the certificate needs beyond may take many times longer.
    """
    before = problem.inference.log_passes
    return _search(problem, start, monitor, lambda: problem.inference.log_passes > before)


def can_polish(problem: Problem) -> bool:
    """True if the loss has smooth bounded multipliers: a measured one that is not ``absolute``."""
    return isinstance(problem.loss, MeasuredLoss) and problem.loss.penalty.curvature > 0


def _search(
    problem: Problem, start: Point, monitor: Monitor, too_long: Callable[[], bool]
) -> Point:
    """``too_long``: true once a step is longer than the search should take."""
    loss = problem.loss
    assert isinstance(loss, MeasuredLoss)
    monitor.begin_stage()
    point, value = start, loss.value(start.marginals)
    dual = loss.penalty.slope(loss.observations.residual(point.marginals))
    gap = min(monitor.gap, value - loss.least)
    step = problem.total / (_REACH * max(gap, monitor.goal))
    while not monitor.record(point, value) and not too_long():
        found = _Subproblem(problem, loss, point, dual, step).solve(monitor, too_long)
        reached = inf if found is None else loss.value(found[0].marginals)
        if found is None or reached > value + monitor.goal:
            step /= _GROWTH
            continue
        fallen = value - reached
        (point, dual), value = found, reached
        if fallen <= monitor.goal / 4:  # or else the loss itself has as far to go
            _certify(problem, loss, dual, monitor)
        step *= _GROWTH
    monitor.stopped = monitor.stopped or "steps: longer ones would take too long"
    return point


def _certify(problem: Problem, loss: MeasuredLoss, dual: torch.Tensor, monitor: Monitor) -> None:
    """Bounds by these multipliers and by ever better ones, as long as that pays."""
    before = inf
    while not monitor.certified and not monitor.late:
        bound, dual = ascent(problem.inference, loss, dual, problem.total)
        monitor.raise_bound(bound)
        gap = monitor.best_loss - bound
        if gap * (gap / before) ** _ASCENTS > max(monitor.goal, gap / 2) and before < inf:
            break
        before = gap


class _Subproblem:
    """One proximal step from ``centre``, as a smooth problem in the change of the multipliers."""

    def __init__(
        self, problem: Problem, loss: MeasuredLoss, centre: Point, dual: torch.Tensor, step: float
    ) -> None:
        self.problem, self.loss, self.dual, self.step = problem, loss, dual, step
        shifted = centre.potentials - step * loss.observations.adjoint(dual)
        self.potentials = problem.inference.balanced(shifted)
        variances = loss.observations.variances(centre.marginals, problem.total)
        self.scale = (loss.penalty.curvature + step * variances).rsqrt()
        self.force = torch.zeros_like(dual)

    def solve(
        self, monitor: Monitor, too_long: Callable[[], bool]
    ) -> tuple[Point, torch.Tensor] | None:
        """The model and the multipliers after the step; None where the step was too long."""

        def check(intermediate_result: OptimizeResult) -> None:
            unsolved = 0.5 * float(self.force @ self.force) / self.loss.penalty.curvature
            if unsolved < _SOLVED * monitor.goal or too_long() or monitor.late:
                raise StopIteration

        limit = self.loss.penalty.steepest
        room = [((s * limit - self.dual) / self.scale).cpu().numpy() for s in (-1.0, 1.0)]
        found = minimize(
            self.value_and_gradient,
            np.zeros(len(self.dual)),
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(*room) if isfinite(limit) else None,
            callback=check,
            options={"maxiter": _MOST_PASSES, "maxcor": 20, "ftol": 0.0, "gtol": 0.0},
        )
        change = self.change(found.x)
        point = self.problem.attempt(self.moved(change))
        return None if point is None else (point, self.dual + change)

    def value_and_gradient(self, scaled: Array) -> tuple[float, Array]:
        """The negative dual and its gradient."""
        change, observations = self.change(scaled), self.loss.observations
        dual, total = self.dual + change, self.problem.total
        marginals, log_partition = self.problem.inference.rough_marginals(self.moved(change), total)
        value = 0.5 * self.loss.penalty.curvature * float(dual @ dual)
        value += float(dual @ observations.target) + total / self.step * log_partition
        self.force = self.loss.penalty.curvature * dual - observations.residual(marginals)
        return value, (self.scale * self.force).cpu().numpy().astype(np.float64)

    def change(self, scaled: Array) -> torch.Tensor:
        """The change of the multipliers, from units of the dual's own curvature."""
        return self.scale * torch.as_tensor(scaled).to(self.scale)

    def moved(self, change: torch.Tensor) -> torch.Tensor:
        return self.potentials - self.step * self.loss.observations.adjoint(change)
