"""A step of accelerated mirror descent as operations on tensors, in which decisions are masks.

No step waits for a result on the host, so a GPU can capture it as one launch. For a single problem,
the state consists of vectors and of numbers without axes; for several problems together, each has a
row of the vectors and an entry of the numbers. The step is that of ``accelerated_mirror_descent``,
except that a step which fails its test is tried again with half the length as the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple, Protocol, TypeAlias

import torch

from pgmkit.contraction import kernels
from pgmkit.contraction.kernels.cuda_graphs import Captured
from pgmkit.estimation.mirror_descent import FIRST_GROWTH, GROWTH
from pgmkit.runtime.precision import EPSILON, HALVINGS

Known: TypeAlias = tuple[torch.Tensor, ...]
"""Results for some marginals that ``Objective.slope`` computes and ``Objective.compare`` uses."""


class Points(NamedTuple):
    """Potentials with their marginals, log partition functions and losses."""

    potentials: torch.Tensor
    marginals: torch.Tensor
    log_partition: torch.Tensor
    loss: torch.Tensor

    def of(self, sets: torch.Tensor) -> Points:
        """Return the points of some of the problems: the rows ``sets`` of every tensor."""
        return Points(*(value[sets] for value in self))


class Objective(Protocol):
    """A loss that is minimised over the marginals of models with these ``totals``."""

    @property
    def totals(self) -> torch.Tensor: ...

    def marginals(self, potentials: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the marginals and log partition functions by one pass of inference, NaN where the
        pass fails.
        """
        ...

    def slope(self, marginals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Known]:
        """Return the loss, its gradient with respect to the marginals, and the tensors that
        ``compare`` needs if other marginals are compared with these.
        """
        ...

    def compare(
        self, new: torch.Tensor, known: Known
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the loss at marginals ``new``; by how much it exceeds the loss's linear
        approximation at the marginals of which ``slope`` has returned ``known``; and the product of
        the gradient there and ``new``.
        """
        ...


class State(NamedTuple):
    """The state of a search: ``point`` is the last accepted one, ``step`` the length to be tried
    next, ``weight`` (t_k in ``accelerated``) determines the momentum, ``growth`` is the factor by
    which accepted steps grow, and ``halvings`` the number of tests that have failed in a row.
    """

    point: Points
    previous: torch.Tensor
    """The potentials before the last accepted step."""
    step: torch.Tensor
    weight: torch.Tensor
    growth: torch.Tensor
    halvings: torch.Tensor

    def of(self, sets: torch.Tensor) -> State:
        """Return the state of some of the problems: the rows ``sets`` of every tensor."""
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
    """Return the first state of a search from ``start``. Its first step changes no potential by
    more than two units.
    """
    largest = objective.slope(start.marginals)[1].abs().amax(-1)
    growth = torch.full_like(largest, FIRST_GROWTH)
    step = growth / torch.where(largest > 0, largest, 1.0)
    halvings = torch.zeros_like(largest, dtype=torch.int64)
    return State(start, start.potentials, step, torch.ones_like(step), growth, halvings)


def advance(objective: Objective, s: State) -> None:
    """Try one step from the extrapolated point and update the state in place.

    If the step passes the Bregman test of ``mirror_descent.proximal_step``, it is accepted, unless
    it had momentum and raises the loss; in that case the momentum is dropped, as it is after many
    failures in a row. If the step fails, the next one is half as long.
    """
    next_weight = (s.weight.square() + 0.25).sqrt() + 0.5
    momentum = (s.weight - 1) / next_weight
    moving, here = momentum > 0, s.point.potentials
    origin = torch.lerp(s.previous, here, 1 + momentum.unsqueeze(-1))
    marginals, log_partition = objective.marginals(origin)
    loss, gradient, known = objective.slope(marginals)
    potentials = torch.addcmul(origin, s.step.unsqueeze(-1), gradient, value=-1.0)
    marginals, reached = objective.marginals(potentials)
    new_loss, excess, product = objective.compare(marginals, known)
    new = Points(potentials, marginals, reached, new_loss)
    # `closer` is minus total * KL(after || before) / step, where "before" is the distribution at
    # the extrapolated point, whose potentials the step moves by -step * gradient.
    closer = product + objective.totals * (reached - log_partition) / s.step
    taken = (excess + closer <= 4 * EPSILON * loss) & (new.loss + loss < inf)
    again = taken & (new.loss > s.point.loss) & moving
    onward = taken & ~again
    # If no step from the extrapolated point has passed the test after half of the allowed halvings,
    # the momentum is dropped, as after a step that raises the loss.
    again = again | (s.halvings > HALVINGS // 2) & moving
    _replace(s.previous, onward | again, here)
    for own, other in zip(s.point, new, strict=True):
        _replace(own, onward, other)
    s.weight.masked_fill_(again, 1.0)
    _replace(s.weight, onward, next_weight)
    s.step.mul_(torch.where(taken, s.growth, 0.5))
    s.growth.masked_fill_(~taken, GROWTH)
    s.halvings.add_(1).masked_fill_(taken, 0)


def _replace(own: torch.Tensor, chosen: torch.Tensor, other: torch.Tensor) -> None:
    """Overwrite ``own`` by ``other`` for each problem for which ``chosen`` is True."""
    if own.ndim > chosen.ndim:
        kernels.overwrite(own, chosen, other)
    else:
        torch.where(chosen, other, own, out=own)


class Steps(Captured):
    """The steps of a search from the state ``first``; each call tries one more. On a GPU, after
    some ordinary calls, a step becomes a single launch of a captured CUDA graph. ``prepare`` is
    called once before the capture, and may replace the tensors that the objective uses.

    Every step overwrites ``state`` in the same memory, so a caller copies what it needs later.
    """

    def __init__(
        self, objective: Objective, first: State, prepare: Callable[[], object] = lambda: None
    ) -> None:
        self.state = first.copied()
        super().__init__(lambda: advance(objective, self.state), first.step.device, prepare)
