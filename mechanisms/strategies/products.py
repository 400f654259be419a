"""A union of Kronecker products for Laplace noise: a p-Identity product for each workload clique.

McKenna, Miklau, Hay and Machanavajjhala, "Optimizing error of high-dimensional statistical queries
under differential privacy" (HDMM). A p-Identity matrix, for any linear queries on one attribute, is
A(Theta) = [I; Theta] D, where the diagonal D makes the L1 norm of every column 1 (Definition 9 and
OPT_0 of the paper).

The union is HDMM's OPT_Kron for one clique and OPT_+ for several (sections 6.1 and 6.2). The shares
theta_c of the budget have a closed form: with e_c the error of clique c at sensitivity 1, the total
error is the sum of e_c / theta_c^2, which is least for theta_c proportional to the cube root of
e_c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np

from mechanisms.queries.query_sets import CODES, kind_of, kinds_along, query_gram
from mechanisms.workload import Workload
from pgmkit import FactoredQuery, InvalidInput
from pgmkit.domain import Clique, Domain
from pgmkit.linear.matrix import as_dense
from pgmkit.runtime.arrays import Array


@dataclass(frozen=True)
class ProductsStrategy:
    """The matrix (`rows`) by which each attribute is measured, and the share of epsilon of each
    clique, which is measured by the Kronecker product of its attributes' matrices.

    `expected_error`: the workload's expected squared error, by its weights, with noise of variance
    1 on a strategy of sensitivity 1: multiply by 2 l1^2 / epsilon^2 for a sensitivity of l1.
    """

    rows: Mapping[str, Array]
    shares: Mapping[Clique, float]
    expected_error: float

    def variance(self, query: FactoredQuery, domain: Domain) -> Array:
        """Return the variance of each answer, computed from the smallest clique that holds the
        query's attributes, for noise of variance 1 on a strategy of sensitivity 1 (as
        `expected_error`). Raises InvalidInput if no clique holds them.
        """
        place = domain.smallest_holding(list(self.shares), query.attributes)
        if place is None:
            raise InvalidInput(f"no workload clique holds {query.attributes!r}; add one that does")
        clique = list(self.shares)[place]
        whole, spread = np.array(self.shares[clique] ** -2.0), dict[str, Array]()
        for name in clique:
            n, rows = domain.sizes[name], self.rows[name]
            asked = as_dense(query.factors[name]) if name in query.factors else np.ones((1, n))
            spread[name] = (asked * np.linalg.solve(rows.T @ rows, asked.T).T).sum(axis=1)
            if name not in query.factors:
                whole = whole * spread[name][0]
        found = reduce(np.multiply.outer, map(spread.__getitem__, query.attributes), whole)
        return np.asarray(found.reshape(query.answer_shape))


def products_strategy(workload: Workload) -> ProductsStrategy:
    """Return the union of a product for each clique of the workload, with the shares of the budget
    for which the expected squared error is least.

    An attribute that is always asked code by code is measured so. Any other has the strategy that
    `p_identity` finds for the sum of the ways in which it is asked, each way at equal weight.

    >>> from mechanisms.workload import Workload
    >>> from pgmkit.domain import Domain
    >>> ages = Workload(Domain({"age": 32, "sex": 2}), [("age", "sex"), ("sex",)])
    >>> found = products_strategy(ages.asking({"age": "prefix"}))
    >>> {clique: round(share, 2) for clique, share in found.shares.items()}
    {('age', 'sex'): 0.87, ('sex',): 0.13}
    """
    sizes = workload.domain.sizes
    # Each attribute gets one strategy, and each kind of queries along the attribute has its
    # expected error under this strategy.
    factors, own_errors = {}, dict[tuple[str, object], float]()
    for name, kinds in kinds_along(workload.sets).items():
        grams = {key: query_gram(asked, sizes[name]) for key, asked in kinds.items()}
        mixed = sum(gram / np.trace(gram) for gram in grams.values())
        plain = set(kinds) == {CODES}
        factors[name] = np.eye(sizes[name]) if plain else p_identity(np.asarray(mixed))
        for key, gram in grams.items():
            own_errors[name, key] = expected_error(gram, factors[name])
    # The error of a product is the product of the errors. The sum of e_c / theta_c^2 is least for
    # theta_c proportional to the cube root of e_c.
    errors = dict.fromkeys(map(frozenset, workload.cliques), 0.0)
    for each in workload.sets:
        parts = zip(each.clique, each.asked, strict=True)
        product = math.prod(own_errors[name, kind_of(asked)] for name, asked in parts)
        errors[frozenset(each.clique)] += each.weight * product
    found = np.array(list(errors.values()))
    powers = np.cbrt(found)
    shares = powers / powers.sum()
    by_clique = dict(zip(workload.cliques, shares.tolist(), strict=True))
    return ProductsStrategy(factors, by_clique, float((found / shares**2).sum()))


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
