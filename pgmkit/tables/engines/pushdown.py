"""Marginals of a frame in an engine, which counts them there in as few passes as possible.

One pass counts every table that is asked for, and those expected to be asked for later, as far as
memory allows. Tables of subsets of counted columns are sums of counted tables.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput, without_quotes
from pgmkit.graphs.clique_index import CliqueIndex, maximal
from pgmkit.records.counting import check_memory
from pgmkit.runtime.sizes import TABLE_CELLS
from pgmkit.tables.engines.scan import Codec, Scan, engine_of
from pgmkit.tables.schema import Schema

SCAN_CELLS = 2 * TABLE_CELLS
"""The most cells that one pass counts (64 MiB of counts in every worker), unless a single table is
larger.
"""


class FrameCounts:
    """Exact counts over a lazy frame, with the methods that a Dataset has for counting.

    The first pass counts every column, the constraints' columns, and as many `expected` cliques, in
    their order, as one pass may count: so values outside the schema are found before anything is
    answered. Expected cliques that were not counted are added to later passes. With `keep` the
    first pass stores the codes, where the engine keeps what it persists, so that later passes need
    not code the columns again. Counted tables are kept for the life of this object.

    `scans`: the number of passes so far. `library`: the library of the frame. `domain`: the
    schema's domain. `unread`: for each column the number of values that have no code of their own.

    Raises InvalidInput (unless `Schema.placed` made the schema) for values outside the schema,
    broken constraints and a frame without rows; InvalidInput also if a later pass finds another
    number of rows, or of values without a code, than the first; EngineFailed if a pass fails in the
    engine.
    """

    def __init__(
        self,
        frame: nw.LazyFrame[Any],
        schema: Schema,
        expected: Iterable[Iterable[str]] = (),
        *,
        keep: bool = False,
    ) -> None:
        self.library = frame.implementation
        self.domain = schema.domain
        self._columns, self._kept = schema.columns, keep
        self._engine = engine_of(frame, list(schema.columns))
        if keep:
            self._engine = self._engine.kept(Codec(schema.columns))
        self.unread: dict[str, int] = {}
        self._tables: dict[Clique, NDArray[np.int64]] = {}
        self._index = CliqueIndex([])
        self._expected = [self.domain.ordered(each) for each in expected]
        self._rows = self.scans = 0
        zeros = [] if not schema.checked else [zeros.clique for zeros in schema.zeros]
        self._count([(), *((name,) for name in schema.columns), *zeros])
        schema.check_unread(self.unread)
        schema.check_rows(self._rows)
        schema.check_constraints(self)

    def __len__(self) -> int:
        return self._rows

    def marginal(self, attrs: Iterable[str]) -> NDArray[np.int64]:
        """Return the int64 counts over the attributes (read-only), with axes in their order. Raises
        ModelTooLarge as a `Dataset` does.
        """
        clique = self.domain.clique(attrs)
        return self.marginals([clique])[clique]

    def marginals(self, cliques: Iterable[Iterable[str]]) -> dict[Clique, NDArray[np.int64]]:
        """Return many marginals (read-only), counted together in one pass if they fit.

        Raises ModelTooLarge as a `Dataset` does.
        """
        asked = [self.domain.clique(clique) for clique in cliques]
        check_memory(dict.fromkeys(asked), self.domain.sizes)
        self._count([self.domain.ordered(clique) for clique in asked])
        return {clique: self._table(clique) for clique in asked}

    def _count(self, cliques: Iterable[Clique]) -> None:
        """Pass over the records until all these tables are known. Raises InvalidInput if a later
        pass finds another number of values without a code, or tables of another sum, and
        EngineFailed if the engine fails.
        """
        needed = list(cliques)
        while needed := [clique for clique in needed if self._holder(clique) is None]:
            fitting = self._next(needed)
            chosen = [fitting[place] for place in maximal(fitting)]
            first = self.scans == 0
            # Later passes read only the columns that they count.
            read = [n for n in self.domain if first or any(n in clique for clique in chosen)]
            codec = Codec({name: self._columns[name] for name in read}, self._kept)
            scan = Scan(codec, tuple(chosen))
            line = without_quotes(
                f"{self.library.name.lower()} failed in pass {self.scans + 1} over the records, in "
                "which nothing was counted (once the engine runs again, give its frame anew)",
                self._engine.line,
                scan,
            )
            self.scans += 1
            unread = dict(zip(read, line[: len(read)].tolist(), strict=True))
            if first:
                self.unread = unread
                self._rows = int(line[scan.places[chosen[0]]].sum())
            for clique, place in scan.places.items():
                self._tables[clique] = line[place].reshape(self.domain.shape(clique))
            self._index = CliqueIndex(list(self._tables))
            # A frame that is computed anew for every pass may give different records.
            sums = {int(self._tables[clique].sum()) for clique in chosen}
            if sums != {self._rows} or not unread.items() <= self.unread.items():
                raise InvalidInput(
                    "the frame gave other records in this pass than in the first; persist it "
                    "(cache), or store it and read that"
                )

    def _next(self, needed: Sequence[Clique]) -> list[Clique]:
        """Return the cliques that the next pass counts: first the needed ones, then the expected
        ones that are not yet counted. There are as many as fit in one pass, and at least one.
        """
        self._expected = [each for each in self._expected if self._holder(each) is None]
        left = list(dict.fromkeys((*needed, *self._expected)))
        reached = list(accumulate(map(self.domain.size, left)))
        return left[: max(1, bisect_right(reached, SCAN_CELLS))]

    def _table(self, clique: Clique) -> NDArray[np.int64]:
        """Return the table of a clique of which a superset was counted; axes are in the clique's
        order.
        """
        holder = self._holder(clique)
        assert holder is not None
        summed = tuple(place for place, name in enumerate(holder) if name not in clique)
        kept = [name for name in holder if name in clique]
        table = np.asarray(self._tables[holder].sum(axis=summed))
        found = table.transpose([kept.index(name) for name in clique])
        found.setflags(write=False)
        return found

    def _holder(self, clique: Clique) -> Clique | None:
        """Return the smallest counted clique that contains this one; None if there is none."""
        counted = list(self._tables)
        among = (counted[place] for place in self._index.containing(clique))
        return min(among, key=self.domain.size, default=None)

    def __repr__(self) -> str:
        return f"<FrameCounts: {len(self.domain)} attributes, counted where the data are>"
