"""The number of rows of each text of a column, and of each column's values that cannot be read,
counted wherever the records are.

The same code makes the texts everywhere, batch by batch, and an engine only transports them: its
own grouping may merge values that are different texts (0.0 and -0.0, letters that a collation
equates).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import pyarrow as pa

from pgmkit.tables.columns import Column
from pgmkit.tables.engines.scan import gathered
from pgmkit.tables.labelled import OpenCategorical
from pgmkit.tables.values import series_values


class Tally(ABC):
    """A counter of rows by text. The object holds no data and is sent to where the records are."""

    @abstractmethod
    def counted(self, frames: Iterable[Any]) -> Counter[str | None]:
        """Return how many rows of these frames in memory belong to each text. Rows that belong to
        no text are counted under None.
        """

    def rows_of_counts(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield one Arrow batch with the texts of these batches and their numbers of rows."""
        found = self.counted(gathered(batches))
        yield pa.RecordBatch.from_pydict(
            {
                "text": pa.array(list(found), type=pa.string()),
                "rows": pa.array(list(found.values()), type=pa.int64()),
            }
        )


@dataclass(frozen=True)
class TextTally(Tally):
    """A counter of the rows of each text of an open column, with missing ones under None.

    >>> import pyarrow
    >>> from pgmkit.tables.labelled import OpenCategorical
    >>> jobs = pyarrow.table({"job": ["cook", None, "cook"]})
    >>> sorted(TextTally("job", OpenCategorical()).counted([jobs]).items(), key=str)
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


@dataclass(frozen=True)
class UnreadTally(Tally):
    """A counter of the values that cannot be read, by column, with all rows under None.

    >>> import pyarrow
    >>> from pgmkit import Boolean
    >>> ill = pyarrow.table({"ill": ["?", "true", "false"]})
    >>> UnreadTally({"ill": Boolean()}).counted([ill])
    Counter({None: 3, 'ill': 1})
    """

    columns: Mapping[str, Column]

    def counted(self, frames: Iterable[Any]) -> Counter[str | None]:
        """Return the number of values by column that cannot be read, and of rows under None."""
        found: Counter[str | None] = Counter()
        for frame in frames:
            wrapped = nw.from_native(frame)
            found[None] += len(wrapped)
            for name, column in self.columns.items():
                found[name] += int(column.read(series_values(wrapped[name]))[1].sum())
        return found
