"""Bounds on the probability that sampling and noise set the measured table of two unrelated columns
as far from independence as it is, and the weakest relation that such a table shows.

A measured table is Y = F X G' + noise of variance s^2, where X has the counts of two columns, and F
and G are the factors of the measurement (I for a whole table). With C = I - J / r, which takes the
mean of r rows away, the table is this far from independence:

    D = |C (Y - n F p q' G') C|^2,

where p and q are the shares of the columns' values and n is the number of records. If the columns
are unrelated, then sampling n records gives the counts a covariance, so that D has the mean

    m = (r - 1) (c - 1) s^2 + (r - 1) |C G q|^2 u^2 + (c - 1) |C F p|^2 v^2 + n tr S tr T,
    S = C F (diag p - p p') F' C,  and T likewise with G and q.

u^2 and v^2 are the variances of the noise in the counts from which p and q were computed: an error
of p is multiplied by C G q, so that it lies in one direction of each row. The variance in no
direction exceeds

    l = s^2 + |C G q|^2 u^2 + |C F p|^2 v^2 + n |S| |T| + max_i |C F (e_i - p)|^2 max_j |...|^2,

where |S| is the largest eigenvalue and the last term is the most that one record adds to D. Of all
sums of squares of normal errors with the mean m and no variance above l, m / l squares of variance
l reach farthest (their cumulants are the largest), so D is compared with l chi^2(max(1, m / l)).
The last term makes this hold for rare values, too, whose few common records are no normal errors
but come one by one.

Unrelated columns with r and c values have in n records a squared Cramér's V of (r - 1) / n on
average, if r >= c, and n tr S tr T is their part of D. So a relation of strength V adds V^2 / ((r -
1) / n) times that to D. It shows in about half of all draws if it adds the difference between the
quantile of D for unrelated columns and m - l, the median of the errors across its direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from scipy.special import gammaincc, gammainccinv

from pgmkit import Kronecker, Measurement
from pgmkit.linear.matrix import Matrix, as_dense
from pgmkit.runtime.arrays import Array


@dataclass(frozen=True)
class Evidence:
    """The evidence of the measured tables of a pair of columns for its relation.

    Attributes:
        chance: A bound on the probability that any pair is as far from independence if no columns
            are related.
        shows: Cramér's V of the weakest relation whose `chance` is at most `level` in about half of
            all draws; above 1, or infinite, if no relation is so strong.
        level: The largest `chance` at which a relation counts as shown.
    """

    chance: float
    shows: float
    level: ClassVar[float] = 1 / 20

    @property
    def hidden(self) -> bool:
        """True if sampling and noise may explain all that the tables show of the relation."""
        return self.chance > self.level


def evidence(
    model: Any, known: Iterable[Any], variances: Mapping[str, float], rows: float
) -> dict[tuple[str, str], Evidence]:
    """Return for each measured pair of columns the evidence for its relation. If several tables
    hold the pair, each figure is the smallest that one of them gives.

    A chance is a p-value times the number of all pairs (the data may have decided which were
    measured), or of the tests made if these are more (Bonferroni). Tables of more columns are
    summed to their pairs. Left out are predicates, and measurements whose matrix is not a product
    of a factor for each of two columns.

    `known`: the noisy values. `variances`: by column, the variance of the noise in the count of one
    of its values; 0 for a column that is left out. `rows`: the number of records of the data, which
    is above the model's total if a plan for many rows was made with fewer.
    """
    domain, found = model.domain, dict[tuple[str, str], Evidence]()
    tests = [(m, pair) for m in known if _is_table(m) for pair in combinations(m.clique, 2)]
    counts = model.marginals([(name,) for name in {n for _, pair in tests for n in pair}])
    every = max(math.comb(len(domain.sizes), 2), len(tests))
    for m, pair in tests:
        factors = m.matrix.factors if m.matrix else [None] * len(m.clique)
        axes = tuple(axis for axis, name in enumerate(m.clique) if name not in pair)
        shape = m.matrix.row_shape if m.matrix else domain.shape(m.clique)
        table = m.values.reshape(shape).sum(axes)
        one, other = (
            (*_sampled(counts[name,], factors[m.clique.index(name)]), variances.get(name, 0.0))
            for name in pair
        )
        apart = table - table.mean(0) - table.mean(1)[:, None] + table.mean()
        apart -= model.total * np.outer(one[0], other[0])
        noise, pair = m.stddev**2 * m.values.size / table.size, domain.ordered(pair)
        p_value, ratio = _tested((apart**2).sum(), noise, rows, one, other, Evidence.level / every)
        of_chance = math.sqrt((max(domain.shape(pair)) - 1) / max(1.0, rows))
        before = found.get(pair, Evidence(1.0, math.inf))
        found[pair] = Evidence(
            min(before.chance, every * p_value), min(before.shows, ratio * of_chance)
        )
    return found


def _is_table(m: Any) -> bool:
    if not isinstance(m, Measurement):
        return False
    return m.matrix is None or (isinstance(m.matrix, Kronecker) and len(m.clique) == 2)


def _tested(
    distance: float, noise: float, n: float, one: Any, other: Any, level: float
) -> tuple[float, float]:
    """Return two figures of a measured table: the p-value of `distance`, the D of the module's
    docstring, with noise of variance `noise` in each cell; and the factor by which Cramér's V must
    exceed that of unrelated columns in `n` records (the root of its mean square) for the p-value to
    be below `level` in half of all draws.

    `one` and `other`: for each of the two columns what `_sampled` returns, and the variance of the
    noise in the count of one of its values.
    """
    (p, trace_p, most_p, record_p, error_p), (q, trace_q, most_q, record_q, error_q) = one, other
    r, c = len(p) - 1, len(q) - 1
    sampled = n * trace_p * trace_q
    if not r * c:
        return 1.0, math.inf
    of_p, of_q = error_p * (q @ q), error_q * (p @ p)
    mean = noise * r * c + of_p * r + of_q * c + sampled
    most = noise + of_p + of_q + n * most_p * most_q + record_p * record_q
    shape = max(1.0, mean / most) / 2
    beyond = 2 * most * (float(gammainccinv(shape, level)) - shape + 1 / 2)
    p_value = float(gammaincc(shape, distance / (2 * most)))
    return p_value, math.sqrt(max(0.0, beyond) / sampled) if sampled > 0 else math.inf


def _sampled(counts: Array, factor: Matrix | None) -> tuple[Array, float, float, float]:
    """Return, in the notation of the module's docstring, C F p, tr S, a bound on |S|, and the
    largest |C F (e_i - p)|^2 of all values i. Here p has the shares of a column's values, F is the
    factor of the measurement along the column, C subtracts the mean of the rows, and S is the
    covariance that a sampled record gives them. `counts`: in proportion to p. `factor`: F; None for
    the identity.
    """
    p = counts / counts.sum()
    if factor is None:
        square = p @ p
        # No eigenvalue of diag p - p p' is above the largest p, or above the largest sum of the
        # absolute entries of a row.
        most = min(p.max(), (2 * p * (1 - p)).max())
        return p - p.mean(), 1 - square, most, 1 + square - 2 * p.min()
    rows = as_dense(factor)
    rows = rows - rows.mean(0)
    shares = rows @ p
    rows = rows - shares[:, None]
    covariance = (rows * p) @ rows.T
    most = float(np.linalg.norm(covariance, 2))
    return shares, covariance.trace(), most, np.square(rows).sum(0).max()
