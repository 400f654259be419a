"""Accelerated mirror descent on a card: the host looks at it every few steps only."""

from __future__ import annotations

import time

import torch

from pgmkit.estimation.problem import Monitor, Point, Problem, read
from pgmkit.estimation.tensor_steps import MOST_HALVINGS, Points, Steps, start_at
from pgmkit.losses import MeasuredLoss

__all__ = ["can_search_on_card", "card_search"]

_STEPS = 8
"""Between two looks: a search has 30 and more, and some too many cost little."""


def can_search_on_card(problem: Problem) -> bool:
    """Whether steps need no wait: not where a pass has failed, or a loss is somebody's own code."""
    return isinstance(problem.loss, MeasuredLoss) and not problem.inference.waits


def card_search(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise from ``start``; ``monitor.stopped`` is empty where no step passes its test any
    more, be it that passes fail: those of log space may find one.
    """
    search = CardSearch(problem, start)
    point, losses = start, [problem.loss.value(start.marginals)]
    while not monitor.record_several(point, losses):
        begun = time.perf_counter()
        found = search.steps(_STEPS)
        if found is None:
            break
        point, losses = found
        problem.pass_seconds[:] = [time.perf_counter() - begun]
    return point


class CardSearch:
    """The search's state on the card, which every step overwrites."""

    def __init__(self, problem: Problem, start: Point) -> None:
        assert isinstance(problem.loss, MeasuredLoss)
        objective = MeasuredObjective(problem, problem.loss)
        self._steps = Steps(objective, start_at(objective, objective.at(start)))

    def steps(self, count: int) -> tuple[Point, list[float]] | None:
        """The point after so many more steps, and the loss after each: one look. None where the
        step has become so short that it says nothing.
        """
        losses, point = [], self._steps.state.point
        for _ in range(count):
            self._steps.take()
            losses.append(point.loss.clone())
        halvings, log_partition, *found = read(
            self._steps.state.halvings, point.log_partition, *losses
        )
        if halvings > MOST_HALVINGS:
            return None
        return Point(point.potentials.clone(), point.marginals.clone(), log_partition), found


class MeasuredObjective:
    """A measured loss as the steps take it."""

    def __init__(self, problem: Problem, loss: MeasuredLoss) -> None:
        self._inference, self._total = problem.inference, problem.total
        self._loss = loss
        self.totals = torch.full(
            (), problem.total, dtype=torch.float64, device=self._inference.device
        )

    def at(self, point: Point) -> Points:
        """A point that is known."""
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
