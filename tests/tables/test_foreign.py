"""Sheets, SPSS and Stata files and JSON lines: read as they stand, and written with labels."""

from __future__ import annotations

import datetime
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pgmkit import (
    Boolean,
    Categorical,
    Column,
    Date,
    DateTime,
    FileFormat,
    Integer,
    Numeric,
    Schema,
)
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset, NoRows
from pgmkit.tables.engines.frames import encode
from pgmkit.tables.files import foreign, foreign_writing
from pgmkit.tables.files.formats import format_of
from pgmkit.tables.files.moments import CALENDARS
from pgmkit.tables.files.reading import all_names, check_columns
from pgmkit.tables.files.record_files import encode_file, read_frame, write_records

COLUMNS: dict[str, Column] = {
    "Alter in Jahren": Integer(0, 9),
    "wage": Numeric(0, 10, bins=5, decimals=1, missing=()),
    "sex": Categorical(("man", "woman"), aliases={"1": "man", "2": "woman"}),
    "job": Categorical(("cook", "=1+1"), missing=("none",)),
    "ill": Boolean(),
    "born": Date("2000-01-01", "2000-12-31", unit="day"),
    "seen": DateTime("2024-01-01T00:00", "2024-01-01T23:59", unit="minute"),
    "or": Categorical((1, 3)),
}
SCHEMA = Schema(COLUMNS)


def records(rows: int = 60) -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset(
        SCHEMA.domain, {n: rng.integers(0, s, rows) for n, s in SCHEMA.domain.sizes.items()}
    )


def written(path: Path, data: Dataset, schema: Schema = SCHEMA) -> int:
    return write_records(path, schema, [data], np.random.default_rng(1))


def test_excel_gives_the_same_codes_back(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    data = records()
    assert written(tmp_path / "a.xlsx", data) == 60
    again = encode_file(tmp_path / "a.xlsx", SCHEMA)
    assert isinstance(again, Dataset)
    for name in SCHEMA.columns:
        assert np.array_equal(again.columns[name], data.columns[name]), name


@pytest.mark.parametrize(
    "column",
    [
        Date("1899-12-25", "1900-03-05", unit="day"),
        DateTime("1899-12-29T00:00", "1900-01-01T23:59", unit="hour"),
    ],
)
def test_dates_that_excel_lacks_are_texts(column: Date | DateTime, tmp_path: Path) -> None:
    """Its day 0 is read as a time of day, and its earlier days are shown as number signs."""
    openpyxl = pytest.importorskip("openpyxl")
    schema, path = Schema({"at": column}), tmp_path / "a.xlsx"
    codes = np.arange(column.size)
    written(path, Dataset(schema.domain, {"at": codes}), schema)
    assert np.array_equal(encode_file(path, schema).columns["at"], codes)
    (_, *cells) = openpyxl.load_workbook(path).active["A"]
    earlier = [cell.value for cell in cells if isinstance(cell.value, str)]
    assert len(earlier) == (7 if isinstance(column, Date) else 72)
    assert all(each.startswith("1899-12-") for each in earlier)


@pytest.mark.parametrize("suffix", ["sav", "dta"])
def test_labels_and_codes_of_statistics_programs(suffix: str, tmp_path: Path) -> None:
    pyreadstat = pytest.importorskip("pyreadstat")
    data = records()
    path = tmp_path / f"a.{suffix}"
    written(path, data)
    columns, about = getattr(pyreadstat, f"read_{'sav' if suffix == 'sav' else 'dta'}")(
        str(path), output_format="dict"
    )
    assert about.column_names[0] == "Alter_in_Jahren"
    assert about.column_names_to_labels["Alter_in_Jahren"] == "Alter in Jahren"
    assert about.column_names_to_labels[about.column_names[-1]] == "or"
    assert about.variable_value_labels["sex"] == {1.0: "man", 2.0: "woman"}
    assert about.variable_value_labels["job"] == {1.0: "cook", 2.0: "=1+1", 3.0: "none"}
    assert [int(v) for v in columns["sex"]] == (data.columns["sex"] + 1).tolist()
    assert [int(v) for v in columns["Alter_in_Jahren"]] == data.columns["Alter in Jahren"].tolist()
    days = [str(day)[:10] for day in columns["born"]]
    first = np.datetime64("2000-01-01")
    assert days == [str(first + int(code)) for code in data.columns["born"]]
    absent = [v is None or v != v for v in columns["wage"]]
    assert absent == (data.columns["wage"] == 5).tolist()


@pytest.mark.parametrize("suffix", ["sav", "dta"])
def test_names_that_stata_does_not_allow(suffix: str, tmp_path: Path) -> None:
    """Its types of texts, and labels above 80 characters."""
    pyreadstat = pytest.importorskip("pyreadstat")
    schema = Schema(dict.fromkeys(("str5", "strL", "string", "\u00e4" * 100), Integer(0, 1)))
    path, codes = tmp_path / f"a.{suffix}", np.array([1, 0])
    written(path, Dataset(schema.domain, dict.fromkeys(schema.domain, codes)), schema)
    _, about = getattr(pyreadstat, f"read_{suffix}")(str(path), output_format="dict")
    assert about.column_names[:3] == ["str5_2", "strL_2", "string"]
    *labels, long = about.column_names_to_labels.values()
    assert labels == ["str5", "strL", "string"]
    assert long == "\u00e4" * (80 if suffix == "dta" else 100)


@pytest.mark.parametrize("suffix", ["sav", "dta"])
@pytest.mark.parametrize("words", [None, ("no", " sick ")])
def test_truth_values_decoded_as_texts_are_numbers(
    suffix: str, words: tuple[str, str] | None, tmp_path: Path
) -> None:
    pyreadstat = pytest.importorskip("pyreadstat")
    schema = Schema({"ill": Boolean(words=words, decode_as="text", missing=("unknown",))})
    path = tmp_path / f"a.{suffix}"
    written(path, Dataset(schema.domain, {"ill": [1, 0, 2]}), schema)
    columns, about = getattr(pyreadstat, f"read_{suffix}")(str(path), output_format="dict")
    assert list(columns["ill"]) == [1, 0, 2]
    texts = [each.strip() for each in words or ("false", "true")]
    assert about.variable_value_labels["ill"] == {0: texts[0], 1: texts[1], 2: "unknown"}


@pytest.mark.parametrize("suffix", ["sav", "dta"])
@pytest.mark.parametrize(
    "column",
    [
        Categorical(("2", "1")),
        Categorical((0, 1), other="else"),
        Categorical((3, 1), decode_as="text", missing=("7",)),
        Categorical(("01", "02", "10")),
        Boolean(missing=()),
        Categorical((1, 2), missing=()),
        Integer(0, 1, special=(9,), decode_as="text"),
    ],
)
def test_written_numbers_are_read_as_the_codes_they_were(
    column: Column, suffix: str, tmp_path: Path
) -> None:
    """All values are written, and only the last, which may be a missing value."""
    pytest.importorskip("pyreadstat")
    schema = Schema({"x": column})
    for codes in (np.arange(column.size), np.full(2, column.size - 1)):
        written(tmp_path / f"a.{suffix}", Dataset(schema.domain, {"x": codes}), schema)
        again = encode_file(tmp_path / f"a.{suffix}", schema)
        assert isinstance(again, Dataset)
        assert np.array_equal(again.columns["x"], codes)


@pytest.mark.parametrize("column", [Integer(0, 1, special=(9,), missing=()), Boolean(missing=())])
def test_a_column_of_missing_values_alone_is_of_numbers(column: Column, tmp_path: Path) -> None:
    pyreadstat = pytest.importorskip("pyreadstat")
    schema = Schema({"x": column})
    written(tmp_path / "a.sav", Dataset(schema.domain, {"x": [column.size - 1]}), schema)
    _, about = pyreadstat.read_sav(tmp_path / "a.sav", output_format="dict")
    assert about.readstat_variable_types["x"] == "double"


def test_what_cannot_be_held_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    schema = Schema({"big": Categorical((2**60, 1))})
    data = Dataset(schema.domain, {"big": [0, 1]})
    for name in ("a.xlsx", "a.sav"):
        with pytest.raises(InvalidInput, match="2\\^53"):
            written(tmp_path / name, data, schema)
        assert not (tmp_path / name).exists()


def test_sheets_and_rows_above_the_header(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["notes"])
    sheet = book.create_sheet("people")
    for row in (["Survey of 2024"], [], ["age", "sex"], [3, "F"], [5, "M"]):
        sheet.append(row)
    sheet.merge_cells("A1:B1")
    book.create_sheet("weights").append(["weight"])
    path = tmp_path / "a.xlsx"
    book.save(path)
    schema = Schema({"age": Integer(0, 9), "sex": Categorical(("F", "M"))})
    for size in (b'<dimension ref="A1"/>', b""):
        _stating(path, size)
        with pytest.raises(InvalidInput, match="--sheet people --skip-lines 2"):
            encode_file(path, schema)
    with pytest.raises(InvalidInput, match="with --sheet weights its header has them"):
        encode_file(path, Schema({"weight": Integer(0, 9)}))
    with pytest.raises(InvalidInput, match="'Sheet', 'people'"):
        encode_file(path, schema.of_file(FileFormat(sheet="persons")))
    found = encode_file(path, schema.of_file(FileFormat(sheet="people", skip_lines=2)))
    assert isinstance(found, Dataset) and found.columns["age"].tolist() == [3, 5]


def _stating(path: Path, size: bytes) -> None:
    """Make a sheet state another size, or none."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, re.sub(rb"<dimension[^>]*/>", size, content))


@pytest.mark.parametrize("size", [None, b"", b'<dimension ref="A1"/>', b'<dimension ref="A1:B2"/>'])
@pytest.mark.parametrize("odd", [[3], [None, "F"], [3, "F", "more"], [3, "F", None, "far"], [None]])
def test_no_row_of_a_sheet_changes_others_or_ends_the_reading(
    odd: list[Any], size: bytes | None, tmp_path: Path
) -> None:
    """Programs that write a sheet row by row state no size of it, or that of its beginning."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["age", "sex"], [5, "M"], odd, [7, "F"]):
        book.active.append(row)
    path = tmp_path / "a.xlsx"
    book.save(path)
    if size is not None:
        _stating(path, size)
    found: Any = encode_file(path, JSON.placed())
    ages, sexes = (found.columns[name].tolist() for name in ("age", "sex"))
    assert (ages[0], ages[-1], sexes[0], sexes[-1]) == (5, 7, 1, 0)
    assert len(found) == 3 - (odd == [None])


DAYS = Schema(
    {
        "DAY": Date("1990-01-01", "2029-12-31", bins=40, missing=()),
        "NAME": Categorical(("Mädchen", "Junge"), other="(other)"),
    }
).placed()


@pytest.mark.parametrize("odd", ["number", "bytes"])
@pytest.mark.parametrize(
    ("suffix", "form", "unit"), [("sav", "DATE11", 86_400), ("dta", "%td", 1), ("xpt", "DATE9", 1)]
)
def test_one_odd_value_does_not_end_the_reading_of_a_statistics_file(
    suffix: str, form: str, unit: int, odd: str, tmp_path: Path
) -> None:
    """A number beyond the calendar, or a text that is not in the file's encoding."""
    pyreadstat = pytest.importorskip("pyreadstat")
    path = tmp_path / f"a.{suffix}"
    origin = np.datetime64("1582-10-14" if suffix == "sav" else "1960-01-01")
    days = (np.array(["1995-06-01", "2020-06-01"], dtype="M8[D]") - origin).astype(int) * unit
    for beyond in (1e15, -1e15, 3e11):
        good = pd.DataFrame({"DAY": days.astype(float), "NAME": ["Mädchen", "Junge"]})
        row = {"DAY": beyond if odd == "number" else float(days[0]), "NAME": "QQ"}
        getattr(pyreadstat, f"write_{'xport' if suffix == 'xpt' else suffix}")(
            pd.concat([good, pd.DataFrame([row]), good], ignore_index=True),
            path,
            variable_format={"DAY": form},
        )
        if odd == "bytes":
            path.write_bytes(path.read_bytes().replace(b"QQ", b"\xc3("))
        found: Any = encode_file(path, DAYS)
        assert found.columns["DAY"][[0, 1, 3, 4]].tolist() == [5, 30, 5, 30]
        assert found.columns["NAME"].tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [(" SJIS", b"a\\b~\x81\x5f"), ("BIG-5", b"\xa4\xa4"), ("CP932", b"a\\\x87\x40")],
)
def test_a_text_that_is_not_in_the_encoding_changes_no_other(
    encoding: str, text: bytes, tmp_path: Path
) -> None:
    pyreadstat = pytest.importorskip("pyreadstat")
    path = tmp_path / "a.sav"
    pyreadstat.write_sav(pd.DataFrame({"t": ["@other@", "@broken"]}), path)
    content = path.read_bytes().replace(b"UTF-8", encoding.encode())
    path.write_bytes(content.replace(b"@other@", text.ljust(7)))
    alone = foreign.foreign_table(path, FileFormat()).column("t")[0].as_py()
    path.write_bytes(path.read_bytes().replace(b"@broken", b"\xff\xff     "))
    assert foreign.foreign_table(path, FileFormat()).column("t")[0].as_py() == alone


@pytest.mark.parametrize("suffix", [".xlsx", ".sav", ".dta"])
def test_a_library_that_is_not_installed_is_named(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without openpyxl a sheet was said to be damaged."""
    written(path := tmp_path / f"t{suffix}", records())
    library = "openpyxl" if suffix == ".xlsx" else "pyreadstat"
    monkeypatch.setitem(sys.modules, library, None)
    asked = [
        lambda: encode_file(path, SCHEMA),
        lambda: all_names(path, FileFormat()),
        lambda: written(tmp_path / f"u{suffix}", records()),
    ]
    for job in asked:
        with pytest.raises(InvalidInput, match=rf"need {library}: pip install '\.\[files\]'"):
            job()


@pytest.mark.parametrize("suffix", ["sav", "dta", "xpt"])
def test_dates_and_times_are_those_of_pyreadstat(suffix: str, tmp_path: Path) -> None:
    """In every format that it takes for one, except DTDATE; fractions of a day before 1960 apart,
    which it takes for the next day."""
    pyreadstat = pytest.importorskip("pyreadstat")
    path, rng = tmp_path / f"a.{suffix}", np.random.default_rng(0)
    own = CALENDARS[str(format_of(path))]
    kinds = [
        (datetime.date, own.day, "11"),
        (datetime.datetime, own.clock, "20"),
        (datetime.time, own.clock, "8"),
    ]
    for kind, units, width in kinds:
        days = rng.uniform(-40_000, 40_000, 20) if units > 1 else rng.integers(-40_000, 40_000, 20)
        values = [*np.rint(days * units).tolist(), float("nan")]
        shown_so = {form for form, shown in own.formats.items() if shown is kind}
        for form in sorted(shown_so - {"DTDATE"}):
            written = form if suffix == "dta" else form + width
            name = "xport" if suffix == "xpt" else suffix
            frame = pd.DataFrame({"DAY": values})
            getattr(pyreadstat, f"write_{name}")(frame, path, variable_format={"DAY": written})
            read = getattr(pyreadstat, f"read_{name}")
            wanted, about = read(path, output_format="dict")
            raw, _ = read(path, output_format="dict", disable_datetime_conversion=True)
            found = own.read(raw["DAY"], about.original_variable_types["DAY"])
            assert found == list(wanted["DAY"]) and isinstance(
                found[0], datetime.date | datetime.time
            )


def test_formats_of_sas_are_of_days_or_seconds_as_pandas_knows_them() -> None:
    """DTDATE was taken for days: a moment in January 1960 was a day in later centuries."""
    from pandas.io.sas import sas_constants

    known = dict.fromkeys(sas_constants.sas_datetime_formats, datetime.datetime)
    known |= dict.fromkeys(sas_constants.sas_date_formats, datetime.date)
    own = {f: k for f, k in CALENDARS["SAS"].formats.items() if f in known and f != "TOD"}
    assert len(own) > 20 and own == {form: known[form] for form in own}
    assert CALENDARS["SAS"].read([90_061.0], "DTDATE9") == [datetime.datetime(1960, 1, 2, 1, 1, 1)]


def test_details_of_sheets(tmp_path: Path) -> None:
    """Suffixes in capitals, padded names, numbers as names, formulas, notes between records."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    rows = [
        [" age ", "sex", 2024],
        [3, "F", 1],
        ["a note"],
        ["=1+2", "M", 2.5],
        ["below"],
        ["last"],
    ]
    for row in rows:
        book.active.append(row)
    path = tmp_path / "A.XLSX"
    book.save(path)
    assert all_names(path, FileFormat()) == ["age", "sex", "2024"]
    found: Any = encode_file(path, JSON.placed(), ignore_extra=True)
    assert found.columns["age"].tolist() == [3, 10, 10, 10, 10]
    # A formula that no program has computed is missing, not a text that could not be read.
    assert found.unread == {"age": 3, "sex": 0}
    assert foreign.foot_notes(path, FileFormat()) == ["below", "last"]
    book.active.append(["near", "M"])
    book.active.append(["end"])
    book.save(path)
    assert foreign.foot_notes(path, FileFormat()) == ["end"]
    for row in (-1, -2):
        book.active.delete_rows(book.active.max_row + row + 1)
    book.save(path)
    foreign_writing.check_sheet(path, 2**20 - 1)
    with pytest.raises(InvalidInput, match="rows|records"):
        foreign_writing.check_sheet(path, 2**20)
    with pytest.raises(InvalidInput, match="'2024'"):
        encode_file(path, JSON.placed(), ignore_extra=False)
    book.active.append([None, "F", "x"])
    book.active.append([2.5, "F", datetime.datetime(2020, 1, 2)])
    book.save(path)
    years = Schema({"2024": Categorical(("1", "2.5", "x", "2020-01-02 00:00:00"), missing=())})
    coded: Any = encode_file(path, years.placed())
    assert coded.columns["2024"].tolist() == [0, 4, 1, 4, 4, 2, 3]


CELLS: list[Any] = [1234, "1234", 2020, "2020", 1, 0.0, True, " ", "2,5", "2.5", 2.5, 2**70, None]
CELLS += [datetime.timedelta(1.25), datetime.timedelta(2 * 10**8), datetime.datetime(2020, 1, 2)]


@pytest.mark.parametrize("decimal", [".", ","])
def test_no_cell_of_a_sheet_changes_how_others_are_read(decimal: str, tmp_path: Path) -> None:
    """Arrow has one type for all cells of a column, such as texts, or durations."""
    openpyxl = pytest.importorskip("openpyxl")
    columns: dict[str, Column] = {
        "code": Categorical(("01234", "2.5", "1 day, 6:00:00"), other="(other)", missing=()),
        "born": Date("1990-01-01", "2029-12-31", bins=40, missing=()),
        "wage": Numeric(0, 10, bins=20, missing=()),
        "ill": Categorical((False, True), missing=()),
    }
    schema = Schema(columns, file=FileFormat(decimal=decimal)).placed()

    def codes(cells: list[Any]) -> list[tuple[int, ...]]:
        book = openpyxl.Workbook()
        for row in ([*columns, "row"], *([cell] * 4 + ["x"] for cell in cells)):
            book.active.append(row)
        book.save(tmp_path / "a.xlsx")
        found: Any = encode_file(tmp_path / "a.xlsx", schema)
        again: Any = encode(read_frame(tmp_path / "a.xlsx", schema), schema)
        for name in columns:
            np.testing.assert_array_equal(found.columns[name], again.columns[name])
        return list(zip(*(found.columns[name].tolist() for name in columns), strict=True))

    assert codes(CELLS) == [codes([cell])[0] for cell in CELLS]
    assert [row[0] for row in codes(CELLS[:2])] == [0, 3]


def test_declared_missing_values_of_spss(tmp_path: Path) -> None:
    pyreadstat = pytest.importorskip("pyreadstat")
    path = tmp_path / "A.SAV"
    pyreadstat.write_sav(pd.DataFrame({"age": [3.0, 9.0, 5.0]}), path, missing_ranges={"age": [9]})
    ages = Schema({"age": Integer(0, 9, missing=())})
    for user_missing, code in ((False, 10), (True, 9)):
        form = ages.of_file(FileFormat(user_missing=user_missing))
        found: Any = encode_file(path, form.placed())
        assert found.columns["age"].tolist() == [3, code, 5]
    labels = foreign.value_labels(path)["age"]
    assert labels.is_missing("9") and not labels.is_missing("3")
    special = Schema({"age": Integer(0, 8, special=("9",))})
    write_records(
        path, special, [special.encode({"age": np.array([3, 9])})], np.random.default_rng(0)
    )
    assert foreign.value_labels(path)["age"].is_missing("9")
    assert foreign.value_labels(tmp_path / "a.csv") == {}
    names = pd.DataFrame({"name": ["A", "X"]})
    pyreadstat.write_sav(names, path, missing_ranges={"name": ["X"]})
    labels = foreign.value_labels(path)["name"]
    assert labels.is_missing("X") and not labels.is_missing("A")


@pytest.mark.parametrize(
    ("aliases", "written"),
    [
        ({"5": " man ", "7": "woman"}, [5, 7]),
        ({"3.5": "man", "4.5": "woman"}, [1, 2]),
        ({"5": "man", "05": "woman"}, [1, 2]),
        ({"5": "woman"}, [6, 5]),
        ({"5000000000": "man"}, [1, 2]),
    ],
)
def test_numbers_of_labels(aliases: dict[str, str], written: list[int], tmp_path: Path) -> None:
    """Those of aliases, if they are whole and differ."""
    pyreadstat = pytest.importorskip("pyreadstat")
    schema = Schema({"sex": Categorical((" man ", "woman"), aliases=aliases)})
    data = Dataset(schema.domain, {"sex": [0, 1]})
    write_records(tmp_path / "a.sav", schema, [data], np.random.default_rng(0))
    found, _ = pyreadstat.read_sav(tmp_path / "a.sav", output_format="dict")
    assert list(found["sex"]) == written


@pytest.mark.parametrize("suffix", ["xlsx", "dta"])
def test_numbers_that_a_program_would_round_are_refused(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    pytest.importorskip("pyreadstat")
    path = tmp_path / f"a.{suffix}"
    for number, held in ((2**53, True), (2**53 + 1, False)):
        for sign in (1, -1):
            schema = Schema({"key": Categorical((sign * number, 4))})
            data = Dataset(schema.domain, {"key": [0, 1]})
            if not held:
                with pytest.raises(InvalidInput, match=r"beyond 2\^53"):
                    write_records(path, schema, [data], np.random.default_rng(0))
                continue
            write_records(path, schema, [data], np.random.default_rng(0))
            found: Any = encode_file(path, schema)
            assert found.columns["key"].tolist() == [0, 1]


def test_json_lines_without_records(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"age": 3}\n')
    one: Any = encode_file(path, Schema({"age": Integer(0, 9)}))
    assert one.columns["age"].tolist() == [3]
    path.write_text("\n\n")
    with pytest.raises(InvalidInput, match="does not begin|no records"):
        encode_file(path, JSON)
    assert isinstance(encode_file(path, JSON.placed()), NoRows)


LINES = [
    {"age": 3, "sex": "F"},
    {"age": 5.0, "sex": None, "more": [1]},
    {"sex": "M", "age": "7"},
    {"sex": "\ud800"},
]
JSON = Schema({"age": Integer(0, 9, missing=()), "sex": Categorical(("F", "M"), missing=())})


def test_json_lines_are_records(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in LINES) + "\n\n")
    found = encode_file(path, JSON.placed())
    assert isinstance(found, Dataset)
    assert found.columns["age"].tolist() == [3, 5, 7, 10]
    assert found.columns["sex"].tolist() == [0, 2, 1, 2]
    table = read_frame(path, JSON)
    assert table.column("age").to_pylist() == ["3", "5.0", "7", None]
    assert table.column("sex").to_pylist() == ["F", None, "M", "\ufffd"]


ODD = [b"rubbish", b"[1]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"age": 1e999999}', b"{}", b"7"]


def test_json_lines_give_the_same_codes_back(tmp_path: Path) -> None:
    data = records()
    assert written(tmp_path / "a.jsonl", data) == 60
    again = encode_file(tmp_path / "a.jsonl", SCHEMA)
    assert isinstance(again, Dataset)
    for name in SCHEMA.columns:
        assert np.array_equal(again.columns[name], data.columns[name]), name
    first = json.loads((tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert list(first) == list(SCHEMA.columns) and isinstance(first["ill"], bool)


def test_names_are_read_without_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader of whole files fails here; the checks before a run do not need it."""
    pytest.importorskip("openpyxl")
    pytest.importorskip("pyreadstat")
    paths = [tmp_path / f"a{suffix}" for suffix in (".xlsx", ".sav", ".dta")]
    schema = Schema({"age": Integer(0, 9), "sex": Categorical(("man", "woman"))})
    whole = [Dataset(schema.domain, {"age": np.arange(9), "sex": np.arange(9) % 2})]
    for path in paths:
        write_records(path, schema, whole, np.random.default_rng(0))
    monkeypatch.setattr(foreign, "cell_array", None)
    for path in paths:
        assert all_names(path, FileFormat()) == ["age", "sex"]
        check_columns(path, schema, ignore_extra=False)


def test_a_sheet_is_closed_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open file cannot be replaced in Windows."""
    openpyxl = pytest.importorskip("openpyxl")
    written(tmp_path / "a.xlsx", records())
    calls: list[str] = []
    load, close = openpyxl.load_workbook, openpyxl.Workbook.close
    monkeypatch.setattr(
        openpyxl, "load_workbook", lambda *a, **k: calls.append("open") or load(*a, **k)
    )
    monkeypatch.setattr(openpyxl.Workbook, "close", lambda s: calls.append("close") or close(s))
    encode_file(tmp_path / "a.xlsx", SCHEMA)
    assert calls and calls.count("open") == calls.count("close")


def test_empty_rows_of_a_sheet_are_no_records(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [["age", "sex"], [3, "F"], [], [None, None], [5, "M"], []]:
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    assert len(encode_file(tmp_path / "a.xlsx", JSON.placed())) == 2


@pytest.mark.parametrize("odd", ODD)
def test_a_line_changes_no_other(odd: bytes, tmp_path: Path) -> None:
    """Whatever a line holds, the codes of the others are as without it."""
    plain = [json.dumps(line).encode() for line in LINES]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([*plain, odd, *plain]) + b"\n")
    found: Any = encode_file(path, JSON.placed())
    kept = sorted(zip(found.columns["age"].tolist(), found.columns["sex"].tolist(), strict=True))
    one = [(3, 0), (5, 2), (7, 1), (10, 2)]
    assert len(kept) == 9 and all(kept.count(each) >= 2 for each in one)


@pytest.mark.parametrize("odd", [*ODD, b'{"age": 3}', b'{"age": 3, "sex": "F", "key": "private"}'])
def test_no_line_is_a_header(odd: bytes, tmp_path: Path) -> None:
    """The first line is a private record: whether a run begins must not depend on it."""
    plain = [json.dumps(line).encode() for line in LINES]
    path, placed = tmp_path / "a.jsonl", JSON.placed()
    path.write_bytes(b"\n".join([odd, *plain, *plain]) + b"\n")
    check_columns(path, placed, ignore_extra=False)
    first: Any = encode_file(path, placed, ignore_extra=False)
    path.write_bytes(b"\n".join([*plain, *plain, odd]) + b"\n")
    last: Any = encode_file(path, placed, ignore_extra=False)
    assert read_frame(path, placed).num_rows == len(last) == 9
    for name in placed.columns:
        assert sorted(first.columns[name].tolist()) == sorted(last.columns[name].tolist())


def test_json_lines_that_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text('{"age": 1, "sex": "F"}\nrubbish\n')
    with pytest.raises(InvalidInput, match="line 2"):
        encode_file(path, JSON)
    path.write_text("rubbish\n")
    for read in (lambda: encode_file(path, JSON), lambda: all_names(path, FileFormat())):
        with pytest.raises(InvalidInput, match="does not begin with a JSON object"):
            read()


HEADER = "größe;ort\n1;a\n2;b\n"
ASKED = {"größe": Numeric(0, 10, bins=2), "ort": Categorical(("a", "b"))}


@pytest.mark.parametrize(
    ("content", "form", "remedy"),
    [
        (HEADER.encode("latin-1"), {}, "--encoding"),
        (HEADER.encode(), {"encoding": "latin-1"}, "--encoding utf-8"),
        (b"\xef\xbb\xbf" + HEADER.encode(), {"encoding": "cp1252"}, "--encoding utf-8"),
        (HEADER.encode("utf-16"), {}, "--encoding utf-16"),
        (HEADER.encode("utf-16-le"), {}, "--encoding utf-16-le"),
        (HEADER.encode("utf-16-be"), {}, "--encoding utf-16-be"),
        (HEADER.encode(), {"separator": ","}, "--separator ';'"),
        (("Title\n\n" + HEADER).encode(), {}, "--skip-lines 2"),
        (HEADER.encode(), {"skip_lines": 1}, "--skip-lines 0"),
        (HEADER.replace("größe", "grösse").encode(), {}, "it has column 1, 'ort' .* are not shown"),
    ],
)
def test_a_header_in_another_format_is_refused_with_the_option(
    content: bytes, form: dict[str, Any], remedy: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    schema = Schema(ASKED, file=FileFormat(**form))
    for ignore_extra in (True, False):
        with pytest.raises(InvalidInput, match=remedy):
            encode_file(path, schema.placed(), ignore_extra=ignore_extra)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize("above", [0, 2])
def test_files_that_are_as_they_say(encoding: str, above: int, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("Title, of it\n;;\n" * (above // 2) + HEADER, encoding=encoding)
    form = FileFormat(encoding=encoding, skip_lines=above)
    found = encode_file(path, Schema(ASKED, file=form))
    assert isinstance(found, Dataset) and found.columns["ort"].tolist() == [0, 1]


@pytest.mark.parametrize("form", ["TIME8", "DTIME12"])
def test_a_duration_of_a_day_or_more_is_no_time_of_day(form: str, tmp_path: Path) -> None:
    pyreadstat = pytest.importorskip("pyreadstat")
    path, hours = tmp_path / "stays.sav", np.array([0.0, 23.5, 24.0, 25.0, -1.0])
    frame = pd.DataFrame({"stay": 3600 * hours})
    pyreadstat.write_sav(frame, str(path), variable_format={"stay": form})
    (found,) = foreign.foreign_table(path, FileFormat()).columns
    times = [datetime.time(0), datetime.time(23, 30)]
    assert found.to_pylist() == [*times, 86_400.0, 90_000.0, -3_600.0]


@pytest.mark.parametrize("suffix", ["sav", "dta"])
@pytest.mark.parametrize("missing", [None, ("unknown",)])
def test_listed_truth_values_come_back_from_numbers(
    suffix: str, missing: tuple[str] | None, tmp_path: Path
) -> None:
    pytest.importorskip("pyreadstat")
    schema = Schema({"ill": Categorical((True, False), missing=missing)})
    codes = [0, 1, 1, 2] if missing else [0, 1, 1, 0]
    written(tmp_path / f"a.{suffix}", Dataset(schema.domain, {"ill": codes}), schema)
    again = encode_file(tmp_path / f"a.{suffix}", schema)
    np.testing.assert_array_equal(again.columns["ill"], codes)


def test_a_small_sheet_that_stands_for_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell in a row that no sheet has; and rows of one cell in the last column."""
    openpyxl = pytest.importorskip("openpyxl")
    monkeypatch.setattr(foreign, "LARGEST", 2**20)
    book = openpyxl.Workbook()
    book.active.append(["a", *(f"b{i}" for i in range(16_383))])
    book.save(tmp_path / "small.xlsx")
    with zipfile.ZipFile(tmp_path / "small.xlsx") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    cell = '<row r="{0}"><c r="{1}{0}"><v>1</v></c></row>'
    for named, rows in {
        "below row 1,048,576": cell.format(999_999_999, "A"),
        "has more than 131,072 cells": "".join(cell.format(i, "XFD") for i in range(2, 12)),
    }.items():
        with zipfile.ZipFile(tmp_path / "bomb.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in parts.items():
                put = f"{rows}</sheetData>".encode() if "sheet1" in name else b""
                archive.writestr(name, content.replace(b"</sheetData>", put) if put else content)
        with pytest.raises(InvalidInput, match=named):
            encode_file(tmp_path / "bomb.xlsx", Schema({"a": Integer(0, 1)}))
    with zipfile.ZipFile(tmp_path / "bomb.xlsx", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/sharedStrings2.xml", b" " * 2**20)
    with pytest.raises(InvalidInput, match="would expand to more than 1,048,576 bytes"):
        encode_file(tmp_path / "bomb.xlsx", Schema({"a": Integer(0, 1)}))
