"""The cells of several marginals, concatenated in one line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.queries.cells import Cell

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

    from pgmkit.domain import Clique, Domain

__all__ = ["CellLine", "selector"]


class CellLine:
    """The map between places in the line and cells.

    >>> from pgmkit.domain import Domain
    >>> line = CellLine(Domain({"a": 2, "b": 3}), [("a",), ("b",)])
    >>> line.size, line.cell(3)
    (5, Cell(clique=('b',), index=1))
    """

    def __init__(self, domain: Domain, cliques: Sequence[Clique]) -> None:
        self.cliques = tuple(cliques)
        self._starts = np.cumsum([0, *(domain.size(clique) for clique in cliques)])

    @property
    def size(self) -> int:
        """The number of cells."""
        return int(self._starts[-1])

    def cell(self, place: int) -> Cell:
        """Return the cell at this place."""
        owner = int(np.searchsorted(self._starts, place, side="right")) - 1
        return Cell(self.cliques[owner], int(place - self._starts[owner]))

    def without(self, cells: Collection[Cell]) -> NDArray[np.int64]:
        """Return the places of all cells except these."""
        start = dict(zip(self.cliques, self._starts.tolist(), strict=False))
        left = np.ones(self.size, dtype=bool)
        left[[start[cell.clique] + cell.index for cell in cells if cell.clique in start]] = False
        return np.flatnonzero(left)

    def joined(self, tables: Mapping[Clique, NDArray[Any]]) -> NDArray[Any]:
        """Return the tables' values in the order of the line."""
        return np.concatenate([tables[clique].reshape(-1) for clique in self.cliques])


def selector(domain: Domain, cell: Cell) -> csr_array:
    """Return the 1 x n matrix that picks the cell from its marginal."""
    from scipy.sparse import csr_array

    return csr_array(([1.0], ([0], [cell.index])), (1, domain.size(cell.clique)))
