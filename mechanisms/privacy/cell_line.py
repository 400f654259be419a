"""The cells of several marginals, concatenated in one line."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.queries.cells import Cell

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from scipy.sparse import csr_array

    from pgmkit.domain import Clique, Domain
    from pgmkit.measurement import Measurement

__all__ = ["CellLine", "measured_cell", "selector"]


class CellLine:
    """The map between places in the line and cells.

    >>> from pgmkit.domain import Domain
    >>> line = CellLine(Domain({"a": 2, "b": 3}), [("a",), ("b",)])
    >>> line.size, line.cell(3)
    (5, Cell(clique=('b',), index=1))

    With `codes`, only cells of these codes are in the line; an attribute left out keeps all.

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
        self._codes = {name: np.asarray(some) for name, some in (codes or {}).items()}
        sizes = {**domain.sizes, **{name: len(some) for name, some in self._codes.items()}}
        self._shapes = {c: tuple(sizes[name] for name in c) for c in self.cliques}
        self._starts = np.cumsum([0, *(math.prod(self._shapes[c]) for c in self.cliques)])

    def shape(self, clique: Clique) -> tuple[int, ...]:
        """Return the shape of the clique's table with the kept codes only."""
        return self._shapes[clique]

    def part(self, clique: Clique, table: NDArray[Any]) -> NDArray[Any]:
        """Return the kept part of a whole table of the clique."""
        if not any(name in self._codes for name in clique):
            return table
        every = {name: np.arange(size) for name, size in self._domain.sizes.items()}
        return table[np.ix_(*({**every, **self._codes}[name] for name in clique))]

    @property
    def size(self) -> int:
        """The number of cells."""
        return int(self._starts[-1])

    def cell(self, place: int) -> Cell:
        """Return the cell at this place."""
        owner = int(np.searchsorted(self._starts, place, side="right")) - 1
        clique = self.cliques[owner]
        at = np.unravel_index(int(place - self._starts[owner]), self.shape(clique))
        codes = [
            self._codes[name][i] if name in self._codes else i
            for name, i in zip(clique, at, strict=True)
        ]
        whole = np.ravel_multi_index(codes, self._domain.shape(clique)) if clique else 0
        return Cell(clique, int(whole))

    def without(self, cells: Collection[Cell]) -> NDArray[np.int64]:
        """Return the places of all cells except these."""
        start = dict(zip(self.cliques, self._starts.tolist(), strict=False))
        left = np.ones(self.size, dtype=bool)
        for cell in cells:
            if cell.clique not in start:
                continue
            codes = np.unravel_index(cell.index, self._domain.shape(cell.clique))
            at = [
                np.flatnonzero(self._codes[name] == code) if name in self._codes else [code]
                for name, code in zip(cell.clique, codes, strict=True)
            ]
            if all(map(len, at)):
                shape = self._shapes[cell.clique]
                inside = np.ravel_multi_index([i[0] for i in at], shape) if at else 0
                left[start[cell.clique] + int(inside)] = False
        return np.flatnonzero(left)

    def joined(self, tables: Mapping[Clique, NDArray[Any]]) -> NDArray[Any]:
        """Return the tables' values in the order of the line."""
        return np.concatenate([tables[clique].reshape(-1) for clique in self.cliques])


def selector(domain: Domain, cell: Cell) -> csr_array:
    """Return the 1 x n matrix that picks the cell from its marginal."""
    from scipy.sparse import csr_array

    return csr_array(([1.0], ([0], [cell.index])), (1, domain.size(cell.clique)))


def measured_cell(measurement: Measurement) -> tuple[Clique, int]:
    """Return the clique and the index of the cell that a measurement from `Curator.measure_cells`
    is about.
    """
    selector: Any = measurement.matrix
    return measurement.clique, int(selector.nonzero()[1][0])
