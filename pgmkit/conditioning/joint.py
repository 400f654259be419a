"""The joint distribution of a few attributes, cell by cell.

For about a thousand cells, a product of all tables takes less time than planning an elimination
(``JointTable``). A graph with so few cells altogether keeps its joint distribution (``Joint``).
Evidence multiplies its cells, and one product with a matrix of zeros and ones gives the marginals
of all attributes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from pgmkit.conditioning.calibrated_cliques import ScaledEvidence
from pgmkit.conditioning.message_passing import LEAST_SUM, Underflow
from pgmkit.domain import Clique, Domain
from pgmkit.graphs.bit_sets import each_bit
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import FEW_CELLS

MOST_CELLS = FEW_CELLS
"""The largest number of cells of a joint distribution for which multiplying all tables takes less
time than planning an elimination.
"""


def is_small(members: int, sizes: Sequence[int]) -> bool:
    """Return True if a table over these attributes (a bit set) has at most ``MOST_CELLS`` cells.
    Attributes with one value count as if they had two, since numpy limits the number of axes.
    """
    if 1 << members.bit_count() > MOST_CELLS:
        return False
    return math.prod([max(2, sizes[v]) for v in each_bit(members)]) <= MOST_CELLS


class JointTable:
    """The probabilities of all cells of a few attributes.

    Args:
        axes: the attributes' numbers, ascending.
        weights: the cells' unnormalised weights.

    Raises Underflow if their sum is zero or too small to be reliable.

    >>> found = JointTable((0, 2), np.array([[1.0, 2.0], [0.0, 5.0]]))
    >>> found.marginal(0b100), round(found.log_sum, 3)
    (array([0.125, 0.875]), 2.079)
    """

    def __init__(self, axes: Sequence[int], weights: Array) -> None:
        total = float(weights.sum())
        if not LEAST_SUM < total < math.inf:
            raise Underflow
        self.axes, self.table, self.log_sum = axes, weights / total, math.log(total)

    def marginal(self, members: int) -> Array:
        """Return the marginal of some of the attributes (a bit mask), axes ascending."""
        away = tuple([axis for axis, v in enumerate(self.axes) if not members >> v & 1])
        return np.asarray(self.table.sum(away))


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
        scopes, tables = [members for members, _, _ in inputs], [table for _, table, _ in inputs]
        self.table = product(scopes, tables, range(len(shape)), shape).reshape(-1)
        self.log_scale = sum([log for _, _, log in inputs])
        self.place: dict[Clique, slice] = {}
        """The slice of each attribute's marginal in the vector of all."""
        end = 0
        for name, size in domain.sizes.items():
            self.place[(name,)] = slice(end, end := end + size)

    @cached_property
    def reader(self) -> Array:
        """A matrix with a row for every value of an attribute and a column for every cell: 1 if the
        cell has the value, else 0.
        """
        found = np.zeros((sum(self.shape), *self.shape))
        values = [(axis, value) for axis, n in enumerate(self.shape) for value in range(n)]
        for row, (axis, value) in enumerate(values):
            found[row].swapaxes(0, axis)[value] = 1.0
        return found.reshape(len(found), -1)

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


class GivenJoint(JointTable):
    """The joint distribution of all attributes of a small graph given evidence.

    Args:
        joint: the graph's joint distribution without evidence.
        table: the unnormalised weights of all cells given the evidence, flat.
    """

    def __init__(self, joint: Joint, table: Array) -> None:
        super().__init__(range(len(joint.shape)), table.reshape(joint.shape))
        self.log_sum += joint.log_scale
        self.joint, self.place = joint, joint.place

    @cached_property
    def singles(self) -> Array:
        """The marginals of all attributes in one vector; ``place`` has the slice of each."""
        found: Array = np.dot(self.joint.reader, self.table.reshape(-1))
        return found


def product(
    scopes: Iterable[int], tables: Iterable[Array], axes: Sequence[int], sizes: Sequence[int]
) -> Array:
    """Return the product of tables over the attributes ``scopes`` (bit sets) as a table over
    ``axes``, which has all of them. ``sizes`` are those of all attributes; axes are ascending.
    """
    found = np.ones([sizes[v] for v in axes])
    for members, table in zip(scopes, tables, strict=True):
        found *= table.reshape([sizes[v] if members >> v & 1 else 1 for v in axes])
    return found
