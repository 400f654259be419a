"""p-Identity: a strategy for any linear queries on one attribute.

McKenna, Miklau, Hay and Machanavajjhala, "Optimizing error of high-dimensional statistical queries
under differential privacy" (HDMM), Definition 9: A(Theta) = [I; Theta] D, where the diagonal D
makes the L1 norm of every column 1, for Laplace noise (OPT_0 of the paper).
"""

from __future__ import annotations

import numpy as np

from pgmkit.runtime.arrays import Array


def expected_error(gram: Array, strategy: Array) -> float:
    """Return tr(W'W (A'A)^-1): the workload's expected squared error by the strategy A at noise of
    variance 1.
    """
    return float(np.trace(np.linalg.solve(strategy.T @ strategy, gram)))


def p_identity(gram: Array) -> Array:
    """Return the p-Identity strategy, with columns of L1 norm 1, that answers the queries W on n
    codes best, where W'W = `gram`. It has n + p rows, with the paper's p = n / 16 + 1.

    It is optimised by L-BFGS from a few fixed starts; the identity matrix is returned if none of
    them leads to a better strategy.

    >>> from mechanisms.queries.query_sets import query_gram
    >>> gram = query_gram("prefix", 64)
    >>> strategy = p_identity(gram)
    >>> strategy.shape, np.allclose(strategy.sum(axis=0), 1)
    ((69, 64), True)
    >>> expected_error(gram, strategy) < 0.5 * expected_error(gram, np.eye(64))
    True
    """
    from scipy.optimize import minimize

    n = len(gram)
    p = n // 16 + 1
    best, lowest = np.eye(n), float(np.trace(gram))
    rng = np.random.default_rng(0)
    for _ in range(3):
        found = minimize(
            error_and_gradient,
            rng.random(p * n),
            args=(gram,),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * (p * n),
            options={"maxiter": 500},
        )
        if found.fun < lowest * (1 - 1e-6):
            lowest = float(found.fun)
            best = _strategy(found.x.reshape(p, n))
    return best


def _strategy(theta: Array) -> Array:
    """Return A = [I; Theta] D, in which D divides each column by its sum."""
    return np.vstack([np.eye(theta.shape[1]), theta]) / (1 + theta.sum(axis=0))


def error_and_gradient(flat: Array, gram: Array) -> tuple[float, Array]:
    """Return tr(V (A'A)^-1) for the gram matrix V, and its gradient in Theta, which is given as
    `flat`.

    With T = Theta, M = (I + T T')^-1 and U = D^-1 V D^-1 the trace is tr(U) - tr(M T U T'), since
    (A'A)^-1 = D^-1 (I - T'M T) D^-1. So no matrix of the size of V is inverted or multiplied by
    another one.
    """
    n = len(gram)
    theta = flat.reshape(-1, n)
    total = 1 + theta.sum(axis=0)  # 1 / D
    small = np.linalg.inv(np.eye(len(theta)) + theta @ theta.T)
    weighted = (theta * total) @ gram * total  # T U
    turned = small @ weighted  # M T U
    own = np.diag(gram) * total**2 - (turned * theta).sum(axis=0)  # the diagonal of V (A'A)^-1
    # A larger entry of Theta also makes D, by which its whole column of the strategy is multiplied,
    # smaller: the derivative of D is -D^2. This adds the second term.
    gradient = 2 * (turned @ theta.T @ small @ theta - turned) + 2 * own / total
    return float(own.sum()), gradient.reshape(-1)
