"""The residual planner: the best Gaussian noise for weighted marginals, in closed form.

Xiao, He, Zhang and Kifer, "An Optimal and Scalable Matrix Mechanism for Noisy Marginals under
Convex Loss Functions" (NeurIPS 2023). A marginal over the attributes c is the sum, over the subsets
A of c, of its *residuals*: the contrasts R_A that have zero sum along each attribute of A and are
even over all others. Residuals are orthogonal, so noise on one tells nothing of another; each is
measured by itself, at a share of the budget of its own.

**Measuring a residual.** With n_i codes of attribute i and J all ones, the queries

    H_A = kron over i in A of (n_i I - J) = (product of n_i) P_A,   P_A = kron of (I - J / n_i),

are whole numbers, and P_A projects the marginal of A on its residual. They are answered with
independent discrete noise on every answer (`Curator.measure_queries`). A column of H_A has the
squared norm product of n_i (n_i - 1), so noise of scale s (product of n_i) costs

    rho = p_A / (2 s^2),   p_A = product over i in A of (1 - 1 / n_i),

where one row is added or removed: the theorem of discrete Gaussian noise on integer queries (here
of H_A), with nothing left to argue. It is the paper's price (Theorem 4.5; its Algorithm 5 takes the
same integer queries), below the 1 / (2 s^2) of noise on the marginal that is projected afterwards:
that noise protects the parts that are thrown away, too. Independent noise on all answers has a
part outside the range of P_A, which depends on nothing and is left out of every estimate; the part
inside has covariance s^2 P_A in counts, as if noise of scale s on every cell had been projected.

If a row is replaced, H_A moves by the difference of two columns: the product of n_i squared
times 2 (p_A - q), where q is the least entry of P_A off its diagonal. Laplace noise for a pure
budget has the L1 norms instead. Each residual is charged for its own worst neighbour.

**Sharing the budget.** A cell of the marginal c has the variance

    Var_c = sum over A inside c of s_A^2 times the product over A of (1 - 1/n_i)
                                       times the product over c less A of 1/n_i^2

(Theorem 4.7), the same for every cell. With variance s_A^2 = k_A / share_A^q at a budget of 1 (q is
1 for rho, 2 for epsilon), weighted sums of variances, sum of v_A s_A^2, are least for

    share_A proportional to (v_A k_A)^(1 / (1 + q)),  and then  (sum of (v_A k_A)^(1/(1+q)))^(1+q).

The largest variance is a maximum over weights of such sums, so its least value is the largest, over
weights, of the expression above, which is concave in them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from mechanisms.families.residual_tables import variance_parts
from mechanisms.privacy.neighbours import Neighbours
from pgmkit.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

    from mechanisms.workload import Workload
    from pgmkit.domain import Clique, Domain

    Array = NDArray[np.float64]

__all__ = ["Objective", "ResidualsStrategy", "residual_matrix", "residuals_strategy"]

Objective = Literal["sum", "largest"]


@dataclass(frozen=True)
class ResidualsStrategy:
    """The share of the budget (rho, or epsilon) of each residual, and the expected errors.

    Errors are at a budget of 1: divide by rho, or by epsilon^2.

    Attributes:
        shares: By the attributes of a residual, () for the total (left out if the total is known);
            they sum to 1.
        sum: The sum of the variances of all cells of the workload's cliques, by their weights.
        largest: The largest variance of a cell, times its clique's weight.
        lower_bound: A value of the objective that no shares of residuals can go below.
    """

    shares: Mapping[Clique, float]
    sum: float
    largest: float
    lower_bound: float


def residuals_strategy(
    workload: Workload,
    neighbours: Neighbours,
    norm: int,
    *,
    total_known: bool,
    objective: Objective = "sum",
) -> ResidualsStrategy:
    """Return the shares of residuals of least error on the workload.

    `objective` "sum" is the sum of the variances of all its cells, "largest" the largest variance
    of a cell, both by the cliques' weights; the second is within 0.1% of the optimum. `norm` is 1
    for Laplace noise, 2 for Gaussian.

    Raises InvalidInput for a workload of which nothing needs to be measured.

    >>> from mechanisms.privacy.neighbours import relation
    >>> from mechanisms.workload import k_way
    >>> from pgmkit.domain import Domain
    >>> pairs = k_way(Domain({"a": 2, "b": 3, "c": 4}), 2)
    >>> found = residuals_strategy(pairs, relation("add/remove"), 2, total_known=False)
    >>> {clique: round(share, 3) for clique, share in found.shares.items() if len(clique) < 2}
    {(): 0.086, ('a',): 0.076, ('b',): 0.14, ('c',): 0.192}
    >>> round(2 * found.sum, 2)
    50.85
    """
    power = 2 / norm
    residuals, parts = _lattice(workload, total_known)
    if not residuals:
        raise InvalidInput("the workload asks for a total that is public, and for nothing else")
    unit = np.array([_unit_variance(workload.domain, a, neighbours, norm) for a in residuals])
    weights = np.array(workload.weights)
    cells = np.array([float(workload.domain.size(clique)) for clique in workload.cliques])

    def shares_for(importance: Array) -> tuple[Array, float]:
        roots = (parts.T @ importance * unit) ** (1 / (1 + power))
        return roots / roots.sum(), float(roots.sum() ** (1 + power))

    def variances(shares: Array) -> Array:
        return np.asarray(parts @ (unit / shares**power))

    shares, bound = shares_for(weights * cells)
    if objective == "largest":
        shares, bound = _smallest_maximum(shares_for, variances, weights)
    found = variances(shares)
    return ResidualsStrategy(
        dict(zip(residuals, shares.tolist(), strict=True)),
        float((weights * cells) @ found),
        float((weights * found).max()),
        bound,
    )


def residual_matrix(domain: Domain, residual: Clique) -> list[Array]:
    """Return the factors n I - J of H_A (see the module), one for each attribute of the residual.

    >>> from pgmkit.domain import Domain
    >>> residual_matrix(Domain({"a": 2}), ("a",))
    [array([[ 1., -1.],
           [-1.,  1.]])]
    """
    sizes = domain.shape(residual)
    return [size * np.eye(size) - np.ones((size, size)) for size in sizes]


def _lattice(workload: Workload, total_known: bool) -> tuple[list[Clique], csr_array]:
    """Return all residuals of the workload, small ones first, and a matrix of Var_c / s_A^2 by
    clique c and residual A.
    """
    from scipy.sparse import csr_array

    domain = workload.domain
    rank = domain.places
    lines = [variance_parts(domain, domain.ordered(clique)) for clique in workload.cliques]
    residuals = sorted(
        set(itertools.chain.from_iterable(lines)), key=lambda a: (len(a), [rank[n] for n in a])
    )
    if total_known:
        residuals = [a for a in residuals if a]
    place = {a: column for column, a in enumerate(residuals)}
    entries = [
        (row, place[a], part)
        for row, line in enumerate(lines)
        for a, part in line.items()
        if a in place
    ]
    rows, columns, parts = np.array(entries).reshape(-1, 3).T
    where = (rows.astype(np.int64), columns.astype(np.int64))
    return residuals, csr_array((parts, where), shape=(len(lines), len(residuals)))


def _unit_variance(domain: Domain, residual: Clique, neighbours: Neighbours, norm: int) -> float:
    """Return k_A: the variance s_A^2 of a residual's noise at a budget of 1."""
    sizes = domain.shape(residual)
    if not sizes:
        moved = neighbours.l1 if norm == 1 else neighbours.l2
    else:
        moved = neighbours.largest_move(lambda differ: _move(sizes, norm, differ))
    return 2 * moved**2 if norm == 1 else moved**2 / 2


def _move(sizes: Sequence[int], norm: int, differ: bool) -> float:
    """Return the sensitivity of the residual P_A, the Kronecker product of I - J / n: the largest
    norm (L1 or L2) of a column, or with `differ` of the difference of two columns.

    >>> _move((2, 4), 1, differ=False), _move((2,), 2, differ=False) ** 2
    (1.5, 0.5...)
    """
    if norm == 1:
        column = math.prod(2 * (1 - 1 / n) for n in sizes)
        if not differ:
            return column
        return 2.0 if len(sizes) == 1 else 2 * column
    low = high = 1.0  # the least and the largest entry of P_A
    for n in sizes:
        ends = [end * entry for end in (low, high) for entry in (-1 / n, 1 - 1 / n)]
        low, high = min(ends), max(ends)
    return math.sqrt(2 * (high - low) if differ else high)


def _smallest_maximum(
    best: Callable[[Array], tuple[Array, float]],
    variances: Callable[[Array], Array],
    weights: Array,
    close: float = 1e-3,
    most_steps: int = 5000,
) -> tuple[Array, float]:
    """Return shares whose largest weighted variance is within the fraction `close` of the least
    possible one, and a lower bound of that.

    `best` returns the shares for an importance of the cliques, and their error: for any importances
    that sum to 1 that error is a lower bound. Its gradient is the vector of variances, so
    importance is moved, in proportion, to where they are large, until the largest is near the
    bound.
    """
    importance = np.full(len(weights), 1 / len(weights))
    bound, found, least = 0.0, importance, math.inf
    for _ in range(most_steps):
        shares, value = best(importance * weights)
        at = weights * variances(shares)
        bound = max(bound, value)
        if at.max() < least:
            found, least = shares, float(at.max())
        if least <= bound * (1 + close):
            break
        # No importance falls to 0: a residual that only this clique has would then get nothing.
        importance = np.maximum(importance * at / value, 1e-12)
        importance /= importance.sum()
    return found, bound
