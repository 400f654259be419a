"""Bounds on the probability that sampling and noise set the measured table of two unrelated columns
as far from independence as it is.

A measured table is Y = F X G' + noise of variance s^2, where X has the counts of two columns, and F
and G are the factors of the measurement (I for a whole table). With C = I - J / r, which takes the
mean of r rows away, the table is this far from independence:

    D = |C (Y - n F p q' G') C|^2,

where p and q are the shares of the columns' values and n is the number of records. If the columns
are unrelated, then sampling n records gives the counts a covariance, so that D has the mean

    m = t^2 (r - 1) (c - 1) + n tr S tr T,  S = C F (diag p - p p') F' C,  and T likewise,
    t^2 = s^2 + u^2 |C G q|^2 / (c - 1) + v^2 |C F p|^2 / (r - 1).

u^2 and v^2 are the variances of the counts of the columns' values, from which p and q came. D is
compared with the Gamma distribution of this mean and of the variance of normal errors, 2 (t^4 (r -
1) (c - 1) + 2 t^2 n tr S tr T + n^2 tr S^2 tr T^2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from scipy.special import gammaincc

from pgmkit import Kronecker, Measurement
from pgmkit.linear.matrix import Matrix, as_dense
from pgmkit.runtime.arrays import Array


def chances(
    model: Any, known: Iterable[Any], variances: Mapping[str, float]
) -> dict[tuple[str, str], float]:
    """Return for each measured pair of columns a bound on the probability that any pair is as far
    from independence if no columns are related.

    It is the smallest p-value of the pair's tables times the number of all pairs (the data may have
    decided which were measured), or of tables if there are more (Bonferroni). Tables of more
    columns are summed to their pairs. Other matrices than products of two factors are left out, and
    so are values that are no table. `variances` has that of the noise of a count of each column.
    """
    domain, found = model.domain, dict[tuple[str, str], float]()
    counts = model.marginals([(name,) for name in domain.sizes])
    tests = [(m, pair) for m in known if _is_table(m) for pair in combinations(m.clique, 2)]
    every = max(comb(len(domain.sizes), 2), len(tests))
    for m, pair in tests:
        factors = m.matrix.factors if m.matrix else [None] * len(m.clique)
        axes = tuple(axis for axis, name in enumerate(m.clique) if name not in pair)
        shape = m.matrix.row_shape if m.matrix else domain.shape(m.clique)
        table = m.values.reshape(shape).sum(axes)
        one, other = (
            (*_sampled(counts[name,], factors[m.clique.index(name)]), variances.get(name, 0.0))
            for name in pair
        )
        noise = m.stddev**2 * m.values.size / table.size
        p_value = _p_value(table, noise, model.total, one, other) if min(table.shape) > 1 else 1.0
        found[domain.ordered(pair)] = min(found.get(domain.ordered(pair), 1.0), every * p_value)
    return found


def _is_table(m: Any) -> bool:
    if not isinstance(m, Measurement):
        return False
    return m.matrix is None or (isinstance(m.matrix, Kronecker) and len(m.clique) == 2)


def _p_value(table: Array, noise: float, n: float, one: Any, other: Any) -> float:
    """Return the p-value of a table with noise of this variance. `one` and `other` hold, for a
    column each, C F p, the traces of S and of its square, and u^2.
    """
    (p, trace_p, square_p, error_p), (q, trace_q, square_q, error_q) = one, other
    apart = table - table.mean(0) - table.mean(1)[:, None] + table.mean() - n * np.outer(p, q)
    r, c = len(p) - 1, len(q) - 1
    noise += error_p * (q @ q) / c + error_q * (p @ p) / r
    sampled = n * trace_p * trace_q
    mean = noise * r * c + sampled
    scale = 2 * (noise * (mean + sampled) + n**2 * square_p * square_q) / mean
    return float(gammaincc(mean / scale, (apart**2).sum() / scale))


def _sampled(counts: Array, factor: Matrix | None) -> tuple[Array, float, float]:
    """Return C F p, and the traces of S and of its square."""
    p = counts / counts.sum()
    if factor is None:
        square = p @ p
        return p - p.mean(), 1 - square, square - 2 * (p**3).sum() + square**2
    rows = as_dense(factor)
    rows = rows - rows.mean(0)
    shares = rows @ p
    covariance = (rows * p) @ rows.T - np.outer(shares, shares)
    return shares, covariance.trace(), np.square(covariance).sum()
