"""Drafted schemas: what was decided, that their own file fits, and what comes out of it."""

import csv
import datetime
import io
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import duckdb
import numpy as np
import pandas
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mechanisms.cli import main
from pgmkit import FileFormat, Integer, Schema
from pgmkit.errors import InvalidInput
from pgmkit.tables.dates import Date, DateTime
from pgmkit.tables.draft.column import advice, draft_column
from pgmkit.tables.draft.draft import draft
from pgmkit.tables.draft.times import is_written, time_column
from pgmkit.tables.files.record_files import encode_file, write_records
from pgmkit.tables.labelled import Categorical, OpenCategorical
from pgmkit.tables.records import arrow_table, csv_lines
from pgmkit.tables.values import tallied, text_of

RNG = np.random.default_rng(0)
ROWS = 400


def day(form: str) -> list[str]:
    start = datetime.datetime(2019, 5, 3)
    days = RNG.integers(0, 700, ROWS).tolist()
    return [(start + datetime.timedelta(day, hours=day % 7)).strftime(form) for day in days]


def mostly(usual: Any, rare: list[Any], share: float) -> list[Any]:
    return [usual if RNG.random() < share else rare[i % len(rare)] for i in range(ROWS)]


COLUMNS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "few codes": (mostly(300, [200, 989, 999], 0.4), {"values": [200, 300, 989, 999]}),
    "sentinel": (mostly(9999, list(range(1, 31)), 0.6), {"low": 1, "high": 30, "special": [9999]}),
    "two sentinels": (
        mostly(98, [99, *range(1, 8)], 0.2),
        {"low": 1, "high": 7, "special": [98, 99]},
    ),
    "ages and 99": (
        mostly(99, list(range(95)), 0.1),
        {"low": 0, "high": 94, "special": [99]},
    ),
    "top-coded": (mostly(99, list(range(18, 99)), 0.1), {"low": 18, "high": 99}),
    "real sentinels": (
        mostly("-9.99", ["99.9", *(f"{x / 7:.2f}" for x in range(1, 60))], 0.1),
        {"type": "numeric", "low": 0.1, "high": 8.5, "special": [-9.99, 99.9]},
    ),
    "adults": (RNG.integers(18, 91, ROWS).tolist(), {"low": 18, "high": 90}),
    "income": (
        mostly(0, RNG.integers(1000, 90000, ROWS).tolist(), 0.12),
        {"spikes": [0], "bins": 20},
    ),
    "wage": (
        mostly("0", [f"{x:.2f}" for x in RNG.gamma(4, 500, ROWS)], 0.2),
        {"spikes": [0.0], "decimals": 2},
    ),
    "scale": (mostly("2.5", ["1", "2", "3", "4", "5"], 0.1), {"values": [1, 2, 2.5, 3, 4, 5]}),
    "plain day": (day("%Y%m%d"), {"format": "%Y%m%d"}),
    "british day": (day("%d/%m/%Y"), {"format": "%d/%m/%Y"}),
    "german day": (day("%d.%m.%Y"), {"format": "%d.%m.%Y"}),
    "iso day": (day("%Y-%m-%d"), {"type": "date"}),
    "american day": (day("%-m/%-d/%Y"), {"type": "date", "format": "%-m/%-d/%Y"}),
    "greenwich day": (day("%Y-%m-%dT00:00:00Z"), {"type": "date", "format": "%Y-%m-%dT%H:%M:%SZ"}),
    "greenwich hour": (
        day("%Y-%m-%dT%H:00:00Z"),
        {"type": "datetime", "format": "%Y-%m-%dT%H:%M:%SZ"},
    ),
    "minute": (day("%d/%m/%Y %H:%M"), {"type": "datetime", "format": "%d/%m/%Y %H:%M"}),
    "zip": ([f"{i:05d}" for i in RNG.integers(0, 30, ROWS)], {"type": "categorical"}),
    "flag": (mostly("TRUE", ["FALSE", "NA"], 0.5), {"words": ["FALSE", "TRUE"], "missing": ["NA"]}),
    "one": (["same"] * ROWS, {"values": ["same"]}),
    "long": ([10**17 + 7 * 10**14 * i for i in range(100)] * 4, {"type": "integer"}),
    "beyond 64 bits": (
        mostly("9" * 25, ["1" + "0" * 24], 0.5),
        {"values": ["1" + "0" * 24, "9" * 25]},
    ),
    "beyond floats": (mostly("9" * 400, ["7"], 0.5), {"values": ["7", "9" * 400]}),
    "padded": (mostly(" a ", ["b"], 0.5), {"values": ["a", "b"]}),
}


def write(path: Path, columns: dict[str, list[Any]], **options: Any) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", **options)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    path.write_text(text.getvalue(), encoding="utf-8")


@pytest.mark.parametrize("name", COLUMNS)
def test_a_draft_fits_its_own_file_and_decodes_to_values_like_it(name: str, tmp_path: Path) -> None:
    values, wanted = COLUMNS[name]
    write(tmp_path / "t.csv", {name: values, "x": ["p", "q"] * (ROWS // 2)})
    text = draft(tmp_path / "t.csv", look=True)
    stored = yaml.safe_load(text)["columns"][name]
    assert wanted.items() <= stored.items(), text
    assert f"# {name}: " in text
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    schema = Schema.load(tmp_path / "s.yaml")
    data = encode_file(tmp_path / "t.csv", schema)
    write_records(tmp_path / "o.csv", schema, [data], np.random.default_rng(0))
    again = encode_file(tmp_path / "o.csv", schema)
    np.testing.assert_array_equal(again.columns[name], data.columns[name])
    with open(tmp_path / "o.csv", newline="", encoding="utf-8") as lines:
        found = {row[name] for row in csv.DictReader(lines)}
    column = schema.columns[name]
    if isinstance(column, Categorical):
        assert found <= {str(value).strip() for value in values} | {"2.0", ""}
    for text_before, text_after in zip(sorted(map(str, values)), sorted(found), strict=False):
        assert ("/" in text_before) == ("/" in text_after)


def test_identifiers_are_left_out_with_advice_and_indexes_too(tmp_path: Path) -> None:
    columns = {
        "": list(range(ROWS)),
        "id": list(range(1000, 1000 + ROWS)),
        "key": [f"k{i}x" for i in range(ROWS)],
        "age": RNG.integers(0, 90, ROWS).tolist(),
    }
    write(tmp_path / "t.csv", columns)
    text = draft(tmp_path / "t.csv", look=True)
    assert yaml.safe_load(text)["file"] == {"ignore": ["id", "key"]}
    assert "# id: an identifier" in text and "# (unnamed): an index" in text
    assert "several rows" not in text  # no number and no text occurs in two
    (tmp_path / "s.yaml").write_text(text)
    data = encode_file(tmp_path / "t.csv", Schema.load(tmp_path / "s.yaml"), ignore_extra=False)
    assert list(data.domain) == ["age"]


@given(
    st.integers(60, 400),
    st.integers(-(10**6), 10**6),
    st.sampled_from([1, 2, 7, 100, 10**6]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_numbers_that_never_meet_are_identifiers(
    rows: int, first: int, step: int, shuffled: bool, seed: int
) -> None:
    numbers = first + step * np.arange(rows)
    if shuffled:
        np.random.default_rng(seed).shuffle(numbers)
    pairs = rows * (rows - 1) / 2 / (step * (rows - 1) + 1)
    drafted = draft_column(tallied(numbers))
    if not shuffled or pairs > 20:
        assert drafted.column is None and "identifier" in drafted.note
    elif abs(numbers).min() < 10**8:
        assert drafted.column is not None


@given(st.integers(1, 2000), st.integers(1, 10**7), st.integers(0, 2**32 - 1))
def test_numbers_drawn_at_random_are_no_identifiers(rows: int, width: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, width, rows + 20)
    assert draft_column(tallied(numbers)).column is not None


@pytest.mark.parametrize(
    "name",
    ["id", "person_id", "HH ID", "hhID", "caseId", "uuid", "mom", "comm", "childid", "classNR"],
)
def test_a_name_tells_an_identifier_that_occurs_several_times(name: str, tmp_path: Path) -> None:
    some = RNG.integers(0, 70000, 150).repeat(4).tolist()
    other = [f"k{i}" for i in some]
    write(tmp_path / "t.csv", {name: some, "grid": some, f"k_{name}": other, "paid": other})
    text = draft(tmp_path / "t.csv", look=True)
    assert list(yaml.safe_load(text)["columns"]) == ["grid", "paid"]
    assert f"# {name}: an identifier by its name" in text and f"--unit {quote(name)}" in text


def test_numbers_of_schools_are_said_to_be_the_unit_perhaps(tmp_path: Path) -> None:
    schools, ids = np.arange(30).repeat(20), [*range(600)]
    columns = {"school": schools.tolist(), "student": (schools % 2).tolist(), "Person_ID": ids}
    write(tmp_path / "t.csv", columns)
    text = draft(tmp_path / "t.csv", look=True)
    assert list(yaml.safe_load(text)["columns"]) == ["school", "student"]
    assert text.count("protect all rows of each together") == text.count("(--unit school)") == 1
    unseen = draft(tmp_path / "t.csv", look=False)
    assert "rare ones become '(other)'" in unseen and "type: integer, low: 0, high: 120" in unseen
    assert yaml.safe_load(unseen)["columns"] == {n: {"type": "open"} for n in [*columns][:2]}


@given(
    st.lists(
        st.datetimes(datetime.datetime(1950, 1, 1), datetime.datetime(2040, 1, 1)), min_size=2
    ),
    st.sampled_from(["T", " "]),
    st.sampled_from(["%H:00:00", "%H:%M:00", "%H:%M", "%H:%M:%S"]),
)
def test_times_are_written_as_they_were(
    moments: list[datetime.datetime], sign: str, time: str
) -> None:
    form = f"%Y-%m-%d{sign}{time}"
    texts = [moment.strftime(form) for moment in moments]
    column, note = time_column(texts, None) or (None, "")
    assert (column is not None and "points in time" in note) or not any(m.hour for m in moments)
    if not isinstance(column, DateTime):
        return
    schema = Schema({"t": column, "u": Categorical(("x",))})
    values = {"t": texts, "u": ["x"] * len(texts)}
    data = schema.encode(pandas.DataFrame(values))
    table = arrow_table(data, schema, np.random.default_rng(0))
    lines = csv_lines(table, schema, FileFormat())
    for line in lines.decode().splitlines():
        text = line.removesuffix(",x")
        assert datetime.datetime.strptime(text, form).strftime(form) == text
    read = pandas.read_csv(io.BytesIO(b"t,u\n" + lines), dtype=str)
    again = schema.encode(read)
    np.testing.assert_array_equal(again.columns["t"], data.columns["t"])


@pytest.mark.parametrize(
    "form", ["%G-W%V-%u", "%Y%m%dT%H%M%S", "%Y-%m-%dx%H:%M", "%Y-%m-%dT%H:%M:%S,5", "%Y-%m-%dT%H%M"]
)
def test_texts_that_no_column_reads_are_no_times(form: str) -> None:
    """Python reads them as ISO 8601; a column of times would have found each of them outside."""
    days = pandas.date_range("2024-01-29 10:30", periods=40, freq="25h")
    texts = [day.strftime(form) for day in days]
    assert datetime.datetime.fromisoformat(texts[0]).year == 2024
    assert time_column(texts, None) is None
    column = draft_column(dict.fromkeys(texts, 9)).column
    assert column is not None and (column.encode(np.array(texts, dtype=object)) >= 0).all()


@pytest.mark.parametrize("day", ["%-m/%-d/%Y", "%m/%d/%Y", "%-d.%-m.%Y", "%-m/%-d/%y"])
@pytest.mark.parametrize(
    "time", ["%-H:%M", "%-H:%M:%S", "%-I:%M %p", "%I:%M %p", "%-I:%M:%S %p", "%I:%M:%S %p"]
)
def test_times_as_spreadsheets_write_them_are_read(day: str, time: str) -> None:
    moments = pandas.date_range("2019-12-30 00:05", "2020-03-30", freq="613min")
    form, python = f"{day} {time}", f"{day} {time}".replace("%-", "%")
    texts = [moment.strftime(form) for moment in moments]
    column, note = time_column(texts, None) or (None, "")
    assert isinstance(column, DateTime) and f"points in time written {form}" in note
    schema = Schema({"t": column})
    data = schema.encode(pandas.DataFrame({"t": texts}))
    months = (moments.year - 2019) * 12 + moments.month - 12
    np.testing.assert_array_equal(data.columns["t"], months)
    drawn = arrow_table(data, schema, np.random.default_rng(0))["t"].to_pylist()
    for text, month in zip(drawn, months, strict=True):
        moment = datetime.datetime.strptime(text, python)
        assert moment.strftime(form) == text
        assert (moment.year - 2019) * 12 + moment.month - 12 == month


@pytest.mark.parametrize("suffix", [".feather", ".csv.zip", ".json", ""])
def test_a_suffix_that_is_not_read_is_named(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"t{suffix}").write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(InvalidInput, match="must be CSV"):
        draft(tmp_path / f"t{suffix}", look=True)


def test_a_tab_a_semicolon_a_comma_for_decimals(tmp_path: Path) -> None:
    numbers = [f"{x:.1f}".replace(".", ",") for x in RNG.random(ROWS) * 99]
    for name, separator in [("t.tsv", "\t"), ("t.csv", ";")]:
        write(tmp_path / name, {"x": numbers, "g": ["u", "v"] * 200}, delimiter=separator)
        text = draft(tmp_path / name, look=True)
        stored = yaml.safe_load(text)
        assert "of 1 decimal in" in text
        declared = {"separator": separator} if separator == ";" else {}
        assert stored["file"] == {**declared, "decimal": ","}
        assert stored["columns"]["x"]["decimals"] == 1


def test_names_alone_make_a_schema_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("t.csv"), {"a": ["x", "y"] * 200, "b": [1, 2, 3, 4] * 100})
    for line in (
        "schema draft t.csv -o s.yaml",
        "plan --schema s.yaml --mechanism mst",
        "synth t.csv --schema s.yaml --mechanism mst --epsilon 5 --out o.csv",
    ):
        result = CliRunner().invoke(main, line.split())
        assert result.exit_code == 0, result.output
    with open("o.csv", newline="") as lines:
        assert {row["a"] for row in csv.DictReader(lines)} <= {"x", "y", "(other)"}


def test_many_texts_are_open_and_numbers_of_a_range_are_not_codes() -> None:
    texts = [f"word {i % 70}" for i in range(300)]
    assert isinstance(draft_column(tallied(np.array(texts))).column, OpenCategorical)
    assert draft_column(tallied(np.array([5] * 9))).note.startswith("always '5'")
    activities = draft_column(tallied(np.array(["01.10", "01.11", "10.10", "96.09"] * 9))).column
    assert activities.labels == ("01.10", "01.11", "10.10", "96.09")


RECORDS = {
    "codes and words": [["39", " male", "1.5"], ["17", " female", "2.5"], ["39", " male", "0.5"]],
    "numbers": [["5", "0.2"], ["1", "0.7"], ["3", "0.1"]],
    "words": [["yes", "b"], ["no", "a"], ["yes", "b"], ["no", "a"]],
    "gaps": [["", "x", "7"], ["4", "?", "8"], ["5", "x", "?"]],
}
HEADERS = {
    "words": ["age", "sex", "score"],
    "years": ["2019", "2020", "2021"],
    "pandas without names": ["0", "1", "2"],
    "a year among words": ["place", "2019", "2020"],
}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("name", RECORDS)
def test_a_file_without_a_header_loses_no_record(name: str, separator: str, tmp_path: Path) -> None:
    rows = RECORDS[name] * 9
    lines = "\n".join(separator.join(row) for row in rows)
    path = tmp_path / "t.data"
    path.write_text(lines + "\n\n", encoding="utf-8")
    text = draft(path, look=True)
    assert "--names" in text
    (tmp_path / "s.yaml").write_text(text)
    schema = Schema.load(tmp_path / "s.yaml")
    assert len(encode_file(path, schema)) == len(rows)
    named = draft(path, look=True, file=FileFormat(names=tuple("abc"[: len(rows[0])])))
    assert "--names" not in named and "a" in yaml.safe_load(named)["columns"]


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_no_record(name: str, tmp_path: Path) -> None:
    first = "place" in HEADERS[name]
    rows = [[f"p{i}" if first else str(i % 7 + 20), "30", str(i)] for i in range(12)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(",".join(row) for row in [HEADERS[name], *rows]) + "\n")
    stored = yaml.safe_load(draft(path, look=True))
    assert "names" not in stored.get("file", {})
    assert set(stored["columns"]) <= set(HEADERS[name])


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("width", [1, 3, 12])
def test_the_numbers_of_columns_that_pandas_leaves_without_names_are_no_record(
    width: int, index: bool, words: bool, tmp_path: Path
) -> None:
    values = np.random.default_rng(0).integers(20, 25, (60, width)).astype(object)
    frame = pandas.DataFrame(np.c_[[f"p{i}" for i in range(60)], values] if words else values)
    frame.to_csv(tmp_path / "t.csv", index=index)
    stored = yaml.safe_load(draft(tmp_path / "t.csv", look=True))
    assert "names" not in stored.get("file", {})
    assert list(stored["columns"]) == [str(i + words) for i in range(width)]


@pytest.mark.parametrize("header", [["age", "sex"], None])
def test_comments_before_the_records_are_no_header(
    header: list[str] | None, tmp_path: Path
) -> None:
    rows = [["39", "male"], ["17", "female"], ["21", "male"]] * 5
    lines = [
        "# made by hand",
        "#",
        *(",".join(row) for row in [*([header] if header else []), *rows]),
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    text = draft(path, look=True)
    stored = yaml.safe_load(text)
    assert stored["file"]["comment"] == "#"
    assert list(stored["columns"]) == (header or ["column_1", "column_2"])
    (tmp_path / "s.yaml").write_text(text)
    assert len(encode_file(path, Schema.load(tmp_path / "s.yaml"))) == len(rows)


def test_a_first_record_does_not_become_names_where_values_are_private(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("77516,male\n226802,female\n")
    with pytest.raises(InvalidInput, match="--names") as refused:
        draft(path, look=False)
    assert "77516" not in str(refused.value)
    assert "weight" in draft(path, look=False, file=FileFormat(names=("weight", "sex")))
    result = CliRunner().invoke(main, ["schema", "draft", str(path), "--names", "weight, sex"])
    assert result.exit_code == 0 and "weight:" in result.output


def test_the_whole_file_is_looked_at(tmp_path: Path) -> None:
    rows = 150_000
    path = tmp_path / "t.csv"
    path.write_text("g,x\n" + "".join(f"{'ab'[i // 149_990]},{i // 100}\n" for i in range(rows)))
    columns = yaml.safe_load(draft(path, look=True))["columns"]
    assert columns["g"]["values"] == ["a", "b"]
    assert columns["x"]["high"] == rows // 100 - 1


DAYS = st.dates(datetime.date(1950, 1, 1), datetime.date(2040, 1, 1))
ONE_WAY = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%-d/%-m/%Y", "%Y/%m/%d", "%d. %b %Y", "%Y%m%d")


@given(st.lists(st.tuples(DAYS, st.booleans()), min_size=30), st.sampled_from(ONE_WAY))
def test_iso_dates_beside_others_are_dates(
    days: list[tuple[datetime.date, bool]], form: str
) -> None:
    days += [(datetime.date(2020, 12, 31), True), (datetime.date(1999, 12, 31), False)]
    texts = [day.isoformat() if iso else day.strftime(form) for day, iso in days]
    column, note = time_column(texts, None) or (None, "")
    assert isinstance(column, Date) and column.format == form and "ISO 8601" in note, note
    monthly = replace(column, unit="day")
    codes = monthly.encode(np.array(texts, dtype=object))
    first = min(day for day, _ in days)
    assert codes.tolist() == [(day - first).days for day, _ in days]
    decoded = monthly.decode(codes, np.random.default_rng(0))
    assert decoded.tolist() == [day.strftime(form) for day, _ in days]


@given(
    st.lists(DAYS, min_size=40, max_size=80, unique=True),
    st.lists(st.sampled_from(ONE_WAY[1:]), min_size=2, max_size=3, unique=True),
    st.lists(st.sampled_from(["unknown", "n. b.", "31/31/2020"]), max_size=2, unique=True),
)
def test_dates_written_in_several_ways_are_named(
    days: list[datetime.date], forms: list[str], others: list[str]
) -> None:
    days += [datetime.date(2001, month, 28) for month in range(1, 13)]
    texts = [day.strftime(forms[i % len(forms)]) for i, day in enumerate(days)]
    drafted = draft_column(tallied(np.array(texts + others, dtype=object)))
    if not isinstance(drafted.column, Date):
        assert drafted.note.startswith("dates written") and "in one way" in drafted.note
        assert all(repr(each) in drafted.note for each in others)
        said = drafted.note.partition(" (and ")[0].partition(":")[0]
        named = said.removeprefix("dates written ").split(" and ")
        assert all(any(is_written(text, form) for form in named) for text in texts)
        assert all(any(is_written(text, form) for text in texts) for form in named)


@given(
    st.lists(st.integers(24 * 3600, 10**6), min_size=25, unique=True),
    st.sampled_from(["H:MM:SS", "D days HH:MM:SS", "PnDTnHnMnS"]),
)
def test_durations_are_named_with_what_to_do(seconds: list[int], form: str) -> None:
    texts = [length_of_time(each, form) for each in seconds]
    drafted = draft_column(tallied(np.array(texts, dtype=object)))
    assert drafted.column is None and drafted.note.startswith(f"durations written {form}:")
    assert "numbers of seconds" in drafted.note


def length_of_time(seconds: int, form: str) -> str:
    hours, minutes, rest = seconds // 3600, seconds // 60 % 60, seconds % 60
    if form == "H:MM:SS":
        return f"{hours}:{minutes:02}:{rest:02}"
    if form == "PnDTnHnMnS":
        return f"P{hours // 24}DT{hours % 24}H{minutes}M{rest}S"
    return f"{hours // 24} days {hours % 24:02}:{minutes:02}:{rest:02}"


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=50))
def test_words_get_no_advice_about_times(texts: list[str]) -> None:
    assert advice([f"x{text}" for text in texts]) == ("", [])


@pytest.mark.parametrize("stray", ["9.12", "unknown", "31.04.2021"])
@pytest.mark.parametrize(("form", "kind"), [("%-H:%M", DateTime), ("%d.%m.%Y", Date)])
def test_a_few_other_texts_among_times_are_taken_for_missing(
    form: str, kind: type, stray: str
) -> None:
    """A column with one oversight was called durations, or left open."""
    times = [
        datetime.datetime(2021, 1, 1 + i % 28, i % 24, i % 60).strftime(form) for i in range(60)
    ]
    drafted = draft_column(tallied(np.array([*times, stray, ""], dtype=object)))
    assert isinstance(drafted.column, kind) and f"{stray!r} among them taken for" in drafted.note
    codes = drafted.column.encode(np.array([*times, stray, ""], dtype=object))
    assert codes[-1] == codes[-2] and codes[-1] not in codes[:-2]
    late = draft_column(tallied(np.array([*(f"{i % 24}:30" for i in range(60)), "26:15"])))
    assert late.note.startswith("durations written H:MM:")


@pytest.mark.parametrize(
    ("unit", "number"), [(" km", "1,5"), ("lbs", "180"), ("°C", "-3.0"), (" mmol/l", "1")]
)
def test_a_unit_behind_numbers_is_named(unit: str, number: str) -> None:
    texts = [f"{number}{i}{unit}" for i in range(40)]
    drafted = draft_column(tallied(np.array([*texts, "none"], dtype=object)))
    assert f"numbers with the unit {unit.strip()!r}: write the numbers alone" in drafted.note
    few = draft_column(tallied(np.array(["10th", "11th", "12th"] * 30, dtype=object)))
    assert "unit" not in few.note
    before = draft_column(tallied(np.array([f"CHF {i + 4}'{i + 200}" for i in range(40)])))
    assert "numbers with the unit 'CHF': write the numbers alone" in before.note
    assert "unit" not in draft_column({f"ICD {i:03}": 9 for i in range(40)}).note


@pytest.mark.parametrize("form", ["{}-", "{}.50-", "{},25-", "1.{},50-", "\u2212{}", "\u2013{}.5"])
def test_a_minus_sign_that_is_not_read_is_named(form: str) -> None:
    """They were called identifiers. Of a few texts, such as marks, the sign may be a part."""
    texts = [form.format(i + 100) if i % 4 else str(i + 100) for i in range(40)]
    drafted = draft_column(tallied(np.array(texts)))
    said = "the minus sign behind them" if form.endswith("-") else f"{form[0]!r} for minus"
    assert drafted.column is None and f"with {said}: write - before them" in drafted.note
    marks = [f"{mark}{sign}" for mark in range(1, 7) for sign in ("", "-")]
    assert "sign" not in draft_column(dict.fromkeys(marks, 9)).note


def test_codes_that_look_like_numbers_with_an_exponent_are_said_to_be_read_as_numbers() -> None:
    for codes in (["1E5", "2E3"], [f"{i}e{i % 7}" for i in range(1, 99)], ["12", "13", "1E1"]):
        drafted = draft_column(dict.fromkeys(codes, 30))
        code = codes[-1] if "12" in codes else codes[0]
        assert f"{code!r} is read as {float(code):g}" in drafted.note
        listed = Categorical(tuple(codes))
        assert listed.encode(np.array([code, text_of(float(code))], object)).tolist()[1] == -1
    for texts in (["1E+05", "2.5E3", "1e-07"], ["E100", "1E5", "x"], ["07", "1E5"]):
        assert "is read as" not in draft_column(dict.fromkeys(texts, 30)).note


@pytest.mark.parametrize(("separator", "sign"), [(";", ","), ("\t", ","), (";", "."), (",", ".")])
def test_three_decimals_that_may_be_thousands_are_said(
    separator: str, sign: str, tmp_path: Path
) -> None:
    """They were read as a thousandth, without a word."""
    numbers = [f"{n:,}".replace(",", sign) for n in RNG.integers(900, 900_000, ROWS).tolist()]
    first = next(text for text in numbers if sign in text)
    write(tmp_path / "t.csv", {"n": numbers, "g": ["u", "v"] * (ROWS // 2)}, delimiter=separator)
    said = f"{first!r} is read with 3 decimals: if it is {first.replace(sign, '')}, write it"
    assert said in draft(tmp_path / "t.csv", look=True)
    small = [f"{n / 1000:.3f}".replace(".", sign) for n in RNG.integers(1, 9000, ROWS).tolist()]
    write(tmp_path / "s.csv", {"n": small, "g": ["u", "v"] * (ROWS // 2)}, delimiter=separator)
    assert "of 3 decimals in 20 bins\n" in draft(tmp_path / "s.csv", look=True)


@pytest.mark.parametrize("decimals", [1, 2, 3])
def test_numbers_in_single_precision_have_the_decimals_that_they_were_written_with(
    decimals: int, tmp_path: Path
) -> None:
    """They had nine: 0.1 is 0.10000000149 there."""
    numbers = RNG.uniform(0, 90, ROWS).round(decimals).astype(np.float32)
    pq.write_table(pa.table({"x": numbers}), tmp_path / "t.parquet")
    drafted = yaml.safe_load(draft(tmp_path / "t.parquet", look=True))["columns"]["x"]
    assert drafted["decimals"] == decimals


def test_points_between_thousands_are_named() -> None:
    """They were called identifiers."""
    millions = [f"{n:,}".replace(",", ".") for n in RNG.integers(900, 9 * 10**6, 90).tolist()]
    drafted = draft_column(dict.fromkeys(millions, 1))
    assert drafted.note.startswith("numbers with points as signs of thousands: write them without")
    addresses = dict.fromkeys((f"192.168.100.{i}" for i in range(100, 250)), 9)
    assert "thousands" not in draft_column(addresses).note


@pytest.mark.parametrize("form", ["%Y-%m", "%b-%Y", "%m/%Y"])
def test_a_few_months_are_drafted_by_month(form: str) -> None:
    """By day they had sixty codes, of which three can occur."""
    months = [datetime.date(2018, month, 1).strftime(form) for month in (1, 2, 3)]
    column = draft_column(dict.fromkeys(months, 300)).column
    assert isinstance(column, Date) and column.unit == "month" and column.size == 3
    assert column.encode(np.array(months)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("digits", ["1" + "0" * 25, str(2**63 - 9)])
def test_numbers_that_floats_do_not_tell_apart_are_different_labels(digits: str) -> None:
    texts = [digits[:-1] + last for last in "1357"]
    column = draft_column(tallied(np.array(texts * 30, dtype=object))).column
    assert isinstance(column, Categorical) and sorted(column.labels) == sorted(texts)


@pytest.mark.parametrize("text", ["\u00b2", "9" * 5000, "\u0665", "007", "1.50", "1e5"])
def test_a_single_text_that_is_no_plain_number_is_kept_as_it_is(text: str) -> None:
    column = draft_column(tallied(np.array([text] * 30, dtype=object))).column
    assert isinstance(column, Categorical) and column.values == (text,)


def test_lines_that_end_in_carriage_returns_alone_are_named(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    path.write_bytes(b"a,b\r" + b"1,x\r" * 100)
    schema = Schema({"a": Categorical((1,)), "b": Categorical(("x",))})
    for read in (lambda: draft(path, look=True), lambda: encode_file(path, schema.placed())):
        with pytest.raises(InvalidInput, match="old.csv .*carriage returns"):
            read()


@pytest.mark.parametrize("place", [5, 2000])
def test_a_text_with_a_carriage_return_and_no_quotes_is_named(place: int, tmp_path: Path) -> None:
    path, lines = tmp_path / "notes.csv", [f"{i % 9},fine" for i in range(3000)]
    lines[place] = "1,seen\rat night"
    path.write_bytes("\n".join(["a,note", *lines, ""]).encode())
    with pytest.raises(InvalidInput, match="carriage return.* outside quot"):
        draft(path, look=True)
    lines[place] = '1,"seen\rat night"'
    path.write_bytes("\n".join(["a,note", *lines, ""]).encode())
    assert "note: 2 labels" in draft(path, look=True)


def test_the_encoding_that_a_mark_states_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("a,b\n1,2\n3,4\n", encoding="utf-16")
    with pytest.raises(InvalidInput, match="byte order mark of UTF-16.*--encoding utf-16"):
        draft(path, look=True)


@pytest.mark.parametrize("text", ["\u00b2", "9" * 5000])
def test_odd_digits_in_the_first_lines_are_names_or_texts(text: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_text(f"a,b\n{text},1\nx,2\n{text},3\n", encoding="utf-8")
    assert list(yaml.safe_load(draft(path, look=True))["columns"]) == ["a", "b"]
    path.write_text(f"{text},b\n1,1\n2,2\n3,3\n", encoding="utf-8")
    assert list(yaml.safe_load(draft(path, look=True))["columns"]) == [text, "b"]


def test_a_number_with_the_other_decimal_sign_ends_no_draft(tmp_path: Path) -> None:
    """As a text for missing values it would be a value of the column, too."""
    path = tmp_path / "pay.csv"
    path.write_text("pay;sex\n" + "".join(f"{n * n % 7919};F\n" for n in range(300)) + "3.5;M\n")
    assert "pay: numbers beside '3.5' with another" in draft(
        path, look=True, file=FileFormat(decimal=",")
    )


@pytest.mark.parametrize("others", [["refused"], ["inf", "-inf"], ["-Infinity"], ["<0.5"]])
def test_a_few_texts_among_numbers_are_missing_values(others: list[str], tmp_path: Path) -> None:
    """The column was left out as an identifier, or left open so that nearly all of it was lost."""
    rng = np.random.default_rng(0)
    numbers = [f"{number:.3f}" for number in rng.normal(size=300)]
    path = tmp_path / "pay.csv"
    path.write_text("sex,pay\n" + "".join(f"F,{text}\n" for text in [*numbers, *others * 8]))
    text = draft(path, look=True)
    assert ("a limit is told from missing values" in text) == (others == ["<0.5"])
    for other in others:
        assert f"{other!r}" in text.split("taken for missing")[0]
    schema = Schema.from_dict(yaml.safe_load(text))
    codes = encode_file(path, schema).columns["pay"]
    missing = schema.columns["pay"].size - 1
    assert (codes == missing).tolist() == [False] * 300 + [True] * 8 * len(others)
    assert draft_column(tallied(np.array([f"A{i}" for i in range(60)]))).column is None


@pytest.mark.parametrize("times", [2, 40])
def test_ages_with_a_top_code_are_numbers_however_many_rows_there_are(times: int) -> None:
    """In a large table they were labels, which have no means and no ranges."""
    drafted = draft_column({str(age): times for age in range(90)} | {"90+": times})
    assert isinstance(drafted.column, Integer) and drafted.column.missing == ("90+",)
    assert "a top code as the beginning of the last bin" in drafted.note


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC", "+02:00"])
def test_points_in_time_with_a_zone_are_those_of_a_clock_there(zone: str, tmp_path: Path) -> None:
    """Half a year has two offsets from Greenwich in Berlin, for which the column was left out."""
    instants = [datetime.datetime(2020, 1, 1, 23) + datetime.timedelta(days=i) for i in range(180)]
    times = pa.array(instants, pa.timestamp("us", tz=zone))
    pq.write_table(pa.table({"seen": times}), tmp_path / "t.parquet")
    schema = Schema.from_dict(yaml.safe_load(text := draft(tmp_path / "t.parquet", look=True)))
    column = schema.columns["seen"]
    assert f"of a clock in {zone}" in text
    assert isinstance(column, DateTime) and column.zone == (zone if zone[0] != "+" else None)
    codes = encode_file(tmp_path / "t.parquet", schema).columns["seen"]
    shown = [column.labels[code] for code in codes]
    assert shown == [str(each)[: len(shown[0])] for each in times.to_pylist()]


@pytest.mark.parametrize("end", ["", " ", "  \n", " \r\n\n"])
def test_a_blank_last_line_is_no_record(end: str, tmp_path: Path) -> None:
    """In a file of one column it is a record, as DuckDB and polars read it."""
    path = tmp_path / "t.csv"
    path.write_text("age,sex\n1,F\n2,M\n3,F\n" + end)
    schema = Schema.from_dict(yaml.safe_load(draft(path, look=True)))
    assert len(encode_file(path, schema)) == 3
    path.write_text("sex\nF\nM\nF\n" + end)
    form = Schema({"sex": Categorical(("F", "M"), outside="F")})
    assert len(encode_file(path, form)) == 3 + end.count("\n") + end.endswith(" ")


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_missing_values_of_a_single_column_are_records(ends: str, tmp_path: Path) -> None:
    """Whoever wrote the file: pandas writes a missing value in quotes, others an empty line."""
    path, values = tmp_path / "t.csv", ["F", None, "M", None, None]
    frame = pl.DataFrame({"sex": values * 3})
    frame.write_csv(path, line_terminator=ends)
    schema = Schema.from_dict(yaml.safe_load(draft(path, look=True)))
    codes = schema.encode(frame.to_arrow()).columns["sex"].tolist()
    assert encode_file(path, schema).columns["sex"].tolist() == codes == [0, 2, 1, 2, 2] * 3
    relation = duckdb.read_csv(str(path))
    assert schema.encode(relation.to_arrow_table()).columns["sex"].tolist() == codes
    for written in (relation.write_csv, lambda p: frame.to_pandas().to_csv(p, index=False)):
        written(str(path))
        assert encode_file(path, schema).columns["sex"].tolist() == codes


@pytest.mark.parametrize("number", [1.0, 2.5, -3, -0.25])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_a_column_of_one_number_stays_a_column_of_numbers(
    tmp_path: Path, number: float, suffix: str
) -> None:
    frame = pl.DataFrame({"v": [number, None] * 20, "w": [1, 2] * 20})
    write = {"jsonl": frame.write_ndjson, "parquet": frame.write_parquet, "csv": frame.write_csv}
    write[suffix](tmp_path / f"t.{suffix}")
    (tmp_path / "s.yaml").write_text(draft(tmp_path / f"t.{suffix}", look=True))
    schema = Schema.load(tmp_path / "s.yaml")
    data = encode_file(tmp_path / f"t.{suffix}", schema)
    write_records(tmp_path / f"o.{suffix}", schema, [data], np.random.default_rng(0))
    read = {"jsonl": pl.read_ndjson, "parquet": pl.read_parquet, "csv": pl.read_csv}
    made = read[suffix](tmp_path / f"o.{suffix}")["v"]
    assert made.dtype.is_numeric() and made.to_list() == frame["v"].to_list()


def test_ordered_categories_keep_their_order_and_values_that_do_not_occur(tmp_path: Path) -> None:
    levels = ["none", "some", "much", "all"]
    ordered = pandas.Categorical(["some", "all", None, "none"] * 9, categories=levels, ordered=True)
    frame = pandas.DataFrame({"often": ordered, "sex": pandas.Categorical(["m", "f"] * 18)})
    frame.to_parquet(tmp_path / "t.parquet")
    stored = yaml.safe_load(draft(tmp_path / "t.parquet", look=True))["columns"]
    assert stored["often"] == {"type": "categorical", "values": levels, "missing": True}
    assert stored["sex"]["values"] == ["f", "m"]


def test_a_column_without_any_value_is_left_out(tmp_path: Path) -> None:
    """As one label, noise would write this label into synthetic records."""
    (tmp_path / "t.csv").write_text("a,b,c\n" + "1,,NA\n2,,NA\n" * 30)
    text = draft(tmp_path / "t.csv", look=True)
    (tmp_path / "s.yaml").write_text(text)
    schema = Schema.load(tmp_path / "s.yaml")
    assert list(schema.columns) == ["a"] and schema.file.ignore == ("b", "c")
    assert "# b: no value at all; left out; to keep it, say what it may hold; 60 missing" in text
    encode_file(tmp_path / "t.csv", schema)
