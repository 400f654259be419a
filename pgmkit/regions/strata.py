"""Uniform levels for the steps of a chain, any two of which are spread evenly over the records.

A record's value of an attribute is chosen by a level between 0 and 1. If all levels were drawn
independently, two independent attributes would appear related, by the sampling noise of the
records. The levels here come from randomised orthogonal arrays of strength two (Rao, 1947; Owen,
1992, "Orthogonal arrays for computer experiments, integration and visualization"): among q^m
records, each of the q x q pairs of intervals of any two columns occurs equally often. The linear
array over the integers modulo a prime q has (q^m - 1) / (q - 1) columns. The intervals of each
column are shuffled, so that three columns are no more related than independent ones.

scipy's ``LatinHypercube(strength=2)`` is the case m = 2, for q^2 records and at most q + 1 columns,
all in memory at once. Here there may be any number of records and hundreds of columns, of which one
is in memory at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgmkit.runtime.arrays import Array


class Strata:
    """The levels of ``records`` records: one level between 0 and 1 for each record and each of
    ``columns`` columns. A column has the levels by which one attribute's values are chosen. The
    levels of any two columns are spread evenly over the unit square (see the module docstring), and
    which record gets which of them is random.

    >>> strata = Strata(9, 4, np.random.default_rng(0))
    >>> first, second = (np.floor(3 * strata.levels(column)) for column in (0, 1))
    >>> np.sort(3 * first + second)
    array([0., 1., 2., 3., 4., 5., 6., 7., 8.])
    """

    def __init__(self, records: int, columns: int, rng: np.random.Generator) -> None:
        self._records, self._rng = records, rng
        order = rng.permutation(records)
        self._blocks, start = list[_Block](), 0
        for prime, exponent in _sizes(records, columns):
            stop = start + prime**exponent
            points = rng.choice(_directions(prime, exponent), columns, replace=False)
            self._blocks.append(_Block(prime, exponent, order[start:stop], points))
            start = stop

    def levels(self, column: int) -> Array:
        """Return one level for each record, uniform between 0 and 1, stratified as the class
        describes. Call this at most once for each column, since every call shuffles anew.
        """
        found = self._rng.random(self._records)
        for block in self._blocks:
            intervals = self._rng.permutation(block.prime)[block.column(column)]
            found[block.records] = (intervals + found[block.records]) / block.prime
        return found


@dataclass(frozen=True, eq=False)
class _Block:
    """The linear orthogonal array of some of the records.

    The coordinates of row i of the array are the digits of i to the base ``prime``. A column's
    entry is the scalar product, modulo ``prime``, of these coordinates with the column's direction,
    which is given by the digits of a number in ``directions``.
    """

    prime: int
    exponent: int
    records: NDArray[np.int64]
    directions: NDArray[np.int64]

    def column(self, column: int) -> NDArray[np.int64]:
        """Return the interval of each record, from 0 to ``prime`` - 1."""
        direction = int(self.directions[column])
        found = np.zeros(1, dtype=np.int64)
        for _ in range(self.exponent):
            line = np.arange(self.prime) * (direction % self.prime) % self.prime
            found = np.add.outer(line, found).reshape(-1)
            direction //= self.prime
        return found % self.prime


def _sizes(records: int, columns: int) -> list[tuple[int, int]]:
    """Return the primes and exponents of orthogonal arrays (of prime^exponent rows) that have at
    least ``columns`` columns and together no more rows than there are records. The remaining
    records are in no array.
    """
    found = []
    # As many records as possible go into arrays of exponent 2, since it gives the largest prime,
    # and so the finest intervals, of which each column has `prime`. Arrays of exponent 3 take what
    # is left, until the prime is so small that an array has too few columns. Exponents above 3
    # would give coarse intervals: some columns of an array are determined by two others, which
    # would then show in the records.
    for exponent in (2, 3):
        while (prime := _largest_prime(records, exponent)) is not None:
            if (prime**exponent - 1) // (prime - 1) < columns:
                break
            found.append((prime, exponent))
            records -= prime**exponent
    return found


def _largest_prime(limit: int, exponent: int) -> int | None:
    """Return the largest prime whose power ``exponent`` is at most the limit, or None if there is
    none.
    """
    root = round(limit ** (1 / exponent)) + 1
    found = (n for n in range(root, 1, -1) if n**exponent <= limit)
    return next((n for n in found if all(n % k for k in range(2, int(n**0.5) + 1))), None)


def _directions(prime: int, exponent: int) -> NDArray[np.int64]:
    """Return all directions of columns of an array (see ``_Block``): the numbers of at most
    ``exponent`` digits to the base ``prime`` whose leading digit is 1.
    """
    powers = [prime**place for place in range(exponent)]
    return np.concatenate([power + np.arange(power) for power in powers])
