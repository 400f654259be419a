"""A union of Kronecker products for Laplace noise: a p-Identity product for each workload clique.

This is HDMM's OPT_Kron for one clique and OPT_+ for several (sections 6.1 and 6.2 of the paper).
The shares theta_c of the budget have a closed form: with e_c the error of clique c at sensitivity
1, the total error is the sum of e_c / theta_c^2, which is least for theta_c proportional to the
cube root of e_c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np

from mechanisms.queries.query_sets import CODES, kind_of, kinds_along, query_gram
from mechanisms.strategies.p_identity import expected_error, p_identity
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
