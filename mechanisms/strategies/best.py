"""The best of the strategies for a workload, and the variances of answers from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from mechanisms.privacy.neighbours import Neighbours
from mechanisms.queries.query_sets import number_of_queries, query_rows
from mechanisms.strategies.marginals import MarginalsStrategy, marginals_strategy
from mechanisms.strategies.products import ProductsStrategy, products_strategy
from mechanisms.strategies.residuals import ResidualsStrategy, residuals_strategy, unit_variance
from mechanisms.workload import Workload
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import BLOCK_CELLS, DENSE_ROWS

Goal: TypeAlias = Literal["sum", "mean", "largest"]
Strategy: TypeAlias = ResidualsStrategy | MarginalsStrategy | ProductsStrategy

_MOST_LATTICE = DENSE_ROWS
"""The largest number of a workload's residuals for which strategies of marginals are searched. The
search holds a dense matrix of residuals by marginals, which takes 100 MB at this size.
"""


def best_strategy(
    workload: Workload,
    neighbours: Neighbours,
    norm: int,
    *,
    total_known: bool,
    objective: Goal = "sum",
) -> Strategy:
    """Return the strategy of least expected error for these queries.

    `norm` is 1 for Laplace noise and 2 for Gaussian noise. `total_known`: whether the number of
    rows is public, so that the total is not measured. `objective`: the figure that is minimised,
    weighted by the sets' weights: the "sum" of the variances of all queries, the sum of the "mean"
    variances of the sets, or the "largest" variance of a query.

    Errors are at a budget of 1 (rho, or epsilon). Candidates are residuals, marginals if there are
    at most `_MOST_LATTICE` residuals and, for Laplace noise, products. For Gaussian noise under
    add/remove only residuals are computed, since they are never worse than the others. For the
    objective "largest" marginals and products are those of the least sum, and only residuals are
    computed for more than `BLOCK_CELLS` queries. Raises InvalidInput if nothing needs to be
    measured or queries do not fit the domain, and ModelTooLarge for an attribute of too many codes
    (`residuals_strategy`).

    >>> from mechanisms.privacy.neighbours import relation
    >>> from mechanisms.workload import Workload
    >>> from pgmkit.domain import Domain
    >>> ages = Workload(Domain({"age": 64, "sex": 2}), [("age", "sex")]).asking({"age": "range"})
    >>> for norm in (1, 2):
    ...     found = best_strategy(ages, relation("add/remove"), norm, total_known=False)
    ...     print(type(found).__name__)
    ProductsStrategy
    ResidualsStrategy
    """
    domain, largest = workload.domain, objective == "largest"
    if objective == "mean":
        counts = [number_of_queries(domain, each) for each in workload.sets]
        pairs = zip(workload.sets, counts, strict=True)
        workload = Workload.of(domain, [replace(s, weight=s.weight / n) for s, n in pairs])
    residuals = residuals_strategy(
        domain,
        workload.sets,
        neighbours,
        norm,
        total_known=total_known,
        objective="largest" if largest else "sum",
    )
    found: list[tuple[float, Strategy]] = [(residuals.objective, residuals)]
    others: list[MarginalsStrategy | ProductsStrategy] = []
    asked = sum(number_of_queries(domain, each) for each in workload.sets) if largest else 0
    if (norm == 1 or neighbours.exchanged) and asked <= BLOCK_CELLS:
        if len(residuals.shares) <= _MOST_LATTICE:
            others.append(marginals_strategy(workload, norm, total_known))
        if norm == 1:
            others.append(products_strategy(workload))
    for each in others:
        error = each.expected_error * unit_variance((), neighbours, norm)
        if largest:
            error = _largest_variance(workload, each, neighbours, norm)
        found.append((error, each))
    return min(found, key=lambda each: each[0])[1]


def _largest_variance(
    workload: Workload, strategy: Strategy, neighbours: Neighbours, norm: int
) -> float:
    """Return the largest variance of an answer to a query of the workload (`expected_variance`),
    each multiplied by the weight of the query's set.
    """
    sizes = workload.domain.sizes
    found = []
    for each in workload.sets:
        rows = {name: query_rows(each.along(name), sizes[name]) for name in each.clique}
        query = FactoredQuery(rows)
        variance = expected_variance(workload, strategy, query, neighbours, norm)
        found.append(each.weight * float(variance.max()))
    return max(found)


def expected_variance(
    workload: Workload, strategy: Strategy, query: FactoredQuery, neighbours: Neighbours, norm: int
) -> Array:
    """Return the variance of each answer to the query, in squared counts, if the strategy is
    measured with a budget of 1: an epsilon of 1 for `norm` 1 (Laplace noise), a rho of 1 for `norm`
    2 (Gaussian noise). With another budget it is this variance divided by epsilon^2, or by rho.

    Raises InvalidInput for queries that the strategy does not answer.
    """
    domain = workload.domain
    if isinstance(strategy, ResidualsStrategy):
        return strategy.noise.variance(query)
    if isinstance(strategy, MarginalsStrategy):
        noise = strategy.noise(domain, 2 // norm, neighbours.rows_public)
        return noise.variance(query) * unit_variance((), neighbours, norm)
    return strategy.variance(query, domain) * unit_variance((), neighbours, norm)
