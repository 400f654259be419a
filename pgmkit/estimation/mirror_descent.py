"""The proximal algorithm (McKenna et al., 2019, A.1): entropic mirror descent with line search."""

from __future__ import annotations

import torch

from pgmkit.estimation.problem import Monitor, Point, Problem


def mirror_descent(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """mu <- mu(theta - eta grad L(mu)); a step must pass the Bregman test of ``proximal_step``."""
    point, step = start, None
    loss, gradient = problem.loss.value_and_gradient(point.marginals)
    while not monitor.saw(point, loss):
        step = first_step(gradient, point) if step is None else 1.5 * step
        point, loss, step = proximal_step(problem, point, loss, gradient, step)
        loss, gradient = problem.loss.value_and_gradient(point.marginals)
    return point


def first_step(gradient: torch.Tensor, point: Point) -> float:
    """A step that moves no potential by more than one unit."""
    largest = float(gradient.abs().max())
    return 1.0 / largest if largest > 0 else 1.0


def proximal_step(
    problem: Problem, origin: Point, loss: float, gradient: torch.Tensor, step: float
) -> tuple[Point, float, float]:
    """The point mu(theta - step * gradient) for the largest halving of ``step`` that passes the
    test

    L(new) <= L(old) + <gradient, new - old> + D(new, old) / step.
    """
    slack = 1e-12 * abs(loss)
    while True:
        new = problem.point(origin.potentials - step * gradient)
        reached = problem.loss.value(new.marginals)
        linear = loss + float(gradient @ (new.marginals - origin.marginals))
        if reached <= linear + problem.divergence(new, origin) / step + slack:
            return new, reached, step
        step /= 2
        if step < 1e-300:
            return origin, loss, step
