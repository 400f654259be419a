"""Records that structural zeros allow, drawn one attribute after the other.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset
from pgmkit.regions.conditional import Conditional, allowed, scopes
from pgmkit.regions.possible import Possible
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ROUNDS
from pgmkit.runtime.sizes import CALL_CELLS, TABLE_CELLS

Codes = NDArray[np.int64]
Columns = dict[str, Codes]


@dataclass(frozen=True, eq=False)
class Chain:
    """A joint distribution as a chain of conditional distributions.

    Each of the ``steps`` draws an attribute given those drawn before it; a later step may draw it
    again, given all others. A record for which zeros leave no value of some attribute is discarded
    and another one drawn.
    """

    domain: Domain
    steps: tuple[tuple[str, Conditional], ...]

    def sample(self, n: int, rng: np.random.Generator) -> Dataset:
        """Draw ``n`` records, in random order.

        Raises ``InvalidInput`` if structural zeros leave no value of some attribute for nearly all
        records that are drawn.
        """
        return Dataset(self.domain, enough(lambda m: self.drawn(m, rng), n))

    def drawn(self, n: int, rng: np.random.Generator) -> Columns:
        """Draw ``n`` records, and return the columns of those, perhaps fewer, for which zeros leave
        a value of every attribute.
        """
        strata, rows = Strata(n, len(self.steps), rng), np.arange(n)
        columns: Columns = {}
        for place, (name, conditional) in enumerate(self.steps):
            some = has_possible_value(self.domain, name, conditional.possible, columns, len(rows))
            if not some.all():
                rows = rows[some]
                columns = {key: codes[some] for key, codes in columns.items()}
            cells = cells_of(self.domain, conditional.scopes, columns, len(rows))
            columns[name] = Kinds(cells, strata.levels(place)[rows]).pick(conditional)
        return columns


def has_possible_value(
    domain: Domain, name: str, possible: Sequence[Possible], columns: Columns, records: int
) -> NDArray[np.bool_]:
    """Return a mask of the records, given by their ``columns``, for which the masks ``possible``
    allow some value of the attribute ``name``.
    """
    if not possible:
        return np.ones(records, dtype=np.bool_)
    cells = cells_of(domain, scopes((), possible), columns, records)
    return np.asarray(allowed(cells, possible, domain.sizes[name]).any(axis=1))


def enough(draw: Callable[[int], Columns], n: int) -> Columns:
    """Return the columns of ``n`` records. ``draw(m)`` draws m records and returns the columns of
    those for which zeros left a value of every attribute; it is called until there are ``n``, first
    with ``n`` itself.

    Raises ``InvalidInput`` if ``MOST_ROUNDS`` further calls, for at least ``n`` records each, are
    too few.
    """
    parts, found = list[Columns](), 0
    for size in (n, *[max(n, CALL_CELLS)] * MOST_ROUNDS):
        parts.append(draw(size))
        found += length_of(parts[-1], n)
        if len(parts) == 1 and found == n:
            return parts[0]
        if found >= n:
            return {name: np.concatenate([part[name] for part in parts])[:n] for name in parts[0]}
    raise InvalidInput(
        f"the structural zeros left only {found:,} of {n + MOST_ROUNDS * max(n, CALL_CELLS):,} "
        f"records with a value for every attribute, and {n:,} are needed: an attribute is drawn "
        "before it is known that zeros leave no value of a later one; join zeros that overlap into "
        'one over all their attributes, allow more, or measure less and use inference="exact"'
    )


def length_of(columns: Columns, unknown: int) -> int:
    """Return the number of records in these columns; ``unknown`` if there is no column."""
    return len(next(iter(columns.values()))) if columns else unknown


class Kinds:
    """Records grouped by kind: records are of one kind if they lie in the same cell of every table
    on which the distribution of the attribute to be drawn depends.

    The argument ``cells`` has a row for each record, with the index of its cell in each of these
    tables, and ``levels`` has one number for each record, uniform between 0 and 1
    (``Strata``). The attributes ``cells`` and ``counts`` hold the cells and the
    number of records of each kind.
    """

    def __init__(self, cells: Codes, levels: Array) -> None:
        self._order = np.argsort(levels)
        for column in cells.T:
            # numpy sorts keys of at most 16 bits by radix, which is faster than by comparison.
            key = column[self._order].astype(np.min_scalar_type(column.max(initial=0)))
            self._order = self._order[np.argsort(key, kind="stable")]
        ordered = cells[self._order]
        first = np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)][: len(cells)]
        self._kind, self._levels = np.cumsum(first) - 1, levels[self._order]
        self._starts = np.flatnonzero(first)
        self.cells, self.counts = ordered[first], np.bincount(self._kind)

    def pick(self, conditional: Conditional) -> Codes:
        """Draw a value for each record from its conditional distribution.

        The records of a kind, in the order of their levels, get values by systematic sampling, so
        that the count of each value differs from its expectation by less than one record. The
        sample starts at the sum of their levels modulo 1, which is uniform; for the only record of
        a kind this is its level. The probabilities of all values are computed for a block of
        records at a time, of at most `TABLE_CELLS` numbers, but at least one record.
        """
        offsets = np.bincount(self._kind, weights=self._levels) % 1.0
        ranks = np.arange(len(self._order)) - self._starts[self._kind]
        level = (ranks + offsets[self._kind]) / self.counts[self._kind]
        picked = np.empty(len(self._order), dtype=np.int64)
        step = max(1, TABLE_CELLS // conditional.theta.shape[1])
        for part in (slice(start, start + step) for start in range(0, len(picked), step)):
            first, last = self._kind[part][[0, -1]]
            chances = conditional.chances(self.cells[first : last + 1])
            kind = self._kind[part] - first
            highest = chances.shape[1] - 1 - np.argmax(chances[:, ::-1] > 0, axis=1)
            below = chances.cumsum(axis=1)[kind] <= level[part, None]
            # Rounding may leave the sum of the probabilities below the level; the record then gets
            # the last possible value.
            picked[self._order[part]] = np.minimum(below.sum(axis=1), highest[kind])
        return picked


def cells_of(
    domain: Domain, cliques: Sequence[Clique], columns: Mapping[str, NDArray[Any]], records: int
) -> Codes:
    """Return the flat index of each record's cell in the table of each clique, as an array of shape
    (records, cliques).
    """
    cells = np.zeros((records, len(cliques)), dtype=np.int64)
    for place, clique in enumerate(cliques):
        for name in clique:
            cells[:, place] = cells[:, place] * domain.sizes[name] + columns[name]
    return cells


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
