"""One table, many sources: files and frames of every kind give the same codes."""

import csv
import datetime
import io
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgmkit import (
    Boolean,
    Categorical,
    Column,
    Date,
    FileFormat,
    Integer,
    Numeric,
    OpenCategorical,
    Schema,
)
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset
from pgmkit.tables.engines.frames import FrameForm, counts_of, decode, encode
from pgmkit.tables.files.record_files import encode_file, read_frame, write_records

MISSING = st.sampled_from([None, (), ("?",), ("NA", "-"), ("-9",)])
DAYS = st.dates(datetime.date(2019, 1, 1), datetime.date(2021, 12, 31))


@st.composite
def column(draw: st.DrawFn) -> tuple[Column, list[Any]]:
    """A column, and the values that a row of it can hold: fitting ones and odd ones."""
    missing = draw(MISSING)
    outside = draw(st.sampled_from([None, "place"]))
    kind = draw(st.sampled_from(["integer", "numeric", "label", "number labels", "truth", "date"]))
    shared: dict[str, Any] = {"missing": missing}
    found: Column
    values: list[Any]
    if kind == "integer":
        low = draw(st.integers(-8, 30))  # -9 may be listed as missing
        high = low + draw(st.integers(5, 60))
        spikes = (draw(st.integers(low, high)),) if draw(st.booleans()) else ()
        special = (9999,) if draw(st.booleans()) else ()
        bins = draw(st.integers(1, 5))
        found = Integer(low, high, bins=bins, spikes=spikes, special=special, **shared)
        values = [low, high, *spikes, 9999, high + 1, low - 7, -9, draw(st.integers(low, high))]
    elif kind == "numeric":
        places = draw(st.integers(0, 3))
        found = Numeric(
            0,
            50,
            bins=draw(st.integers(1, 6)),
            spikes=(10,),
            special=(-5.5,),
            decimals=places,
            **shared,
        )
        values = [0.0, 50.0, 10.0, -5.5, 51.25, -9.0, 1e300, round(draw(st.floats(0, 50)), 6)]
    elif kind == "label":
        other = draw(st.sampled_from([None, "else"]))
        found = Categorical(("a", "b, c", 'say "x"', "é"), other=other, **shared)
        values = ["a", " a ", "b, c", 'say "x"', "é", "new", "A"]
    elif kind == "number labels":
        found = Categorical((1, 2, 9), other=draw(st.sampled_from([None, "rest"])), **shared)
        values = [1, 2, 9, 3, -9]
    elif kind == "truth":
        found = Boolean(words=draw(st.sampled_from([None, ("FALSE", "TRUE")])), **shared)
        values = [True, False]
    else:
        unit = draw(st.sampled_from(["day", "month", "year"]))
        found = Date("2020-01-01", "2020-12-31", unit=unit, **shared)
        values = [draw(DAYS), draw(DAYS), datetime.date(2020, 2, 29)]
    if outside:
        found = found.placed()
    if draw(st.booleans()):
        values.append(None)
    return found, values


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, dict[str, list[Any]]]:
    rows = draw(st.integers(1, 12))
    columns, table = {}, {}
    for i in range(draw(st.integers(1, 4))):
        found, values = draw(column())
        columns[f"c {i}"] = found
        table[f"c {i}"] = [values[j % len(values)] for j in draw(_picks(rows))]
    return Schema(columns), table


def _picks(rows: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 20), min_size=rows, max_size=rows)


def written(table: dict[str, list[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return text.getvalue().encode()


@settings(max_examples=60, deadline=None)
@given(tables())
def test_all_sources_give_the_same_codes(drawn: tuple[Schema, dict[str, list[Any]]]) -> None:
    schema, table = drawn
    wanted = {
        name: each.encode(np.array([*table[name], None], dtype=object)[:-1])
        for name, each in schema.columns.items()
    }
    arrow = pa.table({name: pa.array(values) for name, values in table.items()})
    sources: dict[str, Any] = {
        "pyarrow": arrow,
        "pandas": pd.DataFrame(table),
        "pandas objects": pd.DataFrame(table, dtype=object),
        "pandas nullable": pd.DataFrame(table).convert_dtypes(),
        "polars": pl.from_arrow(arrow),
        "duckdb": duckdb.from_arrow(arrow),
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "t.csv").write_bytes(written(table))
        pq.write_table(arrow, Path(folder, "t.parquet"))
        for name in ("t.csv", "t.parquet"):
            sources[name] = read_frame(Path(folder, name), schema)
        texts = pacsv.read_csv(Path(folder, "t.csv"))
    sources["pyarrow's csv"] = texts if _same_meaning(texts, arrow) else arrow
    placed = schema.placed()
    fits = all((codes >= 0).all() for codes in wanted.values())
    for kind, frame in sources.items():
        counted = counts_of(frame, placed)
        for name, each in placed.columns.items():
            codes = each.encode(np.array([*table[name], None], dtype=object)[:-1])
            expected = np.bincount(codes, minlength=each.size)
            np.testing.assert_array_equal(
                counted.marginals([(name,)])[name,], expected, err_msg=f"{kind}: {each}"
            )
        if kind != "duckdb" and fits:
            data = encode(frame, schema)
            assert isinstance(data, Dataset)
            for name, codes in wanted.items():
                np.testing.assert_array_equal(data.columns[name], codes, err_msg=kind)


def _same_meaning(read: pa.Table, arrow: pa.Table) -> bool:
    """Whether a reader that guesses types kept them: it reads 1.0 and TRUE as it likes."""
    return [str(kind) for kind in read.schema.types] == [str(kind) for kind in arrow.schema.types]


KIND = {
    "text": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
}


@settings(max_examples=60, deadline=None)
@given(tables(), st.integers(0, 2**32 - 1), st.sampled_from([",", ";", "\t"]), st.booleans())
def test_what_is_written_is_read_as_the_same_codes(
    drawn: tuple[Schema, dict[str, list[Any]]], seed: int, separator: str, comma: bool
) -> None:
    schema, _ = drawn
    decimal = "," if comma and separator != "," else "."
    schema = schema.of_file(FileFormat(separator=separator, decimal=decimal))
    rng = np.random.default_rng(seed)
    codes = {name: rng.integers(0, c.size, 40) for name, c in schema.columns.items()}
    data = Dataset(schema.domain, codes)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("o.csv", "o.parquet"):
            parts = [
                Dataset(schema.domain, {n: c[i : i + 20] for n, c in codes.items()})
                for i in (0, 20)
            ]
            assert write_records(Path(folder, name), schema, parts, rng) == 40
            again = encode_file(Path(folder, name), schema)
            for column_name, wanted in codes.items():
                np.testing.assert_array_equal(again.columns[column_name], wanted)
        found = pq.read_schema(Path(folder, "o.parquet"))
    assert {n: found.field(n).type for n in found.names} == {
        n: KIND[c.kind] for n, c in schema.columns.items()
    }
    for frame in (pd.DataFrame(), pl.DataFrame(), pa.table({})):
        back = decode(data, schema, rng, FrameForm.of(frame))
        again = encode(back, schema)
        for column_name, wanted in codes.items():
            np.testing.assert_array_equal(again.columns[column_name], wanted)


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_compressed_and_foreign_texts(tmp_path: Path, suffix: str) -> None:
    import bz2
    import gzip

    pack = {".gz": gzip.compress, ".bz2": bz2.compress}[suffix]
    schema = Schema({"größe": Numeric(0, 2000, bins=4), "name": Categorical(("ä", "b"))})
    text = "größe;name\n1.234,5;ä\n7,25;b\n"
    path = tmp_path / f"t.csv{suffix}"
    path.write_bytes(pack(text.encode("latin-1")))
    form = FileFormat(separator=";", decimal=",", encoding="latin-1")
    data = encode_file(path, schema.of_file(form))
    assert data.columns["größe"].tolist() == [2, 0] and data.columns["name"].tolist() == [0, 1]


@pytest.mark.parametrize("decimal", [".", ","])
def test_signs_that_do_not_part_thousands_make_no_number(tmp_path: Path, decimal: str) -> None:
    """With a decimal comma "12.5" is no number, as "12,5" is none with a decimal point."""
    texts = {"12.5": 12.5, "1,234.5": 1234.5, "1,234": 1234, "12,5": -1, "1.234,567": -1, "1,0": -1}
    exchanged = str.maketrans(",.", ".,") if decimal == "," else {}
    schema = Schema({"n": Numeric(0, 9999, bins=9999)})
    schema = schema.of_file(FileFormat(separator=";", decimal=decimal))
    path = tmp_path / "t.csv"
    for text, number in texts.items():
        path.write_text(f"n\n{text.translate(exchanged)}\n")
        if number == -1:
            with pytest.raises(InvalidInput, match="1 row"):
                encode_file(path, schema)
        else:
            assert encode_file(path, schema).columns["n"].tolist() == [int(number)]


def test_tables_of_other_programs(tmp_path: Path) -> None:
    openpyxl, pyreadstat = pytest.importorskip("openpyxl"), pytest.importorskip("pyreadstat")
    frame = pd.DataFrame({"age": [3.0, 44.0, np.nan], "sex": ["F", "M", "F"]})
    schema = Schema({"age": Integer(0, 99, bins=10, missing=()), "sex": Categorical(("F", "M"))})
    book = openpyxl.Workbook()
    for row in [["age", "sex"], [3, "F"], [44, "M"], [None, "F"]]:
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    pyreadstat.write_sav(frame, str(tmp_path / "t.sav"))
    pyreadstat.write_dta(frame, str(tmp_path / "t.dta"))
    for name in ("t.xlsx", "t.sav", "t.dta"):
        data = encode_file(tmp_path / name, schema)
        assert data.columns["age"].tolist() == [0, 4, 10], name
        assert data.columns["sex"].tolist() == [0, 1, 0], name


ONE_LABEL = {
    "texts": Categorical(("0", "1"), missing=()),
    "texts with points": Categorical(("0.0", "1.0"), missing=("NA",)),
    "with other": Categorical(("0", "1"), other="else", missing=()),
    "truth": Boolean(missing=()),
    "words": Boolean(words=("0", "1"), missing=("NA",)),
    "numbers": Categorical((0, 1), missing=()),
}


@pytest.mark.parametrize("column", ONE_LABEL.values(), ids=ONE_LABEL)
@pytest.mark.parametrize("texts", [["1.0", "0.0", "", "1.0"], ["1", "0", "", "1"]])
def test_whole_numbers_are_one_label_with_and_without_a_point(tmp_path, column, texts):
    schema = Schema({"x": column, "k": Integer(0, 9)})
    path = tmp_path / "x.csv"
    path.write_text("x,k\n" + "".join(f"{text},1\n" for text in texts))
    wanted = [1, 0, column.size - 1, 1]
    assert encode_file(path, schema).columns["x"].tolist() == wanted
    numbers = [float(text) if text else None for text in texts]
    for values in (
        np.array(texts),
        pa.array(texts),
        pa.array(numbers),
        pa.array(texts, pa.large_string()),
    ):
        assert column.encode(values).tolist() == wanted
    assert column.encode(np.array(numbers, dtype=float)).tolist() == wanted


def test_labels_that_differ_by_a_point_alone_keep_their_codes():
    assert Categorical(("1", "1.0")).encode(["1", "1.0", "1.00"]).tolist() == [0, 1, 0]
    assert Categorical(("1", "2")).encode(["01.0", "1.50", "2."]).tolist() == [-1, -1, 1]
    assert Categorical(("1",), missing=("9.0",)).encode([9.0, 9, "9"]).tolist() == [1, 1, 1]
    assert Categorical(("1",)).encode(["1" * 5000 + ".0", "-0.0"]).tolist() == [-1, -1]


def test_open_columns_find_whole_numbers_as_one_label():
    column = OpenCategorical(missing=("9.0",))
    counted = {"0": 1, "1": 3, None: 3}
    assert column.tally(np.array(["1.0", "1", "1.", "0.0", "9", "9.0", ""])) == counted


@pytest.mark.parametrize("outside", [None, "missing", "clip"])
def test_fractions_count_alike_in_frames_and_files(tmp_path, outside):
    column = Integer(0, 20, missing=(), outside=outside)
    schema = Schema({"years": column})
    texts = ["11.5", "12.0", "11.9", "", "11"]
    path = tmp_path / "years.csv"
    path.write_text("years,k\n" + "".join(f"{text},1\n" for text in texts))
    frame = {"years": np.array([11.5, 12.0, 11.9, np.nan, 11.0])}
    if outside is None:
        for read in (lambda: encode_file(path, schema), lambda: schema.encode(frame)):
            with pytest.raises(InvalidInput, match="2 rows hold values outside"):
                read()
        return
    wanted = [11, 12, 11, 21, 11] if outside == "clip" else [21, 12, 21, 21, 11]
    assert encode_file(path, schema).columns["years"].tolist() == wanted
    assert schema.encode(frame).columns["years"].tolist() == wanted
