"""Arguments of a wrong kind or size are refused by their names, before anything is spent."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mechanisms import (
    Budget,
    Cell,
    Curator,
    DualQuery,
    DualQueryLoss,
    Entry,
    Mst,
    Mwem,
    MwemPgm,
    Predicate,
    Predicates,
    TableRelease,
    Workload,
    adapt,
    configure,
    linear_thresholds,
    plan,
    run,
    synthesize,
    target_biased,
)
from mechanisms.families.histogram import FullDomain, HistogramModel
from mechanisms.families.product_mixture import ProductMixtureModel
from mechanisms.families.tables import TablesModel
from mechanisms.privacy.neighbours import relation
from mechanisms.queries.query_sets import QuerySet
from pgmkit import Dataset, Domain, Integer, InvalidInput, Measurement, Schema, estimate

DOMAIN = Domain({"a": 2, "b": 3})
DATA = Dataset(DOMAIN, {"a": [0, 1, 1], "b": [2, 0, 1]})
TABLE = np.ones((2, 3))
HISTOGRAM = HistogramModel(FullDomain(DOMAIN), TABLE, 6)
MIXTURE = ProductMixtureModel(DOMAIN, [[0.5, 0.5, 0.2, 0.3, 0.5]], 6)
TABLES = TablesModel(DOMAIN, {("a", "b"): TABLE}, 6)


def points(value: object) -> object:
    rng: Any = np.random.default_rng(0)
    return linear_thresholds(DOMAIN, ["b"], "a", 2, rng, np.array([[value]]))


def pairs(**parts: Any) -> Predicates:
    return Predicates(DOMAIN, [Predicate(**parts)])


def sets(*fields: Any) -> Workload:
    return Workload.of(DOMAIN, [QuerySet(*fields)])


def entry(**fields: Any) -> object:
    usual: Any = {"name": "x", "module": "os", "function": "getcwd", "settings": "X"}
    return Entry(**usual | {"summary": "nothing"} | fields).load()


def rounds(measured: Any) -> object:
    model: Any = HISTOGRAM
    return adapt(
        model, [], select=lambda now, last: [("a",)], measure=lambda picked: measured, update=min
    )


WRONG: dict[str, tuple[str, Callable[[], object]]] = {
    "weights in a table": ("weights", lambda: Workload(DOMAIN, [["a"]], np.ones((1, 1)))),
    "weights of texts": ("weights", lambda: Workload(DOMAIN, [["a"]], np.array(["x"]))),  # type: ignore[arg-type]
    "a factor of 0": ("factor", lambda: target_biased(DOMAIN, 2, "a", 0)),
    "a weight of a text": ("weight", lambda: sets(("a",), ("prefix",), "x")),
    "a clique of a number": ("clique", lambda: sets(3, ("prefix",))),
    "queries of one attribute for two": ("a set must", lambda: sets(("a", "b"), ("prefix",))),
    "a matrix of another width": ("queries along 'a'", lambda: sets(("a",), (np.eye(3),))),
    "queries of no name": ("queries along 'b'", lambda: sets(("b",), ("none",))),
    "codes that are one pair": ("codes", lambda: pairs(codes=("a", 1))),
    "codes without values": ("codes", lambda: pairs(codes=(("a",),))),
    "codes of nothing": ("codes", lambda: pairs(codes=None)),
    "weights of nothing": ("weights", lambda: pairs(weights=None)),
    "a bound of a text": ("bound", lambda: pairs(bound="1")),
    "points of texts": ("points", lambda: points("x")),
    "a module of nothing": ("module", lambda: entry(module=None)),
    "a module without a name": ("'x' cannot be loaded", lambda: entry(module="")),
    "a function of nothing": ("function", lambda: entry(function=None)),
    "a mechanism of an array": ("unknown mechanism", lambda: configure(np.ones(2))),  # type: ignore[arg-type]
    "neighbours in a list": ("neighbours", lambda: relation(["add/remove"])),  # type: ignore[arg-type]
    "rounds that measure a number": ("the result of measure", lambda: rounds(5)),
    "a sum of costs of NaN": ("cost", lambda: Budget(1.0).epsilon_spent(np.nan)),
    "a learning rate beyond floats": (
        "learning_rate",
        lambda: configure("gem", learning_rate=10**400),
    ),
    "a level beyond floats": ("level", lambda: configure("mixture", level=2000.0)),
    "a rate of weights that is lost": ("eta", lambda: DualQuery(eta=1e-300)),
    "a rate beyond float32": ("learning_rate", lambda: configure("mixture", learning_rate=1e300)),
    "a shrinkage beyond float32": ("shrinkage", lambda: configure("mixture", shrinkage=1e300)),
    "more thresholds than are drawn": ("directions", lambda: configure("rap++", directions=10**7)),
    "more records than memory holds": ("samples", lambda: configure("fem", samples=10**30)),
    "more draws than memory holds": ("samples", lambda: DualQuery(samples=10**30)),
    "evidence of nothing": ("evidence", lambda: HISTOGRAM.given(None)),  # type: ignore[arg-type]
    "evidence in a list": ("evidence", lambda: MIXTURE.given(["a"])),  # type: ignore[arg-type]
    "marginals of a number": ("cliques", lambda: HISTOGRAM.marginals(5)),  # type: ignore[arg-type]
    "marginals of nothing": ("cliques", lambda: MIXTURE.marginals(None)),  # type: ignore[arg-type]
    "marginals of one attribute": ("cliques", lambda: TABLES.marginals("ab")),
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_a_wrong_argument_is_refused_by_its_name(what: str) -> None:
    named, call = WRONG[what]
    with pytest.raises(InvalidInput, match=re.escape(named)):
        call()


@pytest.mark.parametrize("accounting", ["zcdp", "gaussian"])
@pytest.mark.parametrize("size", [(1e-320, 1e-300), (1e-100, 1e-300), (2e100, 1e-6), (1e308, 0.5)])
def test_budgets_that_no_noise_can_be_computed_for_are_refused(
    size: tuple[float, float], accounting: Any
) -> None:
    with pytest.raises(InvalidInput, match="no noise can be computed"):
        Budget(*size, accounting=accounting)


def test_the_largest_and_the_smallest_budgets_have_noise() -> None:
    for budget in (Budget(1e100, 1e-6), Budget(1e-40, 1e-9), Budget(1e100), Budget(1e-100)):
        assert budget.least_noise in ("zcdp", "gaussian")
        owner = Curator(DATA, budget, neighbours="replace-one", seed=0)
        assert 0 <= owner.scale(budget.total) < np.inf


def test_values_of_a_column_are_texts_and_numbers_of_rows() -> None:
    owner = Curator(DATA, Budget(1.0, 1e-6, reserved=1e-7), neighbours="replace-one", seed=0)
    wrong: list[Any] = [np.array(["x", None], dtype=object), {"x": 2.5}, {("x",): 2}]
    for values in wrong:
        with pytest.raises(InvalidInput, match="values must be texts"):
            owner.discover(values, 0.001, 1e-8)
    assert owner.ledger.entries == ()


def test_settings_take_the_numbers_of_numpy() -> None:
    made = Mwem(rounds=np.int64(3), select_share=np.float32(0.25))  # type: ignore[arg-type]
    assert type(made.rounds) is int and made == Mwem(rounds=3, select_share=0.25)
    assert type(MwemPgm(model_mb=np.float64(8)).model_mb) is float
    with pytest.raises(InvalidInput, match=r"rounds must be a whole number.*got 2\.0"):
        Mwem(rounds=np.float64(2.0))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"select_share must be .*got True"):
        Mst(select_share=True)


@pytest.mark.filterwarnings("ignore:missing and unreadable")
@pytest.mark.parametrize("number", [np.float32(0.5), np.int64(1), Fraction(1, 3)])
def test_releases_of_other_numbers_are_planned_and_saved(tmp_path: Path, number: Any) -> None:
    """The release could not be saved, after its budget was spent."""
    options: dict[str, Any] = {"epsilon": number, "delta": Fraction(1, 10**6)}
    assert plan("mst", Workload(DOMAIN, [("a", "b")]), **options, neighbours="add/remove", rows=9)
    schema = Schema({"a": Integer(0, 1), "b": Integer(0, 2)})
    frame = {name: np.repeat(DATA.columns[name], 40) for name in DOMAIN}
    made: list[TableRelease] = []
    for pairs_of in (2, np.int64(2)):
        usual: dict[str, Any] = {"mechanism": "independent", "workload": pairs_of, "seed": 0}
        made.append(synthesize(pd.DataFrame(frame), schema, **options, **usual))
    made[0].save(tmp_path / "r.pgm")
    ledger = TableRelease.load(tmp_path / "r.pgm").ledger
    assert ledger is not None and ledger.budget.epsilon == float(number)
    drawn = [each.codes(5, rng=1).columns["a"].tolist() for each in made]
    assert drawn[0] == drawn[1]


def test_masked_estimates_are_refused_before_a_charge() -> None:
    owner = Curator(DATA, Budget(1.0), neighbours="add/remove", seed=0)
    masked: Any = {("a", "b"): np.ma.masked_less(np.arange(6.0).reshape(2, 3), 2)}
    said = r"the estimate of \('a', 'b'\) must be an array without masked entries"
    with pytest.raises(InvalidInput, match=said):
        owner.choose_cells([("a", "b")], masked, 0.1)
    assert owner.ledger.entries == ()


def test_values_of_a_mapping_are_weights_and_shares() -> None:
    parts: Any = {("a",): 0.25, ("b",): 0.75}
    assert Workload(DOMAIN, parts, parts.values()) == Workload(DOMAIN, parts, [0.25, 0.75])
    owner = Curator(DATA, Budget(1.0), neighbours="add/remove", seed=0)
    queries = {("a",): np.eye(2), ("b",): np.eye(3)}
    assert len(owner.measure_together(queries, parts.values(), 0.5)) == 2


def test_the_weights_of_a_predicate_may_be_a_list() -> None:
    weights: Any = [("b", 1.0)]
    assert pairs(weights=weights, bound=0.5).counts(DATA).tolist() == [2]


def test_cells_of_a_clique_in_a_list_are_measured_and_left_out() -> None:
    owner = Curator(DATA, Budget(1.0), neighbours="replace-one", seed=0)
    cell: Any = Cell(["a"], 1)  # type: ignore[arg-type]
    assert owner.measure_cells([cell], 0.1)[0].clique == ("a",)
    chosen = owner.choose_cells([("a",)], {("a",): np.zeros(2)}, 0.1, exclude=[cell])
    assert chosen == [Cell(("a",), 0)]


def test_a_loss_of_draws_names_the_clique_that_no_measurement_has() -> None:
    pairs = Workload(DOMAIN, [("a",), ("b",)])
    release = run(DualQuery(max_rounds=2), DATA, pairs, 1.0, neighbours="replace-one", seed=0)
    alone = [Measurement(("a",), [1.0, 2.0], 1.0)]
    with pytest.raises(InvalidInput, match=re.escape("workload's clique ('b',)")):
        estimate(DOMAIN, alone, loss=DualQueryLoss(release, pairs))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": 10**400}, r"rows must be"),
        ({"rows": 0}, r"rows must be"),
        ({"settings": {1: 2}}, "mst has no setting '1'"),
    ],
)
def test_a_plan_refuses_what_a_run_would(wrong: dict[str, Any], message: str) -> None:
    """They ended in an OverflowError after the dry run, and in Python's TypeError."""
    options: dict[str, Any] = {"neighbours": "add/remove", "rows": 9, **wrong}
    with pytest.raises(InvalidInput, match=message):
        plan("mst", Workload(DOMAIN, [("a", "b")]), 1.0, 1e-6, **options)
