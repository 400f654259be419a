"""Matrices as pgmkit accepts them: dense or scipy-sparse, checked and made read-only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import any_array, check_unlabelled
from pgmkit.runtime.sizes import TABLE_CELLS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from scipy.sparse import csr_array, sparray, spmatrix

Matrix: TypeAlias = "NDArray[np.float64] | csr_array"
MatrixLike: TypeAlias = "ArrayLike | sparray | spmatrix"


def is_sparse(value: Any) -> bool:
    """Return True for a scipy sparse array or matrix."""
    # A sparse object exists only if scipy.sparse has been imported, so it need not be imported
    # here.
    module = sys.modules.get("scipy.sparse")
    return module is not None and bool(module.issparse(value))


def as_matrix(value: MatrixLike, name: str) -> Matrix:
    """Return a read-only float64 copy of ``value``: a 2-D array, or a CSR array if ``value`` is
    sparse.

    A vector becomes one row. Raises `InvalidInput`, with ``name`` in the message, for anything that
    is not a real, finite matrix of at least one row and one column, and for a pandas object whose
    labels are not 0, 1, ... in order.

    >>> as_matrix([1, 2, 3], "matrix").shape
    (1, 3)
    """
    sparse = is_sparse(value)
    if not sparse:  # the check would refuse a scipy matrix that is a dictionary of keys
        check_unlabelled(value, name)
    array: Any = value if sparse else any_array(value, name)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(
            f"{name} has entries of type {array.dtype}, but must be real numbers; "
            "pass a 2-D numpy array or a scipy.sparse matrix"
        )
    if array.ndim == 1:
        array = array.reshape(1, -1)
    if array.ndim != 2:
        raise InvalidInput(
            f"{name} has {array.ndim} dimensions, but must have 2 (queries x cells); reshape it"
        )
    if 0 in array.shape:
        raise InvalidInput(
            f"{name} is empty, of shape {array.shape}, but must have at least one row and one "
            "column; leave it out if it asks nothing"
        )
    frozen: Matrix
    if sparse:
        from scipy.sparse import csr_array

        frozen = csr_array(array, dtype=np.float64, copy=True)
        frozen.sum_duplicates()  # in place, so before the arrays are read-only
        parts = [frozen.data, frozen.indices, frozen.indptr]
    else:
        frozen = np.array(array, dtype=np.float64, order="C")
        parts = [frozen]
    check_finite(parts[0], name, "entries", "mend them or drop their rows")
    for part in parts:
        part.setflags(write=False)
    return frozen


def rows_of_identity(codes: NDArray[np.intp], n: int) -> Matrix:
    """Return the rows of the n x n identity whose indices are ``codes``: as a sparse matrix if an
    array would have more than ``TABLE_CELLS`` cells.

    >>> rows_of_identity(np.array([2, 0]), 3)
    array([[0., 0., 1.],
           [1., 0., 0.]])
    """
    if len(codes) * n <= TABLE_CELLS:
        return (codes[:, None] == np.arange(n)).astype(np.float64)
    from scipy.sparse import csr_array

    return csr_array((np.ones(len(codes)), codes, np.arange(len(codes) + 1)), (len(codes), n))


def as_dense(matrix: Matrix) -> NDArray[np.float64]:
    """Return the matrix as a 2-D array: a dense matrix itself, a sparse one written out."""
    if isinstance(matrix, np.ndarray):
        return matrix
    dense: NDArray[np.float64] = matrix.toarray()
    return dense


def along(matrix: Matrix, table: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Return the table multiplied by the matrix along one axis, which then has the matrix's rows in
    place of its columns.
    """
    moved = np.moveaxis(table, axis, 0)
    found = matrix @ moved.reshape(len(moved), -1)
    return np.moveaxis(found.reshape(-1, *moved.shape[1:]), 0, axis)


def check_finite(entries: NDArray[np.float64], name: str, what: str, remedy: str) -> None:
    """Raise InvalidInput unless all entries are finite; the message calls them ``what``, and ends
    with the remedy.
    """
    bad = entries[~np.isfinite(entries)]
    if bad.size:
        raise InvalidInput(
            f"{name} has {bad.size} {what} that are not finite (the first is {bad[0]}), but all "
            f"must be finite numbers; {remedy}"
        )
