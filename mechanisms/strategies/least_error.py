"""The strategy of least error for queries along one attribute, and residual bases from it.

With Gaussian noise of variance 1 on the answers to the rows of A, queries W have the variances' sum
tr(V X^-1), with V = W'W and X = A'A. One row more or less moves the answers by at most the square
root of the largest diagonal entry of X. The least error at diag(X) <= 1 is a convex programme (Yuan
et al. 2016); its dual has one weight a code,

    max over d >= 0, sum d = 1 of  tr((D^1/2 V D^1/2)^1/2)^2,        D = diag(d),

and weights give a strategy, V = BB': X = B (B'DB)^-1/2 B' over its largest diagonal entry. The
diagonal is even at the optimum, so weights are moved to where it is large, as in the design of
experiments, in proportion to its square: for orthogonal queries one such step is exact, since X is
proportional to D^-1/2. The steps are accelerated (Anderson 1965, with one step remembered). The
ratio of the primal error to the dual one bounds what is left to gain.

**A basis with a total.** Where other queries need the total only, the strategy is split in two: the
total, and rows S that say the rest. For a vector p with sum 1 and Sp = 0 every query is

    q = (q.p) 1' + q (I - p1'),

and (q.p) is answered by the total, the second part by S. If X answers V + nu J best (J all ones:
the total asked nu times more), p = X^-1 1 / t' with t' = 1'X^-1 1, and S'S = X - J / t' is the best
for the second part with that p. With e the error of the second parts at sensitivity 1 and f = p'Vp
the weight of the first, nu >= -1 / (1'V^-1 1) sweeps all pairs (e, f) worth having: nu is low where
measuring totals is expensive. Where the derivatives of a sum of errors are a in e and b in f it is
least for

    nu = (a / b)^2 e - f.

ResidualPlanner+ (Xiao, He, Zhang and Kifer) splits the best strategy for V alone, nu = 0.
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
_MOST_STEPS = 2 * MOST_ITERATIONS
"""The most steps: more than ten times as many as prefixes and ranges over 1,000 codes take."""


def best_precision(
    gram: Array, weights: Array | None = None, close: float = 1e-4
) -> tuple[Array, Array]:
    """Return X of least tr(gram X^-1) with a diagonal of at most 1, within the fraction `close` of
    the optimum, and the weights d.

    `weights`: the weights d to start from. The value of the dual at d is a lower bound on the error
    of every strategy.

    >>> from mechanisms.queries.query_sets import query_gram
    >>> gram = query_gram("prefix", 8)
    >>> precision, weights = best_precision(gram, close=1e-9)
    >>> root = np.sqrt(weights)
    >>> bound = np.sqrt(np.linalg.eigvalsh(gram * np.outer(root, root))).sum() ** 2
    >>> float(np.trace(np.linalg.solve(precision, gram)).round(6)), float(bound.round(6))
    (17.866177, 17.866177)
    """
    twins = _Twins.of(gram)
    sizes, alone = twins.sizes, twins.alone
    values, vectors = np.linalg.eigh(twins.together)
    least = AGREEMENT * max(values[-1], alone.max())
    kept = values > least
    half = vectors[:, kept] * np.sqrt(values[kept])
    alone = np.where(alone > least, alone, 0.0)
    logs = np.zeros(len(sizes))
    if weights is not None:
        logs = np.log(weights[twins.first].clip(min=np.finfo(float).tiny))
    before: tuple[Array, Array] | None = None
    for _ in range(_MOST_STEPS):
        d = np.exp(logs - logs.max())
        d /= sizes @ d
        squares, turned = np.linalg.eigh(half.T @ (d[:, None] * half))
        roots = np.sqrt(squares.clip(min=AGREEMENT * squares[-1]))
        rows = half @ (turned / np.sqrt(roots))
        apart = np.sqrt(alone / d.clip(min=np.finfo(float).tiny))
        diagonal = ((rows**2).sum(axis=1) + (sizes - 1) * apart) / sizes
        value = roots.sum() + (sizes - 1) @ (d * apart)
        if diagonal.max() <= value * (1 + close):
            break
        move = 2 * np.log((diagonal / value).clip(min=AGREEMENT))
        logs, last = logs + move, before
        before = move, logs
        if last is not None:
            change = move - last[0]
            pull = sizes * d * change
            logs = logs - (pull @ move) / ((pull @ change) or 1.0) * (logs - last[1])
    return twins.matrix(rows @ rows.T, apart) / diagonal.max(), d[twins.group]


@dataclass(frozen=True)
class _Twins:
    """Codes in groups of twins, whose exchange leaves a gram as it is, such as the blocks of one
    tract: the best strategy is the same for all of a group.

    On the differences within a group the gram is one number, and on the groups' unit vectors (equal
    entries) it is a matrix: together these are all of it.

    Attributes:
        group: The number of each code's group.
        first: One code of each group.
        sizes: The number of codes of each group.
        alone: The number of each group; 0 for a single code.
        together: The matrix, groups x groups.
    """

    group: NDArray[np.intp]
    first: NDArray[np.intp]
    sizes: Array
    alone: Array
    together: Array

    @classmethod
    def of(cls, gram: Array) -> _Twins:
        """Find the twins whose common entry is the largest of their rows."""
        own = np.diag(gram)
        rows = gram.copy()
        np.fill_diagonal(rows, -np.inf)
        near = rows.max(axis=1, initial=0.0)
        np.fill_diagonal(rows, near)
        digits = (np.column_stack([own, rows]) / np.abs(gram).max()).round(_DIGITS)
        _, first, group, counts = np.unique(
            digits, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        sizes, scale = counts.astype(np.float64), np.sqrt(counts)
        alone = np.where(counts > 1, own[first] - near[first], 0.0)
        together = gram[np.ix_(first, first)] * np.outer(scale, scale)
        np.fill_diagonal(together, sizes * own[first] - (sizes - 1) * alone)
        return cls(group.reshape(-1), first, sizes, alone, together)

    def matrix(self, together: Array, alone: Array) -> Array:
        """Return the matrix over all codes of these parts."""
        scale = np.sqrt(self.sizes)
        found = (together - np.diag(alone)) / np.outer(scale, scale)
        return found[np.ix_(self.group, self.group)] + np.diag(alone[self.group])


def split(gram: Array, more: float, weights: Array | None = None) -> tuple[Array, Array, Array]:
    """Return p, the precision S'S with a largest diagonal entry of 1, and the weights d, for nu =
    `more`.

    `gram` must have full rank.

    >>> p, precision, _ = split(np.eye(4), 0.0)
    >>> p, np.allclose(precision, (np.eye(4) - 1 / 4) * 4 / 3), np.allclose(precision @ p, 0)
    (array([0.25, 0.25, 0.25, 0.25]), True, True)
    """
    precision, d = best_precision(gram + more, weights)
    p = np.linalg.solve(precision, np.ones(len(gram)))
    rest = precision - 1 / p.sum()
    return p / p.sum(), rest / np.diag(rest).max(), d


def of_full_rank(gram: Array) -> Array:
    """Return the gram, with an identity of small weight added if the queries do not determine every
    cell.

    The weight is such that the square root of the least error grows by at most a thousandth. Every
    cell then has an estimate, those that no query asks for a very noisy one.

    >>> of_full_rank(np.eye(2)), of_full_rank(np.ones((2, 2))).round(7)
    (array([[1., 0.],
           [0., 1.]]), array([[1.0000005, 1.       ],
           [1.       , 1.0000005]]))
    """
    values = np.linalg.eigvalsh(gram).clip(min=0)
    small = (SOLVED * np.sqrt(values).mean()) ** 2
    return gram if values[0] > small else gram + small * np.eye(len(gram))
