"""Accelerated mirror descent on a GPU, whose state the host reads only once in several steps."""

from __future__ import annotations

import time
from typing import NamedTuple

from pgmkit.estimation.kept_steps import steps_of
from pgmkit.estimation.measured_objective import MeasuredObjective
from pgmkit.estimation.problem import Monitor, Point, Problem, read
from pgmkit.estimation.tensor_steps import Steps, start_at
from pgmkit.losses import MeasuredLoss
from pgmkit.runtime.iterations import WINDOW
from pgmkit.runtime.precision import HALVINGS

_STEPS = WINDOW
"""The number of steps on the device between two reads by the host."""


def can_search_on_device(problem: Problem) -> bool:
    """Return True if several steps can be started before the first is finished: the device is a GPU
    on which no pass has failed, and the loss is not a user's function.
    """
    return isinstance(problem.loss, MeasuredLoss) and not problem.inference.waits


def device_search(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise from ``start`` with the steps of ``accelerated``, and end at the same step. If that
    step lies between two reads, the steps since the last read are repeated up to it.

    If steps keep failing their test, or passes in linear space fail, the point reached is returned
    and ``monitor.stopped`` stays empty; a search with passes in log space may then continue.
    """
    assert isinstance(problem.loss, MeasuredLoss)
    objective = MeasuredObjective(problem, problem.loss)
    with steps_of(objective, start_at(objective, objective.at(start))) as steps:
        return _search(problem, start, monitor, DeviceSearch(steps))


def _search(problem: Problem, point: Point, monitor: Monitor, search: DeviceSearch) -> Point:
    stops = monitor.record(point, problem.loss.value(point.marginals))
    while not stops:
        begun = time.perf_counter()
        read_back = search.advance()
        problem.pass_seconds[:] = [time.perf_counter() - begun]
        if read_back.stuck:
            break
        if not read_back.iterates:
            continue
        *before, last = read_back.iterates
        place = next((each for each in before if not monitor.pass_by(each.loss)), last)
        if place is not last:
            read_back = search.repeat(place.tries)
            if not read_back.iterates:  # the repeated passes were rounded differently
                continue
        point = read_back.point.copied()
        stops = monitor.record(point, read_back.iterates[-1].loss)
    return point


class _Iterate(NamedTuple):
    """An accepted step: how many steps have been tried since the last read, and the loss after
    it.
    """

    tries: int
    loss: float


class _Reading(NamedTuple):
    """The state as the host has read it, with the steps accepted since the last read. The next step
    on the device overwrites ``point``.
    """

    point: Point
    iterates: list[_Iterate]
    stuck: bool
    """True if so many steps have failed in a row that further ones are useless."""


class DeviceSearch:
    """A search on a device: its present state, and a copy of the state before the last call of
    ``advance``.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._before = self._steps.state.copied()

    def advance(self) -> _Reading:
        """Try _STEPS more steps, and return the state after them. The state before them is kept for
        ``repeat``.
        """
        self._before.take(self._steps.state)
        return self._tried(_STEPS)

    def repeat(self, tries: int) -> _Reading:
        """Restore the state before the last call of ``advance``, try the first ``tries`` of its
        steps again, and return the state after these.
        """
        self._steps.state.take(self._before)
        return self._tried(tries)

    def _tried(self, count: int) -> _Reading:
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
        return _Reading(point, iterates, halvings[-1] > HALVINGS)
