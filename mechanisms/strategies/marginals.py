"""Strategies of marginals: which marginals to measure, and how precisely (HDMM, section 6.3).

The expected error is in closed form on the lattice of subsets. R_s are the contrasts over exactly
the attributes s (zero sum along each); they are orthogonal, and a marginal over c consists of those
with s inside c. With noise of variance 1 / p_c on the marginal over c, which has n_c cells, the
precision of R_s is

    v_s = sum over measured c containing s of p_c / n_c,

and the workload's expected squared error is the sum over s of a_s / v_s, where a_s is the weight of
R_s in the workload's queries (`_coefficients`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mechanisms.strategies.residual_lattice import Lattice
from mechanisms.workload import Workload, subsets
from pgmkit.domain import Clique, Domain
from pgmkit.least_squares.residual_basis import ResidualBasis
from pgmkit.least_squares.residual_tables import ResidualNoise
from pgmkit.runtime.arrays import Array


@dataclass(frozen=True)
class MarginalsStrategy:
    """The marginals to measure, the share of the budget (rho, or epsilon) of each, and the expected
    error.

    `expected_error`: the workload's expected squared error, by its weights, with noise of variance
    1 on a strategy of sensitivity 1: divide by 2 rho / l2^2, or by epsilon^2 / (2 l1^2), for
    sensitivities l2 and l1.
    """

    shares: Mapping[Clique, float]
    expected_error: float

    def noise(self, domain: Domain, power: int, total_known: bool) -> ResidualNoise:
        """Return the noise of this strategy, from which the variance of any answer follows. Like
        `expected_error`, it is for noise of variance 1 on a strategy of sensitivity 1.

        `power`: 1 for Gaussian noise, 2 for Laplace; a measured marginal has the variance
        1 / share^power. `total_known`: whether the total has no noise.

        Let v_s be the precision of the contrasts R_s (see the module docstring), and n_s the number
        of cells over s. A residual over s with the rows n I - J along each attribute (n codes, J
        the matrix of ones) and noise of variance n_s / v_s determines R_s with the same precision,
        so that it stands for the measured marginals.
        """
        along = _code_bases(domain)
        places = [place for place in subsets(domain, self.shares) if along.keys() >= set(place)]
        inside = _inside(domain, places, list(self.shares))
        precisions = inside @ np.array(list(self.shares.values())) ** power
        sizes = np.array([float(domain.size(place)) for place in places])
        variances = dict(zip(places, (sizes / precisions).tolist(), strict=True))
        variances[()] *= not total_known
        bases = {part: {name: along[name] for name in part} for part in variances}
        return ResidualNoise(domain, bases, variances)


def marginals_strategy(workload: Workload, norm: int, total_known: bool) -> MarginalsStrategy:
    """Return the marginals strategy of least expected squared error.

    `norm` is 1 for Laplace noise, 2 for Gaussian. The error of a known total is not counted.

    Candidates are the subsets of the workload's cliques and, if there are at most 5,000 of these,
    all sets of the workload's attributes with one attribute more than its largest clique, but none
    of more than 2^20 cells: with Laplace noise a few larger marginals can be better than many small
    ones. The shares are theta_c^norm and the precisions p_c = theta_c^2; the error times the
    squared norm of theta does not depend on theta's scale, so L-BFGS runs on log theta. For norm 2
    the problem is convex in p.

    >>> from mechanisms.workload import k_way
    >>> from pgmkit.domain import Domain
    >>> pairs = k_way(Domain({"a": 2, "b": 3, "c": 4}), 2)
    >>> found = marginals_strategy(pairs, norm=2, total_known=False)
    >>> round(found.expected_error, 1), round(sum(found.shares.values()), 9)
    (52.7, 1.0)
    """
    from scipy.optimize import minimize

    lattice = subsets(workload.domain, workload.cliques)
    candidates = candidate_marginals(workload, lattice)
    coefficients = _coefficients(workload, lattice)
    coefficients[0] *= not total_known  # the empty clique comes first
    inside = _inside(workload.domain, lattice, candidates)

    def objective(logs: Array) -> tuple[float, Array]:
        theta = np.exp(logs - logs.max())
        precision, powers = inside @ theta**2, theta**norm
        # The error is 0 if nothing but a known total is asked.
        value = float((coefficients / precision).sum()) or np.finfo(np.float64).tiny
        pull = (coefficients / precision**2) @ inside * theta**2
        gradient = 2 * powers / powers.sum() - 2 * pull / value
        return math.log(value) + 2 / norm * math.log(powers.sum()), gradient

    # Logarithms are bounded, since they fall without limit for a theta that goes to 0.
    bounds = [(-30.0, 30.0)] * len(candidates)
    search = partial(
        minimize, objective, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 1000}
    )
    found = min(map(search, _starts(workload, candidates)), key=lambda result: float(result.fun))
    theta = np.where(_worth(workload, candidates, found.x, norm), np.exp(found.x), 0.0)
    powers = theta**norm
    shares = powers / powers.sum()
    return MarginalsStrategy(
        {clique: float(each) for clique, each in zip(candidates, shares, strict=True) if each > 0},
        float((coefficients / (inside @ theta**2)).sum() * powers.sum() ** (2 / norm)),
    )


def candidate_marginals(workload: Workload, lattice: Sequence[Clique]) -> list[Clique]:
    """Return the marginals that may be measured: the cliques of `lattice`, and all sets of its
    attributes that have one attribute more than its largest clique, if there are at most 5,000 of
    these sets. A set of more than 2^20 cells is left out.
    """
    domain = workload.domain
    size = len(lattice[-1]) + 1
    named = [clique[0] for clique in lattice if len(clique) == 1]
    # The limits, 5,000 sets and 2^20 cells, bound the time and the memory of the search.
    if math.comb(len(named), size) > 5000:
        return list(lattice)
    larger = itertools.combinations(named, size)
    return [*lattice, *(clique for clique in larger if domain.size(clique) <= 2**20)]


def _starts(workload: Workload, candidates: Sequence[Clique]) -> list[Array]:
    """Return three starts for log theta: one with equal entries for all candidates, one with larger
    entries for the workload's own cliques, and one with larger entries for the cliques of most
    attributes.
    """
    asked = {frozenset(clique) for clique in workload.cliques}
    largest = max(len(clique) for clique in candidates)
    return [
        np.zeros(len(candidates)),
        np.array([0.0 if frozenset(clique) in asked else -3.0 for clique in candidates]),
        np.array([0.0 if len(clique) == largest else -3.0 for clique in candidates]),
    ]


def _worth(
    workload: Workload, candidates: Sequence[Clique], logs: Array, norm: int
) -> NDArray[np.bool_]:
    """Return a mask of the candidates to keep: those with a share above a ten-thousandth of the
    average, and the workload's cliques that lie inside none of these. `logs`: the logarithm of
    theta for each candidate.
    """
    powers = np.exp(norm * (logs - logs.max()))
    kept = powers > 1e-4 * powers.sum() / len(candidates)
    held = [frozenset(clique) for clique, keep in zip(candidates, kept, strict=True) if keep]
    asked = map(frozenset, workload.cliques)
    bare = {clique for clique in asked if not any(clique <= other for other in held)}
    return kept | np.array([frozenset(clique) in bare for clique in candidates])


def _coefficients(workload: Workload, places: Sequence[Clique]) -> Array:
    """Return for every set s of `places` the weight a_s of 1 / v_s in the workload's expected
    squared error (see the module docstring); 0 if no query needs R_s.

    A residual over s in the basis n I - J whose noise has the variance n_s / v_s, with n_s cells
    over s, stands for R_s of precision v_s: so a_s is n_s times its coefficient in the error.
    """
    domain, lattice = workload.domain, Lattice(workload.domain, workload.sets)
    seen = lattice.seen(*lattice.errors(_code_bases(domain), full=False))
    found = {s: v * domain.size(s) for s, v in zip(lattice.residuals, seen, strict=True)}
    return np.array([found.get(s, 0.0) for s in places])


def _code_bases(domain: Domain) -> dict[str, ResidualBasis]:
    """Return the basis with the rows n I - J of each attribute of more than one value: n codes, and
    J is the matrix of ones.
    """
    return {x: ResidualBasis.of(n * np.eye(n) - 1) for x, n in domain.sizes.items() if n > 1}


def _inside(domain: Domain, lattice: Sequence[Clique], candidates: Sequence[Clique]) -> Array:
    """Return a matrix with a row for each set s of the lattice and a column for each candidate c:
    1 / n_c, with n_c the number of cells of c, if s is a subset of c, and otherwise 0.
    """
    rows, columns = (
        np.array([[name in clique for name in domain] for clique in cliques], dtype=np.float64)
        for cliques in (lattice, candidates)
    )
    missing = rows @ (1 - columns).T  # attributes of s that are not in c
    return (missing == 0) / np.array([float(domain.size(clique)) for clique in candidates])
