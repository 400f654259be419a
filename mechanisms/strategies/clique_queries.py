"""The queries of a workload by clique, for mechanisms that select cliques.

A candidate clique is scored by the errors of the workload's own queries on it: those that the sets
of queries containing the clique ask along its attributes, summed over all other attributes. It is
measured by the rows that have the least error for these queries, and not cell by cell. For a
Kronecker product of queries the best rows are the product of the best rows along each attribute,
since the optimum of the dual programme of `least_error` is a product too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mechanisms.privacy.curator import Curator
from mechanisms.privacy.integer_matrix import GridMatrix
from mechanisms.privacy.scores import LARGEST
from mechanisms.queries.query_sets import CODES, Asked, kind_of, kinds_along, query_gram, query_rows
from mechanisms.strategies.least_error import best_precision
from mechanisms.strategies.products import p_identity
from mechanisms.workload import Workload
from pgmkit import Kronecker, Measurement
from pgmkit.domain import Clique
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import EXACT

UNASKED = 0.1
"""The importance of what no query asks, as a fraction of that of the queries: single codes of an
attribute along which other queries are asked, and columns that no question names. Records are drawn
from the model, also under conditions on one value.
"""
_SMALL = EXACT / (8 * LARGEST)
"""Queries whose entries are whole numbers up to this, 2^10, are compared without rounding to a
grid: the products of such entries and estimates of at most ``LARGEST`` are exact in float64, with
three bits for sums.
"""


class CliqueQueries:
    """The queries of a workload by clique. For a workload that asks only cells, selections and
    measurements are those of plain marginals.

    `pure`: whether noise is Laplace, for which other rows are best than for Gaussian noise.

    Attributes:
        rows: The rows, of sensitivity 1, by which each attribute of the workload is measured; None
            if its single codes are measured.
    """

    def __init__(self, workload: Workload, *, pure: bool) -> None:
        self.domain = workload.domain
        # No queries are listed for a workload of cells alone, which are measured as they are.
        self._sets = () if workload.plain else workload.sets
        along = kinds_along(workload.sets)
        self.rows = {name: self._made(name, kinds, pure) for name, kinds in along.items()}
        self._known: dict[Clique, tuple[GridMatrix, ...]] = {}

    def of(self, cliques: Sequence[Clique]) -> dict[Clique, tuple[GridMatrix, ...]]:
        """Return the queries of each clique, for `Curator.choose`: a product of matrices for each
        different set of queries on it. Cliques on which only cells are asked, or nothing, are left
        out.
        """
        found = {clique: self._asked(clique) for clique in cliques}
        return {clique: asked for clique, asked in found.items() if asked}

    def measure(self, curator: Curator, clique: Clique, cost: float, *, step: str) -> Measurement:
        """Return the noisy counts of the clique's cells or, if other queries are asked along one of
        its attributes, the noisy answers to the rows that give its queries the least error.
        """
        rows = [self.rows.get(name) for name in clique]
        if all(each is None for each in rows):
            return curator.measure(clique, cost, step=step)
        sizes = self.domain.shape(clique)
        factors = [np.eye(n) if each is None else each for n, each in zip(sizes, rows, strict=True)]
        return curator.measure_queries(clique, factors, cost, step=step)

    def distance(self, clique: Clique, difference: Array) -> float:
        """Return the distance of two tables of the clique, given their difference, as the Curator
        computes it for scores.

        For each different set of queries on the clique it is the L1 norm of the answers to the
        difference, divided by the largest L1 norm of a column of the queries' matrix; the result is
        the mean over the sets. If no queries, or only cells, are asked, it is the L1 norm of the
        difference.
        """
        asked = self._asked(clique)
        if not asked:
            return float(np.abs(difference).sum())
        found = []
        for grid in asked:
            answers = Kronecker(grid.factors).matvec(difference.reshape(-1))
            found.append(float(np.abs(answers).sum()) / grid.l1(differ=False))
        return sum(found) / len(found)

    def noise(self, clique: Clique) -> float:
        """Return the expected distance between a measurement of the clique and the truth, in units
        of the expected absolute noise of one cell measured at the same cost.
        """
        asked = self._asked(clique)
        if not asked:
            return float(self.domain.size(clique))
        found = []
        for grid in asked:
            spread = 1.0
            for name, factor in zip(clique, grid.factors, strict=True):
                rows = self.rows.get(name)
                precision = np.eye(factor.shape[1]) if rows is None else rows.T @ rows
                variances = (factor * np.linalg.solve(precision, factor.T).T).sum(axis=1)
                spread *= float(np.sqrt(variances).sum())
            found.append(spread / grid.l1(differ=False))
        return sum(found) / len(found)

    def _made(self, name: str, kinds: Mapping[object, Asked], pure: bool) -> Array | None:
        n = self.domain.sizes[name]
        if n == 1 or set(kinds) <= {CODES}:
            return None
        gram = UNASKED * np.eye(n) / n
        for each in kinds.values():
            own = query_gram(each, n)
            gram += own / np.trace(own) / len(kinds)
        if pure:
            return p_identity(gram)
        values, vectors = np.linalg.eigh(best_precision(gram)[0])
        return np.asarray((vectors * np.sqrt(values)).T)

    def _asked(self, clique: Clique) -> tuple[GridMatrix, ...]:
        if clique not in self._known:
            ways: dict[tuple[object, ...], list[Asked]] = {}
            for each in self._sets:
                if set(clique) <= set(each.clique):
                    own = [each.along(name) for name in clique]
                    ways[tuple(map(kind_of, own))] = own
            plain = all(kind == CODES for kinds in ways for kind in kinds)
            asked = [] if plain else [self._grid(clique, own) for own in ways.values()]
            self._known[clique] = tuple(asked)
        return self._known[clique]

    def _grid(self, clique: Clique, asked: Sequence[Asked]) -> GridMatrix:
        sizes = self.domain.shape(clique)
        rows = [query_rows(each, n) for each, n in zip(asked, sizes, strict=True)]
        whole = all(np.array_equal(each, np.rint(each)) for each in rows)
        if whole and math.prod(float(np.abs(each).max()) for each in rows) <= _SMALL:
            return GridMatrix(tuple(each.astype(np.int64) for each in rows), 1.0)
        return GridMatrix.over(self.domain, clique, rows)
