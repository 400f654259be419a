"""The loss of measurements as the objective of steps on a GPU that never wait for the host."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from pgmkit.contraction import kernels
from pgmkit.estimation.model_size import search_bytes
from pgmkit.estimation.problem import Point, Problem
from pgmkit.estimation.tensor_steps import Known, Points
from pgmkit.losses import MeasuredLoss


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
