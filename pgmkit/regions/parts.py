"""The relaxed problem divided by regions: each region's cells, measurements and shared residuals.

The sums that overlapping tables share are given without redundancy, as residuals. The residual of a
table for a set of attributes consists of its contrasts along each of them, summed over the other
attributes (for the empty set: the sum of all cells). A table's sums over a set are combinations of
the residuals of its subsets, and residuals of different sets are independent. So tables agree
wherever they overlap if each residual that several of them have is the same in all.

If zeros rule out cells, the residuals are no longer independent: some are determined by others and
the total. The vector s of all of them then is offset + free t for some t (``confined``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.linalg import helmert, qr, solve_triangular

from pgmkit.domain import Clique, Domain
from pgmkit.inference.layout import Layout
from pgmkit.inference.observations import host, standardised
from pgmkit.least_squares.residual_tables import residual_length, residuals_inside
from pgmkit.linear.kronecker import nonzeros
from pgmkit.linear.matrix import Matrix, is_sparse
from pgmkit.measurement import Measurement
from pgmkit.regions.polytope import LocalPolytope
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import DEPENDENT
from pgmkit.runtime.progress import check_time
from pgmkit.runtime.sizes import DENSE_SHARE
from pgmkit.runtime.threads import one_blas_thread


@dataclass(frozen=True)
class Shared:
    """For each table, the matrix that maps its cells to the residuals it shares, and where these
    are in the vector s of all shared residuals.

    The first row of each matrix sums all cells; ``places`` are the places in s of the residuals of
    the other rows. The vector s is ``offset`` plus a combination of the columns of ``free``; it may
    be any vector if ``free`` is None.
    """

    rows: tuple[Array, ...]
    places: tuple[NDArray[np.int64], ...]
    offset: Array
    free: Array | None = None

    def gathered(self, parts: Sequence[Array]) -> Array:
        """Return a vector like s that is the sum, over all tables, of their ``parts``: one number
        for each row after the first, added at the row's place.
        """
        total = np.zeros(len(self.offset))
        for places, part in zip(self.places, parts, strict=True):
            np.add.at(total, places, part)
        return total

    def spread(self, gathered: Array) -> tuple[Array, Array]:
        """Divide a gathered vector evenly among the tables, and return two vectors.

        The first is the amount that every table has to subtract at each place. The second is the
        sum, over all tables, of what remains in them. It is orthogonal to ``free``, so its product
        with s is the same for every possible s.
        """
        tables = self.gathered([np.ones(len(places)) for places in self.places])
        if self.free is None:
            return gathered / np.maximum(tables, 1), np.zeros(len(gathered))
        free = self.free
        each = free @ np.linalg.solve(free.T @ (tables[:, None] * free), free.T @ gathered)
        return each, gathered - tables * each


def shared_sizes(domain: Domain, cliques: Sequence[Clique]) -> tuple[int, list[int]]:
    """Return the length of the vector of all shared residuals, and for each table the number of
    rows that its matrix has in ``shared_residuals``.

    >>> shared_sizes(Domain({"a": 3, "b": 4, "c": 2}), [("a", "b"), ("b", "c")])
    (3, [4, 4])
    """
    lengths = {each: residual_length(domain, each) for each in _shared_sets(domain, cliques)}
    inside = [residuals_inside(domain, clique) for clique in cliques]
    return sum(lengths.values()), [1 + sum(lengths.get(s, 0) for s in sets) for sets in inside]


def shared_residuals(domain: Domain, cliques: Sequence[Clique]) -> Shared:
    """Return the shared residuals of tables over these cliques, without zeros.

    The first row of each table's matrix sums all its cells; the further rows map the cells to those
    residuals that other tables have too. ``places`` has the places of these further rows in the
    vector of all shared residuals, here of the three residuals of "b".

    >>> domain = Domain({"a": 3, "b": 4, "c": 2})
    >>> shared = shared_residuals(domain, [("a", "b"), ("b", "c")])
    >>> [rows.shape for rows in shared.rows], shared.places[0]
    ([(4, 12), (4, 8)], array([0, 1, 2]))
    """
    starts, size = {}, 0
    for each in _shared_sets(domain, cliques):
        starts[each] = size
        size += residual_length(domain, each)
    rows, places = [], []
    for clique in cliques:
        held = [each for each in residuals_inside(domain, clique) if each in starts]
        rows.append(np.concatenate([_rows(domain, clique, each) for each in ((), *held)]))
        ranges = [starts[each] + np.arange(residual_length(domain, each)) for each in held]
        places.append(np.concatenate([np.zeros(0, dtype=np.int64), *ranges]))
    return Shared(tuple(rows), tuple(places), np.zeros(size))


@one_blas_thread()
def confined(shared: Shared, inside: Sequence[NDArray[np.int64]], total: float) -> Shared:
    """Return the residuals ``shared`` as those of tables that sum to ``total`` and are zero outside
    the cells ``inside`` (flat indices, an array for each table).

    Each matrix keeps the columns of these cells, and only rows that are linearly independent on
    them. The residuals of the dropped rows are determined by those of the kept rows and by the
    total; ``offset`` and ``free`` describe the vectors s that meet these equations (``free`` is
    None if there are none, as no row was dropped).

    >>> shared = shared_residuals(Domain({"a": 3, "b": 2}), [("a",), ("a", "b")])
    >>> both = confined(shared, [np.array([0, 1]), np.arange(4)], 10.0)
    >>> [rows.shape for rows in both.rows], both.free.shape
    ([(2, 2), (2, 4)], (2, 1))
    """
    size = len(shared.offset)
    kept_rows, kept_places = [], []
    equations: list[Array] = [np.zeros((0, size))]
    values: list[Array] = [np.zeros(0)]
    for rows, places, cells in zip(shared.rows, shared.places, inside, strict=True):
        held = rows[:, cells]
        if len(cells) < rows.shape[1]:
            kept, dropped = _independent(held)
            solved = np.linalg.lstsq(held[kept].T, held[dropped].T, rcond=None)[0]
            weights = np.asarray(solved.T, dtype=np.float64)
            equation = np.zeros((len(dropped), size))
            equation[np.arange(len(dropped)), places[dropped - 1]] = 1.0
            equation[:, places[kept[1:] - 1]] -= weights[:, 1:]
            equations.append(equation)
            values.append(weights[:, 0] * total)
            held, places = held[kept], places[kept[1:] - 1]
        kept_rows.append(held)
        kept_places.append(places)
    offset, free = _solutions(np.concatenate(equations), np.concatenate(values))
    return Shared(tuple(kept_rows), tuple(kept_places), offset, free)


def _independent(rows: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of linearly independent rows that span all rows, with the first row (of
    ones) among them, and the indices of the other rows.
    """
    r, order = qr((rows[1:] - rows[1:].mean(axis=1, keepdims=True)).T, mode="r", pivoting=True)
    longest = float(np.linalg.norm(rows[1:], axis=1).max(initial=0.0))
    rank = int((np.abs(np.diagonal(r)) > DEPENDENT * longest).sum())
    kept = np.concatenate([[0], 1 + np.sort(order[:rank])]).astype(np.int64)
    return kept, 1 + np.sort(order[rank:]).astype(np.int64)


def _solutions(equations: Array, values: Array) -> tuple[Array, Array | None]:
    """Return the least-norm solution s of ``equations`` @ s = ``values``, and a basis of the
    vectors that may be added to it; None in place of the basis if there are no equations, since any
    vector may then be added.
    """
    if not len(equations):
        return np.zeros(equations.shape[1]), None
    q, r, order = qr(equations.T, pivoting=True)
    # The coefficients are of the order of one, so `DEPENDENT` is compared with r as it is.
    rank = int((np.abs(np.diagonal(r)) > DEPENDENT).sum())
    least = q[:, :rank] @ solve_triangular(r[:rank, :rank], values[order[:rank]], trans="T")
    return least, q[:, rank:]


def _shared_sets(domain: Domain, cliques: Sequence[Clique]) -> list[Clique]:
    """Return the sets of attributes, other than the empty one, whose residuals several tables over
    ``cliques`` have.
    """
    counted = Counter(chain.from_iterable(residuals_inside(domain, c) for c in cliques))
    return [each for each, tables in counted.items() if each and tables > 1]


def _rows(domain: Domain, clique: Clique, kept: Clique) -> Array:
    """Return the matrix that maps the cells over ``clique`` to the residual of ``kept``."""
    rows = np.ones((1, 1))
    for name in clique:
        size = domain.sizes[name]
        rows = np.kron(rows, helmert(size) if name in kept else np.ones((1, size)))
    return rows


@dataclass(frozen=True, eq=False)
class Region:
    """One table: its cells that may have records, its shared residuals, and its measurements.

    ``cells`` are indices in the vector of all tables. ``shared`` (M_c of ``interior_point``) maps
    the cells to their sum, by its first row, and to the residuals that other tables have too;
    ``places`` are the indices of these in the vector s of all shared residuals. ``view`` (Q) maps
    the cells to the measured ``values`` (y), both in units of the noise.
    """

    cells: NDArray[np.int64]
    shared: Array
    places: NDArray[np.int64]
    view: Matrix
    values: Array

    def curvature(self, weights: Array) -> Array:
        """Return Q' diag(weights) Q as a matrix or, if all entries off the diagonal are zero, its
        diagonal as a vector.
        """
        if isinstance(self.view, np.ndarray):
            return np.asarray(self.view.T @ (self.view * weights[:, None]))
        product = scipy.sparse.csr_array(self.view.T @ (self.view * weights[:, None]))
        product.eliminate_zeros()
        diagonal = product.diagonal()
        alone = product.nnz == np.count_nonzero(diagonal)
        return np.asarray(diagonal if alone else product.toarray())

    @one_blas_thread()
    def variance(self, spread: float) -> float:
        """Return the mean posterior variance of ``cells`` given the measurements, in squared
        counts, if every cell has the prior variance ``spread``.
        """
        curvature = self.curvature(np.ones(len(self.values)))
        values = curvature if curvature.ndim == 1 else np.linalg.eigvalsh(curvature)
        return float((1 / (np.maximum(values, 0) + 1 / spread)).mean())


Parts = tuple[list[Region], Shared]
"""All regions of the problem, and the residuals that they share."""


def needed_bytes(layout: Layout, measurements: Sequence[Measurement]) -> int:
    """Return the bytes that the matrices of an interior-point search take: five matrices of cells
    by cells for each region measured through a matrix, three of shared residuals by cells for each
    region, and five of all shared residuals by all shared residuals. The measurements' matrices,
    expanded to the regions' cells, take eight numbers for each entry that is not zero, and those
    that are held dense two more for every entry.
    """
    sizes = [part.stop - part.start for part in layout.slices]
    mixed, views = set[int](), 0
    for m in measurements:
        if m.matrix is not None:
            mixed.add(place := host(layout, m.clique))
            entries = nonzeros(m.matrix) * sizes[place] // layout.domain.size(m.clique)
            dense = len(m.values) * sizes[place]
            written = not is_sparse(m.matrix) or entries > DENSE_SHARE * dense
            views += 8 * entries + 2 * dense * written
    squares = sum(sizes[place] ** 2 for place in mixed)
    whole, each = shared_sizes(layout.domain, layout.cliques)
    shared = sum(rows * size for rows, size in zip(each, sizes, strict=True))
    return 8 * (5 * squares + 3 * shared + 5 * whole**2 + views)


def parts_of(
    polytope: LocalPolytope,
    layout: Layout,
    measurements: Sequence[Measurement],
    deadline: float = inf,
) -> Parts:
    """Return the regions with their measurements, one for each clique of the layout (these are the
    polytope's cliques), and the residuals that they share.

    Raises OutOfTime at the ``deadline`` of ``time.perf_counter``.
    """
    measured: dict[int, list[Measurement]] = {}
    for m in measurements:
        measured.setdefault(host(layout, m.clique), []).append(m)
    cells = [np.flatnonzero(polytope.allowed[part]) for part in layout.slices]
    shared = confined(shared_residuals(layout.domain, layout.cliques), cells, polytope.total)
    parts = zip(layout.slices, cells, shared.rows, shared.places, strict=True)
    found = []
    for place, (part, inside, rows, places) in enumerate(parts):
        check_time(deadline)
        own = measured.get(place, [])
        values = np.concatenate([np.zeros(0), *(m.values / m.stddev for m in own)])
        i, j, weights = standardised(layout, own)
        shape = len(values), part.stop - part.start
        both = scipy.sparse.csr_array((weights, (i, j - part.start)), shape)[:, inside]
        view = both if both.nnz <= DENSE_SHARE * both.shape[0] * both.shape[1] else both.toarray()
        found.append(Region(part.start + inside, rows, places, view, values))
    return found, shared
