"""The joint distribution of a small graph, cell by cell.

A graph with a few thousand cells keeps its joint distribution. Evidence multiplies its cells, and
one product with a matrix of zeros and ones gives the marginals of all attributes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from pgmkit.conditioning.calibrated_cliques import ScaledEvidence
from pgmkit.conditioning.message_passing import LEAST_SUM, Underflow
from pgmkit.domain import Clique, Domain
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import FEW_CELLS

MOST_CELLS = FEW_CELLS
"""The largest number of cells of a joint distribution for which multiplying all tables takes less
time than planning an elimination.
"""


class Joint:
    """The product of all tables of a small graph, from which any evidence is answered.

    Args:
        domain: all attributes.
        inputs: for each table its attributes as a set, the table with its axes in the domain's
            order and entries in [0, 1], and the logarithm of the number it was divided by.

    >>> domain = Domain({"a": 2, "b": 2})
    >>> joint = Joint(domain, [(0b01, np.array([0.5, 0.5]), 0.0), (0b11, np.eye(2), 0.0)])
    >>> joint.given(ScaledEvidence({"b": 1}, {})).singles
    array([0., 1., 0., 1.])
    """

    def __init__(self, domain: Domain, inputs: Sequence[tuple[int, Array, float]]) -> None:
        self.shape = shape = domain.shape()
        product = np.ones(shape)
        for members, table, _ in inputs:
            product *= table.reshape([n if members >> v & 1 else 1 for v, n in enumerate(shape)])
        self.table = product.reshape(-1)
        self.log_scale = sum([log for _, _, log in inputs])
        self.place: dict[Clique, slice] = {}
        """The slice of each attribute's marginal in the vector of all."""
        self.reader = np.empty((sum(shape), self.table.size))
        """A row for every value of an attribute, a column for every cell: 1 if the cell has the
        value, else 0.
        """
        end, stride, cells = 0, self.table.size, np.arange(self.table.size)
        for name, size in domain.sizes.items():
            self.place[(name,)] = slice(end, end := end + size)
            stride //= size
            values = np.arange(size)[:, None]
            np.equal(cells // stride % size, values, out=self.reader[end - size : end])

    def given(self, evidence: ScaledEvidence) -> GivenJoint:
        """Return the distribution given the evidence. Raises Underflow if its probability is zero
        or nearly so.
        """
        table = self.table
        for name, code in evidence.codes.items():
            table = table * self.reader[self.place[(name,)].start + code]
        for name, weights in evidence.weights.items():
            table = table * np.dot(weights, self.reader[self.place[(name,)]])
        return GivenJoint(self, table)


class GivenJoint:
    """The joint distribution of all attributes of a small graph given evidence.

    Args:
        joint: the distribution without evidence.
        table: the unnormalised weights of its cells, flat.

    Raises Underflow if their sum is zero or too small to be reliable.
    """

    def __init__(self, joint: Joint, table: Array) -> None:
        total = float(table.sum())
        if not LEAST_SUM < total < math.inf:
            raise Underflow
        self.table, self.log_sum = table / total, math.log(total) + joint.log_scale
        self.place, self._reader, self._shape = joint.place, joint.reader, joint.shape

    @cached_property
    def singles(self) -> Array:
        """The marginals of all attributes in one vector; ``place`` has the slice of each."""
        found: Array = np.dot(self._reader, self.table)
        return found

    def marginal(self, members: int) -> Array:
        """Return the marginal of some of the attributes (a bit mask), axes ascending."""
        away = tuple([axis for axis in range(len(self._shape)) if not members >> axis & 1])
        return np.asarray(self.table.reshape(self._shape).sum(away))
