"""Details of columns that no round trip shows: refusals, odd types, groups, decimal places."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgmkit import (
    Categorical,
    Column,
    Dataset,
    Date,
    DateTime,
    FileFormat,
    Integer,
    Numeric,
    Schema,
)
from pgmkit.errors import InvalidInput
from pgmkit.tables import columns
from pgmkit.tables.files.reading import all_names
from pgmkit.tables.files.record_files import encode_file, write_records
from pgmkit.tables.schema_file import column_from_dict


def test_days_without_a_year_are_of_1900_without_a_warning_of_python() -> None:
    """Python 3.13 warns of such formats, and 3.15 is to refuse them."""
    column = Date("1900-01-01", "1900-12-31", format="%-d %b", outside="missing", missing=())
    with warnings.catch_warnings(action="error"):
        codes = column.encode(np.array(["1 Jan", "6 Oct", "29 Feb"]))
    days = (np.datetime64("1900-10-06") - np.datetime64("1900-01-01")).astype(int)
    assert codes.tolist() == [0, days, column.size - 1]


def test_whole_numbers_with_a_format_are_dates() -> None:
    """Several at once, and 20200230 is none."""
    days = Date("2020-01-01", "2021-12-31", unit="month", format="%Y%m%d", decode_as="integer")
    numbers = [20200105, 20211231, 20200105, 20200230]
    for values in (np.array(numbers), np.array(numbers, dtype=float), np.array(numbers, object)):
        assert days.placed().encode(values)[:3].tolist() == [0, 23, 0]
        assert days.encode(values)[3] == -1
    drawn = days.decode(np.array([0, 23]), np.random.default_rng(0))
    assert [int(each) // 100 for each in drawn] == [202001, 202112]
    gaps = Date("2020-01-01", "2021-12-31", format="%Y%m%d", missing=("99999999",))
    for values in (np.array([99999999, 20200102]), np.array(["99999999", "20200102"])):
        assert gaps.encode(values).tolist() == [gaps.size - 1, 1]
    for wrong in (None, "%d.%m.%Y"):
        with pytest.raises(InvalidInput, match="decode_as"):
            Date("2020-01-01", "2021-12-31", format=wrong, decode_as="integer")


@pytest.mark.parametrize("missing", [(), ("2021",)])
@pytest.mark.parametrize("kind", [np.int16, np.float32, np.float64, object, str])
def test_whole_numbers_of_four_digits_are_years_like_their_texts(
    kind: type, missing: tuple[str, ...]
) -> None:
    """As pandas reads a CSV file's column of years: whole numbers, or 2020.0 beside empty cells."""
    moved = Date("2019-01-01", "2022-12-31", unit="year", missing=missing)
    codes = moved.encode(np.array([2019, 2022, 2021, 2023, 999, -2020], dtype=kind))
    assert codes.tolist() == [0, 3, moved.size - 1 if missing else 2, -1, -1, -1]
    halves = moved.encode(np.array([2020.5, 1e9, 20200101, np.inf]))
    assert halves.tolist() == [-1, -1, -1, -1]
    old = Date("-2030-01-01", "-2010-12-31", unit="year")
    assert old.encode(np.array([-2030, -2010])).tolist() == [0, 20]


@pytest.mark.parametrize("outside", [None, "clip", "missing", "2020-01-03"])
@pytest.mark.parametrize("missing", [None, (), ("7",)])
@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.float64])
def test_numbers_in_a_column_without_a_format_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    missing: tuple[str, ...] | None,
    outside: str | None,
) -> None:
    """The same codes as one by one, without looking at each number unless one may be missing."""
    place = None if outside == "missing" and missing is None else outside
    column = Date("2020-01-01", "2020-01-09", missing=missing, outside=place)
    numbers = np.arange(200).astype(kind)
    codes, unread = column.read(numbers.astype(object))
    looked: list[object] = []
    position = Date.position
    monkeypatch.setattr(Date, "position", lambda s, v: looked.append(v) or position(s, v))
    for values in (numbers, pa.array(numbers)):
        found, others = column.read(values)
        assert found.tolist() == codes.tolist() and others.tolist() == unread.tolist()
    assert unread.sum() == 200 - (missing == ("7",)) and bool(looked) == (missing == ("7",))


@pytest.mark.parametrize(
    ("unit", "form"),
    [
        ("minute", "%Y-%m-%d %H:%-M"),
        ("minute", "%Y-%m-%d %I:%M %p"),
        ("second", "%d.%m.%Y %H:%M:%-S"),
        ("second", "%Y-%m-%d %X"),
        ("second", "%c"),
        ("hour", "%Y-%m-%d %-H"),
    ],
)
def test_decoded_times_are_of_their_bin_in_every_format(unit: str, form: str) -> None:
    column = DateTime("2020-01-01T11:58:00", "2020-01-01T13:02:59", unit=unit, format=form)
    codes = np.arange(column.size)
    assert column.encode(column.decode(codes, np.random.default_rng(0))).tolist() == codes.tolist()


@pytest.mark.parametrize("form", ["%Y-%m-%d %I:%M", "%Y-%m-%d %M:%S", "%Y-%m-%d %H:%M:%S"])
def test_times_are_read_by_their_format_from_any_array(form: str) -> None:
    """Texts that look like ISO 8601 mean what the format says: 12:30 is 0:30 if hours are %I."""
    column = DateTime("2020-01-01T00:00:00", "2020-01-01T23:59:59", unit="second", format=form)
    texts = ["2020-01-01 12:30", "2020-01-01 03:05"]
    wanted = {"%I:%M": [1800, 11100], "%M:%S": [750, 185]}.get(form[9:], [45000, 11100])
    for values in (np.array(texts, dtype=object), pa.array(texts)):
        assert column.encode(values).tolist() == wanted


@pytest.mark.parametrize("form", ["%YQ%q", "%Y-%m-%d %H:%i", "%Y-%m-%d%", "%Q"])
def test_a_sign_that_strftime_does_not_have_is_refused(form: str) -> None:
    """No text could be read, and records were written with the sign itself."""
    with pytest.raises(InvalidInput, match="the format .* has a sign that strftime does not have"):
        DateTime("2020-01-01", "2020-12-31", format=form)
    assert DateTime("2020-01-01", "2020-12-31", format="%Y-%m-%d %%").labels


@pytest.mark.parametrize("form", ["%Y-%m %a", "%Y-W%W", "%Y %u", "%a %d/%m", "%A, %H:%M", "%Y %w"])
def test_a_weekday_or_week_that_says_no_day_is_refused(form: str) -> None:
    """Python reads such texts as the first day of the year or month, and would write that."""
    texts = {datetime.datetime(2021, 3, day).strftime(form) for day in range(1, 29)}
    with contextlib.suppress(ValueError):  # Python 3.15 reads no day without a year
        assert {datetime.datetime.strptime(text, form).strftime(form) for text in texts} != texts
    with pytest.raises(InvalidInput, match="do not say which day they mean"):
        DateTime("2020-01-01", "2021-12-31", unit="day", format=form)


@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M%z", "%d.%m.%Y %H:%M %Z"])
def test_a_format_with_a_zone_is_refused(form: str) -> None:
    """Texts would be read by the clock of Greenwich, and written without the zone."""
    with pytest.raises(InvalidInput, match="has a time zone"):
        DateTime("2020-01-01", "2020-01-02", format=form)


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %k:%M:%S"])
def test_signs_that_arrow_does_not_write_are_in_no_file(form: str, tmp_path: Path) -> None:
    column = DateTime("2020-01-01T10:00:00", "2020-01-01T10:00:00", unit="second", format=form)
    schema = Schema({"time": replace(column, decode_as="datetime")})
    data = schema.encode({"time": np.array(["2020-01-01T10:00"], "datetime64[s]")})
    write_records(tmp_path / "a.csv", schema, [data], np.random.default_rng(0))
    assert (tmp_path / "a.csv").read_text() == "time\n2020-01-01T10:00:00\n"


def test_days_that_python_does_not_have_are_decoded_as_texts() -> None:
    days = Date(np.datetime64("-0001-12-31"), np.datetime64("0000-01-01"), decode_as="text")
    late = Date(np.datetime64("9999-12-31"), np.datetime64("10000-01-01"), decode_as="text")
    for column, wanted in ((days, "0000-01-01"), (late, "10000-01-01")):
        assert column.decode(np.array([1]), np.random.default_rng(0)).tolist() == [wanted]


@pytest.mark.parametrize("form", ["%G-W%V-%u", "%Y week %U, day %w", "%y %W %a"])
@pytest.mark.parametrize("day", [59, 363])
def test_a_week_and_its_day_state_one_day_in_conditions(form: str, day: int) -> None:
    """Python's own calendar says which day it is."""
    column = Date("2020-01-01", "2020-12-31", format=form)
    text = (datetime.date(2020, 1, 1) + datetime.timedelta(day)).strftime(form)
    assert np.flatnonzero(column.equal([text])).tolist() == [day]
    assert np.flatnonzero(column.within(text, None)).tolist() == [*range(day, 366)]


def test_arrow_tables_of_texts_are_encoded() -> None:
    """Their columns are in chunks."""
    schema = Schema(
        {"age": Integer(0, 9), "pay": Numeric(0, 8, bins=2), "day": Date("2020", "2021")}
    )
    table = pa.table({"age": ["3", "7"], "pay": ["1.5", "8"], "day": ["2020-01-01", "2020-02-01"]})
    found: Any = schema.encode(pa.concat_tables([table, table]))
    assert found.columns["age"].tolist() == [3, 7, 3, 7]
    assert found.columns["pay"].tolist() == [0, 1, 0, 1]
    assert found.columns["day"].tolist() == [0, 31, 0, 31]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_decimal_comma_is_kept_by_every_format(suffix: str, tmp_path: Path) -> None:
    """JSON's numbers have a point in any case, beside texts with a comma."""
    columns = {"pay": Numeric(0, 100, bins=10, decimals=1), "rate": Categorical((0.5, 1.5))}
    schema = Schema(columns, file=FileFormat(decimal=","))
    data = Dataset(schema.domain, {"pay": np.arange(10), "rate": np.arange(10) % 2})
    path = tmp_path / f"a.{suffix}"
    write_records(path, schema, [data], np.random.default_rng(0))
    found: Any = encode_file(path, schema)
    assert all((found.columns[name] == data.columns[name]).all() for name in columns)
    if suffix == "jsonl":
        path.write_text('{"pay": 1.5e1, "rate": 0.5}\n{"pay": "10,0", "rate": "1,5"}\n')
        found = encode_file(path, schema)
        assert found.columns["pay"].tolist() == [1, 1]
        assert found.columns["rate"].tolist() == [0, 1]
        path.write_text('{"pay": "1.0", "rate": 0.5}\n')
        with pytest.raises(InvalidInput, match="1 row"):
            encode_file(path, schema)


def test_labels_that_begin_like_comments_are_written_as_values(tmp_path: Path) -> None:
    form = FileFormat(comment="#|")
    schema = Schema({"k": Categorical(("#|1", "b")), "n": Categorical(("#", "#|"))}, file=form)
    data = Dataset(schema.domain, {"k": [0, 1, 0, 1], "n": [0, 0, 1, 1]})
    write_records(tmp_path / "a.csv", schema, [data], np.random.default_rng(0))
    assert (tmp_path / "a.csv").read_text().splitlines()[1] == '"#|1",#'
    found: Any = encode_file(tmp_path / "a.csv", schema)
    assert found.columns["k"].tolist() == [0, 1, 0, 1]
    assert found.columns["n"].tolist() == [0, 0, 1, 1]


def test_times_are_no_numbers_and_end_nothing() -> None:
    times = np.array(["2020-01-01", "NaT"], dtype="M8[D]")
    assert Integer(0, 9, missing=()).encode(times).tolist() == [-1, 10]
    assert Numeric(0, 9, bins=3, missing=()).encode(times).tolist() == [-1, 3]


def test_numbers_of_numpy_are_kept_as_numbers_of_python() -> None:
    """A schema file has no others."""
    column = Numeric(0, 60, bins=np.int64(6), decimals=np.int8(2))  # type: ignore[arg-type]
    assert [type(each) for each in (column.bins, column.decimals)] == [int, int]


@pytest.mark.parametrize("name", ["quantiles", "trailing_zeros"])
def test_choices_are_true_or_false(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name} must be .*True"):
        Numeric(edges=(0, 1), decimals=1, **{name: "no"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("low", "high", "asked"),
    [("x", "x", "the value x"), ("x", "9", r"the range x\.\.9"), (None, "x", "the value x")],
)
def test_what_was_asked_is_in_the_refusal(low: str | None, high: str, asked: str) -> None:
    with pytest.raises(InvalidInput, match=f"of type integer does not have {asked};"):
        Integer(0, 9).within(low, high)


@pytest.mark.parametrize("missing", [None, ()])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_codes_that_a_column_lacks_are_not_decoded(missing: tuple[str] | None, wrong: int) -> None:
    column = Integer(0, 9, missing=missing)
    code = -1 if wrong < 0 else column.size
    with pytest.raises(InvalidInput, match=f"codes must be from 0 to {column.size - 1}"):
        column.decode(np.array([0, code]), np.random.default_rng(0))


def test_decimals_are_limited() -> None:
    assert Numeric(0, 1, bins=2, decimals=15).decimals == 15
    with pytest.raises(InvalidInput, match="from 0 to 15"):
        Numeric(0, 1, bins=2, decimals=16)


@pytest.mark.parametrize("width", [0.3, 2.0, 0.07])
def test_decoded_numbers_have_three_digits_within_a_bin(width: float) -> None:
    """And no more places, whatever the width is."""
    column = Numeric(0, 10 * width, bins=10)
    drawn = column.decode(np.repeat(np.arange(10), 50), np.random.default_rng(0))
    places = 3 - math.floor(math.log10(width))
    np.testing.assert_allclose(drawn * 10.0**places, np.rint(drawn * 10.0**places), atol=1e-6)
    assert np.gcd.reduce(np.rint(drawn * 10.0**places).astype(int)) == 1


def test_a_group_of_two_is_named_by_both() -> None:
    for most in range(1, 10):
        for label, start, stop in Integer(0, 9).neighbours(most):
            assert (".." in label) == (stop - start > 1), (most, label)


def test_a_chart_with_room_for_all_values_joins_none() -> None:
    """And a spike is never joined to its neighbours."""
    assert [stop - start for _, start, stop in Integer(0, 9).neighbours(10)] == [1] * 10
    spiked = Numeric(0, 12, bins=12, spikes=(6,))
    alone = [spiked.bin_labels.index("6")]
    for most in range(3, 14):
        found = spiked.neighbours(most)
        assert [start for _, start, stop in found if start in alone and stop - start == 1] == alone
        assert sum(stop - start for _, start, stop in found) == spiked.size


def test_single_values_lie_where_they_are_declared() -> None:
    refused: list[dict[str, Any]] = [
        *({"spikes": (10,)}, {"special": (9,)}, {"special": (0,)}, {"missing": ("9",)}),
        *({"special": (12,), "missing": ("12",)}, {"spikes": (3, 3)}, {"special": (12, 12)}),
    ]
    for wrong in refused:
        with pytest.raises(InvalidInput):
            Integer(0, 9, **wrong)
    Integer(0, 9, special=(10, 12), missing=("11",))
    with pytest.raises(InvalidInput):
        Numeric(0, 9, bins=3, special=(9,))
    with pytest.raises(InvalidInput):
        Numeric(0, 9, bins=3, missing=("9",))
    Numeric(0, 9, bins=3, special=(9.5,), missing=("10",))
    days = Date("2020-01-01", "2020-12-31", special=("2050-01-01",))
    assert days.encode(np.array(["2020-01-01", "2050-01-01"])).tolist() == [0, 366]
    with pytest.raises(InvalidInput):
        Date("2020-01-01", "2020-12-31", special=("2020-03-01",))


def test_special_times_are_decoded_as_themselves_in_columns_of_coarser_units() -> None:
    for kind, value in ((Date, "9999-12-31"), (DateTime, "9999-12-31T00:00:00")):
        for unit in kind.units:
            column = kind("2019-01-01", "2020-12-31", bins=2, unit=unit, special=(value,))
            codes = np.array([1, 2, 0, 2, 2])
            decoded = column.decode(codes, np.random.default_rng(0)).astype("datetime64[s]")
            assert (decoded == np.datetime64(value)).tolist() == (codes == 2).tolist()
            assert column.encode(decoded).tolist() == codes.tolist()


def test_lists_are_tuples_and_listed_texts_are_missing() -> None:
    made = Numeric(edges=[0, 1, 3], spikes=[1], special=[9])  # type: ignore[arg-type]
    same = Numeric(edges=(0, 1, 3), spikes=(1,), special=(9,))
    assert made == same and hash(made) == hash(same)
    values = np.array([" ? ", "?", "3", 4, "x"], dtype=object)
    assert Integer(0, 9, missing=("?",)).encode(values).tolist() == [10, 10, 3, 4, -1]


def test_the_error_lists_twenty_values() -> None:
    for number, more in ((20, False), (21, True)):
        with pytest.raises(InvalidInput) as refused:
            Categorical(tuple(f"v{i}" for i in range(number))).equal(["w"])
        assert str(refused.value).endswith(", ...") == more
        assert "v19" in str(refused.value) and "v20" not in str(refused.value)


@pytest.mark.parametrize("special", [999, "999", np.float64(999)])
def test_a_special_value_is_not_missing_too_however_it_is_written(special: object) -> None:
    with pytest.raises(InvalidInput, match="missing lists 999, a value of the column; keep one"):
        Integer(0, 9, special=(special,), missing=("999",))


def test_values_of_numpy_are_stored_as_plain_ones() -> None:
    """A column and its stored copy have values of one type, and midpoints only for numbers."""
    day = np.datetime64("2020-01-31")
    for column, kind in (
        (Categorical((np.int64(1), np.int64(2))), "integer"),
        (Categorical(np.array([0.5, 2.0])), "number"),
        (Categorical((day, day.astype("datetime64[ns]"))), "text"),
        (Categorical((day.item(), "never")), "text"),
        (Date(day, day.astype("datetime64[ns]")), "date"),
    ):
        again = column_from_dict(json.loads(json.dumps(column.to_dict())))
        assert again.kind == column.kind == kind
        assert again.labels == column.labels
        assert (column.midpoints is None) == (kind in ("text", "date"))
    days = Categorical((day.item(),))
    assert days.encode(np.array(["2020-01-31", "x"])).tolist() == [0, -1]


CODES = Schema({"age": Integer(0, 9), "sex": Categorical(("F", "M"))})


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_names_of_columns_may_be_padded(end: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(end.join([" age , sex", "3,F", "", "5,M", ""]), newline="")
    assert all_names(path, FileFormat()) == ["age", "sex"]
    found: Any = encode_file(path, CODES)
    assert found.columns["age"].tolist() == [3, 5]


def test_the_line_of_an_error_counts_all_lines_before_it(tmp_path: Path) -> None:
    """Also those of blocks that were read at once, empty ones and the header."""
    path = tmp_path / "a.csv"
    for plain in (3, 200_000):
        lines = ["age,sex", *["3,F"] * plain, "", "4,M,1"]
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(InvalidInput, match=f"line {len(lines)}:"):
            encode_file(path, CODES)


@pytest.mark.parametrize(("high", "places"), [(0.5, 5), (5.0, 4), (500.0, 2), (90_000.0, 0)])
def test_numbers_are_drawn_with_three_digits_within_a_bin(high: float, places: int) -> None:
    """Bins of width 0.05, 0.5, 50 and 9,000, and as many decimal places as that takes."""
    column = Numeric(0, high, bins=10)
    found = column.decode(np.zeros(2000, int), np.random.default_rng(0)).astype(float)
    np.testing.assert_allclose(found, np.round(found, places), rtol=1e-12, atol=1e-12)
    assert places == 0 or (abs(found - np.round(found, places - 1)) > 1e-9).mean() > 0.8
    assert found.min() >= 0 and found.max() <= high / 10


@pytest.mark.parametrize(("bins", "spikes"), [(20, ()), (9, (0.5, 7.0)), (3, (6.9,))])
def test_a_mean_is_that_of_values_with_the_declared_decimals(
    bins: int, spikes: tuple[float, ...]
) -> None:
    """Haemoglobin with one decimal: a bin from 5 to 5.7 has the seven values 5.0 to 5.6."""
    column = Numeric(0, 14, bins=bins, decimals=1, spikes=spikes, missing=())
    values = np.arange(140) / 10  # but the upper end, which the last bin contains too
    codes = column.encode(values)
    means = np.bincount(codes, values) / np.bincount(codes)
    np.testing.assert_allclose(column.midpoints, [*means, np.nan], rtol=0, atol=1e-12)
    assert Numeric(0, 14, bins=20).midpoints[0] == 0.35


def test_texts_for_missing_values_are_stored() -> None:
    for missing in (("?", "-"), ()):
        column = Categorical(("a",), missing=missing)
        assert column_from_dict(column.to_dict()).missing == missing


def test_listed_missing_texts_have_no_spaces_around_them() -> None:
    column = Categorical(("a",), missing=(" ? ",))
    assert column.missing == ("?",)
    assert column.encode(np.array(["a", "?", " ?"])).tolist() == [0, 1, 1]


def test_only_columns_that_decode_missing_values_as_null_are_nullable() -> None:
    columns = [Categorical(("a",), missing=missing) for missing in (None, (), ("?",), ("",))]
    assert [column.nullable for column in columns] == [False, True, False, True]
    assert not Integer(0, 9).nullable


def test_unreadable_values_of_a_clipped_column_without_missing_ones_are_in_the_first_bin() -> None:
    codes, unread = Integer(0, 9, bins=5, outside="clip").read(np.array(["x", "99", "4"]))
    assert codes.tolist() == [0, 4, 2]
    assert unread.tolist() == [True, False, False]


def test_missing_values_are_met_by_their_label_which_no_value_has() -> None:
    column = Categorical(("a", "b"), missing=())
    assert column.equal(["(missing)", "b"]).tolist() == [False, True, True]
    with pytest.raises(InvalidInput, match="stands for missing values"):
        Categorical(("(missing)", "b"), missing=())


def test_the_type_of_a_list_of_values_is_found_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found from all values, so to find it for each would take minutes for 100,000."""
    kind, asked = Categorical.kind.fget, []
    monkeypatch.setattr(Categorical, "kind", property(lambda c: asked.append(c) or kind(c)))
    column = Categorical(tuple(range(1000)))
    column.encode(np.arange(2000) % 1000)
    column.decode(np.arange(1000), np.random.default_rng(0))
    assert 0 < len(asked) < 50


@pytest.mark.parametrize("column", [Integer(0, 999), Categorical(tuple(map(str, range(1000))))])
def test_only_texts_that_repeat_are_read_by_a_dictionary(
    column: Column, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bool] = []
    usual = columns.dictionary

    def dictionary(values: pa.Array) -> Any:
        given.append(isinstance(values, pa.DictionaryArray))
        return usual(values)

    monkeypatch.setattr(columns, "dictionary", dictionary)
    for codes in (np.arange(1000), np.arange(1000) % 10, np.arange(0)):
        texts = pa.array([str(code) for code in codes], pa.string())
        assert column.encode(texts).tolist() == codes.tolist()
    assert given[:2] == [False, True]
    given.clear()
    for times in (1, 20):  # in either case few of the first texts repeat others
        codes = np.random.default_rng(0).permutation(np.arange(20_000).repeat(times))
        texts = pa.array([f"{code}.0" for code in codes])
        assert Integer(0, 19_999).encode(texts).tolist() == codes.tolist()
    assert given == [False, True]
