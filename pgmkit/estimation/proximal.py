"""The proximal point method with a quasi-Newton method in the dual: certificates for problems of
any size.

One proximal step from p_k with potentials theta_k, of length eta, solves

    minimise  L(mu) + D(p, p_k) / eta   over all distributions p of the total,

where D is the total times the Kullback-Leibler divergence. Its dual has one multiplier u for each
measured value, and the model has the potentials theta_k - eta Q'u, with Q the measurements' matrix
in units of the noise. An inference pass gives the dual's value and gradient. L-BFGS solves it in
multipliers scaled by the diagonal of the dual's Hessian, so that its conditioning does not depend
on the noise scales and the sizes of the cells. With growing eta the lower bound from the
multipliers converges to the loss, whereas the bounds from cuts at the models do not come as close.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite

import numpy as np
import torch
from scipy.optimize import Bounds, OptimizeResult, minimize

from pgmkit.errors import NumericalFailure
from pgmkit.estimation.certificate import ascent
from pgmkit.estimation.limited_memory import minimum
from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.losses import MeasuredLoss
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import FEW_ROUNDS, MOST_ROUNDS, WINDOW

_REACH = 30.0
"""The first step is this many times shorter than the one at which a nat of entropy weighs as much
as the gap, so that it is easy to solve.
"""
_ROUGHLY = 0.3
"""The share of the goal that a step may leave unsolved. On large cyclic problems a tenth takes a
quarter more passes; with a half, the steps whose passes need log space become harder.
"""
_ASCENTS = FEW_ROUNDS
"""The number of steps of ``ascent`` that take about as long as a proximal step, which halves the
gap. Ascent continues as long as this number of steps, at the rate of the last one, would also halve
the gap, or close it.
"""


def proximal(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise a squared or Huber loss from ``start``, which should be close to the optimum, and
    return the last point.
    """
    return _search(problem, start, monitor, lambda: False)


def polish(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Run ``proximal``, but end it when more than ``MOST_ROUNDS`` of its passes had to be computed
    in log space, however many were computed in linear space.

    A pass in log space takes three to five times as long as one in linear space. One difficult step
    takes about ``MOST_ROUNDS`` of them.
    """
    most = problem.inference.log_passes + MOST_ROUNDS
    return _search(problem, start, monitor, lambda: problem.inference.log_passes > most)


def can_polish(problem: Problem) -> bool:
    """Return True if proximal steps can be used: the loss is no callable, and not "absolute"."""
    return isinstance(problem.loss, MeasuredLoss) and problem.loss.penalty.curvature > 0


def _search(
    problem: Problem, start: Point, monitor: Monitor, too_long: Callable[[], bool]
) -> Point:
    """Take proximal steps until the monitor stops, or ``too_long()`` is True because steps take too
    much time. Return the last point.
    """
    loss = problem.loss
    assert isinstance(loss, MeasuredLoss)
    monitor.begin_stage()
    point, value = start, loss.value(start.marginals)
    dual = loss.penalty.slope(loss.observations.residual(point.marginals))
    step = problem.total / (_REACH * max(min(monitor.gap, value - loss.least), monitor.goal))
    while not monitor.record(point, value) and not too_long():
        found = _Subproblem(problem, loss, point, dual, step).solve(monitor, too_long)
        reached = inf if found is None else loss.value(found[0].marginals)
        if found is None or reached > monitor.best_loss + monitor.goal:
            step /= 2
            continue
        fallen = value - reached
        (point, dual), value = found, reached
        if fallen <= monitor.goal / 4:  # while the loss falls by more, it is too high to certify
            _certify(problem, loss, dual, monitor)
        step *= 2
    monitor.stopped = monitor.stopped or "steps: longer ones would take too long"
    return point


def _certify(problem: Problem, loss: MeasuredLoss, dual: torch.Tensor, monitor: Monitor) -> None:
    """Raise the lower bound of the monitor by the multipliers ``dual``, and then by those that
    ``ascent`` makes of them, until the search is certified or late, or until ``_ASCENTS`` further
    steps, each as good as the last one, would neither halve the gap nor close it.
    """
    before = inf
    while not monitor.certified and not problem.late():
        bound, dual = ascent(problem.inference, loss, dual, problem.total)
        monitor.raise_bound(bound)
        gap = monitor.best_loss - bound
        later = gap * (gap / before) ** _ASCENTS
        if later > max(monitor.goal, monitor.gap / 2) and before < inf:
            break
        before = gap


class _Subproblem:
    """The dual of one proximal step of length ``step`` from the point ``centre``, with multipliers
    ``dual`` before the step. It is a smooth problem whose variable is the change of the multipliers
    divided by ``scale``.
    """

    def __init__(
        self, problem: Problem, loss: MeasuredLoss, centre: Point, dual: torch.Tensor, step: float
    ) -> None:
        self.problem, self.loss, self.dual, self.step = problem, loss, dual, step
        shifted = centre.potentials - step * loss.observations.adjoint(dual)
        self.potentials = shifted + problem.inference.balancing(shifted)
        variances = loss.observations.variances(centre.marginals, problem.total)
        self.scale = (loss.penalty.curvature + step * variances).rsqrt()
        self.force = torch.zeros_like(dual)

    def solve(
        self, monitor: Monitor, too_long: Callable[[], bool]
    ) -> tuple[Point, torch.Tensor] | None:
        """Return the point and the multipliers after the step; None if the step was too long for
        inference, or if the time is over. The search for the multipliers ends when less than
        ``_ROUGHLY`` times the goal is left unsolved, when ``too_long()`` is True or when the time
        is over.
        """

        def settled() -> bool:
            unsolved = 0.5 * float(self.force @ self.force) / self.loss.penalty.curvature
            return unsolved < _ROUGHLY * monitor.goal or too_long() or self.problem.late()

        if isfinite(self.loss.penalty.steepest):
            scaled = self.bounded_minimum(settled)
        else:
            scaled = minimum(self.value_and_gradient, torch.zeros_like(self.dual), settled)
        change = self.scale * scaled
        point = self.problem.attempt(self.moved(change))
        return None if point is None else (point, self.dual + change)

    def bounded_minimum(self, settled: Callable[[], bool]) -> torch.Tensor:
        """Return the scaled change of the multipliers for a penalty whose slope is bounded, as the
        multipliers then are. The search ends when ``settled()`` returns True, or after
        ``2 * MOST_ROUNDS`` iterations.
        """

        def on_host(scaled: Array) -> tuple[float, Array]:
            value, gradient = self.value_and_gradient(torch.as_tensor(scaled).to(self.scale))
            return value, gradient.cpu().numpy().astype(np.float64)

        def check(intermediate_result: OptimizeResult) -> None:
            if settled():
                raise StopIteration

        limit = self.loss.penalty.steepest
        room = [((s * limit - self.dual) / self.scale).cpu().numpy() for s in (-1.0, 1.0)]
        found = minimize(
            on_host,
            np.zeros(len(self.dual)),
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(*room),
            callback=check,
            options={"maxiter": 2 * MOST_ROUNDS, "maxcor": WINDOW, "ftol": 0.0, "gtol": 0.0},
        )
        return torch.as_tensor(found.x).to(self.scale)

    def value_and_gradient(self, scaled: torch.Tensor) -> tuple[float, torch.Tensor]:
        """Return the negative dual objective and its gradient; infinity and an arbitrary gradient
        if the step is so long that inference fails. Also keep the gradient with respect to the
        unscaled multipliers as ``force``, unless inference fails.
        """
        change, observations = self.scale * scaled, self.loss.observations
        dual, total = self.dual + change, self.problem.total
        try:
            found = self.problem.inference.fast_marginals(self.moved(change), total)
        except NumericalFailure:  # the step is too long
            return inf, scaled
        marginals, log_partition = found
        value = 0.5 * self.loss.penalty.curvature * float(dual @ dual)
        value += float(dual @ observations.target) + total / self.step * log_partition
        self.force = self.loss.penalty.curvature * dual - observations.residual(marginals)
        return value, self.scale * self.force

    def moved(self, change: torch.Tensor) -> torch.Tensor:
        return self.potentials - self.step * self.loss.observations.adjoint(change)
