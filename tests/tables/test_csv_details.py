"""Details of reading CSV files: encodings in blocks, headers, single odd lines at single places."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from pgmkit import Categorical, FileFormat, Integer, Schema
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import NoRows
from pgmkit.tables.files.csv_file import csv_batches
from pgmkit.tables.files.csv_lines import MOST_BYTES, Division, LineGrammar
from pgmkit.tables.files.reading import all_names, batches
from pgmkit.tables.files.record_files import encode_file

COLUMNS = {"age": Integer(0, 9, missing=()), "sex": Categorical(("F", "M"), missing=())}


def texts(path: Path, form: FileFormat, names: list[str]) -> tuple[list[tuple[str, ...]], int]:
    """The records as texts, and the number of odd lines."""
    broken: list[object] = []
    found: list[tuple[str, ...]] = []
    for batch in csv_batches(str(path), form, names, names, broken):
        found += list(zip(*(batch[name].to_pylist() for name in names), strict=True))
    return found, len(broken)


ODD_BYTES = {
    "latin-1": [b"\xff", b"\x85,\x85"],
    "shift_jis": [b"\x81", b"\x81,\xfd"],
    "utf-8-sig": [b"\xff", b"\xe2\x82"],
    "utf-16": [b"\x00\xd8", b"\xff\xff"],
    "cp037": [b"\x7f", b"\xff"],
}


@pytest.mark.parametrize("encoding", ODD_BYTES)
def test_blocks_do_not_matter_in_other_encodings(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, form = tmp_path / "a.csv", FileFormat(encoding=encoding)
    end = "\n".encode(encoding.removesuffix("-sig"))[-2 if encoding == "utf-16" else 0 :]
    lines = [f"{i},abc\n".encode(encoding.removesuffix("-sig")) for i in range(8)]
    if encoding == "utf-16":
        lines = [line[2:] for line in lines]
    odd = [each + end for each in ODD_BYTES[encoding]]
    path.write_bytes("a,b\n".encode(encoding) + b"".join([*lines[:3], *odd, *lines[3:]]))
    whole = texts(path, form, ["a", "b"])
    assert [row for row in whole[0] if row[1] == "abc"] == [(str(i), "abc") for i in range(8)]
    assert len(whole[0]) + whole[1] == 10
    for size in (2, 3, 7, 20):
        monkeypatch.setattr("pgmkit.tables.files.csv_file.BLOCK", size)
        assert texts(path, form, ["a", "b"]) == whole


@pytest.mark.parametrize(
    ("encoding", "odd"), [("utf-7", b"+AAo-,1"), ("utf-7", b"1,x+AAo-2,y"), ("hz", b"1,a~")]
)
def test_bytes_that_stand_for_line_ends_change_no_other_row(
    encoding: str, odd: bytes, tmp_path: Path
) -> None:
    """A line feed as UTF-7 writes it, and the end of a line that HZ takes for none."""
    path, form = tmp_path / "a.csv", FileFormat(encoding=encoding)
    path.write_bytes(b"a,b\n3,F\n" + odd + b"\n5,M\n")
    rows, broken = texts(path, form, ["a", "b"])
    assert rows[0] == ("3", "F") and rows[-1] == ("5", "M") and len(rows) + broken == 3


def test_a_byte_order_mark_at_the_start_of_a_block_is_a_sign_of_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the place of a record would decide how it is read."""
    path, marked = tmp_path / "a.csv", "\ufeffF"
    path.write_text("a,b\n" + f"{marked},1\n" * 9, encoding="utf-8")
    for size in (2, 20, 1000):
        monkeypatch.setattr("pgmkit.tables.files.csv_file.BLOCK", size)
        assert texts(path, FileFormat(), ["a", "b"])[0] == [(marked, "1")] * 9


def test_a_sign_that_shifts_to_other_characters_does_so_in_its_line_alone(tmp_path: Path) -> None:
    """Behind it 1,10 is a pair of Japanese characters, also in the next lines."""
    path, form = tmp_path / "a.csv", FileFormat(encoding="iso2022_jp")
    path.write_bytes(b"a,b\n1,x\x1b$B\n" + b"1,10\n" * 9)
    assert texts(path, form, ["a", "b"])[0][1:] == [("1", "10")] * 9


FRAGMENTS = [b'1,"a', b'b",2', b'"', b'","', b'c,"d', b'e","f', b"1,2", b'"x","y"', b"", b'a"b,"c']


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.integers(2, 3), st.integers(1, 12))
def test_blocks_do_not_matter_to_records_of_several_lines(
    lines: list[bytes], values: int, size: int
) -> None:
    names = [f"c{i}" for i in range(values)]
    form = FileFormat(names=tuple(names), separator=",")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        path.write_bytes(b"\n".join(lines) + b"\n")
        whole = texts(path, form, names)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("pgmkit.tables.files.csv_file.BLOCK", size)
            assert texts(path, form, names) == whole


@pytest.mark.parametrize(
    ("content", "rows", "odd"),
    [
        (b'3,F\n4,"M\n5,F\n', [("3", "F"), ("5", "F")], 1),
        (b'3,F\n4,"M\n', [("3", "F")], 1),
        (b'3,F\n4,"M\n\n\r\n', [("3", "F")], 1),
        (b"3,F\n\n4,F\r5,M\n", [("3", "F")], 1),
        (b'3,F\n,"M"\n', [("3", "F"), ("", "M")], 0),
        (b'a"b,"c\nd"\n3,F\n', [("3", "F")], 2),
        (b'3,"F\nM"\n4,M\n', [("3", "F\nM"), ("4", "M")], 0),
        (b'3,"F\n4,M\nx"\n', [("4", "M")], 2),
        (b'3,"F\n4,M"x\n', [("4", 'M"x')], 1),
        (b'3,"F\nx"y\n', [], 2),
        (b'"x"y,F\n', [("xy", "F")], 0),
        (b',"F\nM"\n', [("", "F\nM")], 0),
    ],
)
def test_single_lines(content: bytes, rows: list[Any], odd: int, tmp_path: Path) -> None:
    """An odd line behind them makes every line be examined by itself."""
    path = tmp_path / "a.csv"
    for behind in (b"", b"odd\n"):
        path.write_bytes(b"a,b\n" + content + behind)
        assert texts(path, FileFormat(), ["a", "b"]) == (rows, odd + bool(behind))


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (b'\n"\nF\n', ["", "F"]),
        (b'\n\n"\nF\n"\nM\n', ["", "", "F", "M"]),
        (b'"\nF"\n\nM\n', ['F"', "", "M"]),
    ],
)
def test_odd_lines_beside_empty_ones_in_a_file_of_one_column(
    content: bytes, rows: list[str], tmp_path: Path
) -> None:
    """An empty line is a record there; as many line ends may be within quotation marks."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"a\n" + content)
    for multiline in (True, False):
        found, odd = texts(path, FileFormat(multiline=multiline), ["a"])
        assert [text for (text,) in found] == rows
        assert odd == content.count(b"\n") - len(rows)


@pytest.mark.parametrize("last", [b"3,4,5", b'",c', b'x"'])
def test_a_line_that_may_end_or_begin_a_record(
    last: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second line closes a value of the first and opens one of its own."""
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,b,c\n1,"x\na,",b\n' + last + b"\n")
    whole = texts(path, FileFormat(), ["a", "b", "c"])
    assert (("1", "x\na,", "b") in whole[0]) == (last != b'",c')
    for size in range(1, 20):
        monkeypatch.setattr("pgmkit.tables.files.csv_file.BLOCK", size)
        assert texts(path, FileFormat(), ["a", "b", "c"]) == whole


def test_a_record_of_several_lines_leaves_most_of_its_block_to_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined, usual = list[int](), LineGrammar.divided

    def divided(grammar: LineGrammar, block: bytes, *, final: bool) -> Division:
        examined.append(len(block))
        return usual(grammar, block, final=final)

    monkeypatch.setattr(LineGrammar, "divided", divided)
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n" + 5000 * b"1,x\n" + b'2,"y\nz"\n' + 5000 * b"1,x\n")
    found = [("1", "x")] * 5000
    assert texts(path, FileFormat(), ["a", "b"]) == ([*found, ("2", "y\nz"), *found], 0)
    assert 0 < sum(examined) < path.stat().st_size / 20


def test_a_value_left_open_at_the_end_is_odd(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'a\nx\n"b\n')
    assert texts(path, FileFormat(), ["a"]) == ([("x",)], 1)
    path.write_bytes(b'a\nx\ny\rz\n"b\n')
    assert texts(path, FileFormat(), ["a"]) == ([("x",)], 2)


def test_a_line_that_is_cut_in_reading_is_odd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of it would be a record."""
    monkeypatch.setattr("pgmkit.tables.files.csv_file.BLOCK", MOST_BYTES)
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n3,F\n4," + b"x" * (3 * MOST_BYTES) + b"\n5,M\n")
    assert texts(path, FileFormat(), ["a", "b"]) == ([("3", "F"), ("5", "M")], 1)


def test_files_without_records_or_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("age,sex\n")
    assert isinstance(encode_file(path, Schema(COLUMNS).placed()), NoRows)
    with pytest.raises(InvalidInput, match="holds no records"):
        list(batches(path, FileFormat()))
    path.write_text(",\n3,F\n")
    with pytest.raises(InvalidInput, match="no column names"):
        all_names(path, FileFormat())


def test_tabs_separate_files_of_their_suffix_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"3\tF\n5\tM\n"))
    found: Any = encode_file(path, Schema(COLUMNS, file=FileFormat(names=("age", "sex"))))
    assert found.columns["age"].tolist() == [3, 5]


@pytest.mark.parametrize("encoding", ["base64", "rot13", "zlib", "undefined", "no such", "a\0"])
def test_an_encoding_of_no_text_is_unknown(encoding: str) -> None:
    """Those that Python has for other uses ended in an error of Python's at the first line."""
    with pytest.raises(InvalidInput, match="is unknown; use utf-8"):
        FileFormat(encoding=encoding)


@pytest.mark.parametrize(
    ("encoding", "first"),
    [("utf-8", b""), ("utf-8", b"# said\n"), ("ascii", b""), ("cp1252", b"# said\n")],
)
def test_a_header_in_another_encoding_is_refused(
    encoding: str, first: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(first + b"\x81ge,sex\n1,F\n")
    schema = Schema(COLUMNS, file=FileFormat(encoding=encoding, comment="#"))
    with pytest.raises(InvalidInput, match=f"is not text in {encoding.upper()}; name its"):
        encode_file(path, schema)


def test_files_are_found_whatever_the_encoding_of_file_names_is(tmp_path: Path) -> None:
    (tmp_path / "größe.csv").write_text("a\n1\n2\n", encoding="utf-8")
    parquet.write_table(pa.table({"a": [1, 2]}), tmp_path / "größe.parquet")
    code = (
        "import os; from pgmkit import Integer, Schema\n"
        "from pgmkit.tables.files.record_files import encode_file\n"
        "schema = Schema({'a': Integer(1, 2)})\n"
        "print([encode_file(each, schema).columns['a'].tolist() for each in os.listdir('.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[[0, 1], [0, 1]]\n", done.stderr
