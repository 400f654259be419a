"""All measurements of one clique as a few: the sufficient statistics of their loss.

With Gaussian noise of standard deviations s_i, the measurements y_i of one clique, with matrices
Q_i, are one quadratic form of its table x,

    sum_i |(Q_i x - y_i) / s_i|^2 / 2  =  |R x - c|^2 / 2 + constant,

and R needs no more rows than x has cells, however many were measured. Measured tables are averaged
by inverse variance. Rows that are multiples of each other are averaged too, which keeps them
sparse; if more rows than cells are left, R and c come from an orthogonal factorisation, unless that
takes longer than it saves (``Rows.are_many``). The constant is a sum of squares about the averages,
never a difference of large numbers. Kronecker products too large to be written out are averaged if
they have the same factors, and otherwise stay measurements of their own.

Other losses are sums over the single values, so the rows of a clique are only stacked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from pgmkit.domain import Domain
from pgmkit.least_squares.stacked_rows import MOST_FACTORED, Part, Rows, first_set
from pgmkit.linear.kronecker import Kronecker, nonzeros
from pgmkit.linear.matrix import Matrix
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array


@dataclass(frozen=True)
class Statistics:
    """Fewer measurements with the same loss as the given ones, up to ``constant``.

    If there are many sets of values, the ``measurements`` have those of the first set. ``values``
    has an array for each measurement with the values of all sets, and ``constant`` a number for
    each set. ``count`` is the number of given values. ``tables`` are the measurements of whole
    tables (those without a matrix); ``combined`` averages those of one clique, unless its deadline
    has passed.
    """

    measurements: list[Measurement]
    values: list[Array]
    constant: Array
    count: int
    tables: list[Measurement]


def combined(
    domain: Domain,
    measurements: Sequence[Measurement],
    values: Sequence[Array] | None = None,
    deadline: float = inf,
) -> Statistics:
    """Return the sufficient statistics of checked measurements with Gaussian noise.

    ``values`` are the measured values of many sets whose measurements differ in nothing else; None
    if there is one set, whose values are those of ``measurements``. A measurement is left as it is
    if it is the only one of its clique and either its matrix is not dense or it has at most as many
    values as the clique has cells. Left as they are, too, are the measurements of a clique if all
    their matrices are zero, and those not reached by the ``deadline`` of ``time.perf_counter``.

    >>> y = [Measurement(["a"], [x], 1.0, np.array([[1.0, 0.0]])) for x in (3.0, 5.0)]
    >>> found = combined(Domain({"a": 2}), y)
    >>> found.measurements[0].matrix.round(3), float(found.constant)
    (array([[1.414, 0.   ]]), 1.0)
    """
    given = [m.values for m in measurements] if values is None else values
    made, constant = list[Part](), np.zeros(given[0].shape[1:] if given else ())
    for group in _by_clique(measurements, given):
        if _is_short(domain, group) or time.perf_counter() >= deadline:
            made += group
            continue
        parts, lost = _of_one_clique(domain, group, deadline)
        if parts:
            made += parts
            constant = constant + lost
        else:  # matrices of zeros do not inform, but their clique is one of the model
            made += group
    return _statistics(made, constant, measurements)


def side_by_side(domain: Domain, measurements: Sequence[Measurement]) -> Statistics:
    """Return statistics in which the measurements of each clique are stacked into one, in units of
    the noise of each value; none are averaged. Large Kronecker products stay as they are, and so
    does a measurement that is the only other one of its clique.
    """
    made = list[Part]()
    for group in _by_clique(measurements, [m.values for m in measurements]):
        products = [part for part in group if _stays_a_product(domain, part[0])]
        rest = [part for part in group if not _stays_a_product(domain, part[0])]
        made += products + (Rows.of(domain, rest).parts() if len(rest) > 1 else rest)
    tables = [m for m in measurements if m.matrix is None]
    return replace(_statistics(made, np.zeros(()), measurements), tables=tables)


def _statistics(made: Sequence[Part], constant: Array, given: Sequence[Measurement]) -> Statistics:
    measurements, values = [m for m, _ in made], [v for _, v in made]
    tables = [m for m in measurements if m.matrix is None]
    return Statistics(measurements, values, constant, sum(len(m.values) for m in given), tables)


def _by_clique(
    measurements: Sequence[Measurement], values: Sequence[Array]
) -> Iterator[list[Part]]:
    """Yield, for each measured set of attributes, its measurements with their values."""
    groups: dict[frozenset[str], list[Part]] = {}
    for m, each in zip(measurements, values, strict=True):
        groups.setdefault(frozenset(m.clique), []).append((m, each))
    yield from groups.values()


def _is_short(domain: Domain, group: Sequence[Part]) -> bool:
    """Return True if the group is left as it is, since combining would not make it shorter: a
    single measurement that is of a whole table, has no more rows than cells, or has a matrix that
    is sparse or a product of factors.
    """
    if len(group) != 1:
        return False
    m, _ = group[0]
    return not isinstance(m.matrix, np.ndarray) or len(m.values) <= domain.size(m.clique)


def _of_one_clique(
    domain: Domain, group: Sequence[Part], deadline: float
) -> tuple[list[Part], Array | float]:
    """Return the statistics of one clique, and the constant part of its loss. After the
    ``deadline`` of ``time.perf_counter`` rows are averaged, but no longer factorised.
    """
    tables = [part for part in group if part[0].matrix is None]
    products = [part for part in group if _stays_a_product(domain, part[0])]
    apart = {id(m) for m, _ in (*tables, *products)}
    rest = [part for part in group if id(part[0]) not in apart]
    constant: Array | float = 0.0
    if rest and not _is_short(domain, rest):
        rows = Rows.of(domain, rest).merged()
        rows = rows.factorised() if rows.are_many and time.perf_counter() < deadline else rows
        rest, tables = ([], [*tables, rows.table()]) if rows.is_table else (rows.parts(), tables)
        constant = constant + rows.constant
    made, lost = _averages(domain, [tables, *_alike(products)])
    return made + rest, constant + lost


def _stays_a_product(domain: Domain, m: Measurement) -> bool:
    """Return True for a Kronecker product that, written out, has more nonzero entries than the
    square of ``MOST_FACTORED``, and more than two for each cell of its clique.
    """
    if not isinstance(m.matrix, Kronecker):
        return False
    return nonzeros(m.matrix) > max(MOST_FACTORED**2, 2 * domain.size(m.clique))


def _alike(products: Sequence[Part]) -> Iterator[list[Part]]:
    """Yield groups of products with the same factors for the same attributes."""
    groups: dict[tuple[object, ...], list[Part]] = {}
    for part in products:
        matrix = part[0].matrix
        assert isinstance(matrix, Kronecker)
        key = part[0].clique, *(_contents(factor) for factor in matrix.factors)
        groups.setdefault(key, []).append(part)
    yield from groups.values()


def _contents(matrix: Matrix) -> tuple[object, ...]:
    if isinstance(matrix, np.ndarray):
        return matrix.shape, matrix.tobytes()
    return matrix.shape, *(each.tobytes() for each in (matrix.indptr, matrix.indices, matrix.data))


def average_tables(
    domain: Domain, measurements: Sequence[Measurement], values: Sequence[Array]
) -> tuple[list[Part], Array]:
    """Return one table for each set of attributes (axes in the domain's order), and the constant
    part of the loss of all tables (for each set of ``values``).

    For repeated tables sum |x - y_i|^2 / s_i^2 = |x - mean|^2 / s^2 + the spread around the
    weighted mean, where s is the standard deviation of the mean; the constant is half the spread.
    """
    return _averages(domain, _by_clique(measurements, values))


def _averages(domain: Domain, groups: Iterable[list[Part]]) -> tuple[list[Part], Array]:
    """Return the averages of all groups (`_averaged`), and the sum of their constants."""
    averages, spread = list[Part](), np.zeros(())
    for group in groups:
        average, lost = _averaged(domain, group)
        averages += average
        spread = spread + lost
    return averages, spread


def _averaged(domain: Domain, alike: list[Part]) -> tuple[list[Part], Array | float]:
    """Average tables (axes in the domain's order), or measurements with the same matrix, by inverse
    variance. Return a list of the average alone, and the constant part of the loss (for each set of
    values): half the weighted sum of squares about the average. Without any, the list is empty and
    the constant 0.
    """
    if not alike:
        return [], 0.0
    first, arrays = alike[0][0], [values for _, values in alike]
    clique = first.clique
    if first.matrix is None:
        clique = domain.ordered(clique)
        arrays = [
            v if m.clique == clique else v[domain.cell_map(clique, m.clique)] for m, v in alike
        ]
    if len(alike) == 1:
        if clique == first.clique:
            return alike, 0.0
        return [(Measurement(clique, first_set(arrays[0]), first.stddev), arrays[0])], 0.0
    weights, stack = np.array([m.stddev for m, _ in alike]) ** -2.0, np.stack(arrays)
    mean = np.tensordot(weights / weights.sum(), stack, 1)
    lost = weights @ np.square(stack - mean).sum(axis=1) / 2
    stddev = (1 / weights.sum()) ** 0.5
    return [(Measurement(clique, first_set(mean), stddev, first.matrix), mean)], lost
