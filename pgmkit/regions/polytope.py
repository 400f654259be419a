"""The local polytope: nonnegative tables that agree wherever two of them overlap.

The marginals of every distribution lie in it; if the cliques are decomposable, it has no other
points. It needs no tree: its size is the sum of the tables' sizes, however their cliques overlap.
Projections onto it are exact up to rounding, in any diagonal metric, as searches in it require.
``pgmkit.least_squares.consistency`` solves the same problem for many sets of measurements at once,
and gives a valid bound whenever it is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, log
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import wrightomega, xlogy

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, NumericalFailure
from pgmkit.least_squares.conjugate_gradients import solution
from pgmkit.least_squares.consistency import agreement_and_totals
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ITERATIONS, SOLVED, SUFFICIENT
from pgmkit.runtime.precision import AGREEMENT, CLOSE, HALVINGS
from pgmkit.runtime.progress import check_time
from pgmkit.structural_zeros import Zeros, possible_cells

_LONGEST = 1 / AGREEMENT
"""The longest step that is tried, as a multiple of a Newton step. If zeros contradict each other,
the steps would otherwise grow without end.
"""
_REFINEMENTS = ceil(log(CLOSE) / log(SOLVED))
"""The number of refinements of a linear system's solution. Each leaves a share ``SOLVED`` of the
error, all together ``CLOSE``.
"""


@dataclass(frozen=True)
class EntropicPrior:
    """The penalty w (x log(x / q) - x + q), summed over all cells x of a vector of tables, where w
    is ``weight`` and ``q`` has a positive number for each cell. It is added to the squared distance
    from a target.
    """

    weight: float
    q: Array

    def cells(self, free: Array, curvature: Array) -> Array:
        """Return, for each cell, the x with ``curvature`` (x - ``free``) + w log(x / q) = 0."""
        scale = self.weight / curvature
        return np.asarray(scale * wrightomega(free / scale + np.log(self.q / scale)))

    def slopes(self, x: Array, curvature: Array) -> Array:
        """Return the derivative of each cell of x, a result of the method ``cells`` with the same
        ``curvature``, with respect to ``free``.
        """
        return x / (x + self.weight / curvature)

    def penalty(self, x: Array) -> float:
        """Return the penalty at x."""
        return self.weight * float((xlogy(x, x / self.q) - x + self.q).sum())


@dataclass(frozen=True)
class LocalPolytope:
    """The set of tables over ``cliques``, concatenated to one vector x of counts, with B x = b and
    x >= 0.

    Any two tables agree, jointly, on all attributes that they share; each sums to ``total``; cells
    that ``zeros`` within a clique rule out are zero.
    """

    domain: Domain
    cliques: tuple[Clique, ...]
    total: float
    zeros: tuple[Zeros, ...] = ()

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The place of the first cell of each table, and the number of all cells."""
        return np.cumsum([0] + [self.domain.size(clique) for clique in self.cliques])

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """A mask of the cells that may have records: those that no zero rules out, neither in the
        table itself nor through other tables that share attributes with it. Raises InvalidInput if
        a table has no such cell.
        """
        limits = [possible_cells(self.domain, clique, self.zeros) for clique in self.cliques]
        found = np.concatenate([table.reshape(-1) for table in limits])
        if not self.zeros:
            return found
        # Two tables agree on a combination of values only if both have possible cells with it, or
        # neither has. If one has, its cells are ruled out, which may affect further tables. The
        # rows of sums are left out: all their entries are positive.
        matrix, _, sums = self.constraints
        rows = matrix[sums == 0]
        one, other = (rows > 0).astype(np.int64), (rows < 0).astype(np.int64)
        while (apart := (one @ found > 0) != (other @ found > 0)).any():
            found &= ~(rows.T.astype(bool) @ apart)
        for clique, table in zip(self.cliques, self.split(found), strict=True):
            if not table.any():
                held = [each.clique for each in self.zeros]
                raise InvalidInput(
                    f"the structural zeros over {', '.join(map(repr, held))} leave no possible "
                    f"record: together they rule out every cell over {clique!r}; allow more"
                )
        return found

    @cached_property
    def constraints(self) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array, Array]:
        """The matrix B, its transpose, and the vector b."""
        matrix, agreeing = agreement_and_totals(self.domain, self.cliques)
        sums = np.full(matrix.shape[0], self.total)
        sums[:agreeing] = 0.0
        return matrix, matrix.T.tocsr(), sums

    def even(self) -> Array:
        """Return the uniform tables: a point of the polytope if there are no zeros."""
        sizes = np.diff(self.offsets)
        return np.repeat(self.total / sizes, sizes)

    def split(self, cells: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the tables, in their shapes, of a vector that has their cells one table after the
        other.
        """
        parts = np.split(cells, self.offsets[1:-1])
        shapes = map(self.domain.shape, self.cliques)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def lowest(self, gradient: Array, multipliers: Array) -> float:
        """Return a lower bound on <gradient, x> over the polytope, which is valid for any
        multipliers of B x = b.

        What remains of the gradient after subtracting B' multipliers is bounded table by table, by
        its least entry.
        """
        _, transposed, sums = self.constraints
        left = np.where(self.allowed, gradient - transposed @ multipliers, np.inf)
        least = np.minimum.reduceat(left, self.offsets[:-1])
        return float(sums @ multipliers + self.total * least.sum())

    def nearest(
        self,
        target: Array,
        curvature: Array,
        start: Array | None = None,
        prior: EntropicPrior | None = None,
        deadline: float = inf,
    ) -> tuple[Array, Array]:
        """Return the point x of the polytope that minimises the sum of curvature (x - target)^2 /
        2, plus the penalty of ``prior`` if there is one, and the multipliers of B x = b.

        The method is semismooth Newton on the Lagrange dual. Without a prior, its solution is x =
        max(0, target + B'l / curvature) for multipliers l, and each step solves B A B' d = b - B x
        by conjugate gradients, where A is 1 / curvature for positive x and 0 otherwise. ``start``
        are multipliers of a similar problem. The tables agree to 1e-12 of the total (of the largest
        target, if that is up to a thousand times larger) or, where rounding prevents it, to 1e-9.

        Raises InvalidInput if the zeros leave no possible cell of a table (``allowed``),
        NumericalFailure if no such tables are found, as with zeros that contradict each other in
        another way, and OutOfTime at the ``deadline`` of ``time.perf_counter``.

        >>> square = LocalPolytope(Domain({"a": 2}), (("a",),), 2.0)
        >>> square.nearest(np.array([3.0, -1.0]), np.ones(2))[0].round(6)
        array([2., 0.])
        """
        _, transposed, _ = self.constraints
        size = max(self.total, float(np.abs(target).max(initial=0.0)))
        x, multipliers = self._projected(target, curvature, start, prior, size, deadline)
        left = multipliers
        # Targets far beyond the total leave their rounding in the sums. If A'm / curvature is added
        # to them for multipliers m, the solution stays the same, and the targets are near it where
        # it is positive. So they are projected once more, with less rounding, and the multipliers
        # are added up.
        while size > 1e3 * self.total:
            target = target + (transposed @ left) / curvature
            size = max(self.total, float(x.max()))
            x, left = self._projected(target, curvature, None, prior, size, deadline)
            multipliers = multipliers + left
        return x, multipliers

    def _projected(
        self,
        target: Array,
        curvature: Array,
        start: Array | None,
        prior: EntropicPrior | None,
        size: float,
        deadline: float,
    ) -> tuple[Array, Array]:
        """Return the result of ``nearest`` for this target, whose sums are right to 1e-12 of
        ``size``, the largest number that takes part in them, or, where rounding prevents it, to
        1e-9 of ``size``. Raises the errors of ``nearest``.
        """
        matrix, transposed, sums = self.constraints
        multipliers = np.zeros(len(sums)) if start is None else start
        precision = AGREEMENT * size

        def at(point: Array) -> tuple[Array, float, Array]:
            free = target + (transposed @ point) / curvature
            x = np.maximum(free, 0) if prior is None else prior.cells(free, curvature)
            x = np.where(self.allowed, x, 0.0)
            missing = sums - matrix @ x
            penalty = prior.penalty(x) if prior is not None else 0.0
            return x, float(curvature @ (x - target) ** 2 / 2 + point @ missing) + penalty, missing

        x, dual, missing = at(multipliers)
        for _ in range(MOST_ITERATIONS):
            off = float(np.abs(missing).max())
            if off <= precision:
                return x, multipliers
            direction = self.newton_direction(
                _slopes(x, curvature, prior), curvature, missing, deadline
            )
            slope, step = float(missing @ direction), 1.0
            for _ in range(HALVINGS):
                moved = multipliers + step * direction
                x, higher, left = at(moved)
                # Close to the solution, changes of the dual are lost in rounding. A step is then
                # accepted if the dual's slope at its end still points upwards, or if the error of
                # the sums is halved.
                risen = higher >= dual + SUFFICIENT * step * slope or left @ direction >= 0
                if risen or np.abs(left).max() < off / 2:
                    break
                step /= 2
            else:
                break
            # If all cells of a sum are zero, Newton's step has no scale, and distant targets need
            # longer steps. A step is doubled while the dual's slope after twice the step points
            # upwards. The dual's value cannot decide this: there it may be the same up to rounding,
            # as may the error of the sums.
            while 1 <= step < _LONGEST:
                further = multipliers + 2 * step * direction
                beyond, value, rest = at(further)
                if not rest @ direction > 0:
                    break
                step, moved, higher, left, x = 2 * step, further, value, rest, beyond
            multipliers, dual, missing = moved, higher, left
        x, _, missing = at(multipliers)
        if float(np.abs(missing).max()) <= 1e3 * precision:
            return x, multipliers
        raise NumericalFailure(
            f"no tables were found that agree with each other: sums are off by "
            f"{float(np.abs(missing).max()):.3g} counts of {self.total:.6g}"
            + ("; the zeros may contradict each other" if self.zeros else "")
        )

    def moved(
        self,
        point: Array,
        curvature: Array,
        direction: Array,
        prior: EntropicPrior | None = None,
        deadline: float = inf,
    ) -> Array:
        """Return the derivative of the result of ``nearest`` if its target moves along
        ``direction``. ``point`` is that result, for the same ``curvature`` and ``prior``.

        Raises OutOfTime at the ``deadline`` of ``time.perf_counter``.
        """
        matrix, transposed, _ = self.constraints
        slopes = _slopes(point, curvature, prior)
        change = slopes * direction
        for _ in range(_REFINEMENTS):
            left = self.newton_direction(slopes, curvature, matrix @ change, deadline)
            change = change - slopes / curvature * (transposed @ left)
        return change

    def newton_direction(
        self, slopes: Array, curvature: Array, missing: Array, deadline: float
    ) -> Array:
        """Return the d with B A B' d = ``missing``, approximately, where A is the diagonal matrix
        of ``slopes`` / ``curvature`` and a small ridge is added to B A B'. Raises OutOfTime at the
        ``deadline``.
        """
        matrix, transposed, _ = self.constraints
        weights, squared = slopes / curvature, matrix.power(2)
        diagonal = squared @ weights
        ridge = AGREEMENT * diagonal + 1e-3 * AGREEMENT * float(diagonal.max(initial=1.0))
        # A row without a positive cell has no curvature. It gets a thousandth of the one that it
        # would have if all its cells were positive, so that the matrix is not singular.
        ridge = np.where(diagonal > 0, ridge, 1e-3 * (squared @ (1 / curvature)))

        def multiply(vector: Array) -> Array:
            check_time(deadline)
            return np.asarray(matrix @ (weights * (transposed @ vector)) + ridge * vector)

        return solution(multiply, missing, diagonal + ridge, SOLVED, MOST_ITERATIONS)


def _slopes(x: Array, curvature: Array, prior: EntropicPrior | None) -> Array:
    """Return the derivative of each cell of the projection `x` with respect to the value that it
    would have without bound or prior: 1 if it is positive and 0 otherwise, or `prior.slopes`.
    """
    return (x > 0).astype(float) if prior is None else prior.slopes(x, curvature)
