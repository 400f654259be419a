"""The code of a value does not depend on the values beside it, and no value stops the reading.

What one row holds must not decide how others are read: columns of texts are parsed together, and
frames take their types from all of their rows. The reference is each value alone.
"""

from __future__ import annotations

import bisect
import datetime
import decimal
import warnings
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmkit import Boolean, Categorical, Integer, Numeric, OpenCategorical, Schema
from pgmkit.tables.columns import Column
from pgmkit.tables.dates import Date, DateTime
from pgmkit.tables.engines.frames import encode
from pgmkit.tables.files.record_files import read_frame

EXACT = 2**53
COLUMNS: dict[str, Column] = {
    "whole": Integer(0, 99, bins=10, missing=("-1",)),
    "large": Integer(EXACT - 2, EXACT + 7, bins=10),
    "larger": Integer(2**60, 2**60 + 9, bins=10, outside="missing", missing=("-9",)),
    "real": Numeric(0, 100, bins=10, missing=("-9",)),
    "date": Date("1990-01-01", "2019-12-31", bins=6),
    "moment": DateTime("1990-01-01", "2019-12-31", bins=6, missing=("none",)),
    "spelled": Date("1990-01-01", "2019-12-31", bins=6, format="%d/%m/%Y"),
    "numbered": Categorical((0, 1, 5, 31)),
    "labelled": Categorical(("007", "7", "5", "5.0", "true"), other="other"),
    "truth": Boolean(),
}
COLUMNS = {name: column.placed() for name, column in COLUMNS.items()}
DAYS = COLUMNS["date"]
NUMBERS = [
    *("0x1F", "0X1f", "1_000", "+5", "-0", "5.", ".5", "1e1", "1E+1", " 5", "5\t", "007", "0b11"),
    *("inf", "-Infinity", "nan", "NaN", "NA", "None", "NULL", "1,5", "1 000", "--5", "5-", "1d"),
    *("9007199254740991", "9007199254740992", "9007199254740993", "9007199254740993.0"),
    *("1152921504606846976", "1152921504606846977", "4611686018427387905", "9223372036854775807"),
    *("9223372036854775808", "18446744073709551616", "1" + "0" * 30, "9" * 400, "1e400", "-1e400"),
    *("-1", "-1.0", "-9", "-9.0", "-09", "4.9e-324", "99.99999999999999999", "\u0665", "", " "),
    *("nan(1)", "-nan(ab)", "(5)", "12e", "%"),
]
TIMES = [
    *("2000-01-01", "2000-1-1", "2000-01-01T05:06:07", "2000-01-01 05:06", "2000-01-01T05Z"),
    *("2000-01-01T00:00:00+01:00", "2000-01-01 23:59:60", "2000-01-01 00:00:00.123456789", "2000"),
    *("2000-01", "20000101", "01/02/2000", "-2000-01-01", "2000-02-30", "0001-01-01", "2500-06-01"),
    *("99999-01-01", "2000-W01", "2000-001", "now", "today", "NaT", "none"),
    *("2000-01-01T05:06:07.123456789012345678", "2000-01-01 00:00:00.12345x6", "2000-01-01T05A"),
]
COMPANY = ["abc", "0.5", "3", "2000-01-01", "2000-01-01 05:06", "01/02/2000", "", "0x1F"]
COMPANY += ["1" + "0" * 30, "1e400", "9007199254740993", "2500-06-01", "x" * 5000]
TEXTS = st.one_of(
    st.sampled_from([*NUMBERS, *TIMES]),
    st.integers().map(str),
    st.floats().map(repr),
    st.text(alphabet="0123456789+-.eExX_ ", max_size=8),
    st.datetimes().map(str),
    st.text(max_size=6).filter(lambda text: "\x00" not in text),
)


class Fails:
    """An object that no text or number can be made of, and that compares with nothing."""

    __hash__ = None  # type: ignore[assignment]

    def _fail(self, *_: object) -> Any:
        raise RuntimeError("private")

    __float__ = __int__ = __str__ = __repr__ = __bool__ = __eq__ = _fail


OBJECTS: list[Any] = [
    *(Fails(), np.complex128(20 + 1j), np.complex64(20)),
    *(None, float("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), 10**30, -(10**400), 20.5, True, "?"),
    *(decimal.Decimal("20"), decimal.Decimal("sNaN"), 1j, b"20", [1], {"a": 1}, (1, 2), {3}),
    *(np.array([1, 2]), np.uint64(2**64 - 1), datetime.date(2000, 1, 1), datetime.date(1, 1, 1)),
    *(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC), datetime.timedelta(1), "\ud800", object),
]
OFTEN = ["2000-01-01", "M"]


def codes(column: Column, values: Any) -> list[tuple[int, bool]]:
    """Return the code of each value, and whether it counts as one that could not be read."""
    return list(zip(*(found.tolist() for found in column.read(values)), strict=True))


@pytest.mark.parametrize("name", COLUMNS)
@given(st.lists(TEXTS, min_size=2, max_size=6))
def test_texts_are_read_alike_in_any_company(name: str, texts: list[str]) -> None:
    column = COLUMNS[name]
    alone = [codes(column, pa.array([text], pa.string()))[0] for text in texts]
    assert codes(column, pa.array(texts, pa.string())) == alone
    held = [text.encode() for text in texts]  # as in parquet files that declare no texts
    assert codes(column, pa.array(held, pa.binary())) == alone
    assert codes(column, np.array(held, dtype=object)) == alone


@pytest.mark.parametrize("name", COLUMNS)
def test_every_spelling_in_the_company_that_changes_types(name: str) -> None:
    column = COLUMNS[name]
    for text in [*NUMBERS, *TIMES]:
        alone = codes(column, pa.array([text], pa.string()))
        for other in COMPANY:
            assert codes(column, pa.array([other, text], pa.string()))[1:] == alone, other


@pytest.mark.parametrize("name", COLUMNS)
@given(
    st.lists(st.sampled_from(range(len(OBJECTS))), min_size=1, max_size=3),
    st.integers(0, 2**60 + 20),
)
def test_objects_of_any_kind_are_read_alike_in_any_company(
    name: str, odd: list[int], number: int
) -> None:
    """As pandas has them in a column of objects."""
    own = [number, str(number)]
    places = [*odd, *range(len(OBJECTS), len(OBJECTS + OFTEN))]
    alone = [code for place in places for code in object_alone(name, place)]
    alone += [code for value in own for code in objects(name, [value])]
    assert objects(name, [*((OBJECTS + OFTEN)[place] for place in places), *own]) == alone


def objects(name: str, values: list[Any]) -> list[tuple[int, bool]]:
    held = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        held[i] = value
    frame = pd.DataFrame({"it": pd.Series(held, dtype=object)})
    return codes(COLUMNS[name], frame["it"])


@cache
def object_alone(name: str, place: int) -> list[tuple[int, bool]]:
    return objects(name, [(OBJECTS + OFTEN)[place]])


@pytest.mark.parametrize("name", COLUMNS)
def test_no_value_makes_the_reading_warn(name: str) -> None:
    """A warning of another package would tell that such a value is in the column."""
    held = np.empty(len(OBJECTS), dtype=object)
    held[:] = OBJECTS
    frame = pd.DataFrame({"it": pd.Series(held, dtype=object)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codes(COLUMNS[name], frame["it"])
        for text in [*NUMBERS, *TIMES]:
            codes(COLUMNS[name], pa.array([text], pa.string()))


@pytest.mark.parametrize("text", ["20000101", "5", "99999-01-01", "today", "now", "2000-01-01T05Z"])
def test_texts_that_are_no_dates_are_none(text: str) -> None:
    """numpy reads all but the last of them, as years or as the present time."""
    assert codes(DAYS, pa.array([text])) == [(0, True)]


def test_decimals_of_seconds_do_not_change_the_day() -> None:
    """numpy counts eighteen decimals as attoseconds, of which 64 bits hold nine seconds."""
    text = "2019-12-31T05:06:07.123456789012345678"
    assert codes(DAYS, pa.array([text])) == [(5, False)]


def test_times_of_two_zones_are_each_what_their_clock_shows() -> None:
    """Arrow would show the second on the clock of the first."""
    zones = [datetime.timezone(datetime.timedelta(hours=hours)) for hours in (0, 12)]
    moments = [datetime.datetime(1994, 12, 31, 18, tzinfo=zone) for zone in zones]
    schema = Schema({"it": Date("1994-12-31", "1995-01-01", unit="day")}).placed()
    for order in (moments, moments[::-1]):
        data = encode(pd.DataFrame({"it": pd.Series(order, dtype=object)}), schema)
        assert np.asarray(data.columns["it"]).tolist() == [0, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("first", "other", "column"),
    [
        (decimal.Decimal("2.5"), decimal.Decimal("2.50"), Categorical(("2.5",), other="other")),
        ((True,), (1,), Categorical(("(True,)",), other="other")),
        (
            datetime.datetime(1994, 12, 31, 18, tzinfo=datetime.UTC),
            datetime.datetime.fromisoformat("1995-01-01T06:00+12:00"),
            Date("1994-12-31", "1995-01-01"),
        ),
    ],
)
def test_equal_objects_of_several_texts_are_each_read_as_they_are(
    first: object, other: object, column: Column
) -> None:
    assert first == other
    assert codes(column, np.fromiter([first, other, first], object)) == [(0, 0), (1, 0), (0, 0)]
    tally = OpenCategorical().tally(np.fromiter([first, other, first], object))
    assert sorted(tally.values()) == [1, 2]


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([decimal.Decimal("2.5"), decimal.Decimal("2.55")], Categorical(("2.5",), other="other")),
        ([(5,), (5.5,)], Categorical(("(5,)",), other="other")),
        (
            [datetime.date(2000, 1, 1), datetime.datetime(2000, 1, 1, 5)],
            Categorical(("2000-01-01",), other="other"),
        ),
    ],
)
def test_categories_of_pandas_are_each_read_as_they_are(
    values: list[object], column: Column
) -> None:
    """Arrow has one type for all categories, such as decimals with as many digits each."""
    series = pd.Series(np.fromiter(values, object)).astype("category")
    assert codes(column, series) == [(0, 0), (1, 0)]


@pytest.mark.parametrize("company", [[], ["abc"], ["1995-06-01"]])
def test_spaces_around_the_text_of_a_missing_date_do_not_count(company: list[str]) -> None:
    column = Date("1990-01-01", "2019-12-31", bins=6, missing=("1900-01-01",)).placed()
    assert codes(column, pa.array([" 1900-01-01", *company]))[0] == (6, False)


def test_a_date_that_is_listed_as_missing_is_missing_from_any_source() -> None:
    """A column of dates was read by other rules than dates beside other objects."""
    column = Date("1990-01-01", "2019-12-31", bins=6, missing=("1900-01-01",), outside="clip")
    day = datetime.date(1900, 1, 1)
    for held in (["1900-01-01"], [day], [day, "x"], np.array([day], "M8[D]"), pa.array([day])):
        assert codes(column, held)[0] == (6, False)


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([True, 5], Categorical(("true", "5"))),
        (["x", True], Categorical(("x", "true"))),
        ([2**60 + 3, 2**60 + 4, 2**63], Integer(2**60 + 3, 2**60 + 5)),
        (["a\0", "a", b"\xff"], Categorical(("a\0", "a", "\ufffd"))),
        ([[1], [1, 2]], Categorical(("[1]", "[1, 2]"))),
    ],
)
def test_values_of_a_list_are_each_read_as_they_are(values: list[object], column: Column) -> None:
    """numpy has one type for all, such as float64 for whole numbers of more than 63 bits, drops
    zeros at the end of texts, and refuses lists of several lengths.
    """
    clipped = replace(column, outside=column.default_outside)
    assert [code for code, _ in codes(clipped, values)] == list(range(len(values)))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_are_no_numbers_in_any_unit(unit: str) -> None:
    """Python has an int for numpy's nanoseconds alone."""
    held = np.array([5], f"m8[{unit}]")
    for values in (held, np.fromiter(held, object), pa.array(held)):
        assert codes(COLUMNS["whole"], values) == [(10, True)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_a_zone_are_read_alike_beside_any_other(unit: str) -> None:
    """Arrow does not know when clocks change after 2037, nor Python what comes after 9999."""
    days = ["1969-12-31T22:59:59", "2030-07-01T22:30", "2045-07-01T22:30", "12345-07-01"]
    moments = np.array(days[: 3 if unit == "ns" else 4], dtype=f"datetime64[{unit}]")
    before = moments[:1] + np.timedelta64(999_999_999, "ns").astype(f"timedelta64[{unit}]")
    ends = np.array([-(2**63) + 1, 2**63 - 1, 10**16], dtype=f"datetime64[{unit}]")
    every = np.concatenate([before, moments, ends])
    schema = Schema({"it": Date("1969-12-30", "2045-07-03", unit="day")}).placed()
    for zone in ("Europe/Berlin", "America/New_York", "+05:30"):
        times = [pa.array(each, pa.timestamp(unit, zone)) for each in (every, *every[:, None])]
        found = [encode(pa.table({"it": each}), schema).columns["it"].tolist() for each in times]
        assert found[0] == [code for (code,) in found[1:]]


@pytest.mark.parametrize("unit", ["Y", "D", "s", "us", "ns", "as"])
def test_times_that_numpy_converts_wrongly_are_read_by_whole_numbers(unit: str) -> None:
    """numpy's conversions of the first nanoseconds give the year 2262, or fail since its 2.5."""
    edges = ["1600-01-01", "1678-01-01", "1800-01-01", "2200-01-01", "2262-01-01", "2300-01-01"]
    starts = np.array(edges, "M8[s]").astype(int).tolist()
    column = DateTime(edges=edges, unit="second", outside="clip").placed()
    second = {"D": Fraction(86400), "Y": Fraction(31556952)}.get(unit, Fraction(1))
    second /= {"us": 10**6, "ns": 10**9, "as": 10**18}.get(unit, 1)
    for moment in (-(2**63) + 1, -(2**62), 2**62, 2**63 - 1):
        code = bisect.bisect(starts, moment * second) - 1
        found = column.encode(np.array([moment], f"datetime64[{unit}]")).tolist()
        assert found == [min(max(code, 0), 4)]


def test_unsigned_numbers_stay_whole_beside_the_largest() -> None:
    near = [2**60 + 3, 2**60 + 4]
    for extra in ([], [2**64 - 1]):
        found = codes(COLUMNS["larger"], np.array([*near, *extra], dtype=np.uint64))
        assert [code for code, _ in found[:2]] == [3, 4]


@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from(COMPANY))
def test_records_of_a_file_are_read_alike_in_any_company(texts: list[str], last: str) -> None:
    import tempfile

    schema = Schema({**COLUMNS, "free": OpenCategorical()}).placed()
    known = Schema(dict(COLUMNS)).placed()

    def read(cells: list[str]) -> list[tuple[int, ...]]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "rows.csv")
            lines = [",".join(schema.columns)]
            for cell in cells:
                quoted = '"' + cell.replace('"', '""') + '"'
                lines.append(",".join([quoted] * len(schema.columns)))
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            data = encode(read_frame(str(path), schema), known)
        return list(zip(*(np.asarray(c).tolist() for c in data.columns.values()), strict=True))  # type: ignore[union-attr]

    cells = [text.replace("\n", " ").replace("\r", " ") for text in texts]
    assert read([*cells, last])[: len(cells)] == [read([cell])[0] for cell in cells]


def held_by_arrow(kind: pa.DataType, places: list[int]) -> pa.Array:
    """An array of these numbers of units, which Arrow does not compare with any range."""
    raw = np.asarray(places, f"int{kind.bit_width}").tobytes()
    return pa.Array.from_buffers(kind, len(places), [None, pa.py_buffer(raw)])


def texts_of_bytes(texts: list[bytes]) -> pa.Array:
    """An array of texts whose bytes Arrow does not check, as in another program's parquet file."""
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    held = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(pa.string(), len(texts), held)


DAY_IN_2000 = 11_000
FAR = [10**9, -(10**9), 2**31 - 1]
HELD_BY_ARROW: dict[str, tuple[pa.Array, pa.Array]] = {
    **{
        str(kind): (
            held_by_arrow(kind, [DAY_IN_2000 * a_day]),
            held_by_arrow(kind, [DAY_IN_2000 * a_day, *(far * a_day for far in FAR)]),
        )
        for kind, a_day in (
            (pa.date32(), 1),
            (pa.date64(), 86_400_000),
            (pa.timestamp("s"), 86_400),
            (pa.timestamp("us"), 86_400_000),
            (pa.timestamp("us", "UTC"), 86_400_000),
            (pa.duration("s"), 10**9),
            (pa.time64("us"), 10**6),
        )
    },
    "text": (
        texts_of_bytes([b" 5"]),
        texts_of_bytes([b" 5", b"\xff", b"2000-01-01\xc3", b"\xed\xa0\x80"]),
    ),
    "list": (
        pa.array([[0]], pa.list_(pa.date32())),
        pa.ListArray.from_arrays([0, 1, 2], held_by_arrow(pa.date32(), [0, *FAR])),
    ),
}
"""A value of each type, and the same with others that are beyond what Python has."""


@pytest.mark.parametrize("kind", HELD_BY_ARROW)
def test_what_python_cannot_hold_is_a_value_like_any_other(kind: str) -> None:
    """Years beyond 9999 and bytes that are no UTF-8, which parquet files and engines may have."""
    one, several = HELD_BY_ARROW[kind]
    for column in COLUMNS.values():
        found = codes(column, several)
        assert len(found) == len(several) and found[:1] == codes(column, one)
    counted = OpenCategorical().placed().tally(several)
    assert counted.total() == len(several)
    assert (counted & OpenCategorical().placed().tally(one)).total() == 1
