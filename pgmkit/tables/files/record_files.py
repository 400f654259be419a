"""Files of records, which are read in batches, and written completely or not at all.

CSV values are read as texts, exactly as they are in the file; the schema decides what they mean.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from pgmkit.errors import InvalidInput, unquoted
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.arguments import any_array
from pgmkit.runtime.atomic_write import atomic_writer
from pgmkit.runtime.typed import typed
from pgmkit.runtime.untrusted import FilePath
from pgmkit.tables import records
from pgmkit.tables.columns import Column
from pgmkit.tables.files import foreign
from pgmkit.tables.files.csv_file import SEPARATORS
from pgmkit.tables.files.foreign_writing import foreign_content
from pgmkit.tables.files.formats import is_foreign, plain_suffix, written_format
from pgmkit.tables.files.reading import batches, check_columns
from pgmkit.tables.quoting import quoted
from pgmkit.tables.schema import Schema
from pgmkit.tables.schema_file import FileFormat
from pgmkit.tables.values import is_text


@typed
@unquoted
def encode_file(path: FilePath, schema: Schema, *, ignore_extra: bool = True) -> Dataset:
    """Return the records of a file as codes. The values of CSV, parquet and JSON files are read in
    batches, so that all rows are in memory as codes only; other files are read whole.

    Reads CSV (also compressed: .csv.gz), parquet, JSON lines, and with the extra `files` Excel,
    SPSS, Stata and SAS. Columns that the schema does not have are an error unless `ignore_extra`;
    an index and the columns that the schema's `file` ignores are always allowed.

    Raises InvalidInput for a file that is damaged, with another suffix, without the schema's
    columns or with two of one name. Unless `Schema.placed` made the schema, it also raises for an
    ill-formed line, text that is not in the encoding, no records, values outside the schema and
    broken constraints. By a schema of `Schema.placed` an ill-formed line is a record of which every
    value is outside, and the keys of JSON lines are private: what a line does not have is missing.
    """
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in schema.columns}
    unread: Counter[str] = Counter()
    if not ignore_extra:
        check_columns(path, schema, ignore_extra=False)
    broken: list[object] | None = None if schema.checked else []
    for batch in batches(path, schema.file, tuple(schema.columns), broken):
        for name, column in schema.columns.items():
            codes, without = column.read(_plain_decimals(batch[name], column, schema.file))
            unread[name] += int(without.sum())
            parts[name].append(codes.astype(np.min_scalar_type(column.size)))
    for name, column in schema.columns.items():
        kind = np.min_scalar_type(column.size)
        parts[name].append(np.full(len(broken or ()), max(column.outside_code, 0), dtype=kind))
        unread[name] += len(broken or ())
    return schema.coded({name: np.concatenate(codes) for name, codes in parts.items()}, unread)


@unquoted
def read_frame(path: FilePath, schema: Schema, *, also: Sequence[str] = ()) -> Any:
    """Return the schema's columns of a file, and those in `also`, as a pyarrow table of the file's
    values.

    Raises InvalidInput as `encode_file` does; by a schema of `Schema.placed` an ill-formed line is
    a record of nulls.
    """
    names = (*schema.columns, *also)
    broken: list[object] | None = None if schema.checked else []
    parts = []
    for batch in batches(path, schema.file, names, broken):
        plain = {n: _plain_decimals(batch[n], c, schema.file) for n, c in schema.columns.items()}
        parts.append(pa.table({**plain, **{name: batch[name] for name in also}}))
    if broken:
        parts.append(pa.table({name: pa.nulls(len(broken)) for name in names}))
    if not parts:
        return pa.table({name: pa.array([], pa.string()) for name in names})
    return pa.concat_tables(parts, promote_options="permissive")


def _plain_decimals(values: Any, column: Column, form: FileFormat) -> Any:
    """Return the values of a column. If the file writes a decimal comma and the column is one of
    numbers, commas and points are exchanged in the texts, as by `with_point`, except in those that
    stand for missing values.
    """
    if form.decimal != "." and pa.types.is_union(values.type):
        cells = values.to_pylist()
        own = pa.array([each if isinstance(each, str) else None for each in cells], pa.string())
        texts = _plain_decimals(own, column, form).to_pylist()
        pairs = zip(cells, texts, strict=True)
        return foreign.cell_array([cell if text is None else text for cell, text in pairs])
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if form.decimal == "." or column.midpoints is None or not is_text(kind):
        return values
    between = "\ufdd0"  # Unicode reserves it for such uses inside a program
    return records.with_other_sign(values, column, (".", between), (",", "."), (between, ","))


@typed
def write_file(path: FilePath, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write columns of plain values as CSV or parquet, by the suffix, completely or not at all.

    Texts in CSV are quoted as by Python's csv module; None and NaT are empty, NaN is "nan", and
    times are cut off to microseconds.
    Raises InvalidInput for another suffix, no columns, and columns that are not arrays of one axis
    and one length, or that are masked.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise InvalidInput(f"{os.fspath(path)} must end in .csv or .parquet")
    values = {name: any_array(each, f"column {name!r}") for name, each in columns.items()}
    shapes = {each.shape for each in values.values()}
    if len(shapes) != 1 or len(*shapes) != 1:
        raise InvalidInput(f"columns must be arrays of one length, got shapes {sorted(shapes)}")
    with atomic_writer(path) as file:
        if suffix == ".parquet":
            table = {n: v.tolist() if v.dtype == object else v for n, v in values.items()}
            parquet.write_table(pa.table(table), file)
        else:
            # numpy would give times in nanoseconds as whole numbers.
            kinds = {np.dtype("M8[ns]"): "M8[us]", np.dtype("m8[ns]"): "m8[us]"}
            listed = (v.astype(kinds.get(v.dtype, v.dtype)).tolist() for v in values.values())
            text, rows = io.StringIO(), zip(*listed, strict=True)
            csv.writer(text, lineterminator="\n").writerows(itertools.chain([columns], rows))
            file.write(text.getvalue().encode("utf-8"))


def write_records(
    path: FilePath,
    schema: Schema,
    parts: Iterable[Dataset],
    rng: np.random.Generator,
    *,
    safe_csv: bool = False,
) -> int:
    """Write the coded records of all `parts` to a file, completely or not at all, and return their
    number. `rng` draws values within bins.

    The suffix selects the format, and `safe_csv` how texts are spelled, as in `write_tables`.
    """
    tables = (records.arrow_table(part, schema, rng) for part in parts)
    return write_tables(path, schema, tables, safe_csv=safe_csv)


def write_tables(
    path: FilePath, schema: Schema, tables: Iterable[Any], *, safe_csv: bool = False
) -> int:
    """Write pyarrow tables with the schema's columns to one file, and return the number of rows.

    The suffix selects CSV, parquet, JSON lines, Excel, SPSS or Stata. Memory holds one table at a
    time, for Excel, SPSS and Stata all of them (`pgmkit.tables.files.foreign_writing`). CSV is in
    UTF-8, with a header line and the separator and decimal sign of the schema's `file`; the
    separator of a .tsv file is a tab. Numbers that are texts (`decode_as: text`) have this decimal
    sign in every format.

    `tables`: at least one. `safe_csv`: whether a single quote is put before texts in a CSV or Excel
    file, and names in the header of a CSV file, that a spreadsheet would run.

    Raises InvalidInput for another suffix, and as `foreign_content` does.
    """
    kind = written_format(path)
    form = schema.file
    if plain_suffix(path) == ".tsv":
        form = replace(form, separator="\t")
    if form.decimal != ".":
        tables = (records.with_decimal_commas(table, schema) for table in tables)
    if safe_csv and kind in ("CSV", "Excel"):
        tables = map(records.with_safe_texts, tables)
    if is_foreign(path):
        content, rows = foreign_content(path, tables, schema)
        with atomic_writer(path) as file:
            file.write(content)
        return rows
    rows = 0
    with atomic_writer(path) as file:
        writer = None
        if kind == "CSV":
            names = [records.spreadsheet_safe(name) if safe_csv else name for name in schema.shown]
            file.write(_header_line(names, form))
        for table in tables:
            rows += table.num_rows
            if kind == "parquet":
                writer = writer or parquet.ParquetWriter(file, table.schema)
                writer.write_table(table)
            else:
                lines = records.csv_lines if kind == "CSV" else records.json_lines
                file.write(lines(table, schema, form))
        if writer is not None:
            writer.close()
    return rows


def _header_line(names: Sequence[str], form: FileFormat) -> bytes:
    """Return the header of a CSV file. A name is in quotes if it needs them, and also if it holds
    another separator, which readers could take for that of the file.
    """
    end, comment = form.written_separator, form.comment or "\n"
    signs = (end, *SEPARATORS, '"', "\n", "\r")
    odd = (any(map(name.__contains__, signs)) or name.startswith(comment) for name in names)
    texts = (quoted(name) if each else name for name, each in zip(names, odd, strict=True))
    return f"{end.join(texts)}\n".encode()
