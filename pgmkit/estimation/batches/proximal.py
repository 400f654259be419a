"""Proximal steps on many problems of one structure, near one model: Newton's metric is shared.

For each set of measured values y, with B the measured rows over their standard deviations, T the
total and p_0 the distribution to start from, a step solves

    minimise  |T B p - y|^2 / 2 + (T / eta) KL(p, p_0)   over all distributions p.

Its dual has one multiplier for each measured value and no constraints,

    minimise  |u|^2 / 2 - <u, y> + (T / eta) log E_{p_0} exp(eta <u, B>),

p is proportional to p_0 exp(eta u B), so that it is a model's, and the gradient is one pass of
inference. At p_0 the Hessian is I + eta B C B', C the covariance of the cliques' counts over T
records. All sets are redrawn values of one model: C is taken from that model once, and in the
coordinates where its Hessian is the identity, L-BFGS ends after a few passes.

What the noise of a direction adds, of variance 1, is shortened by 1 / (1 + eta lambda) in a step,
where lambda is the direction's eigenvalue of B C B': the variance of the model's own counts over
that of the noise.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular

from pgmkit.estimation.batches.lbfgs import Function, Run
from pgmkit.estimation.batches.oracle import BatchedOracle, table_cells
from pgmkit.estimation.tensor_steps import Points
from pgmkit.inference.marginal_oracle import Layout
from pgmkit.measurement import Measurement
from pgmkit.runtime.precision import EPSILON
from pgmkit.runtime.sizes import BLOCK_CELLS, DENSE_ROWS

if TYPE_CHECKING:
    from pgmkit.estimation.batches.search import BatchedSearch

__all__ = ["ProximalSteps", "affordable"]

Array = NDArray[np.float64]

_STEP = 100.0
"""eta: two steps leave less than a hundredth of a direction whose counts vary by a tenth of what
the noise does (lambda = 0.1). Of steps that are ten times as long L-BFGS needs many more passes
where counts are near zero, and fails on some.
"""
_MOST_STEPS = 4
_MOST_PASSES = 15
"""The most passes of a step, which need not be solved to the end: the next step goes on."""
_SOLVED = 0.003
"""The part of a step's dual objective, in noise units, that may be left unsolved."""
_FALL = 0.01
"""A set whose loss falls by less than this in a step, in noise units, takes no further step."""
_MOST_ROWS = 2 * DENSE_ROWS
"""Measured values and cells of cliques: the matrices then take some hundred megabytes."""


def affordable(layout: Layout, measurements: Sequence[Measurement]) -> bool:
    """True if the covariances of all cells and the metric of all values can be written out."""
    return max(layout.cells, sum(len(m.values) for m in measurements)) <= _MOST_ROWS


@dataclass
class ProximalSteps:
    """Steps on the problems of a search; ``near`` are the potentials whose metric they share."""

    search: BatchedSearch
    near: torch.Tensor

    def improved(self, points: Points) -> Points:
        """Points of lower loss; each set stops when a step has gained it little.

        Where counts are so large beside the noise that rounding leaves the metric no factor, the
        points are returned as they are.
        """
        goal = _FALL * self.search.loss.unit
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
            for kept, new in zip(points, after.where(fallen > 0, before), strict=True):
                kept[left] = new
            left = left[fallen > goal]
        return points

    def _step(self, sets: torch.Tensor, origin: Points) -> Points:
        """The points that one step leads to from these."""
        way = _Dual(self, sets, origin).multipliers()
        whole = torch.as_tensor(way.T, device=sets.device)
        moved = origin.potentials + _STEP * self.search.loss.of(sets).gradient(whole)
        part = BatchedOracle(self.search.single, len(sets))
        marginals, log_partition = part.try_marginals(moved, self.search.totals[sets])
        residual = self.search.loss.of(sets).residual(marginals)
        loss = self.search.loss.value(residual).nan_to_num_(inf, inf, inf)
        return Points(moved, marginals, log_partition, residual, loss)

    @cached_property
    def factor(self) -> Array:
        """The lower triangular factor of the dual objective's Hessian at the model."""
        loss, total = self.search.loss, float(self.search.totals.mean())
        half = loss.applied(_covariances(self.search, self.near)).cpu()
        whole = loss.applied(half.T.contiguous().to(self.near.device)).cpu().numpy()
        hessian = _STEP * total * (whole + whole.T) / 2
        hessian[np.diag_indices_from(hessian)] += 1.0
        return np.asarray(cholesky(hessian, lower=True, overwrite_a=True))


def _covariances(search: BatchedSearch, potentials: torch.Tensor) -> torch.Tensor:
    """The covariances of the indicators of all cells of all cliques, over one record of the model.

    A row is the difference between the marginals given that cell and those given nothing, times
    its probability. Cells of next to no probability have next to no covariance, with any other.
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


@dataclass
class _Dual:
    """The dual problems of some sets, in the coordinates where their Hessians are near one."""

    steps: ProximalSteps
    sets: torch.Tensor
    origin: Points

    def multipliers(self) -> Array:
        """Nearly the solutions, a column each."""
        factor, goal = self.steps.factor, _SOLVED * self.steps.search.loss.unit
        left = np.arange(len(self.sets))
        found = np.zeros((len(factor), len(left)))
        # At zero the point is the origin, which needs no pass.
        slopes = self._scaled(self.origin.residual)
        known = np.zeros(len(left)), slopes
        run = Run(self._functions(left), found, known, np.ones(len(left)))
        for _ in range(_MOST_PASSES):
            run.step()
            found[:, left] = run.points
            going = (run.gradients**2).sum(axis=0) / 2 >= goal
            if not going.any() or time.perf_counter() >= self.steps.search.deadline:
                break
            if 2 * going.sum() <= len(left):
                left = left[going]
                run.keep(going, self._functions(left))
        return self._unscaled(found)

    def _unscaled(self, points: Array) -> Array:
        solved = solve_triangular(self.steps.factor, points, lower=True, trans="T")
        return np.asarray(solved)

    def _functions(self, columns: NDArray[np.int64]) -> Function:
        """The dual objectives of some of the sets, and their gradients."""
        search, rows = self.steps.search, torch.as_tensor(columns, device=self.sets.device)
        sets, origin = self.sets[rows], self.origin.of(rows)
        loss, totals = search.loss.of(sets), search.totals[sets]
        oracle = BatchedOracle(search.single, len(columns))

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
        return np.asarray(solve_triangular(self.steps.factor, columns, lower=True))
