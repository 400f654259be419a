"""The proximal algorithm (McKenna et al., 2019, A.1): entropic mirror descent with line search."""

from __future__ import annotations

import torch

from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.losses import dot
from pgmkit.runtime.precision import HALVINGS

NO_DESCENT = "precision: no step lowers the loss beyond rounding"
FIRST_GROWTH, GROWTH = 2.0, 1.1
"""The factors by which steps grow: until one fails its test, and afterwards."""


def mirror_descent(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise by mu <- mu(theta - eta grad L(mu)), where mu(theta) are the marginals of potentials
    theta. Each step eta must pass the Bregman test of ``proximal_step``. Return the last point.
    """
    point = start
    loss, gradient = problem.loss.value_and_gradient(point.marginals)
    step, growth = first_step(gradient), FIRST_GROWTH
    while not monitor.record(point, loss):
        tried = step * growth
        taken = proximal_step(problem, point, loss, gradient, tried)
        if taken is None:
            monitor.stopped = NO_DESCENT
            break
        point, loss, step = taken
        growth = growth if step == tried else GROWTH
        _, gradient = problem.loss.value_and_gradient(point.marginals)
    return point


def first_step(gradient: torch.Tensor) -> float:
    """Return the length of the step along minus the gradient in which the potential that changes
    most changes by one unit; 1 if the gradient is zero.
    """
    largest = float(gradient.abs().max())
    return 1.0 / largest if largest > 0 else 1.0


def proximal_step(
    problem: Problem, origin: Point, loss: float, gradient: torch.Tensor, step: float
) -> tuple[Point, float, float] | None:
    """Return the point mu(theta - step * gradient), where theta are the potentials of ``origin``,
    its loss, and the step, which is halved until it passes the test

        L(new) <= L(old) + <gradient, new - old> + D(new, old) / step,

    up to the rounding of L, where D is the Bregman divergence. ``loss`` and ``gradient`` are those
    at ``origin``. Return None if the linear term is not below zero by more than that rounding (for
    a shorter step it is even closer to zero), if none of HALVINGS steps passes the test, or if the
    time is over.
    """
    rounding = 4 * torch.finfo(gradient.dtype).eps * abs(loss)
    for _ in range(HALVINGS):
        new = problem.attempt(origin.potentials - step * gradient)
        if new is not None:
            slope = float(dot(gradient, new.marginals - origin.marginals))
            if -slope <= rounding:
                return None
            reached = problem.loss.value(new.marginals)
            if reached - loss - slope <= problem.divergence(new, origin) / step + rounding:
                return new, reached, step
        step /= 2
    return None
