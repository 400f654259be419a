"""Query matrices on a grid of whole numbers, and the most by which one row of the data changes
their answers.

Exact discrete noise needs whole numbers. Each factor of a matrix is therefore rounded to multiples
of a power of two before it is used: the rounded matrix is what is measured, exactly.

No product of whole numbers overflows. Entries have at most 30 bits and factors at most 2^20 rows:
sums of absolute values have 51 bits and fit in 64. Squared norms have up to 80 bits, and answers of
2^40 rows up to 70; both are computed with Python's integers if 64 bits might overflow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit import InvalidInput, Kronecker
from pgmkit.domain import Clique, Domain
from pgmkit.linear.matrix import Matrix, MatrixLike, as_dense, as_matrix

Integers = NDArray[np.int64]

LARGEST_ANSWER = (np.iinfo(np.int64).max + 1) // 4
"""The bound of noisy answers in absolute value, in units; answers that reach it are refused. Exact
answers are clipped to twice this bound, which leaves room for noise in 64 bits. A clipped answer is
released only if its noise is above 2^61 in absolute value.
"""
ENTRY_BITS = 30
"""The bits of the largest entry of the whole product."""
_MOST_ROWS = 2 ** (np.finfo(np.float64).nmant - 2 - ENTRY_BITS)
"""The most rows of a factor: sums of so many entries, with their signs, are exact in float64."""
_HALF_BITS = ENTRY_BITS // 2 + 1
"""The bits of an entry's lower part in `_gram`; the upper part has 14 bits and a sign."""


@dataclass(frozen=True)
class GridMatrix:
    """A Kronecker product of integer factors times one power of two, `unit`. In the example a row
    is added or removed; with `differ=True` it may be replaced.

    >>> grid = GridMatrix.rounded([np.array([[0.5, 1.0], [0.25, 0.0]])])
    >>> (grid.factors[0] * grid.unit).tolist(), grid.l1(differ=False) * grid.unit
    ([[0.5, 1.0], [0.25, 0.0]], 1.0)
    """

    factors: tuple[Integers, ...]
    unit: float

    @classmethod
    def over(
        cls, domain: Domain, clique: Clique, matrix: Sequence[MatrixLike] | NDArray[np.float64]
    ) -> GridMatrix:
        """Round one array over a marginal's cells, or a list with one matrix for each attribute, to
        the grid.

        Raises InvalidInput for another number of columns, for the empty clique, for a factor of
        zeros only or of more than 2^20 rows, and for more than 30 factors.
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
        """Return the Kronecker product of these matrices with rounded entries: whole numbers
        times a power of two. A factor's largest entry keeps 30 // len(factors) bits.

        Factors of whole numbers are kept if the bits of their largest entries sum to at most 30.
        Raises InvalidInput for a factor of zeros only or of more than 2^20 rows, and for more than
        30 factors, which would leave less than a bit for each.
        """
        if len(factors) > ENTRY_BITS:
            raise InvalidInput(
                f"a product of at most {ENTRY_BITS} matrices can be measured, got {len(factors)}; "
                "give one array over the marginal's cells"
            )
        dense = [as_dense(factor) for factor in factors]
        largest = [float(np.abs(each).max()) for each in dense]
        for each, most in zip(dense, largest, strict=True):
            if most == 0 or len(each) > _MOST_ROWS:
                raise InvalidInput(
                    f"a matrix factor to measure must have an entry other than 0 and at most "
                    f"{_MOST_ROWS} rows, got one of shape {each.shape} with largest {most!r}"
                )
        bits = ENTRY_BITS // max(1, len(factors))
        sizes = [math.frexp(most)[1] for most in largest]
        shifts = [bits - size for size in sizes]
        whole = all(np.array_equal(each, np.rint(each)) for each in dense)
        if min(shifts, default=0) < 0 and sum(sizes) <= ENTRY_BITS and whole:
            shifts = [0] * len(shifts)
        integers = [
            np.rint(np.ldexp(each, shift)).astype(np.int64)
            for each, shift in zip(dense, shifts, strict=True)
        ]
        return cls(tuple(integers), math.ldexp(1.0, -sum(shifts)))

    @property
    def matrix(self) -> NDArray[np.float64] | Kronecker:
        """The rounded matrix itself; with several factors, the first includes the unit."""
        first = np.asarray(self.factors[0] * self.unit, dtype=np.float64)
        others = self.factors[1:]
        return Kronecker([first, *others]) if others else first

    def answers(self, counts: Integers) -> Integers:
        """Return the exact answers of the product to the counts, which are flattened in C order, as
        whole numbers of `unit`.

        Answers beyond 2^62 are clipped there: clipping never moves two answers farther apart, so
        the sensitivities hold for any number of rows. The caller refuses noisy answers whose
        absolute value is `LARGEST_ANSWER` or more.
        """
        largest = math.prod(int(np.abs(factor).max()) for factor in self.factors)
        held = 2 * LARGEST_ANSWER
        fits = largest * int(np.abs(counts).sum()) <= held
        x: NDArray[Any] = counts if fits else counts.astype(object)
        for factor in self.factors:
            x = (factor @ x.reshape(factor.shape[1], -1)).T
        return np.clip(np.ascontiguousarray(x).reshape(-1), -held, held).astype(np.int64)

    def l1(self, differ: bool) -> int:
        """Return the largest L1 norm of a column of the product, or with `differ` a bound of that
        of the difference of two columns, in multiples of `unit` (`product_l1`).
        """
        return product_l1(self.norms, differ)

    def l2_squared(self, differ: bool) -> int:
        """Return the largest squared L2 norm of a column of the product, or with `differ` a bound
        of that of the difference of two columns, in multiples of `unit` squared
        (`product_l2_squared`).
        """
        return product_l2_squared(self.norms, differ)

    @cached_property
    def norms(self) -> list[FactorNorms]:
        """The `FactorNorms` of each factor, in the order of the product."""
        return [FactorNorms.of(factor) for factor in self.factors]


@dataclass(frozen=True)
class FactorNorms:
    """The norms of one factor, from which those of a product's columns follow.

    Attributes:
        columns: The factor's columns, as the rows of an array.
        l1: The largest L1 norm of a column.
        l2: The largest squared L2 norm of a column.
        l2_apart: The largest squared L2 norm of the difference of two columns.
        low: The least inner product of two columns, or of a column and itself.
        high: The largest such inner product.
        high_apart: The largest inner product of two different columns; of a factor with one column,
            the squared norm of this column.
    """

    columns: Integers
    l1: int
    l2: int
    l2_apart: int
    low: int
    high: int
    high_apart: int

    @classmethod
    def of(cls, factor: Integers) -> FactorNorms:
        """Return the norms of a factor of whole numbers, exactly."""
        columns = np.ascontiguousarray(factor.T)
        # For the Gram matrix all entries are divided by the largest power of two that divides each
        # of them, and what is found there is multiplied by its square. The Gram matrix of small
        # entries fits into 64 bits, so that Python's integers, which are slower, are not needed.
        every = int(np.bitwise_or.reduce(factor, axis=None))
        zeros = max(0, (every & -every).bit_length() - 1)
        gram = _gram(factor >> zeros)
        own, apart = np.diag(gram), gram[~np.eye(len(gram), dtype=bool)]
        largest = [
            own.max(),
            max((own + norm - 2 * row).max() for norm, row in zip(own, gram, strict=True)),
            gram.min(),
            gram.max(),
            apart.max() if apart.size else gram[0, 0],
        ]
        l1 = int(np.abs(columns).sum(axis=1).max())
        return cls(columns, l1, *(int(each) << 2 * zeros for each in largest))

    @cached_property
    def direction(self) -> bytes:
        """A key that is equal for positive multiples of one factor: the bytes of the factor divided
        by the greatest common divisor of its entries.
        """
        return (self.columns // np.gcd.reduce(self.columns, axis=None)).tobytes()

    @cached_property
    def l1_apart(self) -> int:
        """The largest L1 norm of the difference of two columns.

        It is computed on use, since it compares all pairs of columns and Gaussian noise does not
        need it.
        """
        return max(int(np.abs(self.columns - each).sum(axis=1).max()) for each in self.columns)


def product_l1(norms: Sequence[FactorNorms], differ: bool) -> int:
    """Return the largest L1 norm of a column of a Kronecker product with these factors or, with
    `differ`, that of the difference of two columns, at least 1. For several factors the latter is
    an upper bound, twice the norm of a column.
    """
    norm = math.prod(each.l1 for each in norms)
    if not differ:
        return norm
    return max(1, norms[0].l1_apart) if len(norms) == 1 else 2 * norm


def product_l2_squared(norms: Sequence[FactorNorms], differ: bool) -> int:
    """Return the largest squared L2 norm of a column of a Kronecker product with these factors or,
    with `differ`, an upper bound of that of the difference of two columns, at least 1.

    |u - v|^2 = |u|^2 + |v|^2 - 2 u.v. For several factors u.v is the product of the factors' inner
    products, each of which lies in its factor's range `low`..`high`.
    """
    norm = math.prod(each.l2 for each in norms)
    if not differ:
        return norm
    if len(norms) == 1:
        return max(1, norms[0].l2_apart)
    low = high = 1
    for each in norms:
        ends = [a * b for a in (low, high) for b in (each.low, each.high)]
        low, high = min(ends), max(ends)
    return max(1, 2 * (norm - low))


def _gram(factor: Integers) -> NDArray[Any]:
    """Return factor.T @ factor, exact: in 64 bits if four times an entry fits, else in Python's
    integers.

    Each entry is an upper part times 2^16 plus a lower part. Products of two parts have at most 32
    bits and a column has at most 2^20 of them, so their sums stay below 2^53: float64 holds every
    partial sum exactly, in any order.

    >>> _gram(np.full((64, 1), 2**29))[0, 0] == 2**64
    True
    """
    upper = (factor >> _HALF_BITS).astype(np.float64)
    lower = (factor & ((1 << _HALF_BITS) - 1)).astype(np.float64)
    most = len(factor) * int(np.abs(factor).max()) ** 2
    exact = np.dtype(np.int64) if 4 * most < 2**63 else np.dtype(object)
    mixed = (upper.T @ lower).astype(np.int64)
    gram: NDArray[Any] = (upper.T @ upper).astype(np.int64).astype(exact)
    # The sum is built in place, since one of Python's integers in an array takes 40 bytes.
    for part in (mixed + mixed.T, (lower.T @ lower).astype(np.int64)):
        gram *= 1 << _HALF_BITS
        gram += part
    return gram
