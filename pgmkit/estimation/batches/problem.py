"""Many problems of one structure: the measured values of each set, and their losses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any

import numpy as np
import torch

from pgmkit.errors import PgmkitError, naming
from pgmkit.inference.layout import Layout
from pgmkit.inference.observations import standardised
from pgmkit.least_squares.sufficient_statistics import Statistics
from pgmkit.linear.kronecker import Kronecker
from pgmkit.linear.matrix import is_sparse
from pgmkit.losses import Squared
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import ULPS


def same_structure(one: Measurement, other: Measurement) -> bool:
    """Return True if two measurements differ in nothing but their values. A dense and a sparse
    matrix count as different.
    """
    return (
        one.clique == other.clique
        and one.stddev == other.stddev
        and one.values.shape == other.values.shape
        and _same_matrix(one.matrix, other.matrix)
    )


def _same_matrix(one: Any, other: Any) -> bool:
    """Return True if two matrices of measurements are of the same kind and have equal entries."""
    if one is other:
        return True
    if isinstance(one, Kronecker) and isinstance(other, Kronecker):
        as_many = len(one.factors) == len(other.factors)
        return as_many and all(map(_same_matrix, one.factors, other.factors))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if is_sparse(one) and is_sparse(other):
        return bool(one.shape == other.shape and (one != other).nnz == 0)
    return False


def stacked(sets: Sequence[Sequence[Measurement]]) -> list[Array]:
    """Return an array for each measurement of a set, of shape (values, sets): the measured values
    of this measurement in all sets, which have the same structure.
    """
    return [np.stack([m.values for m in group], axis=1) for group in zip(*sets, strict=True)]


def naming_set(place: int) -> AbstractContextManager[None]:
    """Put ``measurement_sets[place]`` before the message of any error of pgmkit that the block
    raises.
    """
    return naming(f"measurement_sets[{place}]", PgmkitError)


class BatchedSquares:
    """The loss sum_i ((Q mu - y)_i / stddev_i)^2 / 2 of every set, with measurement matrix Q,
    marginals mu and measured values y. Matrices of marginals, residuals and values have a row for
    each set.
    """

    def __init__(self, layout: Layout, known: Statistics, device: torch.device) -> None:
        measurements = known.measurements
        rows, columns, weights = standardised(layout, measurements)
        straight = np.arange(layout.cells)
        self._diagonal = sum(len(m.values) for m in measurements) == layout.cells and all(
            np.array_equal(side, straight) for side in (rows, columns)
        )
        self._rows, self._columns = (torch.as_tensor(p, device=device) for p in (rows, columns))
        self._weights = torch.as_tensor(weights, device=device)
        self._cells = layout.cells
        parts = zip(known.values, measurements, strict=True)
        scaled = np.concatenate([values / m.stddev for values, m in parts]).T
        self.target = torch.as_tensor(np.ascontiguousarray(scaled), device=device)
        self.unit = Squared().unit(known.count)

    def of(self, sets: torch.Tensor) -> BatchedSquares:
        """Return the loss of those sets whose indices are in ``sets``."""
        other = copy(self)
        other.target = self.target[sets]
        return other

    def residual(self, marginals: torch.Tensor) -> torch.Tensor:
        """Return (Q mu - y) / stddev, with a row for each set and a column for each measured
        value.
        """
        if self._diagonal:
            return marginals * self._weights - self.target
        picked = marginals.index_select(1, self._columns).mul_(self._weights)
        return torch.neg(self.target).index_add_(1, self._rows, picked)

    def applied(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return Q v / stddev for each row v of ``vectors``, which has a column for each cell."""
        blank = vectors.new_zeros(len(vectors), self.target.shape[1])
        picked = vectors.index_select(1, self._columns) * self._weights
        return blank.index_add_(1, self._rows, picked)

    def value(self, residual: torch.Tensor) -> torch.Tensor:
        return residual.square().sum(1) / 2

    def gradient(self, residual: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the loss with respect to the marginals: Q^T (residual /
        stddev).
        """
        if self._diagonal:
            return residual * self._weights
        picked = residual.index_select(1, self._rows).mul_(self._weights)
        return residual.new_zeros(len(residual), self._cells).index_add_(1, self._columns, picked)

    def rounding(self, marginals: torch.Tensor) -> torch.Tensor:
        """Return, for each set, an approximate upper bound of the change of its loss if every
        marginal and every measured value changes by a few units in its last place.
        """
        residual = self.residual(marginals)
        sizes = (residual + self.target).abs() + self.target.abs()
        shift = ULPS * torch.finfo(residual.dtype).eps * sizes
        return ((residual.abs() + shift) * shift).sum(1)
