"""The relaxed problem solved by interior points, for measurements whose matrices mix many cells.

    minimise  sum phi(Q x - y)  subject to  M_c x_c = (total, s_c) for each region c,  x >= 0

Here phi is the penalty of the loss, Q the measurements' matrices and y their values, both in units
of the noise; x_c are the cells of region c, and M_c takes them to their sum and to the residuals
s_c that the region shares with others. Projected gradients need thousands of steps if the loss
is ill conditioned, as with cumulative sums of two attributes. Here each region has a Newton matrix
of its own, and regions are coupled only through the shared residuals s
(``pgmkit.regions.parts``), so that some tens of rounds of small dense factorisations end
at a certificate.

With phi*(u) = c u^2 / 2 for |u| <= h the conjugate of the penalty (c and h are numbers of the
penalty, the same for all regions), l the multipliers and z, a, b the slacks of the bounds, the
optimum satisfies the constraints above and

    Q'u - M'l = z >= 0,  x z = 0,  Q x - y = c u + a - b,  a (h - u) = 0 = b (h + u),  a, b >= 0,

and the multipliers of the shared residuals sum to zero over the regions, in all directions that s
may take. Newton's method follows these equations from products of a common size to products of zero
(Mehrotra, 1992).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import cho_factor, cho_solve

from pgmkit.losses import Penalty
from pgmkit.regions.parts import Parts, Region, Shared
from pgmkit.regions.polytope import LocalPolytope
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import AGREEMENT, FAR
from pgmkit.runtime.progress import check_time

Targets = tuple[Array, Array, Array]
"""The wanted changes of the three products x z, a (h - u) and b (h + u), which are zero at the
optimum.
"""

_TO_BOUNDARY = 0.995
"""The share of the way to the nearest boundary that a step may go, so that all cells stay positive
(Nocedal and Wright, section 14.2, have 0.9 to 1).
"""


class Local(NamedTuple):
    """One region's unknowns, or changes of them, named as in the module's equations;
    ``multipliers`` are l.
    """

    x: Array
    z: Array
    multipliers: Array
    u: Array
    a: Array
    b: Array

    def along(self, other: Local, step: float) -> Local:
        """Return these unknowns plus ``step`` times ``other``."""
        return Local(*(here + step * d for here, d in zip(self, other, strict=True)))

    def products(self, height: float) -> Targets:
        """Return the products x z, a (h - u) and b (h + u), which are zero at the optimum."""
        return self.x * self.z, self.a * (height - self.u), self.b * (height + self.u)

    def longest(self, other: Local, height: float) -> float:
        """Return the longest step along ``other``, at most 1, after which no quantity that must not
        be negative is negative.
        """
        here = np.concatenate([self.x, self.z, self.a, self.b, height - self.u, height + self.u])
        change = np.concatenate([other.x, other.z, other.a, other.b, -other.u, other.u])
        falls = change < 0
        return float((here[falls] / -change[falls]).min(initial=1.0))


class InteriorPoint:
    """An interior-point search: each ``step`` improves the state, from which ``tables`` and
    ``bound`` compute the result so far.

    The constructor and ``step`` raise OutOfTime at the ``deadline`` of ``time.perf_counter``; the
    state then stays as it was.
    """

    def __init__(
        self, polytope: LocalPolytope, parts: Parts, penalty: Penalty, deadline: float = inf
    ) -> None:
        self._deadline = deadline
        self.regions, self.shared = parts
        self.total, self._cells = polytope.total, int(polytope.offsets[-1])
        self._softness, self._height = penalty.curvature, min(penalty.steepest, FAR)
        self._s = self.shared.offset
        self._state = [self._start(region) for region in self.regions]
        self._constant: list[Array | None] = [None] * len(self.regions)
        if self._height == FAR:  # u has no bounds, so Q'WQ is the same in every step
            for place, region in enumerate(self.regions):
                check_time(deadline)
                weights = np.full(len(region.values), 1 / self._softness)
                self._constant[place] = region.curvature(weights)

    def _start(self, region: Region) -> Local:
        """Return a start with uniform tables and products that all are of about the same size."""
        check_time(self._deadline)
        x = np.full(len(region.cells), self.total / len(region.cells))
        residual = region.view @ x - region.values
        highest = 0.9 * self._height
        u = residual if self._softness else np.sign(residual) * highest
        u = np.clip(u / (self._softness or 1.0), -highest, highest)
        slope = region.view.T @ u
        low = float(slope.min() - np.ptp(slope) - 1e-12 * (1 + np.abs(slope).max()))
        multipliers = np.zeros(len(region.shared))
        multipliers[0] = low
        left = residual - self._softness * u
        size = float((x * (slope - low)).mean())
        a, b = (np.maximum(side, 0) + size / self._height for side in (left, -left))
        return Local(x, slope - low, multipliers, u, a, b)

    @property
    def tables(self) -> Array:
        """The tables in counts, one after the other in one vector. They agree up to rounding and to
        the error that the state still leaves in the constraints.
        """
        flat = np.zeros(self._cells)
        for region, local in zip(self.regions, self._state, strict=True):
            flat[region.cells] = local.x
        return flat

    def bound(self) -> float:
        """Return a lower bound on the loss of all tables that agree locally, by Fenchel's
        inequality at u.
        """
        shared = self.shared.gathered([local.multipliers[1:] for local in self._state])
        excess, left = self.shared.spread(shared)
        # After `excess` is subtracted, the multipliers sum over the regions to `left`. The product
        # left @ s is the same for every s that the constraints allow, so it is computed at the
        # offset.
        bound = float(left @ self.shared.offset)
        for region, local in zip(self.regions, self._state, strict=True):
            u, multipliers = local.u, local.multipliers[1:] - excess[region.places]
            least = float((region.view.T @ u - region.shared[1:].T @ multipliers).min())
            bound += self.total * least - float(u @ (self._softness * u / 2 + region.values))
        return bound

    def step(self) -> float:
        """Make one predictor-corrector step, and return its length as a share of Newton's step.

        Raises LinAlgError if rounding leaves a matrix that is not positive definite, or not finite.
        """
        state, height = self._state, self._height
        parts = []
        for region, local, fixed in zip(self.regions, state, self._constant, strict=True):
            check_time(self._deadline)
            wanted = np.concatenate([[self.total], self._s[region.places]])
            parts.append(_Elimination(region, local, wanted, self._softness, height, fixed))
        newton = _Newton(parts, self.shared, self._deadline)
        # The predictor aims at products of zero.
        products = [local.products(height) for local in state]
        predicted, _ = newton.move([(-xz, -upper, -lower) for xz, upper, lower in products])
        mean = _mean(state, height)
        length = _longest(state, predicted, height)
        # The corrector aims at products of a common size, which is the smaller the farther the
        # predictor could go, and corrects for the products of the predictor's changes.
        there = [local.along(d, length) for local, d in zip(state, predicted, strict=True)]
        centre = (_mean(there, height) / mean) ** 3 * mean
        targets = [
            (centre - xz - d.x * d.z, centre - upper + d.a * d.u, centre - lower - d.b * d.u)
            for (xz, upper, lower), d in zip(products, predicted, strict=True)
        ]
        moves, s = newton.move(targets)
        length = min(1.0, _TO_BOUNDARY * _longest(state, moves, height))
        self._state = [local.along(d, length) for local, d in zip(state, moves, strict=True)]
        self._s = self._s + length * s
        return length


class _Elimination:
    """Newton's equations of one region, after all unknowns except x and the multipliers have been
    eliminated:

        (Q'WQ + Z/X) dx - M'dl = r,  M dx = m + ds_c.

    W, X and Z are the diagonal matrices of ``weights``, x and z. ``inner`` multiplies by the
    inverse of Q'WQ + Z/X; ``curvature`` is Q'WQ, or None if it has to be computed. ``up`` and
    ``down`` are h - u and h + u. The other arrays are by how much the state violates the equations
    of the optimum: ``wrong`` is M'l + z - Q'u, ``missing`` is m = (total, s_c) - M x, where
    ``wanted`` is (total, s_c), and ``residual`` is Q x - y - c u - a + b.
    """

    def __init__(
        self,
        region: Region,
        local: Local,
        wanted: Array,
        softness: float,
        height: float,
        curvature: Array | None,
    ) -> None:
        self.region, self.local = region, local
        # Eliminating a, b and u leaves W = 1 / (c + a / (h - u) + b / (h + u)), with c = softness
        # and h = height; eliminating z leaves Z/X.
        self.up, self.down = height - local.u, height + local.u
        self.weights = 1 / (softness + local.a / self.up + local.b / self.down)
        curvature = region.curvature(self.weights) if curvature is None else curvature
        self.inner = _Inverse(curvature, local.z / local.x)
        self.wrong = region.shared.T @ local.multipliers + local.z - region.view.T @ local.u
        self.missing = wanted - region.shared @ local.x
        self.residual = region.view @ local.x - region.values - softness * local.u
        self.residual += local.b - local.a

    @cached_property
    def outer(self) -> _Inverse:
        """A function that multiplies by the inverse of M (Q'WQ + Z/X)^-1 M', in the symbols of the
        class.
        """
        return _Inverse(self.region.shared @ self.inner(self.region.shared.T))

    def right(self, targets: Targets) -> tuple[Array, Array]:
        """Return r, and the part of du that does not depend on dx, if the products are to change by
        ``targets``.
        """
        tx, ta, tb = targets
        push = self.weights * (self.residual - ta / self.up + tb / self.down)
        return self.wrong + tx / self.local.x - self.region.view.T @ push, push

    def move(self, targets: Targets, multipliers: Array) -> Local:
        """Return the changes of all unknowns with which the products change by ``targets``, given
        the changes ``multipliers`` of the multipliers.
        """
        (tx, ta, tb), local = targets, self.local
        right, push = self.right(targets)
        x = self.inner(right + self.region.shared.T @ multipliers)
        u = self.weights * (self.region.view @ x) + push
        return Local(
            x,
            (tx - local.z * x) / local.x,
            multipliers,
            u,
            (ta + local.a * u) / self.up,
            (tb - local.b * u) / self.down,
        )


class _Newton:
    """Newton's equations of all regions. The unknowns of each region are eliminated, and the
    equations that remain, of the shared residuals, are solved.
    """

    def __init__(self, parts: Sequence[_Elimination], shared: Shared, deadline: float) -> None:
        self.parts, self.shared, self._deadline = parts, shared, deadline
        size = len(shared.offset)
        matrix = np.zeros((size, size))
        for part in parts:
            check_time(deadline)
            places = part.region.places
            matrix[np.ix_(places, places)] += part.outer(np.eye(len(places) + 1))[1:, 1:]
        free = shared.free
        self.both = _Inverse(matrix if free is None else free.T @ matrix @ free)

    def move(self, targets: Sequence[Targets]) -> tuple[list[Local], Array]:
        """Return the changes of each region's unknowns that change its products by ``targets``, and
        the changes of the shared residuals.
        """
        check_time(self._deadline)
        short = [
            part.missing - part.region.shared @ part.inner(part.right(each)[0])
            for part, each in zip(self.parts, targets, strict=True)
        ]
        present = [
            part.local.multipliers[1:] + part.outer(each)[1:]
            for part, each in zip(self.parts, short, strict=True)
        ]
        s, free = -self.shared.gathered(present), self.shared.free
        s = self.both(s) if free is None else free @ self.both(free.T @ s)
        moves = [
            part.move(each, part.outer(lack + np.concatenate([[0.0], s[part.region.places]])))
            for part, each, lack in zip(self.parts, targets, short, strict=True)
        ]
        return moves, s


class _Inverse:
    """A function that multiplies by the inverse of M + D, which must be positive definite. M is
    ``matrix``, or the diagonal matrix of it if it is a vector; D is the diagonal matrix of
    ``diagonal``. A small ridge is added to the sum if M is a full matrix.

    Raises LinAlgError if a full matrix is not positive definite or not finite, and so does the
    function for a right side that is not finite.
    """

    def __init__(self, matrix: Array, diagonal: Array | float = 0.0) -> None:
        self._vector = matrix + diagonal if matrix.ndim == 1 else None
        if matrix.ndim == 2 and len(matrix):
            whole = matrix.copy()
            whole[np.diag_indices(len(whole))] += diagonal + AGREEMENT * matrix.diagonal().max()
            self._factor = cho_factor(_finite(whole), overwrite_a=True, check_finite=False)

    def __call__(self, right: Array) -> Array:
        right = _finite(right)
        if self._vector is not None:
            return np.asarray((right.T / self._vector).T)
        if not len(right):
            return right
        return np.asarray(cho_solve(self._factor, right, check_finite=False))


def _finite(array: Array) -> Array:
    """Return the array. Raises LinAlgError if an entry is not finite, as happens when a cell
    becomes zero.
    """
    if not np.isfinite(array).all():
        raise LinAlgError("rounding left numbers that are not finite")
    return array


def _mean(state: Sequence[Local], height: float) -> float:
    products = np.concatenate([part for local in state for part in local.products(height)])
    return float(products.mean())


def _longest(state: Sequence[Local], moves: Sequence[Local], height: float) -> float:
    return min(here.longest(move, height) for here, move in zip(state, moves, strict=True))
