"""A union of Kronecker products for Laplace noise: a p-Identity product for each workload clique.

HDMM's OPT_Kron for one clique and OPT_+ for several (sections 6.1 and 6.2 of the paper), with the
shares of the budget in closed form: the errors e_c at sensitivity 1 add up to
sum of e_c / theta_c^2, which is least for theta_c proportional to the cube root of e_c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mechanisms.strategies.p_identity import expected_error, p_identity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mechanisms.workload import Workload
    from pgmkit.domain import Clique

    Array = NDArray[np.float64]

__all__ = ["ProductsStrategy", "products_strategy"]


@dataclass(frozen=True)
class ProductsStrategy:
    """One matrix for each attribute, and the share of the budget (rho, or epsilon) of each clique.

    `expected_error` is in the unit of `MarginalsStrategy.expected_error`.
    """

    rows: Mapping[str, Array]
    shares: Mapping[Clique, float]
    expected_error: float


def products_strategy(workload: Workload, grams: Mapping[str, Array]) -> ProductsStrategy:
    """Return the union of products of least expected squared error.

    `grams` are W'W of the queries on attributes that are not asked code by code (those are measured
    code by code).

    >>> from mechanisms.strategies.query_sets import query_gram
    >>> from mechanisms.workload import Workload
    >>> from pgmkit.domain import Domain
    >>> ages = Workload(Domain({"age": 32, "sex": 2}), [("age", "sex"), ("sex",)])
    >>> found = products_strategy(ages, {"age": query_gram("prefix", 32)})
    >>> {clique: round(share, 2) for clique, share in found.shares.items()}
    {('age', 'sex'): 0.87, ('sex',): 0.13}
    """
    sizes = workload.domain.sizes
    factors = {
        name: p_identity(grams[name]) if name in grams else np.eye(sizes[name])
        for name in workload.domain
    }
    own = {
        name: expected_error(grams[name], factors[name]) if name in grams else float(sizes[name])
        for name in workload.domain
    }
    errors = np.array(
        [
            weight * math.prod(own[name] for name in clique)
            for clique, weight in zip(workload.cliques, workload.weights, strict=True)
        ]
    )
    powers = np.cbrt(errors)
    shares = powers / powers.sum()
    return ProductsStrategy(
        factors,
        dict(zip(workload.cliques, shares.tolist(), strict=True)),
        float((errors / shares**2).sum()),
    )
