"""Checks before a run spends anything: whether its files can be read and written as named.

`pgmkit synth` makes these checks before it reads a record, and `pgmkit plan` makes them for the
files that it is given. They look at names, suffixes, folders, the disk and the data's column names,
and never at a value: a run that fails because of a value would reveal something about that value.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechanisms.cli.options import given, records_file, writable
from pgmkit.errors import InvalidInput
from pgmkit.tables.files.formats import format_of, is_foreign

if TYPE_CHECKING:
    from mechanisms.synthesis.request import Request
    from pgmkit.tables.schema import Schema


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of a run, by the options that name them, and how records are read and written."""

    data: str | None
    schema: str
    public: str | None = None
    ledger: str | None = None
    out: str | None
    save: str | None
    report: str | None
    rows: int | None = None
    safe_csv: bool = False
    ignore_extra_columns: bool = False

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Files:
        """Return the files among the options of a command, and remove them from the options."""
        names = [each.name for each in fields(cls) if each.name in options]
        return cls(**{name: options.pop(name) for name in names})

    def check_targets(self) -> None:
        """Raise InvalidInput for a file that cannot be written, or that the command line names
        twice, for a release that exists, and for --rows or --safe-csv without a file of records
        that they apply to.
        """
        checks = (self.out, records_file), (self.save, writable), (self.report, page_file)
        for path, check in checks:
            if path is not None:
                check(path)
        check_kept(self.save)
        if self.out is None and self.rows is not None:
            raise InvalidInput("--rows is a number of records to write; give --out for them")
        if self.safe_csv and (self.out is None or not self.out.lower().endswith((".csv", ".xlsx"))):
            raise InvalidInput(
                "--safe-csv is about files for spreadsheets; give --out with the suffix .csv or "
                ".xlsx, or leave it out"
            )


def check_kept(save: str | None) -> None:
    """Raise InvalidInput if `save` is a file that exists, or a folder with releases in it."""
    if save is not None and (Path(save).is_file() or any(Path(save).glob("*.pgm"))):
        raise InvalidInput(
            f"--save {save!r} exists, and a release that was paid for is not replaced; give "
            "another name, or delete it"
        )


def check_drawn(mechanism: str, targets: Mapping[str, str | None]) -> None:
    """Raise InvalidInput if the mechanism draws no records, but files that need them are named.

    `targets`: the files that need records, by their options; None where none is named.
    """
    from mechanisms.registry import MECHANISMS

    entry = MECHANISMS.get(mechanism)
    for option in (each for each, path in targets.items() if path is not None):
        if entry is not None and not entry.records:
            raise InvalidInput(
                f"{entry.name} releases tables, from which no records can be drawn; leave {option} "
                "out, or choose another mechanism"
            )


def page_file(path: str, others: Iterable[str] = ()) -> Path:
    """Return the path of an HTML page to be written. Raises InvalidInput for a suffix other than
    .html and .htm, and for a file that `writable` refuses.
    """
    target = writable(path, others)
    if target.suffix.lower() not in (".html", ".htm"):
        raise InvalidInput(f"{path} must end in .html or .htm, as the name of a page does")
    return target


def check_form(*read: str | None, out: str | None = None) -> None:
    """Raise InvalidInput for an option of the command line about a format that none of the files
    `read` has; None stands for no file. `out`: a file of records to be written, which has a use for
    --separator. All formats have a use for --decimal, since numbers may be texts.
    """
    both = ["CSV", "Excel"]
    uses = {"encoding": ["CSV"], "separator": ["CSV"], "skip_lines": both, "sheet": ["Excel"]}
    for name, kinds in uses.items():
        paths = [each for each in (*read, *[out] * (name == "separator")) if each is not None]
        if given(name) and not any(format_of(path) in kinds for path in paths):
            raise InvalidInput(
                f"{given(name)[0]} is about {' or '.join(f'{kind} files' for kind in kinds)}, got "
                f"{', '.join(paths) or 'no file'}; leave it out"
            )


def preflight(request: Request, files: Files) -> None:
    """Check whatever can be checked of a run's files before anything is spent.

    Raises InvalidInput for files that cannot be written, a file of records from a mechanism that
    draws none, data without the schema's columns, options about formats that no file has, a disk
    without enough room, and values or numbers of records that the format of the output cannot hold.
    """
    from pgmkit.tables.files.column_names import check_columns

    files.check_targets()
    check_form(files.data, files.public, out=files.out)
    check_drawn(request.mechanism, {"--out": files.out})
    if files.data is not None:
        also = () if request.unit is None else (request.unit,)
        ignore_extra = files.ignore_extra_columns
        check_columns(files.data, request.placed, ignore_extra=ignore_extra, also=also)
    if files.out is not None:
        check_disk(Path(files.out), request.schema, files.rows or 1)
        _check_format(files.out, request.placed, files.rows or 1)


def check_disk(out: Path, schema: Schema, rows: int) -> None:
    """Raise InvalidInput if the disk has no room for `rows` records in CSV or, for another format,
    no room at all. For an unknown number of records the caller passes 1, since the number of
    private rows must not decide.
    """
    # A value and its separator take two bytes or more in a CSV file, a missing value only the byte
    # of its separator; parquet may take less.
    least = sum(1 + (column.missing is None) for column in schema.columns.values())
    needed = rows * least if out.suffix.lower() == ".csv" else 1
    free = shutil.disk_usage(out.parent).free
    if free < needed:
        raise InvalidInput(
            f"the disk of {out} has {free:,} bytes left, but the records take {needed:,} or more; "
            "choose another folder, or fewer --rows"
        )


def _check_format(out: str, schema: Schema, rows: int) -> None:
    """Convert two made-up records to the format of `out`, in memory, if it is Excel, SPSS or Stata.

    Raises InvalidInput if the library that writes is not installed, and for values or numbers of
    records that the format cannot hold.
    """
    if not is_foreign(out):
        return
    import numpy as np

    from mechanisms.synthesis.open_columns import assumed
    from pgmkit.records.dataset import Dataset
    from pgmkit.tables.files.foreign_writing import check_sheet, foreign_content
    from pgmkit.tables.records import arrow_table

    check_sheet(out, rows)
    described = assumed(schema)
    ends = {name: [0, size - 1] for name, size in described.domain.sizes.items()}
    records = Dataset(described.domain, ends)
    foreign_content(out, [arrow_table(records, described, np.random.default_rng(0))], described)
