"""A step of accelerated mirror descent as a function of tensors, in which decisions are tensors
too.

Nothing in a step waits for a device, so it can be captured on a GPU. A single problem has vectors,
and numbers without axes; several side by side have one row and one entry each. The step is that of
``accelerated_mirror_descent``, except that a step that fails its test is tried again, half as long,
as the next step.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from pgmkit.contraction.kernels.cuda_graphs import Captured
from pgmkit.estimation.mirror_descent import FIRST_GROWTH, GROWTH
from pgmkit.runtime.precision import EPSILON, HALVINGS


class Points(NamedTuple):
    """Potentials with their marginals, log partitions, standardised residuals and losses."""

    potentials: torch.Tensor
    marginals: torch.Tensor
    log_partition: torch.Tensor
    residual: torch.Tensor
    loss: torch.Tensor

    def of(self, sets: torch.Tensor) -> Points:
        """Return the points of the chosen problems: the rows ``sets`` of every tensor."""
        return Points(*(value[sets] for value in self))

    def where(self, chosen: torch.Tensor, others: Points) -> Points:
        """Return these points where ``chosen`` is true, and ``others`` elsewhere."""
        wide = chosen.unsqueeze(-1)
        pairs = zip(self, others, strict=True)
        return Points(
            *(
                torch.where(wide if own.ndim > chosen.ndim else chosen, own, rest)
                for own, rest in pairs
            )
        )


class Objective(Protocol):
    """A loss of residuals that is minimised over the marginals of models with these ``totals``."""

    @property
    def totals(self) -> torch.Tensor: ...

    def point(self, potentials: torch.Tensor) -> Points:
        """Run one pass of inference; the loss is infinite if it fails."""
        ...

    def gradient(self, residual: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the loss with respect to the marginals."""
        ...

    def excess(self, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        """Return by how much the loss at residuals ``new`` exceeds its tangent at ``old``."""
        ...


class State(NamedTuple):
    """The state of a search; ``halvings`` counts the tests that have failed in a row."""

    point: Points
    previous: torch.Tensor
    """The potentials before the last accepted step."""
    step: torch.Tensor
    weight: torch.Tensor
    growth: torch.Tensor
    halvings: torch.Tensor

    def of(self, sets: torch.Tensor) -> State:
        """Return the state of the chosen problems: the rows ``sets`` of every tensor."""
        return State(self.point.of(sets), *(value[sets] for value in self[1:]))

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors of the state, in the order of its fields."""
        return (*self.point, *self[1:])

    def take(self, other: State) -> None:
        """Copy the other state into the memory of this one."""
        for own, new in zip(self.tensors, other.tensors, strict=True):
            own.copy_(new)

    def copied(self) -> State:
        """Return the same state in memory of its own."""
        return State(Points(*(v.clone() for v in self.point)), *(v.clone() for v in self[1:]))


def start_at(objective: Objective, start: Points) -> State:
    """Return the first state; its first step moves no potential by more than two units."""
    largest = objective.gradient(start.residual).abs().amax(-1)
    growth = torch.full_like(largest, FIRST_GROWTH)
    step = growth / torch.where(largest > 0, largest, 1.0)
    halvings = torch.zeros_like(largest, dtype=torch.int64)
    return State(start, start.potentials, step, torch.ones_like(step), growth, halvings)


def advance(objective: Objective, s: State) -> State:
    """Try one step from the extrapolated point, with the acceptance test of ``proximal_step``."""
    next_weight = (1 + (1 + 4 * s.weight.square()).sqrt()) / 2
    momentum = (s.weight - 1) / next_weight
    moving, here = momentum > 0, s.point.potentials
    origin = objective.point(torch.lerp(s.previous, here, 1 + momentum.unsqueeze(-1)))
    gradient = objective.gradient(origin.residual)
    new = objective.point(
        torch.addcmul(origin.potentials, s.step.unsqueeze(-1), gradient, value=-1.0)
    )
    moved = torch.linalg.vecdot(new.potentials - origin.potentials, new.marginals)
    divergence = moved - objective.totals * (new.log_partition - origin.log_partition)
    excess = objective.excess(new.residual, origin.residual)
    taken = excess <= divergence / s.step + 4 * EPSILON * origin.loss
    taken = taken & new.loss.isfinite() & origin.loss.isfinite()
    again = taken & (new.loss > s.point.loss) & moving
    onward = taken & ~again
    # A point ahead from which no step passes the test is dropped, like one that raises the loss.
    again = again | (s.halvings > HALVINGS // 2) & moving
    return State(
        point=new.where(onward, s.point),
        previous=torch.where((onward | again).unsqueeze(-1), here, s.previous),
        step=torch.where(taken, s.step * s.growth, s.step / 2),
        weight=torch.where(onward, next_weight, torch.where(again, 1.0, s.weight)),
        growth=torch.where(taken, s.growth, GROWTH),
        halvings=torch.where(taken, 0, s.halvings + 1),
    )


class Steps:
    """The steps of a search; on a GPU each is one launch of a captured graph.

    ``state`` stays in the same memory: copy what must outlive a step.
    """

    def __init__(self, objective: Objective, first: State) -> None:
        self._objective, self.state = objective, first.copied()
        self._step = Captured(
            lambda: self.state.take(advance(self._objective, self.state)), first.step.device
        )

    def take(self) -> None:
        """Try one more step."""
        self._step()
