"""Codes as tables of values: typed Arrow columns for frames and parquet, texts for CSV and JSON
lines.

The types follow from the schema alone: they are the same for any records.
"""

from __future__ import annotations

import json
import re
import zoneinfo
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from pgmkit.records.dataset import Dataset
from pgmkit.runtime.precision import EXACT
from pgmkit.tables.columns import Column
from pgmkit.tables.dates import DateTime
from pgmkit.tables.labelled import Boolean, Categorical
from pgmkit.tables.numbers import Numeric
from pgmkit.tables.schema import Schema
from pgmkit.tables.schema_file import FileFormat
from pgmkit.tables.values import clock_times

_RUNS = re.compile(
    "[\t\r\n]|[\\s\\x00-\\x1f\ufeff\u200b-\u200f\u2060]*[-=+@\uff1d\uff0b\uff0d\uff20]"
)
"""This pattern matches the beginnings of texts that a spreadsheet takes for formulas (OWASP, CSV
injection). Some spreadsheets ignore blanks and zero-width characters before these signs.
"""


def arrow_table(data: Dataset, schema: Schema, rng: np.random.Generator) -> Any:
    """Return the values of coded records as a pyarrow table, with the schema's columns and levels
    in its order and types. `rng` draws the values within bins. Raises InvalidInput for records over
    another domain.
    """
    codes = schema.shown_codes(data).items()
    return pa.table({name: arrow_column(schema.shown[name], own, rng) for name, own in codes})


def arrow_schema(schema: Schema) -> Any:
    """Return the pyarrow schema of `arrow_table`: the names and types of its columns."""
    return pa.schema([(n, _arrow_type(c.kind, _zone(c))) for n, c in schema.shown.items()])


def arrow_column(column: Column, codes: Any, rng: np.random.Generator) -> Any:
    """Return the values of codes as an Arrow array of the column's type. For a code that stands for
    several values, one of them is drawn.
    """
    values, zone = _plain_column(column, codes, rng), _zone(column)
    if zone in (None, "UTC"):
        return values.cast(_arrow_type(column.kind, zone))
    # When clocks are put back, they show an hour twice: the first one is meant. When they are put
    # forward, they skip an hour: its times become the moment of the change or, from 2038 on, which
    # Arrow does not know, the moment by the clock as it was before the change.
    known = compute.less(compute.year(values), 2038)
    early = compute.assume_timezone(
        compute.if_else(known, values, None), zone, ambiguous="earliest", nonexistent="latest"
    )
    if compute.all(known).as_py() is not False:
        return early
    place, late = zoneinfo.ZoneInfo(zone), compute.if_else(known, None, values).to_pylist()
    moments = [each and each.replace(tzinfo=place) for each in late]
    return compute.coalesce(early, pa.array(moments, early.type))


def _plain_column(column: Column, codes: Any, rng: np.random.Generator) -> Any:
    """Return the values of codes as an Arrow array, with points in time as a clock shows them."""
    kind = _arrow_type(column.kind)
    whole = np.asarray(codes).astype(np.int64)
    absent = None if column.missing is None else whole == column.size - 1
    if column.kind == "category":
        places = pa.array(whole.astype(np.int32), mask=absent)
        return pa.DictionaryArray.from_arrays(places, pa.array(column.own_labels, pa.string()))
    if isinstance(column, Categorical | Boolean):
        values = column.decode(np.arange(column.size), rng).tolist()
        return pa.array(values, kind).take(pa.array(whole))
    # Missing values are drawn as if they had the first code, and replaced afterwards.
    values = column.own_values(whole if absent is None else np.where(absent, 0, whole), rng)
    if absent is not None and column.missing_text is not None:
        values[absent], absent = column.missing_text, None
    return pa.array(values, kind, mask=absent)


def _zone(column: Column) -> str | None:
    """Return the time zone of a column's decoded values; None if they have none."""
    return column.zone if isinstance(column, DateTime) and column.kind == "datetime" else None


def _arrow_type(kind: str, zone: str | None = None) -> Any:
    return {
        "text": pa.string(),
        "category": pa.dictionary(pa.int32(), pa.string()),
        "integer": pa.int64(),
        "number": pa.float64(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "datetime": pa.timestamp("us", zone),
    }[kind]


def plain_table(table: Any) -> Any:
    """Return the table with categories as texts, and times as a clock in their zone shows them."""
    texts = (v.cast(pa.string()) if pa.types.is_dictionary(v.type) else v for v in table.columns)
    return pa.table(list(map(clock_times, texts)), names=table.column_names)


def spreadsheet_safe(text: str) -> str:
    """Return the text, with a single quote before it if a spreadsheet would run it.

    >>> spreadsheet_safe("=1+1"), spreadsheet_safe("F")
    ("'=1+1", 'F')
    """
    return f"'{text}" if _RUNS.match(text) else text


def with_safe_texts(table: Any) -> Any:
    """Return the table, in the plain types of `plain_table`, with a single quote before every text
    that a spreadsheet would run.
    """
    table = plain_table(table)
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            known = table.column(place).combine_chunks().dictionary_encode()
            texts = pa.array(list(map(spreadsheet_safe, known.dictionary.to_pylist())), pa.string())
            table = table.set_column(place, field, texts.take(known.indices))
    return table


def with_decimal_commas(table: Any, schema: Schema) -> Any:
    """Return the table with a decimal comma in every number that is a text, as in columns with
    `decode_as: text`. Texts of missing values stay as they are.
    """
    for place, field in enumerate(table.schema):
        column = schema.shown[field.name]
        if column.midpoints is not None and column.kind in ("text", "category"):
            with_comma = with_other_sign(table.column(place).combine_chunks(), column, (".", ","))
            table = table.set_column(place, field, with_comma)
    return table


def with_other_sign(values: Any, column: Column, *signs: tuple[str, str]) -> Any:
    """Return texts of numbers in an Arrow array with the second of each pair of `signs` in place of
    the first, one pair after the other. Texts that stand for missing values, such as "k.A.", stay
    as they are.
    """
    if pa.types.is_dictionary(values.type):
        known = with_other_sign(values.dictionary, column, *signs)
        return pa.DictionaryArray.from_arrays(values.indices, known)
    absent, changed = pa.array(column.missing_texts, values.type), values
    for sign, other in signs:
        changed = compute.replace_substring(changed, sign, other)
    kept = compute.is_in(compute.utf8_trim_whitespace(values), absent)
    return compute.if_else(kept, values, changed)


def csv_lines(table: Any, schema: Schema, form: FileFormat) -> bytes:
    """Return the records of a table of values as lines of a CSV file, without a header.

    Values are quoted only if they need it; a missing value is the first of the column's `missing`
    texts, or empty.
    """
    if not table.num_rows:
        return b""
    large, texts = pa.large_string(), []
    for name in table.column_names:
        column, values = schema.shown[name], table.column(name).combine_chunks()
        own = _texts(values, column, form).fill_null(column.missing[0] if column.missing else "")
        texts.append(_quoted(own, form).cast(large))
    joined = compute.binary_join_element_wise(*texts, pa.scalar(form.written_separator, large))
    if len(texts) == 1:
        # Readers skip an empty line, so a single empty value is written in quotes.
        joined = compute.if_else(compute.equal(joined, ""), pa.scalar('""', large), joined)
    lines = compute.binary_join_element_wise(joined, pa.scalar("\n", large), pa.scalar("", large))
    return bytes(memoryview(lines.buffers()[2]))


def json_lines(table: Any, schema: Schema, form: FileFormat) -> bytes:
    """Return the records of a table of values as lines of JSON objects. A missing value is null or,
    among decoded texts, the column's `missing_text`.
    """
    columns = {}
    for name in table.column_names:
        values = table.column(name).combine_chunks()
        kinds = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
        plain = any(is_kind(values.type) for is_kind in kinds)
        columns[name] = values if plain else _texts(values, schema.shown[name], form)
    records = pa.table(columns).to_pylist()
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records).encode()


def _texts(values: Any, column: Column, form: FileFormat) -> Any:
    """Return an Arrow array of values as texts; nulls stay null."""
    if pa.types.is_boolean(values.type):
        words = getattr(column, "words", None) or ("False", "True")
        texts = compute.if_else(values, words[1], words[0])
    elif pa.types.is_timestamp(values.type):
        seconds = clock_times(values).cast(pa.timestamp("s"), safe=False)
        form_of_times = getattr(column, "format", None)
        # Arrow cannot write these signs, so the texts are in ISO 8601.
        if form_of_times is None or re.search("%[-fklPs]", form_of_times):
            form_of_times = "%Y-%m-%dT%H:%M:%S"
        texts = compute.strftime(seconds, form_of_times)
    elif pa.types.is_string(values.type) or pa.types.is_dictionary(values.type):
        texts = values.cast(pa.string())
    else:
        texts = _padded(values, column)
        if pa.types.is_floating(values.type) and form.decimal != ".":
            texts = compute.replace_substring(texts, ".", form.decimal)
    return texts


def _padded(values: Any, column: Column) -> Any:
    """Return the texts of numbers, with trailing zeros if the column asks for them, but never fewer
    decimals than the number has, as a special value may.

    Values of 2^53 or more units of the last decimal are not exact in float64: columns with such
    values have no trailing zeros.
    """
    texts = values.cast(pa.string())
    if not isinstance(column, Numeric) or not column.trailing_zeros or column.kind != "number":
        return texts
    largest = max(map(abs, [*column.positions.tolist(), *column.special_positions]))
    if largest * 10.0 ** (column.decimals or 0) >= EXACT:
        return texts
    # Arrow writes a decimal128 with all its decimal places. Where these change the number, its own
    # text is kept.
    padded = values.cast(pa.decimal128(38, column.decimals or 0)).cast(pa.string())
    return compute.if_else(compute.equal(padded.cast(pa.float64()), values), padded, texts)


def _quoted(texts: Any, form: FileFormat) -> Any:
    """Return the texts, in quotes if they contain the file's separator, a quote or a line end, or
    begin like a comment.
    """
    signs = "".join(f"\\{each}" for each in (form.written_separator, '"', "\n", "\r"))
    comment = "" if form.comment is None else f"|^{re.escape(form.comment)}"
    needed = compute.match_substring_regex(texts, f"[{signs}]{comment}")
    if not compute.any(needed).as_py():
        return texts
    doubled = compute.replace_substring(texts, '"', '""')
    return compute.if_else(needed, compute.binary_join_element_wise('"', doubled, '"', ""), texts)
