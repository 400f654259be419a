"""The strategy of least error for queries along one attribute, and residual bases from it.

If the rows of A are answered with Gaussian noise of variance 1, the variances of the queries W,
estimated from these answers, have the sum tr(V X^-1), with V = W'W and X = A'A. A record more or
less moves the answers by at most the square root of the largest diagonal entry of X. To minimise
the error subject to diag(X) <= 1 is a convex programme (Yuan et al. 2016), whose dual has one
weight for each code,

    max over d >= 0, sum d = 1 of  tr((D^1/2 V D^1/2)^1/2)^2,        D = diag(d).

Any weights give a strategy: with V = BB', X is B (B'DB)^-1/2 B' divided by its largest diagonal
entry. At the optimum all diagonal entries with a weight are equal. So each weight is multiplied by
the square of its diagonal entry, as in the optimal design of experiments, and the weights are
normalised; for orthogonal queries one such step is exact, since X is then proportional to D^-1/2.
The steps are accelerated (Anderson 1965, with one step remembered). The ratio of the primal to the
dual value bounds the gain that is left.

**A basis with a total.** Other queries of a workload may need only the total along the attribute.
The strategy is therefore split into the total and rows S for the rest. For a vector p with sum 1
and S p = 0 every query is

    q = (q.p) 1' + q (I - p1'),

where the first part is answered by the total and the second by S. Let X be the best strategy for V
+ nu J, in which the total is asked nu times more (J is the matrix of ones). With t' = 1'X^-1 1 and
p = X^-1 1 / t', S'S = X - J / t' is the best for the second part. Let e be the error of the second
parts at sensitivity 1, and f = p'Vp the weight of the total in the queries. The values nu >= -1 /
(1'V^-1 1) give all pairs (e, f) of which neither number can be improved without the other, and
small nu are for expensive totals. A sum of errors with the derivatives a with respect to e and b
with respect to f is least for

    nu = (a / b)^2 e - f.

ResidualPlanner+ (Xiao, He, Zhang and Kifer) splits the best strategy for V alone, which is the case
nu = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ITERATIONS, SOLVED
from pgmkit.runtime.precision import AGREEMENT

_DIGITS = round(-math.log10(AGREEMENT))
"""The digits to which two rows of a gram are compared."""
MOST_STEPS = 2 * MOST_ITERATIONS
"""The most steps: more than ten times as many as prefixes and ranges over 1,000 codes take."""


def best_precision(
    gram: Array, weights: Array | None = None, close: float = 1e-4
) -> tuple[Array, Array]:
    """Return the precision matrix X (codes x codes) with a diagonal of at most 1 for which
    tr(gram X^-1) is least, up to the fraction `close` of the optimum or as near as `MOST_STEPS`
    steps come, and the weights d of the codes in the dual programme (see the module docstring).

    `gram`: the Gram matrix V of the queries. `weights`: the weights d to start from, equal ones if
    None. The value of the dual at d is a lower bound on the error of every strategy.

    >>> from mechanisms.queries.query_sets import query_gram
    >>> gram = query_gram("prefix", 8)
    >>> precision, weights = best_precision(gram, close=1e-9)
    >>> root = np.sqrt(weights)
    >>> bound = np.sqrt(np.linalg.eigvalsh(gram * np.outer(root, root))).sum() ** 2
    >>> float(np.trace(np.linalg.solve(precision, gram)).round(6)), float(bound.round(6))
    (17.866177, 17.866177)
    """
    twins = Twins.of(gram)
    sizes, alone = twins.sizes, twins.alone
    # On the span of the groups' unit vectors (`Twins`) the Gram matrix is BB', with B = `half`.
    values, vectors = np.linalg.eigh(twins.together)
    least = AGREEMENT * max(values[-1], alone.max())
    kept = values > least
    half = vectors[:, kept] * np.sqrt(values[kept])
    alone = np.where(alone > least, alone, 0.0)
    logs = np.zeros(len(sizes))
    if weights is not None:
        logs = np.log(weights[twins.first].clip(min=np.finfo(float).tiny))
    before: tuple[Array, Array] | None = None
    for _ in range(MOST_STEPS):
        d = np.exp(logs - logs.max())
        d /= sizes @ d
        # From the eigenvalues and eigenvectors of B'DB follows X, here not divided by its largest
        # diagonal entry: it is B (B'DB)^-1/2 B' = `rows` @ `rows`.T on that span, and acts as the
        # number `apart` on differences within a group.
        squares, turned = np.linalg.eigh(half.T @ (d[:, None] * half))
        roots = np.sqrt(squares.clip(min=AGREEMENT * squares[-1]))
        rows = half @ (turned / np.sqrt(roots))
        apart = np.sqrt(alone / d.clip(min=np.finfo(float).tiny))
        # The diagonal entry of X for the codes of each group, and the root of the dual's value.
        diagonal = ((rows**2).sum(axis=1) + (sizes - 1) * apart) / sizes
        value = roots.sum() + (sizes - 1) @ (d * apart)
        if diagonal.max() <= value * (1 + close):
            break
        # The step multiplies each weight by its squared diagonal entry, in logarithms. Anderson's
        # acceleration combines it with the step before, so that the combined step is the shortest,
        # each group's entry being weighted by the group's part of d.
        move = 2 * np.log((diagonal / value).clip(min=AGREEMENT))
        logs, last = logs + move, before
        before = move, logs
        if last is not None:
            change = move - last[0]
            pull = sizes * d * change
            logs = logs - (pull @ move) / ((pull @ change) or 1.0) * (logs - last[1])
    return twins.matrix(rows @ rows.T, apart) / diagonal.max(), d[twins.group]


@dataclass(frozen=True)
class Twins:
    """Groups of codes whose exchange does not change the Gram matrix (twins), such as the blocks of
    one census tract. The best strategy treats all codes of a group alike.

    On differences of codes within a group the Gram matrix acts as a number, and on the span of the
    groups' unit vectors (with equal entries within a group) as a small matrix. These determine the
    whole matrix.

    Attributes:
        group: The number of each code's group.
        first: One code of each group.
        sizes: The number of codes of each group.
        alone: The number by which the Gram matrix acts on differences within each group; 0 for a
            group of one code.
        together: The small matrix, groups x groups.
    """

    group: NDArray[np.intp]
    first: NDArray[np.intp]
    sizes: Array
    alone: Array
    together: Array

    @classmethod
    def of(cls, gram: Array) -> Twins:
        """Return the groups of a Gram matrix. Only twins are found whose common entry is the
        largest off the diagonal in their rows.
        """
        own = np.diag(gram)
        rows = gram.copy()
        np.fill_diagonal(rows, -np.inf)
        near = rows.max(axis=1, initial=0.0)
        np.fill_diagonal(rows, near)
        digits = (np.column_stack([own, rows]) / own.max()).round(_DIGITS)
        _, first, group, counts = np.unique(
            digits, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        sizes, scale = counts.astype(np.float64), np.sqrt(counts)
        alone = np.where(counts > 1, own[first] - near[first], 0.0)
        together = gram[np.ix_(first, first)] * np.outer(scale, scale)
        np.fill_diagonal(together, sizes * own[first] - (sizes - 1) * alone)
        return cls(group.reshape(-1), first, sizes, alone, together)

    def matrix(self, together: Array, alone: Array) -> Array:
        """Return the matrix over all codes that acts as `together` on the groups' unit vectors, and
        as the numbers `alone` on the differences of codes within each group.
        """
        scale = np.sqrt(self.sizes)
        found = (together - np.diag(alone)) / np.outer(scale, scale)
        return found[np.ix_(self.group, self.group)] + np.diag(alone[self.group])


def split(gram: Array, more: float, weights: Array | None = None) -> tuple[Array, Array, Array]:
    """Return three results for nu = `more` (see the module's docstring): the vector p, with sum 1
    and S p = 0, the precision S'S, scaled to a largest diagonal entry of 1, and the weights d of
    the codes in the dual programme.

    `gram` must have full rank. `weights`: the weights d to start from, equal ones if None.

    >>> p, precision, _ = split(np.eye(4), 0.0)
    >>> p, np.allclose(precision, (np.eye(4) - 1 / 4) * 4 / 3), np.allclose(precision @ p, 0)
    (array([0.25, 0.25, 0.25, 0.25]), True, True)
    """
    precision, d = best_precision(gram + more, weights)
    p = np.linalg.solve(precision, np.ones(len(gram)))
    rest = precision - 1 / p.sum()
    return p / p.sum(), rest / rest.max(), d


def of_full_rank(gram: Array) -> Array:
    """Return the Gram matrix of queries, to which a small multiple of the identity is added if it
    lacks full rank (the queries then do not determine every cell) or has an eigenvalue near 0.

    The multiple is so small that the square root of the least error grows by at most a thousandth.
    Every cell then has an estimate, which is very noisy for cells that no query needs.

    >>> of_full_rank(np.eye(2)), of_full_rank(np.ones((2, 2))).round(7)
    (array([[1., 0.],
           [0., 1.]]), array([[1.0000005, 1.       ],
           [1.       , 1.0000005]]))
    """
    values = np.linalg.eigvalsh(gram).clip(min=0)
    small = (SOLVED * np.sqrt(values).mean()) ** 2
    return gram if values[0] > small else gram + small * np.eye(len(gram))
