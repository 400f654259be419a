"""The proximal algorithm (McKenna et al., 2019, A.1): entropic mirror descent with line search."""

from __future__ import annotations

from math import isnan, nan
from typing import NamedTuple

import torch

from pgmkit.estimation.problem import Monitor, Point, Problem, Scalar, read
from pgmkit.losses import dot
from pgmkit.runtime.precision import HALVINGS

NO_DESCENT = "precision: no step lowers the loss beyond rounding"
FIRST_GROWTH, GROWTH = 2.0, 1.1
"""The factors by which steps grow: until one fails its test, and afterwards."""


def mirror_descent(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise by mu <- mu(theta - eta grad L(mu)), where mu(theta) are the marginals of potentials
    theta. Each step eta must pass the Bregman test of ``proximal_step``.
    """
    point = start
    loss, gradient = problem.loss.value_and_gradient(point.marginals)
    step, growth = first_step(gradient, point), FIRST_GROWTH
    while not monitor.record(point, loss):
        tried = step * growth
        taken = proximal_step(problem, point, loss, gradient, tried)
        if taken is None:
            monitor.stopped = NO_DESCENT
            break
        point, loss, step = taken
        growth = growth if step == tried else GROWTH
        _, gradient = problem.loss.scalar_and_gradient(point.marginals)
    return point


def first_step(gradient: torch.Tensor, point: Point) -> float:
    """Return the step that changes the largest potential by one unit."""
    largest = float(gradient.abs().max())
    return 1.0 / largest if largest > 0 else 1.0


def proximal_step(
    problem: Problem, origin: Point, loss: Scalar, gradient: torch.Tensor, step: float
) -> tuple[Point, float, float] | None:
    """Return the point mu(theta - step * gradient), its loss, and the step, which is halved until
    it passes the test

        L(new) <= L(old) + <gradient, new - old> + D(new, old) / step,

    where D is the Bregman divergence. Return None if rounding hides any descent, the time is over,
    or the pass at ``origin`` had failed. Passes, losses and products are started together and read
    from a GPU at once.
    """
    precision = torch.finfo(gradient.dtype).eps
    for _ in range(HALVINGS):
        new = problem.begin(origin.potentials - step * gradient)
        compared = None if new is None else _compare(problem, origin, loss, gradient, new)
        if new is not None and compared is not None and isnan(compared.log_partition):
            problem.inference.waits = True
            if isnan(read(origin.log_partition)[0]):
                return None
            new = problem.attempt(new.potentials)
            compared = None if new is None else _compare(problem, origin, loss, gradient, new)
        if new is not None and compared is not None:
            allowed = compared.divergence / step
            if compared.excess <= allowed + 4 * precision * abs(compared.loss):
                taken = Point(new.potentials, new.marginals, compared.log_partition)
                return taken, compared.reached, step
        step /= 2
    return None


class _Comparison(NamedTuple):
    """The comparison of two points, as numbers that the host has read.

    ``loss`` is that of the old point and ``reached`` that of the new one. ``excess`` is L(new) -
    L(old) - <gradient, new - old>. ``log_partition`` is that of the new point, NaN if the pass of
    either point failed.
    """

    loss: float
    reached: float
    excess: float
    divergence: float
    log_partition: float


def _compare(
    problem: Problem, origin: Point, loss: Scalar, gradient: torch.Tensor, new: Point
) -> _Comparison:
    reached = problem.loss.scalar(new.marginals)
    divergence = problem.divergence(new, origin)
    rise = reached - loss - dot(gradient, new.marginals - origin.marginals)
    before, after, excess, apart, start, log_partition = read(
        loss, reached, rise, divergence, origin.log_partition, new.log_partition
    )
    known = nan if isnan(start) else log_partition
    return _Comparison(before, after, excess, apart, known)
