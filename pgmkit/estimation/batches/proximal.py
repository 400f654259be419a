"""Proximal steps on many problems of one structure, near one model, with a common metric.

For each set of measured values y, with B the matrix that maps the cells of all cliques to these
values (both y and B in units of the noise), T the total, p_0 the distribution to start from and eta
the length, a step solves

    minimise  |T B p - y|^2 / 2 + (T / eta) KL(p, p_0)   over all distributions p.

Its dual has one multiplier u for each measured value and no constraints,

    minimise  |u|^2 / 2 - <u, y> + (T / eta) log E_{p_0} exp(eta <u, B>).

The solution p is proportional to p_0 exp(eta u B), so it is a graphical model over the same
cliques, and the gradient costs one pass of inference. At p_0 the Hessian is I + eta B C B', with C
the covariance of the cliques' counts over T records. All sets are redrawn measurements of one
model. So C is computed once, for that model. In the coordinates in which the Hessian is the
identity, L-BFGS ends after a few passes.

Along an eigenvector of B C B' with eigenvalue lambda, a step leaves 1 / (1 + eta lambda) of the
distance between the model's answers and the values y, which the redrawn noise causes. The noise has
variance 1, and lambda is the variance of the model's own counts in units of that variance.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular

from pgmkit.estimation.batches.oracle import BatchedOracle, table_cells
from pgmkit.estimation.batches.search import BatchedSearch
from pgmkit.estimation.limited_memory import Function, Run
from pgmkit.estimation.tensor_steps import Points
from pgmkit.inference.layout import Layout
from pgmkit.linear.kronecker import nonzeros
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import SLIGHT, WINDOW
from pgmkit.runtime.precision import EPSILON
from pgmkit.runtime.sizes import BLOCK_CELLS, DENSE_ROWS

_STEP = 100.0
"""The length eta. After two steps less than a hundredth of the distance to y is left even in a
direction in which the counts' variance is a tenth of the noise's (lambda = 0.1). With steps ten
times as long, L-BFGS needs many more passes if counts are near zero, and sometimes fails.
"""
_MOST_STEPS = WINDOW // 2
_MOST_PASSES = 2 * WINDOW
"""The largest number of passes of a step. It need not be solved completely, since the next step
continues.
"""
_MOST_ROWS = 2 * DENSE_ROWS
"""The largest number of measured values, and of cells of all cliques, with which the matrices take
some hundred megabytes.
"""


def affordable(layout: Layout, measurements: Sequence[Measurement]) -> bool:
    """Return True if the covariances of all cells and ``ProximalSteps.factor``, with a row for each
    measured value, fit into memory, and the factor does not take too many multiplications to
    compute. It takes as many as the number of cells times the number of nonzero entries of the
    measurements' matrices.
    """
    if max(layout.cells, sum(len(m.values) for m in measurements)) > _MOST_ROWS:
        return False
    entries = sum(len(m.values) if m.matrix is None else nonzeros(m.matrix) for m in measurements)
    return layout.cells * entries <= _MOST_ROWS**2


@dataclass
class ProximalSteps:
    """Proximal steps on the problems of ``search``, in coordinates in which the Hessian of the dual
    at the model with the potentials ``near`` is the identity.
    """

    search: BatchedSearch
    near: torch.Tensor

    def improved(self, points: Points) -> Points:
        """Return the points after some proximal steps, at which no set's loss is higher than at
        ``points``. A set takes no further steps after one that has lowered its loss by little.

        If counts are so large compared with the noise that rounding makes the Hessian impossible to
        factorise, the points are returned unchanged.
        """
        goal = SLIGHT * self.search.loss.unit
        left = torch.nonzero(points.loss - self.search.bound > goal).flatten()
        if not len(left):
            return points
        try:
            _ = self.factor
        except np.linalg.LinAlgError:
            return points
        points = Points(*(value.clone() for value in points))
        for _ in range(_MOST_STEPS):
            if not len(left) or time.perf_counter() >= self.search.deadline:
                break
            before = points.of(left)
            after = self._step(left, before)
            fallen = before.loss - after.loss
            better = fallen > 0
            for kept, new in zip(points, after.of(better), strict=True):
                kept[left[better]] = new
            left = left[fallen > goal]
        return points

    def _step(self, sets: torch.Tensor, origin: Points) -> Points:
        """Take one step from the points ``origin`` of the sets whose indices are in ``sets``, and
        return the points after it.
        """
        loss = self.search.loss.of(sets)
        whole = torch.as_tensor(self._multipliers(sets, origin).T, device=sets.device)
        moved = origin.potentials + _STEP * loss.gradient(whole)
        part = BatchedOracle(self.search.single, len(sets))
        marginals, log_partition = part.try_marginals(moved, self.search.totals[sets])
        reached = loss.value(loss.residual(marginals)).nan_to_num_(inf, inf, inf)
        return Points(moved, marginals, log_partition, reached)

    def _multipliers(self, sets: torch.Tensor, origin: Points) -> Array:
        """Return approximate solutions of the sets' dual problems: a column of multipliers for each
        set. The search for them is in coordinates in which the Hessians are close to the identity.
        """
        goal = SLIGHT * self.search.loss.unit

        def functions(columns: NDArray[np.int64]) -> Function:
            rows = torch.as_tensor(columns, device=sets.device)
            return self._dual(sets[rows], origin.of(rows))

        # The search begins at multipliers of zero, where the point is the origin, the dual
        # objective is 0 and its gradient is the residual.
        slopes = self._scaled(self.search.loss.of(sets).residual(origin.marginals))
        known, scale = (np.zeros(len(sets)), slopes), np.ones(len(sets))
        run = Run(functions(np.arange(len(sets))), np.zeros_like(slopes), known, scale)
        found, _ = run.until(
            lambda _: ~((run.gradients**2).sum(axis=0) / 2 >= goal),
            functions,
            _MOST_PASSES,
            self.search.deadline,
        )
        return self._unscaled(found)

    def _dual(self, sets: torch.Tensor, origin: Points) -> Function:
        """Return the function that L-BFGS minimises: the dual objectives of these sets, with their
        gradients, at scaled multipliers, a column for each set. Where inference fails, the value is
        infinite and the gradient means nothing.
        """
        search = self.search
        loss, totals = search.loss.of(sets), search.totals[sets]
        oracle = BatchedOracle(search.single, len(sets))

        def function(points: Array) -> tuple[Array, Array]:
            dual = torch.as_tensor(np.ascontiguousarray(self._unscaled(points).T)).to(totals.device)
            moved = origin.potentials + _STEP * loss.gradient(dual)
            marginals, log_partition = oracle.try_marginals(moved, totals)
            values = (dual * (dual / 2 - loss.target)).sum(1)
            values += totals / _STEP * (log_partition - origin.log_partition)
            slopes = self._scaled((dual + loss.residual(marginals)).nan_to_num(0.0))
            return values.nan_to_num(inf, inf, inf).cpu().numpy(), slopes

        return function

    def _scaled(self, rows: torch.Tensor) -> Array:
        columns = np.ascontiguousarray(rows.cpu().numpy().T)
        return np.asarray(solve_triangular(self.factor, columns, lower=True))

    def _unscaled(self, points: Array) -> Array:
        return np.asarray(solve_triangular(self.factor, points, lower=True, trans="T"))

    @cached_property
    def factor(self) -> Array:
        """The lower triangular Cholesky factor of the dual objective's Hessian at the model, with
        the mean of the sets' totals. Raises numpy's LinAlgError if rounding leaves a Hessian that
        is not positive definite.
        """
        loss, total = self.search.loss, float(self.search.totals.mean())
        half = loss.applied(_covariances(self.search, self.near)).cpu()
        whole = loss.applied(half.T.contiguous().to(self.near.device)).cpu().numpy()
        hessian = _STEP * total * (whole + whole.T) / 2
        hessian[np.diag_indices_from(hessian)] += 1.0
        return np.asarray(cholesky(hessian, lower=True, overwrite_a=True))


def _covariances(search: BatchedSearch, potentials: torch.Tensor) -> torch.Tensor:
    """Return the covariance matrix, for one record of the model, of the indicators of all cells of
    all cliques.

    The row of a cell is its probability times the difference between the marginals given the cell
    and those without condition. Cells of negligible probability get zeros.
    """
    one = search.single
    marginals, _ = one.fast_marginals(potentials, 1.0)
    found = torch.zeros(one.layout.cells, one.layout.cells, dtype=torch.float64).to(potentials)
    whole = [cells for cells in one.layout.slices for _ in range(cells.start, cells.stop)]
    at_once = max(1, BLOCK_CELLS // table_cells(one))
    oracle = BatchedOracle(one, at_once)
    ones = torch.ones(at_once, dtype=torch.float64, device=potentials.device)
    some = torch.nonzero(marginals > EPSILON).flatten().tolist()
    for start in range(0, len(some), at_once):
        asked = some[start : start + at_once]
        given = potentials.repeat(at_once, 1)
        for row, cell in enumerate(asked):
            given[row, whole[cell]] = -inf
            given[row, cell] = potentials[cell]
        rows = oracle.marginals(given, ones)[0][: len(asked)]
        found[asked] = (rows - marginals) * marginals[asked, None]
    found[:, marginals <= EPSILON] = 0.0
    return found
