"""The joint distribution of the attributes of a small graph, cell by cell.

For about a thousand cells, a product of all tables takes less time than planning an elimination.
Evidence multiplies its cells, and one product with a matrix of zeros and ones gives the marginals
of all attributes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from pgmkit.conditioning.evidence import Evidence
from pgmkit.conditioning.message_passing import LEAST_SUM, Underflow
from pgmkit.domain import Clique, Domain
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import FEW_CELLS

MOST_CELLS = FEW_CELLS
"""The largest number of cells of a joint distribution for which multiplying all tables takes less
time than planning an elimination.
"""


def is_small(sizes: Sequence[int]) -> bool:
    """Return True if a table over attributes of these sizes has at most ``MOST_CELLS`` cells.
    Attributes with one value count as if they had two, since numpy limits the number of axes.
    """
    return math.prod([max(2, size) for size in sizes]) <= MOST_CELLS


class Joint:
    """The product of all tables of a small graph, from which any evidence is answered.

    Args:
        domain: all attributes.
        inputs: for each table its attributes as a set, the table with its axes in the domain's
            order and entries in [0, 1], and the logarithm of the number it was divided by.

    >>> domain = Domain({"a": 2, "b": 2})
    >>> joint = Joint(domain, [(0b01, np.array([0.5, 0.5]), 0.0), (0b11, np.eye(2), 0.0)])
    >>> joint.given(Evidence({"b": 1}, {})).singles
    array([0., 1., 0., 1.])
    """

    def __init__(self, domain: Domain, inputs: Sequence[tuple[int, Array, float]]) -> None:
        self.shape = shape = domain.shape()
        table = np.ones(shape)
        for members, values, _ in inputs:
            table *= values.reshape([n if members >> v & 1 else 1 for v, n in enumerate(shape)])
        self.table = table.reshape(-1)
        self.log_scale = sum([log for _, _, log in inputs])
        self.place: dict[Clique, slice] = {}
        """The slice of each attribute's marginal, by (name,), in ``GivenJoint.singles``."""
        end = 0
        for name, size in domain.sizes.items():
            self.place[(name,)] = slice(end, end := end + size)

    @cached_property
    def reader(self) -> Array:
        """A matrix with a row for every value of an attribute and a column for every cell: 1 if the
        cell has the value, else 0.
        """
        codes = np.indices(self.shape).reshape(len(self.shape), -1)
        return np.concatenate([np.eye(n)[:, own] for n, own in zip(self.shape, codes, strict=True)])

    def given(self, evidence: Evidence) -> GivenJoint:
        """Return the distribution given the evidence. Raises Underflow if the evidence has
        probability zero, or one too small to be reliable.
        """
        table = self.table
        for name, code in evidence.codes.items():
            table = table * self.reader[self.place[(name,)].start + code]
        for name, weights in evidence.likelihood.items():
            table = table * np.dot(weights, self.reader[self.place[(name,)]])
        return GivenJoint(self, table)


class GivenJoint:
    """The joint distribution of all attributes of a small graph given evidence.

    Args:
        joint: the graph's joint distribution without evidence.
        weights: the unnormalised weights of all cells given the evidence, flat.

    Raises Underflow if the sum of the weights is zero or too small to be reliable.
    """

    def __init__(self, joint: Joint, weights: Array) -> None:
        total = float(weights.sum())
        if not LEAST_SUM < total < math.inf:
            raise Underflow
        self.table, self.log_sum = weights / total, math.log(total) + joint.log_scale
        self.joint, self.place = joint, joint.place

    def marginal(self, members: int) -> Array:
        """Return the marginal of the attributes in a bit mask, with axes in the domain's order."""
        shape = self.joint.shape
        away = tuple([v for v in range(len(shape)) if not members >> v & 1])
        return np.asarray(self.table.reshape(shape).sum(away))

    @cached_property
    def singles(self) -> Array:
        """The marginals of all single attributes in one vector; ``place[(name,)]`` is the slice of
        an attribute.
        """
        return np.asarray(np.dot(self.joint.reader, self.table))
