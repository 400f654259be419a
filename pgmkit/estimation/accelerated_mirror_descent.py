"""Mirror descent with momentum in the potentials, the default method on all but tiny problems.

Each step is an interior gradient step (Auslender and Teboulle, 2006), with a Bregman backtracking
test, from a point extrapolated along the last change of the potentials. Extrapolating potentials
instead of marginals keeps every iterate a graphical model over the measured cliques. When a step
raises the loss, the momentum is dropped (O'Donoghue and Candes, 2015). So the loss never rises, and
a step after a restart is a plain proximal step.
"""

from __future__ import annotations

from math import inf, sqrt

from pgmkit.estimation import mirror_descent
from pgmkit.estimation.device_search import device_search
from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.losses import MeasuredLoss


def accelerated(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise the problem's loss from ``start``, and return the last accepted point.

    On a GPU the host reads the state only once in several steps, as long as passes in linear space
    succeed there and some steps pass their test and change the potentials.
    """
    # ``device_search`` starts several steps before the first is finished. It needs an oracle on a
    # GPU with which it has not failed before (``waits``), and a loss that is no user's function.
    if isinstance(problem.loss, MeasuredLoss) and not problem.inference.waits:
        start = device_search(problem, start, monitor)
        if monitor.stopped:
            return start
        problem.inference.waits = True
    point, previous = start, start
    loss, gradient = problem.loss.value_and_gradient(point.marginals)
    step, weight, growth = mirror_descent.first_step(gradient), 1.0, mirror_descent.FIRST_GROWTH
    while not monitor.record(point, loss):
        # The gradient is taken at theta_k + (t_k - 1) / t_(k+1) * (theta_k - theta_(k-1)), where
        # t_(k+1) = (1 + sqrt(1 + 4 t_k^2)) / 2 (`weight` is t_k).
        next_weight = (1 + sqrt(1 + 4 * weight * weight)) / 2
        momentum = (weight - 1) / next_weight
        origin: Point | None = point
        origin_loss, taken = loss, None
        if momentum > 0:
            ahead = momentum * (point.potentials - previous.potentials)
            origin = problem.attempt(point.potentials + ahead)
            if origin is not None:
                origin_loss, gradient = problem.loss.value_and_gradient(origin.marginals)
        if origin is not None:
            taken = mirror_descent.proximal_step(
                problem, origin, origin_loss, gradient, step * growth
            )
        if taken is None and momentum == 0:
            monitor.stopped = mirror_descent.NO_DESCENT
            break
        new, reached, accepted = taken or (point, inf, step)
        growth = growth if accepted == step * growth else mirror_descent.GROWTH
        step = accepted
        # If the step raises the loss, or there is none, the momentum ends: t_k = 1.
        if reached > loss and momentum > 0:
            weight, previous = 1.0, point
            _, gradient = problem.loss.value_and_gradient(point.marginals)
            continue
        previous, point, loss, weight = point, new, reached, next_weight
    return point
