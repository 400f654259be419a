"""The objectives of estimation: convex losses of marginals, with gradients and lower bounds.

Measured losses are sums of phi(r_i) over standardised residuals r = (Q mu - y) / stddev, with the
measurements' matrix Q, the marginals mu and the noisy values y; so the squared loss weighs by the
inverse variance and the absolute loss by the inverse scale. Every loss also gives a *cut*: an
affine function of the marginals that never exceeds the loss; minimised over the marginal polytope
it certifies how far a model is from the optimum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.inference.layout import Layout
from pgmkit.inference.observations import Observations, host
from pgmkit.least_squares.sufficient_statistics import Statistics, combined, side_by_side
from pgmkit.linear.axes import tensor_sum_to
from pgmkit.measurement import Measurement
from pgmkit.runtime.arguments import number, shown
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.precision import TINY, ULPS

__all__ = ["Absolute", "Huber", "Squared"]


@dataclass(frozen=True)
class Cut:
    """The lower bound ``offset + <gradient, mu>`` of a convex loss of marginals mu; cuts may be
    averaged.

    ``size`` is the sum of the absolute values of the terms of ``offset``; the rounding error of
    ``offset`` is proportional to it. For n sets of measurements at once, ``offset`` and ``size``
    are vectors of length n, and ``gradient`` has a row for each set.
    """

    offset: Any
    gradient: torch.Tensor
    size: Any

    def blend(self, other: Cut, weight: float) -> Cut:
        """Return the cut (1 - weight) * self + weight * other, for weight in [0, 1]: still a lower
        bound.
        """
        return Cut(
            (1 - weight) * self.offset + weight * other.offset,
            torch.lerp(self.gradient, other.gradient, weight),
            (1 - weight) * self.size + weight * other.size,
        )


class Loss(ABC):
    """A convex function of the flat vector of clique marginals (counts)."""

    unit: float
    """The standard deviation of the loss at the true marginals, in which gaps are judged: about
    sqrt(n / 2) for n measured values with Gaussian noise, sqrt(n) for the absolute loss with
    Laplace noise. A callable loss has 1, since its noise is not known.
    """
    least: float
    """A lower bound of the loss for all marginals and measurements; -inf if none is known."""

    @abstractmethod
    def value_and_gradient(self, marginals: torch.Tensor) -> tuple[float, torch.Tensor]:
        """Return the loss and its gradient, or a subgradient where it has none."""

    def value(self, marginals: torch.Tensor) -> float:
        """Return the loss."""
        return self.value_and_gradient(marginals)[0]

    @abstractmethod
    def cut(self, marginals: torch.Tensor) -> Cut:
        """Return the cut, an affine lower bound of the loss, that equals it at these marginals."""

    @abstractmethod
    def rounding(self, marginals: torch.Tensor) -> float:
        """Return an approximate upper bound of the change of the loss if every marginal and every
        measured value changes by a few units in its last place. No search in this precision can do
        better.
        """

    def smooth_stages(self) -> Sequence[Loss]:
        """Return differentiable lower bounds that approach the loss; a smooth loss is its own only
        stage.
        """
        return [self]


def dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the inner product of two vectors, summed in float64 whatever their format."""
    return left.double() @ right.double()


class Penalty(ABC):
    """A convex even function phi(r) of the standardised residuals, whose conjugate is phi*(u) =
    curvature u^2 / 2 for |u| <= steepest, and infinite beyond.
    """

    curvature: Any
    steepest: Any
    clipped: Any
    """The width and scale with which phi(r) = scale * c * (r - c / 2), c being r clipped to
    [-width, width]; only penalties with a positive curvature have them.
    """

    @abstractmethod
    def value(self, r: torch.Tensor) -> torch.Tensor:
        """Return the sum of phi over the residuals."""

    @abstractmethod
    def slope(self, r: torch.Tensor) -> torch.Tensor:
        """Return phi', or a subgradient where phi has a kink."""

    def unit(self, rows: int) -> float:
        """Return about the standard deviation of the sum of phi over this many residuals, if they
        are noise of the kind that the penalty is for.
        """
        return sqrt(rows / 2)

    def smooth_stages(self) -> Sequence[Penalty]:
        """Return penalties of positive curvature that approach this one from below; one that has a
        positive curvature is its own only stage.
        """
        return [self]


@dataclass(frozen=True)
class Squared(Penalty):
    """The penalty phi(r) = r^2 / 2, for Gaussian noise."""

    curvature = 1.0
    steepest = inf
    clipped = (inf, 1.0)

    def value(self, r: torch.Tensor) -> torch.Tensor:
        return 0.5 * dot(r, r)

    def slope(self, r: torch.Tensor) -> torch.Tensor:
        return r


@dataclass(frozen=True)
class Huber(Penalty):
    """The penalty phi(r) = height * r^2 / (2 width) up to |r| = width, height * (|r| - width / 2)
    beyond. Raises InvalidInput unless both, and their quotient, are finite numbers above 0.
    """

    width: float = 1.345
    height: float = 1.345

    def __post_init__(self) -> None:
        width, height = number(self.width), number(self.height)
        if not all(TINY <= each <= 1 / TINY for each in (width, height, height / (width or 1.0))):
            raise InvalidInput(
                "the width and height of Huber, and their quotient, must be finite numbers above "
                f"0, got {self.width!r} and {self.height!r}"
            )
        vars(self).update(width=width, height=height, clipped=(width, height / width))
        vars(self).update(curvature=width / height, steepest=height)

    def value(self, r: torch.Tensor) -> torch.Tensor:
        inner = r.abs().clamp_max(self.width)
        return dot(inner, r.abs() - inner / 2) * (self.height / self.width)

    def slope(self, r: torch.Tensor) -> torch.Tensor:
        return r.clamp(-self.width, self.width) * (self.height / self.width)


@dataclass(frozen=True)
class Absolute(Penalty):
    """The penalty phi(r) = sqrt(2) |r|, for Laplace noise, whose scale is stddev / sqrt(2)."""

    curvature = 0.0
    steepest = sqrt(2)

    def value(self, r: torch.Tensor) -> torch.Tensor:
        return sqrt(2) * r.abs().sum(dtype=torch.float64)

    def slope(self, r: torch.Tensor) -> torch.Tensor:
        return sqrt(2) * r.sign()

    def unit(self, rows: int) -> float:
        return sqrt(rows)

    def smooth_stages(self) -> Sequence[Penalty]:
        return [Huber(width, sqrt(2)) for width in _ABSOLUTE_WIDTHS]


_ABSOLUTE_WIDTHS = tuple(10.0**-digits for digits in range(4))
"""The widths, in standard deviations, of the Huber functions that approach the absolute loss."""


class MeasuredLoss(Loss):
    """The loss sum_i phi((Q mu - y)_i / stddev_i) over all measured values, with matrix Q,
    marginals mu, noisy values y and a penalty phi.
    """

    least = 0.0

    def __init__(
        self, observations: Observations, penalty: Penalty, count: int | None = None
    ) -> None:
        """Set the loss and its ``unit`` (`Loss.unit`). ``count`` is the number of measured values,
        to which the unit belongs; None if ``observations`` holds them as they are and not several
        combined into one. With no values at all the unit is that of one value, so that a gap can be
        divided by it.
        """
        self.observations, self.penalty = observations, penalty
        self.count = len(observations.target) if count is None else count
        self.unit = penalty.unit(max(1, self.count))

    def value(self, marginals: torch.Tensor) -> float:
        return float(self.penalty.value(self.observations.residual(marginals)))

    def value_and_gradient(self, marginals: torch.Tensor) -> tuple[float, torch.Tensor]:
        r = self.observations.residual(marginals)
        return float(self.penalty.value(r)), self.observations.adjoint(self.penalty.slope(r))

    def cut(self, marginals: torch.Tensor) -> Cut:
        """Return the cut of `cut_of_dual` at u = phi'(r), with the residuals r of these marginals.
        At these marginals the cut equals the loss.
        """
        return self.cut_of_dual(self.penalty.slope(self.observations.residual(marginals)))

    def cut_of_dual(self, dual: torch.Tensor) -> Cut:
        """Return the cut of Fenchel's inequality L(mu) >= <u, (Q mu - y) / stddev> - phi*(u), for
        ``dual`` = u with |u_i| <= steepest for every i.
        """
        conjugate = 0.5 * self.penalty.curvature * float(dot(dual, dual))
        products = dual.double() * self.observations.target
        size = conjugate + float(products.abs().sum())
        return Cut(-conjugate - float(products.sum()), self.observations.adjoint(dual), size)

    def rounding(self, marginals: torch.Tensor) -> float:
        residual = self.observations.residual(marginals)
        target = self.observations.target
        shift = ULPS * torch.finfo(residual.dtype).eps * ((residual + target).abs() + target.abs())
        return float((self.penalty.slope(residual.abs() + shift) * shift).sum())

    def smooth_stages(self) -> Sequence[Loss]:
        return [
            self if each is self.penalty else MeasuredLoss(self.observations, each, self.count)
            for each in self.penalty.smooth_stages()
        ]


CallableLoss = Callable[[Mapping[Clique, torch.Tensor]], torch.Tensor]
LossLike = str | Penalty | CallableLoss
"""A loss as it may be given: by name, such as "squared", as a penalty or as a function."""


class DifferentiableLoss(Loss):
    """A convex differentiable function of the measured cliques' marginals, differentiated
    automatically.

    ``function`` gets a mapping from clique to a tensor of counts (axes in the clique's order) and
    returns a scalar tensor. Bounds are valid if the function is convex.
    """

    def __init__(self, layout: Layout, cliques: Sequence[Clique], function: CallableLoss) -> None:
        self.layout, self.function = layout, function
        self._places = {clique: host(layout, clique) for clique in cliques}
        self.unit, self.least = 1.0, -inf

    def value_and_gradient(self, marginals: torch.Tensor) -> tuple[float, torch.Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            point = marginals.clone().requires_grad_()
            value = self.function(self._named(point))
            if not isinstance(value, torch.Tensor) or value.ndim or not value.requires_grad:
                raise InvalidInput(
                    "loss must be a callable that computes a scalar torch tensor from the tables "
                    f"that it gets, so that torch can differentiate it, got {value!r:.60}"
                )
            (gradient,) = torch.autograd.grad(value, point)
        return float(value.detach()), gradient

    def cut(self, marginals: torch.Tensor) -> Cut:
        value, gradient = self.value_and_gradient(marginals)
        products = gradient * marginals
        size = abs(value) + float(products.abs().sum())
        return Cut(value - float(products.sum()), gradient, size)

    def rounding(self, marginals: torch.Tensor) -> float:
        value, gradient = self.value_and_gradient(marginals)
        eps = ULPS * torch.finfo(marginals.dtype).eps
        return eps * (abs(value) + float((gradient * marginals).abs().sum()))

    def _named(self, point: torch.Tensor) -> dict[Clique, torch.Tensor]:
        tables = self.layout.split(point)
        held = self.layout.cliques
        return {
            clique: tensor_sum_to(tables[place], held[place], clique)
            for clique, place in self._places.items()
        }


PENALTIES: dict[str, Penalty] = {"squared": Squared(), "absolute": Absolute(), "huber": Huber()}


def known_loss(loss: LossLike) -> Penalty | CallableLoss:
    """Return the penalty of a name, and a penalty or a callable as it is. Raises InvalidInput, with
    the known names, for anything else.
    """
    known = PENALTIES.get(loss) if isinstance(loss, str) else loss
    if isinstance(known, type) or not (callable(known) or isinstance(known, Penalty)):
        raise InvalidInput(
            f"loss must be one of {', '.join(map(repr, PENALTIES))}, a penalty of pgmkit.losses "
            f"such as Huber(), or a function, got {shown(loss)}"
        )
    return known


def statistics(
    domain: Domain, measurements: Sequence[Measurement], loss: LossLike, deadline: float = inf
) -> Statistics:
    """Return the sufficient statistics of the measurements for this loss. A callable loss needs the
    measured cliques alone, so the last measurement of each is kept. ``deadline`` is a time of
    ``time.perf_counter``, for the squared loss only: measurements that have not been combined by
    then stay as they are.
    """
    known = known_loss(loss)
    if isinstance(known, Squared):
        return combined(domain, measurements, deadline=deadline)
    if isinstance(known, Penalty):
        return side_by_side(domain, measurements)
    one_each = list({m.clique: m for m in measurements}.values())
    values, count = [m.values for m in one_each], sum(len(m.values) for m in one_each)
    return Statistics(one_each, values, np.zeros(()), count, [])


def make_loss(
    loss: LossLike,
    layout: Layout,
    measurements: Sequence[Measurement],
    dtype: torch.dtype,
    device: torch.device,
    count: int | None = None,
) -> Loss:
    """Return the loss that a name, a penalty or a callable stands for, as a function of the flat
    vector of the marginals (counts) of ``layout``, of this dtype on this device. ``count`` is the
    number of values from which the ``measurements`` were combined (None: as many as they have).
    """
    known = known_loss(loss)
    if isinstance(known, Penalty):
        return MeasuredLoss(Observations(layout, measurements, dtype, device), known, count)
    return DifferentiableLoss(layout, [m.clique for m in measurements], known)
