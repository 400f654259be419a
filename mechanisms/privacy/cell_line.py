"""The cells of several marginals, concatenated in one line."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from mechanisms.queries.cells import Cell
from pgmkit.domain import Clique, Domain
from pgmkit.measurement import Measurement


class CellLine:
    """The cells of the tables of some cliques, numbered by their places in one line: table after
    table, each in C order.

    >>> from pgmkit.domain import Domain
    >>> line = CellLine(Domain({"a": 2, "b": 3}), [("a",), ("b",)])
    >>> line.size, line.cell(3)
    (5, Cell(clique=('b',), index=1))

    With `codes`, only cells of these codes are in the line; an attribute that is left out of
    `codes` keeps all its codes.

    >>> line = CellLine(Domain({"a": 2, "b": 3}), [("a",), ("b",)], {"b": [0, 2]})
    >>> line.size, line.cell(3)
    (4, Cell(clique=('b',), index=2))
    """

    def __init__(
        self,
        domain: Domain,
        cliques: Sequence[Clique],
        codes: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        self.cliques = tuple(cliques)
        self._domain = domain
        every = {name: np.arange(size) for name, size in domain.sizes.items()}
        self._codes = {**every, **{name: np.asarray(some) for name, some in (codes or {}).items()}}
        starts = np.cumsum([0, *(math.prod(self.shape(c)) for c in self.cliques)])
        # `starts` has the place of the first cell of each clique; `size` is the number of cells.
        self.starts, self.size = starts[:-1], int(starts[-1])

    def shape(self, clique: Clique) -> tuple[int, ...]:
        """Return the shape of the clique's table with the kept codes only."""
        return tuple(len(self._codes[name]) for name in clique)

    def part(self, clique: Clique, table: NDArray[Any]) -> NDArray[Any]:
        """Return the cells of a whole table of the clique that have the kept codes. A table that
        has only these cells already is returned as it is.
        """
        if table.shape == self.shape(clique):
            return table
        return table[np.ix_(*(self._codes[name] for name in clique))]

    def cell(self, place: int) -> Cell:
        """Return the cell at this place of the line. The cell's index is its place in the whole
        table of its clique, which has all codes.
        """
        owner = int(np.searchsorted(self.starts, place, side="right")) - 1
        clique = self.cliques[owner]
        at = np.unravel_index(int(place - self.starts[owner]), self.shape(clique))
        codes = [self._codes[name][i] for name, i in zip(clique, at, strict=True)]
        whole = np.ravel_multi_index(codes, self._domain.shape(clique)) if clique else 0
        return Cell(clique, int(whole))

    def without(self, cells: Collection[Cell]) -> NDArray[np.int64]:
        """Return the places of all cells of the line that are not among `cells`, in rising order.
        Cells of `cells` that are not in the line are ignored.
        """
        left = {c: np.ones(self._domain.shape(c), dtype=bool) for c in self.cliques}
        for clique, index in cells:
            if clique in left:
                left[clique].flat[index] = False
        return np.flatnonzero(self.joined({c: self.part(c, each) for c, each in left.items()}))

    def joined(self, tables: Mapping[Clique, NDArray[Any]]) -> NDArray[Any]:
        """Return the values of the cliques' tables, which have the kept codes only, in the order of
        the line.
        """
        return np.concatenate([tables[clique].reshape(-1) for clique in self.cliques])


def selector(domain: Domain, cell: Cell) -> csr_array:
    """Return the 1 x n matrix that picks the cell from its marginal."""
    return csr_array(([1.0], ([0], [cell.index])), (1, domain.size(cell.clique)))


def measured_cell(measurement: Measurement) -> Cell:
    """Return the cell that was measured.

    The measurement must be one from `Curator.measure_cells`: its matrix picks a single cell.
    """
    selector: Any = measurement.matrix
    return Cell(measurement.clique, int(selector.nonzero()[1][0]))


def index_among(
    domain: Domain, cell: Cell, codes: Mapping[str, NDArray[np.integer[Any]]]
) -> tuple[int, ...]:
    """Return the index of a cell, one number for each attribute of its clique, in the clique's
    table of these codes alone.

    The cell's codes must be among `codes`, which are in rising order; an attribute that is left out
    keeps all its codes.

    >>> from pgmkit.domain import Domain
    >>> index_among(Domain({"a": 2, "b": 3}), Cell(("a", "b"), 5), {"b": np.array([0, 2])})
    (1, 1)
    """
    whole = np.unravel_index(cell.index, domain.shape(cell.clique))
    return tuple(
        int(np.searchsorted(codes[name], code) if name in codes else code)
        for name, code in zip(cell.clique, whole, strict=True)
    )
