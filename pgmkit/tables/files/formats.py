"""The format of a file of records, as the suffix of its name says."""

from __future__ import annotations

import os
from pathlib import Path

from pgmkit.errors import InvalidInput

READ = {
    "CSV": (".csv", ".data", ".txt", ".tsv"),
    "parquet": (".parquet", ".pq"),
    "JSON lines": (".jsonl", ".ndjson"),
    "Excel": (".xlsx", ".xlsm"),
    "SPSS": (".sav", ".zsav", ".por"),
    "Stata": (".dta",),
    "SAS": (".sas7bdat", ".xpt"),
}
"""These are the formats that are read, each with the suffixes of its files in small letters."""
WRITTEN = (".csv", ".tsv", ".parquet", ".pq", ".jsonl", ".ndjson", ".xlsx", ".sav", ".dta")
"""Files with these suffixes can be written; `READ` says of which format they are."""


def plain_suffix(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a file's name in small letters. Of a compressed file it is the suffix
    before that of the compression.

    >>> plain_suffix("people.CSV.gz")
    '.csv'
    """
    found = Path(path)
    compressed = found.suffix.lower() in (".gz", ".bz2", ".zst")
    return (found.with_suffix("") if compressed else found).suffix.lower()


def format_of(path: str | os.PathLike[str]) -> str | None:
    """Return the format that a file's name says it has, one of `READ`; None if it says none. Files
    of CSV and JSON lines may be compressed.
    """
    suffix, plain = Path(path).suffix.lower(), plain_suffix(path)
    found = next((name for name, own in READ.items() if plain in own), None)
    return found if suffix == plain or found in ("CSV", "JSON lines") else None


def written_format(path: str | os.PathLike[str]) -> str:
    """Return the format in which a file of this name is written. Raises InvalidInput for a suffix
    that is not one of `WRITTEN`.
    """
    found = format_of(path)
    if found is None or Path(path).suffix.lower() not in WRITTEN:
        raise InvalidInput(f"{os.fspath(path)} must end in {', '.join(WRITTEN)}")
    return found


def is_foreign(path: str | os.PathLike[str]) -> bool:
    """Return True if the suffix of a file is one of Excel, SPSS, Stata or SAS files."""
    return format_of(path) in ("Excel", "SPSS", "Stata", "SAS")
