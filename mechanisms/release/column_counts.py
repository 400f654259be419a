"""The counts of single columns, and the noise of cells, from all noisy tables that have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit import Domain, InvalidInput, Kronecker, Measurement
from pgmkit.domain import Clique
from pgmkit.least_squares.residual_tables import ResidualTables
from pgmkit.linear.kronecker import nonzeros
from pgmkit.linear.matrix import as_dense


def as_table(m: Any) -> Any:
    """Return a measurement of every cell, each times a number of its own, as one of the cells
    themselves, with the root mean square of their noise. Anything else is returned unchanged.

    >>> as_table(Measurement(("a",), [4.0, 3.0], 2.0, Kronecker([np.diag([1.0, 0.5])]))).values
    array([4., 6.])
    """
    if not isinstance(m, Measurement) or not isinstance(m.matrix, Kronecker):
        return m
    entries = np.ones(1)
    for each in m.matrix.factors:
        entries = np.kron(entries, each.diagonal())
    count = int(np.count_nonzero(entries))
    if m.matrix.shape != (count, count) or nonzeros(m.matrix) != count:
        return m
    spread = float(np.mean(entries**-2.0)) ** 0.5
    return Measurement(m.clique, m.values / entries, m.stddev * spread)


def column_counts(domain: Domain, measurements: Iterable[Measurement]) -> dict[str, Measurement]:
    """Return a measurement of each column, without a matrix, for each column of which a table gives
    the counts of single values. Matrices must be Kronecker products.

    A table over further columns gives the count of a value as a sum of cells, whose noise adds up;
    several tables are averaged by inverse variance.
    """
    sums: dict[str, tuple[NDArray[np.float64], float]] = {}
    for each in measurements:
        matrix: Any = each.matrix
        table = each.values.reshape(matrix.row_shape if matrix else domain.shape(each.clique))
        for axis, name in enumerate(each.clique):
            side = as_dense(matrix.factors[axis]) if matrix else None
            if side is not None and not np.array_equal(side, np.eye(domain.sizes[name])):
                continue  # residuals and sums of codes hardly determine single codes
            others = tuple(i for i in range(table.ndim) if i != axis)
            precision = table.shape[axis] / (table.size * each.stddev**2)
            values, known = sums.get(name, (np.zeros(table.shape[axis]), 0.0))
            sums[name] = values + precision * table.sum(axis=others), known + precision
    return {
        name: Measurement((name,), values / precision, precision**-0.5)
        for name, (values, precision) in sums.items()
    }


def cell_variances(
    domain: Domain, measurements: Sequence[Measurement], total: float
) -> dict[Clique, NDArray[np.float64]]:
    """Return the variance of the noise in each cell of the table of each measured clique, if tables
    were measured through their residuals, none of which has the noise of a cell; else nothing.
    `total`: the number of records, which is known if no total was measured.
    """
    if all(each.matrix is None for each in measurements):
        return {}
    known = total if all(each.clique for each in measurements) else None
    with suppress(InvalidInput):  # raised if a matrix is not that of residuals
        variance = ResidualTables(domain, measurements, known).variance
        return {each.clique: variance(each.clique) for each in measurements}
    return {}
