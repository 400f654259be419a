"""A first schema from the names, or from the values of data that may be looked at."""

from __future__ import annotations

import datetime
import itertools
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.tables.files import batches
from pgmkit.tables.schema import (
    Boolean,
    Categorical,
    Column,
    Date,
    Integer,
    Numeric,
    OpenCategorical,
    Schema,
)
from pgmkit.tables.schema_file import FileFormat, dump_yaml

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["draft", "draft_column"]

_ROWS = 100_000
_MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "None")
_BINS = 20


def draft(path: str | os.PathLike[str], *, look: bool, most_values: int = 50) -> str:
    """The text of a YAML schema for a CSV or parquet file, to be read and corrected by hand.

    With `look` the values of the first 100,000 rows are looked at: they must be public. Without,
    only names are read and every column is left open.
    """
    table = _first_rows(path)
    if not look:
        columns: dict[str, Column] = {name: OpenCategorical() for name in table}
        note = "# Only the names were read: every column's values are found with a budget.\n"
    else:
        columns = {name: draft_column(v, most_values) for name, v in table.items()}
        note = (
            "# Drafted from the values of public data. Correct ranges to what is possible, not to\n"
            "# what occurs, and list every value that may occur.\n"
        )
    return note + dump_yaml(Schema(columns).to_dict())


def draft_column(values: NDArray[Any], most_values: int = 50) -> Column:
    """A column type that fits these (public) values.

    >>> draft_column(np.array(["3", "17", "29"]))
    Integer(missing=None, low=0, high=29, bins=None, edges=None, outside='error')
    """
    texts = [None if value is None or value != value else str(value) for value in values.tolist()]
    absent = tuple(sorted({t for t in texts if t in _MISSING}))
    missing = absent if absent or None in texts else None
    present = [text for text in texts if text is not None and text not in _MISSING]
    distinct = sorted(set(present))
    if not distinct:
        return OpenCategorical(missing=missing)
    if {text.lower() for text in distinct} <= {"true", "false"}:
        return Boolean(missing=missing)
    numbers = _numbers(distinct)
    if numbers is not None:
        return _of_numbers(numbers, missing)
    dates = _dates(distinct)
    if dates is not None:
        return Date(str(dates[0]), str(dates[-1]), unit=_unit(dates), missing=missing)
    if len(distinct) <= most_values:
        return Categorical(tuple(distinct), missing=missing)
    return OpenCategorical(missing=missing)


def _of_numbers(numbers: list[float], missing: tuple[str, ...] | None) -> Column:
    low, high = min(numbers), max(numbers)
    if all(number.is_integer() for number in numbers):
        low = 0 if 0 <= low <= high / 2 else low
        width = int(high) - int(low) + 1
        bins = None if width <= 100 else _BINS
        return Integer(int(low), int(high), bins=bins, missing=missing)
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-9)) - 1)
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    return Numeric(low, high, bins=_BINS, missing=missing)


def _numbers(texts: list[str]) -> list[float] | None:
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return None
    # Codes such as 007 are labels.
    coded = any(len(text) > 1 and text[0] == "0" and text.isdigit() for text in texts)
    return None if coded or not all(map(math.isfinite, numbers)) else numbers


def _dates(texts: list[str]) -> list[datetime.date] | None:
    try:
        return sorted({datetime.datetime.fromisoformat(text).date() for text in texts})
    except ValueError:
        return None


def _unit(dates: list[datetime.date]) -> str:
    days = (dates[-1] - dates[0]).days
    return "day" if days <= 60 else "month" if days <= 2000 else "year"


def _first_rows(path: str | os.PathLike[str]) -> Mapping[str, NDArray[Any]]:
    parts: dict[str, list[NDArray[Any]]] = {}
    rows = 0
    for batch in itertools.islice(batches(path, FileFormat()), 1000):
        for name, values in batch.items():
            parts.setdefault(name, []).append(values.astype(object))
            rows += len(values) if name == next(iter(batch)) else 0
        if rows >= _ROWS:
            break
    if not parts:
        raise InvalidInput(f"{os.fspath(path)} holds no records to draft a schema from")
    return {name: np.concatenate(values)[:_ROWS] for name, values in parts.items()}
