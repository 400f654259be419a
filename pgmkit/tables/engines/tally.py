"""Numbers of rows of each text of a column, counted wherever the records are.

Texts are made by the same code everywhere, batch by batch, and an engine only carries them: its own
grouping may hold values together that are different texts (0.0 and -0.0, a collation's letters).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import narwhals as nw

from pgmkit.tables.engines.scan import gathered
from pgmkit.tables.values import series_values

if TYPE_CHECKING:
    from pgmkit.tables.labelled import OpenCategorical

__all__ = ["Tally"]


@dataclass(frozen=True)
class Tally:
    """The count of a column whose labels are open; it holds no data and travels to them.

    >>> import pyarrow
    >>> from pgmkit.tables.labelled import OpenCategorical
    >>> jobs = pyarrow.table({"job": ["cook", None, "cook"]})
    >>> sorted(Tally("job", OpenCategorical()).counted([jobs]).items(), key=str)
    [('cook', 2), (None, 1)]
    """

    name: str
    column: OpenCategorical

    def counted(self, frames: Iterable[Any]) -> Counter[str | None]:
        """Rows by text, missing ones under None, of frames in memory one after the other."""
        found: Counter[str | None] = Counter()
        for frame in frames:
            found.update(self.column.tally(series_values(nw.from_native(frame)[self.name])))
        return found

    def rows_of_counts(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Arrow batches in, texts and their numbers of rows out."""
        import pyarrow as pa

        found = self.counted(gathered(batches))
        yield pa.RecordBatch.from_pydict(
            {
                "text": pa.array(list(found), type=pa.string()),
                "rows": pa.array(list(found.values()), type=pa.int64()),
            }
        )
