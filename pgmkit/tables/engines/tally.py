"""The number of rows of each text of a column, and of each column's values that cannot be read,
counted wherever the records are.

The same code makes the texts everywhere, batch by batch, and an engine only transports them: its
own grouping may merge values that are different texts (0.0 and -0.0, letters that a collation
equates).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import narwhals as nw
import pyarrow as pa

from pgmkit.tables.columns import Column
from pgmkit.tables.engines.scan import gathered
from pgmkit.tables.labelled import OpenCategorical
from pgmkit.tables.values import series_values

Tally: TypeAlias = Callable[[Iterable[Any]], Counter[str | None]]
"""A function that returns numbers of rows of frames in memory: for `text_tally` by text, and for
`unread_tally` by column; each says what is under None. It holds no data and is sent to where the
records are.
"""


def text_tally(name: str, column: OpenCategorical, frames: Iterable[Any]) -> Counter[str | None]:
    """Return the number of rows of each text of an open column, with missing ones under None, in
    these frames in memory.

    >>> import pyarrow
    >>> from pgmkit.tables.labelled import OpenCategorical
    >>> jobs = pyarrow.table({"job": ["cook", None, "cook"]})
    >>> sorted(text_tally("job", OpenCategorical(), [jobs]).items(), key=str)
    [('cook', 2), (None, 1)]
    """
    found: Counter[str | None] = Counter()
    for frame in frames:
        found.update(column.tally(series_values(nw.from_native(frame)[name])))
    return found


def unread_tally(columns: Mapping[str, Column], frames: Iterable[Any]) -> Counter[str | None]:
    """Return the number of values by column that cannot be read, and of all rows under None, in
    these frames in memory.

    >>> import pyarrow
    >>> from pgmkit import Boolean
    >>> unread_tally({"ill": Boolean()}, [pyarrow.table({"ill": ["?", "true", "false"]})])
    Counter({None: 3, 'ill': 1})
    """
    found: Counter[str | None] = Counter()
    for frame in frames:
        wrapped = nw.from_native(frame)
        found[None] += len(wrapped)
        for name, column in columns.items():
            found[name] += int(column.read(series_values(wrapped[name]))[1].sum())
    return found


def rows_of_counts(tally: Tally, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield one Arrow batch with the texts of these batches and their numbers of rows."""
    found = tally(gathered(batches))
    texts, rows = pa.array(list(found), pa.string()), pa.array(list(found.values()), pa.int64())
    yield pa.RecordBatch.from_pydict({"text": texts, "rows": rows})
