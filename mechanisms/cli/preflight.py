"""Checks before anything is spent or replaced: whether files can be read and written as named.

`pgmkit synth` makes these checks before it reads a record, and `pgmkit plan` makes them for the
files that it is given. They look at names, suffixes, folders, the disk and the data's column names,
and never at a value: a run that fails because of a value would reveal something about that value.
How many values cannot be read is known after a hundredth of the budget; the rest is then spent with
the user's consent. Only `public_records` reads values, those of records whose exact numbers may be
shown.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from mechanisms.cli.options import given, warn
from mechanisms.registry import MECHANISMS
from pgmkit.errors import InvalidInput
from pgmkit.tables.files.formats import format_of, is_foreign, written_format

if TYPE_CHECKING:
    from mechanisms.synthesis.request import Request
    from mechanisms.synthesis.unread import UnreadValues
    from pgmkit import Dataset, Schema


def is_release(path: str) -> bool:
    """Return True if the file holds a release, and False if it holds only a model or is no archive
    at all.
    """
    with suppress(zipfile.BadZipFile):
        return zipfile.Path(path, "release.json").exists()
    return False


def writable(path: str, others: Iterable[str] = ()) -> Path:
    """Return the path of a file to be written. Raises InvalidInput if it names a folder, a release
    that was paid for or a ledger across runs, if its folder does not exist or cannot be written to,
    and if it is empty or the command line or `others` name it a second time (`check_apart`).
    """
    check_apart(path, others)
    target = Path(path)
    if target.is_dir():
        raise InvalidInput(f"{path} is a folder; name a file")
    if target.is_file() and _spent(path):
        raise InvalidInput(
            f"{path} holds a release or a ledger, and what was paid for is not replaced; give "
            "another name"
        )
    _check_folder(target.parent)
    return target


def _spent(path: str) -> bool:
    """Return True if the file holds a release with a ledger, or a ledger across runs. Raises
    InvalidInput for a release file that cannot be read.
    """
    from mechanisms.privacy.ledger import HEADER
    from pgmkit.runtime import untrusted

    if is_release(path):
        with untrusted.refusing(path, "a release file"):
            parts = untrusted.unzipped(untrusted.whole_file(path), untrusted.LARGEST)
            return untrusted.plain_values(parts["release.json"])["ledger"] is not None
    with open(path, "rb") as file:
        return file.readline(100).startswith(json.dumps(HEADER)[:-1].encode())


def check_apart(path: str, others: Iterable[str] = ()) -> None:
    """Raise InvalidInput if the name of a file or folder to be written is empty, or if the command
    line or `others`, further files that are read or written, name it a second time: what it has, or
    is to have, would be lost.
    """
    if not path:
        raise InvalidInput("the name of a file to be written is empty; give one")
    context, named = click.get_current_context(), [*others]
    for param in context.command.params:
        own = context.params.get(param.name or "") or ()
        if isinstance(param.type, click.Path) or param.name in ("out", "save", "report"):
            named += [own] if isinstance(own, str) else own
    if [Path(each).resolve() for each in named].count(Path(path).resolve()) > 1:
        raise InvalidInput(f"{path} is named twice, and one would replace the other; rename one")


def writable_folder(path: str) -> None:
    """Raise InvalidInput if files cannot be written to a folder of this name, if the folder does
    not exist and cannot be created, and if the name is empty or the command line has it a second
    time.
    """
    folder = Path(path)
    check_apart(path)
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{path} is a file; name a folder")
    _check_folder(folder if folder.exists() else folder.resolve().parent)


def _check_folder(folder: Path) -> None:
    """Raise InvalidInput unless the folder exists and can be written to."""
    if not folder.is_dir():
        raise InvalidInput(f"the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise InvalidInput(f"the folder {folder} is not writable; choose another")


def records_file(path: str) -> Path:
    """Return the path of a file of records to be written. Raises InvalidInput for a suffix of no
    known format, and for a file that `writable` refuses.
    """
    target = writable(path)
    written_format(path)
    return target


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


def check_drawn(mechanism: str, *needing: str) -> None:
    """Raise InvalidInput if the mechanism draws no records, but the command line has one of the
    options `needing`, whose files need records.
    """
    entry, named = MECHANISMS.get(mechanism), given(*needing)
    if named and entry is not None and not entry.records:
        raise InvalidInput(
            f"{entry.name} releases tables, from which no records can be drawn; leave {named[0]} "
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


def check_run(request: Request, files: Files) -> None:
    """Check whatever can be checked of a run's files before anything is spent.

    Raises InvalidInput for files that cannot be written, a file of records from a mechanism that
    draws none, data without the schema's columns, options about formats that no file has, a disk
    without enough room, and values or numbers of records that the format of the output cannot hold.
    """
    from pgmkit.tables.files.reading import check_columns

    files.check_targets()
    check_form(files.data, files.public, out=files.out)
    check_drawn(request.mechanism, "out")
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
    needed = rows * least if format_of(out) == "CSV" else 1
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


def asked_about(schema: Schema, yes: bool) -> Literal[False] | Callable[[UnreadValues], None]:
    """Return the argument `report_unread` of `synthesize`: a callable, or False if the labels of
    all columns are still to be found, since such a column can read any value.

    The callable warns of columns with many unread values, or with only missing ones. If there are
    any, it raises InvalidInput, which ends the run, unless `yes` is True or a person on a terminal
    consents to go on.
    """
    from pgmkit.tables.labelled import OpenCategorical

    if all(isinstance(column, OpenCategorical) for column in schema.columns.values()):
        return False

    def ask(unread: UnreadValues) -> None:
        found = (*unread.many, *unread.empty)
        if not found:
            return
        warn(str(unread))
        question = "spend the rest of the budget on them nevertheless?"
        terminal = sys.stdin and sys.stdin.isatty()
        if not yes and not (terminal and click.confirm(question, err=True)):
            raise InvalidInput(
                f"too many values of {', '.join(found)} could not be read, or are missing; only a "
                "hundredth of the budget is spent, which stays so; say how the file is written "
                "(--encoding, --separator, --decimal), correct the schema, or go on with --yes"
            )

    return ask


def public_records(path: str, schema: Schema) -> Dataset:
    """Return the records of a file, and warn of values that could not be read, with their exact
    share of each column. Only for records whose exact numbers may be shown. Raises InvalidInput for
    a file that the schema cannot read, and for one without records.
    """
    from mechanisms.synthesis.unread import exact_shares
    from pgmkit import encode_file

    data = encode_file(path, schema)
    if not len(data):
        raise InvalidInput(f"{path} holds no records; give at least one")
    if lost := exact_shares(data):
        warn(f"{path}: {lost}")
    return data
