"""Real files and frames that were once read, written or drafted wrongly."""

from __future__ import annotations

import datetime
import gzip
import zoneinfo
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml
from pyarrow import compute, parquet

from pgmkit import (
    Boolean,
    Categorical,
    Column,
    Date,
    DateTime,
    FileFormat,
    Integer,
    Measurement,
    Numeric,
    Schema,
    ask,
    draft,
    encode_file,
    estimate,
)
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset
from pgmkit.tables.engines.frames import FrameForm, decode, encode
from pgmkit.tables.files.record_files import write_records
from pgmkit.tables.question_grammar import parse

WRITTEN = {
    "decimal commas in texts": (Numeric(0, 50, bins=5, decimals=1, decode_as="text"), ","),
    "decimal commas in labels": (Categorical((1.5, 2, 2.5), other="else"), ","),
    "decimal commas in categories": (Categorical((1.5, 2.5), decode_as="category"), ","),
    "a point in a missing text": (Numeric(0, 5, bins=2, missing=("k.A.",), decode_as="text"), ","),
    "a missing number with a comma": (Numeric(0, 5, bins=2, missing=("-9,9",)), ","),
    "one column with a decimal comma": (Numeric(-1.5, -1, bins=2), ","),
    "trailing zeros of a spike": (
        Numeric(0, 2, bins=2, spikes=(0.25,), decimals=0, trailing_zeros=True),
        ".",
    ),
    "trailing zeros of a special value": (
        Numeric(0, 2, bins=2, special=(9.5,), decimals=0, trailing_zeros=True),
        ".",
    ),
    "truth values as labels": (Categorical((True, False)), "."),
    "truth values of numbers": (Categorical((1, 0), decode_as="boolean"), "."),
    "a zone after 2037": (
        DateTime("2067-07-04T00:00", "2067-07-05T23:00", zone="America/New_York"),
        ".",
    ),
    "numbers beyond 2^53": (Categorical((2**60, 5), decode_as="number"), "."),
}


@pytest.mark.parametrize(("column", "decimal"), WRITTEN.values(), ids=WRITTEN)
def test_what_is_written_is_read_again(column: Column, decimal: str, tmp_path: Path) -> None:
    schema = Schema({"c": column}, file=FileFormat(decimal=decimal))
    codes = np.arange(column.size).repeat(20)
    data, rng = Dataset(schema.domain, {"c": codes}), np.random.default_rng(0)
    for suffix in (".csv", ".jsonl", ".parquet"):
        write_records(tmp_path / f"t{suffix}", schema, [data], rng)
        found = encode_file(tmp_path / f"t{suffix}", schema)
        assert found.columns["c"].tolist() == codes.tolist(), suffix
    for library in ("pandas", "polars", "pyarrow"):
        frame = decode(data, schema, rng, FrameForm.of(library))
        assert encode(frame, schema).columns["c"].tolist() == codes.tolist(), library


REFUSED = [
    (lambda: Boolean(words=("1", "2"), decode_as="integer"), "mean something else"),
    (lambda: Boolean(words=("true", "false")), "mean something else"),
    (lambda: Boolean(missing=("true",)), r"words \('false', 'true'\) .* missing values \('true"),
    (lambda: Categorical((True, False), decode_as="number"), "is decoded as None"),
    (lambda: Categorical(("a", "b"), decode_as="integer"), "is decoded as None"),
    (lambda: Categorical(("1", "1.0"), decode_as="number"), "no number of its own"),
    (lambda: Categorical((2**53 + 1, 5), decode_as="number"), "no number of its own"),
    (lambda: Integer(2**53, 2**53 + 9, decode_as="number"), "up to 2^53 only"),
    (lambda: Numeric(0, 1, bins=4, decimals=0, decode_as="integer"), "a whole number in every bin"),
    (
        lambda: Numeric(0, 4, bins=2, special=(9.5,), decimals=0, decode_as="integer"),
        "every special value",
    ),
    (lambda: Date("0850-01-01", "0870-12-31", unit="year", format="%d.%m.%Y"), "1000 to 9999"),
    (lambda: Date("-0044-03-15", "2000-12-31", unit="year", format="%Y%m%d"), "1000 to 9999"),
]


@pytest.mark.parametrize(("made", "said"), REFUSED)
def test_columns_whose_records_would_be_read_otherwise_are_refused(made, said: str) -> None:
    with pytest.raises(InvalidInput, match=said.replace("^", r"\^")):
        made()


@pytest.mark.parametrize("suffix", [".xlsx", ".sav", ".dta"])
def test_dates_that_other_programs_do_not_have_are_refused(suffix: str, tmp_path: Path) -> None:
    schema = Schema({"d": Date("-0044-01-01", "0014-12-31", unit="year")})
    data = Dataset(schema.domain, {"d": np.arange(5)})
    with pytest.raises(InvalidInput, match="years 1 to 9999"):
        write_records(tmp_path / f"t{suffix}", schema, [data], np.random.default_rng(0))


def test_zoned_times_after_2037_are_those_of_a_clock(tmp_path: Path) -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    moments = [datetime.datetime(year, 7, 1, 0, 30, tzinfo=zone) for year in (2030, 2045)]
    table = pa.table({"t": pa.array(moments, pa.timestamp("us", "Europe/Berlin"))})
    schema = Schema({"t": Date("2030-01-01", "2045-12-31")})
    days = [(moment.date() - datetime.date(2030, 1, 1)).days for moment in moments]
    parquet.write_table(table, tmp_path / "t.parquet")
    assert encode_file(tmp_path / "t.parquet", schema).columns["t"].tolist() == days
    assert encode(table, schema).columns["t"].tolist() == days
    assert encode(table.to_pandas(), schema).columns["t"].tolist() == days
    column = DateTime("2045-07-01T00:00", "2045-07-01T23:00", zone="Europe/Berlin")
    schema = Schema({"t": column})
    made = decode(
        Dataset(schema.domain, {"t": [5]}),
        schema,
        np.random.default_rng(0),
        FrameForm.of("pyarrow"),
    )
    assert made["t"][0].as_py().utcoffset() == datetime.timedelta(hours=2)


def test_skipped_times_do_not_depend_on_later_ones() -> None:
    """On 31 March 2030 the clocks of Berlin skip the hour from 2; its times become 3 there."""
    column = DateTime("2030-03-31T00:00", "2045-07-02T00:00", unit="day", zone="Europe/Berlin")
    schema = Schema({"t": column})
    form = FrameForm.of("pyarrow")
    moments = {}
    for codes in ([0] * 500, [0] * 500 + [column.size - 1]):
        made = decode(Dataset(schema.domain, {"t": codes}), schema, np.random.default_rng(0), form)
        moments[len(codes)] = made["t"].to_pylist()
    assert moments[501][:500] == moments[500]
    assert moments[501][500].utcoffset() == datetime.timedelta(hours=2)
    change = datetime.datetime(2030, 3, 31, 3, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    assert 5 < sum(each == change for each in moments[500]) < 60  # a 24th of 500; 1e-6


@pytest.mark.parametrize("known", [set(), {"Mars/Olympus"}])
def test_a_machine_without_time_zones_is_told_what_it_lacks(
    known: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small images of Linux have no database of time zones; Python may have one of its own, which
    Arrow does not read. UTC needs none.
    """

    def no_database(*_: object, **__: object) -> None:
        raise pa.ArrowInvalid("Cannot locate or parse timezone")

    instant = datetime.datetime(2040, 5, 1, 7, tzinfo=datetime.UTC)
    for zone, name in (("Mars/Olympus", "far"), ("UTC", "utc")):
        times = pa.array([instant] * 30, pa.timestamp("us", zone))
        parquet.write_table(pa.table({"t": times}), tmp_path / f"{name}.parquet")
    with monkeypatch.context() as patched:
        patched.setattr(zoneinfo, "available_timezones", lambda: known)
        patched.setattr(compute, "local_timestamp", no_database)
        patched.setattr(compute, "assume_timezone", no_database)
        with pytest.raises(InvalidInput, match=r"'Mars/Olympus'.*; .*install .* package tzdata"):
            DateTime("2040-05-01", "2040-05-02", zone="Mars/Olympus")
        with pytest.raises(InvalidInput, match=r"'Mars/Olympus'.*; install .* package tzdata"):
            draft(tmp_path / "far.parquet", look=True)
        schema = Schema.from_dict(yaml.safe_load(draft(tmp_path / "utc.parquet", look=True)))
        codes = encode_file(tmp_path / "utc.parquet", schema)
        made = decode(codes, schema, np.random.default_rng(0), FrameForm.of("pyarrow"))
    assert getattr(schema.columns["t"], "zone") == "UTC"  # noqa: B009
    assert made["t"].type.tz == "UTC" and made["t"][0].as_py() == instant


def test_names_in_dates_are_english_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that embeds Python, such as R, sets the user's locale: 07 Oct was then unreadable,
    and one o'clock in the afternoon was written without PM.
    """

    class German(datetime.datetime):
        def strftime(self, form: str) -> str:
            return super().strftime(form).replace("Oct", "Okt").replace("PM", "")

    ends = ("2020-10-01T00:00", "2020-10-31T23:59")
    with monkeypatch.context() as patched:
        patched.setattr(datetime, "datetime", German)
        for form, said in (("%d %b %Y", "'Okt' for 'Oct'"), ("%Y-%m-%d %I %p", "'' for 'PM'")):
            with pytest.raises(InvalidInput, match=f"{said}; call locale.setlocale"):
                DateTime(*ends, format=form)
        DateTime(*ends, format="%d/%m/%Y")
    assert DateTime(*ends, format="%d %b %Y", unit="day").encode(np.array(["07 Oct 2020"])) == [6]


def test_missing_numbers_beyond_2_to_53_are_not_rounded() -> None:
    column = Integer(0, 2**53, bins=2, missing=(str(2**53 + 1), "-1.5"))
    values = np.array([2**53, 2**53 + 1, -1], dtype=np.int64)
    assert column.encode(values).tolist() == [1, 2, -1]


@pytest.mark.parametrize("name", ["x|y", ";", "#first", 'say "x"', "a, b", "a\tb"])
def test_odd_names_of_columns_are_written_and_read(name: str, tmp_path: Path) -> None:
    schema = Schema({name: Categorical(("p", "q"))}, file=FileFormat(comment="#"))
    data = Dataset(schema.domain, {name: np.array([0, 1, 1])})
    write_records(tmp_path / "t.csv", schema, [data], np.random.default_rng(0))
    assert encode_file(tmp_path / "t.csv", schema).columns[name].tolist() == [0, 1, 1]
    assert list(pd.read_csv(tmp_path / "t.csv")) == [name]


def test_questions_say_how_odd_names_are_written() -> None:
    schema = Schema({"x|y": Boolean(), "a, b": Boolean()})
    for name in schema.columns:
        with pytest.raises(InvalidInput) as refused:
            parse(schema, name)
        assert f'the column {name} is written "{name}"' in str(refused.value)
        assert parse(schema, f'"{name}"').groups == (name,)


FILES = {
    "cut.csv.gz": (gzip.compress(b"a,b\n1,2\n" * 999)[:40], "cannot be decompressed"),
    "plain.csv.gz": (b"a,b\n1,2\n", "cannot be decompressed"),
    "cut.jsonl.gz": (gzip.compress(b'{"a": 1, "b": 2}\n' * 999)[:40], "cannot be decompressed"),
    "cell.csv": (b"a,b\n1,2\n3," + b"4" * 2_000_000 + b"\n", "more than 1,048,576 bytes"),
    "header.csv": (b'a,"b\n(EUR)"\n1,2\n', "goes on in the next line"),
    "guessed.csv": (b"a|x|y,b\n1,2\n", "--separator ,"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_cannot_be_read_say_why(name: str, tmp_path: Path) -> None:
    content, said = FILES[name]
    Path(tmp_path, name).write_bytes(content)
    names = ("a|x|y" if name == "guessed.csv" else "a", "b")
    schema = Schema(dict.fromkeys(names, Integer(0, 9)))
    with pytest.raises(InvalidInput, match=said) as refused:
        encode_file(Path(tmp_path, name), schema)
    assert name in str(refused.value)


def test_drafts_of_long_values_say_how_long_they_may_be(tmp_path: Path) -> None:
    Path(tmp_path, "t.csv").write_text("a\n" + "4" * 200_000 + "\n")
    with pytest.raises(InvalidInput, match="more than 131,072 characters"):
        draft(tmp_path / "t.csv", look=True)


DRAFTED = {
    "dates before 1800": (["27/01/1650", "18/07/1790"], "date"),
    "always true": (["True", ""], "boolean"),
    "always one date": (["2000-01-17"], "date"),
    "always one number": (["20000117"], "categorical"),
}


@pytest.mark.parametrize(("texts", "kind"), DRAFTED.values(), ids=DRAFTED)
def test_drafts_know_these_columns(texts: list[str], kind: str, tmp_path: Path) -> None:
    lines = ["k,c", *(f"{i % 3},{text}" for i, text in enumerate(texts * 20))]
    Path(tmp_path, "t.csv").write_text("\n".join(lines) + "\n")
    text = draft(tmp_path / "t.csv", look=True)
    assert yaml.safe_load(text)["columns"]["c"]["type"] == kind
    Path(tmp_path, "s.yaml").write_text(text)
    encode_file(tmp_path / "t.csv", Schema.load(tmp_path / "s.yaml"))


def test_a_header_above_a_column_without_values_is_no_record(tmp_path: Path) -> None:
    Path(tmp_path, "t.csv").write_text('name\n""\n""\n')
    with pytest.raises(InvalidInput, match=r"no column that .* \(name: no value at all"):
        draft(tmp_path / "t.csv", look=True)


def test_times_of_day_are_read_with_decimals_of_seconds() -> None:
    column = DateTime("1900-01-01T00:00", "1900-01-01T23:59", format="%H:%M:%S")
    texts = pa.array(["17:23:00.000000000", "17:23:00"])
    assert column.encode(texts).tolist() == [17, 17]


def test_quantiles_of_numbers_with_decimals_are_those_of_the_records() -> None:
    column = Numeric(0, 10, bins=20, decimals=1)
    values = np.arange(100) / 10
    schema = Schema({"x": column})
    table = np.bincount(column.encode(values), minlength=20).astype(float)
    model = estimate(schema.domain, [Measurement(("x",), table, 1e-6)], total=100)
    for level in (0.01, 0.17, 0.5, 0.77, 1.0):
        found = ask(model, schema, f"quantile(x, {level})").columns
        (answer,) = next(iter(found.values()))
        assert answer == np.quantile(values, level, method="inverted_cdf")


def test_decoded_numbers_are_even_among_those_with_the_columns_decimals() -> None:
    # Of 0.3..0.7 each has a fifth. A fifth of 100,000 is missed by 6 standard deviations (759)
    # with a probability of 2e-9.
    column = Numeric(0.25, 0.75, bins=1, decimals=1)
    values = column.decode(np.zeros(100_000, dtype=np.int64), np.random.default_rng(0))
    found, times = np.unique(values, return_counts=True)
    assert found.tolist() == [0.3, 0.4, 0.5, 0.6, 0.7]
    assert abs(times - 20_000).max() < 6 * np.sqrt(100_000 * 0.2 * 0.8)
    assert column.midpoints[0] == pytest.approx(0.5)


def test_the_lowest_value_is_not_counted_as_above_itself() -> None:
    schema = Schema({"pay": Numeric(0, 2, bins=2), "own": Numeric(0, 2, bins=2, spikes=(0,))})
    for question in ("count | pay > 0", "count | pay <= 0"):
        with pytest.raises(InvalidInput, match="exactly 0 are in the bin 0..1 with others"):
            parse(schema, question)
    assert parse(schema, "count | own > 0").allowed["own"].tolist() == [False, True, True]
    assert parse(schema, "count | own in 0..1").allowed["own"].tolist() == [True, True, False]
    assert parse(schema, "count | own = 0..1").allowed["own"].tolist() == [False, True, False]
    assert parse(schema, "count | pay >= 0 and pay > -1").allowed["pay"].all()


def test_the_highest_value_is_not_counted_as_below_itself() -> None:
    """The last bin of real numbers contains its upper end, and clipped values beyond it."""
    schema = Schema({"pay": Numeric(0, 2, bins=2), "own": Numeric(0, 2, bins=2, spikes=(2,))})
    for question in ("count | pay < 2", "count | pay >= 2"):
        with pytest.raises(InvalidInput, match="exactly 2 are in the bin 1..2 with others"):
            parse(schema, question)
    assert parse(schema, "count | own < 2").allowed["own"].tolist() == [True, True, False]
    assert parse(schema, "count | pay <= 2 and pay < 3").allowed["pay"].all()


@pytest.mark.parametrize("form", ["%H%M", "%-H%M"])
def test_a_time_without_separators_is_read_without_the_zeros_in_front(form: str) -> None:
    column = DateTime(low="00:00", high="23:59", unit="minute", format=form)
    schema, minutes = Schema({"time": column}), np.arange(1440)
    whole = minutes // 60 * 100 + minutes % 60  # 11 is 00:11, and 517 is 05:17
    for values in (whole.tolist(), [str(n) for n in whole], [f"{n:04d}" for n in whole]):
        codes = schema.encode(pd.DataFrame({"time": values})).columns["time"]
        assert np.array_equal(codes, minutes)
    days = Schema({"day": Date(low="1985-01-01", high="1985-12-31", format="%d%m%y")})
    assert days.encode(pd.DataFrame({"day": [10285, 311285]})).columns["day"].tolist() == [31, 364]
