"""The estimation problem, its points and its stopping rule, which all methods share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import torch

from pgmkit.errors import NumericalFailure
from pgmkit.estimation.certificate import lower_bound
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.losses import Cut, Loss, dot
from pgmkit.runtime.iterations import MOST_ITERATIONS, PATIENCE
from pgmkit.runtime.progress import CERTIFIED, OUT_OF_TIME, Progress

_MOST_ITERATIONS = 20 * MOST_ITERATIONS
"""A limit on a method's iterations that no known search reaches, since it ends for another reason
before.
"""


@dataclass(frozen=True)
class Point:
    """Potentials with their marginals, in counts, and log partition function. Potentials and
    marginals are flat over the cliques' cells.
    """

    potentials: torch.Tensor
    marginals: torch.Tensor
    log_partition: float

    def copied(self) -> Point:
        """Return the same point in memory of its own."""
        return replace(self, potentials=self.potentials.clone(), marginals=self.marginals.clone())


@dataclass(frozen=True)
class Problem:
    """The problem of minimising ``loss`` over all marginals, with sum ``total``, of distributions
    on the oracle's cliques.
    """

    inference: MarginalOracle
    loss: Loss
    total: float
    deadline: float = inf
    constant: float = 0.0
    """The constant by which the loss of the given measurements exceeds ``loss``, that of the
    measurements combined by clique.
    """
    pass_seconds: list[float] = field(default_factory=lambda: [0.0])
    """A list of one number: the seconds that the last pass took (or, where a GPU runs several steps
    between two reads, those steps).
    """

    def point(self, potentials: torch.Tensor) -> Point:
        """Return the point with these potentials, by one pass of the marginal oracle. Raises
        NumericalFailure if their log partition function cannot be computed.
        """
        begun = time.perf_counter()
        marginals, log_partition = self.inference.fast_marginals(potentials, self.total)
        self.pass_seconds[:] = [time.perf_counter() - begun]
        return Point(potentials, marginals, log_partition)

    def late(self) -> bool:
        """Return True if a pass as long as the last one would end after the ``deadline``, a time of
        ``time.perf_counter``.
        """
        return time.perf_counter() + self.pass_seconds[-1] >= self.deadline

    def attempt(self, potentials: torch.Tensor) -> Point | None:
        """Return the point with these potentials. Return None if their log partition function
        cannot be computed, as after too long a step, or if the problem is ``late``; a line search
        then ends or shortens its step.
        """
        if self.late():
            return None
        try:
            return self.point(potentials)
        except NumericalFailure:
            return None

    def divergence(self, new: Point, old: Point) -> float:
        """Return the Bregman divergence of the negative entropy: the total times KL(new || old)."""
        moved = float(dot(new.potentials - old.potentials, new.marginals))
        return moved - self.total * (new.log_partition - old.log_partition)


class Monitor:
    """The record of a search: it keeps the best point and lower bound, and decides when the search
    stops: with a certificate, without progress, out of time, or after ``max_iterations``.

    The search is certified when ``best loss - best bound <= tolerance * loss.unit``, up to the
    effect of the marginals' rounding on the loss. Progress has stalled when the best loss has
    fallen by at most a quarter of ``tolerance * loss.unit`` over the last ``max(patience, n /
    5)`` of the n iterations since ``begin_stage``; a method may set a longer patience.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        tolerance: float,
        report: Callable[[Progress], None] | None,
        started: float,
    ) -> None:
        self.problem, self.report = problem, report
        self.goal = tolerance * problem.loss.unit
        self.started, self.max_iterations = started, _MOST_ITERATIONS
        self.best: Point | None = None
        self.best_loss, self.bound = inf, problem.loss.least
        self.rounding = 0.0
        self.iterations = 0
        self.stopped = ""
        self.patience = PATIENCE
        self._history: list[float] = []
        self._check_at = 8
        self._average: Cut | None = None
        self._averaged = 0

    def of_stage(self, loss: Loss) -> Monitor:
        """Return a monitor, without a report, of the search for the minimum of another ``loss``
        with the same goal and deadline.
        """
        problem, tolerance = replace(self.problem, loss=loss), self.goal / loss.unit
        return Monitor(problem, tolerance=tolerance, report=None, started=time.perf_counter())

    @property
    def gap(self) -> float:
        return max(0.0, self.best_loss - self.bound)

    def raise_bound(self, bound: float) -> None:
        self.bound = max(self.bound, bound)

    @property
    def certified(self) -> bool:
        """True if the gap exceeds the goal by no more than the effect of rounding on the loss."""
        if self.best is not None and self.gap <= self.goal + self.rounding:
            self.rounding = self.problem.loss.rounding(self.best.marginals)
        return self.gap <= self.goal + self.rounding

    def begin_stage(self) -> None:
        """Prepare for the search by another method: forget the history of losses and the reason for
        stopping, allow ``_MOST_ITERATIONS`` more iterations, and compute no bound in the first
        eight. The count of iterations continues.
        """
        self._history, self.stopped = [], ""
        self.max_iterations = self.iterations + _MOST_ITERATIONS
        self._check_at = self.iterations + 8

    def record(self, point: Point, loss: float) -> bool:
        """Record an iterate, raise the bound at ever longer intervals, and report the progress.
        Return True if the search should stop; ``stopped`` then has the reason.
        """
        self.iterations += 1
        if loss < self.best_loss or self.best is None:
            self.best, self.best_loss = point, loss
        self._history.append(self.best_loss)
        if self.iterations >= self._check_at and self._settled and not self.problem.late():
            self.certify(point)
            self._check_at = int(self.iterations * 1.3) + 4
        if self.report is not None:
            seconds = time.perf_counter() - self.started
            shown = loss + self.problem.constant, self.best_loss + self.problem.constant
            self.report(Progress(self.iterations, seconds, *shown, self.gap))
        self.stopped = self._reason()
        return bool(self.stopped)

    def pass_by(self, loss: float) -> bool:
        """Record an iterate of which only the loss is known, and return True. If the iterate would
        end the search, or a bound is to be computed at it, record nothing and return False.
        """
        best, self.best_loss = self.best_loss, min(self.best_loss, loss)
        self.iterations += 1
        self._history.append(min(loss, *self._history[-1:]))
        due = self.iterations >= self._check_at and self._settled
        passed = not due and not self._reason()
        self.best_loss = best
        if not passed:
            self.iterations -= 1
            self._history.pop()
        return passed

    @property
    def _settled(self) -> bool:
        """True if the last iteration lowered the best loss by at most the goal, so that a higher
        lower bound could end the search; also before the second iteration.
        """
        return len(self._history) < 2 or self._history[-2] - self._history[-1] <= self.goal

    def certify(self, point: Point) -> None:
        """Compute lower bounds on the loss from the cut (an affine function below the loss,
        ``losses.Cut``) at this point and from the average of all cuts so far, in which later ones
        weigh more, and keep the highest bound of all. Compute the effect of rounding on the best
        loss anew.
        """
        assert self.best is not None
        self.rounding = self.problem.loss.rounding(self.best.marginals)
        cut = self.problem.loss.cut(point.marginals)
        self._averaged += 1
        before = self._average
        self._average = cut if before is None else before.blend(cut, 2 / (1 + self._averaged))
        for candidate in (cut, self._average):
            self.raise_bound(lower_bound(self.problem.inference, candidate, self.problem.total))

    def _reason(self) -> str:
        if self.certified:
            return CERTIFIED
        window = max(self.patience, len(self._history) // 5)
        if len(self._history) > window:
            gained = self._history[-1 - window] - self._history[-1]
            if gained <= self.goal / 4:
                return f"progress: the loss fell by {gained:.3g} over the last {window} iterations"
        if self.problem.late():
            return OUT_OF_TIME
        if self.iterations >= self.max_iterations:
            return f"iterations: {self.max_iterations} reached"
        return ""
