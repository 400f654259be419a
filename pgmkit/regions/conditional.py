"""One attribute given others: the maximum-entropy conditional distribution with given tables.

It is a multinomial logistic regression with the tables t_c as its sufficient statistics:

    minimise  mean_n log sum_v exp(sum_c theta_c[x_n, v])
              - sum_c <theta_c, t_c> + sum slack theta^2 / 2

over one table theta_c of parameters for each t_c; n runs over records x_n, v over the possible
values. Its dual maximises the entropy of distributions whose tables may differ from the given ones,
by theta times the slack. The slack of a cell has two parts: ``_NOISE`` times the variance of its
measurement, but at most ``FOLLOWED`` times the mean cell of its table, and the variance of a sample
of records. Without a slack the search would fit noise that no joint distribution can have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique
from pgmkit.least_squares.conjugate_gradients import solution
from pgmkit.regions.possible import Possible
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ROUNDS, ROUGHLY_SOLVED, SUFFICIENT
from pgmkit.runtime.precision import HALVINGS

if TYPE_CHECKING:
    from scipy.sparse import csr_array


_NOISE = 100.0
"""The first part of the slack, in units of the variance of a measured cell. It is above 1 since
tables that are noisy in many cells contradict each other by more than their own noise. Between 10
and 100 the distance of records from the tables changes by a twentieth; 1 takes many times as long.
"""
FOLLOWED = 0.01
"""The largest slack of a cell, as a share of the mean cell of its table. If a table has e times the
count that the other tables imply for a cell, the fitted count differs from the table's by at most
this share of a mean cell. So a table that its own measurements determine only in part is still
fitted, if better known tables permit it.
"""
_FALL = FOLLOWED**2
"""The search ends when a step lowers the objective by less than this, in nats for each record; the
objective changes by the square of a change of probabilities.
"""


@dataclass(frozen=True, eq=False)
class Statistics:
    """A target table, in fractions, over the attributes ``given`` and, as its last axis, the
    attribute to be drawn. ``variance`` is that of the noise of one cell, in squared fractions.
    """

    given: Clique
    table: Array
    variance: float


@dataclass(frozen=True, eq=False)
class Conditional:
    """The probabilities of an attribute's values given other attributes: the softmax, over the
    possible values, of the sum of one row of each parameter table.

    ``given`` are the attributes that select the row of each table; ``theta`` are the tables, one
    below the other, with a column for each value; ``starts`` has the first row of each table;
    ``possible`` are masks that rule out values.
    """

    given: tuple[Clique, ...]
    theta: Array
    starts: NDArray[np.int64]
    possible: tuple[Possible, ...] = ()

    @property
    def scopes(self) -> tuple[Clique, ...]:
        """The sets of attributes on which the probabilities depend: those of each parameter table,
        then those of each mask. Column c of the argument of ``chances`` is a record's flat cell
        over set c.
        """
        return scopes(self.given, self.possible)

    def chances(self, cells: NDArray[np.int64]) -> Array:
        """Return the probabilities of all values, a row for each row of ``cells``, whose columns
        are flat cells over ``scopes``. At least one value must be possible in each row.
        """
        logits = np.zeros((len(cells), self.theta.shape[1]))
        for column, start in zip(cells.T, self.starts, strict=False):
            logits += self.theta[start + column]
        _softmax(logits, ~allowed(cells, self.possible, logits.shape[1]))
        return logits


def scopes(given: Sequence[Clique], possible: Sequence[Possible]) -> tuple[Clique, ...]:
    """Return the sets of attributes ``given``, then those of the masks ``possible``."""
    return (*given, *(each.given for each in possible))


def allowed(cells: NDArray[np.int64], possible: Sequence[Possible], size: int) -> NDArray[np.bool_]:
    """Return a mask of the values that are possible for each row of ``cells``, of shape (rows,
    ``size``). The last columns of ``cells`` are the flat cells over the attributes of each mask in
    ``possible``.
    """
    found = np.ones((len(cells), size), dtype=np.bool_)
    for place, each in enumerate(reversed(possible), 1):
        found &= each.table[cells[:, -place]]
    return found


def _softmax(logits: Array, ruled_out: NDArray[np.bool_]) -> Array:
    """Replace each row of ``logits`` by the probabilities proportional to their exponentials, zero
    where ``ruled_out`` is True. Return the logarithm of the sum of each row's exponentials, without
    those that are ruled out. At least one entry of each row must not be ruled out.
    """
    logits[ruled_out] = -np.inf
    highest = logits.max(axis=1, keepdims=True)
    logits -= highest
    np.exp(logits, out=logits)
    sums = logits.sum(axis=1, keepdims=True)
    logits /= sums
    return np.asarray((highest + np.log(sums))[:, 0])


def fit(
    cells: NDArray[np.int64],
    counts: NDArray[np.int64],
    size: int,
    statistics: Sequence[Statistics],
    possible: Sequence[Possible] = (),
) -> Conditional:
    """Return the conditional distribution of maximum entropy of an attribute of ``size`` values.

    The expected tables of the records under this distribution, in fractions, agree with the
    tables of ``statistics``, as closely as their noise warrants: the penalty of the module
    docstring increases with each table's ``variance``, up to a limit.

    The records are grouped: ``counts[k]`` records are in group k, and ``cells[k, c]`` is their flat
    cell over the attributes ``statistics[c].given``. The further columns of ``cells`` are their
    flat cells over the attributes of each mask in ``possible``, which must leave at least one value
    to every group. Without statistics all possible values have the same probability.

    >>> table = Statistics(("a",), np.array([[0.4, 0.1], [0.1, 0.4]]), 0.0)
    >>> kinds = np.array([[0], [1]])
    >>> fit(kinds, np.array([500, 500]), 2, [table]).chances(kinds).round(2)
    array([[0.8, 0.2],
           [0.2, 0.8]])
    """
    from scipy.sparse import csr_array

    flat = [each.table.reshape(-1, size) for each in statistics]
    rows_of = [len(table) for table in flat]
    starts = np.cumsum([0, *rows_of])[:-1]
    given = tuple(each.given for each in statistics)
    if not statistics:
        return Conditional(given, np.zeros((0, size)), starts, tuple(possible))
    wanted = np.concatenate(flat)
    followed = [min(_NOISE * each.variance, FOLLOWED / each.table.size) for each in statistics]
    indices = (cells[:, : len(flat)] + starts).reshape(-1)
    pointers = np.arange(0, len(indices) + 1, len(flat))
    rows = csr_array((np.ones(len(indices)), indices, pointers), shape=(len(cells), len(wanted)))
    records = float(counts.sum())
    floored = wanted + 1 / (records * size)
    slack = floored / records + np.repeat(followed, rows_of)[:, None]
    ruled_out = ~allowed(cells, possible, size)
    theta = _Regression(rows, counts / records, wanted, slack, ruled_out).minimise(floored)
    return Conditional(given, theta, starts, tuple(possible))


@dataclass(frozen=True, eq=False)
class _Regression:
    """The regression problem: sparse indicator rows, one for each group of records, weighted by the
    group's share of the records; the wanted statistics; the slack of each parameter; and a mask of
    the values that are impossible in each row.
    """

    rows: csr_array
    weights: Array
    wanted: Array
    slack: Array
    ruled_out: NDArray[np.bool_]

    @cached_property
    def across(self) -> csr_array:
        """The transposed rows, each entry multiplied by the weight of its row."""
        across = self.rows.T.tocsr()
        across.data = self.weights[across.indices]
        return across

    def minimise(self, floored: Array) -> Array:
        """Return the parameters that minimise the objective. Truncated Newton steps start where all
        groups have the attribute's one-way marginal. ``floored`` are the wanted statistics, in
        fractions, with a positive constant added to every cell, so that their logarithms are
        finite.
        """
        tables = int(self.rows.indptr[1])
        theta = np.zeros_like(floored) + np.log(floored.sum(0) / floored.sum()) / tables
        shares, value = self._chances(theta)
        for _ in range(MOST_ROUNDS):
            direction, falling = self._direction(theta, shares)
            step = 1.0
            for _ in range(HALVINGS):
                trial = theta + step * direction
                shares, lower = self._chances(trial)
                if lower <= value + SUFFICIENT * step * falling:
                    break
                step /= 2
            else:
                break
            theta, fell, value = trial, value - lower, lower
            if fell < _FALL:
                break
        return theta

    def _chances(self, theta: Array) -> tuple[Array, float]:
        """Return the probability of every value in every row, and the objective's value."""
        shares = self.rows @ theta
        free = float(self.weights @ _softmax(shares, self.ruled_out))
        return shares, free + float((theta * (self.slack * theta / 2 - self.wanted)).sum())

    def _direction(self, theta: Array, shares: Array) -> tuple[Array, float]:
        """Return Newton's direction, solved approximately by conjugate gradients, and the slope
        along it.
        """
        reached = self.across @ shares
        slope = (reached - self.wanted + self.slack * theta).reshape(-1)

        def curve(vector: Array) -> Array:
            table = vector.reshape(theta.shape)
            moved = shares * (self.rows @ table)
            moved -= shares * moved.sum(axis=1, keepdims=True)
            return np.asarray((self.across @ moved + self.slack * table).reshape(-1))

        diagonal = (reached + self.slack).reshape(-1)
        direction = solution(curve, -slope, diagonal, ROUGHLY_SOLVED, MOST_ROUNDS)
        return direction.reshape(theta.shape), float(slope @ direction)
