"""Odd rows at random places: the other rows are coded as without them, by every reader.

What is odd depends on the reader: any bytes between two line ends of a text file, any values that
the cells of a typed file or the columns of a frame can hold.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import datetime
import decimal
import gzip
import io
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv

from pgmkit import Categorical, FileFormat, Numeric, Schema
from pgmkit.tables.dates import Date
from pgmkit.tables.engines.frames import counts_of
from pgmkit.tables.files.csv_file import csv_batches
from pgmkit.tables.files.csv_lines import MOST_BYTES, LineGrammar, whole_lines
from pgmkit.tables.files.record_files import encode_file, read_frame

TEXTS = (
    "plain",
    "two, with a comma",
    'a "quoted" word',
    "two\nlines",
    "\nends\n",
    "5'10\"",
    "Ä",
    "a\rb",
)
ROWS, FEW_ROWS, ODD_ROWS = 2000, 300, 2000
SCHEMA = Schema(
    {
        "id": Categorical(tuple(f"id{i}" for i in range(ROWS)), other="odd"),
        "text": Categorical(TEXTS, other="else"),
        "wage": Numeric(0, 100, bins=10, missing=("?",)),
        "born": Date("1990-01-01", "2019-12-31", bins=30, missing=()),
    }
).placed()
ODD = [
    *(
        b'5,"F,yes,1',
        b'"',
        b'""',
        b'5,"',
        b'","',
        b'",,,"',
        b'5,F",1,2',
        b'"a"b,1,2,3',
        b'a",b,c,d',
    ),
    *(
        b"1,2,3",
        b"1,2,3,4,5",
        b"\xff\xfe",
        b"5,\xff",
        b"\xff,\xc3,\xe2\x82,\x80",
        b"\x00",
        b"\x00,,,",
    ),
    *(
        b",,,",
        b"a\rb",
        b"\r",
        b"5\r,F,1,2",
        b'5,"\r,1,2',
        b"\r\r",
        b"#",
        b"\\",
        b'\\",',
        b"'",
    ),
    *(b"\xef\xbb\xbf5,F,1,2", b'"\xff', b'"\x00,', b"\x1a", b"\x0c", b"\xe2\x80\xa8,,,", b"\x85"),
    *(b"9" * 5001 + b",F,1,2", b"x" * 70_000, b'"' + b"y," * 40_000, b'""' * 9_000, b'"' * 9_001),
]
"""Lines that are no records, or records whose values are outside."""


def good_lines(rows: int, rng: np.random.Generator) -> list[bytes]:
    """Records as a CSV writer writes them, some of several lines."""
    found = []
    for number in range(rows):
        text = TEXTS[int(rng.integers(len(TEXTS)))]
        quoted = '"' + text.replace('"', '""') + '"' if set(text) & set('",\n\r') else text
        wage = ["?", "", f"{rng.random() * 100:.2f}", '"12.5"'][int(rng.integers(4))]
        day = f"{rng.integers(1990, 2020)}-0{rng.integers(1, 10)}-11"
        found.append(f"id{number},{quoted},{wage},{day}".encode())
    return found


def unquoted_lines(rows: int, rng: np.random.Generator) -> list[bytes]:
    """Records of one line each, quotation marks as they come."""
    texts = ["plain", "5'10\"", 'a "quoted" word', '""', '"plain"', '"5\'10"""']
    return [
        f"id{number},{texts[int(rng.integers(len(texts)))]},{rng.integers(99)},2000-01-01".encode()
        for number in range(rows)
    ]


def odd_line(rng: np.random.Generator) -> bytes:
    """Listed or random bytes without a line feed."""
    if rng.random() < 0.5:
        return ODD[int(rng.integers(len(ODD)))]
    pieces = [b'"', b",", b"\r", b"\xff", b"\x00", b"F", b"'", b" ", b"1990-05-05", b'""', b'","']
    line = b"".join(pieces[int(i)] for i in rng.integers(len(pieces), size=rng.integers(1, 9)))
    return line if line.strip(b" ") else b"F"  # a line of blanks is no row


def mixed(rows: list[Any], odd: list[Any], rng: np.random.Generator) -> list[Any]:
    """The rows in their order, with the odd ones at random places among them."""
    places = rng.integers(len(rows) + 1, size=len(odd))
    order = np.argsort(np.concatenate([np.arange(len(rows)) + 0.5, places]), kind="stable")
    everything = [*rows, *odd]
    return [everything[int(i)] for i in order]


def good_codes(data: Any) -> list[tuple[int, ...]]:
    """The codes of the rows that are not odd, in order."""
    columns = [np.asarray(data.columns[name]).tolist() for name in SCHEMA.columns]
    return [row for row in zip(*columns, strict=True) if row[0] != ROWS]


def written(path: Path, lines: list[bytes], end: bytes = b"\n") -> Path:
    content = end.join([b"id,text,wage,born", *lines, b""])
    packers: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress}
    path.write_bytes(packers.get(path.suffix, bytes)(content))
    return path


def codes_of_file(path: Path, **form: Any) -> tuple[list[tuple[int, ...]], int]:
    """The codes of the good rows, and the number of odd ones."""
    data = encode_file(path, Schema(SCHEMA.columns, file=FileFormat(**form)).placed())
    good = good_codes(data)
    return good, len(data) - len(good)


FILES = [("a.csv", b"\n"), ("a.csv", b"\r\n"), ("a.csv.gz", b"\n"), ("a.txt.bz2", b"\n")]


@pytest.mark.parametrize(
    ("rows", "odd_rows"),
    [(FEW_ROWS, FEW_ROWS), pytest.param(ROWS, ODD_ROWS, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(("name", "end"), FILES)
def test_odd_lines_of_a_file_change_no_other_row(
    name: str, end: bytes, rows: int, odd_rows: int, tmp_path: Path, capfd: Any
) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        lines = good_lines(rows, rng)
        odd = [odd_line(rng) for _ in range(odd_rows)]
        plain, none = codes_of_file(written(tmp_path / name, lines, end))
        assert len(plain) == rows and not none
        found, others = codes_of_file(written(tmp_path / name, mixed(lines, odd, rng), end))
        assert found == plain
        # Empty ones are no rows, and some of those beside each other complete one another.
        assert odd_rows * 0.8 <= others <= odd_rows
    assert capfd.readouterr() == ("", "")


def test_where_every_line_is_a_record_each_is_counted_once(tmp_path: Path) -> None:
    """Whatever the lines are, odd ones in any order among them."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        lines = unquoted_lines(FEW_ROWS, rng)
        odd = [line for _ in range(FEW_ROWS) if (line := odd_line(rng)) not in (b"", b"\r")]
        plain, none = codes_of_file(written(tmp_path / "a.csv", lines), multiline=False)
        path = written(tmp_path / "a.csv", mixed(lines, odd, rng))
        assert (len(plain), none) == (FEW_ROWS, 0)
        assert codes_of_file(path, multiline=False) == (plain, len(odd))


def table_of(path: Path, names: list[str], form: FileFormat) -> tuple[list[tuple[str, ...]], int]:
    """The records of a file as texts, and the number of odd lines."""
    broken: list[object] = []
    found = []
    for batch in csv_batches(str(path), form, names, names, broken):
        found += list(zip(*(batch[name].to_pylist() for name in names), strict=True))
    return found, len(broken)


@given(
    st.lists(st.lists(st.text(), min_size=3, max_size=3), min_size=1, max_size=6),
    st.sampled_from(["\n", "\r\n"]),
)
def test_what_a_writer_of_csv_writes_is_read_back(rows: list[list[str]], end: str) -> None:
    """Values with anything in them, unless one of its lines would be a record by itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        text = io.StringIO()
        csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(
            [["a", "b", "c"], *rows]
        )
        path.write_bytes(text.getvalue().encode("utf-8", "replace"))
        wanted = [tuple(v.encode("utf-8", "replace").decode() for v in row) for row in rows]
        inner = [line for row in rows for v in row if "\n" in v for line in v.split("\n")]
        if not any(line.count(",") == 2 or '"' in line or "," in line[:1] for line in inner):
            assert table_of(path, ["a", "b", "c"], FileFormat()) == (wanted, 0)


BYTES = st.lists(
    st.sampled_from([b'"', b'""', b",", b"\n", b"\r\n", b"\r", b"a", b"\xff", b"\x00", b" "]),
    max_size=40,
).map(b"".join)


@given(BYTES, st.integers(1, 3))
def test_a_line_is_a_record_where_the_reader_takes_it_for_one(content: bytes, values: int) -> None:
    names = [f"c{i}" for i in range(values)]
    for line in content.split(b"\n"):
        found = LineGrammar(b",", values, multiline=False).divided(line + b"\n", final=True)
        bare = line.removesuffix(b"\r")
        assert len(found.records) + len(found.odd) == bool(bare.strip(b" ") or values == 1)
        for record in found.records:
            assert arrow_rows(record + b"\n", names) == 1
            # A value that is left open would take the next line.
            assert arrow_rows(record + b"\n" + b"," * (values - 1) + b"\n", names) != 1


def arrow_rows(content: bytes, names: list[str]) -> int:
    options = arrow_csv.ReadOptions(column_names=names)
    parse = arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    kinds = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary()))
    return int(arrow_csv.read_csv(io.BytesIO(content), options, parse, kinds).num_rows)


@given(BYTES, st.integers(1, 3), st.integers(1, 30), st.booleans())
def test_blocks_do_not_matter(content: bytes, values: int, size: int, multiline: bool) -> None:
    names = [f"c{i}" for i in range(values)]
    form = FileFormat(names=tuple(names), separator=",", multiline=multiline)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        path.write_bytes(content)
        whole = table_of(path, names, form)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("pgmkit.tables.files.csv_file.BLOCK", size)
            assert table_of(path, names, form) == whole


@given(st.lists(BYTES, max_size=6))
def test_whole_lines_lose_nothing(chunks: list[bytes]) -> None:
    content = b"".join(chunks)
    blocks = list(whole_lines(chunk for chunk in chunks if chunk))
    assert b"".join(blocks) == content + b"\n" * (content[-1:] not in (b"", b"\n"))
    assert all(block.endswith(b"\n") for block in blocks)


@pytest.mark.parametrize(
    "longest", [b"9" * (40 << 20), b'"' + b"a,\r" * (5 << 20), b'""' * (9 << 20)]
)
def test_a_line_longer_than_the_longest_record_is_an_odd_row(
    longest: bytes, tmp_path: Path, capfd: Any
) -> None:
    rng = np.random.default_rng(0)
    lines = good_lines(200, rng)
    plain, _ = codes_of_file(written(tmp_path / "a.csv", lines))
    for odd in (longest, b"1," + longest + b",F,1", longest[: MOST_BYTES + 1]):
        path = written(tmp_path / "a.csv", [*lines[:100], odd, *lines[100:]])
        assert codes_of_file(path) == (plain, 1)
    assert capfd.readouterr() == ("", "")


def test_the_longest_record_and_one_byte_more(tmp_path: Path) -> None:
    short = b"1," + b"y" * (MOST_BYTES - 2)
    long = b'1,"' + b"yyyyyyy\n" * (MOST_BYTES // 8 - 1) + b'yyyy"'
    assert len(short) == len(long) == MOST_BYTES
    for line in (short, long):
        for record, records in ((line, 2), (line.replace(b"y", b"yy", 1), 1)):
            (tmp_path / "a.csv").write_bytes(b"a,b\n1,2\n" + record + b"\n")
            found, _ = table_of(tmp_path / "a.csv", ["a", "b"], FileFormat())
            assert len(found) == records


ENCODED = {
    "latin-1": ("Ä,ß", [b"\xff", b"\xc4", b"\x85"]),
    "cp1252": ("Ä,ß", [b"\x81,\x8d", b"\x81"]),
    "utf-8-sig": ("Ä,ß", [b"\xff", b"\xe2\x82", b"\xef\xbb\xbf"]),
    "shift_jis": ("あ,い", [b"\x81", b"\x81,\xfd", b"\xa0"]),
    "gb18030": ("你,好", [b"\x81", b"\x81\x30", b"\xff"]),
    "utf-16": ("Ä,ß", [b"\x00\xd8", b"\xff\xff", b'"\x00']),
    "iso2022_jp": ("あ,い", [b"x\x1b$B", b"\x1b$B\x21", b"\xff"]),
    "cp037": ("Ä,ß", [b"\x7f", b"\xff"]),
}


@pytest.mark.parametrize("encoding", ENCODED)
def test_bytes_that_are_not_in_the_encoding_change_no_other_row(
    encoding: str, tmp_path: Path
) -> None:
    good, odd = ENCODED[encoding]
    plain = [f"{good}{i}\n".encode(encoding) for i in range(20)]
    if encoding in ("utf-16", "utf-8-sig"):  # the mark of the first line is for all
        plain = [
            f"{good}{i}\n".encode({"utf-16": "utf-16-le", "utf-8-sig": "utf-8"}[encoding])
            for i in range(20)
        ]
    end = "\n".encode("utf-16-le" if encoding == "utf-16" else encoding.removesuffix("-sig"))
    path, form = tmp_path / "a.csv", FileFormat(encoding=encoding)
    found = []
    for extra in ([], odd):
        rng = np.random.default_rng(0)
        lines = mixed(plain, [each + end for each in extra], rng)
        path.write_bytes("a,b\n".encode(encoding) + b"".join(lines))
        rows, broken = table_of(path, ["a", "b"], form)
        found.append([row for row in rows if row[0] == good[0] and row[1].startswith(good[2])])
        assert len(rows) + broken == 20 + len(extra)
    assert found[0] == found[1] and len(found[0]) == 20


LARGE = 10**5000
VALUES: list[Any] = [
    *(None, "", "?", "\x00", "9" * 5001, "0x1F", "1e400", "2000-13-45", "1_000", "\u0665", "()"),
    *(LARGE, -LARGE, 2**63, 2**64 - 1, -(2**63), 1e308, -1e308, 5e-324, math.inf, -math.inf),
    *(math.nan, True, 20.5, datetime.date.min, datetime.date.max, datetime.datetime.max),
    *(
        datetime.time(1, 2),
        datetime.timedelta(9),
        decimal.Decimal("1e400"),
        datetime.date(1900, 1, 1),
    ),
]
"""Values that a cell of a spreadsheet or of a column of objects can hold."""
OBJECTS: list[Any] = [
    *(b"\xff", [LARGE], {"a": 1}, {3}, (LARGE,), 1j, decimal.Decimal("sNaN"), object, "\ud800"),
    *(np.datetime64("NaT"), np.float64(1e308), np.longdouble("1e4000"), np.uint64(2**64 - 1)),
    datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC),
]
Rows = list[dict[str, Any]]


def good_rows(rows: int, rng: np.random.Generator) -> Rows:
    return [
        {
            "id": f"id{number}",
            "text": TEXTS[int(rng.integers(len(TEXTS)))],
            "wage": float(rng.integers(400)) / 4,
            "born": datetime.datetime(int(rng.integers(1990, 2020)), 2, 3),
        }
        for number in range(rows)
    ]


def as_objects(rows: Rows, folder: Path) -> Any:
    import pandas as pd

    columns = {}
    for name in SCHEMA.columns:
        held = np.empty(len(rows), dtype=object)
        for i, row in enumerate(rows):
            held[i] = row[name]
        columns[name] = pd.Series(held, dtype=object)
    return pd.DataFrame(columns)


def as_texts(rows: Rows, folder: Path) -> pa.Table:
    """As a library without mixed types has them."""
    return pa.table(
        {name: pa.array([_text(row[name]) for row in rows], pa.string()) for name in SCHEMA.columns}
    )


def _text(value: Any) -> str | None:
    return None if value is None else "1" * 5001 if isinstance(value, int) else str(value)


def as_parquet(rows: Rows, folder: Path) -> Any:
    pq.write_table(as_texts(rows, folder), folder / "a.parquet")
    return read_frame(folder / "a.parquet", SCHEMA)


def as_a_sheet(rows: Rows, folder: Path) -> Any:
    import openpyxl

    book = openpyxl.Workbook()
    book.active.append(list(SCHEMA.columns))
    for row in rows:
        try:
            book.active.append([row[name] for name in SCHEMA.columns])
        except (ValueError, openpyxl.utils.exceptions.IllegalCharacterError):
            continue  # no spreadsheet holds it
    with contextlib.suppress(ValueError):
        book.save(folder / "a.xlsx")
    return read_frame(folder / "a.xlsx", SCHEMA)


def in_polars(rows: Rows, folder: Path) -> Any:
    import polars

    return polars.from_arrow(as_texts(rows, folder))


def in_duckdb(rows: Rows, folder: Path) -> Any:
    import duckdb

    return duckdb.connect().from_arrow(as_texts(rows, folder))


def in_spark(rows: Rows, folder: Path) -> Any:
    pyspark_sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not on this machine")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = pyspark_sql.SparkSession.builder.master("local[1]").config(
        "spark.ui.enabled", "false"
    )
    session = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    records = [tuple(_text(row[name]) for name in SCHEMA.columns) for row in rows]
    return session.createDataFrame(records, ", ".join(f"{name} string" for name in SCHEMA.columns))


FORMS: dict[str, tuple[Callable[[Rows, Path], Any], list[Any]]] = {
    "pandas": (as_objects, [*VALUES, *OBJECTS]),
    "parquet": (as_parquet, VALUES),
    "excel": (as_a_sheet, [v for v in VALUES if v not in (LARGE, -LARGE) and v != "\x00"]),
    "polars": (in_polars, VALUES),
    "duckdb": (in_duckdb, VALUES),
    "spark": (in_spark, VALUES),
}


@pytest.mark.parametrize(
    "form", [pytest.param(f, marks=[pytest.mark.slow] * (f == "spark")) for f in FORMS]
)
def test_odd_values_of_a_frame_change_no_other_row(form: str, tmp_path: Path, capfd: Any) -> None:
    make, values = FORMS[form]
    rng = np.random.default_rng(1)
    rows = good_rows(FEW_ROWS, rng)
    odd = [
        {
            "id": "odd",
            **{n: values[int(rng.integers(len(values)))] for n in ("text", "wage", "born")},
        }
        for _ in range(FEW_ROWS)
    ]
    pairs = [("id", name) for name in ("text", "wage", "born")]
    plain, found = (
        counts_of(make(each, tmp_path), SCHEMA, pairs) for each in (rows, mixed(rows, odd, rng))
    )
    for pair in pairs:
        np.testing.assert_array_equal(found.marginal(pair)[:ROWS], plain.marginal(pair)[:ROWS])
        assert plain.marginal(pair)[:ROWS].sum() == FEW_ROWS
        assert found.marginal(pair).sum() == 2 * FEW_ROWS
    if form != "spark":  # which logs what it does on its own
        assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("over", range(1, 6))
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_line_that_is_cut_is_still_too_long(over: int, end: bytes) -> None:
    """Wherever its end comes in another chunk."""
    for piece in (MOST_BYTES + over, MOST_BYTES // 3):
        line = b"x" * (MOST_BYTES + over) + end
        chunks = [line[i : i + piece] for i in range(0, len(line), piece)]
        (found,) = whole_lines(iter(chunks))
        assert len(found.rstrip(b"\r\n")) > MOST_BYTES
