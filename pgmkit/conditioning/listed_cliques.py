"""Cliques of a calibrated junction tree that list their possible cells, if most cells are
impossible.

If tables are deterministic in part, nearly all cells of a large clique may be zero. Then only
the others are kept, and for each of them the cells of the tables that it is multiplied by and
summed into.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from pgmkit.conditioning.calibrated_cliques import Clique, Frame, ScaledEvidence
from pgmkit.conditioning.named_axes import Axes, sum_to

__all__ = ["LISTED", "ListedClique", "worth_listing"]

Array = NDArray[np.float64]
Places = NDArray[np.signedinteger]
"""Indices of cells, in 32 bits: half of what numpy uses by default."""

LISTED = 3
"""The number of cells of a whole table that are gone through in the time of one listed cell."""
_LEAST_LISTED = 1 << 9
"""The fewest cells of a table that may list those that are not zero."""
_ALL = slice(None)


class ListedClique(Clique):
    """A clique that keeps P(rest | separator) only where it is not zero.

    Args:
        frame: the clique's attributes and the order of their axes.
        cells: the flat indices of the possible cells in a table with the frame's axes; ascending.
        table: the probability of each of these cells.
    """

    def __init__(self, frame: Frame, cells: Places, table: Array) -> None:
        super().__init__(frame, table)
        self.cells = cells.astype(np.int32, copy=False)
        self._codes: dict[str, NDArray[np.unsignedinteger]] = {}
        self._places: dict[Axes, Places] = {}

    def absorb(
        self, seen: ScaledEvidence, received: Iterable[tuple[int, Array]]
    ) -> tuple[Array, Array]:
        agreeing = self._agreeing(seen.codes)
        table = self.table[agreeing]
        for name in self.rest:
            if (weights := seen.weights.get(name)) is not None:
                table = table * weights.take(self._codes_of(name)[agreeing])
        for child, message in received:
            table = table * message.take(self.cells_of(self.below[child])[agreeing])
        return table, self._read(self.separator, agreeing, table)

    def outputs_of(self, table: Array, mass: Array, seen: ScaledEvidence) -> Array:
        agreeing, joint = self._posterior(table, mass, seen)
        made: list[tuple[Axes, Array]] = [(self.axes, joint)]
        found = np.empty(self.outputs)
        for axes, source in self.readings:
            if source:
                held, values = made[source]
                read = sum_to(values.reshape(self.domain.shape(held)), held, axes).reshape(-1)
            else:
                read = self._read(axes, agreeing, joint)
            made.append((axes, read))
            if axes in self.spans:
                start, end = self.spans[axes]
                found[start:end] = read
        return found

    def joint(self, axes: Axes, table: Array, mass: Array, seen: ScaledEvidence) -> Array:
        agreeing, joint = self._posterior(table, mass, seen)
        return self._table(axes, self._flat(axes)[agreeing], joint)

    def summed(self, axes: Axes) -> Array:
        return self._table(axes, self._flat(axes), self.table)

    def prepare(self) -> None:
        for axes in self.below:
            self.cells_of(axes)

    def cells_of(self, axes: Axes) -> Places:
        """Return for every listed cell the index of its cell in a table over ``axes``; kept for the
        next time.
        """
        found = self._places.get(axes)
        if found is None:
            found = self._places[axes] = self._flat(axes)
        return found

    def _flat(self, axes: Axes) -> Places:
        """Return for every listed cell the index of its cell in a table over ``axes``."""
        found = np.zeros(len(self.cells), dtype=np.int32)
        for name in axes:
            found *= self.domain.sizes[name]
            found += self._codes_of(name)
        return found

    def _codes_of(self, name: str) -> NDArray[np.unsignedinteger]:
        """Return the attribute's code in every listed cell."""
        found = self._codes.get(name)
        if found is None:
            sizes = self.domain.shape(self.axes)
            place = self.axes.index(name)
            after = int(np.prod(sizes[place + 1 :], dtype=np.int64))
            kind = np.min_scalar_type(sizes[place] - 1)
            found = self._codes[name] = (self.cells // after % sizes[place]).astype(kind)
        return found

    def _agreeing(self, codes: Mapping[str, int]) -> Places | slice:
        """Return the places, among the listed cells, of those that agree with the evidence."""
        found: Places | slice = _ALL
        for name in self.axes:
            if name in codes:
                same = np.flatnonzero(self._codes_of(name)[found] == codes[name])
                found = same if isinstance(found, slice) else found[same]
        return found

    def _posterior(
        self, table: Array, mass: Array, seen: ScaledEvidence
    ) -> tuple[Places | slice, Array]:
        agreeing = self._agreeing(seen.codes)
        if table is self.table:
            table = table[agreeing]
        return agreeing, table * mass.take(self.cells_of(self.separator)[agreeing])

    def _read(self, axes: Axes, agreeing: Places | slice, values: Array) -> Array:
        """Return the table over ``axes``, as a vector, to which the values of the listed
        cells sum.
        """
        return _sums(self.cells_of(axes)[agreeing], values, self.domain.size(axes))

    def _table(self, axes: Axes, cells: Places, values: Array) -> Array:
        shape = self.domain.shape(axes)
        return _sums(cells, values, math.prod(shape)).reshape(shape)


def _sums(places: Places, values: Array, length: int) -> Array:
    found = np.bincount(places, values, minlength=length)
    return found.astype(np.float64, copy=False)  # of no values the result is integers


def worth_listing(cells: int, frame: Frame) -> bool:
    """True if a clique with so many possible cells answers faster by a list of them."""
    return LISTED * cells <= frame.domain.size(frame.axes) >= _LEAST_LISTED
