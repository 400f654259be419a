"""The objectives of estimation: convex losses of marginals, with gradients and lower bounds.

Measured losses are sums of phi(r_i) over standardised residuals r = (Q mu - y) / stddev, so the
squared loss weighs by the inverse variance and the absolute loss by the inverse scale. Every loss
also gives a *cut*: a linear function of the marginals that nowhere exceeds the loss; minimised
over the marginal polytope it certifies how far a model is from the optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import ClassVar, Protocol

import numpy as np

from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.inference.marginal_oracle import Clique, Layout
from pgmkit.inference.observations import Observations, host
from pgmkit.least_squares.sufficient_statistics import Statistics, combined, side_by_side
from pgmkit.measurement import Measurement
from pgmkit.runtime.deferred import torch

__all__ = ["Absolute", "Huber", "Squared"]


@dataclass(frozen=True)
class Cut:
    """The lower bound ``offset + <gradient, mu>`` of a convex loss; cuts may be averaged.

    ``size`` is the sum of the absolute terms behind ``offset``: what its rounding is a share of.
    """

    offset: float
    gradient: torch.Tensor
    size: float

    def blend(self, other: Cut, weight: float) -> Cut:
        """This cut with ``weight`` of the other mixed in; still a lower bound."""
        return Cut(
            (1 - weight) * self.offset + weight * other.offset,
            torch.lerp(self.gradient, other.gradient, weight),
            (1 - weight) * self.size + weight * other.size,
        )


class Loss(Protocol):
    """A convex function of the flat vector of clique marginals (counts)."""

    unit: float
    """The loss's standard deviation at the truth: about sqrt(cells / 2) with Gaussian noise."""
    least: float
    """No marginals have a loss below this, whatever the measurements say."""

    def scalar(self, marginals: torch.Tensor) -> torch.Tensor:
        """The loss as a tensor without axes: nothing waits for the device it is on."""
        ...

    def scalar_and_gradient(self, marginals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...

    def value(self, marginals: torch.Tensor) -> float: ...

    def value_and_gradient(self, marginals: torch.Tensor) -> tuple[float, torch.Tensor]: ...

    def cut(self, marginals: torch.Tensor) -> Cut: ...

    def rounding(self, marginals: torch.Tensor) -> float:
        """The change of the loss when every marginal and value moves by a few units in its last
        place: no search in this precision can do better.
        """
        ...

    def smooth_stages(self) -> Sequence[Loss]:
        """Differentiable stand-ins, ever closer; a smooth loss is its own only stage."""
        ...


def dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The inner product of two vectors, summed in float64 whatever their format."""
    return left.double() @ right.double()


ULPS = 4.0
"""Units in the last place by which sums of a model's cells are taken to be off."""


@dataclass(frozen=True)
class Squared:
    """phi(r) = r^2 / 2: Gaussian noise."""

    curvature: ClassVar[float] = 1.0
    """The conjugate is phi*(u) = curvature u^2 / 2 where |u| <= steepest, and infinite beyond."""
    steepest: ClassVar[float] = inf

    def value(self, r: torch.Tensor) -> torch.Tensor:
        return 0.5 * dot(r, r)

    def slope(self, r: torch.Tensor) -> torch.Tensor:
        return r

    def excess(self, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        """The excess of the loss at ``new`` over its tangent at ``old``, without a difference of
        large numbers.
        """
        return self.value(new - old)

    def unit(self, rows: int) -> float:
        return sqrt(rows / 2)


@dataclass(frozen=True)
class Huber:
    """phi(r) = height * (r^2 / (2 width), or |r| - width / 2 beyond width)."""

    width: float = 1.345
    height: float = 1.345

    def value(self, r: torch.Tensor) -> torch.Tensor:
        inner = r.abs().clamp_max(self.width)
        return dot(inner, r.abs() - inner / 2) * (self.height / self.width)

    def slope(self, r: torch.Tensor) -> torch.Tensor:
        return r.clamp(-self.width, self.width) * (self.height / self.width)

    def excess(self, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        near, far = (r.clamp(-self.width, self.width) for r in (old, new))
        # phi(new) - phi(old) - phi'(old) (new - old), value by value
        apart = far * (new - far / 2) - near * (old - near / 2) - near * (new - old)
        return apart.sum(dtype=torch.float64) * (self.height / self.width)

    @property
    def curvature(self) -> float:
        return self.width / self.height

    @property
    def steepest(self) -> float:
        return self.height

    def unit(self, rows: int) -> float:
        return sqrt(rows / 2)


@dataclass(frozen=True)
class Absolute:
    """phi(r) = sqrt(2) |r|: Laplace noise, whose scale is stddev / sqrt(2)."""

    curvature: ClassVar[float] = 0.0
    steepest: ClassVar[float] = sqrt(2)

    def value(self, r: torch.Tensor) -> torch.Tensor:
        return sqrt(2) * r.abs().sum(dtype=torch.float64)

    def slope(self, r: torch.Tensor) -> torch.Tensor:
        return sqrt(2) * r.sign()

    def excess(self, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        return sqrt(2) * (new.abs() - new * old.sign()).sum(dtype=torch.float64)

    def unit(self, rows: int) -> float:
        return sqrt(rows)


Penalty = Squared | Huber | Absolute
_ABSOLUTE_WIDTHS = (1.0, 0.1, 0.01, 0.001)
"""Widths, in standard deviations, of the Huber functions that approach the absolute loss."""


class MeasuredLoss:
    """sum_i phi((Q mu - y)_i / stddev_i) over all measured values."""

    least = 0.0

    def __init__(
        self, observations: Observations, penalty: Penalty, count: int | None = None
    ) -> None:
        """``count``: of values that the observations stand for, where it is not their own."""
        self.observations, self.penalty = observations, penalty
        self.count = len(observations.target) if count is None else count
        self.unit = penalty.unit(self.count)

    def scalar(self, marginals: torch.Tensor) -> torch.Tensor:
        return self.penalty.value(self.observations.residual(marginals))

    def scalar_and_gradient(self, marginals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        r = self.observations.residual(marginals)
        return self.penalty.value(r), self.observations.adjoint(self.penalty.slope(r))

    def value(self, marginals: torch.Tensor) -> float:
        return float(self.scalar(marginals))

    def value_and_gradient(self, marginals: torch.Tensor) -> tuple[float, torch.Tensor]:
        value, gradient = self.scalar_and_gradient(marginals)
        return float(value), gradient

    def cut(self, marginals: torch.Tensor) -> Cut:
        """The cut at u = phi'(r)."""
        return self.cut_of_dual(self.penalty.slope(self.observations.residual(marginals)))

    def cut_of_dual(self, dual: torch.Tensor) -> Cut:
        """Fenchel's inequality L(nu) >= <u, (Q nu - y) / s> - phi*(u), for any |u| <= steepest."""
        conjugate = 0.5 * self.penalty.curvature * float(dot(dual, dual))
        products = dual.double() * self.observations.target
        size = conjugate + float(products.abs().sum())
        return Cut(-conjugate - float(products.sum()), self.observations.adjoint(dual), size)

    def rounding(self, marginals: torch.Tensor) -> float:
        residual = self.observations.residual(marginals)
        target = self.observations.target
        sizes = (residual + target).abs() + target.abs()
        shift = ULPS * torch.finfo(residual.dtype).eps * sizes
        slope = self.penalty.slope(residual.abs() + shift)
        return float((slope * shift).sum())

    def smooth_stages(self) -> Sequence[Loss]:
        if not isinstance(self.penalty, Absolute):
            return [self]
        return [
            MeasuredLoss(self.observations, Huber(width, sqrt(2)), self.count)
            for width in _ABSOLUTE_WIDTHS
        ]


CallableLoss = Callable[[Mapping[Clique, torch.Tensor]], torch.Tensor]


class DifferentiableLoss:
    """Any convex differentiable function of the measured cliques' marginals, by autodiff.

    ``function`` gets a mapping from clique to a tensor of counts (axes in the clique's order) and
    returns a scalar tensor. Bounds hold if the function is convex.
    """

    def __init__(self, layout: Layout, cliques: Sequence[Clique], function: CallableLoss) -> None:
        self.layout, self.function = layout, function
        self._places = {clique: host(layout, clique) for clique in cliques}
        self.unit, self.least = 1.0, -inf

    def scalar(self, marginals: torch.Tensor) -> torch.Tensor:
        return self.scalar_and_gradient(marginals)[0]

    def value(self, marginals: torch.Tensor) -> float:
        return float(self.scalar(marginals))

    def value_and_gradient(self, marginals: torch.Tensor) -> tuple[float, torch.Tensor]:
        value, gradient = self.scalar_and_gradient(marginals)
        return float(value), gradient

    def scalar_and_gradient(self, marginals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            point = marginals.clone().requires_grad_()
            value = self.function(self._named(point))
            if not isinstance(value, torch.Tensor) or value.ndim != 0:
                raise InvalidInput("a callable loss must return a scalar torch tensor")
            (gradient,) = torch.autograd.grad(value, point)
        return value.detach(), gradient

    def cut(self, marginals: torch.Tensor) -> Cut:
        value, gradient = self.value_and_gradient(marginals)
        products = gradient * marginals
        size = abs(value) + float(products.abs().sum())
        return Cut(value - float(products.sum()), gradient, size)

    def rounding(self, marginals: torch.Tensor) -> float:
        value, gradient = self.value_and_gradient(marginals)
        eps = ULPS * torch.finfo(marginals.dtype).eps
        return eps * (abs(value) + float((gradient * marginals).abs().sum()))

    def smooth_stages(self) -> Sequence[Loss]:
        return [self]

    def _named(self, point: torch.Tensor) -> dict[Clique, torch.Tensor]:
        tables = self.layout.split(point)
        named = {}
        for clique, place in self._places.items():
            held = self.layout.cliques[place]
            summed = [i for i, name in enumerate(held) if name not in clique]
            table = tables[place].sum(summed) if summed else tables[place]
            kept = [name for name in held if name in clique]
            named[clique] = table.permute([kept.index(name) for name in clique])
        return named


PENALTIES: dict[str, Penalty] = {"squared": Squared(), "absolute": Absolute(), "huber": Huber()}


def known_loss(loss: str | Penalty | CallableLoss) -> Penalty | CallableLoss:
    """The penalty of a name; an unknown name lists the known ones."""
    if isinstance(loss, str):
        if loss not in PENALTIES:
            raise InvalidInput(
                f"loss {loss!r} is unknown; known losses: {', '.join(PENALTIES)}, or a callable"
            )
        return PENALTIES[loss]
    if not callable(loss) and not isinstance(loss, Squared | Huber | Absolute):
        raise InvalidInput(f"loss ({loss!r}) must be one of {', '.join(PENALTIES)}, or a callable")
    return loss


def statistics(
    domain: Domain,
    measurements: Sequence[Measurement],
    loss: str | Penalty | CallableLoss,
    deadline: float = inf,
) -> Statistics:
    """The statistics that this loss needs; a callable needs only the measured cliques."""
    known = known_loss(loss)
    if isinstance(known, Squared):
        return combined(domain, measurements, deadline=deadline)
    if isinstance(known, Huber | Absolute):
        return side_by_side(domain, measurements)
    one_each = list({m.clique: m for m in measurements}.values())
    values, count = [m.values for m in one_each], sum(len(m.values) for m in one_each)
    return Statistics(one_each, values, np.zeros(()), count, [])


def make_loss(
    loss: str | Penalty | CallableLoss,
    layout: Layout,
    measurements: Sequence[Measurement],
    dtype: torch.dtype,
    device: torch.device,
    count: int | None = None,
) -> Loss:
    """The loss object for a name, a penalty or a callable; ``count`` as in ``MeasuredLoss``."""
    known = known_loss(loss)
    if isinstance(known, Squared | Huber | Absolute):
        return MeasuredLoss(Observations(layout, measurements, dtype, device), known, count)
    return DifferentiableLoss(layout, [m.clique for m in measurements], known)
