"""A convex problem over several subgraphs: how to divide tables among them.

    minimise  sum_k w log Z_k(theta_k / w)   over theta_k with  sum_k theta_k = theta

Here theta are the logarithms of the tables and theta_k the part of subgraph k. With weights w =
1/K, every value is an upper bound on log Z(theta) by Hölder's inequality: the tree-reweighted bound
(Wainwright, Jaakkola and Willsky, 2005), here over subgraphs of small width. The derivative with
respect to a table is its marginal, so at the minimum the subgraphs agree on shared tables. The
minimum is found by L-BFGS.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import NumericalFailure
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.iterations import FEW_ROUNDS, SLIGHT

PASSES = 2 * FEW_ROUNDS
"""The number of passes over which the progress of the search is judged, and the most iterations of
a search within a double loop (`propagation`).
"""


def inferred(oracle: MarginalOracle, potentials: Array) -> tuple[Array, float]:
    """Return the flat marginals of the oracle's cliques, and log Z, for these flat potentials."""
    with oracle.session():
        marginals, log_partition = oracle.fast_marginals(torch.from_numpy(potentials))
        return marginals.numpy().copy(), float(log_partition)


@dataclass(frozen=True)
class Shared:
    """One division of the tables among the subgraphs, with the subgraphs' marginals and log Z."""

    value: float
    """The weighted sum of ``log_partitions`` at this division, which the problem minimises."""
    tables: list[Array]
    """The potentials of each subgraph's distribution: its part divided by its weight."""
    residual: float
    """The largest difference between a subgraph's marginal of a cell and the mean of this cell's
    marginals over the subgraphs that have it.
    """
    parts: list[Array]
    """The flat marginals of each subgraph."""
    log_partitions: list[float]
    """The log Z of each subgraph's distribution."""


class _Stop(Exception):
    """Raised to end L-BFGS."""


@dataclass(frozen=True)
class Split:
    """Subgraphs that share tables: the oracle of each, and the places of its cells in a flat vector
    of all tables, which has ``size`` cells.
    """

    oracles: Sequence[MarginalOracle]
    cells: Sequence[NDArray[np.int64]]
    size: int

    @cached_property
    def _copies(self) -> Array:
        """The number of subgraphs that have each cell."""
        return np.bincount(np.concatenate(self.cells), minlength=self.size).astype(np.float64)

    def mean(self, parts: Sequence[Array]) -> Array:
        """Return a flat vector of all tables with the mean of each cell over the subgraphs that
        have it; ``parts`` has the cells of each subgraph.
        """
        gathered = np.zeros(self.size)
        for cells, part in zip(self.cells, parts, strict=True):
            gathered[cells] += part
        return gathered / self._copies

    def minimise(
        self,
        total: Array,
        weight: float,
        *,
        start: Sequence[Array] | None = None,
        floor: float = -inf,
        tolerance: float,
        iterations: int,
        deadline: float,
    ) -> Shared:
        """Minimise the convex problem, and return the division of the smallest value that was
        found.

        Args:
            total: theta, the logarithms of all tables; minus infinity where a cell is impossible.
            weight: w, the weight of each subgraph.
            start: finite parts of the subgraphs; the search starts from a division of ``total``
                whose parts differ as these do, or from equal parts if it is None.
            floor: a lower bound on the value; the search ends if the last ``PASSES`` passes gained
                less than 1% (``SLIGHT``) of the distance to it.
            tolerance: the residual at which the search ends.
            iterations: the largest number of iterations of L-BFGS.
            deadline: a time of ``time.perf_counter`` at which the search ends, after at least one
                pass.

        Raises NumericalFailure if a subgraph leaves no record possible, or if the value shows that
        all together leave none.
        """
        from scipy.optimize import minimize

        ends, best = np.cumsum([len(cells) for cells in self.cells]), list[Shared]()
        values = list[float]()
        # The value is at least the sum of the cells of ``total`` at any possible record, and so at
        # least the sum of its negative cells, less 1 for rounding. A smaller value shows that no
        # record is possible; it would then fall without end.
        least = float(total[np.isfinite(total)].clip(max=0.0).sum()) - 1.0

        def objective(flat: Array) -> tuple[float, Array]:
            state, gradient = self._at(total, weight, np.split(flat, ends[:-1]))
            if state.value < least:
                raise NumericalFailure
            if not best or state.value < best[0].value:
                best[:] = [state]
            values.append(best[0].value)
            gained = values[max(0, len(values) - 1 - PASSES)] - values[-1]
            slow = len(values) > PASSES and gained < SLIGHT * (values[-1] - floor) < inf
            if slow or state.residual <= tolerance or time.perf_counter() >= deadline:
                raise _Stop
            return state.value, gradient

        options = {"maxiter": iterations, "ftol": 0.0, "gtol": 0.0}
        with suppress(_Stop):
            flat = np.zeros(ends[-1]) if start is None else np.concatenate(start)
            minimize(objective, flat, jac=True, method="L-BFGS-B", options=options)
        return best[0]

    def _at(self, total: Array, weight: float, moves: Sequence[Array]) -> tuple[Shared, Array]:
        """Return the division whose parts are equal except for ``moves``, and the derivative of its
        value with respect to ``moves``.
        """
        shares = total / self._copies - self.mean(moves)
        pairs = zip(self.cells, moves, strict=True)
        tables = [(shares[cells] + move) / weight for cells, move in pairs]
        passes = [inferred(*each) for each in zip(self.oracles, tables, strict=True)]
        parts, log_partitions = [found for found, _ in passes], [found for _, found in passes]
        mean = self.mean(parts)
        found = zip(parts, self.cells, strict=True)
        gradient = np.concatenate([marginals - mean[cells] for marginals, cells in found])
        residual = float(np.abs(gradient).max(initial=0.0))
        value = weight * sum(log_partitions)
        return Shared(value, tables, residual, parts, log_partitions), gradient
