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
from pgmkit.inference.observations import Observations
from pgmkit.least_squares.sufficient_statistics import Statistics
from pgmkit.linear.kronecker import Kronecker
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
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, Kronecker):
        as_many = len(one.factors) == len(other.factors)
        return as_many and all(map(_same_matrix, one.factors, other.factors))
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return bool(one.shape == other.shape and (one != other).nnz == 0)


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

    ``applied(mu)`` returns Q mu / stddev, and ``gradient(residual)`` the gradient of the loss with
    respect to the marginals, Q^T (residual / stddev).
    """

    def __init__(self, layout: Layout, known: Statistics, device: torch.device) -> None:
        measurements = known.measurements
        of_one = Observations(layout, measurements, torch.float64, device, in_coordinates=True)
        self.applied, self.gradient = of_one.applied, of_one.adjoint
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
        return self.applied(marginals).sub_(self.target)

    def value(self, residual: torch.Tensor) -> torch.Tensor:
        return residual.square().sum(1) / 2

    def rounding(self, marginals: torch.Tensor) -> torch.Tensor:
        """Return, for each set, an approximate upper bound of the change of its loss if every
        marginal and every measured value changes by a few units in its last place.
        """
        residual = self.residual(marginals)
        sizes = (residual + self.target).abs() + self.target.abs()
        shift = ULPS * torch.finfo(residual.dtype).eps * sizes
        return ((residual.abs() + shift) * shift).sum(1)
