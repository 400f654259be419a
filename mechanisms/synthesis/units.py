"""Frames in which each unit keeps a bounded number of rows."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np

from mechanisms.privacy.units import Excess, bounded, random_keys
from pgmkit.errors import InvalidInput, did_you_mean, unquoted
from pgmkit.records.dataset import Dataset
from pgmkit.tables.engines.frames import in_memory, names_of, other_columns
from pgmkit.tables.engines.pushdown import FrameCounts
from pgmkit.tables.schema import Schema
from pgmkit.tables.values import distinct, is_null, label_of, series_values, text_of


def check_unit(unit: str | None, schema: Schema, report_dropped: bool) -> None:
    """Raise InvalidInput if the column `unit` is in the schema, all of whose columns are released,
    or if `report_dropped` is True and there is no unit.
    """
    if unit is None and report_dropped:
        raise InvalidInput("report_dropped is about the rows of units; give unit and max_rows")
    if unit in schema.columns:
        raise InvalidInput(
            f"the unit's column {unit!r} is not released; take it out of the schema, which "
            "describes what is"
        )


def warn_of_others(data: Any, schema: Schema, unit: str | None) -> None:
    """Warn if a data frame has columns that are in neither the schema nor its list of ignored ones
    and are not the column `unit`; they are not released. Raises InvalidInput, without the warning,
    for a data frame that lacks a column of the schema.
    """
    if isinstance(data, Dataset | FrameCounts):
        return
    schema.check_names(names_of(data))
    others = other_columns(data, schema, [unit])
    if others:
        shown = ", ".join(map(repr, others[:10])) + (", ..." if len(others) > 10 else "")
        warnings.warn(
            f"columns that the schema does not have are left out: {shown}; describe them, or list "
            "them under `ignore` in the schema's `file`",
            stacklevel=4,  # the caller of `synthesize`
        )


@unquoted
def bounded_frame(
    frame: Any, schema: Schema, unit: str, max_rows: int, rng: np.random.Generator | None
) -> tuple[Any, Excess]:
    """Return the schema's columns of at most `max_rows` rows of each unit, and the number of the
    units' further rows, which are dropped. That number is exact and private (`Excess`).

    The rows are drawn uniformly (`mechanisms.privacy.units`). Rows without a unit (missing: null,
    NaN, empty; or unreadable, `unit_numbers`) belong to nobody: they are dropped and not counted.
    From an engine only the schema's columns and the unit's are fetched into memory, since every
    count must use the same rows. `rng`: the generator for an INSECURE draw; None for the operating
    system's randomness. Raises InvalidInput for coded records, and for a frame without one of these
    columns.

    >>> import pyarrow
    >>> from pgmkit import Boolean
    >>> visits = pyarrow.table({"ill": [True, False, True], "id": ["a", "a", "b"]})
    >>> bounded_frame(visits, Schema({"ill": Boolean()}), "id", 1, None)[0].num_rows
    2
    """
    if isinstance(frame, Dataset | FrameCounts):
        raise InvalidInput("coded records have no column of units; give a data frame with one")
    held = held_columns(frame, schema, [unit], "the data have", "the unit of a row")
    (units,) = unit_numbers([series_values(held[unit], "UTC")])
    places, excess = bounded(units, max_rows, random_keys(len(units), rng))
    return held[places].select(*schema.columns).to_native(), excess


def held_columns(frame: Any, schema: Schema, further: Sequence[str], table: str, what: str) -> Any:
    """Return a frame in memory with the schema's columns of a frame and the columns `further`,
    which are not released. Raises InvalidInput if one of them is missing; `table` ("the data have")
    and `what` ("the unit of a row") are parts of the error's message.
    """
    names = names_of(frame)
    schema.check_names(names)
    for name in further:
        if name not in names:
            raise InvalidInput(
                f"{table} no column {name!r}{did_you_mean(name, names)}, {what}; there are "
                f"{', '.join(map(repr, names[:30]))}"
            )
    return in_memory(frame, [*schema.columns, *further])


def unit_numbers(columns: Sequence[Any]) -> list[np.ndarray]:
    """Return, for each of several columns, an array with a whole number for each value. Equal
    values have equal numbers, in all columns; missing values have -1.

    3, 3.0, "3" and "3.0" are one unit, since programs write whole numbers as 3.0 if another value
    of the column is missing. Callers give moments in UTC, since a clock that is set back shows one
    time twice. A text with U+FFFD, which stands for bytes that could not be read, has -1, too: the
    texts of several units may have become one, and then the rows that are kept of one would depend
    on the others.

    >>> [column.tolist() for column in unit_numbers([np.array(["a", "b"]), np.array(["b", ""])])]
    [[0, 1], [1, -1]]
    """
    numbers: dict[str, int] = {}
    numbered = []
    for values in columns:
        found, places = distinct(values, _text_of_bytes)
        texts = ["\ufffd" if is_null(value) else _text_of_unit(value) for value in found]
        of_value = [
            -1 if "\ufffd" in text else numbers.setdefault(text, len(numbers)) for text in texts
        ]
        numbered.append(np.asarray(of_value, dtype=np.intp)[places])
    return numbered


def _text_of_unit(value: Any) -> str:
    """Return the text that identifies a unit. A moment has the same text on every clock, and
    without the zeros that numpy writes at the end of its seconds.
    """
    if isinstance(value, datetime) and value.tzinfo is not None:
        # It fails at the ends of the calendar, and may fail for a zone of another library.
        with suppress(Exception):
            value = value.astimezone(UTC)
    text = label_of(text_of(value))
    if isinstance(value, datetime | np.datetime64):
        text = re.sub(r"(\.\d*[1-9])0+(?!\d)|\.0+(?!\d)", r"\1", text.replace("T", " "))
    return text


def _text_of_bytes(value: bytes) -> str:
    """Return the text of bytes in UTF-8. Other bytes, and those of signs that are not printed, are
    binary numbers, whose bytes must all count: their text is in hexadecimal digits.
    """
    text = value.decode("utf-8", "replace")
    return text if text.isprintable() and "\ufffd" not in text else f"\\x{value.hex()}"
