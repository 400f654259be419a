"""What is refused is refused before the first charge, also where columns are still to be found."""

from __future__ import annotations

import inspect
import math
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mechanisms.dispatch import run_on
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import Ledger
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.registry import configure
from mechanisms.synthesis.open_columns import ColumnsFound
from mechanisms.synthesis.pipeline import synthesize
from mechanisms.synthesis.request import Request
from mechanisms.workload import k_way
from pgmkit import Categorical, Forbid, Integer, Numeric, OpenCategorical, Schema
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.records.dataset import Dataset

RNG = np.random.default_rng(0)
ROWS = 300
FRAME = pd.DataFrame(
    {
        "job": RNG.choice(["cook", "smith", "clerk"], ROWS),
        "wage": RNG.random(ROWS) * 30,
        "sex": RNG.choice(["F", "M"], ROWS),
        "kids": RNG.integers(0, 4, ROWS),
        "id": RNG.integers(0, 100, ROWS),
    }
)
OPEN = Schema(
    {
        "job": OpenCategorical(),
        "wage": Numeric(0, 30, bins=4, quantiles=True),
        "sex": Categorical(("F", "M")),
        "kids": Integer(0, 3),
    }
)
RULED_OUT = [Forbid({"sex": "F", "kids": 3})]
OTHER_DOMAIN = Domain({"job": 3, "wage": 4, "sex": 2, "kids": 4})
CODED = Dataset(OTHER_DOMAIN, {name: [0] for name in OTHER_DOMAIN})


class Odd:
    """Of no use anywhere."""


ODD: list[Any] = [Odd(), b"x", 1j, {1}, np.array([1, 2]), [None], "nonsense", -3.5]
WRONG: dict[str, list[Any]] = {
    "schema": [OPEN.to_dict(), None, Schema(OPEN.columns, [Forbid({"sex": "F", "job": "cook"})])],
    "data": [None, 3, [FRAME], {"job": ["a"]}, FRAME.drop(columns="job"), CODED],
    "workload": [True, 0, 99, 2.5, [], "job", [("job", "job")], [("job", "age")], [3], [["job", 3]],
                 [("job", "sex"), ("sex", "job")], k_way(OTHER_DOMAIN, 2), *ODD],
    "target": ["age", 3, *ODD],
    "mechanism": ["magic", None, 3, ["mst"], "pmw-pub", *ODD],
    "settings": [3, [("rounds", 3)], {"rounds": 3}, {3: 3}, *ODD],
    "public": [3, [FRAME], FRAME.iloc[:0], FRAME.rename(columns=str.upper), CODED, FRAME[["job"]]],
    "seconds": [0, -1, math.nan, *ODD],
    "memory_mb": [0, -1, math.nan, *ODD],
    "strict": ["no", 1, None, *ODD],
    "report_dropped": ["no", True, 1, *ODD],
    "seed": [-1, 1.5, True, *ODD],
    "progress": [3, *ODD],
    "ledger": ["people.ledger", 3, *ODD],
    "accounting": ["renyi", 3, *ODD],
    "unit": ["id", "job", "age", 3, *ODD],
    "max_rows": [2, 0, *ODD],
    "neighbours": ["swap", 3, ["add/remove"], None, *ODD],
    "epsilon": [0, -1, math.nan, math.inf, None, "1", *ODD],
    "delta": [0, -1, 1.0, math.nan, None, *ODD],
}  # fmt: skip
TOGETHER: list[dict[str, Any]] = [
    {"mechanism": "mwem+pgm", "settings": {"rounds": -1}},
    {"mechanism": "independent", "settings": {"model_mb": 3}},
    {"mechanism": "aim", "settings": {"model_mb": 1e-9}},
    {"mechanism": "clique-tree", "settings": {"model_mb": 1e9}},
    {"mechanism": "matrix", "settings": {"queries": {"age": "prefix"}}},
    {"mechanism": "matrix", "settings": {"queries": {"kids": "median"}}},
    {"mechanism": "rap++", "settings": {"numeric": ("age",)}},
    {"mechanism": "rap++", "settings": {"labels": ("age",)}},
    {"mechanism": "rap", "settings": {"rounds": 1000, "queries": 1000}},
    {"mechanism": "mwem", "target": "kids"},
    {"mechanism": "fem", "target": "kids"},
    {"mechanism": "mst", "public": FRAME},
    {"mechanism": "pmw-pub", "public": FRAME[["job"]]},
    {"mechanism": "gem-pub", "public": FRAME[["job"]]},
    {"mechanism": "pep-pub", "public": FRAME.assign(wage=99.0), "strict": True},
    {"mechanism": "pep-pub", "public": FRAME.assign(job=None), "strict": True},
    {"mechanism": "gem-pub", "public": FRAME, "settings": {"queries": 10**6}},
    {"mechanism": "dual-query", "accounting": "gaussian"},
    {"mechanism": "mixture", "schema": Schema(OPEN.columns, RULED_OUT)},
    {"schema": Schema(OPEN.columns, RULED_OUT), "public": FRAME},
    {"unit": "id", "max_rows": 0},
    {"unit": "id", "max_rows": 1.5},
    {"unit": "job", "max_rows": 2},
    {"unit": "age", "max_rows": 2},
    {"unit": ["id"], "max_rows": 2},
]
ADD_REMOVE_ONLY: list[dict[str, Any]] = [
    {"mechanism": name, "settings": {"one_way_share": 0.0}}
    for name in ("rap", "dual-query", "mwem", "gem")
]


def assert_refused(folder: Path, relation: str, change: dict[str, Any]) -> None:
    path = folder / "all.ledger"
    if not path.exists():
        Ledger.create(path, Budget(4.0, 1e-5, 1e-6), neighbours=relation)
    before = path.read_bytes()
    given: dict[str, Any] = {
        "data": FRAME, "schema": OPEN, "epsilon": 1.0, "delta": 1e-6, "neighbours": relation,
        "ledger": Ledger.open(path), **change,
    }  # fmt: skip
    with pytest.raises(InvalidInput):
        synthesize(given.pop("data"), given.pop("schema"), **given)
    assert path.read_bytes() == before


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_costs_nothing(name: str, relation: str, tmp_path: Path) -> None:
    for wrong in WRONG[name]:
        assert_refused(tmp_path, relation, {name: wrong})


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_what_does_not_go_together_costs_nothing(relation: str, tmp_path: Path) -> None:
    for change in [*TOGETHER, *(ADD_REMOVE_ONLY if relation == "add/remove" else [])]:
        assert_refused(tmp_path, relation, change)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_several_wrong_arguments_cost_nothing(data: st.DataObject, tmp_path: Path) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(WRONG)), min_size=1, max_size=4, unique=True))
    assert_refused(
        tmp_path,
        "add/remove",
        {name: WRONG[name][data.draw(st.integers(0, len(WRONG[name]) - 1))] for name in names},
    )


def test_auto_and_rows_left_out_are_paid_for_only_where_the_mechanism_runs(tmp_path: Path) -> None:
    """Without open columns these are the first charges."""
    closed = Schema({n: column for n, column in OPEN.columns.items() if column.resolved})
    wide = Schema({f"c{i}": Integer(0, 9) for i in range(12)})
    codes = pd.DataFrame({name: [1, 2, 3] for name in wide.columns})
    assert_refused(tmp_path, "add/remove", {"schema": wide, "data": codes, "workload": 12})
    assert_refused(
        tmp_path,
        "add/remove",
        {"schema": closed, "mechanism": "rap", "target": "kids", "unit": "id", "max_rows": 2,
         "report_dropped": True},
    )  # fmt: skip


def test_auto_ends_with_a_release_where_more_labels_are_found_than_were_assumed(
    tmp_path: Path,
) -> None:
    """No pair of them fits into so little memory, which aim refuses after labels were paid for."""
    rows = np.arange(400 * 12)
    frame = pd.DataFrame({"a": rows % 400, "b": rows // 7 % 400}).astype(str)
    schema = Schema({"a": OpenCategorical(), "b": OpenCategorical()})
    ledger = Ledger.create(tmp_path / "one", Budget(200.0, 1e-5, 1e-6), neighbours="add/remove")
    release = synthesize(frame, schema, epsilon=200.0, delta=1e-5, memory_mb=359, ledger=ledger)
    steps = [each.step for each in ledger.entries]
    # No first look, which would be for pairs alone.
    found = ["discover a", "discover b", "auto: measure total"]
    assert steps == [f"run 1: {each}" for each in (*found, "measure a", "measure b")]
    assert "aim says: no workload clique fits" in release.reason


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("accounting", ["zcdp", "gaussian"])
def test_what_was_found_serves_another_run_with_the_rest_of_the_budget(
    relation: str, accounting: Any, tmp_path: Path
) -> None:
    """Four hundred labels each were not assumed, and are too many for a histogram of all cells."""
    rows = np.arange(400 * 12)
    names = ["a", "b", "c", "d"]
    frame = pd.DataFrame({name: (rows % 400).astype(str) for name in names})
    schema = Schema({name: OpenCategorical() for name in names})
    whole = Budget(200.0, 1e-5, 1e-6, accounting)
    ledger = Ledger.create(tmp_path / "one", whole, neighbours=relation)
    shared: dict[str, Any] = {"neighbours": relation, "ledger": ledger}
    with pytest.raises(ColumnsFound, match="25,856,961,601") as refused:
        synthesize(
            frame, schema, mechanism="mwem", epsilon=200.0, delta=1e-5, accounting=accounting,
            **shared,
        )  # fmt: skip
    # A worker hands it to its parent process.
    found = pickle.loads(pickle.dumps(refused.value)).schema
    assert [each.step for each in ledger.entries] == [f"run 1: discover {name}" for name in names]
    assert not found.unresolved and set(found.domain.sizes.values()) == {401}
    said = re.search(
        r"epsilon=([\d.]+), delta=([\de.-]+) and accounting='(\w+)'", str(refused.value)
    )
    assert said and said[3] == accounting
    epsilon, delta = float(said[1]), float(said[2])
    release = synthesize(
        frame, found, mechanism="independent", epsilon=epsilon, delta=delta, accounting=accounting,
        **shared,
    )  # fmt: skip
    assert release.schema.columns.keys() == schema.columns.keys()
    # Nothing that was paid for is lost, and what is stated leaves nothing that counts.
    assert 0.9995 * whole.total < ledger.spent <= whole.total


def test_what_cannot_be_said_of_any_labels_is_refused_before_they_are_found() -> None:
    for wrong in [{"missing": ("(other)",)}, {"outside": "cook"}, {"other": ""}]:
        with pytest.raises(InvalidInput):
            OpenCategorical(**wrong)  # type: ignore[arg-type]


def test_too_many_codes_for_a_strategy_are_refused_before_any_matrix_of_them_exists(
    tmp_path: Path,
) -> None:
    schema = Schema({"place": Integer(0, 999_999), "sex": Categorical(("F", "M"))})
    frame = pd.DataFrame({"place": [3, 4], "sex": ["F", "M"]})
    ledger = Ledger.create(tmp_path / "one", Budget(1.0, 1e-5), neighbours="add/remove")
    with pytest.raises(ModelTooLarge, match="strategy for 'place', which has 1,000,000 codes"):
        synthesize(frame, schema, epsilon=1.0, delta=1e-5, mechanism="matrix", ledger=ledger)
    assert not ledger.entries


ONCE = ["aim", "clique-tree", "gaussian", "mst", "mwem+pgm", "pair-graph", "rap++"]


@pytest.mark.parametrize("name", [*ONCE, "dual-query", "fem", "gem", "mwem", "pmw-pub", "rap"])
def test_tables_too_large_to_count_are_refused_before_the_first_charge(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Curator counts at most 2 GiB at once, here 64 bytes."""
    monkeypatch.setattr("pgmkit.records.counting.MEMORY_LIMIT", 64)
    data = Dataset(Domain({"a": 3, "b": 3, "c": 2}), {"a": [0], "b": [1], "c": [1]})
    curator = Curator(data, Budget(1.0, 1e-6), neighbours="add/remove", seed=0)
    public = {"public": data} if name == "pmw-pub" else {}
    with pytest.raises(ModelTooLarge, match="the marginal over .'a', 'b'. .9 cells. needs 72 byte"):
        run_on(curator, *configure(name), [("c",), ("a", "b")], **public)
    assert not curator.ledger.entries


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-10, 0.0), (1e-9, 1e-9), (1e-8, 1e-300)])
def test_noise_beyond_what_selections_compare_is_refused_first(
    epsilon: float, delta: float, tmp_path: Path
) -> None:
    """`aim` would refuse its own estimates after its first charges."""
    schema = Schema({"a": Integer(0, 3), "b": Integer(0, 3), "c": Integer(0, 3)})
    frame = pd.DataFrame({name: [0, 1, 2, 3] * 5 for name in "abc"})
    ledger = Ledger.create(tmp_path / "one", Budget(epsilon, delta), neighbours="add/remove")
    with pytest.raises(InvalidInput, match="noise of .* records in the counts of a single table"):
        synthesize(frame, schema, epsilon=epsilon, delta=delta, mechanism="aim", ledger=ledger)
    assert not ledger.entries


def test_noise_of_units_with_too_many_rows_is_refused_first() -> None:
    schema = Schema({"a": Integer(0, 3)})
    most = {"epsilon": 1.0, "delta": 1e-6, "unit": "id"}
    assert Request(schema=schema, max_rows=10**6, **most).relation.max_rows == 10**6
    with pytest.raises(InvalidInput, match="larger epsilon, or a smaller max_rows"):
        Request(schema=schema, max_rows=10**8, **most)


def test_where_all_columns_are_open_no_value_can_be_unread() -> None:
    frame = pd.DataFrame({"a": ["x"] * 50 + ["y"] * 50})
    schema = Schema({"a": OpenCategorical()})
    release = synthesize(frame, schema, epsilon=9.0, delta=1e-6, report_unread=True, seed=0)
    assert release.ledger.entries[0].step == "discover a"


@pytest.mark.parametrize("mechanism", ["mst", "auto", "independent", "aim", "mwem+pgm"])
def test_where_nothing_is_found_the_run_ends_with_a_release(mechanism: str) -> None:
    """All columns open and no value frequent enough: what was paid for is not lost."""
    frame = pd.DataFrame({"a": ["x", "y", "z"], "b": ["u", "v", "w"]})
    schema = Schema({"a": OpenCategorical(), "b": OpenCategorical()})
    release = synthesize(
        frame, schema, epsilon=1.0, delta=1e-6, mechanism=mechanism, seed=0, workload=2
    )
    assert release.sample(3, rng=0).shape == (3, 2)


def test_an_iterator_of_cliques_is_read_once() -> None:
    release = synthesize(
        FRAME,
        OPEN,
        epsilon=1.0,
        delta=1e-6,
        mechanism="mst",
        workload=(clique for clique in [("job", "sex"), ("kids", "sex")]),
        seed=0,
    )
    assert {m.clique for m in release.measurements} >= {("job",), ("kids",)}


def test_a_request_has_the_defaults_of_synthesize() -> None:
    front = inspect.signature(synthesize).parameters
    request = inspect.signature(Request).parameters
    assert list(front)[1:] == list(request), "all but the data, in the same order"
    assert {n: front[n].default for n in request} == {
        n: each.default for n, each in request.items()
    }


def test_a_path_is_told_how_it_is_read() -> None:
    for path in ("people.csv", Path("people.csv")):
        with pytest.raises(InvalidInput, match=r"'people.csv'; read the file by encode_file"):
            synthesize(path, OPEN, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    ("relation", "delta", "warned"),
    [
        ("add/remove", 0.5, True),
        ("add/remove", 2 / ROWS, True),
        ("add/remove", 1e-3, False),  # the number of rows is private
        ("replace-one", 1.1 / ROWS, True),
        ("replace-one", 0.9 / ROWS, False),
        ("replace-one", 0.0, False),
    ],
)
def test_a_large_delta_is_warned_of(relation: str, delta: float, warned: bool) -> None:
    schema = Schema({"sex": OPEN.columns["sex"], "kids": OPEN.columns["kids"]})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        synthesize(
            FRAME, schema, epsilon=1.0, delta=delta, neighbours=relation, mechanism="independent"
        )
    said = [each for each in seen if "delta" in str(each.message)]
    assert bool(said) == warned
    assert all(each.filename == __file__ for each in said), "it points to the caller"
