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

from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, OptimizeResult, minimize

from pgmkit.estimation.certificate import lower_bound
from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.losses import MeasuredLoss

Array = NDArray[np.float64]

_GROWTH = 4.0
_MOST_PASSES = 200
_REACH = 0.3
"""The first step: the entropy may weigh this share of the gap for each nat."""


def proximal(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise a measured loss from ``start``, best one that is close to the optimum."""
    loss = problem.loss
    assert isinstance(loss, MeasuredLoss)
    point = start
    dual = loss.penalty.slope(loss.observations.residual(point.marginals))
    gap = min(monitor.gap, problem.loss.value(point.marginals) - loss.least)
    step = problem.total / (_REACH * max(gap, monitor.goal))
    while not monitor.saw(point, loss.value(point.marginals)):
        found = _DualStep(problem, loss, point, step, monitor).solve(dual)
        if found is None:
            step /= _GROWTH
            continue
        point, dual = found
        monitor.raise_bound(lower_bound(problem.inference, loss.cut_of_dual(dual), problem.total))
        step *= _GROWTH
    return point


@dataclass
class _DualStep:
    """One proximal step from ``centre``, as a smooth problem in the change of the multipliers."""

    problem: Problem
    loss: MeasuredLoss
    centre: Point
    step: float
    monitor: Monitor

    def solve(self, dual: torch.Tensor) -> tuple[Point, torch.Tensor] | None:
        """The model and the multipliers after the step; None where the step was too long."""
        self.dual, inference = dual, self.problem.inference
        shifted = self.centre.potentials - self.step * self.loss.observations.adjoint(dual)
        self.potentials = inference.balanced(shifted)
        variances = self.loss.observations.variances(self.centre.marginals, self.problem.total)
        self.curvature = self.loss.penalty.curvature + self.step * variances
        self.scale = self.curvature.clamp_min(1e-300).rsqrt()
        self.passes, self.reached = 0, self.centre
        limit = self.loss.penalty.steepest
        room = [((sign * limit - dual) / self.scale).cpu().numpy() for sign in (-1.0, 1.0)]
        found = minimize(
            self.objective,
            np.zeros(len(dual)),
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(*room) if isfinite(limit) else None,
            callback=self.check,
            options={"maxiter": _MOST_PASSES, "maxcor": 20, "ftol": 0.0, "gtol": 0.0},
        )
        change = self.change(found.x)
        point = self.problem.attempt(self.moved(change))
        return None if point is None else (point, dual + change)

    def change(self, scaled: Array) -> torch.Tensor:
        return self.scale * torch.as_tensor(scaled).to(self.scale)

    def moved(self, change: torch.Tensor) -> torch.Tensor:
        return self.potentials - self.step * self.loss.observations.adjoint(change)

    def objective(self, scaled: Array) -> tuple[float, Array]:
        """The negative dual and its gradient."""
        change = self.change(scaled)
        dual, target = self.dual + change, self.loss.observations.target
        point = self.problem.point(self.moved(change))
        self.passes += 1
        value = 0.5 * self.loss.penalty.curvature * float(dual @ dual) + float(dual @ target)
        value += self.problem.total / self.step * point.log_partition
        residual = self.loss.observations.residual(point.marginals)
        self.force = self.loss.penalty.curvature * dual - residual
        return value, (self.scale * self.force).cpu().numpy().astype(np.float64)

    def check(self, intermediate_result: OptimizeResult) -> None:
        unsolved = 0.5 * float(self.force @ self.force) / self.loss.penalty.curvature
        if unsolved < 0.1 * self.monitor.goal or self.monitor.late:
            raise StopIteration
