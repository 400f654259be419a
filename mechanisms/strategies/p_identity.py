"""p-Identity: a strategy for any linear queries on one attribute.

McKenna, Miklau, Hay and Machanavajjhala, "Optimizing error of high-dimensional statistical queries
under differential privacy" (HDMM), Definition 9: A(Theta) = [I; Theta] D, with p further rows Theta
and a diagonal D that makes every column's norm 1. For Laplace noise that is the L1 norm (OPT_0 of
the paper), for Gaussian noise the L2 norm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pgmkit.errors import InvalidInput, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["QUERIES", "expected_error", "p_identity", "query_gram"]

_CODES_PER_ROW = {1: 16, 2: 4}
"""The number of codes for each further row: p = n / 16 + 1 in the paper. In the L2 norm more rows
pay: on prefixes and ranges over 100 codes p = n / 4 + 1 is 5% above the lower bound, n / 16 + 1
28%.
"""
QUERIES = {
    "identity": "every single code",
    "prefix": "all codes up to each code (cumulative counts)",
    "range": "every interval of codes",
}
"""The query sets that a strategy can be optimised for."""


def query_gram(kind: str, n: int) -> Array:
    """Return W'W of a query set W over an attribute of n codes, in closed form (W itself may be
    large).

    Raises InvalidInput for an unknown set.

    >>> query_gram("prefix", 2), query_gram("range", 2)
    (array([[2., 1.], [1., 1.]]), array([[2., 1.], [1., 2.]]))
    """
    codes = np.arange(n)
    if kind == "identity":
        return np.eye(n)
    if kind == "prefix":
        return n - np.maximum.outer(codes, codes).astype(np.float64)
    if kind == "range":
        before = np.minimum.outer(codes, codes) + 1
        return before * (n - np.maximum.outer(codes, codes)).astype(np.float64)
    near = did_you_mean(kind, QUERIES)
    raise InvalidInput(f"queries {kind!r} are unknown{near}; known are {', '.join(QUERIES)}")


def expected_error(gram: Array, strategy: Array) -> float:
    """Return tr(W'W (A'A)^-1): the workload's expected squared error by the strategy A at noise of
    variance 1.
    """
    return float(np.trace(np.linalg.solve(strategy.T @ strategy, gram)))


def p_identity(gram: Array, norm: int, starts: int = 3) -> Array:
    """Return the strategy with columns of norm 1 that answers W'W = `gram` best, of shape (n + p) x
    n.

    `norm` is 1 for Laplace noise, 2 for Gaussian. It is optimised by L-BFGS from a few fixed
    starts; the identity matrix is returned if none is better.

    >>> gram = query_gram("prefix", 32)
    >>> strategy = p_identity(gram, norm=2)
    >>> strategy.shape, np.allclose((strategy**2).sum(0), 1)
    ((41, 32), True)
    >>> expected_error(gram, strategy) < 0.5 * expected_error(gram, np.eye(32))
    True
    """
    from scipy.optimize import minimize

    n = len(gram)
    p = n // _CODES_PER_ROW[norm] + 1
    best, lowest = np.eye(n), float(np.trace(gram))
    rng = np.random.default_rng(0)
    for _ in range(starts):
        found = minimize(
            _error_and_gradient,
            rng.random(p * n),
            args=(gram, norm),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * (p * n),
            options={"maxiter": 500},
        )
        if found.fun < lowest * (1 - 1e-6):
            lowest = float(found.fun)
            best = _strategy(found.x.reshape(p, n), norm)[0]
    return best


def _strategy(theta: Array, norm: int) -> tuple[Array, Array]:
    """Return A = [I; Theta] D and the diagonal of D."""
    scale = (1 + (theta**norm).sum(axis=0)) ** (-1 / norm)
    return np.vstack([np.eye(theta.shape[1]), theta]) * scale, scale


def _error_and_gradient(flat: Array, gram: Array, norm: int) -> tuple[float, Array]:
    """Return tr(V (A'A)^-1) for the gram matrix V, and its gradient in Theta: -2 A X with X =
    (A'A)^-1 V (A'A)^-1, chained through D.
    """
    n = len(gram)
    theta = flat.reshape(-1, n)
    strategy, scale = _strategy(theta, norm)
    inverse = np.linalg.inv(strategy.T @ strategy)
    slope = -2 * strategy @ (inverse @ gram @ inverse)
    # D' = -D^(norm + 1) Theta^(norm - 1); the derivative by D is slope . column / D for each
    # column.
    along = (slope * strategy).sum(axis=0) * scale**norm
    gradient = slope[n:] * scale - along * theta ** (norm - 1)
    return float((inverse * gram).sum()), gradient.reshape(-1)
