"""Accelerated mirror descent on many problems of one structure at once.

Each set has the steps, momentum, restarts and certificate of ``accelerated_mirror_descent``, and
one pass serves all of them. A step that fails its test is tried again, half as long, in the next
round, while other sets go on; sets that have ended are left out as soon as half of them have.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import inf

import torch

from pgmkit.batches.oracle import BatchedOracle
from pgmkit.batches.problem import BatchedSquares
from pgmkit.estimation.mirror_descent import NO_DESCENT
from pgmkit.estimation.problem import CERTIFIED, OUT_OF_TIME, Point
from pgmkit.losses import ULPS
from pgmkit.marginal_oracle import MarginalOracle

__all__ = ["BatchedSearch", "Points"]

_GROWTH = 1.1
_MOST_HALVINGS = 40
_MOST_ROUNDS = 300
"""What a set needs beyond these, a method of its own finds sooner."""
_PATIENCE = 30
_EPSILON = torch.finfo(torch.float64).eps


@dataclass
class Points:
    """Rows of potentials and marginals, and what they imply; residuals are standardised."""

    potentials: torch.Tensor
    marginals: torch.Tensor
    log_partition: torch.Tensor
    residual: torch.Tensor
    loss: torch.Tensor

    def of(self, sets: torch.Tensor) -> Points:
        return Points(*(value[sets] for value in vars(self).values()))

    def where(self, chosen: torch.Tensor, others: Points) -> Points:
        """These rows where chosen, those of the others elsewhere."""
        wide = chosen.unsqueeze(1)
        pairs = zip(vars(self).values(), vars(others).values(), strict=True)
        return Points(
            *(torch.where(wide if own.ndim > 1 else chosen, own, rest) for own, rest in pairs)
        )


@dataclass
class BatchedSearch:
    """The search of all sets, one row each.

    ``bound`` and ``best`` are kept for all; a set's ``stopped`` is empty as long as it goes on.
    """

    single: MarginalOracle
    loss: BatchedSquares
    totals: torch.Tensor
    goal: float
    deadline: float = inf
    bound: torch.Tensor = field(init=False)
    best: Points = field(init=False)
    stopped: list[str] = field(init=False)
    iterations: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.oracle = BatchedOracle(self.single, len(self.totals))
        self.bound = torch.zeros_like(self.totals)
        self.stopped = [""] * len(self.totals)
        self.iterations = torch.zeros(len(self.totals), dtype=torch.int64)

    def point(self, potentials: torch.Tensor) -> Points:
        """One pass; rows without a distribution have a loss of infinity."""
        marginals, log_partition = self.oracle.marginals(potentials, self.totals)
        residual = self.loss.residual(marginals)
        loss = self.loss.value(residual).nan_to_num_(inf, inf, inf)
        return Points(potentials, marginals, log_partition, residual, loss)

    def row(self, place: int) -> Point:
        """The best point of one set."""
        best = self.best
        return Point(
            best.potentials[place], best.marginals[place], float(best.log_partition[place])
        )

    def run(self, start: Points) -> None:
        """Search from these points until every set has stopped."""
        self.best = Points(*(value.clone() for value in vars(start).values()))  # written into
        whole, self._sets = self.loss, torch.arange(len(self.totals), device=self.totals.device)
        totals, self._state = self.totals, _State.at(start, self.loss)
        rounds, check_at, history = 0, 8, [start.loss]
        while True:
            rounds += 1
            settled = self._record(rounds, history)
            if rounds >= check_at and settled and not self._late:
                self._certify()
                check_at = int(rounds * 1.3) + 4
            self._stop(rounds, history)
            left = torch.tensor([not self.stopped[i] for i in self._sets.tolist()])
            if not left.any():
                break
            if 2 * int(left.sum()) <= len(left):
                left = left.to(self._sets.device)
                self._sets = self._sets[left]
                self._state = self._state.of(left)
                self.loss, self.totals = whole.of(self._sets), totals[self._sets]
                self.oracle = BatchedOracle(self.single, len(self._sets))
                history = [losses[left] for losses in history]
            self._advance()
        self.loss, self.totals = whole, totals

    @property
    def _late(self) -> bool:
        return time.perf_counter() >= self.deadline

    def _record(self, rounds: int, history: list[torch.Tensor]) -> bool:
        """Keep what is best; whether the losses fall so slowly that a bound may end a search."""
        own, sets = self._state.point, self._sets
        better = torch.nonzero(own.loss < self.best.loss[sets]).flatten()
        for kept, new in zip(vars(self.best).values(), vars(own).values(), strict=True):
            kept[sets[better]] = new[better]
        history.append(self.best.loss[sets])
        running = torch.tensor([not self.stopped[i] for i in sets.tolist()])
        self.iterations[sets.cpu()[running]] = rounds
        return bool((history[-2] - history[-1] <= self.goal).any())

    def _certify(self) -> None:
        """Bounds from the cuts at the present points and from their averages, as in ``Monitor``."""
        state = self._state
        residual = state.point.residual
        products = residual * self.loss.target
        conjugate = self.loss.value(residual)
        cut = _Cuts(
            -conjugate - products.sum(1),
            self.loss.gradient(residual),
            conjugate + products.abs().sum(1),
        )
        state.checks += 1
        before = state.average
        state.average = cut if before is None else before.blend(cut, 2 / (1 + state.checks))
        for each in (cut, state.average):
            self._raise(each)

    def _raise(self, cut: _Cuts) -> None:
        scores = -cut.gradient
        size = cut.size + self.totals * self.oracle.peaks(scores.abs()).sum(1)
        highest = self.oracle.maximum(scores)
        found = cut.offset - self.totals * highest - ULPS * _EPSILON * size
        self.bound[self._sets] = torch.maximum(self.bound[self._sets], found.nan_to_num(-inf))

    def certified(self) -> torch.Tensor:
        """Which sets' best points are within the goal, or within what rounding may do."""
        rounding = self.loss.rounding(self.best.residual)
        return self.best.loss - self.bound <= self.goal + rounding

    def _stop(self, rounds: int, history: list[torch.Tensor]) -> None:
        sets = self._sets
        best = self.best.of(sets)
        gap = best.loss - self.bound[sets]
        done = (gap <= self.goal + self.loss.rounding(best.residual)).tolist()
        window = max(_PATIENCE, (len(history) - 1) // 5)
        gained = [inf] * len(done)
        if len(history) > window + 1:
            gained = (history[-1 - window] - history[-1]).tolist()
        stuck = (self._state.halvings > _MOST_HALVINGS).tolist()
        for row, place in enumerate(sets.tolist()):
            if self.stopped[place]:
                continue
            if done[row]:
                reason = CERTIFIED
            elif gained[row] < self.goal / 4:
                fell = f"{gained[row]:.3g} over the last {window} iterations"
                reason = f"progress: the loss fell by {fell}"
            elif self._late:
                reason = OUT_OF_TIME
            elif stuck[row]:
                reason = NO_DESCENT
            else:
                reason = f"iterations: {rounds} reached" if rounds >= _MOST_ROUNDS else ""
            self.stopped[place] = reason

    def _advance(self) -> None:
        """One step of every set: from a point ahead along its last change, with its own test."""
        s = self._state
        next_weight = (1 + (1 + 4 * s.weight.square()).sqrt()) / 2
        momentum = (s.weight - 1) / next_weight
        origin = s.point
        if bool((momentum > 0).any()):
            ahead = s.point.potentials - s.previous
            origin = self.point(s.point.potentials + momentum.unsqueeze(1) * ahead)
        gradient = self.loss.gradient(origin.residual)
        new = self.point(origin.potentials - s.step.unsqueeze(1) * gradient)
        moved = new.potentials - origin.potentials
        apart = new.log_partition - origin.log_partition
        divergence = (moved * new.marginals).sum(1) - self.totals * apart
        excess = self.loss.value(new.residual - origin.residual)
        taken = excess <= divergence / s.step + 4 * _EPSILON * origin.loss
        taken &= new.loss.isfinite() & origin.loss.isfinite()
        again = taken & (new.loss > s.point.loss) & (momentum > 0)
        onward = taken & ~again
        # A point ahead from which no step passes is given up like one that raises the loss.
        again |= (s.halvings > _MOST_HALVINGS // 2) & (momentum > 0)
        s.previous = torch.where((onward | again).unsqueeze(1), s.point.potentials, s.previous)
        s.weight = torch.where(onward, next_weight, torch.where(again, 1.0, s.weight))
        s.point = new.where(onward, s.point)
        s.growth = torch.where(taken, s.growth, _GROWTH)
        s.step = torch.where(taken, s.step * s.growth, s.step / 2)
        s.halvings = torch.where(taken, 0, s.halvings + 1)


@dataclass
class _Cuts:
    """``losses.Cut``, a row each."""

    offset: torch.Tensor
    gradient: torch.Tensor
    size: torch.Tensor

    def blend(self, other: _Cuts, weight: float) -> _Cuts:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return _Cuts(*(torch.lerp(own, new, weight) for own, new in pairs))


@dataclass
class _State:
    """Where the sets that go on are, one row each."""

    point: Points
    previous: torch.Tensor
    step: torch.Tensor
    weight: torch.Tensor
    growth: torch.Tensor
    halvings: torch.Tensor
    average: _Cuts | None = None
    checks: int = 0

    @classmethod
    def at(cls, start: Points, loss: BatchedSquares) -> _State:
        largest = loss.gradient(start.residual).abs().amax(1)
        growth = torch.full_like(largest, 2.0)
        step = growth / torch.where(largest > 0, largest, 1.0)
        halvings = torch.zeros_like(largest, dtype=torch.int64)
        return cls(start, start.potentials, step, torch.ones_like(step), growth, halvings)

    def of(self, sets: torch.Tensor) -> _State:
        average = self.average
        if average is not None:
            average = _Cuts(*(value[sets] for value in vars(average).values()))
        return _State(
            point=self.point.of(sets),
            previous=self.previous[sets],
            step=self.step[sets],
            weight=self.weight[sets],
            growth=self.growth[sets],
            halvings=self.halvings[sets],
            average=average,
            checks=self.checks,
        )
