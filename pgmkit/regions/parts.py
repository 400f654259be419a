"""The relaxed problem divided by regions: each region's cells, shared residuals and
measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from pgmkit.inference.layout import Layout
from pgmkit.inference.observations import host, standardised
from pgmkit.linear.kronecker import nonzeros
from pgmkit.linear.matrix import Matrix, is_sparse
from pgmkit.measurement import Measurement
from pgmkit.regions.deadline import check_time
from pgmkit.regions.polytope import LocalPolytope
from pgmkit.regions.shared_residuals import Shared, confined, shared_residuals, shared_sizes
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import DENSE_SHARE
from pgmkit.runtime.threads import one_blas_thread


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
