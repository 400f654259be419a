"""All measurements of one clique as one or two: what a loss has to know of them.

With Gaussian noise the measurements of one clique are one quadratic form of its table x,

    sum_i |(Q_i x - y_i) / s_i|^2 / 2  =  |R x - c|^2 / 2 + constant,

and R needs no more rows than x has cells, however many were measured. Measured tables are averaged
by inverse variance. Rows that are multiples of each other are averaged, too, which keeps them
sparse; where many more rows than cells are left, R and c come from an orthogonal factorisation. The
constant is a sum of squares of what the averages leave, never a difference of large numbers.

Other losses are sums over the single values, so that their rows are only put side by side.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import inf, prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.linear.kronecker import Kronecker
from pgmkit.linear.matrix import Matrix, is_sparse
from pgmkit.measurement import Measurement

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["NoisyTable", "Observed", "Statistics", "average_tables", "combined", "side_by_side"]

Array = NDArray[np.float64]
"""An array of measured values has a row for each value, and a column for each set if many."""

_MOST_FACTORED = 512
"""Cells of a clique whose rows are factorised. For n rows and k cells that takes 2 n k^2
multiplications and spares every pass 4 n k, so that it pays after k / 2 passes; a search has some
hundreds.
"""
_DENSE = 0.1
"""Share of entries that are not zero above which rows become a dense matrix."""


@dataclass(frozen=True)
class Observed:
    """A noisy table, or the noisy tables of many sets: a cell a row, a set a column."""

    clique: Clique
    values: Array
    stddev: float


@dataclass(frozen=True)
class NoisyTable:
    """All identity measurements of one clique combined by inverse variance."""

    clique: Clique
    values: Array
    variance: float


@dataclass(frozen=True)
class Statistics:
    """Measurements with the same loss as the given ones, but for ``constant``, and fewer of them.

    ``measurements`` have the values of the first set where there are many; ``values`` has those of
    all sets for each of them, and ``constant`` a number for each set. ``count`` is how many values
    the given measurements have. ``tables`` are those measured, at most one of a clique where they
    are averaged.
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
    """The sufficient statistics of checked measurements with Gaussian noise.

    ``values`` are those of many sets that differ in nothing else. A measurement that is alone in
    its clique and has no more values than the clique has cells is left as it is, and so are all
    that are not reached by the ``deadline`` of ``time.perf_counter``.

    >>> y = [Measurement(["a"], [x], 1.0, np.array([[1.0, 0.0]])) for x in (3.0, 5.0)]
    >>> found = combined(Domain({"a": 2}), y)
    >>> found.measurements[0].matrix.round(3), float(found.constant)
    (array([[1.414, 0.   ]]), 1.0)
    """
    given = [m.values for m in measurements] if values is None else values
    made, constant = list[_Part](), np.zeros(given[0].shape[1:] if given else ())
    for group in _by_clique(measurements, given):
        if _is_short(domain, group) or time.perf_counter() >= deadline:
            made += group
            continue
        parts, lost = _of_one_clique(domain, group, deadline)
        made += parts
        constant = constant + lost
    return _statistics(made, constant, measurements)


def side_by_side(domain: Domain, measurements: Sequence[Measurement]) -> Statistics:
    """The same values, residual by residual, in about as few measurements as there are cliques."""
    made = list[_Part]()
    for group in _by_clique(measurements, [m.values for m in measurements]):
        products = [part for part in group if _stays_a_product(domain, part[0])]
        rest = [part for part in group if not _stays_a_product(domain, part[0])]
        made += products + (_Rows.of(domain, rest).parts() if len(rest) > 1 else rest)
    tables = [m for m in measurements if m.matrix is None]
    return replace(_statistics(made, np.zeros(()), measurements), tables=tables)


_Part = tuple[Measurement, Array]
"""A measurement, and its values in all sets."""


def _statistics(made: Sequence[_Part], constant: Array, given: Sequence[Measurement]) -> Statistics:
    measurements, values = [m for m, _ in made], [v for _, v in made]
    tables = [m for m in measurements if m.matrix is None]
    count = sum(len(m.values) for m in given)
    return Statistics(measurements, values, constant, count, tables)


def _by_clique(
    measurements: Sequence[Measurement], values: Sequence[Array]
) -> Iterator[list[_Part]]:
    groups: dict[frozenset[str], list[_Part]] = {}
    for m, each in zip(measurements, values, strict=True):
        groups.setdefault(frozenset(m.clique), []).append((m, each))
    yield from groups.values()


def _is_short(domain: Domain, group: Sequence[_Part]) -> bool:
    """True for one measurement of no more rows than cells, or of a product's factors."""
    if len(group) != 1:
        return False
    m, _ = group[0]
    return not isinstance(m.matrix, np.ndarray) or len(m.values) <= domain.size(m.clique)


def _of_one_clique(
    domain: Domain, group: Sequence[_Part], deadline: float
) -> tuple[list[_Part], Array | float]:
    """The statistics, and the loss that no table can avoid."""
    tables = [part for part in group if part[0].matrix is None]
    products = [part for part in group if _stays_a_product(domain, part[0])]
    apart = {id(m) for m, _ in (*tables, *products)}
    rest = [part for part in group if id(part[0]) not in apart]
    constant: Array | float = 0.0
    if rest and not _is_short(domain, rest):
        rows = _Rows.of(domain, rest).merged()
        rows = rows.factorised() if rows.are_many and time.perf_counter() < deadline else rows
        rest, tables = ([], [*tables, rows.table()]) if rows.is_table else (rows.parts(), tables)
        constant = constant + rows.constant
    made = list[_Part]()
    for alike in [tables, *_alike(products)]:
        parts, lost = _averaged(domain, alike)
        made += parts
        constant = constant + lost
    return made + rest, constant


def _stays_a_product(domain: Domain, m: Measurement) -> bool:
    """True if a product, written out, has far more entries than its factors take to apply."""
    if not isinstance(m.matrix, Kronecker):
        return False
    entries = prod(int(np.count_nonzero(_entries(factor))) for factor in m.matrix.factors)
    return entries > max(_MOST_FACTORED**2, 2 * domain.size(m.clique))


def _entries(matrix: Matrix) -> Array:
    return matrix if isinstance(matrix, np.ndarray) else matrix.data


def _alike(products: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Groups with the same factors for the same attributes."""
    groups: dict[tuple[object, ...], list[_Part]] = {}
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


def average_tables(domain: Domain, observed: Iterable[Observed]) -> tuple[list[NoisyTable], Array]:
    """One table per set of attributes (axes in the domain's order) and the loss no table can avoid.

    For repeated tables sum |x - y_i|^2 / s_i^2 = |x - mean|^2 / s^2 + the spread around the
    weighted mean.
    """
    groups: dict[frozenset[str], list[Observed]] = {}
    for each in observed:
        groups.setdefault(frozenset(each.clique), []).append(each)
    tables, spread = [], np.zeros(())
    for attributes, group in groups.items():
        clique = domain.ordered(attributes)
        arrays = [_ordered(domain, each, clique) for each in group]
        mean, variance, lost = _mean(arrays, [each.stddev for each in group])
        tables.append(NoisyTable(clique, mean, variance))
        spread = spread + lost
    return tables, spread


def _ordered(domain: Domain, observed: Observed, clique: Clique) -> Array:
    if observed.clique == clique:
        return observed.values
    return observed.values[domain.cell_map(clique, observed.clique)]


def _averaged(domain: Domain, alike: Sequence[_Part]) -> tuple[list[_Part], Array | float]:
    """Tables, or measurements of one matrix, averaged by inverse variance; and their spread."""
    if len(alike) < 2:
        return list(alike), 0.0
    first, arrays = alike[0][0], [values for _, values in alike]
    clique = first.clique
    if first.matrix is None:
        clique = domain.ordered(clique)
        arrays = [_ordered(domain, Observed(m.clique, v, m.stddev), clique) for m, v in alike]
    mean, variance, lost = _mean(arrays, [m.stddev for m, _ in alike])
    return [(Measurement(clique, _first(mean), variance**0.5, first.matrix), mean)], lost


def _mean(arrays: Sequence[Array], stddevs: Sequence[float]) -> tuple[Array, float, Array | float]:
    """The mean by inverse variance, its variance, and half the sum of squares about it."""
    if len(arrays) == 1:
        return arrays[0], stddevs[0] ** 2, 0.0
    weights, stack = np.array(stddevs) ** -2.0, np.stack(arrays)
    mean = np.tensordot(weights / weights.sum(), stack, 1)
    squares = np.square(stack - mean).sum(axis=1)
    return mean, 1 / float(weights.sum()), weights @ squares / 2


def _first(values: Array) -> Array:
    """The values of the first set."""
    return values if values.ndim == 1 else values[:, 0]


@dataclass(frozen=True)
class _Rows:
    """Sparse rows over the table of a clique: the loss |weights (matrix x - values)|^2 / 2, beside
    ``constant``.
    """

    clique: Clique
    matrix: csr_array
    weights: Array
    values: Array
    constant: Array | float = 0.0

    @classmethod
    def of(cls, domain: Domain, parts: Sequence[_Part]) -> _Rows:
        """All rows of some measurements of one clique."""
        import scipy.sparse

        first = parts[0][0].clique
        clique = first if all(m.clique == first for m, _ in parts) else domain.ordered(first)
        matrices = [_written_out(domain, clique, m) for m, _ in parts]
        order = sorted(range(len(parts)), key=lambda place: is_sparse(matrices[place]))
        dense = [each for each in matrices if isinstance(each, np.ndarray)]
        sparse = _stacked([each for each in matrices if is_sparse(each)], domain.size(clique))
        if dense:
            upper = scipy.sparse.csr_array(np.concatenate(dense))
            sparse = scipy.sparse.csr_array(scipy.sparse.vstack([upper, sparse]))
        lengths = [len(parts[place][1]) for place in order]
        weights = np.repeat([1 / parts[place][0].stddev for place in order], lengths)
        return cls(clique, sparse, weights, np.concatenate([parts[place][1] for place in order]))

    def merged(self) -> _Rows:
        """Rows that are multiples of each other averaged, and rows of zeros left out."""
        lengths = np.diff(self.matrix.indptr)
        full = lengths > 0
        if not full.all():
            lost = np.square(_times(self.weights[~full], self.values[~full])).sum(axis=0) / 2
            kept = self.matrix[full], self.weights[full], self.values[full]
            return _Rows(self.clique, *kept, self.constant + lost).merged()
        lead = self.matrix.data[self.matrix.indptr[:-1]]
        matrix = _with_data(self.matrix, self.matrix.data / np.repeat(lead, lengths))
        # Equal rows have equal products with any vector; others hardly ever.
        mixed = matrix @ np.random.default_rng(0).random(matrix.shape[1])
        _, chosen, group, counts = np.unique(
            mixed, return_index=True, return_inverse=True, return_counts=True
        )
        several = np.flatnonzero(counts[group] > 1)
        if not len(several) or not _equal(matrix[several], matrix[chosen[group[several]]]):
            return self
        weights, values = self.weights * np.abs(lead), _times(1 / lead, self.values)
        largest = np.zeros(len(chosen))
        np.maximum.at(largest, group, weights)
        shares = np.square(weights / largest[group])
        sums = np.bincount(group, shares, len(chosen))
        mean = np.zeros((len(chosen), *values.shape[1:]))
        np.add.at(mean, group, _times(shares / sums[group], values))
        apart = _times(weights, values - mean[group])
        constant = self.constant + np.square(apart).sum(axis=0) / 2
        return _Rows(self.clique, matrix[chosen], largest * np.sqrt(sums), mean, constant)

    @property
    def is_table(self) -> bool:
        """True if the rows are the cells, each one once, and all weigh the same."""
        rows, cells = self.matrix.shape
        if not rows == cells == self.matrix.nnz or np.ptp(self.weights):
            return False
        return bool((self.matrix.data == 1).all()) and len(np.unique(self.matrix.indices)) == cells

    def table(self) -> _Part:
        """The cells as a table."""
        values = self.values[np.argsort(self.matrix.indices)]
        return Measurement(self.clique, _first(values), 1 / float(self.weights[0])), values

    @property
    def are_many(self) -> bool:
        """True if factors are smaller, and their computation is worth it."""
        rows, cells = self.matrix.shape
        sparse = rows <= 2 * cells and 2 * self.matrix.nnz <= cells**2
        return rows > cells and not sparse and cells <= _MOST_FACTORED

    def factorised(self) -> _Rows:
        """As many rows as cells.

        The factorisation is accurate row by row, however much their weights differ, since rows are
        sorted by size and columns pivoted (Cox and Higham, 1998).
        """
        import scipy.linalg
        import scipy.sparse

        dense = self.matrix.toarray() * self.weights[:, None]
        order = np.argsort(-np.abs(dense).max(axis=1), kind="stable")
        (raw, tau), upper, pivots = scipy.linalg.qr(
            dense[order], mode="raw", pivoting=True, check_finite=False
        )
        right = _times(self.weights, self.values)[order].reshape(len(order), -1)
        rotated = _rotated(raw, tau, right).reshape(self.values.shape)
        matrix = np.empty_like(upper)
        matrix[:, pivots] = upper
        cells = len(pivots)
        constant = self.constant + np.square(rotated[cells:]).sum(axis=0) / 2
        sparse = scipy.sparse.csr_array(matrix)
        return _Rows(self.clique, sparse, np.ones(cells), rotated[:cells], constant)

    def parts(self) -> list[_Part]:
        """One measurement of all rows, in units of the noise; none where no row is left."""
        rows, columns = self.matrix.shape
        if not rows:
            return []
        lengths = np.diff(self.matrix.indptr)
        sparse = _with_data(self.matrix, self.matrix.data * np.repeat(self.weights, lengths))
        matrix = sparse.toarray() if sparse.nnz > _DENSE * rows * columns else sparse
        values = _times(self.weights, self.values)
        return [(Measurement(self.clique, _first(values), 1.0, matrix), values)]


def _rotated(raw: Array, tau: Array, right: Array) -> Array:
    """The columns multiplied by the transpose of all of Q, which is never formed."""
    from scipy.linalg import lapack

    space = max(1, 64 * right.shape[1])
    found, _, info = lapack.dormqr("L", "T", raw, tau, right, space)
    if info:
        raise np.linalg.LinAlgError(f"dormqr ended with {info}")
    return np.asarray(found)


def _times(factors: Array, values: Array) -> Array:
    """Each row of values times its factor."""
    return factors.reshape(-1, *[1] * (values.ndim - 1)) * values


def _written_out(domain: Domain, clique: Clique, m: Measurement) -> Matrix:
    """The measurement's matrix over the cells of ``clique``, which has the same attributes."""
    matrix: Matrix
    if m.matrix is None:
        import scipy.sparse

        matrix = scipy.sparse.csr_array(scipy.sparse.eye_array(len(m.values)))
    elif isinstance(m.matrix, Kronecker):
        matrix = reduce(_product, m.matrix.factors)
    else:
        matrix = m.matrix
    return matrix if m.clique == clique else matrix[:, domain.cell_map(clique, m.clique)]


def _product(left: Matrix, right: Matrix) -> Matrix:
    """The Kronecker product of two matrices."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        rows, columns = left.shape[0] * right.shape[0], left.shape[1] * right.shape[1]
        product = np.multiply.outer(left, right).transpose(0, 2, 1, 3)
        return np.asarray(product.reshape(rows, columns))
    import scipy.sparse

    return scipy.sparse.csr_array(scipy.sparse.kron(left, right))


def _stacked(matrices: Sequence[csr_array], columns: int) -> csr_array:
    """Sparse matrices below each other; scipy's own ``vstack`` is slow for thousands."""
    import scipy.sparse

    ordered = [each if each.has_sorted_indices else each.sorted_indices() for each in matrices]
    lengths = [np.zeros(1, dtype=np.int64), *(np.diff(each.indptr) for each in ordered)]
    starts = np.cumsum(np.concatenate(lengths))
    data = np.concatenate([np.zeros(0), *(each.data for each in ordered)])
    places = np.concatenate([np.zeros(0, dtype=np.int64), *(each.indices for each in ordered)])
    found = scipy.sparse.csr_array((data, places, starts), (len(starts) - 1, columns))
    found.eliminate_zeros()
    return found


def _with_data(matrix: csr_array, data: Array) -> csr_array:
    """The same sparse matrix with other entries."""
    import scipy.sparse

    return scipy.sparse.csr_array((data, matrix.indices, matrix.indptr), matrix.shape)


def _equal(one: csr_array, other: csr_array) -> bool:
    """True if two sparse matrices have the same entries in the same places."""
    pairs = [(getattr(one, n), getattr(other, n)) for n in ("indptr", "indices", "data")]
    return all(np.array_equal(left, right) for left, right in pairs)
