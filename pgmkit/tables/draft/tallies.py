"""The texts that draft a schema: the number of rows of each text in each column of a file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pgmkit.tables.files.foreign import Labels
from pgmkit.tables.files.record_files import batches
from pgmkit.tables.schema_file import FileFormat
from pgmkit.tables.values import clock_times, is_text, tallied


def tallies_of(
    path: str | os.PathLike[str], form: FileFormat
) -> tuple[dict[str, Counter[str]], dict[str, str], dict[str, Labels]]:
    """Return the number of rows of each text in each column of the whole file, the zones of columns
    of times that have one, and the labels of columns of ordered categories, in their order. Raises
    InvalidInput for a file without records.
    """
    tallies: dict[str, Counter[str]] = {}
    zones: dict[str, str] = {}
    orders: dict[str, Labels] = {}
    for batch in batches(path, form):
        for name, values in batch.items():
            kind: Any = getattr(values, "type", None)
            if (zone := getattr(kind, "tz", None)) is not None:
                zones[name] = zone
            if getattr(kind, "ordered", False) and is_text(kind.value_type):
                orders[name] = Labels({text: text for text in values.dictionary.to_pylist()})
            tallies.setdefault(name, Counter()).update(tallied(clock_times(values)))
    return tallies, zones, orders


def take_out(notes: Sequence[str], tallies: Mapping[str, Counter[str]]) -> None:
    """Remove from the tallies, in place, the rows below the records, which have one of the texts
    `notes` in the first column and no value in the others.
    """
    for place, tally in enumerate(tallies.values()):
        tally -= Counter({"": len(notes)} if place else notes)
