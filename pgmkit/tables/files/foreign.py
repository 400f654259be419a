"""Files of other programs: Excel, SPSS, Stata and SAS, by the libraries that know them."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from pgmkit.errors import InvalidInput, installing

__all__ = ["foreign_table", "is_foreign"]

_READERS = {
    ".sav": "read_sav",
    ".zsav": "read_sav",
    ".por": "read_por",
    ".dta": "read_dta",
    ".sas7bdat": "read_sas7bdat",
    ".xpt": "read_xport",
}
_EXCEL = (".xlsx", ".xlsm")


def is_foreign(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name says that it is of one of these programs."""
    return Path(path).suffix.lower() in (*_READERS, *_EXCEL)


def foreign_table(path: str | os.PathLike[str]) -> Any:
    """The whole file as a pyarrow table: codes, not labels; of Excel the first sheet.

    Needs the extra `files`. Raises InvalidInput where it is not installed, and for a file that
    cannot be read.
    """
    suffix = Path(path).suffix.lower()
    try:
        return _excel(path) if suffix in _EXCEL else _statistics(path, _READERS[suffix])
    except ImportError as error:
        raise InvalidInput(
            f"reading {suffix} needs {error.name}: {installing('files')}, or read the file into a "
            "data frame and pass that"
        ) from None


def _excel(path: str | os.PathLike[str]) -> Any:
    import openpyxl
    import pyarrow as pa

    try:
        with warnings.catch_warnings(action="ignore"):  # they would name cells
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
            header, *rows = book.worksheets[0].iter_rows(values_only=True)
    except OSError:
        raise
    except Exception as error:
        # openpyxl raises what zip and XML raise; their messages could quote values.
        raise InvalidInput(
            f"{os.fspath(path)} is not an Excel file with a header: {type(error).__name__}"
        ) from None
    names = ["" if name is None else str(name).strip() for name in header]
    columns = zip(*rows, strict=True) if rows else [() for _ in names]
    return pa.Table.from_arrays([_array(list(values)) for values in columns], names)


def _statistics(path: str | os.PathLike[str], reader: str) -> Any:
    import pyreadstat

    try:
        columns, _ = getattr(pyreadstat, reader)(os.fspath(path), output_format="dict")
    except OSError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"{os.fspath(path)} cannot be read by pyreadstat: {type(error).__name__}"
        ) from None
    import pyarrow as pa

    return pa.table({name: _array(list(values)) for name, values in columns.items()})


def _array(values: list[Any]) -> Any:
    """An Arrow array; of texts where types are mixed, or one value is beyond Arrow's type.

    Arrow would find one type for all, so that a row decided how others are read.
    """
    import pyarrow as pa

    from pgmkit.tables.values import is_null, text_of

    kinds = {type(value) for value in values if not is_null(value)}
    if len(kinds) < 2 or kinds == {int, float}:
        with suppress(pa.ArrowException, OverflowError, TypeError, ValueError):
            return pa.array(values, from_pandas=True)
    return pa.array([None if is_null(value) else text_of(value) for value in values], pa.string())
