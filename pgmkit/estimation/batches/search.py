"""Accelerated mirror descent on many problems of one structure at once.

Each set has the steps, momentum, restarts and certificate of ``accelerated_mirror_descent``, and
one pass serves all of them. A step that fails its test is tried again with half the length in the
next round, while other sets continue. Sets that have ended are removed from the passes whenever
they are at least half of all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf

import torch

from pgmkit.estimation.batches.oracle import BatchedOracle
from pgmkit.estimation.batches.problem import BatchedSquares
from pgmkit.estimation.mirror_descent import NO_DESCENT
from pgmkit.estimation.problem import Point
from pgmkit.estimation.tensor_steps import Known, Points, Steps, start_at
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.losses import Cut
from pgmkit.runtime.iterations import PATIENCE
from pgmkit.runtime.precision import EPSILON, HALVINGS, ULPS
from pgmkit.runtime.progress import CERTIFIED, OUT_OF_TIME

_MOST_ROUNDS = 3 * PATIENCE
"""The number of rounds after which a set is taken out of the batch. Its search is then continued
alone, if there is time left. Proximal steps end a search that is still far from its certificate
sooner than hundreds of further rounds would.
"""


@dataclass
class BatchedSearch:
    """The search of all sets, each in a row of its tensors.

    The search of a set is certified when its gap is at most ``goal``, up to rounding. ``bound`` and
    ``best`` have the best lower bounds and points so far. ``stopped`` has the reason why each set
    has ended, empty while it continues.
    """

    single: MarginalOracle
    loss: BatchedSquares
    totals: torch.Tensor
    goal: float
    deadline: float = inf

    def __post_init__(self) -> None:
        self.oracle = BatchedOracle(self.single, len(self.totals))
        self.bound = torch.zeros_like(self.totals)
        self.stopped = [""] * len(self.totals)
        self.iterations = torch.zeros(len(self.totals), dtype=torch.int64)
        self._average: Cut | None = None
        self._checks = 0

    def point(self, potentials: torch.Tensor) -> Points:
        """Return the points of these potentials by one pass. The loss of a row whose pass fails is
        infinite.
        """
        marginals, log_partition = self.marginals(potentials)
        loss = self.loss.value(self.loss.residual(marginals)).nan_to_num_(inf, inf, inf)
        return Points(potentials, marginals, log_partition, loss)

    def marginals(self, potentials: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # On a GPU the search does not wait for the computation to end. So a row that leaves the
        # range of linear space stays NaN there, while on a CPU it gets a pass of its own.
        cpu = self.single.device.type == "cpu"
        begun = self.oracle.marginals if cpu else self.oracle.try_marginals
        return begun(potentials, self.totals)

    def slope(self, marginals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Known]:
        residual = self.loss.residual(marginals)
        return self.loss.value(residual), self.loss.gradient(residual), (residual,)

    def compare(
        self, new: torch.Tensor, known: Known
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        (before,), residual = known, self.loss.residual(new)
        product = torch.linalg.vecdot(before, residual + self.loss.target)
        return self.loss.value(residual), self.loss.value(residual - before), product

    def row(self, place: int) -> Point:
        """Return the best point of set number ``place``."""
        potentials, marginals, log_partition, _ = (value[place] for value in self.best)
        return Point(potentials, marginals, float(log_partition))

    def run(self, start: Points) -> None:
        """Search from these points until every set has stopped; the results are in ``best``,
        ``bound``, ``stopped`` and ``iterations``.
        """
        self.best = Points(*(value.clone() for value in start))  # copied, as it is overwritten
        whole, self._sets = self.loss, torch.arange(len(self.totals), device=self.totals.device)
        totals, self._steps = self.totals, Steps(self, start_at(self, start))
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
                self._steps = Steps(self, self._steps.state.of(left))
                if self._average is not None:
                    self._average = Cut(*(value[left] for value in vars(self._average).values()))
                self.loss, self.totals = whole.of(self._sets), totals[self._sets]
                self.oracle = BatchedOracle(self.single, len(self._sets))
                history = [losses[left] for losses in history]
            self._steps()
        self.loss, self.totals = whole, totals

    @property
    def _late(self) -> bool:
        return time.perf_counter() >= self.deadline

    def _record(self, rounds: int, history: list[torch.Tensor]) -> bool:
        """Write the present points that are better than any before into ``best``, append the best
        losses of the present sets to ``history``, and set the ``iterations`` of running sets to
        ``rounds``. Return True if the best loss of some present set fell by at most ``goal`` in
        this round, so that a higher lower bound could end its search.
        """
        own, sets = self._steps.state.point, self._sets
        better = torch.nonzero(own.loss < self.best.loss[sets]).flatten()
        for kept, new in zip(self.best, own, strict=True):
            kept[sets[better]] = new[better]
        history.append(self.best.loss[sets])
        running = torch.tensor([not self.stopped[i] for i in sets.tolist()])
        self.iterations[sets.cpu()[running]] = rounds
        return bool((history[-2] - history[-1] <= self.goal).any())

    def _certify(self) -> None:
        """Raise the lower bounds by the minima of two cuts of each set's loss: that at the present
        point, and the average of all cuts so far, in which later ones weigh more. A cut is an
        affine function below the loss (``losses.Cut``).
        """
        residual = self.loss.residual(self._steps.state.point.marginals)
        products = residual * self.loss.target
        conjugate = self.loss.value(residual)
        offset, size = -conjugate - products.sum(1), conjugate + products.abs().sum(1)
        cut = Cut(offset, self.loss.gradient(residual), size)
        self._checks += 1
        before = self._average
        self._average = cut if before is None else before.blend(cut, 2 / (1 + self._checks))
        for each in (cut, self._average):
            scores = -each.gradient
            size = each.size + self.totals * self.oracle.peaks(scores.abs()).sum(1)
            found = each.offset - self.totals * self.oracle.maximum(scores) - ULPS * EPSILON * size
            self.bound[self._sets] = torch.maximum(self.bound[self._sets], found.nan_to_num(-inf))

    def certified(self) -> torch.Tensor:
        """Return a mask of the sets for which the gap is within the goal, up to rounding."""
        return self.best.loss - self.bound <= self.goal + self.loss.rounding(self.best.marginals)

    def _stop(self, rounds: int, history: list[torch.Tensor]) -> None:
        """Write the reason into ``stopped`` for each present set that ends after this round.
        ``history`` has the best losses of the present sets after each round so far.
        """
        sets = self._sets
        best = self.best.of(sets)
        gap = best.loss - self.bound[sets]
        done = (gap <= self.goal + self.loss.rounding(best.marginals)).tolist()
        window = max(PATIENCE, (len(history) - 1) // 5)
        gained = [inf] * len(done)
        if len(history) > window + 1:
            gained = (history[-1 - window] - history[-1]).tolist()
        stuck = (self._steps.state.halvings > HALVINGS).tolist()
        for row, place in enumerate(sets.tolist()):
            if self.stopped[place]:
                continue
            if done[row]:
                reason = CERTIFIED
            elif gained[row] <= self.goal / 4:
                fell = f"{gained[row]:.3g} over the last {window} iterations"
                reason = f"progress: the loss fell by {fell}"
            elif self._late:
                reason = OUT_OF_TIME
            elif stuck[row]:
                reason = NO_DESCENT
            else:
                reason = f"iterations: {rounds} reached" if rounds >= _MOST_ROUNDS else ""
            self.stopped[place] = reason
