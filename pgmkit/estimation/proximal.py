"""The proximal point method with a quasi-Newton method in the dual: certificates for any size.

One proximal step from p_k with potentials theta_k, of length eta, solves

    minimise  L(mu) + D(p, p_k) / eta   over all distributions p of the total,

where D is the total times the Kullback-Leibler divergence. Its dual has one multiplier u for each
measured value, and the model has the potentials theta_k - eta Q'u with Q the measurements' matrix;
a pass gives the dual's value and gradient. L-BFGS-B solves it in multipliers scaled by the diagonal
of the dual's Hessian, which removes the noise scales and the sizes of the cells from its
conditioning. With growing eta the lower bound from the multipliers converges to the loss, whereas
cuts at the models stay loose.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, OptimizeResult, minimize

from pgmkit.estimation.certificate import lower_bound
from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.losses import MeasuredLoss
from pgmkit.runtime.iterations import MOST_ROUNDS, ROUGHLY_SOLVED

Array = NDArray[np.float64]

_REACH = 30.0
"""A nat of entropy weighs this many times the gap in the first step, so that the step is easy."""


def proximal(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise a squared or Huber loss from ``start``, which should be close to the optimum."""
    return _search(problem, start, monitor, lambda passes: False)


def polish(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Run ``proximal`` in linear space for as many passes as the search before it had iterations.

    These passes lower the loss; the rest that a certificate needs takes many times longer.
    """
    most, before = max(MOST_ROUNDS, monitor.iterations), problem.inference.log_passes
    return _search(
        problem,
        start,
        monitor,
        lambda passes: passes >= most or problem.inference.log_passes > before,
    )


def can_polish(problem: Problem) -> bool:
    """True if the loss is a measured one with smooth bounded multipliers, that is, not
    ``absolute``.
    """
    return isinstance(problem.loss, MeasuredLoss) and problem.loss.penalty.curvature > 0


def _search(
    problem: Problem, start: Point, monitor: Monitor, enough: Callable[[int], bool]
) -> Point:
    loss = problem.loss
    assert isinstance(loss, MeasuredLoss)
    monitor.begin_stage()
    point, value, passes = start, loss.value(start.marginals), 0
    dual = loss.penalty.slope(loss.observations.residual(point.marginals))
    gap = min(monitor.gap, value - loss.least)
    step = problem.total / (_REACH * max(gap, monitor.goal))
    while not monitor.record(point, loss.value(point.marginals)) and not enough(passes):
        subproblem = _Subproblem(problem, loss, point, dual, step)
        found = subproblem.solve(monitor, partial(_enough_after, enough, passes))
        passes += subproblem.passes
        if found is None:
            step /= 2
            continue
        point, dual = found
        monitor.raise_bound(lower_bound(problem.inference, loss.cut_of_dual(dual), problem.total))
        step *= 2
    monitor.stopped = monitor.stopped or f"passes: {passes} more have not closed the gap"
    return point


def _enough_after(enough: Callable[[int], bool], before: int, passes: int) -> bool:
    return enough(before + passes)


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
        self.passes = 0

    def solve(
        self, monitor: Monitor, enough: Callable[[int], bool]
    ) -> tuple[Point, torch.Tensor] | None:
        """Return the model and the multipliers after the step; None if the step was too long."""

        def check(intermediate_result: OptimizeResult) -> None:
            unsolved = 0.5 * float(self.force @ self.force) / self.loss.penalty.curvature
            if unsolved < ROUGHLY_SOLVED * monitor.goal or enough(self.passes) or monitor.late:
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
            options={"maxiter": 2 * MOST_ROUNDS, "maxcor": 20, "ftol": 0.0, "gtol": 0.0},
        )
        change = self.change(found.x)
        point = self.problem.attempt(self.moved(change))
        return None if point is None else (point, self.dual + change)

    def value_and_gradient(self, scaled: Array) -> tuple[float, Array]:
        """Return the negative dual and its gradient."""
        change, observations = self.change(scaled), self.loss.observations
        dual, total = self.dual + change, self.problem.total
        marginals, log_partition = self.problem.inference.rough_marginals(self.moved(change), total)
        self.passes += 1
        value = 0.5 * self.loss.penalty.curvature * float(dual @ dual)
        value += float(dual @ observations.target) + total / self.step * log_partition
        self.force = self.loss.penalty.curvature * dual - observations.residual(marginals)
        return value, (self.scale * self.force).cpu().numpy().astype(np.float64)

    def change(self, scaled: Array) -> torch.Tensor:
        """Return the change of the multipliers from its scaled value."""
        return self.scale * torch.as_tensor(scaled).to(self.scale)

    def moved(self, change: torch.Tensor) -> torch.Tensor:
        return self.potentials - self.step * self.loss.observations.adjoint(change)
