"""Bins of real numbers, with and without decimal places, against a list of their values."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from pgmkit import Integer, Numeric
from pgmkit.errors import InvalidInput

MOST = 2**53
COLUMNS: list[dict[str, Any]] = [
    {"low": 0, "high": 9, "bins": 4, "decimals": 0},
    {"low": -1.5, "high": 2.5, "bins": 10, "decimals": 1, "missing": ()},
    {"low": 0, "high": 2, "bins": 5, "decimals": 0, "special": (7, -3.5)},  # a bin without any
    {"edges": (-2, -0.5, 0.25, 3), "decimals": 2, "spikes": (0, 3), "special": ("99",)},
    {"edges": (0.05, 0.15, 0.95), "decimals": 1, "outside": "clip"},
    {"low": 0, "high": 1, "bins": 3, "decimals": 1, "spikes": (0.7,)},
]


def ends_of(declared: dict[str, Any]) -> list[float]:
    if "edges" in declared:
        return [float(end) for end in declared["edges"]]
    width = (declared["high"] - declared["low"]) / declared["bins"]
    return [round(declared["low"] + i * width, 9) for i in range(declared["bins"] + 1)]


def key_of(value: float, declared: dict[str, Any]) -> tuple[float, float, bool] | None:
    """What tells the bin of a value from others: its lower end, the spikes below, itself one."""
    ends, spikes = ends_of(declared), declared.get("spikes", ())
    if not ends[0] <= value <= ends[-1]:
        return None
    below = max(end for end in ends[:-1] if end <= value + 1e-9)
    return below, sum(spike < value for spike in spikes), value in spikes


def values_of(declared: dict[str, Any]) -> dict[tuple[float, float, bool], list[float]]:
    """The values with the declared decimals, by bin; the upper end counts in the last."""
    scale = 10 ** declared["decimals"]
    ends = ends_of(declared)
    found: dict[tuple[float, float, bool], list[float]] = {}
    for multiple in range(math.floor(ends[0] * scale), math.ceil(ends[-1] * scale) + 1):
        key = key_of(multiple / scale, declared)
        if key is not None:
            found.setdefault(key, []).append(multiple / scale)
    return found


@pytest.mark.parametrize("declared", COLUMNS)
def test_real_numbers_have_the_codes_of_their_bins(declared: dict[str, Any]) -> None:
    column, ends = Numeric(**declared), ends_of(declared)
    special = [float(each) for each in declared.get("special", ())]
    codes: dict[Any, int] = {}
    given = [v for v in np.linspace(ends[0] - 1, ends[-1] + 1, 173).tolist() if v not in special]
    given += [*ends, *declared.get("spikes", ())]
    for value, code in zip(given, column.encode(np.array(given)).tolist(), strict=True):
        key = key_of(value, declared)
        if value not in column.positions and value in ends:
            continue  # a third has more digits than ends have here
        if key is None:
            clipped = 0 if value < ends[0] else len(column.bin_labels) - 1
            assert code == (clipped if "outside" in declared else -1)
        else:
            assert codes.setdefault(key, code) == code, value
    assert sorted(codes.values()) == [*range(len(column.bin_labels))]
    bins = len(column.bin_labels)
    assert column.encode(np.array(special)).tolist() == [bins + i for i in range(len(special))]


@pytest.mark.parametrize("declared", COLUMNS)
def test_real_numbers_are_drawn_with_their_decimals_in_each_bin(declared: dict[str, Any]) -> None:
    """From all of the bin where it has no such value. Of 4,000 draws one of at most 276 values is
    never drawn once in 10,000 columns, and no draw is in the first or last tenth once in 10^183.
    """
    column, held = Numeric(**declared), values_of(declared)
    special = [float(each) for each in declared.get("special", ())]
    low, high, units = column.ends_of_bins
    for code, (first, last, unit) in enumerate(zip(low, high, units, strict=True)):
        drawn = column.decode(np.full(4000, code), np.random.default_rng(code))
        assert set(column.encode(drawn).tolist()) == {code}
        wanted = next((v for v in held.values() if column.encode(np.array(v))[0] == code), [])
        end = column.positions[-1]
        wanted = [v for v in wanted if v != end] or wanted if code == len(low) - 1 else wanted
        if unit:
            assert unit == 10 ** declared["decimals"]
            assert set(drawn.tolist()) == set(wanted)
            assert (first, last) == (min(wanted), max(wanted))
        else:
            assert [v for v in wanted if v != end] == [] or column.single[code]
            assert drawn.min() <= first + (last - first) / 10
            assert drawn.max() >= last - (last - first) / 10
    for place, value in enumerate(special):
        drawn = column.decode(np.full(9, len(low) + place), np.random.default_rng(0))
        assert drawn.tolist() == [value] * 9


@pytest.mark.parametrize("low", [0.0, -1e18])
def test_numbers_that_floats_cannot_tell_apart_are_drawn_from_the_whole_bin(low: float) -> None:
    column = Numeric(low, low + 1e18, bins=4, decimals=2)
    assert column.ends_of_bins[2].tolist() == [0.0] * 4
    for code in range(4):
        drawn = column.decode(np.full(500, code), np.random.default_rng(code))
        shares = (drawn - low) / 2.5e17 - code
        assert 0 <= shares.min() < 0.1 and 0.9 < shares.max() < 1


@pytest.mark.parametrize("width", [math.inf, math.nan, 0.0, -1.0])
def test_steps_have_a_width(width: float) -> None:
    for column in (Numeric(0, 9, bins=9), Integer(0, 9)):
        with pytest.raises(InvalidInput, match="must have a width above 0"):
            column.steps(width)


@pytest.mark.parametrize(
    ("bins", "width", "joined"), [(9, 0.3, 3), (9, 0.9, 9), (12, 0.1, 1), (24, 0.3, 3)]
)
def test_steps_of_real_numbers_join_the_bins_of_each(bins: int, width: float, joined: int) -> None:
    """Whatever the last digits of 2.1 / 0.3 are; 0.03 and 0.15 are within bins."""
    column = Numeric(0, bins / 10, bins=bins, missing=())
    groups = [(i * joined, (i + 1) * joined) for i in range(bins // joined)]
    assert [(start, stop) for _, start, stop in column.steps(width)] == [*groups, (bins, bins + 1)]
    for cut in (0.03, 0.15):
        with pytest.raises(InvalidInput, match="cut the bin"):
            column.steps(cut)


@pytest.mark.parametrize(
    ("declared", "held"),
    [
        ({"low": 0, "high": MOST}, True),
        ({"low": 0, "high": MOST + 1}, False),
        ({"low": -MOST, "high": 0}, True),
        ({"low": -MOST - 1, "high": 0}, False),
        ({"low": 0, "high": 9, "special": (MOST,)}, True),
        ({"low": 0, "high": 9, "special": (MOST + 1,)}, False),
    ],
)
def test_numbers_are_floats_where_these_hold_all_of_them(
    declared: dict[str, Any], held: bool
) -> None:
    assert Integer(**declared, bins=2).kind == "integer"
    assert Integer(**declared, bins=2, decode_as="text").kind == "text"
    if held:
        assert Integer(**declared, bins=2, decode_as="number").kind == "number"
    else:
        with pytest.raises(InvalidInput, match=r"up to 2\^53 only"):
            Integer(**declared, bins=2, decode_as="number")


def test_whole_numbers_are_decoded_as_declared() -> None:
    found = [
        Integer(3, 5, decode_as=kind).decode(np.arange(3), np.random.default_rng(0))
        for kind in (None, "number", "text")
    ]
    assert [each.dtype for each in found] == [np.int64, np.float64, np.dtype(object)]
    assert [each.tolist() for each in found] == [[3, 4, 5], [3.0, 4.0, 5.0], ["3", "4", "5"]]


@pytest.mark.parametrize(
    ("declared", "held"),
    [
        ({"bins": 5, "decimals": 0, "special": (12, "1,200")}, True),
        ({"bins": 20, "decimals": 0}, False),  # half of the bins hold no whole number
        ({"bins": 20, "decimals": 0, "quantiles": True}, True),  # bins are still to be found
        ({"bins": 5, "decimals": 1}, False),
        ({"bins": 5}, False),
        ({"bins": 5, "decimals": 0, "special": (12.5,)}, False),
        ({"bins": 5, "decimals": 0, "special": (12.5,), "quantiles": True}, False),
    ],
)
def test_real_numbers_are_whole_where_each_bin_holds_one(
    declared: dict[str, Any], held: bool
) -> None:
    if not held:
        with pytest.raises(InvalidInput, match='"integer" needs decimals: 0'):
            Numeric(0, 10, decode_as="integer", **declared)
        return
    column = Numeric(0, 10, decode_as="integer", **declared)
    if column.resolved:
        drawn = column.decode(np.arange(column.size), np.random.default_rng(0))
        assert drawn.dtype == np.int64 and drawn[-2:].tolist() == [12, 1200]


def test_found_edges_are_those_within_the_range() -> None:
    open_ends = Numeric("0", "10", bins=4, decimals=1, quantiles=True, spikes=(3,), missing=())
    found = open_ends.found([-1.0, 0.0, 2.52, 2.54, 7.96, 10.0, 12.0])
    assert found == Numeric(edges=(0.0, 2.5, 8.0, 10.0), decimals=1, spikes=(3,), missing=())
    assert found.resolved and not open_ends.resolved


def test_numbers_are_shown_and_decoded_as_texts_with_all_their_digits() -> None:
    column = Numeric(edges=(0, 0.1, 1234567.5), special=(9999999.5,))
    assert column.labels == ("0..0.1", "0.1..1234567.5", "9999999.5")
    assert Numeric(0, 2e6, bins=2).labels == ("0..1e+06", "1e+06..2e+06")
    codes = np.repeat([0, 1, 2], 20)
    numbers = column.decode(codes, np.random.default_rng(0))
    texts = replace(column, decode_as="text").decode(codes, np.random.default_rng(0))
    assert texts.dtype == object and {type(each) for each in texts} == {str}
    assert [float(each) for each in texts] == numbers.tolist()
    assert texts[-1] == "9999999.5" and not any("e" in text for text in texts[20:])


@pytest.mark.parametrize("width", [1e-11, 1e-15, 2e-19, 5e-20])
def test_narrow_bins_have_a_thousand_values_too(width: float) -> None:
    """Of 200 draws among a thousand values 181 are distinct, standard deviation 3.9."""
    column = Numeric(0, 4 * width, bins=4)
    for code in range(4):
        drawn = column.decode(np.full(200, code), np.random.default_rng(code))
        assert len(np.unique(drawn)) > 150
        assert set(column.encode(drawn).tolist()) == {code}
        assert all(Decimal(repr(each)).as_tuple().exponent >= -22 for each in drawn.tolist())


def test_a_step_that_ends_at_a_value_cuts_its_bin() -> None:
    """33 / 1.1 is a little less than 30 among floats."""
    with pytest.raises(InvalidInput, match="cut the bin"):
        Integer(32, 33, bins=1).steps(1.1)


@pytest.mark.parametrize("low", [10**13, 2**53 + 3, -(2**60)])
@pytest.mark.parametrize("width", [2, 5.0, 1e300])
def test_steps_of_large_whole_numbers_are_exact(low: int, width: float) -> None:
    """Their ratios to the width are rounded among floats."""
    column = Integer(low, low + 9)
    steps = [
        [*group] for _, group in itertools.groupby(range(low, low + 10), lambda n: n // int(width))
    ]
    found = [range(low + start, low + stop) for _, start, stop in column.steps(width)]
    assert [[*each] for each in found] == steps


def test_ends_farther_apart_than_floats_reach_are_refused_in_words() -> None:
    far = pytest.raises(InvalidInput, match="farther apart than the largest float")
    with warnings.catch_warnings(action="error"), far:
        Numeric(-1e308, 1e308, bins=3)
