"""Measurements as one linear map of the flat tables of a layout, and its adjoint."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from pgmkit.domain import Clique
from pgmkit.inference.layout import Layout
from pgmkit.linear.kronecker import Kronecker, factors_of, nonzeros, sparse_product
from pgmkit.linear.matrix import as_dense, is_sparse
from pgmkit.measurement import Measurement
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.sizes import CACHE_CELLS, FEW_CELLS

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class Observations:
    """All measurements as one standardised linear map r = (Q mu - y) / stddev, and its adjoint.

    ``mu`` is the flat vector of marginals, Q the measurements' joint matrix on it, and y the noisy
    values. Small tables, sparse and small matrices, and Kronecker products of few entries form one
    sparse matrix in coordinate form, which is applied by one gather and one scatter. Large tables,
    large dense matrices and other Kronecker products are applied one after the other
    (`_DenseView`). If the measured tables are exactly
    the cliques, in order, Q is the identity and nothing of this is needed.

    ``target`` is y / stddev. It has the values of the sparse matrix first and then the others, and
    so has every vector over the measured values here. If ``in_coordinates``, all measurements are
    in the sparse matrix, and ``applied`` and ``adjoint`` also take several vectors at once, as the
    rows of a matrix.
    """

    def __init__(
        self,
        layout: Layout,
        measurements: Sequence[Measurement],
        dtype: torch.dtype,
        device: torch.device,
        *,
        in_coordinates: bool = False,
    ) -> None:
        self.layout = layout
        whole = [m.clique if m.matrix is None else None for m in measurements]
        self._is_identity = whole == list(layout.cliques)
        sparse: list[Measurement] = []
        dense: list[Measurement] = []
        for m in measurements:
            together = self._is_identity or in_coordinates or acts_by_coordinates(layout, m)
            (sparse if together else dense).append(m)
        self._sparse_rows = sum(len(m.values) for m in sparse)
        if self._is_identity:
            counts = [len(m.values) for m in measurements]
            weights = np.repeat([1 / m.stddev for m in measurements], counts)
        else:
            rows, columns, weights = standardised(layout, sparse)
            self._rows, self._columns = (torch.as_tensor(p, device=device) for p in (rows, columns))
        self._weights = torch.as_tensor(weights, dtype=dtype, device=device)
        if len({m.stddev for m in measurements}) == 1 and self._is_identity:
            self._weights = self._weights[:1].clone().expand(layout.cells)  # one number in memory
        self._dense = [_DenseView(layout, m, dtype, device) for m in dense]
        self._measurements = sparse + dense
        target = np.concatenate([np.zeros(0), *[m.values / m.stddev for m in self._measurements]])
        self.target = torch.as_tensor(target, dtype=dtype, device=device)

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The tensors that a step of a search reads from the measurements, each with memory for
        all its entries. So if Q is the identity and all noise is the same, the weights 1 / stddev
        are one number, and not a view of it that has an entry for each cell.
        """
        alike = self._is_identity and self._weights.stride(0) == 0
        found = [self.target, self._weights[:1] if alike else self._weights]
        if not self._is_identity:
            found += [self._rows, self._columns]
        return found + [each for view in self._dense for each in view.inputs]

    def separate(self) -> Observations:
        """Return the same measurements in memory of their own."""
        return Observations(self.layout, self._measurements, self.target.dtype, self.target.device)

    @property
    def form(self) -> Hashable:
        """A key of the operations on ``inputs``: two objects with equal keys, layouts and shapes of
        ``inputs`` do the same operations.
        """
        return self._is_identity, self._sparse_rows, tuple(view.form for view in self._dense)

    def matrix(self) -> csr_array:
        """Return Q / stddev as a sparse matrix with a row for each measured value and a column for
        each cell.
        """
        from scipy.sparse import csr_array

        rows, columns, weights = standardised(self.layout, self._measurements)
        return csr_array((weights, (rows, columns)), (len(self.target), self.layout.cells))

    def residual(self, marginals: torch.Tensor) -> torch.Tensor:
        """Return (Q mu - y) / stddev, one entry for each measured value."""
        return self.applied(marginals).sub_(self.target)

    def applied(self, marginals: torch.Tensor) -> torch.Tensor:
        """Return Q mu / stddev, one entry for each measured value. ``marginals`` are mu, the counts
        of all cliques' cells as one vector.
        """
        parts = [view.apply(marginals) for view in self._dense]
        if self._sparse_rows or not parts:
            parts.insert(0, self._row_sums(marginals, self._weights))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def variances(self, marginals: torch.Tensor, total: float) -> torch.Tensor:
        """Return the variance of each row of Q mu / stddev if mu are the counts of ``total``
        independent records with these marginals.
        """
        second = self._row_sums(marginals, self._weights.square())
        parts = [second, *(view.apply_squares(marginals) for view in self._dense)]
        return (torch.cat(parts) - self.applied(marginals).square() / total).clamp_min(0.0)

    def seen(self, marginals: torch.Tensor) -> torch.Tensor:
        """Return the vector v, one entry for each measured value, such that v * seen_weights is
        Q mu / stddev. If Q is the identity, v is the marginals themselves.
        """
        return marginals if self._is_identity else self.applied(marginals)

    @cached_property
    def seen_weights(self) -> torch.Tensor:
        """The weights, one for each measured value, that turn ``seen`` into Q mu / stddev."""
        if self._is_identity:
            return self._weights
        return torch.ones_like(self.target[:1]).expand_as(self.target)

    def parts(self) -> list[Observations]:
        """Return the same measurements in two parts if they are every clique's table and others:
        first these tables, whose matrix is the identity, then the others. Otherwise there is one
        part.
        """
        tables = {m.clique: m for m in self._measurements if m.matrix is None}
        whole = [tables[clique] for clique in self.layout.cliques if clique in tables]
        rest = [m for m in self._measurements if not any(m is table for table in whole)]
        if len(whole) < len(self.layout.cliques) or not rest:
            return [self]
        form = self.target.dtype, self.target.device
        return [Observations(self.layout, some, *form) for some in (whole, rest)]

    @cached_property
    def table_weights(self) -> torch.Tensor:
        """1 / stddev for each value of a measured table, and 0 for each value of a measured
        matrix.
        """
        weights = [0.0 if m.matrix is not None else 1 / m.stddev for m in self._measurements]
        counts = [len(m.values) for m in self._measurements]
        return torch.as_tensor(np.repeat(weights, counts)).to(self.target)

    @property
    def tables(self) -> int:
        """The number of measured tables, which are the measurements without a matrix."""
        return sum(m.matrix is None for m in self._measurements)

    def highest(self, cells: torch.Tensor) -> torch.Tensor:
        """Return, for each measured value, the largest entry of ``cells`` (a number for each cell
        of the cliques) among the cells that the value sums. A value of a table sums the cells of a
        clique that fall in its own cell, and a value of a sparse or small matrix those with a
        nonzero weight. For a large dense matrix, and for a Kronecker product that is not in the
        sparse matrix, the result is minus infinity.
        """
        if self._is_identity:
            return cells
        lowest = torch.full((self._sparse_rows,), -torch.inf).to(cells)
        parts = [lowest.scatter_reduce(0, self._rows, cells.index_select(0, self._columns), "amax")]
        return torch.cat([*parts, *(view.highest(cells) for view in self._dense)])

    def _row_sums(self, marginals: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the product of a matrix and the marginals. The matrix has its nonzero entries in
        the same places as the sparse part of Q, and ``weights`` are their values.
        """
        if self._is_identity:
            return marginals * weights
        picked = marginals.index_select(-1, self._columns).mul_(weights)
        shape = (*picked.shape[:-1], self._sparse_rows)
        sums = torch.zeros(shape, dtype=picked.dtype, device=picked.device)
        return sums.index_add_(-1, self._rows, picked)

    def adjoint(self, dual: torch.Tensor) -> torch.Tensor:
        """Return Q^T (dual / stddev) as a flat vector over the cliques' cells."""
        if self._is_identity:
            return dual * self._weights
        shape = (*dual.shape[:-1], self.layout.cells)
        result = torch.zeros(shape, dtype=dual.dtype, device=dual.device)
        return self.add_adjoint(dual, result)

    def add_adjoint(self, dual: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        """Add Q' (dual / stddev) to ``into`` in place, and return ``into``. Q must not be the
        identity; `adjoint` serves that too.
        """
        if self._sparse_rows:
            weighted = dual.index_select(-1, self._rows).mul_(self._weights)
            into.index_add_(-1, self._columns, weighted)
        start = self._sparse_rows
        for view in self._dense:
            view.add_adjoint(dual[start : start + view.rows], into)
            start += view.rows
        return into


def host(layout: Layout, clique: Clique) -> int:
    """Return the number of the smallest of the layout's cliques that contain ``clique``; the caller
    makes sure that there is one.
    """
    return min(layout.index.containing(clique), key=lambda i: prod(layout.shapes[i]))


def acts_by_coordinates(layout: Layout, m: Measurement) -> bool:
    """Return True if a measurement is a part of the sparse matrix of ``Observations``, with an
    entry for each cell of the clique's host that a value sums.
    """
    if m.matrix is None or isinstance(m.matrix, Kronecker):
        # A product with at most one entry for each cell takes no more work than a table.
        light = m.matrix is None or nonzeros(m.matrix) <= layout.domain.size(m.clique)
        return light and prod(layout.shapes[host(layout, m.clique)]) < CACHE_CELLS
    return is_sparse(m.matrix) or prod(m.matrix.shape) <= FEW_CELLS


def standardised(
    layout: Layout, measurements: Sequence[Measurement]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the row, flat column and value of every nonzero entry of Q / stddev. The rows of the
    measurements follow each other.
    """
    rows, columns = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    weights, start = [np.zeros(0)], 0
    for m in measurements:
        i, j, w = coordinates(layout, m)
        rows.append(i + start)
        columns.append(j)
        weights.append(w / m.stddev)
        start += len(m.values)
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(weights)


def coordinates(layout: Layout, m: Measurement) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the row, flat column and value of every nonzero entry of one measurement's matrix, as
    it acts on the flat vector of all marginals (without division by stddev).
    """
    place = host(layout, m.clique)
    cell = layout.domain.cell_map(layout.cliques[place], m.clique)
    start = layout.slices[place].start
    if m.matrix is None:
        return cell, np.arange(len(cell), dtype=np.int64) + start, np.ones(len(cell))
    import scipy.sparse

    matrix = sparse_product(m.matrix.factors) if isinstance(m.matrix, Kronecker) else m.matrix
    both = scipy.sparse.coo_array(scipy.sparse.csr_array(matrix)[:, cell])
    row, column = both.row.astype(np.int64), both.col.astype(np.int64)
    return row, column + start, both.data.astype(np.float64)


class _DenseView:
    """The rows of Q / stddev of one measurement outside the sparse matrix. They act on the marginal
    of the measured attributes, which is summed from the smallest clique that contains them: a
    Kronecker product axis by axis, a dense matrix on the flat table.
    """

    def __init__(
        self, layout: Layout, m: Measurement, dtype: torch.dtype, device: torch.device
    ) -> None:
        place = host(layout, m.clique)
        held = layout.cliques[place]
        self._slice, self._shape = layout.slices[place], layout.shapes[place]
        self._summed = [i for i, name in enumerate(held) if name not in m.clique]
        kept = [name for name in held if name in m.clique]
        self._order = [kept.index(name) for name in m.clique]
        self._kept_shape = [layout.domain.sizes[name] for name in m.clique]
        self._by_axis = m.matrix is None or isinstance(m.matrix, Kronecker)
        self._factors = [
            torch.as_tensor(np.array(as_dense(f)), dtype=dtype, device=device)
            for f in factors_of(m.matrix)
        ]
        self.rows = len(m.values)
        self._stddev = torch.tensor(m.stddev, dtype=dtype, device=device)
        self.inputs = [self._stddev, *self._factors]
        self.form = m.clique, self._by_axis, self.rows

    def apply(self, marginals: torch.Tensor) -> torch.Tensor:
        return self._multiply(self._table(marginals), self._factors) / self._stddev

    def highest(self, cells: torch.Tensor) -> torch.Tensor:
        """Return the largest of the cells that each value sums; minus infinity if there is a
        matrix.
        """
        if self._factors:
            return torch.full((self.rows,), -torch.inf).to(cells)
        table = cells[self._slice].view(self._shape)
        highest = table.amax(self._summed) if self._summed else table
        return highest.permute(self._order).reshape(-1)

    def apply_squares(self, marginals: torch.Tensor) -> torch.Tensor:
        """Return the product of the marginals and the matrix of the squared entries of
        Q / stddev.
        """
        squares = [factor.square() for factor in self._factors]
        return self._multiply(self._table(marginals), squares) / self._stddev**2

    def _table(self, marginals: torch.Tensor) -> torch.Tensor:
        table = marginals[self._slice].view(self._shape)
        return (table.sum(self._summed) if self._summed else table).permute(self._order)

    def add_adjoint(self, dual: torch.Tensor, into: torch.Tensor) -> None:
        shape = [f.shape[0] for f in self._factors] or self._kept_shape
        flat = self._multiply(dual.view(shape), [f.T for f in self._factors]) / self._stddev
        inverse = [self._order.index(i) for i in range(len(self._order))]
        table = flat.view(self._kept_shape).permute(inverse)
        for dim in self._summed:
            table = table.unsqueeze(dim)
        into[self._slice].view(self._shape).add_(table)

    def _multiply(self, table: torch.Tensor, factors: Sequence[torch.Tensor]) -> torch.Tensor:
        if not self._by_axis:
            return factors[0] @ table.reshape(-1)
        for axis, factor in enumerate(factors):
            table = torch.movedim(torch.tensordot(factor, table, dims=([1], [axis])), 0, axis)
        return table.reshape(-1)
