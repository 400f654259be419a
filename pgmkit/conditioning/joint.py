"""The joint distribution of all attributes of a small graph, written out once for any evidence.

Evidence multiplies its cells by what is known of them, and the marginals of all attributes are one
product with a matrix of zeros and ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pgmkit.conditioning.calibrated_cliques import Seen
from pgmkit.conditioning.message_passing import LEAST_SUM, Underflow
from pgmkit.conditioning.written_out import product
from pgmkit.domain import Clique, Domain

__all__ = ["GivenJoint", "Joint"]

Array = NDArray[np.float64]


class Joint:
    """The product of tables.

    Args:
        domain: of all attributes.
        inputs: of each table its attributes as a set, the table with its axes in the domain's
            order, entries in [0, 1], and the log of what it was divided by.

    >>> domain = Domain({"a": 2, "b": 2})
    >>> joint = Joint(domain, [(0b01, np.array([0.5, 0.5]), 0.0), (0b11, np.eye(2), 0.0)])
    >>> joint.given(Seen({"b": 1}, {})).singles
    array([0., 1., 0., 1.])
    """

    def __init__(self, domain: Domain, inputs: Sequence[tuple[int, Array, float]]) -> None:
        self.domain = domain
        self.shape = shape = domain.shape()
        scopes, tables = [members for members, _, _ in inputs], [table for _, table, _ in inputs]
        self.table = product(scopes, tables, range(len(shape)), shape).reshape(-1)
        self.log_scale = sum([log for _, _, log in inputs])
        self.place: dict[Clique, slice] = {}
        """Where the marginal of each attribute lies among all."""
        self.reader = np.empty((sum(shape), self.table.size))
        """Of every value of an attribute and every cell, whether the cell has it."""
        end, stride, cells = 0, self.table.size, np.arange(self.table.size)
        for name, size in domain.sizes.items():
            self.place[(name,)] = slice(end, end := end + size)
            stride //= size
            np.equal(cells // stride % size, _column(size), out=self.reader[end - size : end])

    def given(self, seen: Seen) -> GivenJoint:
        """The distribution given the evidence; Underflow where it is impossible or nearly so."""
        table = self.table
        for name, code in seen.codes.items():
            table = table * self.reader[self.place[(name,)].start + code]
        for name, weights in seen.weights.items():
            table = table * np.dot(weights, self.reader[self.place[(name,)]])
        total = float(np.add.reduce(table))
        if not LEAST_SUM < total < math.inf:
            raise Underflow
        return GivenJoint(self, table / total, math.log(total) + self.log_scale)


class GivenJoint:
    """Probabilities of all cells, and log of what they were divided by."""

    def __init__(self, joint: Joint, table: Array, log_sum: float) -> None:
        self.joint, self.table, self.log_sum = joint, table, log_sum
        self.place = joint.place

    @cached_property
    def singles(self) -> Array:
        """The marginals of all attributes, where ``place`` says."""
        return np.dot(self.joint.reader, self.table)

    def marginal(self, members: int) -> Array:
        """The marginal of any attributes, axes in the domain's order."""
        shape = self.joint.shape
        away = tuple([axis for axis in range(len(shape)) if not members >> axis & 1])
        return np.asarray(self.table.reshape(shape).sum(away))


def _column(size: int) -> NDArray[np.int64]:
    return np.arange(size)[:, None]
