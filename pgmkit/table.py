"""Datasets from and to CSV files of integer codes."""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from collections.abc import Sequence
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from pgmkit.atomic_write import atomic_writer
from pgmkit.dataset import Dataset
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput

__all__ = ["read_csv", "write_csv"]

_CHUNK_ROWS = 1 << 16
# Attributes up to this size are written by looking up the text of each code.
_LOOKUP_SIZE = 1 << 16


def read_csv(
    path: str | os.PathLike[str], domain: Domain, *, ignore_extra: bool = False
) -> Dataset:
    """The dataset in a comma-separated UTF-8 file with a header line and integer codes.

    Columns are found by their names, in any order. Columns that are not in the domain are an
    error, or left out when `ignore_extra` is true (they may hold any text).

    Raises InvalidInput naming the file, the column and the remedy, never a cell's value: for a
    missing, repeated or extra column, an empty file, rows of the wrong length, cells that are not
    integers, codes outside the domain, bytes that are not UTF-8. Raises OSError as `open` does.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "people.csv")
    ...     _ = file.write_text("sex,age,name\\n1,0,Ann\\n0,2,Bo\\n")
    ...     data = read_csv(file, Domain({"age": 3, "sex": 2}), ignore_extra=True)
    >>> data.columns["age"]
    array([0, 2], dtype=uint8)
    """
    if not isinstance(domain, Domain):
        raise InvalidInput(f"domain must be a pgmkit Domain, got {type(domain).__name__}")
    outcome = _columns(path, domain, ignore_extra)
    if isinstance(outcome, dict):
        try:
            return Dataset(domain, outcome)
        except InvalidInput as error:
            outcome = str(error)
    raise InvalidInput(f"{os.fspath(path)!s}: {outcome}")


def write_csv(path: str | os.PathLike[str], dataset: Dataset) -> None:
    """Write a header line and one line of codes for each row; the file appears whole or not at all.

    `read_csv` with the dataset's domain gives the dataset back.

    Raises InvalidInput for a dataset without attributes, OSError as `open` does.
    """
    if not dataset.domain.attributes:
        raise InvalidInput("the dataset has no attributes to write; project it on at least one")
    header = io.StringIO()
    # The writer quotes only the line ends of its own terminator.
    csv.writer(header, lineterminator="\r\n").writerow(dataset.domain.attributes)
    lookups = {
        a: _text(np.arange(size)) if size <= _LOOKUP_SIZE else None
        for a, size in dataset.domain.sizes.items()
    }
    with atomic_writer(path) as file:
        file.write(header.getvalue().removesuffix("\r\n").encode() + b"\n")
        for start in range(0, len(dataset), _CHUNK_ROWS):
            cells = []
            for attribute, lookup in lookups.items():
                codes = dataset.columns[attribute][start : start + _CHUNK_ROWS]
                cells += [_text(codes) if lookup is None else lookup[codes]]
                cells += [np.full((len(codes), 1), ord(","), np.uint8)]
            cells[-1][:] = ord("\n")
            padded = np.concatenate(cells, axis=1)
            file.write(padded[padded != 0].tobytes())


def _text(codes: NDArray[Any]) -> NDArray[np.uint8]:
    """The decimal digits of codes: one row of bytes each, padded with zero bytes."""
    width = len(str(codes.max()))
    return codes.astype(f"S{width}").view(np.uint8).reshape(len(codes), width)


def _columns(
    path: str | os.PathLike[str], domain: Domain, ignore_extra: bool
) -> dict[str, NDArray[Any]] | str:
    """The columns of the domain, or what is wrong with the file."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            header = next(csv.reader(file), [])
            problem = _header_problem(header, domain, ignore_extra)
            if problem is not None:
                return problem
            rows = _parsed(file, header, domain)
        except (ValueError, csv.Error, DeprecationWarning):
            # The error itself would quote cells. UnicodeDecodeError is a ValueError.
            return _row_problem(path, domain)
    if len(header) == 1 and _has_blank_row(path):
        return _row_problem(path, domain)
    return {a: rows[f"f{header.index(a)}"] for a in domain}


def _header_problem(header: Sequence[str], domain: Domain, ignore_extra: bool) -> str | None:
    if not header:
        return "the file is empty; it needs a header line with the names of the columns"
    # Missing names first: without a header line the others would quote the first row.
    for attribute in domain:
        if attribute not in header:
            return (
                f"the header (first line) has no column {attribute!r}; separate names by commas "
                "and spell them as in the domain, or leave the attribute out of the domain"
            )
    for attribute in domain:
        if header.count(attribute) > 1:
            return f"the header names column {attribute!r} twice; rename or remove one of them"
    extra = next((column for column in header if column not in domain), None)
    if extra is not None and not ignore_extra:
        return (
            f"column {extra!r} is not in the domain; add it to the domain, remove it, "
            "or pass ignore_extra=True to leave extra columns out"
        )
    return None


def _parsed(file: TextIO, header: Sequence[str], domain: Domain) -> NDArray[Any]:
    """The rows as a structured array with fields f0, f1, ...: every row must fit the header."""
    # One character of an ignored text is enough to check the lengths of rows.
    kinds = [
        "u8" if _is_wide(domain, name) else "i8" if name in domain else "U1" for name in header
    ]
    dtype = np.dtype([(f"f{i}", kind) for i, kind in enumerate(kinds)])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="loadtxt: input contained no data")
        # Older numpy reads 3.0 as an integer under this warning.
        warnings.filterwarnings("error", category=DeprecationWarning)
        return np.loadtxt(file, dtype, delimiter=",", comments=None, quotechar='"', ndmin=1)


def _is_wide(domain: Domain, name: str) -> bool:
    return name in domain and domain.sizes[name] > 2**63


def _has_blank_row(path: str | os.PathLike[str]) -> bool:
    """In a file of one column a blank line is an empty cell, which the parser skips."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        # Blank lines at the end, with no row after them, are no rows.
        return any(not row for row in rows) and any(rows)


def _row_problem(path: str | os.PathLike[str], domain: Domain) -> str:
    """Why the rows of a file did not parse, without the values of cells."""
    integer = re.compile(r"\s*[+-]?[0-9]{1,20}\s*", re.ASCII)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            for row in rows:
                if row and len(row) != len(header):
                    return (
                        "some rows have more or fewer cells than the header; "
                        "give every row one cell for each column, and quote text with commas"
                    )
                # A blank line is an empty cell in a file of one column, and nothing in others.
                cells = dict(zip(header, row or [""] * (len(header) == 1), strict=False))
                for attribute in domain:
                    if not integer.fullmatch(cells.get(attribute, "0")):
                        return (
                            f"column {attribute!r} holds cells that are not integers; write codes "
                            f"0..{domain.sizes[attribute] - 1}, also for missing values"
                        )
    except UnicodeDecodeError:
        return "the file is not UTF-8 text; save it as CSV in UTF-8"
    except csv.Error:
        pass
    return "the file is not a comma-separated table of integer codes; save it as plain CSV"
