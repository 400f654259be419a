"""Conjugate gradients with a diagonal preconditioner."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pgmkit.runtime.arrays import Array


def solution(
    product: Callable[[Array], Array], right: Array, diagonal: Array, rtol: float, most: int
) -> Array:
    """Return x with A x = ``right`` up to a residual of ``rtol`` times the length of ``right``, or
    the approximation of x after ``most`` steps. In either case the function y A y / 2 - right y
    falls if y moves from 0 towards x.

    ``product(x)`` returns A x for the positive definite matrix A, and ``diagonal`` is that of A.

    >>> scale = np.array([1.0, 100.0])
    >>> solution(lambda x: scale * x, np.array([1.0, 200.0]), scale, 1e-9, 1)
    array([1., 2.])
    """
    from scipy.sparse.linalg import LinearOperator, cg

    shape = len(right), len(right)
    operator = LinearOperator(shape, product, dtype=np.float64)
    inverse = LinearOperator(shape, lambda vector: vector / diagonal, dtype=np.float64)
    return cg(operator, right, rtol=rtol, maxiter=most, M=inverse)[0]
