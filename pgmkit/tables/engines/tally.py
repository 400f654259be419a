"""The number of rows of each text of a column, counted wherever the records are.

The same code makes the texts everywhere, batch by batch, and an engine only transports them: its
own grouping may merge values that are different texts (0.0 and -0.0, letters that a collation
equates).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import pyarrow as pa

from pgmkit.tables.engines.scan import gathered
from pgmkit.tables.labelled import OpenCategorical
from pgmkit.tables.values import series_values


@dataclass(frozen=True)
class Tally:
    """A counter of the rows of each text of an open column. The object holds no data and is sent to
    where the records are.

    >>> import pyarrow
    >>> from pgmkit.tables.labelled import OpenCategorical
    >>> jobs = pyarrow.table({"job": ["cook", None, "cook"]})
    >>> sorted(Tally("job", OpenCategorical()).counted([jobs]).items(), key=str)
    [('cook', 2), (None, 1)]
    """

    name: str
    column: OpenCategorical

    def counted(self, frames: Iterable[Any]) -> Counter[str | None]:
        """Return the number of rows by text, with missing ones under None, of these frames in
        memory.
        """
        found: Counter[str | None] = Counter()
        for frame in frames:
            found.update(self.column.tally(series_values(nw.from_native(frame)[self.name])))
        return found

    def rows_of_counts(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield one Arrow batch with the texts of these batches and their numbers of rows."""
        found = self.counted(gathered(batches))
        yield pa.RecordBatch.from_pydict(
            {
                "text": pa.array(list(found), type=pa.string()),
                "rows": pa.array(list(found.values()), type=pa.int64()),
            }
        )
