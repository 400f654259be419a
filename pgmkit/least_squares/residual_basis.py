"""The residual basis of an attribute, from which its tables are put together.

With n codes it consists of the total and of a matrix S of rank n - 1. With p the vector of sum 1
for which S p = 0, and K the inverse of S on vectors of sum 0,

    x = p (1'x) + K (S x)

for every table x along the attribute.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from pgmkit.errors import InvalidInput
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import SOLVED
from pgmkit.runtime.precision import SUM_ROUNDING

RANK = SUM_ROUNDING
"""Singular values of S below this fraction of the largest count as zero. The smallest nonzero ones
are far larger, also if the entries of S were rounded to whole numbers of 30 bits.
"""


@dataclass(frozen=True)
class ResidualBasis:
    """The residual basis of an attribute: ``rows`` is S, ``unseen`` the vector p and ``inverse``
    the matrix K of the module docstring.

    >>> basis = ResidualBasis.of(np.array([[1.0, -1.0]]))
    >>> basis.unseen, basis.inverse
    (array([0.5, 0.5]), array([[ 0.5],
           [-0.5]]))
    """

    rows: Array
    unseen: Array
    inverse: Array

    @classmethod
    def of(cls, rows: Array) -> ResidualBasis:
        """Return the basis of these rows.

        Raises InvalidInput if the rank of the rows is not one less than the number of columns, or
        if the row of ones, which gives the total, is a combination of them.
        """
        n = rows.shape[1]
        if code_by_code(rows):
            return cls(rows, np.full(n, 1 / n), rows * ((n - 1) / n / rows[0, 0]) ** 2)
        # With X = S'S + J (J is the matrix of ones), X p is a multiple of the vector of ones, and K
        # = X^-1 S'. If X is singular or this is not precise enough, p and K come from the singular
        # value decomposition.
        scaled = rows / np.abs(rows).max()
        with contextlib.suppress(np.linalg.LinAlgError):
            factor = cho_factor(scaled.T @ scaled + 1.0)
            unseen = cho_solve(factor, np.ones(n))
            unseen /= unseen.sum()
            # If S p = 0 for a p of sum 1, the computed S p is rounding, far smaller than this,
            # since X could be factorised.
            if np.abs(scaled @ unseen).max() > SOLVED:
                raise InvalidInput(
                    f"the rows of a residual over {n} codes must not have the row of ones as a "
                    f"combination, which gives the total, got {rows.shape} that have it"
                )
            inverse = cho_solve(factor, scaled.T)
            if np.abs(inverse @ scaled - (np.eye(n) - unseen[:, None])).max() < RANK:
                return cls(rows, unseen, inverse / np.abs(rows).max())
        left, values, right = np.linalg.svd(rows)
        nonzero = values > RANK * values[0]
        if nonzero.sum() != n - 1 or abs(right[-1].sum()) < RANK:
            raise InvalidInput(
                f"the rows of a residual over {n} codes must have rank {n - 1} without the total, "
                f"got {rows.shape} of rank {nonzero.sum()}"
            )
        unseen = right[-1] / right[-1].sum()
        inverse = (right[: n - 1].T / values[: n - 1]) @ left[:, : n - 1].T
        return cls(rows, unseen, inverse - np.outer(unseen, inverse.sum(axis=0)))


def code_by_code(rows: Array) -> bool:
    """Return True if the rows are a multiple of n I - J, the contrasts of each code with the mean
    of all.
    """
    n = rows.shape[1]
    if rows.shape != (n, n) or n == 1:
        return False
    contrasts = rows[0, 0] / (n - 1) * (n * np.eye(n) - 1)
    return bool((np.abs(rows - contrasts) <= 1e-12 * np.abs(contrasts)).all())
