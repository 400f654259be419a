"""The methods of estimation by name, and the choice among them that "auto" stands for.

With "auto", another method may continue where ``accelerated`` has ended without a certificate.
"""

from __future__ import annotations

from collections.abc import Callable

from pgmkit.errors import InvalidInput
from pgmkit.estimation.accelerated_mirror_descent import accelerated
from pgmkit.estimation.dual_averaging import dual_averaging
from pgmkit.estimation.lbfgs import lbfgs
from pgmkit.estimation.mirror_descent import NO_DESCENT, mirror_descent
from pgmkit.estimation.newton import is_small, is_tiny, newton
from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.estimation.proximal import can_polish, polish, proximal
from pgmkit.losses import MeasuredLoss
from pgmkit.runtime.progress import OUT_OF_TIME

Method = Callable[[Problem, Point, Monitor], Point]
METHODS: dict[str, Method] = {
    "mirror_descent": mirror_descent,
    "dual_averaging": dual_averaging,
    "accelerated": accelerated,
    "lbfgs": lbfgs,
    "newton": newton,
    "proximal": proximal,
}


def minimise(problem: Problem, start: Point, monitor: Monitor, name: str) -> Point:
    """Minimise by the method of this name, and return the best point found. Raises InvalidInput if
    the method does not fit the problem.
    """
    _check_method(problem, name)
    first = name if name != "auto" else "newton" if is_tiny(problem) else "accelerated"
    method, stages = METHODS[first], problem.loss.smooth_stages()
    # ``accelerated`` gets few iterations if proximal steps follow. Where it runs on a GPU without
    # waiting for the host, it gets all, since an iteration costs less there than a proximal step.
    brief = problem.inference.waits and can_polish(problem) and not is_small(problem)
    if name == "auto" and first == "accelerated" and brief:
        monitor.max_iterations = monitor.iterations + monitor.patience
    if first == "newton" or stages == [problem.loss]:
        method(problem, start, monitor)
    else:
        # The stages are smooth lower bounds of the loss that approach it. Each search starts from
        # the last result.
        for stage in stages:
            inner = monitor.of_stage(stage)
            inner.report = monitor.report
            method(inner.problem, start, inner)
            assert inner.best is not None
            start = inner.best
            monitor.iterations += inner.iterations
            monitor.raise_bound(inner.bound)
            monitor.stopped = inner.stopped
            value = problem.loss.value(start.marginals)
            if value < monitor.best_loss:
                monitor.best, monitor.best_loss = start, value
    if name == "auto" and first != "newton":
        finish(problem, monitor)
    if monitor.stopped == NO_DESCENT and problem.late():
        monitor.stopped = OUT_OF_TIME
    assert monitor.best is not None
    return monitor.best


def finish(problem: Problem, monitor: Monitor) -> None:
    """Continue the search of ``monitor`` from its best point, unless it is certified: with
    ``newton`` if the problem is small (``is_small``), otherwise with proximal steps (``polish``) if
    the loss is no callable and not "absolute". The result is in ``monitor``. Nothing happens if the
    time is over.
    """
    if monitor.certified or problem.late():
        return
    assert monitor.best is not None
    if is_small(problem):
        monitor.begin_stage()
        newton(problem, monitor.best, monitor)
    elif can_polish(problem):
        polish(problem, monitor.best, monitor)


def _check_method(problem: Problem, name: str) -> None:
    """Raise InvalidInput if the method ``name`` does not fit the problem: "newton" and "proximal"
    need a loss that is no callable, and "newton" needs a small problem (``is_small``).
    """
    if name in ("newton", "proximal") and not isinstance(problem.loss, MeasuredLoss):
        raise InvalidInput(
            f"method {name!r} needs a loss by name or a penalty of pgmkit.losses, got a callable; "
            'use "auto"'
        )
    if name == "newton" and not is_small(problem):
        raise InvalidInput(
            'method "newton" factorises a matrix of measured values by cells of the joint '
            'distribution, which is too large here; use "auto" or "proximal"'
        )
