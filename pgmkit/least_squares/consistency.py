"""Least squares over locally consistent tables: a lower bound on the loss of any distribution, and
tables from which the search for a model starts.

For every measured table y_c, with noise of standard deviation s_c, a nonnegative table x_c is
computed. These tables must agree on the attributes that they share (B x = b):

    minimise  sum_c |x_c - y_c|^2 / (2 s_c^2)   over  x >= 0,  B x = b.

Real marginals satisfy the constraints, so the optimum is a lower bound of the least-squares loss
over the marginal polytope; for a decomposable set of cliques it equals that loss and the tables are
the marginals. The Lagrange dual is smooth and piecewise quadratic in the multipliers l, with x =
max(0, y + s^2 B'l) in closed form, and every dual value is a valid bound; L-BFGS needs no
inference. The total of every table is a constraint of its own, although it follows from the
agreement of the tables. Without these constraints the total would reach one table after another,
and the number of steps for a chain would grow with its length.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.cluster.hierarchy import DisjointSet

from pgmkit.domain import Clique, Domain
from pgmkit.graphs.clique_index import CliqueIndex
from pgmkit.least_squares.sufficient_statistics import average_tables
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ITERATIONS, WINDOW
from pgmkit.structural_zeros import Zeros, possible_cells

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

_STEPS = WINDOW // 2
"""The steps over which the bound must rise by the ``precision`` for the search to go on. A search
that waits for twice as many (``WINDOW``) takes a tenth of the time of an estimate on a tree, and
moves its certificate by two or three thousandths of a noise unit.
"""


@dataclass(frozen=True)
class ConsistentTables:
    """The solution of the problem in the module's docstring.

    ``tables`` has a table in counts for each measured set of attributes, by clique (in the domain's
    order). They agree the more closely the smaller the search's ``precision``: with a thousandth,
    to about a hundredth of a standard deviation of the noise, unless the search ended at its
    deadline. ``bound`` is a lower bound on the squared loss of the marginals of any distribution.
    ``iterations`` is the number of steps of the search.
    """

    bound: float
    tables: dict[Clique, Array]
    iterations: int


class Relaxation:
    """The problem of the module docstring and its dual, for one or many sets of measurements.

    ``values`` has an array for each of the measured tables ``measurements``: its cells or, for many
    sets, a row for each cell and a column for each set. The multipliers are then a vector, or a
    matrix with a column for each set. ``total`` is one number, or an array with one number for each
    set.
    """

    def __init__(
        self,
        domain: Domain,
        measurements: Sequence[Measurement],
        values: Sequence[Array],
        total: float | Array,
        zeros: Sequence[Zeros],
    ) -> None:
        self.domain = domain
        noisy, self.spread = average_tables(domain, measurements, values)
        self.cliques = [table.clique for table, _ in noisy]
        self.y = np.concatenate([each for _, each in noisy])
        variance = np.repeat([table.stddev**2 for table, _ in noisy], [len(v) for _, v in noisy])
        self.precisions = 1 / variance
        masks = [possible_cells(domain, clique, zeros).ravel() for clique in self.cliques]
        highest = np.where(np.concatenate(masks), np.inf, 0.0)
        self._highest = highest.reshape(-1, *[1] * (self.y.ndim - 1))
        constraints, rows = agreement_and_totals(domain, self.cliques)
        scale = 1 / np.sqrt(constraints.power(2) @ variance)
        self._b = np.zeros((len(scale), *self.y.shape[1:]))
        self._b[rows:] = np.multiply.outer(scale[rows:], total)
        constraints.data *= np.repeat(scale, np.diff(constraints.indptr))
        self._constraints = constraints
        self._weighted = constraints.T.tocsr()
        self._weighted.data *= np.repeat(variance, np.diff(self._weighted.indptr))

    @property
    def start(self) -> Array:
        """The multipliers from which the search starts: all zero."""
        return np.zeros_like(self._b)

    def of(self, sets: NDArray[np.int64]) -> Relaxation:
        """Return the problem of some of the sets of measurements, given their indices."""
        other = copy(self)
        other.y, other._b = self.y[:, sets], self._b[:, sets]
        return other

    def flat_tables(self, multipliers: Array) -> Array:
        """Return the nonnegative tables that minimise the Lagrangian, one after the other in one
        vector.
        """
        x: Array = self._weighted @ multipliers
        x += self.y
        return np.clip(x, 0.0, self._highest, out=x)

    def negative_dual(self, multipliers: Array) -> tuple[Array, Array]:
        """Return minus the dual objective (for each set), and the gradient of this number. The
        constant ``spread``, the loss of repeated tables at their averages, is left out.
        """
        x = self.flat_tables(multipliers)
        violated = self._constraints @ x - self._b
        x -= self.y
        x *= x
        linear = np.einsum("i...,i...->...", multipliers, violated)
        return linear - self.precisions @ x / 2, violated

    def tables(self, multipliers: Array) -> dict[Clique, Array]:
        """Return the nonnegative tables that minimise the Lagrangian, by clique, in counts. The
        axes of the multipliers after the first, if any, are the last axes of each table.
        """
        x = self.flat_tables(multipliers)
        parts = np.split(x, np.cumsum([self.domain.size(clique) for clique in self.cliques])[:-1])
        return {
            clique: part.reshape(*self.domain.shape(clique), *x.shape[1:])
            for clique, part in zip(self.cliques, parts, strict=True)
        }


def consistent_tables(
    domain: Domain,
    measurements: Sequence[Measurement],
    total: float,
    precision: float = 1e-3,
    zeros: Sequence[Zeros] = (),
    deadline: float = inf,
) -> ConsistentTables:
    """Solve the relaxation for measured whole tables (at least one) with a known total, in counts.

    Cells that ``zeros`` within a table rule out are zero. The search ends when the bound rises by
    less than ``precision``, in units of the loss, over four steps, or at the ``deadline`` of
    ``time.perf_counter``: the bound is valid then too, but tables may disagree.

    >>> y = [Measurement(("a",), [3.0, -1.0], 1.0)]
    >>> consistent_tables(Domain({"a": 2}), y, total=2.0).tables[("a",)].round(6)
    array([2., 0.])
    """
    from scipy.optimize import minimize

    relaxation = Relaxation(domain, measurements, [m.values for m in measurements], total, zeros)
    reached: list[float] = []

    def stalled(intermediate_result: OptimizeResult) -> None:
        reached.append(intermediate_result.fun)
        slow = len(reached) > _STEPS and reached[-1 - _STEPS] - reached[-1] < precision
        if slow or time.perf_counter() >= deadline:
            raise StopIteration

    found = minimize(
        relaxation.negative_dual,
        relaxation.start,
        jac=True,
        callback=stalled,
        method="L-BFGS-B",
        options={"maxiter": MOST_ITERATIONS, "maxcor": 20, "ftol": 1e-15, "gtol": 1e-10},
    )
    bound = float(relaxation.spread - found.fun)
    return ConsistentTables(bound, relaxation.tables(found.x), found.nit)


def agreement_and_totals(
    domain: Domain, cliques: Sequence[Clique]
) -> tuple[scipy.sparse.csr_array, int]:
    """Return the matrix of the constraints, and its number of agreement rows, which come before a
    row for the sum of each table.

    Columns are the tables' cells, one table after the other.
    """
    parts, rows = agreeing(domain, cliques)
    parts += [(place, (), rows + place, 1.0) for place in range(len(cliques))]
    return _sums(domain, cliques, parts, rows + len(cliques)), rows


def agreement(
    domain: Domain, cliques: Sequence[Clique], total: float | None
) -> tuple[scipy.sparse.csr_array, Array]:
    """Return B and b of the constraints B x = b: tables agree on shared attributes and in their
    sums, and, if ``total`` is not None, one of them sums to it.

    Columns are the tables' cells, one table after the other.
    """
    parts, rows = agreeing(domain, cliques, sums_too=True)
    b = np.zeros(rows) if total is None else np.append(np.zeros(rows), total)
    if total is not None:
        smallest = min(range(len(cliques)), key=lambda place: domain.size(cliques[place]))
        parts.append((smallest, (), rows, 1.0))
    return _sums(domain, cliques, parts, len(b)), b


_Part = tuple[int, Clique, int, float]
"""The place of a table, the attributes it is summed down to, the first row of their cells, and a
sign.
"""


def agreeing(
    domain: Domain, cliques: Sequence[Clique], *, sums_too: bool = False
) -> tuple[list[_Part], int]:
    """Return the parts of a matrix whose rows, set to zero, say that tables agree on the attributes
    that they share (with ``sums_too`` also in their sums), and the number of its rows.

    Two tables that contain a set S and share a further attribute agree on S because they agree on a
    larger set. So the tables that contain S fall into groups, linked by further attributes, and
    there are rows for S only between two groups, not within one.
    """
    index, parts, row = CliqueIndex(cliques), list[_Part](), 0
    shared_parts = _shared_parts(index)
    if sums_too:
        shared_parts.add(frozenset())
    for shared in sorted(shared_parts, key=lambda s: (-len(s), sorted(s))):
        members = index.containing(shared)
        groups = DisjointSet(members)
        first: dict[str, int] = {}
        for i in members:
            for name in index.sets[i] - shared:
                groups.merge(first.setdefault(name, i), i)
        smallest = min(members, key=lambda i: len(index.sets[i]))
        ordered = tuple(name for name in cliques[smallest] if name in shared)
        for i in members:
            if groups.merge(smallest, i):
                parts += [(smallest, ordered, row, 1.0), (i, ordered, row, -1.0)]
                row += domain.size(ordered)
    return parts, row


def _sums(
    domain: Domain, cliques: Sequence[Clique], parts: Sequence[_Part], rows: int
) -> scipy.sparse.csr_array:
    """Return a sparse matrix with ``rows`` rows and a column for each cell of the tables. Each of
    the ``parts`` (`_Part`) adds a marginal of one table, times its sign, to some rows. Parts of the
    same shape are written in one call.
    """
    offsets = np.cumsum([0] + [domain.size(clique) for clique in cliques])
    alike: dict[tuple[tuple[int, ...], ...], list[_Part]] = {}
    for part in parts:
        clique = cliques[part[0]]
        key = domain.shape(clique), tuple([clique.index(name) for name in part[1]])
        alike.setdefault(key, []).append(part)
    found: list[tuple[NDArray[np.int64], NDArray[np.int64], Array]] = []
    for group in alike.values():
        places, shared, starts, signs = zip(*group, strict=True)
        cells = domain.cell_map(cliques[places[0]], shared[0])
        at = np.add.outer(starts, cells).ravel()
        columns = np.add.outer(offsets[list(places)], np.arange(len(cells))).ravel()
        found.append((at, columns, np.repeat(signs, len(cells))))
    shape = (rows, offsets[-1])
    if not found:
        return scipy.sparse.csr_array(shape)
    at, columns, entries = (np.concatenate(each) for each in zip(*found, strict=True))
    return scipy.sparse.csr_array((entries, (at, columns)), shape)


def _shared_parts(index: CliqueIndex) -> set[frozenset[str]]:
    """Return sets of attributes, each of which two or more cliques contain. Every nonempty
    intersection of two cliques is one of these sets.

    A clique adds all nonempty subsets of the attributes that it shares or, if they may be fewer,
    its intersections with other cliques. So an attribute in thousands of cliques does not lead to
    all pairs of them. A subset that is no intersection of two cliques adds no constraint: two
    cliques that contain it share a further attribute, so they agree on it because of a larger set.
    """
    found: set[frozenset[str]] = set()
    for place, held in enumerate(index.sets):
        shared = [name for name in held if len(index.places[name]) > 1]
        if 2 ** len(shared) <= sum(len(index.places[name]) for name in shared):
            parts = (c for n in range(1, len(shared) + 1) for c in combinations(shared, n))
            found.update(part for part in map(frozenset, parts) if part not in found)
        else:
            others = {other for name in shared for other in index.places[name]} - {place}
            found.update(held & index.sets[other] for other in others)
    return {part for part in found if len(index.containing(part)) > 1}
