"""The texts that draft a schema: the number of rows of each text in each column of a file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

from pgmkit.tables.files.record_files import batches
from pgmkit.tables.schema_file import FileFormat
from pgmkit.tables.values import clock_times, tallied


def tallies_of(
    path: str | os.PathLike[str], form: FileFormat
) -> tuple[dict[str, Counter[str]], dict[str, str]]:
    """Return the number of rows of each text in each column of the whole file, and the zones of
    columns of times that have one. Raises InvalidInput for a file without records.
    """
    tallies: dict[str, Counter[str]] = {}
    zones: dict[str, str] = {}
    for batch in batches(path, form):
        for name, values in batch.items():
            zone = getattr(getattr(values, "type", None), "tz", None)
            if zone is not None:
                zones[name] = zone
            tallies.setdefault(name, Counter()).update(tallied(clock_times(values)))
    return tallies, zones


def take_out(notes: Sequence[str], tallies: Mapping[str, Counter[str]]) -> None:
    """Remove from the tallies, in place, the rows below the records, which have one of the texts
    `notes` in the first column and no value in the others.
    """
    for place, tally in enumerate(tallies.values()):
        tally -= Counter({"": len(notes)} if place else notes)
