"""Units of several rows: what is kept of each, and what one unit can change."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow
import pytest
from chance import assert_follows
from hypothesis import given, settings
from hypothesis import strategies as st
from replay import replay
from test_replay import quick

from mechanisms.cli import main
from mechanisms.dispatch import run_on
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.discovery import threshold
from mechanisms.privacy.integer_matrix import GridMatrix
from mechanisms.privacy.ledger import BudgetExceeded, Ledger
from mechanisms.privacy.neighbours import NEIGHBOURS, is_promise, promise, relation, rows_used
from mechanisms.privacy.units import Excess, bounded, random_keys
from mechanisms.queries.cells import Cell
from mechanisms.queries.predicates import Predicates, mixed_marginals
from mechanisms.registry import MECHANISMS, configure
from mechanisms.release.report import html
from mechanisms.release.tabular import TableRelease
from mechanisms.synthesis import units as units_module
from mechanisms.synthesis.pipeline import synthesize
from mechanisms.synthesis.plan import plan
from mechanisms.synthesis.units import bounded_frame, unit_numbers
from mechanisms.workload import k_way
from pgmkit import Categorical, Column, Numeric, OpenCategorical, Schema
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset
from pgmkit.tables.files.record_files import read_frame
from pgmkit.tables.values import series_values

pytestmark = pytest.mark.usefixtures("short_fits")

DOMAIN = Domain({"a": 2, "b": 3, "c": 4})
PAIRS = k_way(DOMAIN, 2)
CLIQUES = [("a",), ("b", "c"), ("a", "b", "c")]
BUDGETS = {"pure": Budget(1.5), "zCDP": Budget(1.5, 1e-6)}

Row = tuple[int, int, int]


def some_rows(rng: np.random.Generator, k: int) -> list[Row]:
    """A unit's rows: at times all of them alike, which is the worst case, at times few."""
    count = k if rng.random() < 0.7 else int(rng.integers(1, k + 1))
    rows = [tuple(int(rng.integers(s)) for s in DOMAIN.sizes.values()) for _ in range(count)]
    return [rows[0]] * count if rng.random() < 0.5 else rows  # type: ignore[return-value]


def unit_neighbours(
    rng: np.random.Generator, relation: str, k: int, others: int = 25
) -> tuple[Dataset, Dataset]:
    """Records of units of 1 to k rows each, and the same with a unit replaced, more or less."""
    shared = [row for _ in range(others) for row in some_rows(rng, k)]
    one, other = some_rows(rng, k), some_rows(rng, k)
    if relation == "add/remove":
        one, other = (one, []) if rng.random() < 0.5 else ([], other)
    tables = [np.array(shared + own) for own in (one, other)]
    first, second = (Dataset(DOMAIN, dict(zip(DOMAIN, t.T, strict=True))) for t in tables)
    return first, second


# What is kept of each unit.


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(-1, 5), max_size=40), st.integers(1, 6), st.integers(0, 2**32))
def test_each_unit_keeps_its_rows_of_smallest_keys(owners: list[int], k: int, seed: int) -> None:
    keys = random_keys(len(owners), np.random.default_rng(seed))
    places, excess = bounded(np.array(owners, dtype=np.intp), k, keys)
    expected, lost = [], 0
    for owner in set(owners) - {-1}:
        own = sorted((i for i, other in enumerate(owners) if other == owner), key=lambda i: keys[i])
        expected += own[:k]
        lost += min(len(own[k:]), 3 * k)
    assert places.tolist() == sorted(expected)
    assert excess == Excess(lost, 3 * k)


@pytest.mark.parametrize("seeded", [True, False])
def test_every_choice_of_rows_is_equally_likely(seeded: bool) -> None:
    rng = np.random.default_rng(1) if seeded else None
    owners = np.array([7, 3, 7, 7, 3, 7, -1])
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(6000):
        seen[tuple(bounded(owners, 2, random_keys(len(owners), rng))[0].tolist())] += 1
    choices = [tuple(sorted((*own, 1, 4))) for own in itertools.combinations([0, 2, 3, 5], 2)]
    assert set(seen) <= set(choices)
    assert_follows([seen[choice] for choice in choices], np.ones(len(choices)))


@pytest.mark.parametrize("seeded", [True, False])
def test_keys_have_all_64_bits(seeded: bool) -> None:
    """Equal keys are decided by the order of the rows; two of 10,000 are equal once in 1e11."""
    keys = random_keys(10_000, np.random.default_rng(1) if seeded else None)
    assert len(set(keys.tolist())) == len(keys)
    assert int(np.bitwise_or.reduce(keys)) == 2**64 - 1


def test_the_choice_of_a_unit_depends_on_no_other() -> None:
    rng = np.random.default_rng(2)
    owners, keys = rng.integers(-1, 20, 300), random_keys(300, None)
    kept = bounded(owners, 4, keys)[0]
    for gone in range(20):
        left = owners != gone
        fewer = np.flatnonzero(left)[bounded(owners[left], 4, keys[left])[0]]
        assert fewer.tolist() == [i for i in kept if owners[i] != gone]


# What follows from the relation.


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(sorted(NEIGHBOURS)), st.integers(1, 6), st.integers(0, 2**32))
def test_no_unit_moves_a_marginal_by_more_than_is_stated(name: str, k: int, seed: int) -> None:
    stated = relation(name, "id", k)
    one, other = unit_neighbours(np.random.default_rng(seed), name, k)
    if stated.rows_public:
        assert len(one) == len(other)
    for clique in CLIQUES:
        moved = one.marginal(clique) - other.marginal(clique)
        assert np.abs(moved).sum() <= stated.l1
        assert np.sqrt((moved**2).sum()) <= stated.l2 * (1 + 1e-12)
        assert np.abs(moved).max() <= stated.max_rows


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_stated_sensitivities_are_attained(name: str, k: int) -> None:
    stated = relation(name, "id", k)
    rng = np.random.default_rng(0)
    moves = [
        one.marginal(c) - other.marginal(c)
        for one, other in (unit_neighbours(rng, name, k, others=3) for _ in range(300))
        for c in CLIQUES
    ]
    assert max(np.abs(m).sum() for m in moves) == stated.l1
    assert max(np.sqrt((m**2).sum()) for m in moves) == pytest.approx(stated.l2)
    assert max(np.abs(m).max() for m in moves) == stated.max_rows
    assert any(m.sum() for m in moves) is not stated.rows_public
    assert stated.l1 == k * NEIGHBOURS[name].l1


@pytest.mark.parametrize("name", NEIGHBOURS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_query_answers_move_as_far_as_the_worst_unit_moves_them(name: str, k: int) -> None:
    """All pairs of units of 1 to k rows, written out; with a column that all rows share."""
    rng = np.random.default_rng(k)
    stated = relation(name, "id", k)
    for draw in range(6):
        dense = rng.normal(size=(3, 4)) + (5.0 if draw % 2 else 0.0)
        if draw == 0:
            dense = np.ones((1, 4))
        grid = GridMatrix.rounded([dense])
        held = [
            np.bincount(rows, minlength=4)
            for size in range(1, k + 1)
            for rows in itertools.combinations_with_replacement(range(4), size)
        ]
        none = [np.zeros(4, dtype=int)]
        pairs = itertools.product(held, none if name == "add/remove" else held)
        moves = [grid.factors[0] @ (u - v) for u, v in pairs]
        norms: dict[str, tuple[Callable[[bool], float], float]] = {
            "l1": (grid.l1, max(float(np.abs(m).sum()) for m in moves)),
            "l2": (
                lambda differ, grid=grid: grid.l2_squared(differ) ** 0.5,
                max(float(np.sqrt((m.astype(float) ** 2).sum())) for m in moves),
            ),
        }
        for norm, worst in norms.values():
            found = stated.largest_move(norm)
            assert found >= worst * (1 - 1e-12)
            # A replaced unit has a row at least, an added one may meet none: up to k/(k - 1) off.
            assert draw == 0 or found <= worst * (k / max(1, k - 1)) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("name", NEIGHBOURS)
@pytest.mark.parametrize("k", [1, 2, 4, 9])
@pytest.mark.parametrize("scale", [0.7, 5.0, 60.0])
def test_values_of_one_unit_pass_with_probability_delta_in_all(
    name: str, k: int, scale: float
) -> None:
    """Any way of splitting a unit's rows into new values; the noise's tail is summed exactly."""
    delta = 1e-6
    above = threshold(scale, delta, relation(name, "id", k))
    noise = np.arange(-int(50 * scale) - 50, int(50 * scale) + 50)
    mass = np.exp(-(noise**2) / (2 * scale**2))
    tails = [float(mass[count + noise > above].sum() / mass.sum()) for count in range(k + 1)]
    worst = max(sum(tails[count] for count in split) for split in _splits(k, k))
    sides = {"replace-one": 2, "add/remove": 1}[name]
    assert sides * worst <= delta
    assert relation(name, "id", k).l1 == sides * k  # more would only raise it


def _splits(total: int, largest: int) -> list[list[int]]:
    if total == 0:
        return [[]]
    return [
        [part, *rest]
        for part in range(1, min(total, largest) + 1)
        for rest in _splits(total - part, part)
    ]


def test_names_of_relations() -> None:
    odd = "a of b (max_rows 3)\n(max_rows x)"
    for unit in ("person", "of", odd):
        name = relation("replace-one", unit, 3).name
        assert is_promise(name) and is_promise(promise(name))
        assert promise(name) == promise(promise(name)) == f"replace-one of {unit}"
        assert promise(relation("replace-one", unit, 4).name) == promise(name)
        said = f"Counts are of at most 3 rows of each {unit}; any others were left out."
        assert rows_used(name) == said.replace("\n", " ")
    assert not is_promise("swap of id (max_rows 3)") and not is_promise("") and not is_promise(3)
    assert not any(
        map(rows_used, ("add/remove", "add/remove of id", "add/remove (max_rows 3)", ""))
    )
    assert relation("replace-one", "id", 1).rows_public
    assert not relation("replace-one", "id", 2).rows_public


# Everything that the Curator answers, and whole mechanisms, replayed on units.


def everything(curator: Curator) -> None:
    """Every kind of question that a Curator answers, at even costs."""
    rng = np.random.default_rng(0)
    cost = curator.remaining / 14
    estimates = {c: rng.random(DOMAIN.shape(c)) * 9 for c in CLIQUES}
    shares = [{c: rng.dirichlet(np.ones(DOMAIN.size(c))).reshape(DOMAIN.shape(c)) for c in CLIQUES}]
    shares += [{c: np.full(DOMAIN.shape(c), 1 / DOMAIN.size(c)) for c in CLIQUES}]
    predicates = Predicates(DOMAIN, mixed_marginals(DOMAIN, ["c"], 3))
    cells = [Cell(("b",), 1), Cell(("a",), 0), Cell(("a", "c"), 3)]
    curator.measure((), cost)
    curator.measure(("a", "b"), cost)
    curator.measure_queries(("c",), [np.triu(np.ones((4, 4)))], cost)
    curator.measure_queries(("a", "b"), [np.ones((1, 2)), np.eye(3)], cost)
    curator.measure_errors(CLIQUES, estimates, cost)
    curator.choose(CLIQUES, estimates, cost, weights=[1.0, 0.3, 2.0], penalties=[1.0, 2.0, 0.5])
    curator.choose(CLIQUES, estimates, cost, mechanism="permute-and-flip")
    curator.choose_cells(CLIQUES, estimates, cost, count=3)
    curator.measure_cells(cells, cost)
    curator.choose_predicates(predicates, np.ones(len(predicates)), cost, count=2)
    curator.measure_predicates(predicates, cost)
    curator.draw_signed(CLIQUES, estimates, cost, count=4)
    curator.choose_public(shares, cost)


@pytest.mark.parametrize("kind", BUDGETS)
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_no_answer_costs_more_than_is_charged(name: str, kind: str, tmp_path: Path) -> None:
    entry, chosen = configure("independent")
    budget = BUDGETS[kind]
    for seed in range(12):
        rng = np.random.default_rng(seed)
        k = int(rng.integers(1, 6))
        data, other = unit_neighbours(rng, name, k)

        def job(records: Dataset, k: int = k) -> Any:
            curator = Curator(records, budget, neighbours=relation(name, "id", k))
            everything(curator.recoded(records))
            left = Curator(records, budget, neighbours=relation(name, "id", k))
            return run_on(left, entry, chosen, PAIRS)

        share = replay(job, data, other, tmp_path, pure=budget.pure)
        assert share > 0


def unit_frames(rng: np.random.Generator, name: str) -> tuple[Any, Any]:
    """Frames of units of up to nine rows; they differ in the last unit alone, by all its rows."""
    import pandas as pd

    def rows(unit: int, count: int, alike: Row | None = None) -> list[dict[str, Any]]:
        found = []
        for _ in range(count):
            a, b, c = alike or (int(rng.integers(2)), int(rng.integers(3)), int(rng.integers(4)))
            found.append(
                {"id": f"u{unit}", "sex": "FM"[a], "job": f"job{b}", "wage": 7.25 * c + 1.0}
            )
        return found

    shared = [row for unit in range(120) for row in rows(unit, int(rng.integers(1, 8)))]
    one, other = rows(500, 9, (0, 0, 0)), rows(501, int(rng.integers(1, 10)), (1, 2, 3))
    if name == "add/remove":
        other = []
    return pd.DataFrame(shared + one), pd.DataFrame(shared + other)


CLOSED: dict[str, Column] = {
    "sex": Categorical(("F", "M")),
    "job": Categorical(("job0", "job1", "job2")),
    "wage": Numeric(0, 30, bins=4),
}
OPEN: dict[str, Column] = {
    **CLOSED,
    "job": OpenCategorical(),
    "wage": Numeric(0, 30, bins=4, quantiles=True),
}
REPLAYED = (
    ("mst", CLOSED, 1e-6),
    ("mst", OPEN, 1e-6),
    ("auto", CLOSED, 1e-6),
    ("aim", CLOSED, 0.0),
    ("mwem+pgm", CLOSED, 1e-6),
    ("matrix+pgm", CLOSED, 1e-6),
    ("clique-tree", CLOSED, 1e-6),
    ("dual-query", CLOSED, 0.0),
    ("rap", CLOSED, 1e-6),
    ("independent", CLOSED, 0.0),
)


@pytest.mark.parametrize("name", NEIGHBOURS)
@pytest.mark.parametrize(("mechanism", "columns", "delta"), REPLAYED)
def test_whole_units_are_replayed_through_the_front_door(
    mechanism: str,
    columns: dict[str, Column],
    delta: float,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys are forced as noise is: the rows of the other units, which come first, have the same."""

    def same_keys(count: int, rng: Any) -> Any:
        return random_keys(count, np.random.default_rng(3))

    monkeypatch.setattr(units_module, "random_keys", same_keys)
    frames = unit_frames(np.random.default_rng(5), name)
    options = {} if mechanism == "auto" else {"settings": quick(mechanism)}

    def job(frame: Any) -> Any:
        return synthesize(
            frame,
            Schema(columns),
            epsilon=2.0,
            delta=delta,
            neighbours=name,
            unit="id",
            max_rows=4,
            report_dropped=True,
            mechanism=mechanism,
            **options,
        )

    replay(job, *frames, tmp_path, pure=delta == 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUDGETS)
@pytest.mark.parametrize("name", NEIGHBOURS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_units_are_replayed_in_any_mechanism(
    mechanism: str, name: str, kind: str, tmp_path: Path
) -> None:
    entry, chosen = configure(mechanism, **quick(mechanism))
    rng = np.random.default_rng(8)
    public = {"public": unit_neighbours(rng, name, 1)[0]} if entry.public else {}
    for k in (2, 5):
        data, other = unit_neighbours(rng, name, k)

        def job(records: Dataset, k: int = k) -> Any:
            curator = Curator(records, BUDGETS[kind], neighbours=relation(name, "id", k))
            return run_on(curator, entry, chosen, PAIRS, **public)

        replay(job, data, other, tmp_path, pure=BUDGETS[kind].pure)


# The front door.


def visits(seed: int = 0) -> Any:
    return unit_frames(np.random.default_rng(seed), "replace-one")[0]


def run(data: Any, **options: Any) -> TableRelease:
    given: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "unit": "id",
        "max_rows": 3,
        "mechanism": "independent",
        "seed": 0,
    }
    return synthesize(data, Schema(CLOSED), **{**given, **options})


def test_every_library_keeps_the_same_rows() -> None:
    import duckdb
    import polars
    import pyarrow

    frame = visits()
    expected = run(frame)
    connection = duckdb.connect()
    others = {
        "polars": polars.from_pandas(frame),
        "lazy": polars.from_pandas(frame).lazy(),
        "pyarrow": pyarrow.Table.from_pandas(frame),
        "duckdb": connection.from_df(frame),
    }
    for library, other in others.items():
        found = run(other)
        for one, two in zip(expected.measurements, found.measurements, strict=True):
            assert np.array_equal(one.values, two.values), library
        assert type(found.sample(3, rng=0)) is type(other)


def test_each_unit_is_bounded_and_its_column_is_gone() -> None:
    frame = visits()
    frame["mine"] = [f"{i}" for i in range(len(frame))]
    frame.loc[5:9, "id"] = [None, "", " ", None, float("nan")]
    schema = Schema({**CLOSED, "mine": OpenCategorical()})
    for k in (1, 3, 100):
        kept, excess = bounded_frame(frame, schema, "id", k, None)
        assert list(kept.columns) == ["sex", "job", "wage", "mine"]
        places = kept["mine"].astype(int).to_numpy()
        assert not set(places) & set(range(5, 10))
        owned = frame["id"].drop(index=range(5, 10))
        sizes = owned.value_counts()
        assert dict(owned.loc[places].value_counts()) == dict(sizes.clip(upper=k))
        assert excess.rows == (sizes - k).clip(0, 3 * k).sum()
    assert "id" not in run(frame).sample(5, rng=0).columns


@pytest.mark.parametrize(
    "ids",
    [[3, 3, 3, 4], ["3", "3", "3", "4"], [3.0, 3.0, 3.0, 4.0], ["3", "3.0", " 3.00", "4.0"]],
)
def test_numbers_and_their_texts_are_one_unit(ids: list[Any]) -> None:
    import pandas as pd

    frame = pd.DataFrame({"id": ids, "sex": ["F", "M", "F", "M"]})
    mixed = pd.DataFrame({"id": [3, "3.0", 3.0, "4"], "sex": ["F", "M", "F", "M"]})
    schema = Schema({"sex": Categorical(("F", "M"))})
    for each in (frame, mixed):
        assert len(bounded_frame(each, schema, "id", 1, None)[0]) == 2


def test_one_odd_name_of_a_unit_stops_nothing() -> None:
    """A list is a name like any other, by its text: what one row holds must not end a run."""
    import pandas as pd
    import pyarrow

    columns = {"id": [[1], [2], [1]], "sex": ["F", "M", "F"]}
    schema = Schema({"sex": Categorical(("F", "M"))})
    mixed = pd.DataFrame({**columns, "id": [[1], "x", "[1]"]})
    for frame in (pd.DataFrame(columns), pyarrow.table(columns), mixed):
        assert len(bounded_frame(frame, schema, "id", 1, None)[0]) == 2


@pytest.mark.parametrize("k", [1, 3])
def test_the_verdict_says_that_counts_are_of_bounded_rows(k: int) -> None:
    """Its error of a count is that of the rows kept, however many were left out; so is an answer's,
    whose interval of the number of records missed that of the data without a word.
    """
    frame = visits()
    kept = sum(min(k, rows) for rows in frame.groupby("id").size())
    release = run(frame, max_rows=k, epsilon=1e4)
    assert kept < len(frame) and release.model.total == pytest.approx(kept, abs=1)
    said = f"at most {k} row{'s' * (k > 1)} of each id; any others were left out"
    assert said in release.verdict.counts and said in html(release)
    assert said in str(release.ask("sex")) and said in str(release.table())
    assert "left out" not in str(run(frame, unit=None, max_rows=None).verdict)


def test_no_rows_and_rows_of_nobody() -> None:
    frame = visits()
    for empty in (frame.iloc[:0], frame.assign(id=None)):
        release = run(empty)
        assert release.ledger is not None
        assert release.ledger.neighbours == "add/remove of id (max_rows 3)"


def test_the_number_of_rows_left_out_is_noisy_and_paid_for() -> None:
    frame = visits()
    lost = bounded_frame(frame, Schema(CLOSED), "id", 3, None)[1]
    release = run(frame, report_dropped=True, epsilon=1e6)
    assert f"about {lost.rows} rows beyond 3" in release.reason
    assert release.ledger is not None
    entry = release.ledger.entries[0]
    assert (entry.step, entry.cost) == ("rows left out", 0.01 * release.ledger.budget.total)
    assert "left out" not in run(frame).reason


def test_noise_grows_with_the_rows_of_a_unit(tmp_path: Path) -> None:
    schema = {"columns": {n: column.to_dict() for n, column in CLOSED.items()}}
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema))

    def noise(k: int, accounting: str) -> float:
        return run(visits(), max_rows=k, accounting=accounting).measurements[0].stddev

    at = [noise(k, "zcdp") for k in (1, 2, 8)]
    assert at == pytest.approx([at[0], 2 * at[0], 8 * at[0]])
    # Under Gaussian accounting the discreteness of the noise weighs the less the wider it is.
    wider = [noise(k, "gaussian") / k for k in (1, 2, 8)]
    assert at[0] > wider[0] > wider[1] > wider[2] > 0.99 * wider[0]
    rows = plan(
        "independent", PAIRS, 1.0, 1e-6, neighbours="replace-one", rows=100, accounting="zcdp"
    )
    units = plan(
        "independent",
        PAIRS,
        1.0,
        1e-6,
        neighbours="replace-one",
        rows=100,
        accounting="zcdp",
        unit="id",
        max_rows=6,
    )
    assert units.max_rows == 6 and "6 times" in str(units) and "times that" not in str(rows)
    # The number of rows is not public any more, and takes a part.
    assert units.noise >= 6 * rows.noise


def test_a_ledger_counts_units_whatever_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "units.ledger"
    Ledger.create(path, Budget(1.0, 1e-6), neighbours="add/remove", unit="id")
    for k in (1, 5):
        run(visits(), max_rows=k, epsilon=0.3, delta=1e-7, ledger=Ledger.open(path))
    for other in (
        {"unit": None, "max_rows": None},
        {"unit": "sex2"},
        {"neighbours": "replace-one"},
    ):
        frame = visits().assign(sex2="x")
        with pytest.raises(InvalidInput, match="do not add up"):
            run(frame, epsilon=0.1, delta=1e-7, ledger=Ledger.open(path), **other)
    with pytest.raises(BudgetExceeded):
        run(visits(), ledger=Ledger.open(path))


@pytest.mark.parametrize("most", [3, np.int64(3)])
def test_a_release_of_units_is_saved_and_read(tmp_path: Path, most: Any) -> None:
    release = run(visits(), max_rows=most)
    release.save(tmp_path / "units.pgm")
    loaded = TableRelease.load(tmp_path / "units.pgm")
    assert loaded.ledger is not None
    assert loaded.ledger.neighbours == "add/remove of id (max_rows 3)"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"unit": None}, "without a unit"),
        ({"max_rows": None}, "max_rows must be"),
        ({"max_rows": 0}, "max_rows must be"),
        ({"max_rows": 2.0}, "max_rows must be"),
        ({"max_rows": True}, "max_rows must be"),
        ({"unit": "sex"}, "is not released"),
        ({"unit": "absent"}, "no column 'absent'"),
        ({"unit": None, "max_rows": None, "report_dropped": True}, "report_dropped"),
        ({"neighbours": "swap"}, "neighbours must be"),
    ],
)
def test_wrong_units_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        run(visits(), **options)


def test_a_frame_of_units_has_the_columns_of_the_schema() -> None:
    frame = visits().rename(columns={"wage": "wages"})
    with pytest.raises(InvalidInput, match="no column 'wage'.*did you mean 'wages'"):
        run(frame)


def test_codes_say_nothing_of_units() -> None:
    coded = Dataset(Schema(CLOSED).domain, {"sex": [0], "job": [0], "wage": [0]})
    with pytest.raises(InvalidInput, match="coded records"):
        run(coded)


def test_the_command_line_protects_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    def done(*arguments: str) -> Any:
        result = CliRunner().invoke(main, [*arguments, "--json"])
        assert result.exit_code == 0, result.output + result.stderr
        return json.loads(result.stdout)

    monkeypatch.chdir(tmp_path)
    frame = visits()
    frame.to_csv("visits.csv", index=False)
    with Path("visits.csv").open("a") as file:
        file.write("u1,F\n")  # a line that says nothing: of nobody
    described = {"columns": {n: column.to_dict() for n, column in CLOSED.items()}}
    Path("visits.json").write_text(json.dumps(described))
    options = ["--mechanism", "independent", "--schema", "visits.json"]
    of_units = ["--unit", "id", "--max-rows", "3"]
    at = {
        k: done(
            "plan",
            *options,
            "--rows",
            "200",
            "--unit",
            "id",
            "--max-rows",
            str(k),
            "--accounting",
            "zcdp",
        )["noise"]
        for k in (1, 4)
    }
    assert at[4] == pytest.approx(4 * at[1])
    done("ledger", "all.ledger", "--create", "--epsilon", "2", "--unit", "id")
    said = done(
        "synth", "visits.csv", *options, *of_units, "--report-dropped", "--ledger", "all.ledger",
        "--out", "out.csv",
    )  # fmt: skip
    assert said["ledger"]["neighbours"] == "add/remove of id (max_rows 3)"
    assert "rows beyond 3 of each unit" in said["reason"]
    assert Path("out.csv").read_text().splitlines()[0] == "sex,job,wage"
    assert done("ledger", "all.ledger")["neighbours"] == "add/remove of id"
    wrong = CliRunner().invoke(
        main, ["synth", "visits.csv", *options, "--unit", "id", "--save", "x"]
    )
    assert wrong.exit_code == 2 and "max_rows" in wrong.stderr
    assert math.isfinite(at[1])


def test_units_that_python_cannot_hold_are_units_like_others() -> None:
    """A day of the year 2739877 is far beyond Python's, and Arrow has it."""
    far = np.array([10**9, 5, 10**9, 5, -(10**9)], np.int32)
    days = pyarrow.Array.from_buffers(pyarrow.date32(), 5, [None, pyarrow.py_buffer(far.tobytes())])
    (numbers,) = unit_numbers([days])
    assert numbers.tolist() == [0, 1, 0, 1, 2]


def test_unreadable_identifiers_are_not_those_of_one_unit(tmp_path: Path) -> None:
    """Where bytes that could not be read became one sign, 1,000 persons were 480 units, and Müller
    and Möller one: the rows that were kept of one of them depended on the other.
    """
    numbers = [number.to_bytes(8, "big") for number in range(1000)]
    for persons in (pyarrow.array(numbers, pyarrow.binary(8)), np.array(numbers, object)):
        assert unit_numbers([persons])[0].tolist() == [*range(1000)]
    same = unit_numbers([np.array([b"a 1", "a 1", "\u00e9".encode(), "\u00e9"], object)])
    assert same[0].tolist() == [0, 0, 1, 1]
    schema, path = Schema({"sex": Categorical(("f", "m"))}).placed(), tmp_path / "people.csv"
    path.write_bytes("id,sex\nM\u00fcller,f\nM\u00f6ller,m\nSmith,f\n".encode("cp1252"))
    kept, _ = bounded_frame(read_frame(path, schema, also=["id"]), schema, "id", 1, None)
    assert kept.to_pydict() == {"sex": ["f"]}


def objects(*values: object) -> np.ndarray:
    held = np.empty(len(values), object)
    for place, value in enumerate(values):
        held[place] = value
    return held


def test_identifiers_of_unusual_types_are_told_apart_by_their_values() -> None:
    long = np.arange(2000.0)
    for one, other in (
        (np.array([1.00000001]), np.array([1.000000012])),
        (long, np.where(long == 1000, 0, long)),
        (memoryview(b"ab"), memoryview(b"ac")),
        (bytearray(b"ab"), bytearray(b"ac")),
    ):
        same = objects(one, other, type(one)(one) if isinstance(one, bytearray) else one[:])
        assert unit_numbers([same])[0].tolist() == [0, 1, 0]


def test_moments_are_units_on_every_clock_and_in_every_type() -> None:
    """Two moments an hour apart, which clocks that are set back show alike, and half a second."""
    hours = [datetime(2020, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1)]
    there = ZoneInfo("Europe/Berlin")
    local = pyarrow.array(hours, pyarrow.timestamp("us", there.key))
    of_zone = series_values(pyarrow.chunked_array([local]), "UTC")
    assert unit_numbers([of_zone])[0].tolist() == [0, 1]
    shown = objects(*hours, *[each.astimezone(there) for each in hours])
    assert unit_numbers([shown])[0].tolist() == [0, 1, 0, 1]
    frame = pyarrow.table({"sex": ["f", "f"], "id": local})
    kept, _ = bounded_frame(frame, Schema({"sex": Categorical(("f", "m"))}), "id", 1, None)
    assert kept.num_rows == 2
    plain = [datetime(2020, 1, 1, 12, 0, 0, part) for part in (500_000, 101_000, 10, 0)]
    kinds = [np.array(plain, f"M8[{unit}]") for unit in ("us", "ns")] + [objects(*plain)]
    first, *others = [each.tolist() for each in unit_numbers(kinds)]
    assert len({*first}) == 4 and others == [first, first]
    ends = objects(datetime.min.replace(tzinfo=timezone(timedelta(hours=5))), hours[0])
    assert unit_numbers([ends])[0].tolist() == [0, 1]
