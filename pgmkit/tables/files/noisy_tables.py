"""Noisy tables read from files as measurements: CSV with a line for each cell, or JSON.

A CSV file is one table. Its columns are some of the schema's or of its levels, one with the noisy
values, and optionally `stddev`. A line contains a label of each column, or a range "low..high" of
several labels. Cells that are not listed are not measured. Tables as statistical offices publish
them are read too (`pgmkit.tables.files.published`).
"""

from __future__ import annotations

import csv
import io
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput, check_known, naming
from pgmkit.measurement import Measurement
from pgmkit.runtime.arguments import listed
from pgmkit.runtime.typed import typed
from pgmkit.runtime.untrusted import FilePath, plain_values, whole_file
from pgmkit.tables.columns import MISSING, Column
from pgmkit.tables.constraints import Mask, codes_of
from pgmkit.tables.files import published
from pgmkit.tables.files.csv_file import dividing, likely_separator
from pgmkit.tables.schema import Schema
from pgmkit.tables.values import with_point

_STDDEV = "stddev"


@typed
def read_noisy_tables(
    path: FilePath,
    schema: Schema,
    *,
    stddev: float | None = None,
    value: str | None = None,
    rounding: int | None = None,
) -> list[Measurement]:
    """Return the measurements in a file: one for a CSV table, one for each table of a JSON list.

    Lines with different `stddev` make one measurement, scaled to a stddev of 1. Raises
    InvalidInput, with the file's name and the line, for anything in the file that cannot be read,
    and for `value` or `rounding` with a JSON file. Warns if the last line of a CSV file has no line
    end, since the file may be cut off there.

    Args:
        path: A file with the suffix .csv, .tsv, .txt or .json.
        schema: The schema of the columns.
        stddev: The noise's standard deviation, in counts, where the file does not say; needed
            there, unless `rounding` is given.
        value: The CSV column with the noisy counts. By default it is the only column that is
            neither the schema's nor `stddev`; or it is all such columns, if they are the values of
            one further column of the schema (a wide table). Columns that `schema.file.ignore` names
            are not read, and any others are refused.
        rounding: The number to whose multiples the counts of a CSV table are rounded, in addition
            to any noise; 1 for exact counts. Such counts must be whole. In the file, a stddev of 0
            says that a line's count has no noise.

    >>> import tempfile
    >>> from pgmkit import Categorical, Integer, Schema
    >>> schema = Schema({"age": Integer(0, 3), "sex": Categorical(("F", "M"))})
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("age,count,stddev\\n0..1,70.5,2\\n2,12.5,2\\n3,9,2\\n")
    ...     file.flush()
    ...     (table,) = read_noisy_tables(file.name, schema)
    >>> table.clique, table.stddev, table.matrix.toarray().tolist()
    (('age',), 2.0, [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    """
    name = os.fspath(path)
    if Path(path).suffix.lower() == ".json":
        if (value, rounding) != (None, None):
            raise InvalidInput(f"{name}: value and rounding are for CSV tables; leave them out")
        return _json(name, schema, stddev)
    if Path(path).suffix.lower() in (".csv", ".tsv", ".txt"):
        if rounding is not None and rounding < 1:
            raise InvalidInput(f"rounding must be a whole number, 1 or more; got {rounding!r}")
        return [_csv(name, schema, stddev, value, rounding)]
    raise InvalidInput(f"{name}: noisy tables must be .csv (.tsv, .txt) or .json files")


def _json(path: str, schema: Schema, stddev: float | None) -> list[Measurement]:
    try:
        stored = plain_values(whole_file(path).decode("utf-8-sig"))
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON in UTF-8: {error}") from None
    if not isinstance(stored, list):
        raise InvalidInput(f"{path} must hold a list of tables, got {type(stored).__name__}")
    given = {} if stddev is None else {_STDDEV: stddev}
    found = []
    for number, table in enumerate(stored, 1):
        where = f"{path}, table {number}"
        whole = {**given, **table} if isinstance(table, dict) else {}
        if set(whole) != {"columns", "values", _STDDEV}:
            raise InvalidInput(
                f'{where} must be {{"columns": [...], "values": [...], "stddev": ...}} '
                "(--stddev stands in where it is left out)"
            )
        with naming(where):
            columns = listed(whole["columns"], "columns", "names")
            found.append(Measurement(tuple(columns), whole["values"], whole[_STDDEV]))
            found[-1].check(schema.domain)
    return found


def _csv(
    path: str, schema: Schema, stddev: float | None, value: str | None, rounding: int | None
) -> Measurement:
    header, lines = _lines(path)
    header = published.with_row_names(path, schema, header, [line for _, line in lines])
    kept = [*(name for name in schema.shown if name != value), _STDDEV, *schema.file.ignore]
    wide = None if value is not None else published.long_lines(path, schema, header, lines, kept)
    if wide is not None:
        header, lines, value = wide
    named = tuple(name for name in schema.shown if name in header and name != value)
    levels = schema.groups
    clique = tuple(dict.fromkeys(levels[n].base if n in levels else n for n in named))
    places = {name: header.index(name) for name in named}
    rest = [name for name in header if name == value or name not in (*kept, "")]
    counted = header.index(_value_column(path, schema, header, rest, value))
    noise = header.index(_STDDEV) if _STDDEV in header and _STDDEV not in named else None
    if noise is None and stddev is None and rounding is None:
        raise InvalidInput(
            f"{path} does not say how noisy it is; add a column stddev, or state the "
            "noise by --stddev (in Python stddev=), or what published counts are rounded to by "
            "--rounding (rounding=; 1 for exact counts)"
        )
    known: _Known = {}
    rows, seen = [], set()
    counts = list[tuple[float, float]]()
    for number, line in lines:
        where = f"{path}, line {number}"
        texts = tuple(line[places[name]].strip() for name in named)
        if texts in seen:
            raise InvalidInput(f"{where} gives the cell {', '.join(texts) or 'total'} again")
        seen.add(texts)
        cells = _cells(where, schema, dict(zip(named, texts, strict=True)), known)
        if published.is_suppressed(line[counted]):
            continue
        own = stddev or 0.0
        if noise is not None:
            own = _number(where, _STDDEV, line[noise], schema.file.decimal)
        if not 0 <= own < math.inf:
            raise InvalidInput(f"{where}: stddev must be finite, 0 or more (0: exact), got {own:g}")
        rows.append(cells)
        counts.append(_count(where, line[counted], schema.file.decimal, own, rounding))
    if not rows:
        raise InvalidInput(f"{path} holds no cells that are not suppressed")
    return _measurement(schema, clique, rows, *np.array(counts, dtype=np.float64).T)


def _count(
    where: str, text: str, decimal: str, noise: float, step: int | None
) -> tuple[float, float]:
    """Return the count that a text states, and its standard deviation: that of `noise` together
    with that of rounding to multiples of `step` (None: no rounding) or, for a text such as "<10",
    of the counts that it allows; at least `published.EXACT`. `where` is the place for errors.
    Raises InvalidInput for a text that is no count, for a rounded count that is not whole, as 1.204
    for 1204, and for a count below 0 without noise.
    """
    try:
        value, own = published.cell_of(text)
    except ValueError:
        value, own = _number(where, "value", text, decimal), published.spread(step or 1)
        if step and not value.is_integer():
            raise InvalidInput(
                f"{where}: value {text!r} is not whole, as rounded counts are; write 1204 for 1.204"
            ) from None
        if value < 0 and not noise:
            raise InvalidInput(
                f"{where}: value {text!r} is negative, which a count without noise cannot be; "
                "correct it, or state its noise (stddev)"
            ) from None
    return value, max(math.hypot(noise, own), published.EXACT)


def _lines(path: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header and the lines with their numbers, without empty lines; the separator is
    that of the header. Raises InvalidInput for a file that is not UTF-8 or has no line below its
    header, for two columns of one name, and unless every line has a value for each column. Warns if
    the last line has no end, since the file may be cut off there.
    """
    try:
        with naming(path):
            text = whole_file(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not text in UTF-8; convert it first") from None
    separator = likely_separator(text.partition("\n")[0])
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    with dividing(path):
        header = [name.strip() for name in next(reader, [])]
        lines = [(reader.line_num, line) for line in reader if line]
    if not lines:
        raise InvalidInput(f"{path} holds no cells; write a line for each below the header")
    for name in header:
        if header.count(name) > 1:
            raise InvalidInput(f"{path} has two columns named {name!r}; rename one")
    for number, line in lines:
        if len(line) != len(header):
            raise InvalidInput(
                f"{path}, line {number} has {len(line)} values for {len(header)} columns; delete "
                "titles above the header and notes below the table"
            )
    if not text.endswith(("\n", "\r", '"')):  # a quoted value is whole
        warnings.warn(
            f"the last line of {path} has no line end: if the file was cut off there, its last "
            f"value {line[-1]!r} may be the beginning of another; if not, end the line",
            stacklevel=5,
        )
    return header, lines


def _value_column(
    path: str, schema: Schema, header: Sequence[str], others: Sequence[str], value: str | None
) -> str:
    if value is not None:
        check_known([value], header, f"{path} has no column", "its columns are")
    if len(others) != 1:
        raise InvalidInput(
            f"{path} must have one column of noisy counts beside those of the schema and stddev "
            f"(or one for each value of a column); found {', '.join(others) or 'none'}"
            f"{published.hint_at_values(schema, header, others)}. Columns "
            f"are {', '.join(header)}; rename standard deviations to stddev, and delete other "
            "columns or list them under `file: {ignore: [...]}` in the schema"
            f"{published.hint_at_total(others)}"
        )
    return others[0]


_Known = dict[tuple[str, str], tuple[str, Mask]]
"""For a column or level and a text, the column of records and a Boolean for each of its codes."""


def _cells(where: str, schema: Schema, texts: Mapping[str, str], known: _Known) -> NDArray[np.intp]:
    """Return the flat indices of the table's cells whose sum a line gives, by the line's text in
    each column. `known` keeps the codes of texts that have occurred; it is filled here. Raises
    InvalidInput, with the place `where`, for a text that is no value, and for texts of a column and
    its levels that no value meets together.
    """
    allowed: dict[str, Mask] = {}
    for name, text in texts.items():
        if (name, text) not in known:
            with naming(where):
                known[name, text] = schema.behind(name, _codes(name, schema.shown[name], text))
        base, mask = known[name, text]
        allowed[base] = allowed.get(base, True) & mask
        if not allowed[base].any():
            raise InvalidInput(f"{where}: no value of {base!r} is in {', '.join(texts.values())}")
    flat = np.zeros(1, dtype=np.intp)
    for mask in allowed.values():
        flat = (flat[:, None] * len(mask) + np.flatnonzero(mask)).reshape(-1)
    return flat


def _codes(name: str, column: Column, text: str) -> Mask:
    if published.is_total(column, text):
        return np.ones(column.size, dtype=bool)
    absent = column.missing is not None and text in ("", *column.missing_texts)
    if absent and text not in column.own_labels:
        return codes_of(name, column, MISSING)
    try:
        return codes_of(name, column, published.range_of(column, text))
    except InvalidInput as error:
        raise InvalidInput(f"{error}{published.hint_at_total([text])}") from None


def _number(where: str, title: str, text: str, decimal: str) -> float:
    try:
        number = float(with_point(text, decimal))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(
            f"{where}: {title} {text.strip()!r} is no number (write 1234{decimal}5, without "
            "separators of thousands, and .. for a cell that is not known; a decimal comma needs "
            '`file: {decimal: ","}` in the schema)'
        )
    return number


def _measurement(
    schema: Schema,
    clique: tuple[str, ...],
    rows: Sequence[NDArray[np.intp]],
    values: NDArray[np.float64],
    noises: NDArray[np.float64],
) -> Measurement:
    cells = schema.domain.size(clique)
    same, order = bool((noises == noises[0]).all()), np.concatenate(rows)
    if same and len(rows) == cells and np.array_equal(np.sort(order), np.arange(cells)):
        return Measurement(clique, values[np.argsort(order)], float(noises[0]))
    lengths = np.array([len(row) for row in rows])
    scales, stddev = (1.0, float(noises[0])) if same else (noises, 1.0)
    weights = np.repeat(np.ones(len(rows)) / scales, lengths)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    matrix = scipy.sparse.csr_array((weights, order, ends), shape=(len(rows), cells))
    return Measurement(clique, values / scales, stddev, matrix)
