"""Cliques of a calibrated junction tree of which most cells are impossible: the others listed.

Where tables are deterministic in part, nearly all cells of a large clique may be zero. Then each
of the others has a number, and what its table is multiplied by, and summed to, is looked up for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pgmkit.conditioning.calibrated_cliques import Clique, Frame, Seen
from pgmkit.conditioning.message_passing import Underflow
from pgmkit.conditioning.named_axes import Axes, sum_to

__all__ = ["LISTED", "ListedClique", "leave_out_impossible", "worth_listing"]

Array = NDArray[np.float64]
Places = NDArray[np.signedinteger]
"""Numbers of cells; kept in 32 bits, half of what numpy counts by."""

LISTED = 3
"""Cells that are gone through as fast as one that is listed."""
_LEAST_LISTED = 1 << 9
"""Cells of a table that may list those that are not zero."""
_ALL = slice(None)


class ListedClique(Clique):
    """P(rest | separator) where it is not zero.

    Args:
        frame: of the clique.
        cells: flat, of a table whose axes are as the frame says; ascending.
        table: of each of them.
        possible: of separators, the cells that vectors over them have, ascending; all where a
            separator has none here.
    """

    def __init__(
        self,
        frame: Frame,
        cells: Places,
        table: Array,
        possible: Mapping[Axes, Places] | None = None,
    ) -> None:
        self.possible = possible or {}
        super().__init__(frame, table)
        self.cells = cells.astype(np.int32, copy=False)
        self._codes: dict[str, NDArray[np.unsignedinteger]] = {}
        self._places = {axes: self._numbered(axes, left) for axes, left in self.possible.items()}

    def length(self, axes: Axes) -> int:
        found = self.possible.get(axes)
        return super().length(axes) if found is None else len(found)

    def absorb(self, seen: Seen, received: Iterable[tuple[int, Array]]) -> tuple[Array, Array]:
        agreeing = self._agreeing(seen.codes)
        table = self.table[agreeing]
        for name in self.rest:
            if (weights := seen.weights.get(name)) is not None:
                table = table * weights.take(self._codes_of(name)[agreeing])
        for child, message in received:
            table = table * message.take(self.cells_of(self.below[child])[agreeing])
        return table, self._read(self.separator, agreeing, table)

    def outputs_of(self, table: Array, mass: Array, seen: Seen) -> Array:
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

    def joint(self, axes: Axes, table: Array, mass: Array, seen: Seen) -> Array:
        agreeing, joint = self._posterior(table, mass, seen)
        return self._table(axes, self._flat(axes)[agreeing], joint)

    def summed(self, axes: Axes) -> Array:
        return self._table(axes, self._flat(axes), self.table)

    def left(self, mass: Array) -> tuple[Places, Array]:
        held = np.flatnonzero(mass.take(self.cells_of(self.separator)) > 0)
        return self.cells[held], self.table[held]

    def prepare(self) -> None:
        for axes in self.below:
            self.cells_of(axes)

    def forget(self) -> None:
        """Where cells are read; it is found again when it is asked for."""
        self._codes.clear()
        for axes in self._places.keys() - self.possible.keys():
            del self._places[axes]

    def cells_of(self, axes: Axes) -> Places:
        """For every cell of the clique the cell of a vector over some of its attributes."""
        found = self._places.get(axes)
        if found is None:
            found = self._places[axes] = self._flat(axes)
        return found

    def _flat(self, axes: Axes) -> Places:
        """For every cell of the clique the cell of a table over some of its attributes."""
        found = np.zeros(len(self.cells), dtype=np.int32)
        for name in axes:
            found *= self.domain.sizes[name]
            found += self._codes_of(name)
        return found

    def _numbered(self, axes: Axes, possible: Places) -> Places:
        """For every cell of the clique the number of the possible cell of a separator."""
        number = np.full(self.domain.size(axes), -1, dtype=np.int32)
        number[possible] = np.arange(len(possible), dtype=np.int32)
        found: Places = number[self._flat(axes)]
        if found.min(initial=0) < 0:  # it has become so unlikely that it was lost
            raise Underflow
        return found

    def _codes_of(self, name: str) -> NDArray[np.unsignedinteger]:
        """The attribute's value in every cell."""
        found = self._codes.get(name)
        if found is None:
            sizes = self.domain.shape(self.axes)
            place = self.axes.index(name)
            after = int(np.prod(sizes[place + 1 :], dtype=np.int64))
            kind = np.min_scalar_type(sizes[place] - 1)
            found = self._codes[name] = (self.cells // after % sizes[place]).astype(kind)
        return found

    def _agreeing(self, codes: Mapping[str, int]) -> Places | slice:
        """The numbers of the cells that agree with the evidence."""
        found: Places | slice = _ALL
        for name in self.axes:
            if name in codes:
                same = np.flatnonzero(self._codes_of(name)[found] == codes[name])
                found = same if isinstance(found, slice) else found[same]
        return found

    def _posterior(self, table: Array, mass: Array, seen: Seen) -> tuple[Places | slice, Array]:
        agreeing = self._agreeing(seen.codes)
        if table is self.table:
            table = table[agreeing]
        return agreeing, table * mass.take(self.cells_of(self.separator)[agreeing])

    def _read(self, axes: Axes, agreeing: Places | slice, values: Array) -> Array:
        """The sums over all cells that share a cell of a vector over some of the attributes."""
        return _sums(self.cells_of(axes)[agreeing], values, self.length(axes))

    def _table(self, axes: Axes, cells: Places, values: Array) -> Array:
        shape = self.domain.shape(axes)
        return _sums(cells, values, math.prod(shape)).reshape(shape)


def _sums(places: Places, values: Array, length: int) -> Array:
    found = np.bincount(places, values, minlength=length)
    return found.astype(np.float64, copy=False)  # of no values it counts whole numbers


def leave_out_impossible(
    cliques: list[Clique], parents: Sequence[int], children: Sequence[Sequence[int]]
) -> None:
    """List the possible cells of cliques that have few, in their places.

    Args:
        cliques: of a calibrated tree, parents before children.
        parents, children: of each.

    Raises Underflow where a possible cell is too unlikely to be told from others.
    """
    mass = {here: np.ones(1) for here, above in enumerate(parents) if above < 0}
    listed: dict[int, ListedClique] = {}
    for here, clique in enumerate(cliques):
        cells, table = clique.left(mass[here])
        if worth_listing(len(cells), clique.frame):
            cliques[here] = listed[here] = clique = ListedClique(clique.frame, cells, table)
        outputs = clique.outputs_of(clique.table, mass[here], Seen({}, {}))
        if here in listed:
            listed[here].forget()
        for child, axes in zip(children[here], clique.below, strict=True):
            start, end = clique.spans[axes]
            mass[child] = outputs[start:end]
    possible = {
        clique.separator: cells
        for here, clique in listed.items()
        if len(clique.separator) > 1  # of an attribute all values are read
        and len(mass[here]) >= _LEAST_LISTED
        and 2 * len(cells := np.flatnonzero(mass[here])) <= len(mass[here])
    }
    for here, above in enumerate(parents):
        if not (here in listed and above in listed):
            possible.pop(cliques[here].separator, None)
    for here, clique in listed.items():
        held = {axes: possible[axes] for axes in {clique.separator, *clique.below} & {*possible}}
        if held:
            made = cliques[here] = ListedClique(clique.frame, clique.cells, clique.table, held)
            made.forget()


def worth_listing(cells: int, frame: Frame) -> bool:
    """Whether a clique of which so many cells are not zero answers sooner by a list of them."""
    return LISTED * cells <= frame.domain.size(frame.axes) >= _LEAST_LISTED
