"""Accelerated mirror descent on a GPU, whose state the host reads only once in several steps.

Captured steps are kept by structure, so that a later search of the same structure captures none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import torch

from pgmkit.contraction import kernels
from pgmkit.estimation.model_size import search_bytes
from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.estimation.tensor_steps import Known, Points, State, Steps, start_at
from pgmkit.losses import MeasuredLoss
from pgmkit.runtime.iterations import WINDOW
from pgmkit.runtime.memory import available
from pgmkit.runtime.precision import HALVINGS
from pgmkit.runtime.sizes import REMEMBERED

STEPS_BETWEEN_READS = WINDOW
"""The number of steps on the device between two reads by the host."""
KEPT: dict[Hashable, tuple[MeasuredObjective, Steps]] = {}
"""The steps and their objective for each structure, in the order of their last use."""
_LOCK = threading.Lock()


class MeasuredObjective:
    """An ``Objective`` of ``tensor_steps`` that computes the loss of a problem's measurements. The
    curvature of its penalty must be positive.
    """

    def __init__(self, problem: Problem, loss: MeasuredLoss) -> None:
        self.inference = problem.inference
        assert loss.penalty.curvature > 0
        device = self.inference.device
        self._clip = torch.tensor(loss.penalty.clipped, dtype=torch.float64, device=device)
        self.parts = loss.observations.parts()
        self.totals = torch.full((), problem.total, dtype=torch.float64, device=device)

    def separate(self) -> None:
        """Replace the oracle and the measurements by copies in memory that nothing else uses."""
        self.inference = self.inference.separate()
        self.parts = [part.separate() for part in self.parts]

    @property
    def bytes(self) -> int:
        """An upper bound on the bytes of memory that a search for the minimum takes."""
        return search_bytes(self.inference) + sum(each.nbytes for each in self.inputs)

    @property
    def inputs(self) -> list[torch.Tensor]:
        """All tensors that a step reads, apart from its state. Two objectives with the same
        ``structure`` differ only in the values of these tensors.
        """
        own = [self.totals, self._clip, *self.inference.inputs]
        return own + [each for part in self.parts for each in part.inputs]

    @property
    def structure(self) -> Hashable:
        """All that decides which operations a step does, and on tensors of which shapes."""
        layout, device = self.inference.layout, self.inference.device
        forms = tuple(part.form for part in self.parts)
        tensors = tuple((each.shape, each.dtype) for each in self.inputs)
        return device, self.inference.dtype, layout.cliques, layout.shapes, forms, tensors

    def at(self, point: Point) -> Points:
        """Return the point's potentials, marginals and log partition function, and its loss."""
        log_partition = torch.as_tensor(point.log_partition).to(self.totals)
        loss, _, _ = self.slope(point.marginals)
        return Points(point.potentials, point.marginals, log_partition, loss)

    def marginals(self, potentials: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inference.try_marginals(potentials, self.totals)

    def slope(self, marginals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Known]:
        known = tuple(part.seen(marginals) for part in self.parts)
        (sums, slopes), *others = [
            kernels.penalise(seen, part.seen_weights, part.target, self._clip)
            for part, seen in zip(self.parts, known, strict=True)
        ]
        gradient = slopes if known[0] is marginals else self.parts[0].adjoint(slopes)
        for part, (more, slopes) in zip(self.parts[1:], others, strict=True):
            gradient = part.add_adjoint(slopes, gradient)
            sums = torch.cat([sums, more])
        return sums.sum(), gradient, known

    def compare(
        self, new: torch.Tensor, known: Known
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found = [
            kernels.compare(part.seen(new), seen, part.seen_weights, part.target, self._clip)
            for part, seen in zip(self.parts, known, strict=True)
        ]
        loss, excess, product = (torch.cat(found, 1) if len(found) > 1 else found[0]).sum(1)
        return loss, excess, product


def device_search(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise from ``start`` with the steps of ``accelerated``, and end at the step at which that
    method would end. If this step lies between two reads, the steps since the last read are
    repeated up to it.

    If steps keep failing their test or change nothing, or passes in linear space fail, the point
    reached is returned and ``monitor.stopped`` stays empty; a search with passes in log space may
    then continue.
    """
    assert isinstance(problem.loss, MeasuredLoss)
    objective = MeasuredObjective(problem, problem.loss)
    point, loss = start, problem.loss.value(start.marginals)
    with steps_of(objective, start_at(objective, objective.at(start))) as steps:
        before = steps.state.copied()
        stops = monitor.record(point, loss)
        while not stops:
            begun = time.perf_counter()
            before.take(steps.state)
            last, accepted, stuck = try_steps(steps, STEPS_BETWEEN_READS, before)
            problem.pass_seconds[:] = [time.perf_counter() - begun]
            if stuck:
                break
            count = next(
                (n for n, loss in accepted[:-1] if not monitor.pass_by(loss)), STEPS_BETWEEN_READS
            )
            if count < STEPS_BETWEEN_READS:
                steps.state.take(before)
                last, accepted, _ = try_steps(steps, count, before)
            # `accepted` is empty if all steps failed their tests. It may also be empty if the first
            # `count` steps were repeated, since these may be rounded differently and then fail. The
            # point then stays as it was.
            if accepted:
                point, loss = last.copied(), accepted[-1][1]
            if accepted or count < STEPS_BETWEEN_READS or problem.late():
                stops = monitor.record(point, loss)
    return point


def try_steps(
    steps: Steps, count: int, before: State
) -> tuple[Point, list[tuple[int, float]], bool]:
    """Try ``count`` steps from the state ``before``, and return three results that the host has
    read: the point after the steps, whose memory the next step overwrites; for each step that
    passed its test its number, from 1, and the loss after it; and whether further steps are
    useless, because too many have failed in a row or because the steps that passed are too short to
    change any potential.
    """
    state, numbers = steps.state, list[torch.Tensor]()
    for _ in range(count):
        steps()
        numbers += [state.point.loss.clone(), state.halvings.clone()]
    moved = (state.point.potentials != before.point.potentials).any()
    numbers = [each.double() for each in (state.point.log_partition, moved, *numbers)]
    log_partition, has_moved, *found = torch.stack(numbers).tolist()
    losses, halvings = found[::2], found[1::2]
    accepted = [
        (number, loss)
        for number, (loss, failed) in enumerate(zip(losses, halvings, strict=True), 1)
        if failed == 0
    ]
    point = Point(state.point.potentials, state.point.marginals, log_partition)
    # A single step that passed its test may have raised the loss and so only dropped the momentum,
    # which changes no potential. So unchanged potentials count only if two steps or more passed.
    return point, accepted, halvings[-1] > HALVINGS or (len(accepted) > 1 and not has_moved)


@contextmanager
def steps_of(objective: MeasuredObjective, first: State) -> Iterator[Steps]:
    """Yield steps that minimise the objective from its state ``first``.

    If steps of the same structure that were captured as a CUDA graph are kept, they are used, after
    the objective's values were copied to their memory. No other search uses these steps during the
    block. When it ends without an error, captured steps are kept. At most REMEMBERED structures are
    kept, and together they take at most 1 / REMEMBERED of the GPU's free memory: the least recently
    used ones are dropped, and the steps of an objective that needs more than this are never kept.
    """
    room = available(objective.inference.device) // REMEMBERED
    if objective.bytes > room:
        yield Steps(objective, first)
        return
    structure = objective.structure
    with _LOCK:
        kept = KEPT.pop(structure, None)
    if kept is None:
        kept = objective, Steps(objective, first, objective.separate)
    else:
        for own, new in zip(kept[0].inputs, objective.inputs, strict=True):
            own.copy_(new)
        kept[1].state.take(first)
    yield kept[1]
    if kept[1].captured:
        with _LOCK:
            KEPT[structure] = kept
            while len(KEPT) > REMEMBERED or sum(each.bytes for each, _ in KEPT.values()) > room:
                del KEPT[next(iter(KEPT))]
