"""Bins of whole numbers, of days and of real numbers against a list of each bin's values."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgmkit import Date, DateTime, Integer, Numeric
from pgmkit.errors import InvalidInput
from pgmkit.tables.bins import Binned
from pgmkit.tables.columns import LARGEST, MOST_BINS, equal_widths
from pgmkit.tables.dates import strptime

COLUMNS: list[dict[str, Any]] = [
    {"low": 0, "high": 9},
    {"low": 0, "high": 0},
    {"low": -3, "high": 9, "bins": 4, "missing": ()},
    {"low": 2, "high": 11, "bins": 5, "spikes": (2, 7, 11), "outside": "clip"},
    {"low": 1, "high": 12, "special": (20, -4), "missing": (), "outside": "clip"},
    {"edges": (-5, -1, 0, 6), "spikes": (3, -5), "special": (7, 30)},
    {"edges": (0, 10), "spikes": (4, 5, 9), "missing": (), "outside": "missing"},
]


def day(number: int) -> str:
    """The day that is so many after 1 January 1970."""
    return str(np.datetime64(number, "D"))


def as_days(declared: dict[str, Any]) -> dict[str, Any]:
    """What is declared of whole numbers, of the days so many after 1 January 1970."""
    some = {name: declared[name] for name in ("low", "high") if name in declared}
    lists = {name: declared[name] for name in ("edges", "spikes", "special") if name in declared}
    ends = {name: day(value) for name, value in some.items()}
    return declared | ends | {name: tuple(map(day, values)) for name, values in lists.items()}


def bins_of(declared: dict[str, Any]) -> list[list[int]]:
    """The values of each bin."""
    given = {"bins": None, "spikes": (), **declared}
    if "edges" in declared:
        ends = [*declared["edges"][:-1], declared["edges"][-1] + 1]
    else:
        low, count = declared["low"], declared["high"] + 1 - declared["low"]
        bins = given["bins"] or count
        ends = [low + count * i // bins for i in range(bins + 1)]
    cuts = {*ends, *given["spikes"], *(spike + 1 for spike in given["spikes"])}
    return [list(range(*pair)) for pair in itertools.pairwise(sorted(cuts))]


def code_of(value: int, declared: dict[str, Any]) -> int:
    bins, special = bins_of(declared), declared.get("special", ())
    if value in special:
        return len(bins) + special.index(value)
    if declared.get("outside") == "clip":
        value = min(max(value, bins[0][0]), bins[-1][-1])
    held = [code for code, values in enumerate(bins) if value in values]
    missing = len(bins) + len(special) if declared.get("outside") == "missing" else -1
    return held[0] if held else missing


@pytest.fixture(params=[Integer, Date], ids=["numbers", "days"])
def kind(request: pytest.FixtureRequest) -> tuple[type[Binned], Callable[[int], Any]]:
    return request.param, (int if request.param is Integer else day)


Kind = tuple[type[Binned], Callable[[int], Any]]


def made(declared: dict[str, Any], kind: Kind) -> Binned:
    return kind[0](**(declared if kind[0] is Integer else as_days(declared)))


@pytest.mark.parametrize("declared", COLUMNS)
def test_codes_and_labels_are_those_of_the_values(declared: dict[str, Any], kind: Kind) -> None:
    column, written = made(declared, kind), kind[1]
    bins, special = bins_of(declared), declared.get("special", ())
    values = [*range(-12, 36)]
    wanted = [code_of(value, declared) for value in values]
    for given in (
        np.array([written(v) for v in values], object),
        [str(written(v)) for v in values],
    ):
        assert column.encode(np.array(given)).tolist() == wanted
    whole = np.array(values) if kind[0] is Integer else np.array(values).astype("M8[D]")
    assert column.encode(whole).tolist() == wanted
    shown = [str(written(each[0])) for each in bins]
    ends = [str(written(each[-1])) for each in bins]
    labels = [a if a == b else f"{a}..{b}" for a, b in zip(shown, ends, strict=True)]
    assert column.bin_labels == tuple(labels)
    missing = [] if declared.get("missing") is None else ["(missing)"]
    assert [*column.labels] == [*labels, *(str(written(each)) for each in special), *missing]


@pytest.mark.parametrize("declared", COLUMNS)
def test_decoded_values_are_all_values_of_the_bin(declared: dict[str, Any], kind: Kind) -> None:
    """Of 400 draws among at most eleven values one lacks a value once in 10^15."""
    column, written = made(declared, kind), kind[1]
    held = [*bins_of(declared), *([each] for each in declared.get("special", ()))]
    for code, values in enumerate(held):
        drawn = column.decode(np.full(400, code), np.random.default_rng(code))
        assert {str(each) for each in drawn} == {str(written(value)) for value in values}


@pytest.mark.parametrize("declared", COLUMNS)
def test_ranges_are_of_whole_bins(declared: dict[str, Any], kind: Kind) -> None:
    column, written = made(declared, kind), kind[1]
    bins = bins_of(declared)
    rest = [False] * (column.size - len(bins))
    ends = [None, *range(bins[0][0] - 2, bins[-1][-1] + 3)]
    for low, high, closed in itertools.product(ends, ends, (True, False)):
        if low is not None and high is not None and low + (not closed) > high:
            continue
        inside = [
            [(low is None or low <= v) and (high is None or v < high + closed) for v in values]
            for values in bins
        ]
        given = [None if end is None else written(end) for end in (low, high)]
        if all(all(each) or not any(each) for each in inside):
            found = column.within(*given, closed)
            assert found.tolist() == [*map(all, inside), *rest], (low, high, closed)
        else:
            with pytest.raises(InvalidInput, match="cuts the bin"):
                column.within(*given, closed)
    for values in bins:  # from a value on and below it, there is none
        assert not column.within(written(values[0]), written(values[0]), closed=False).any()


@pytest.mark.parametrize("declared", COLUMNS)
def test_groups_of_neighbours_hold_every_code_once(declared: dict[str, Any], kind: Kind) -> None:
    column, written = made(declared, kind), kind[1]
    bins, spikes = bins_of(declared), declared.get("spikes", ())
    alone = [code for code, values in enumerate(bins) if values[0] in spikes]
    for most in range(1, column.size + 2):
        groups = column.neighbours(most)
        assert [code for _, *ends in groups for code in range(*ends)] == [*range(column.size)]
        for label, start, stop in groups:
            if stop - start == 1:
                assert label == column.labels[start]
            else:
                assert label == f"{written(bins[start][0])}..{written(bins[stop - 1][-1])}"
                assert not {*alone} & {*range(start, stop)}


def test_there_are_about_as_many_groups_as_asked_for() -> None:
    """No more, and at least seven tenths of them; a half group more stands alone."""
    assert Integer(0, 9).neighbours(1) == [("0..9", 0, 10)]
    assert Integer(0, 2).neighbours(2) == [("0..1", 0, 2), ("2", 2, 3)]
    spiked = Integer(0, 99, spikes=(20, 50, 90))
    for most in (12, 20, 30):
        assert 0.7 * most <= len(spiked.neighbours(most)) <= most


@pytest.mark.parametrize("width", [0.5, 1, 2, 2.5, 3, 7])
@pytest.mark.parametrize("declared", COLUMNS)
def test_steps_hold_the_bins_between_multiples(declared: dict[str, Any], width: float) -> None:
    column, bins = Integer(**declared), bins_of(declared)
    steps = [{math.floor(value / width) for value in values} for values in bins]
    if any(len(each) > 1 for each in steps):
        with pytest.raises(InvalidInput, match="cut the bin"):
            column.steps(width)
        return
    joined = [len([*group]) for _, group in itertools.groupby(steps)]
    found = column.steps(width)
    assert [stop - start for _, start, stop in found] == joined + [1] * (column.size - len(bins))
    np.testing.assert_array_equal(
        column.midpoints, [*map(np.mean, bins), *[np.nan] * (column.size - len(bins))]
    )


@pytest.mark.parametrize("spikes", [(0,), ("0",), (0.0, 4)])
def test_a_range_behind_a_spike_begins_at_it(spikes: tuple[Any, ...]) -> None:
    labels = Numeric(0, 4, bins=2, spikes=spikes).bin_labels
    assert labels == (("0", "0..2", "2..4") if len(spikes) == 1 else ("0", "0..2", "2..4", "4"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"edges": (0, 5, 5, 9)}, "must ascend"),
        ({"edges": (3,)}, "must ascend"),
        ({"low": 5, "high": 4}, "must ascend"),
        ({"low": 0, "high": 9, "missing": ("0",)}, "missing lists 0"),
        ({"low": 0, "high": 9.5}, "high must be a whole number up to"),
        ({"low": 0, "high": LARGEST + 1}, "high must be a whole number up to"),
        ({"low": -LARGEST - 1, "high": 0, "bins": 2}, "low must be a whole number up to"),
        ({"low": 0, "high": 9, "bins": 0}, "bins must be a whole number"),
        ({"low": 0, "high": 9, "bins": True}, "bins must be a whole number"),
        ({"low": 0, "high": 9, "bins": 2.0}, "bins must be a whole number"),
    ],
)
def test_what_bins_nothing_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Integer(**wrong)


@pytest.mark.parametrize("high", [0.5, 2.5])
def test_real_numbers_need_bins(high: float) -> None:
    with pytest.raises(InvalidInput, match="needs bins, or edges"):
        Numeric(0, high)


def test_the_largest_whole_numbers_have_codes_of_their_own() -> None:
    """Floats cannot tell them apart, and numbers beyond all floats are beyond every bin."""
    top = Integer(LARGEST - 2, LARGEST)
    values = [LARGEST - 2, LARGEST - 1, LARGEST, LARGEST + 1]
    arrays = [np.array(values, kind) for kind in (np.int64, np.uint64, object)]
    for given in (*arrays, np.array([*map(str, values)])):
        assert top.encode(given).tolist() == [0, 1, 2, -1]
    small = [np.array([3, 200], kind) for kind in (np.uint8, np.uint32, np.uint64)]
    for given in (*small, np.array([3, 2**64 - 1], np.uint64)):
        assert Integer(0, 9, outside="clip").encode(given).tolist() == [3, 9]
    wide = [Integer(0, high, bins=7).positions.tolist() for high in (2**60, 2.0**60)]
    assert wide[0] == wide[1] == [(2**60 + 1) * i // 7 for i in range(8)]
    huge = np.array([10**400, -(10**400), 5], object)
    assert Integer(0, 9, outside="clip").encode(huge).tolist() == [9, 0, 5]


def test_numbers_that_stand_for_missing_values_do_in_every_type() -> None:
    column = Integer(0, 9, missing=("99",))
    for given in (np.array([99, 3]), np.array([99.0, 3]), np.array([99.0, "3"], object)):
        assert column.encode(given).tolist() == [10, 3]
    assert column.encode(np.array(["nan", "99.0", "3", "x"], object)).tolist() == [10, 10, 3, -1]


def test_arrays_of_numbers_are_not_examined_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor texts that all are numbers: it takes tens of times as long."""
    asked: list[Any] = []
    monkeypatch.setattr("pgmkit.tables.bins.distinct", asked.append)
    for given in (np.arange(10), np.arange(10.0), pa.array([*map(str, range(10))])):
        assert Integer(0, 9).encode(given).tolist() == [*range(10)]
    assert not asked


def test_codes_of_whole_numbers_are_those_of_equal_floats() -> None:
    """From below the lowest to above the highest."""
    for special, clip in itertools.product([(), (1, 12)], (True, False)):
        column = Integer(edges=(3, 5, 8), special=special, outside="clip" if clip else None)
        given = np.arange(-4, 18)
        inside = {3: 0, 4: 0, 5: 1, 6: 1, 7: 1, 8: 1}
        beyond = [(0 if each < 3 else 1) if clip else -1 for each in given.tolist()]
        wanted = [inside.get(g, b) for g, b in zip(given.tolist(), beyond, strict=True)]
        wanted = [
            2 + special.index(g) if g in special else w
            for g, w in zip(given.tolist(), wanted, strict=True)
        ]
        for kind in (int, float, object):
            assert column.encode(given.astype(kind)).tolist() == wanted


@pytest.mark.parametrize("low", [2**53, 2**62 - 2048])
def test_numbers_that_floats_hold_have_their_codes_beside_ends_that_floats_do_not(low: int) -> None:
    whole = [low, low + 1024, low + 2048]
    column = Integer(edges=(*whole[:2], low + 1025, whole[2]), missing=())
    wanted = [0, 1, 2]
    for values in (
        np.array(whole),
        np.array(whole, np.float64),
        np.array(list(map(float, whole)), object),
    ):
        assert column.encode(values).tolist() == wanted
    exact = [low, low + 1024, low + 1025]
    for values in (pa.array(map(Decimal, exact)), pa.array(map(str, exact)), np.array(exact)):
        assert column.encode(values).tolist() == wanted


def test_a_fraction_beside_a_special_value_is_not_special() -> None:
    column, given = (
        Integer(0, 9, special=(99,)),
        np.array([99.5, 99, -0.5, 3.5, math.inf, math.nan]),
    )
    assert column.encode(given).tolist() == [-1, 10, -1, -1, -1, -1]
    clipped = replace(column, outside="clip", missing=())
    assert clipped.encode(given).tolist() == [9, 10, 0, 3, 9, 11]


def test_single_values_are_met_by_labels_and_ranges() -> None:
    """A number within a bin of others is none of its values, and a null is no range."""
    column = Integer(0, 9, bins=5, special=(99,))
    assert column.equal([99, "2..3"]).tolist() == [False, True, False, False, False, True]
    with pytest.raises(InvalidInput, match="cuts the bin"):
        column.equal([3])
    assert Integer(0, 9).equal([3, 7]).nonzero()[0].tolist() == [3, 7]
    for binned, value in ((column, None), (Numeric(0, 9, bins=3, spikes=(3,)), "2.5")):
        with pytest.raises(InvalidInput, match="no value"):
            binned.equal([value])


@pytest.mark.parametrize(
    ("low", "high", "special", "refused"),
    [
        ("1000-01-01", "9999-12-31", (), False),
        ("0999-12-31", "1999-12-31", (), True),
        ("1000-01-01", "10000-01-01", (), True),
        ("1000-01-02", "1999-12-31", ("1000-01-01",), False),
        ("1000-01-01", "1999-12-31", ("0999-12-31",), True),
    ],
)
def test_formats_are_for_years_of_four_digits(
    low: str, high: str, special: tuple[str, ...], refused: bool
) -> None:
    days = [np.datetime64(low), np.datetime64(high)]
    declared: dict[str, Any] = {"bins": 2, "special": [*map(np.datetime64, special)]}
    assert len(Date(*days, **declared).bin_labels) == 2
    if refused:
        with pytest.raises(InvalidInput, match="a format is for the years 1000 to 9999"):
            Date(*days, format="%d/%m/%Y", **declared)
    else:
        assert len(Date(*days, format="%d/%m/%Y", **declared).bin_labels) == 2


def test_arrow_arrays_of_several_pieces_and_of_a_zone_have_codes() -> None:
    moments = [datetime.datetime(2024, 1, 1, 22, 30), datetime.datetime(2024, 1, 1, 23, 30)]
    column = Date("2024-01-01", "2024-01-03")
    plain = pa.array(moments, pa.timestamp("us"))
    berlin = pa.array(moments, pa.timestamp("us", "UTC")).cast(pa.timestamp("us", "Europe/Berlin"))
    assert column.encode(plain).tolist() == [0, 0]
    assert column.encode(berlin).tolist() == [0, 1]
    assert column.encode(pa.chunked_array([berlin, berlin])).tolist() == [0, 1, 0, 1]
    beyond = pa.array([300_000_000_000], pa.timestamp("s", "Europe/Berlin"))  # the year 11476
    assert replace(column, outside="clip").encode(beyond).tolist() == [2]
    pieces = [pa.array(texts).dictionary_encode() for texts in (["3", "7"], ["7", "x"])]
    codes, unread = Integer(0, 9, outside="clip").read(pa.chunked_array(pieces))
    assert (codes.tolist(), unread.tolist()) == ([3, 7, 7, 0], [False, False, False, True])


@pytest.mark.parametrize(
    ("form", "of_day"), [("%H:%M", True), ("%I:%M %p", True), ("%I:%M", False), ("%H %d", False)]
)
def test_only_formats_that_tell_all_hours_and_no_date_are_of_times_of_day(
    form: str, of_day: bool
) -> None:
    """Where hours go to twelve, or days are written, labels and values have their date."""
    column = DateTime("1900-01-01T00:00", "1900-01-01T23:59", unit="hour", format=form)
    assert column.labels[5] == ("05" if of_day else "1900-01-01T05")
    if of_day:
        assert column.within(" 5", "6 ").nonzero()[0].tolist() == [5, 6]
        late = replace(column, low=" 20 ", high="23:59", bins=None)
        assert late.labels == ("20", "21", "22", "23")


@pytest.mark.parametrize(
    ("form", "finest"),
    [("%d.%m.%Y %H", "h"), ("%d.%m.%Y %H:%M", "m"), ("%d.%m.%Y %X", "s"), (None, "s")],
)
def test_moments_are_drawn_of_the_finest_unit_that_is_written(
    form: str | None, finest: str
) -> None:
    """Of 200 seconds of a day all are whole minutes once in 10^350."""
    column = DateTime("2024-01-01", "2024-01-03", unit="day", format=form, decode_as="datetime")
    drawn = column.decode(np.repeat([0, 1, 2], 200), np.random.default_rng(0))
    assert drawn.dtype == "datetime64[us]"
    whole = [unit for unit in "hms" if (drawn == drawn.astype(f"datetime64[{unit}]")).all()]
    assert whole[0] == finest
    assert (
        drawn.astype("datetime64[D]").astype(int).tolist()
        == [19723] * 200 + [19724] * 200 + [19725] * 200
    )


def test_days_are_decoded_as_texts_and_whole_numbers() -> None:
    codes, rng = np.array([0, 1, 1]), np.random.default_rng(0)
    texts = Date("2024-01-01", "2024-01-02", decode_as="text").decode(codes, rng)
    assert texts.tolist() == ["2024-01-01", "2024-01-02", "2024-01-02"]
    numbers = Date("2024-01-01", "2024-01-02", format="%Y%m%d", decode_as="integer")
    found = numbers.decode(codes, rng)
    assert found.dtype == np.int64 and found.tolist() == [20240101, 20240102, 20240102]


@pytest.mark.parametrize(
    ("text", "form", "wanted"),
    [
        ("5", "%H%M", "00:05:00"),
        ("930", "%H%M", "09:30:00"),
        ("930", "%-H%M", "09:30:00"),
        ("12345", "%H%M%S", "01:23:45"),
        ("1022024", "%d%m%Y", "2024-02-01"),  # 01022024 without its zero, not 10 2 2024
        ("1105", "%j%H", "1900-01-11T05"),  # 01105, not the day 110
        ("AM9:5", "%p%I:%M", "09:05:00"),  # no zeros before letters
        ("9:05:07.75", "%H:%M:%S", "09:05:07"),
        ("9:05:07.75", "%-H:%M:%-S", None),
        ("07:9:05.75", "%S:%H:%M", None),
        ("9.5", "%H%M", None),
    ],
)
def test_times_in_a_format_are_read_as_written(text: str, form: str, wanted: str | None) -> None:
    if wanted is None:
        with pytest.raises(ValueError, match="does not match format|unconverted data"):
            strptime(text, form)
    else:
        whole = wanted if "-" in wanted else f"1900-01-01T{wanted}"
        assert strptime(text, form) == datetime.datetime.fromisoformat(whole)


def test_spaces_around_dates_do_not_count_and_fractions_are_no_dates() -> None:
    compact = Date("2024-01-01", "2024-01-09", format="%Y%m%d")
    given = np.array([20240105.5, 20240105.0, 20240105, " 20240105 ", " 2024-01-05 "], object)
    assert compact.encode(given).tolist() == [-1, 4, 4, 4, 4]
    for column in (compact, Date("2024-01-01", "2024-01-09")):
        assert column.encode(np.array([" 2024-01-05 ", 5.0, 5], object)).tolist() == [4, -1, -1]
    seconds = DateTime("2024-01-05T05:00:00", "2024-01-05T05:00:09", unit="second")
    for text in ("2024-01-05 05:00:02", "2024-01-05T05:00:02.0000009"):  # microseconds count
        assert seconds.within(text, None).nonzero()[0].tolist() == [*range(2, 10)]


@pytest.mark.parametrize(
    ("low", "high", "bins"),
    [
        *[("-1", "1", 20), ("0", "3", 30), ("0.4", "3", 20), ("-2", "-1", 10)],
        *[("0", "3e-15", 30), ("-3e-27", "6e-27", 9), ("0", "7e40", 14), ("1e300", "3e300", 20)],
    ],
)
def test_ends_of_equal_bins_are_the_numbers_that_files_write(
    low: str, high: str, bins: int
) -> None:
    first, width = Decimal(low), (Decimal(high) - Decimal(low)) / bins
    wanted = [float(first + i * width) for i in range(bins + 1)]
    assert equal_widths(float(low), float(high), bins, whole=False).tolist() == wanted
    column = Numeric(float(low), float(high), bins=bins)
    assert column.encode(np.array([*map(str, wanted)])).tolist() == [*range(bins), bins - 1]


def test_ends_that_no_rounding_tells_apart_are_as_they_are() -> None:
    """Where bins are as narrow as floats allow; still narrower ones are refused."""
    for low, high, bins in [(1.0, 1.0 + 2**-50, 4), (0.0, 5e-320, 10)]:
        found = equal_widths(low, high, bins, whole=False)
        np.testing.assert_array_equal(found, np.linspace(low, high, bins + 1))
        assert (np.diff(found) > 0).all()
    with pytest.raises(InvalidInput, match="must ascend"):
        Numeric(1.0, 1.0 + 2**-50, bins=5)


def test_bins_are_at_most_as_many_as_whole_numbers_and_as_labels_allow() -> None:
    assert equal_widths(0, 5, 5, whole=True).tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(InvalidInput, match="bins is 6, but there are 5 values only"):
        equal_widths(0, 5, 6, whole=True)
    assert len(equal_widths(0, MOST_BINS, MOST_BINS, whole=True)) == MOST_BINS + 1
    with pytest.raises(InvalidInput, match="codes are too many"):
        equal_widths(0, 2 * MOST_BINS, MOST_BINS + 1, whole=True)


def test_a_masked_array_without_masked_values_is_a_column() -> None:
    given = np.ma.array([3, 0, 2], mask=[False, False, False])
    assert Integer(0, 3).encode(given).tolist() == [3, 0, 2]
