"""Files of records: CSV and parquet, read into codes in batches, written whole or not at all.

CSV values are read as texts, exactly as they stand but for spaces around them; what they mean is
the schema's business.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from pgmkit.atomic_write import atomic_writer
from pgmkit.dataset import Dataset
from pgmkit.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgmkit.tables.schema import FileFormat, Schema

__all__ = ["batches", "encode_file", "names_of", "read_frame", "write_file"]

_ROWS = 1 << 17


def encode_file(
    path: str | os.PathLike[str], schema: Schema, *, ignore_extra: bool = True
) -> Dataset:
    """The records of a CSV or parquet file as codes; only codes are ever held for all rows.

    Columns that the schema does not have are an error unless `ignore_extra`. Raises InvalidInput
    for a file that is malformed, not UTF-8, empty, of another suffix, without the schema's columns
    or with two of one name, and for values outside the schema.
    """
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in schema.columns}
    outside: Counter[str] = Counter()
    if not ignore_extra:
        _check_no_others(path, schema)
    for batch in batches(path, schema.file, tuple(schema.columns)):
        for name, column in schema.columns.items():
            codes = column.encode(batch[name])
            outside[name] += int((codes < 0).sum())
            parts[name].append(codes.astype(np.min_scalar_type(column.size)))
    from pgmkit.tables.schema import outside_error

    for name, rows in outside.items():
        if rows:
            raise outside_error(name, rows)
    if not next(iter(parts.values())):
        raise InvalidInput(f"{os.fspath(path)} holds no records")
    data = Dataset(schema.domain, {name: np.concatenate(codes) for name, codes in parts.items()})
    schema.check_constraints(data)
    return data


def read_frame(path: str | os.PathLike[str], schema: Schema, *, ignore_extra: bool = True) -> Any:
    """The schema's columns of a CSV or parquet file as a pyarrow table, values as they stand."""
    import pyarrow as pa

    if not ignore_extra:
        _check_no_others(path, schema)
    parts = [
        pa.table({name: pa.array(values) for name, values in batch.items()})
        for batch in batches(path, schema.file, tuple(schema.columns))
    ]
    if not parts:
        raise InvalidInput(f"{os.fspath(path)} holds no records")
    return pa.concat_tables(parts, promote_options="default")


def _check_no_others(path: str | os.PathLike[str], schema: Schema) -> None:
    others = [name for name in names_of(path, schema.file) if name not in schema.columns]
    if others:
        raise InvalidInput(
            f"{os.fspath(path)} has columns that the schema does not: "
            f"{', '.join(map(repr, others))}. Describe them, or ignore them: "
            "--ignore-extra-columns, ignore_extra=True"
        )


def names_of(path: str | os.PathLike[str], form: FileFormat) -> list[str]:
    """The column names of a file."""
    if Path(path).suffix.lower() in (".parquet", ".pq"):
        from pyarrow import ArrowInvalid, parquet

        try:
            names: list[str] = parquet.read_schema(path).names
        except ArrowInvalid as error:
            raise InvalidInput(
                f"{os.fspath(path)} is not a parquet file: {_first_line(error)}"
            ) from None
        return names
    return _csv_names(os.fspath(path), form)


def batches(
    path: str | os.PathLike[str], form: FileFormat, names: tuple[str, ...] | None = None
) -> Iterator[dict[str, NDArray[Any]]]:
    """Columns by name, some 100,000 rows at a time; `names` limits them.

    Raises InvalidInput as `encode_file` does.
    """
    suffix = Path(path).suffix.lower()
    if suffix in (".parquet", ".pq"):
        return _parquet(os.fspath(path), names)
    if suffix in (".csv", ".data", ".txt", ".tsv"):
        return _csv(os.fspath(path), form, names)
    raise InvalidInput(
        f"{os.fspath(path)} must be CSV (.csv, .data, .txt, .tsv) or parquet (.parquet, .pq); "
        "read other formats into a data frame and pass that"
    )


def write_file(path: str | os.PathLike[str], columns: dict[str, NDArray[Any]]) -> None:
    """Write columns as CSV or parquet by the suffix, whole or not at all."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".csv", ".parquet", ".pq"):
        raise InvalidInput(f"{os.fspath(path)} must end in .csv or .parquet")
    with atomic_writer(path) as file:
        if suffix == ".csv":
            _write_csv(file, columns)
        else:
            import pyarrow as pa
            from pyarrow import parquet

            arrays = {name: pa.array(_mixed(values)) for name, values in columns.items()}
            parquet.write_table(pa.table(arrays), file)


def _write_csv(file: BinaryIO, columns: Mapping[str, NDArray[Any]]) -> None:
    """Quotes only where a value needs them; a missing value is empty."""
    import csv

    lines = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    lines.flush()
    lines.detach()


def _mixed(values: NDArray[Any]) -> Any:
    return values.tolist() if values.dtype == object else values


def _parquet(path: str, names: tuple[str, ...] | None) -> Iterator[dict[str, NDArray[Any]]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            _check_names(path, file.schema_arrow.names, names)
            for batch in file.iter_batches(_ROWS, columns=None if names is None else list(names)):
                yield _arrays(batch)
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"{path} is not a parquet file: {_first_line(error)}") from None


def _csv(
    path: str, form: FileFormat, names: tuple[str, ...] | None
) -> Iterator[dict[str, NDArray[Any]]]:
    import pyarrow as pa
    from pyarrow import csv

    malformed: list[int | None] = []

    def judge(row: Any) -> str:
        if form.comment is not None and row.text.startswith(form.comment):
            return "skip"
        malformed.append(row.number)
        return "error"

    header = _csv_names(path, form)
    _check_names(path, header, names)
    wanted = header if names is None else list(names)
    try:
        reader = csv.open_csv(
            path,
            read_options=csv.ReadOptions(
                column_names=header, skip_rows=0 if form.names else 1, use_threads=False
            ),
            parse_options=csv.ParseOptions(delimiter=form.separator, invalid_row_handler=judge),
            convert_options=csv.ConvertOptions(
                include_columns=wanted,
                column_types={name: pa.string() for name in header},
                strings_can_be_null=False,
            ),
        )
        for batch in reader:
            yield _arrays(batch, strip=True)
    except pa.ArrowInvalid as error:
        raise InvalidInput(_csv_fault(path, header, malformed, str(error))) from None


def _csv_names(path: str, form: FileFormat) -> list[str]:
    """The column names: given, or the file's first line."""
    import csv

    if form.names is not None:
        return list(form.names)
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            header = next(csv.reader(lines, delimiter=form.separator), [])
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not text in UTF-8; convert it first") from None
    names = [name.strip() for name in header]
    if not any(names):
        raise InvalidInput(f"{path} is empty, or its first line holds no column names")
    return names


def _check_names(path: str, found: list[str], names: tuple[str, ...] | None) -> None:
    for name, times in Counter(found).items():
        if times > 1 and (names is None or name in names):
            raise InvalidInput(f"{path} has {times} columns named {name!r}; rename them")
    absent = [name for name in names or () if name not in found]
    if absent:
        raise InvalidInput(
            f"{path} has no column {', '.join(map(repr, absent))}; it has "
            f"{', '.join(map(repr, found[:30]))}. Use the schema of this file"
        )


def _csv_fault(path: str, header: list[str], malformed: list[int | None], said: str) -> str:
    if malformed:
        line = "" if malformed[0] is None else f", line {malformed[0]}"
        return f"{path}{line}: a record does not have {len(header)} values, as the columns have"
    if "UTF8" in said or "UTF-8" in said:
        return f"{path} is not text in UTF-8; convert it first"
    if "mpty" in said:
        return f"{path} holds no records"
    # The reader's own message could quote values.
    return f"{path} is not a well-formed CSV file"


def _arrays(batch: Any, strip: bool = False) -> dict[str, NDArray[Any]]:
    import pyarrow as pa
    from pyarrow import compute

    columns = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if strip:
            column = compute.utf8_trim_whitespace(column)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            # Distinct texts are few: codes of them are far smaller than objects.
            known = column.dictionary_encode()
            texts = np.array([*known.dictionary.to_pylist(), None], dtype=object)
            places = known.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)
            columns[name] = texts[places]
        else:
            columns[name] = column.to_numpy(zero_copy_only=False)
    return columns


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
