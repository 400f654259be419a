"""Single values: which are distinct, null or numbers, and their texts."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from mechanisms.synthesis.units import unit_numbers
from pgmkit import Categorical, Schema, counts_of
from pgmkit.tables.columns import plain
from pgmkit.tables.values import (
    bare,
    dictionary,
    distinct,
    is_null,
    number_of,
    numeric,
    parsed,
    series_values,
    text_of,
)

DAY = datetime.date(2020, 1, 2)
NOON = datetime.datetime(2020, 1, 2, 12)


def objects(*values: Any) -> np.ndarray:
    held = np.empty(len(values), dtype=object)
    held[:] = values
    return held


@pytest.mark.parametrize(
    "values",
    [
        ["b", "a", "b"],
        np.array([[3], [1], [3]])[:, 0],
        np.array(["2020-01-02", "2019-01-01", "2020-01-02"], "datetime64[D]"),
        objects("x", [1], "x", [1], {}),
        pa.array(["b", None, "b", "a", None]),
        pa.array(["b", "a", "b"]).dictionary_encode(),
        pa.chunked_array([["b", "a"], ["b"]]),
        pa.array([[1], [2], [1]]),
    ],
    ids=lambda values: str(type(values).__name__),
)
def test_distinct_values_and_their_places(values: Any) -> None:
    found, places = distinct(values)
    assert isinstance(found, list)
    listed = values.to_pylist() if hasattr(values, "to_pylist") else list(values)
    assert [text_of(found[place]) for place in places] == [text_of(each) for each in listed]
    assert len(found) == len({text_of(each) for each in listed})


def test_equal_numbers_of_other_types_are_other_values() -> None:
    """As keys True, 1 and 1.0 are one, as texts they are not: no row decides for another."""
    for values in ((True, 1, 1.0, "1"), ("1", 1.0, 1, True)):
        found, places = distinct(objects(*values))
        assert [type(found[place]) for place in places] == [type(each) for each in values]
    found, places = distinct(objects(None, math.nan, "", " ", pd.NA, pd.NaT, "a"))
    assert len(found) == 2 and len(set(places[:-1])) == 1


def test_a_null_beside_as_many_texts_as_a_dictionary_holds_ends_nothing() -> None:
    texts, places = [str(i) for i in range(128)], [5, None, 127]
    values = pa.DictionaryArray.from_arrays(pa.array(places, pa.int8()), pa.array(texts))
    found, order = distinct(values)
    assert [found[place] for place in order] == ["5", None, "127"]


def test_only_dictionaries_of_texts_without_gaps_are_taken_as_they_are() -> None:
    texts = pa.array(["b", "a", "b"]).dictionary_encode()
    taken = dictionary(texts)
    assert taken is not None and taken[0].to_pylist() == ["b", "a"]
    assert taken[1].tolist() == [0, 1, 0]
    for other in (
        pa.array([1, 2]).dictionary_encode(),
        pa.array(["a", None]).dictionary_encode(),
        pa.array(["a"]),
        np.array(["a"]),
    ):
        assert dictionary(other) is None


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (pa.array([3, None, 5]), [3, None, 5]),
        (pa.array([3, 5], pa.uint8()), [3, 5]),
        (pa.array([1.5, None, math.nan]), [1.5, None, None]),
        (pa.array([DAY, None]), [np.datetime64(DAY), None]),
        (pa.array([NOON, None]), [np.datetime64(NOON), None]),
        (np.array([1.5, math.nan]), [1.5, None]),
        (np.array(["2020-01-02", "NaT"], "datetime64[D]"), [np.datetime64(DAY), None]),
        (np.array([2, 3], np.uint64), [2, 3]),
    ],
)
def test_numbers_and_times_are_whole_arrays(values: Any, wanted: list[Any]) -> None:
    found = numeric(values)
    assert found is not None
    array, null = found
    assert null.tolist() == [each is None for each in wanted]
    assert (array != array).tolist() == [w is None and null_kept(array) for w in wanted]
    assert [each for each, gone in zip(array, null, strict=True) if not gone] == [
        each for each in wanted if each is not None
    ]


def null_kept(array: np.ndarray) -> bool:
    """Whole numbers have no sign for a gap: only the mask says where one was."""
    return array.dtype.kind not in "iu"


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["1"]),
        pa.array([True]),
        pa.array([NOON], pa.timestamp("us", "UTC")),
        pa.array([datetime.time(1)]),
        np.array(["1"]),
        np.array([True]),
        objects(1, 2),
    ],
)
def test_other_values_are_not(values: Any) -> None:
    assert numeric(values) is None


@pytest.mark.parametrize(
    ("texts", "kinds", "absent", "wanted"),
    [
        (["1", "2"], ["int64"], (), [1, 2]),
        (["1", "", "3"], ["int64"], (), [1, None, 3]),
        ([" 1 ", "2"], ["int64"], (), [1, 2]),
        (["1", "?", ""], ["int64"], ("?",), [1, None, None]),
        (["1", "2.5"], ["int64", "float64"], (), [1.0, 2.5]),
        (["1", "x"], ["int64", "float64"], (), None),
        (["0x1F", "2"], ["int64"], (), None),
        (["0X1F", "2"], ["int64"], (), None),
        (["1.5", str(2**53 + 1)], ["int64", "float64"], (), None),
        (["1.5", str(-(2**53))], ["int64", "float64"], (), None),
        (["1.5", str(2**53 - 1)], ["int64", "float64"], (), [1.5, 2.0**53 - 1]),
        (["1"], [], (), None),
    ],
)
def test_texts_are_read_together_where_none_says_otherwise(
    texts: list[str], kinds: list[str], absent: tuple[str, ...], wanted: list[Any] | None
) -> None:
    found = parsed(pa.array(texts), kinds, absent)
    assert (found if found is None else found.to_pylist()) == wanted
    assert parsed(np.array(texts), kinds, absent) is None
    assert parsed(pa.array([1]), ["int64"], ()) is None


@pytest.mark.parametrize(
    "native",
    [pl.Series(["1", "2"]), pa.chunked_array([["1"], ["2"]]), pd.Series(["1", "2"], dtype=object)],
    ids=["polars", "pyarrow", "pandas"],
)
def test_texts_of_a_series_are_one_array(native: Any) -> None:
    held = series_values(nw.from_native(native, series_only=True))
    found = parsed(held, ["int64"], ())
    assert found is not None and found.to_pylist() == [1, 2]


def test_objects_of_several_kinds_stay_objects() -> None:
    for mixed in ([1, 2.5], [1, 2], [True, False], ["1", 2]):
        series = nw.from_native(pd.Series(mixed, dtype=object), series_only=True)
        held = series_values(series)
        assert [type(each) for each in held] == [type(each) for each in mixed]
    whole = series_values(nw.from_native(pd.Series([3, 4]), series_only=True))
    assert isinstance(whole, np.ndarray) and whole.dtype == np.int64


@pytest.mark.parametrize(
    "native",
    [
        pd.cut(pd.Series([3, 30, np.nan]), [0, 10, 40]),
        pd.Series(pd.arrays.IntervalArray.from_tuples([(0, 10), (10, 40), np.nan])),
        pd.Series(pd.PeriodIndex(["2020-01", "2020-02", None], freq="M")),
        pd.Series(pd.PeriodIndex(["2020-01", "2020-02", None], freq="M")).astype("category"),
        pd.Series(["a", "b", None], dtype=pd.ArrowDtype(pa.string_view())),
        pl.Series([{"a"}, ("b", 2), None], dtype=pl.Object),
        pl.Series([2**100, -7, None], dtype=pl.Int128),
        pl.Series([b"a", b"b", None]),
        pd.Series([b"a", b"b", b""], dtype=object),
    ],
    ids=lambda native: str(native.dtype),
)
def test_a_series_of_a_type_that_arrow_lacks_is_read_as_the_texts_of_its_values(
    native: Any,
) -> None:
    """Arrow has intervals as records, periods as numbers and objects of polars as addresses."""
    values = native.to_list()[:2]
    texts = tuple(each.decode() if isinstance(each, bytes) else str(each) for each in values)
    schema = Schema({"it": Categorical(texts, missing=())})
    framed = pd.DataFrame if isinstance(native, pd.Series) else pl.DataFrame
    for data in (counts_of(framed({"it": native}), schema), schema.encode({"it": native})):
        assert data.marginal(("it",)).tolist() == [1, 1, 1]


def test_equal_objects_of_polars_are_one_unit() -> None:
    persons = pl.Series([str(number // 3) for number in range(30000, 30012)], dtype=pl.Object)
    (units,) = unit_numbers([series_values(persons)])
    assert units.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_times_with_a_zone_are_what_a_clock_there_shows() -> None:
    noon = pd.Series(pd.to_datetime([NOON], utc=True)).dt.tz_convert("Europe/Zurich")
    held = series_values(nw.from_native(noon, series_only=True))
    assert held.to_pylist() == [pd.Timestamp(2020, 1, 2, 13)]


def test_null_has_many_faces() -> None:
    for value in (
        None,
        "",
        " \t",
        math.nan,
        np.float64("nan"),
        pd.NA,
        pd.NaT,
        np.datetime64("NaT"),
    ):
        assert is_null(value)
    for value in (0, "0", "nan", False, [], [math.nan], np.array([1, 2]), Decimal("sNaN")):
        assert not is_null(value)


def test_texts_identify_values() -> None:
    for value, text in (
        (3.0, "3"), (np.float32(3), "3"), (-0.0, "0"), (2.5, "2.5"), (1e22, str(10**22)),
        (True, "true"), (np.bool_(False), "false"), (3, "3"), (np.int64(-7), "-7"),
        (" a ", "a"), ("3.0", "3.0"), (math.inf, "inf"), (2**53 + 1, str(2**53 + 1)),
        (10**5000, "1" + "0" * 5000), (-(10**5000), "-1" + "0" * 5000), ([1], "[1]"),
        (Unprintable(), "(Unprintable)"), ("a\ud800", "a\ufffd"),
    ):  # fmt: skip
        assert text_of(value) == text


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_numbers_are_exact_where_they_are_whole() -> None:
    for value, number in (
        ("7", 7), (str(2**53 + 1), 2**53 + 1), (np.int64(3), 3), (5, 5), ("3.50", 3.5),
        (np.float32(0.5), 0.5), ("1e3", 1000.0), ("-2", -2), (Decimal("1.5"), 1.5),
    ):  # fmt: skip
        assert number_of(value) == number and type(number_of(value)) is type(number)
    for wrong in (True, np.bool_(True), "x", "", "9" * 5000 + "x"):
        with pytest.raises(ValueError):
            number_of(wrong)


def test_decorations_are_taken_off_numbers_alone() -> None:
    for text, number in (
        ("$1,234.50", "1234.50"), ("1 234", "1234"), ("1'234'567", "1234567"), ("33 %", "33"),
        ("(12.00)", "-12.00"), ("-€7", "-7"), ("€-7", "-7"), ("+5", "5"), ("£ 5", "5"), ("5€", "5"),
    ):  # fmt: skip
        assert bare(text) == number
    for text in ("1,23", "12-34", "(5", "5)", "1,234 567", "a", "", "$", "1,2345"):
        assert bare(text) == text
    read = [number_of(bare(text)) for text in ("\u0661\u0662.5", "1\u06623", "$\uff11,234")]
    assert read == [12.5, 123, 1234]  # digits of other scripts are digits, as for int()


def test_plain_values_go_into_files() -> None:
    for value in (np.int64(3), np.float64(0.5), np.bool_(True), 3, "a", None):
        assert type(plain(value)) in (int, float, bool, str, type(None)) and plain(value) == value
    assert plain(DAY) == "2020-01-02"
