"""What estimation minimises: convex losses of marginals, with gradients and lower bounds.

Measured losses are sums of phi(r_i) over standardised residuals r = (Q mu - y) / stddev, so the
squared loss weighs by the inverse variance and the absolute loss by the inverse scale. Every loss
also gives a *cut*: a linear function of the marginals that nowhere exceeds the loss; minimised
over the marginal polytope it certifies how far a model is from the optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod, sqrt
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.inference.marginal_oracle import Clique, Layout
from pgmkit.least_squares.sufficient_statistics import Statistics, combined, side_by_side
from pgmkit.linear.kronecker import Kronecker
from pgmkit.linear.matrix import as_dense, is_sparse
from pgmkit.measurement import Measurement
from pgmkit.runtime.deferred import torch

if TYPE_CHECKING:
    from scipy.sparse import csr_array

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
    """How far the loss of the truth itself varies: about sqrt(cells / 2) with Gaussian noise."""
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
        """How far the loss moves when every marginal and value moves by a few units in its last
        place: no search in this precision can do better.
        """
        ...

    def smooth_stages(self) -> Sequence[Loss]:
        """Differentiable stand-ins, ever closer; a smooth loss is its own only stage."""
        ...


_FEW_ENTRIES = 1024
"""Entries of a dense matrix whose calls of its own take longer than its entries."""
_LARGE_TABLE = 1 << 16
"""Cells of a clique whose sums along axes cost less than a gather with an index for each cell, of
eight bytes beside the cell's own eight; calls of their own for smaller ones cost more."""


class Observations:
    """The standardised linear view r = (Q mu - y) / stddev of all measurements, and its adjoint.

    Tables, sparse and small matrices of all measurements act as one sparse matrix in coordinate
    form (one gather and one scatter for everything); large tables, large dense matrices and
    Kronecker products act one by one, along their axes. Tables that are all cliques in their order
    need no index at all.
    """

    def __init__(
        self,
        layout: Layout,
        measurements: Sequence[Measurement],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layout = layout
        whole = [m.clique if m.matrix is None else None for m in measurements]
        straight_through = whole == list(layout.cliques)
        sparse: list[Measurement] = []
        dense: list[Measurement] = []
        for m in measurements:
            alone = not straight_through and not _acts_by_coordinates(layout, m)
            (dense if alone else sparse).append(m)
        rows, columns, weights = standardised(layout, sparse)
        self._sparse_rows = start = sum(len(m.values) for m in sparse)
        self._rows, self._columns = (torch.as_tensor(p, device=device) for p in (rows, columns))
        self._weights = torch.as_tensor(weights, dtype=dtype, device=device)
        straight = torch.arange(layout.cells, device=device)
        self._diagonal = (
            start == layout.cells  # a matrix may end in rows of zeros
            and torch.equal(self._rows, straight)
            and torch.equal(self._columns, straight)
        )
        self._dense = [_DenseView(layout, m, dtype, device) for m in dense]
        self._measurements = sparse + dense
        values = [m.values / m.stddev for m in self._measurements]
        target = np.concatenate([np.zeros(0), *values])
        self.target = torch.as_tensor(target, dtype=dtype, device=device)

    def matrix(self) -> csr_array:
        """Q / stddev, written out."""
        from scipy.sparse import csr_array

        rows, columns, weights = standardised(self.layout, self._measurements)
        return csr_array((weights, (rows, columns)), (len(self.target), self.layout.cells))

    def residual(self, marginals: torch.Tensor) -> torch.Tensor:
        """(Q mu - y) / stddev, one entry per measured value."""
        return self.applied(marginals) - self.target

    def applied(self, marginals: torch.Tensor) -> torch.Tensor:
        """Q mu / stddev."""
        if self._diagonal:
            applied = marginals * self._weights
        else:
            picked = marginals.index_select(0, self._columns).mul_(self._weights)
            applied = torch.zeros(self._sparse_rows, dtype=picked.dtype, device=picked.device)
            applied.index_add_(0, self._rows, picked)
        parts = [applied, *(view.apply(marginals) for view in self._dense)]
        return torch.cat(parts) if len(parts) > 1 else applied

    def variances(self, marginals: torch.Tensor, total: float) -> torch.Tensor:
        """The variance of each value's row, over one record of the model, times the total."""
        squares = marginals.index_select(0, self._columns).mul_(self._weights.square())
        second = torch.zeros(self._sparse_rows, dtype=squares.dtype, device=squares.device)
        second.index_add_(0, self._rows, squares)
        parts = [second, *(view.apply_squares(marginals) for view in self._dense)]
        first = self.applied(marginals)
        return (torch.cat(parts) - first.square() / total).clamp_min(0.0)

    def adjoint(self, dual: torch.Tensor) -> torch.Tensor:
        """Q^T (dual / stddev) as a flat vector over the cliques' cells."""
        if self._diagonal and not self._dense:
            return dual * self._weights
        picked = dual.index_select(0, self._rows).mul_(self._weights)
        result = torch.zeros(self.layout.cells, dtype=dual.dtype, device=dual.device)
        result.index_add_(0, self._columns, picked)
        start = self._sparse_rows
        for view in self._dense:
            view.add_adjoint(dual[start : start + view.rows], result)
            start += view.rows
        return result


def host(layout: Layout, clique: Clique) -> int:
    """The smallest of the layout's cliques that contains ``clique``."""
    return min(layout.index.containing(clique), key=lambda i: prod(layout.shapes[i]))


def _acts_by_coordinates(layout: Layout, m: Measurement) -> bool:
    if m.matrix is None:
        return prod(layout.shapes[host(layout, m.clique)]) < _LARGE_TABLE
    if is_sparse(m.matrix):
        return True
    return not isinstance(m.matrix, Kronecker) and prod(m.matrix.shape) <= _FEW_ENTRIES


def standardised(
    layout: Layout, measurements: Sequence[Measurement]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, flat column and entry of every nonzero of Q / stddev, the rows of all measurements one
    after the other.
    """
    rows, columns = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    weights, start = [np.zeros(0)], 0
    for m in measurements:
        i, j, w = coordinates(layout, m)
        rows.append(i + start)
        columns.append(j)
        weights.append(w / m.stddev)
        start += len(m.values)
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(weights)


def coordinates(layout: Layout, m: Measurement) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, flat column and weight of every nonzero of (matrix times projection)."""
    place = host(layout, m.clique)
    cell = layout.domain.cell_map(layout.cliques[place], m.clique)
    start = layout.slices[place].start
    if m.matrix is None:
        return cell, np.arange(len(cell), dtype=np.int64) + start, np.ones(len(cell))
    import scipy.sparse

    ones = np.ones(len(cell))
    projection = scipy.sparse.csr_array(
        (ones, (cell, np.arange(len(cell)))), (int(cell.max()) + 1, len(cell))
    )
    matrix = m.matrix.to_dense() if isinstance(m.matrix, Kronecker) else m.matrix
    both = scipy.sparse.coo_array(scipy.sparse.csr_array(matrix) @ projection)
    return (
        both.row.astype(np.int64),
        both.col.astype(np.int64) + start,
        both.data.astype(np.float64),
    )


class _DenseView:
    """One table, or one measurement with a dense or Kronecker matrix, applied axis by axis."""

    def __init__(
        self, layout: Layout, m: Measurement, dtype: torch.dtype, device: torch.device
    ) -> None:
        place = host(layout, m.clique)
        held = layout.cliques[place]
        self._slice, self._shape = layout.slices[place], layout.shapes[place]
        self._summed = [i for i, name in enumerate(held) if name not in m.clique]
        kept = [name for name in held if name in m.clique]
        self._order = [kept.index(name) for name in m.clique]
        self._kept_shape = [layout.domain.sizes[name] for name in m.clique]
        self._by_axis = m.matrix is None or isinstance(m.matrix, Kronecker)
        given = m.matrix.factors if isinstance(m.matrix, Kronecker) else [m.matrix]
        self._factors = [
            torch.as_tensor(np.array(as_dense(f)), dtype=dtype, device=device)
            for f in given
            if f is not None
        ]
        self.rows, self._stddev = len(m.values), m.stddev

    def apply(self, marginals: torch.Tensor) -> torch.Tensor:
        return self._multiply(self._table(marginals), self._factors) / self._stddev

    def apply_squares(self, marginals: torch.Tensor) -> torch.Tensor:
        """As ``apply``, with every entry of the matrix squared."""
        squares = [factor.square() for factor in self._factors]
        return self._multiply(self._table(marginals), squares) / self._stddev**2

    def _table(self, marginals: torch.Tensor) -> torch.Tensor:
        table = marginals[self._slice].view(self._shape)
        return (table.sum(self._summed) if self._summed else table).permute(self._order)

    def add_adjoint(self, dual: torch.Tensor, into: torch.Tensor) -> None:
        shape = [f.shape[0] for f in self._factors] or self._kept_shape
        if not self._by_axis:
            shape = [self.rows]
        flat = self._multiply(dual.view(shape), [f.T for f in self._factors]) / self._stddev
        inverse = [self._order.index(i) for i in range(len(self._order))]
        table = flat.view(self._kept_shape).permute(inverse)
        for dim in self._summed:
            table = table.unsqueeze(dim)
        into[self._slice].view(self._shape).add_(table)

    def _multiply(self, table: torch.Tensor, factors: Sequence[torch.Tensor]) -> torch.Tensor:
        if not self._by_axis:
            return factors[0] @ table.reshape(-1)
        for axis, factor in enumerate(factors):
            table = torch.movedim(torch.tensordot(factor, table, dims=([1], [axis])), 0, axis)
        return table.reshape(-1)


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
        """By how much the loss at ``new`` exceeds its tangent at ``old``; large ones not taken
        from each other.
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
    """What this loss has to know of the measurements: a callable, their cliques alone."""
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
