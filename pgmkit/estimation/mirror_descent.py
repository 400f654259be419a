"""The proximal algorithm (McKenna et al., 2019, A.1): entropic mirror descent with line search."""

from __future__ import annotations

import torch

from pgmkit.estimation.problem import Monitor, Point, Problem

NO_DESCENT = "precision: no step lowers the loss beyond rounding"
_GROWTH = 1.5
_MOST_HALVINGS = 40


def mirror_descent(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """mu <- mu(theta - eta grad L(mu)); a step must pass the Bregman test of ``proximal_step``."""
    point = start
    loss, gradient = problem.loss.value_and_gradient(point.marginals)
    step = first_step(gradient, point)
    while not monitor.record(point, loss):
        taken = proximal_step(problem, point, loss, gradient, _GROWTH * step)
        if taken is None:
            monitor.stopped = NO_DESCENT
            break
        point, loss, step = taken
        loss, gradient = problem.loss.value_and_gradient(point.marginals)
    return point


def first_step(gradient: torch.Tensor, point: Point) -> float:
    """A step that moves no potential by more than one unit."""
    largest = float(gradient.abs().max())
    return 1.0 / largest if largest > 0 else 1.0


def proximal_step(
    problem: Problem, origin: Point, loss: float, gradient: torch.Tensor, step: float
) -> tuple[Point, float, float] | None:
    """Point, loss and step of mu(theta - step * gradient), halved until it passes the test

    L(new) <= L(old) + <gradient, new - old> + D(new, old) / step,

    or None when rounding hides any descent.
    """
    precision = torch.finfo(gradient.dtype).eps
    for _ in range(_MOST_HALVINGS):
        new = problem.attempt(origin.potentials - step * gradient)
        if new is None:
            step /= 2
            continue
        reached = problem.loss.value(new.marginals)
        linear = loss + float(gradient @ (new.marginals - origin.marginals))
        allowed = linear + problem.divergence(new, origin) / step
        if reached <= allowed + 4 * precision * abs(loss):
            return new, reached, step
        step /= 2
    return None
