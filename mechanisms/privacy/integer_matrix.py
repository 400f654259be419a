"""Query matrices on a grid of whole numbers, and how far one row moves their answers.

Exact discrete noise needs whole numbers. Each factor of a matrix is therefore rounded to multiples
of a power of two before it is used: what is measured is the rounded matrix, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.kronecker import Kronecker
from pgmkit.matrix import as_dense, as_matrix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgmkit.domain import Clique, Domain
    from pgmkit.matrix import Matrix, MatrixLike

    Integers = NDArray[np.int64]

__all__ = ["GridMatrix"]

_BITS = 30
"""Of the largest entry of the whole product; answers of 2^33 rows fit in 64 bits."""
_FACTOR_BITS = 20
_MOST_ROWS = 2**20


@dataclass(frozen=True)
class GridMatrix:
    """A Kronecker product of integer factors times one power of two, `unit`.

    >>> grid = GridMatrix.rounded([np.array([[0.5, 1.0], [0.25, 0.0]])])
    >>> (grid.factors[0] * grid.unit).tolist(), grid.l1(differ=False) * grid.unit
    ([[0.5, 1.0], [0.25, 0.0]], 1.0)
    """

    factors: tuple[Integers, ...]
    unit: float

    @classmethod
    def over(
        cls,
        domain: Domain,
        clique: Clique,
        matrix: Sequence[MatrixLike] | NDArray[np.float64],
    ) -> GridMatrix:
        """One array over a marginal's cells, or a list of one an attribute, rounded.

        Raises InvalidInput for another number of columns, and as `rounded` does.
        """
        given = matrix if isinstance(matrix, list | tuple) else [matrix]
        grid = cls.rounded([as_matrix(factor, f"matrix of {clique!r}") for factor in given])
        columns = tuple(factor.shape[1] for factor in grid.factors)
        if not clique or columns not in (domain.shape(clique), (domain.size(clique),)):
            raise InvalidInput(
                f"the matrix of {clique!r} has {columns} columns; give an array of "
                f"{domain.size(clique)} columns, or a list of one matrix an attribute with "
                f"{domain.shape(clique)} (measure(()) answers the total)"
            )
        return grid

    @classmethod
    def rounded(cls, factors: Sequence[Matrix]) -> GridMatrix:
        """Round each factor to `30 / len(factors)` bits (20 at most) of its largest entry.

        Factors of whole numbers stay what they are where their product has 30 bits.

        Raises InvalidInput for a factor of zeros only or of more than 2^20 rows.
        """
        dense = [as_dense(factor) for factor in factors]
        largest = [float(np.abs(each).max()) for each in dense]
        for each, most in zip(dense, largest, strict=True):
            if most == 0 or len(each) > _MOST_ROWS:
                raise InvalidInput(
                    f"a matrix factor to measure must have an entry other than 0 and at most "
                    f"{_MOST_ROWS} rows, got one of shape {each.shape} with largest {most!r}"
                )
        bits = min(_FACTOR_BITS, _BITS // max(1, len(factors)))
        sizes = [math.frexp(most)[1] for most in largest]
        shifts = [bits - size for size in sizes]
        whole = all(np.array_equal(each, np.rint(each)) for each in dense)
        if min(shifts, default=0) < 0 and sum(sizes) <= _BITS and whole:
            shifts = [0] * len(shifts)
        integers = [
            np.rint(np.ldexp(each, shift)).astype(np.int64)
            for each, shift in zip(dense, shifts, strict=True)
        ]
        return cls(tuple(integers), math.ldexp(1.0, -sum(shifts)))

    @property
    def matrix(self) -> NDArray[np.float64] | Kronecker:
        """The rounded matrix itself; of several factors the first has the unit in it."""
        first = np.asarray(self.factors[0] * self.unit, dtype=np.float64)
        others = self.factors[1:]
        return Kronecker([first, *others]) if others else first

    def answers(self, counts: Integers) -> Integers:
        """The answers in units, exact; `counts` flattened in C order."""
        x = counts
        for factor in self.factors:
            x = (factor @ x.reshape(factor.shape[1], -1)).T
        return np.ascontiguousarray(x).reshape(-1)

    def l1(self, differ: bool) -> int:
        """The largest L1 norm of a column, or of the difference of two; in units, at least 1.

        For several factors the difference is bounded by twice the norm of a column.
        """
        norm = math.prod(int(np.abs(factor).sum(axis=0).max()) for factor in self.factors)
        if not differ:
            return norm
        if len(self.factors) > 1:
            return 2 * norm
        (factor,) = self.factors
        columns = np.ascontiguousarray(factor.T)
        return max(1, *(int(np.abs(columns - column).sum(axis=1).max()) for column in columns))

    def l2_squared(self, differ: bool) -> int:
        """The largest squared L2 norm of a column, or of the difference of two; at least 1.

        |u - v|^2 = |u|^2 + |v|^2 - 2 u.v; for several factors u.v is bounded by the range of each
        factor's inner products, which is exact for nonnegative columns of equal norms.
        """
        norm = math.prod(int(np.diag(gram).max()) for gram in self._grams)
        if not differ:
            return norm
        if len(self._grams) > 1:
            return max(1, 2 * (norm - self._lowest_product()))
        (gram,) = self._grams
        own = np.diag(gram)
        return max(1, int((own[:, None] + own[None, :] - 2 * gram).max()))

    def _lowest_product(self) -> int:
        low = high = 1
        for gram in self._grams:
            ends = [a * b for a in (low, high) for b in (int(gram.min()), int(gram.max()))]
            low, high = min(ends), max(ends)
        return low

    @cached_property
    def _grams(self) -> list[Integers]:
        return [factor.T @ factor for factor in self.factors]
