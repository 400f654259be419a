"""Accelerated mirror descent on a card: the host looks at it every few steps only."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

from pgmkit.estimation.problem import Monitor, Point, Problem, read
from pgmkit.estimation.tensor_steps import Points, Steps, start_at
from pgmkit.losses import MeasuredLoss
from pgmkit.runtime.precision import HALVINGS

__all__ = ["can_search_on_card", "card_search"]

_STEPS = 8
"""The steps on the device between two looks of the host."""


def can_search_on_card(problem: Problem) -> bool:
    """True if steps need no wait: not where a pass has failed, or a loss is somebody's own code."""
    return isinstance(problem.loss, MeasuredLoss) and not problem.inference.waits


def card_search(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise from ``start``, step by step as ``accelerated`` and to the same end: where that lies
    between two looks the last steps are taken once more.

    ``monitor.stopped`` is empty where no step passes its test any more, be it that passes fail:
    those of log space may find one.
    """
    search, point = CardSearch(problem, start), start
    stops = monitor.record(start, problem.loss.value(start.marginals))
    while not stops:
        begun = time.perf_counter()
        looked = search.look()
        problem.pass_seconds[:] = [time.perf_counter() - begun]
        if looked.stuck:
            break
        if not looked.iterates:
            continue
        *before, last = looked.iterates
        place = next((each for each in before if not monitor.pass_by(each.loss)), last)
        if place is not last:
            looked = search.look_again(place.tries)
            if not looked.iterates:  # So near the end the same passes may round differently.
                continue
        point = looked.point.copied()
        stops = monitor.record(point, looked.iterates[-1].loss)
    return point


class _Iterate(NamedTuple):
    """An accepted step: the number of tries since the last look, and the loss after it."""

    tries: int
    loss: float


class _Look(NamedTuple):
    """The state that the host reads; the next step on the device overwrites its point."""

    point: Point
    iterates: list[_Iterate]
    stuck: bool
    """True if the step has become so short that it says nothing."""


class CardSearch:
    """A search on a device. It keeps the present state and a copy from before the last look."""

    def __init__(self, problem: Problem, start: Point) -> None:
        assert isinstance(problem.loss, MeasuredLoss)
        objective = MeasuredObjective(problem, problem.loss)
        self._steps = Steps(objective, start_at(objective, objective.at(start)))
        self._before = self._steps.state.copied()

    def look(self) -> _Look:
        """Try eight more steps, and return the state after them."""
        self._before.take(self._steps.state)
        return self._tried(_STEPS)

    def look_again(self, tries: int) -> _Look:
        """Return to the copy, try the first of the last steps again, and return the state then."""
        self._steps.state.take(self._before)
        return self._tried(tries)

    def _tried(self, count: int) -> _Look:
        state, numbers = self._steps.state, []
        for _ in range(count):
            self._steps.take()
            numbers += [state.point.loss.clone(), state.halvings.clone()]
        log_partition, *found = read(state.point.log_partition, *numbers)
        losses, halvings = found[::2], found[1::2]
        iterates = [
            _Iterate(tries, loss)
            for tries, (loss, failed) in enumerate(zip(losses, halvings, strict=True), 1)
            if failed == 0
        ]
        point = Point(state.point.potentials, state.point.marginals, log_partition)
        return _Look(point, iterates, halvings[-1] > HALVINGS)


class MeasuredObjective:
    """The measured loss of a problem, in the form that the steps need."""

    def __init__(self, problem: Problem, loss: MeasuredLoss) -> None:
        self._inference, self._total = problem.inference, problem.total
        self._loss = loss
        self.totals = torch.full(
            (), problem.total, dtype=torch.float64, device=self._inference.device
        )

    def at(self, point: Point) -> Points:
        """Return the given point with its residuals and its loss."""
        residual = self._loss.observations.residual(point.marginals)
        log_partition = torch.as_tensor(point.log_partition).to(self.totals)
        value = self._loss.penalty.value(residual)
        return Points(point.potentials, point.marginals, log_partition, residual, value)

    def point(self, potentials: torch.Tensor) -> Points:
        marginals, log_partition = self._inference.try_marginals(potentials, self._total)
        return self.at(Point(potentials, marginals, log_partition))

    def gradient(self, residual: torch.Tensor) -> torch.Tensor:
        return self._loss.observations.adjoint(self._loss.penalty.slope(residual))

    def excess(self, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        return self._loss.penalty.excess(new, old)
