"""The cells of all cliques in one flat vector, and the largest potential of each clique in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, starmap
from math import inf, prod

from pgmkit.contraction import kernels
from pgmkit.domain import Clique, Domain
from pgmkit.graphs.clique_index import CliqueIndex
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.sizes import CALL_CELLS
from pgmkit.structural_zeros import Zeros


class Layout:
    """The place of each clique's cells in a flat vector.

    >>> layout = Layout(Domain({"a": 2, "b": 3}), [("a",), ("a", "b")])
    >>> layout.cells, layout.slices
    (8, (slice(0, 2, None), slice(2, 8, None)))
    """

    def __init__(self, domain: Domain, cliques: Sequence[Clique]) -> None:
        self.domain, self.cliques = domain, tuple(cliques)
        self.shapes = tuple(domain.shape(clique) for clique in cliques)
        ends = list(accumulate(map(prod, self.shapes), initial=0))
        self.slices, self.cells = tuple(starmap(slice, pairwise(ends))), ends[-1]

    @cached_property
    def index(self) -> CliqueIndex:
        """An index that finds the cliques that contain given attributes."""
        return CliqueIndex(self.cliques)

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return views of a flat vector, one table for each clique. For several vectors, the rows
        of a matrix, the first axis of each table numbers them.
        """
        pairs, sets = zip(self.slices, self.shapes, strict=True), flat.shape[:-1]
        return [flat[..., cells].view((*sets, *shape)) for cells, shape in pairs]

    def join(self, tables: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the cells of these tables, one table for each clique, as one flat vector."""
        return torch.cat([table.reshape(-1) for table in tables]) if tables else torch.empty(0)


def impossible_cells(
    layout: Layout, zeros: Sequence[Zeros], device: torch.device
) -> torch.Tensor | None:
    """Return a flat Boolean vector that is True at the cells which ``zeros`` rule out, or None if
    ``zeros`` is empty. Each of them applies to every clique that contains its attributes, and has
    no effect if none does.
    """
    if not zeros:
        return None
    ruled_out = torch.zeros(layout.cells, dtype=torch.bool)
    tables = layout.split(ruled_out)
    for each in zeros:
        for place in layout.index.containing(each.clique):
            tables[place] |= torch.from_numpy(~each.within(layout.domain, layout.cliques[place]))
    return ruled_out.to(device)


@dataclass(frozen=True, eq=False)
class Shifts:
    """Operations on flat potentials that take each clique as a whole: finding its largest
    potential, and subtracting one number from all its cells.
    """

    layout: Layout
    device: torch.device

    @property
    def _few_large(self) -> bool:
        """True if one call for each clique takes less time and memory than an index of all
        cells.
        """
        return self.layout.cells > CALL_CELLS * len(self.layout.cliques)

    @cached_property
    def clique_of_cell(self) -> torch.Tensor:
        """The number of each cell's clique."""
        cells = torch.tensor([prod(shape) for shape in self.layout.shapes], device=self.device)
        return torch.repeat_interleave(torch.arange(len(cells), device=self.device), cells)

    def peaks(self, potentials: torch.Tensor) -> torch.Tensor:
        """Return each clique's largest potential, with 0 in place of minus infinity; plus infinity
        must not occur.
        """
        if kernels.on_gpu(potentials.device):
            return kernels.peaks(potentials, *self.levels)
        if self._few_large:
            peaks = torch.stack([potentials[cells].amax() for cells in self.layout.slices])
        else:
            lowest = torch.full_like(potentials[: len(self.layout.cliques)], -inf)
            peaks = lowest.scatter_reduce(0, self.clique_of_cell, potentials, "amax")
        return peaks.masked_fill(torch.isinf(peaks), 0.0)

    def subtract(
        self, potentials: torch.Tensor, shifts: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """Write the potentials, less ``shifts[i]`` at all cells of clique number i, to ``out``, and
        return ``out``.
        """
        if not self._few_large:
            return torch.sub(potentials, shifts[self.clique_of_cell], out=out)
        for cells, shift in zip(self.layout.slices, shifts.unbind(), strict=True):
            torch.sub(potentials[cells], shift, out=out[cells])
        return out

    @cached_property
    def levels(self) -> tuple[torch.Tensor, ...]:
        """The places at which the cliques' cells begin and, if some are many, those of pieces of
        them (``kernels.run_levels``).
        """
        return kernels.run_levels([prod(shape) for shape in self.layout.shapes], self.device)
