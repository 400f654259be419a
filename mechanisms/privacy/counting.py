"""The part of the Curator that counts: the private records, and the marginals counted so far."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mechanisms.privacy.neighbours import Neighbours
from mechanisms.queries.cells import Cell
from mechanisms.queries.predicates import Predicates
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.records.counting import check_memory
from pgmkit.records.dataset import Counts, Dataset
from pgmkit.runtime.arguments import check_whole
from pgmkit.runtime.sizes import CACHE_CELLS

_COUNTED_CELLS = 128 * CACHE_CELLS
"""The cells of marginals that are counted at once, before they are kept in a smaller type."""


class Counting:
    """The part of the Curator that counts private records exactly. Its exact counts are for other
    parts of the Curator alone; `domain` and `public_total` are public.
    """

    neighbours: Neighbours
    _data: Counts
    _counts: dict[Clique, NDArray[np.unsignedinteger[Any]]]

    @property
    def domain(self) -> Domain:
        """The data's domain (public)."""
        return self._data.domain

    @property
    def public_total(self) -> int | None:
        """The number of rows if the neighbour relation makes it public, else None."""
        return len(self._data) if self.neighbours.rows_public else None

    def _marginals(self, cliques: Sequence[Clique]) -> dict[Clique, NDArray[np.int64]]:
        counts = self._counted(cliques)
        return {clique: counts[clique].astype(np.int64) for clique in cliques}

    def _counted(
        self, cliques: Sequence[Clique]
    ) -> Mapping[Clique, NDArray[np.unsignedinteger[Any]]]:
        """Return a mapping with the counts of these cliques, and of all that were counted before,
        in the smallest integer type that holds the number of rows.

        Rounds ask for the same candidates again, so each marginal is counted once and kept.
        """
        missing = [clique for clique in cliques if clique not in self._counts]
        check_memory(missing, self.domain.sizes)
        smallest = np.min_scalar_type(len(self._data))
        blocks = np.cumsum([self.domain.size(clique) for clique in missing]) // _COUNTED_CELLS
        for _, some in groupby(zip(blocks, missing, strict=True), key=itemgetter(0)):
            counts = self._data.marginals([clique for _, clique in some])
            self._counts.update((each, table.astype(smallest)) for each, table in counts.items())
        return self._counts

    def check_in_memory(self) -> None:
        """Raise InvalidInput if the records are in an engine, such as a database, where no
        predicates are counted.
        """
        from pgmkit.tables.engines.pushdown import FrameCounts  # few runs need to load it

        if isinstance(self._data, FrameCounts):
            raise InvalidInput(
                "predicates are counted on records in memory, not in an engine; fetch the frame "
                "first, or use a mechanism without thresholds"
            )

    def _predicate_counts(self, predicates: Predicates) -> NDArray[np.int64]:
        self.check_in_memory()
        return predicates.counts(cast("Dataset", self._data))

    def _candidates(self, candidates: Sequence[Clique]) -> list[Clique]:
        cliques = [self.domain.clique(clique) for clique in candidates]
        if not cliques:
            raise InvalidInput("there is no clique to ask about; give at least one")
        return cliques

    def _checked_cells(self, cells: Collection[Cell]) -> list[Cell]:
        """Return the cells. Raises InvalidInput for one that no marginal of the domain has."""
        found = [Cell(self.domain.clique(clique, "cell"), index) for clique, index in cells]
        for clique, index in found:
            check_whole(index, f"index of a cell of {clique!r}", 0, self.domain.size(clique) - 1)
        return found
