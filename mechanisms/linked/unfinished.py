"""The releases that a run on linked tables had paid for when it was interrupted or failed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mechanisms.release.record import Measured
from mechanisms.release.tabular import TableRelease


@dataclass(frozen=True)
class UnfinishedTables:
    """The releases of the tables that were finished, and of the table that was being measured a
    release with noisy tables but no model yet (`TableRelease.estimated` makes one). A child's
    release has the columns of its parent too. They answer questions one by one; linked records
    cannot be drawn, since tables are missing or unfinished.

    `tables`: the releases by the names of the tables, the topmost table first.
    """

    tables: Mapping[str, TableRelease]

    @property
    def measurements(self) -> list[Measured]:
        """The noisy tables of all releases."""
        return [m for each in self.tables.values() for m in each.release.measurements]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write each release to a file `TABLE.pgm` in a new folder, which `TableRelease.load` and
        the commands read. Raises FileExistsError if the folder exists.
        """
        Path(folder).mkdir()
        for name, each in self.tables.items():
            each.save(Path(folder, f"{name}.pgm"))
