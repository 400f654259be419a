"""Predicates against fractions record by record, and the laws of random thresholds."""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from chance import assert_follows

from mechanisms.queries.predicates import (
    MeasuredPredicate,
    Predicate,
    Predicates,
    linear_thresholds,
    mixed_marginals,
    value_of,
)
from pgmkit import Dataset, Domain, InvalidInput
from pgmkit.records.dataset import NoRows

DOMAIN = Domain({"age": 8, "ill": 2, "pay": 4, "work": 3})
NUMERIC = ("pay", "age")


def people(rows: int, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    columns = {name: rng.integers(0, size, rows) for name, size in DOMAIN.sizes.items()}
    return Dataset(DOMAIN, columns)


DIFFERENCE = (("age", 0.5), ("pay", -1.0))
LIST = [
    Predicate(),
    Predicate(bound=-1.0),  # without weights there is no threshold
    Predicate((("work", 2), ("ill", 1))),
    Predicate((("age", 0),), DIFFERENCE, -0.34375),
    Predicate((), DIFFERENCE, -0.34375),  # a sum that some records have
    Predicate((("ill", 1),), DIFFERENCE, 0.0),
    Predicate((), (("pay", -1.0),), -0.5),
    Predicate((("ill", 0),), (("pay", 2.0), ("work", 0.0)), 0.75),
]
"""Binary fractions, except for those of the weight 0, so that floating point is exact."""


def satisfied(predicate: Predicate, record: dict[str, int]) -> bool:
    sums = sum(
        (Fraction(w) * Fraction(2 * record[n] + 1, 2 * DOMAIN.sizes[n]))
        for n, w in predicate.weights
    )
    met = all(record[name] == code for name, code in predicate.codes)
    return met and (not predicate.weights or sums <= Fraction(predicate.bound))


def test_counts_are_those_of_the_records_one_by_one() -> None:
    data = people(200)
    codes = {name: column.tolist() for name, column in data.columns.items()}
    records = [dict(zip(codes, each, strict=True)) for each in zip(*codes.values(), strict=True)]
    drawn = linear_thresholds(DOMAIN, NUMERIC, "ill", 10, np.random.default_rng(1))
    asked = [*LIST, *mixed_marginals(DOMAIN, NUMERIC, 4), *drawn]
    wanted = [sum(satisfied(each, record) for record in records) for each in asked]
    predicates = Predicates(DOMAIN, asked)
    assert predicates.counts(data).tolist() == wanted
    assert len(predicates) == len(asked) and predicates.counts(data).dtype == np.int64
    assert predicates.counts(NoRows(DOMAIN)).tolist() == [0] * len(asked)


def test_parts_of_a_list() -> None:
    asked = list(LIST)
    predicates = Predicates(DOMAIN, asked)
    asked.clear()
    assert predicates.list == tuple(LIST)
    assert predicates.numbers == ("age", "pay", "work")
    lines = [[dict(each.weights).get(name, 0.0) for name in predicates.numbers] for each in LIST]
    assert predicates.matrix.tolist() == lines
    bounds = [math.inf, math.inf, math.inf, -0.34375, -0.34375, 0.0, -0.5, 0.75]
    assert isinstance(predicates.bounds, np.ndarray) and predicates.bounds.tolist() == bounds
    assert Predicate((), DIFFERENCE) == Predicate((), DIFFERENCE, 0.0)
    both = Predicate((("ill", 1), ("pay", 2)), (("work", 1.0), ("pay", 1.0)))
    assert both.clique == ("ill", "pay", "work")
    assert value_of(np.array([0, 3]), 4).tolist() == [0.125, 0.875]


def test_a_count_changes_by_at_most_one_between_neighbours() -> None:
    data, predicates = people(50), Predicates(DOMAIN, LIST)
    before, rng = predicates.counts(data), np.random.default_rng(0)
    for row in range(20):
        columns = {name: column.copy() for name, column in data.columns.items()}
        for name, size in DOMAIN.sizes.items():
            columns[name][row] = rng.integers(size)
        replaced = predicates.counts(Dataset(DOMAIN, columns))
        fewer = {name: np.delete(column, row) for name, column in data.columns.items()}
        removed = predicates.counts(Dataset(DOMAIN, fewer))
        assert np.abs(replaced - before).max() <= 1 and set(before - removed) <= {0, 1}


def test_records_over_another_domain_are_refused() -> None:
    """The codes of an attribute of another size stand for other numbers."""
    for domain in (Domain({**DOMAIN.sizes, "age": 999}), Domain({"height": 2})):
        with pytest.raises(InvalidInput, match="another domain"):
            Predicates(DOMAIN, LIST).counts(NoRows(domain))
        with pytest.raises(InvalidInput, match="another domain"):
            Predicates(DOMAIN, LIST).counts(Dataset(domain, {name: [0] for name in domain}))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([], "predicates is empty"),
        ([Predicate((("ill", 2),))], r"code 2 of 'ill' must be a whole number within 0\.\.1"),
        ([Predicate((("ill", 0.5),))], r"code 0\.5 of 'ill' must be a whole number"),  # type: ignore[arg-type]
        ([Predicate((("ill", "1"),))], "code '1' of 'ill' must be a whole number"),  # type: ignore[arg-type]
        ([Predicate((), (("age", "1"),))], "must be finite"),  # type: ignore[arg-type]
        ([LIST[0], Predicate((("ill", 0), ("work", -1)))], "code -1 of 'work'"),
        ([Predicate((("x", 0),))], "predicate names an unknown attribute 'x'"),
        ([Predicate((), (("x", 1.0),))], "predicate names an unknown attribute 'x'"),
        ([Predicate((("ill", 0), ("ill", 0)))], "predicate names the attribute 'ill' twice"),
        ([Predicate((), (("age", 1.0), ("age", 1.0)))], "names the attribute 'age' twice"),
        ([Predicate((), (("age", 1.0), ("pay", math.nan)))], "must be finite"),
        ([Predicate((), (("age", math.inf),))], "must be finite"),
        ([Predicate((), (("age", 1.0),), math.inf)], "must be finite"),
        ([Predicate((), (("age", 1.0),), math.nan)], "must be finite"),
    ],
)
def test_predicates_that_a_domain_does_not_have_are_refused(
    wrong: list[Predicate], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        Predicates(DOMAIN, wrong)


def test_noisy_counts_are_numbers_with_noise() -> None:
    measured = MeasuredPredicate(LIST[3], 0.0, 0.5)
    measured.check(DOMAIN)
    assert measured.clique == ("age", "pay")
    assert isinstance(measured.values, np.ndarray) and measured.values.tolist() == [0.0]
    for value, stddev in itertools.product([1.0, math.nan, -math.inf], [1.0, 0.0, -1.0, math.inf]):
        if (value, stddev) != (1.0, 1.0):
            with pytest.raises(InvalidInput, match="finite value and a stddev above 0"):
                MeasuredPredicate(LIST[3], value, stddev).check(DOMAIN)
    with pytest.raises(InvalidInput, match="unknown attribute 'age'"):
        measured.check(Domain({"pay": 4}))


def test_mixed_marginals_are_the_prefixes_of_numbers_at_each_code() -> None:
    domain = Domain({"ill": 2, "age": 5, "one": 1, "pay": 3})
    wanted = [
        Predicate(((name, code),), ((number, 1.0),), bound)
        for name, code in (("ill", 0), ("ill", 1), ("one", 0))
        for number, bound in itertools.product(("pay", "age"), (0.25, 0.5, 0.75))
    ]
    assert repr(mixed_marginals(domain, ["pay", "age"], 3)) == repr(wanted)
    assert mixed_marginals(domain, ["pay"], 1)[0].bound == 0.5
    assert mixed_marginals(Domain({"age": 5}), ["age"], 10**6) == []
    with pytest.raises(
        InvalidInput, match="cuts must be a whole number from 1 to 1,000,000, got 1000001"
    ):
        mixed_marginals(Domain({"age": 5}), ["age"], 10**6 + 1)


def parts_of(drawn: Sequence[Predicate], label: str) -> tuple[np.ndarray, np.ndarray]:
    """The directions (one a line) and the bounds, the same for each code of the label."""
    size = DOMAIN.sizes[label]
    codes = [((label, code),) for code in range(size)]
    for first in range(0, len(drawn), size):
        group = drawn[first : first + size]
        assert [each.codes for each in group] == codes
        assert len({(each.weights, each.bound) for each in group}) == 1
        assert {type(each) for each in (group[0].bound, *dict(group[0].weights).values())} == {
            float
        }
        assert tuple(name for name, _ in group[0].weights) == NUMERIC
    directions = [[weight for _, weight in each.weights] for each in drawn[::size]]
    return np.array(directions), np.array([each.bound for each in drawn[::size]])


def assert_even(values: np.ndarray, low: float, high: float) -> None:
    """Draws between two ends that prefer no part of the range."""
    assert values.min() >= low and values.max() <= high
    assert_follows(np.histogram(values, 20, (low, high))[0], np.ones(20))


def assert_isotropic(directions: np.ndarray) -> None:
    assert_even(np.arctan2(directions[:, 1], directions[:, 0]), -math.pi, math.pi)


def test_thresholds_have_even_directions_and_even_bounds() -> None:
    drawn = linear_thresholds(DOMAIN, NUMERIC, "work", 1000, np.random.default_rng(0))
    directions, bounds = parts_of(drawn, "work")
    assert len(directions) == 1000
    np.testing.assert_allclose(np.hypot(*directions.T), 1.0, rtol=1e-12)
    assert_isotropic(directions)
    low = np.where(directions < 0, directions, 0.0).sum(1)
    high = np.where(directions > 0, directions, 0.0).sum(1)
    assert_even((bounds - low) / (high - low), 0.0, 1.0)


@pytest.mark.parametrize("spread", [(0.2, 3.0), (0.2, 0.0)])
def test_thresholds_through_points_split_them_evenly(spread: tuple[float, float]) -> None:
    """Weights of an attribute whose points are equal are not scaled."""
    places = np.array([[-1.0, 1.0], [1.0, 0.0], [0.5, -1.0], [-1.5, 0.25], [0.25, 0.0]])
    points = 0.5 + places * spread / np.where(places.std(0) > 0, places.std(0), 1.0)
    rng = np.random.default_rng(0)
    directions, bounds = parts_of(
        linear_thresholds(DOMAIN, NUMERIC, "ill", 1000, rng, points), "ill"
    )
    sums = directions @ points.T
    np.testing.assert_allclose(sums.std(1), 12**-0.5, rtol=1e-9)
    assert_isotropic(directions * np.where(np.array(spread) > 0, spread, 1.0))
    picked = np.abs(sums - bounds[:, None]).argmin(1)
    np.testing.assert_allclose(sums[np.arange(1000), picked], bounds, rtol=1e-9, atol=1e-9)
    assert_follows(np.bincount(picked), np.ones(5))


def test_directions_over_equal_points_stay_finite() -> None:
    # The mean of equal numbers rounds, so their computed spread is not exactly 0.
    points = np.full((7, len(NUMERIC)), 0.1)
    drawn = linear_thresholds(DOMAIN, NUMERIC, "ill", 5, np.random.default_rng(3), points)
    assert max(abs(weight) for each in drawn for _, weight in each.weights) < 10


@pytest.mark.parametrize(
    ("numeric", "label", "count", "said"),
    [
        (
            NUMERIC,
            "ill",
            2**70,
            "count must be a whole number from 1 to 1,000,000, got 1180591620717411303424",
        ),
        (NUMERIC, "ill", 0, "count must be a whole number from 1"),
        ((), "ill", 3, "numeric must name at least one"),
        (NUMERIC, "height", 3, "unknown attribute 'height'"),
        (NUMERIC, "age", 3, "names the attribute 'age' twice"),
        (("height",), "ill", 3, "unknown attribute 'height'"),
        (("age", "age"), "ill", 3, "names the attribute 'age' twice"),
    ],
)
def test_thresholds_that_cannot_be_drawn_are_refused_at_once(
    numeric: tuple[str, ...], label: str, count: int, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        linear_thresholds(DOMAIN, numeric, label, count, np.random.default_rng(0))
    if label == "ill" and numeric:
        with pytest.raises(InvalidInput, match=said.replace("count", "cuts")):
            mixed_marginals(DOMAIN, numeric, count)


@pytest.mark.parametrize("points", [np.zeros((5, 7)), np.zeros(2), np.zeros((0, 2)), [[np.nan, 1]]])
def test_points_of_another_shape_or_without_numbers_are_refused(points: Any) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidInput, match="points must be"):
        linear_thresholds(DOMAIN, NUMERIC, "ill", 2, rng, np.asarray(points))
