"""A Kronecker product of small matrices, multiplied one axis at a time and never written out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgmkit.errors import InvalidInput
from pgmkit.linear.matrix import Matrix, MatrixLike, as_dense, as_matrix
from pgmkit.runtime.arguments import float_array, listed
from pgmkit.runtime.memory import check_room

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Kronecker:
    """The matrix Q_1 (x) ... (x) Q_d, one factor for each attribute of a clique, in its order.

    It acts on a marginal flattened in C order, so the last factor belongs to the axis that varies
    fastest, as in `numpy.kron`. Factors are dense or scipy-sparse matrices of shape r_i x n_i; a
    vector stands for one row. They are copied and read-only. The product of no factors is the
    1 x 1 identity. Raises `InvalidInput` for a factor that is not a finite matrix.

    >>> import numpy as np
    >>> product = Kronecker([np.tril(np.ones((2, 2))), [1, 1, 1]])
    >>> product.shape
    (2, 6)
    >>> product.matvec([1, 2, 3, 4, 5, 6])
    array([ 6., 21.])
    """

    factors: tuple[Matrix, ...]

    def __init__(self, factors: Sequence[MatrixLike]) -> None:
        checked = tuple(
            as_matrix(f, f"Kronecker factor {i}")
            for i, f in enumerate(listed(factors, "factors", "matrices"))
        )
        object.__setattr__(self, "factors", checked)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """(r_1, ..., r_d): the shape of the answers before they are flattened."""
        return tuple(int(factor.shape[0]) for factor in self.factors)

    @property
    def column_shape(self) -> tuple[int, ...]:
        """(n_1, ..., n_d): the shape of the marginal that it acts on."""
        return tuple(int(factor.shape[1]) for factor in self.factors)

    @property
    def shape(self) -> tuple[int, int]:
        """(r_1 * ... * r_d, n_1 * ... * n_d), exact integers however large."""
        return math.prod(self.row_shape), math.prod(self.column_shape)

    def matvec(self, x: ArrayLike) -> NDArray[np.float64]:
        """Return Q @ x for a vector of length ``shape[1]``. Raises `InvalidInput` for another
        length.
        """
        x = x if isinstance(x, np.ndarray) and x.dtype == np.float64 else float_array(x, "x")
        if x.shape != (self.shape[1],):
            raise InvalidInput(
                f"x must be a vector of length {self.shape[1]}, got an array of shape {x.shape}; "
                "flatten a marginal with .ravel()"
            )
        return applied(self.factors, x)

    def to_dense(self) -> NDArray[np.float64]:
        """Return the whole matrix written out. Raises ModelTooLarge if it does not fit into
        memory.
        """
        check_room(8 * math.prod(self.shape), f"{self!r:.80} written out", remedy="use matvec")
        one: NDArray[Any] = np.ones((1, 1))
        return reduce(np.kron, map(as_dense, self.factors), one)

    def __repr__(self) -> str:
        shapes = zip(self.row_shape, self.column_shape, strict=True)
        sizes = " (x) ".join(f"{rows}x{columns}" for rows, columns in shapes)
        return f"Kronecker({sizes or '1x1'})"


def applied(factors: Iterable[Matrix], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Kronecker product of the factors times a vector, or an array that stands for one
    in C order. Neither is checked.
    """
    # Each step multiplies the leading axis and moves it to the end; after one step for each factor
    # the axes are in their first order again.
    for factor in factors:
        x = (factor @ x.reshape(factor.shape[1], -1)).T
    return np.array(x, order="C").reshape(-1)


def factors_of(matrix: Matrix | Kronecker | None) -> Sequence[Matrix]:
    """Return the factors of a Kronecker product, any other matrix alone, and none for None.

    >>> [each.shape for each in factors_of(np.ones((2, 3)))], factors_of(None)
    ([(2, 3)], ())
    """
    if matrix is None:
        return ()
    return matrix.factors if isinstance(matrix, Kronecker) else (matrix,)


def sparse_product(factors: Iterable[MatrixLike]) -> csr_array:
    """Return the Kronecker product of matrices as one sparse matrix, without entries of zero.

    >>> sparse_product([np.eye(2), [[1.0, 0.0]]]).nnz
    2
    """
    import scipy.sparse

    product = scipy.sparse.csr_array(np.ones((1, 1)))
    for factor in factors:
        # Without a format scipy would keep the zeros of blocks that are half full.
        product = scipy.sparse.kron(product, factor, format="csr")
    return product


def nonzeros(matrix: Matrix | Kronecker) -> int:
    """Return the number of entries of a matrix or Kronecker product that are not zero.

    >>> nonzeros(Kronecker([np.eye(3), [1, 0, 1]]))
    6
    """
    if isinstance(matrix, Kronecker):
        return math.prod(map(nonzeros, matrix.factors))
    return int(np.count_nonzero(matrix if isinstance(matrix, np.ndarray) else matrix.data))
