"""The residual planner: bases of residuals and shares of the budget with which weighted sets of
queries have the least noise.

Xiao, He, Zhang and Kifer, "An Optimal and Scalable Matrix Mechanism for Noisy Marginals under
Convex Loss Functions" (NeurIPS 2023), and ResidualPlanner+ of the same authors. Every attribute has
a residual basis (`pgmkit.least_squares.residual_basis`), which consists of the total and of rows
S. A set of queries over the attributes c is answered from the *residuals* of the subsets A of c:
the counts to which S is applied along the attributes of A, summed over all other attributes. Each
residual is measured separately, with its own share of the budget.

**Bases.** For queries of single codes, S = n I - J is optimal, where J is the matrix of ones. For
other queries the rows come from `mechanisms.strategies.least_error`. With s_A^2 the variance of the
noise on the residual A, and the inside and outside errors that
`mechanisms.strategies.residual_lattice` defines, the sum of the variances of a set of queries is

    sum over A inside c of s_A^2 times the product over A of inside[i, w]
                                 times the product over c less A of outside[i, w]

(Theorem 4.7). With the best shares (below) a workload's error is the square of the sum, over A, of
the square roots of the coefficients of s_A^2. The derivatives of the error tell how much accuracy
of an attribute's total is worth, and each basis is made again for these derivatives until the error
falls no more. Rows are whole numbers, so the planned rows are measured exactly.

**Measuring a residual.** The Kronecker product of the rows along A is answered with independent
discrete noise on every answer (`Curator.measure_queries`). If a record may be added or removed, the
cost is that of discrete Gaussian noise on integer queries, rho = m / (2 s^2), where m is the
product over A of the largest squared norm of a column. For S = n I - J it equals the paper's cost
(Theorem 4.5). Noise outside the range of the rows is independent of the data and enters no
estimate. If a record may be replaced, the difference of two columns counts.

No replacement of a record changes every residual by its largest amount, so all residuals together
cost less than the sum of their single costs (`mechanisms.privacy.joint_moves`). For a pure budget
noise is Laplace, and L1 norms take the place of L2 norms.

**Sharing the budget.** At a budget of 1, residual A has the variance s_A^2 = k_A / share_A^q, where
q is 1 for rho and 2 for epsilon. The weighted sum of variances, sum over A of v_A s_A^2, is least
for

    share_A proportional to (v_A k_A)^(1 / (1 + q)), and is then (sum of (v_A k_A)^(1/(1+q)))^(1+q).

The largest variance of a query is the maximum, over weights of the queries that sum to 1, of such a
sum. So its least value is the maximum over weights of the expression above, which is concave in the
weights. The same holds for the joint cost of all residuals: it is the maximum, over probabilities
of the ways in which a record may be replaced, of the mean cost, and k_A becomes such a mean. The
expression is concave in weights and probabilities together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from mechanisms.privacy.integer_matrix import FactorNorms, product_l1, product_l2_squared
from mechanisms.privacy.joint_moves import JointMoves
from mechanisms.privacy.neighbours import Neighbours, relation
from mechanisms.queries.query_sets import QuerySet, query_rows
from mechanisms.strategies.bases import residual_rows
from mechanisms.strategies.residual_lattice import Lattice
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.least_squares.residual_tables import Bases, ResidualNoise
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ITERATIONS, SOLVED
from pgmkit.runtime.sizes import BLOCK_CELLS

Objective = Literal["sum", "largest"]

_FEW_STATES = 256
"""At the start of the search the probability of a state is proportional to this power of its cost,
so that nearly all probability is on the states of the largest cost.
"""
_MOST_STEPS = 5 * MOST_ITERATIONS
"""The most steps of the search; hundreds are usual."""
_MOST_VARIANCES = BLOCK_CELLS
"""The most variances that the search for the least largest variance holds: 100 MB with their
parts."""


@dataclass(frozen=True)
class ResidualsStrategy:
    """The share of the budget (rho, or epsilon) of each residual, the rows by which it is measured,
    and the expected errors.

    Errors are at a budget of 1: divide by rho, or by epsilon^2. The keys of `shares` are the
    residuals' attributes in the domain's order, () for the total; a known total has no share.

    Attributes:
        shares: The share of each residual; shares sum to 1.
        noise: The bases of the residuals, and the variances of any answer, at a budget of 1.
        expected_error: The sum of the variances of all queries, by their weights.
        objective: The value of what was minimised: the weighted sum of the variances, or the
            largest weighted variance.
        lower_bound: A lower bound on `objective` for any shares of the same residuals.
    """

    shares: Mapping[Clique, float]
    noise: ResidualNoise
    expected_error: float
    objective: float
    lower_bound: float

    def rows(self, residual: Clique) -> list[Array]:
        """Return the matrices of whole numbers that measure a residual along its attributes."""
        return [self.noise.bases[residual][name].rows for name in residual]


def residuals_strategy(
    domain: Domain,
    sets: Sequence[QuerySet],
    neighbours: Neighbours,
    norm: int,
    *,
    total_known: bool,
    objective: Objective = "sum",
) -> ResidualsStrategy:
    """Return the residual bases and shares of least error on the sets of queries.

    `objective`: "sum" minimises the sum of the variances of all queries, "largest" the largest
    variance of a query, both weighted by the sets' weights. The bases are those for "sum" in both
    cases. For "largest" the shares are then within 0.1% of the best shares for these bases. `norm`
    is 1 for Laplace noise, 2 for Gaussian. `total_known`: whether the number of rows is public, so
    that the total is not measured.

    Raises InvalidInput if nothing needs to be measured, for queries that do not fit the domain or
    need more bits than exact answers have, and, for "largest", if more than a million queries have
    different variances; ModelTooLarge for an attribute of so many codes that its matrices do not
    fit in memory.

    >>> from mechanisms.privacy.neighbours import relation
    >>> from mechanisms.workload import k_way
    >>> from pgmkit.domain import Domain
    >>> domain = Domain({"a": 2, "b": 3, "c": 4})
    >>> pairs = k_way(domain, 2).sets
    >>> found = residuals_strategy(domain, pairs, relation("add/remove"), 2, total_known=False)
    >>> {clique: round(share, 3) for clique, share in found.shares.items() if len(clique) < 2}
    {(): 0.086, ('a',): 0.076, ('b',): 0.14, ('c',): 0.192}
    >>> round(2 * found.expected_error, 2)
    50.85
    """
    lattice = Lattice(domain, sets)
    rows = residual_rows(lattice)
    bases = rows.by_residual(lattice)
    residuals = [a for a in lattice.residuals if a or not total_known]
    if not residuals:
        raise InvalidInput("the workload asks for nothing but a public total; name other columns")
    every = {id(each): each for own in rows.bases.values() for each in own}
    norms = {key: FactorNorms.of(each.rows.astype(np.int64)) for key, each in every.items()}
    products = [{name: norms[id(each)] for name, each in bases[a].items()} for a in residuals]
    unit = np.array([unit_variance([*each.values()], neighbours, norm) for each in products])
    skipped = len(lattice.residuals) - len(residuals)
    seen, wanted = (
        lattice.seen(*rows.errors(lattice, full), rows.which)[skipped:] for full in (False, True)
    )
    if objective == "largest":
        parts, weights = _parts(domain, sets, bases, residuals)
        scale = SOLVED**2 / _shares(wanted, unit, 2 / norm)[1]
        least = _Least(parts, weights, lambda value: value * scale * wanted)
    else:
        least = _Least(csr_array(seen[None, :]), np.ones(1), lambda _: wanted - seen)
    moves = JointMoves(neighbours if norm == 2 else relation("add/remove"), products)
    variances, value, bound = least.found(unit, 2 / norm, moves)
    shares = unit / variances if norm == 2 else (unit / variances) ** 0.5
    # All residuals except the total are charged together. If their joint cost is less than the sum
    # of their costs, the shares sum to more than 1, so theirs are lowered until the sum is 1.
    rest = np.array([bool(residual) for residual in residuals])
    if rest.any():
        shares[rest] *= (1 - shares[~rest].sum()) / shares[rest].sum()
    known = {(): 0.0, **dict(zip(residuals, variances.tolist(), strict=True))}
    noise = ResidualNoise(domain, bases, known)
    by_residual = dict(zip(residuals, shares.tolist(), strict=True))
    return ResidualsStrategy(by_residual, noise, float(seen @ variances), value, bound)


def unit_variance(norms: Sequence[FactorNorms], neighbours: Neighbours, norm: int) -> float:
    """Return k_A: the variance s_A^2 of a residual's noise at a budget of 1, an epsilon of 1 for
    norm 1 or a rho of 1 for norm 2. `norms`: those of the residual's rows along each of its
    attributes; without any it is the variance in each cell of one marginal.
    """
    if not norms:
        moved = float(neighbours.l1 if norm == 1 else neighbours.l2)
    elif norm == 1:
        moved = neighbours.largest_move(lambda differ: float(product_l1(norms, differ)))
    else:
        moved = neighbours.largest_move(lambda differ: product_l2_squared(norms, differ) ** 0.5)
    return 2 * moved**2 if norm == 1 else moved**2 / 2


def _parts(
    domain: Domain,
    sets: Sequence[QuerySet],
    bases: Mapping[Clique, Bases],
    residuals: Sequence[Clique],
) -> tuple[csr_array, Array]:
    """Return a matrix with the variance that each residual (a column), with noise of variance 1,
    adds to each query (a row), and the weights of the queries.

    Queries of a set whose variances are equal along each attribute share a row. Raises InvalidInput
    for more than `_MOST_VARIANCES` rows.
    """
    place = {residual: column for column, residual in enumerate(residuals)}
    noise = ResidualNoise(domain, bases, dict.fromkeys([(), *residuals], 1.0))
    entries: list[tuple[NDArray[Any], NDArray[Any], Array]] = []
    weights: list[float] = []
    for each in sets:
        asked = dict(zip(each.clique, each.asked, strict=True))
        within = noise.inside(each.clique)
        acting = noise.acting({n: query_rows(q, domain.sizes[n]) for n, q in asked.items()})
        lines = {}
        for name in each.clique:
            kinds = {id(bases[part].get(name)): part for part in within}
            found = np.array([(acting(a, name) ** 2).sum(axis=1) for a in kinds.values()])
            scale = np.where(found.max(axis=1) > 0, found.max(axis=1), 1.0)[:, None]
            differing = np.unique((found / scale).round(12), axis=1) * scale
            lines[name] = dict(zip(kinds, differing, strict=True))
        count = math.prod(len(next(iter(line.values()))) for line in lines.values())
        if len(weights) + count > _MOST_VARIANCES:
            raise InvalidInput(
                f"the largest variance is sought among at most {_MOST_VARIANCES:,} queries that "
                'differ; ask for fewer of them, or for objective="sum"'
            )
        for residual in within:
            if residual in place:
                factors = [lines[name][id(bases[residual].get(name))] for name in each.clique]
                values = reduce(np.multiply.outer, factors, np.ones(())).reshape(-1)
                rows = len(weights) + np.arange(count)
                entries.append((rows, np.full(count, place[residual]), values))
        weights.extend([each.weight] * count)
    rows, columns, values = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    shape = (len(weights), len(residuals))
    return coo_array((values, (rows, columns)), shape=shape).tocsr(), np.array(weights)


@dataclass(frozen=True)
class _Least:
    """The search for variances of residuals for which the largest of several weighted sums is
    least. Each row of `parts` has the coefficients of one sum, which is multiplied by its weight in
    `weights`.

    `extra(value)`, for the present bound `value` on the largest sum, is added to the coefficients,
    so that residuals that are in none of the sums are measured too, at little cost.
    """

    parts: csr_array
    weights: Array
    extra: Callable[[float], Array]

    def found(self, unit: Array, power: float, moves: JointMoves) -> tuple[Array, float, float]:
        """Return variances with a joint cost of 1, their largest weighted sum, and a lower bound on
        the largest sum of any such variances. `unit`: the variance of each residual at a cost of 1;
        at a cost c it is this divided by c to the `power`. A state of `moves` is one way in which a
        row may move the answers of a group of residuals.

        Given importances of the sums that add up to 1, and probabilities of the states of `moves`,
        consider the mean of the sums by importance, where the cost of a residual is its mean over
        the states. The least value of this mean over all variances has a closed form, and is a
        lower bound. Multiplicative steps maximise it: each importance is multiplied by its sum,
        each probability by the square of its state's cost, and both are normalised. The search ends
        when the largest sum is near the bound, or near the weighted mean of all sums, or after
        `_MOST_STEPS` steps.
        """
        importance = np.full(len(self.weights), 1 / len(self.weights))
        by_residual = self.parts.T.tocsr()
        first = _shares(by_residual @ (importance * self.weights) + self.extra(0.0), unit, power)
        costs = moves.costs(first[0])
        chances = [_moved(np.ones(len(each)), each, _FEW_STATES) for each in costs]
        bound, best, least = 0.0, unit, math.inf
        for _ in range(_MOST_STEPS):
            # The shares that are best for the present importances and probabilities have a closed
            # form, and so has the least mean of the sums, `value`, which is a lower bound.
            price = unit * moves.prices(chances)
            exact = by_residual @ (importance * self.weights)
            value = _shares(exact, price, power)[1]
            variances = price / _shares(exact + self.extra(value), price, power)[0] ** power
            # Scaled to a joint cost of 1, these variances are feasible, so their largest weighted
            # sum is an upper bound of the optimum.
            own = unit / variances
            cost = moves.most(own) if power == 1 else 1.0
            at = self.weights * (self.parts @ variances)
            bound, worst = max(bound, value), float(at.max()) * cost
            if worst < least:
                best, least = variances * cost, worst
            # The largest sum may never reach the bound, since a little of the cost goes to
            # residuals that are in none of the sums (`extra`). The search therefore also ends when
            # the largest sum is near the mean of the sums weighted by importance: other variances
            # with the same `extra` could then hardly lower the largest sum.
            if least <= bound * (1 + SOLVED) or worst <= importance @ at * (1 + SOLVED / 10):
                break
            # No importance becomes 0: a residual that is in one sum alone would then get nothing.
            importance = _moved(importance, at, 1)
            # A state's cost is roughly proportional to 1 / sqrt(probability), so probabilities are
            # multiplied by the squared costs, which makes the costs nearly equal (see the module
            # docstring of `least_error`).
            costs = moves.costs(own)
            chances = [_moved(*each, 2) for each in zip(chances, costs, strict=True)]
        return best, least, bound


def _shares(importance: Array, unit: Array, power: float) -> tuple[Array, float]:
    """Return the shares that minimise a weighted sum of the residuals' variances, and the least
    sum. `importance`: the weights v_A; `unit`: the variances k_A at a cost of 1; `power`: q.
    """
    roots = (importance * unit) ** (1 / (1 + power))
    return roots / roots.sum(), float(roots.sum() ** (1 + power))


def _moved(weights: Array, factors: Array, power: int) -> Array:
    """Return the weights multiplied by a power of the factors and scaled to sum 1; none becomes
    0.
    """
    found = np.maximum(weights * (factors / (factors.max() or 1.0)).clip(min=0) ** power, 1e-12)
    return found / found.sum()
