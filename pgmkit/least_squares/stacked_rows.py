"""Rows of the measurements of one clique, stacked, averaged and factorised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from pgmkit.domain import Clique, Domain
from pgmkit.linear.kronecker import factors_of, nonzeros
from pgmkit.linear.matrix import Matrix, is_sparse
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import DENSE_ROWS, DENSE_SHARE

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Part = tuple[Measurement, Array]
"""A measurement, and its values in all sets: a row for each value, and with many sets a column for
each set."""

MOST_FACTORED = DENSE_ROWS // 4
"""The most cells of a clique whose rows are factorised. For n rows and k cells that takes 2 n k^2
multiplications and saves every pass 4 n k, so that it saves time after k / 2 passes; a search has
some hundreds.
"""


def first_set(values: Array) -> Array:
    """Return the column of the first set, if ``values`` has one for each of many sets; otherwise
    ``values``.
    """
    return values if values.ndim == 1 else values[:, 0]


@dataclass(frozen=True)
class Rows:
    """Sparse rows over the table x of a clique, with the loss |weights (matrix x - values)|^2 / 2 +
    ``constant``. With many sets of measurements, ``values`` has a column, ``constant`` an entry,
    for the loss of each set.
    """

    clique: Clique
    matrix: csr_array
    weights: Array
    values: Array
    constant: Array | float = 0.0

    @classmethod
    def of(cls, domain: Domain, parts: Sequence[Part]) -> Rows:
        """Return all rows of some measurements, whose cliques have the same attributes; those of
        dense matrices come first. The columns are in the order of the first one's clique.
        """
        import scipy.sparse

        clique = parts[0][0].clique
        matrices = [written_out(domain, clique, m) for m, _ in parts]
        order = sorted(range(len(parts)), key=lambda place: is_sparse(matrices[place]))
        dense = [each for each in matrices if isinstance(each, np.ndarray)]
        upper = [scipy.sparse.csr_array(np.concatenate(dense))] if dense else []
        lower = [each for each in matrices if is_sparse(each)]
        sparse = scipy.sparse.vstack([*upper, *lower], format="csr")
        sparse.eliminate_zeros()
        sparse.sort_indices()
        lengths = [len(parts[place][1]) for place in order]
        weights = np.repeat([1 / parts[place][0].stddev for place in order], lengths)
        return cls(clique, sparse, weights, np.concatenate([parts[place][1] for place in order]))

    def merged(self) -> Rows:
        """Return the same loss with rows that are multiples of each other averaged, and rows of
        zeros left out.
        """
        lengths = np.diff(self.matrix.indptr)
        full = lengths > 0
        if not full.all():
            lost = np.square(times(self.weights[~full], self.values[~full])).sum(axis=0) / 2
            kept = self.matrix[full], self.weights[full], self.values[full]
            return Rows(self.clique, *kept, self.constant + lost).merged()
        lead = self.matrix.data[self.matrix.indptr[:-1]]
        matrix = _with_data(self.matrix, self.matrix.data / np.repeat(lead, lengths))
        # Equal rows have equal products with a random vector. Different rows almost never do; that
        # is checked below, and if any do, no rows are averaged.
        mixed = matrix @ np.random.default_rng(0).random(matrix.shape[1])
        _, chosen, group, counts = np.unique(
            mixed, return_index=True, return_inverse=True, return_counts=True
        )
        several = np.flatnonzero(counts[group] > 1)
        if not len(several) or (matrix[several] != matrix[chosen[group[several]]]).nnz:
            return self
        weights, values = self.weights * np.abs(lead), times(1 / lead, self.values)
        largest = np.zeros(len(chosen))
        np.maximum.at(largest, group, weights)
        shares = np.square(weights / largest[group])
        sums = np.bincount(group, shares, len(chosen))
        mean = np.zeros((len(chosen), *values.shape[1:]))
        np.add.at(mean, group, times(shares / sums[group], values))
        constant = self.constant + np.square(times(weights, values - mean[group])).sum(axis=0) / 2
        return Rows(self.clique, matrix[chosen], largest * np.sqrt(sums), mean, constant)

    @property
    def is_table(self) -> bool:
        """True if the rows are the cells, each one once, and all have the same weight."""
        rows, cells = self.matrix.shape
        if rows != cells or (np.diff(self.matrix.indptr) != 1).any() or np.ptp(self.weights):
            return False
        return bool((self.matrix.data == 1).all()) and len(np.unique(self.matrix.indices)) == cells

    def table(self) -> Part:
        """Return the rows as a measured table. Only for rows with ``is_table``, which is not
        checked here.
        """
        values = self.values[np.argsort(self.matrix.indices)]
        return Measurement(self.clique, first_set(values), 1 / self.weights[0]), values

    @property
    def are_many(self) -> bool:
        """True if a factorisation would have fewer rows than now, and would save more time in later
        passes than it takes. For this there are more rows than cells, and at most ``MOST_FACTORED``
        cells. Nor are the rows both few (at most two for each cell) and sparse (for k cells, with
        at most k^2 / 2 nonzero entries, about as many as the factorisation may have).
        """
        rows, cells = self.matrix.shape
        sparse = rows <= 2 * cells and 2 * self.matrix.nnz <= cells**2
        return rows > cells and not sparse and cells <= MOST_FACTORED

    def factorised(self) -> Rows:
        """Return the same loss with as many rows as cells.

        The factorisation is accurate row by row, however much the weights differ, since rows are
        sorted by size and columns pivoted (Cox and Higham, 1998).
        """
        import scipy.linalg
        import scipy.sparse

        dense = self.matrix.toarray() * self.weights[:, None]
        order = np.argsort(-np.abs(dense).max(axis=1), kind="stable")
        (raw, tau), upper, pivots = scipy.linalg.qr(
            dense[order], mode="raw", pivoting=True, check_finite=False
        )
        right = times(self.weights, self.values)[order].reshape(len(order), -1)
        # Q' times the values, by the Householder reflections of Q, which is never formed.
        rotated, *_ = scipy.linalg.lapack.dormqr("L", "T", raw, tau, right, 64 * right.shape[1])
        rotated = rotated.reshape(self.values.shape)
        cells = len(pivots)
        constant = self.constant + np.square(rotated[cells:]).sum(axis=0) / 2
        sparse = scipy.sparse.csr_array(upper[:, np.argsort(pivots)])
        return Rows(self.clique, sparse, np.ones(cells), rotated[:cells], constant)

    def parts(self) -> list[Part]:
        """Return one measurement of all rows, in units of the noise; an empty list if no row is
        left.
        """
        rows, columns = self.matrix.shape
        if not rows:
            return []
        lengths = np.diff(self.matrix.indptr)
        sparse = _with_data(self.matrix, self.matrix.data * np.repeat(self.weights, lengths))
        matrix = sparse.toarray() if sparse.nnz > DENSE_SHARE * rows * columns else sparse
        values = times(self.weights, self.values)
        return [(Measurement(self.clique, first_set(values), 1.0, matrix), values)]


def times(factors: Array, values: Array) -> Array:
    """Return ``values`` with each row multiplied by its entry of ``factors``."""
    return factors.reshape(-1, *[1] * (values.ndim - 1)) * values


def written_out(domain: Domain, clique: Clique, m: Measurement) -> Matrix:
    """Return the measurement's matrix, the identity if it has none, written out over the cells of
    ``clique``, which has the same attributes, perhaps in another order.
    """
    matrix: Matrix
    if m.matrix is None:
        import scipy.sparse

        matrix = scipy.sparse.eye_array(len(m.values), format="csr")
    else:
        # A measurement of the total has no factors.
        matrix = reduce(_product, factors_of(m.matrix) or [np.ones((1, 1))])
    return matrix if m.clique == clique else matrix[:, domain.cell_map(clique, m.clique)]


def _product(left: Matrix, right: Matrix) -> Matrix:
    """Return the Kronecker product of two matrices: dense if both are and more than the share
    ``DENSE_SHARE`` of its entries are not zero, otherwise sparse.
    """
    share = _filled(left) * _filled(right)
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray) and share > DENSE_SHARE:
        rows, columns = left.shape[0] * right.shape[0], left.shape[1] * right.shape[1]
        product = np.multiply.outer(left, right).transpose(0, 2, 1, 3)
        return product.reshape(rows, columns)
    import scipy.sparse

    return scipy.sparse.kron(scipy.sparse.csr_array(left), right, format="csr")


def _filled(matrix: Matrix) -> float:
    """Return the share of a matrix's entries that are not zero."""
    return nonzeros(matrix) / (matrix.shape[0] * matrix.shape[1])


def _with_data(matrix: csr_array, data: Array) -> csr_array:
    """Return the same sparse matrix with other entries."""
    import scipy.sparse

    return scipy.sparse.csr_array((data, matrix.indices, matrix.indptr), matrix.shape)
