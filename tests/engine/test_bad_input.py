"""One clear error at the boundary for each kind of bad input, before anything large is made."""

import math
import warnings
from collections.abc import Callable
from copy import copy
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from work import calls

from pgmkit import (
    Dataset,
    Domain,
    Factor,
    FactoredQuery,
    FactorGraph,
    GraphicalModel,
    Kronecker,
    Measurement,
    PgmkitError,
    Schema,
    Zeros,
    error_bars,
    estimate,
    estimate_many,
    estimate_total,
    queries,
    uai,
)
from pgmkit.errors import InvalidInput, ModelTooLarge, TotalUndetermined
from pgmkit.graphs.junction_tree import check_fits, junction_tree
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.losses import Squared
from pgmkit.runtime.arguments import float_array
from pgmkit.uncertainty.measured import MeasuredBars

DOMAIN = Domain({"age": 4, "sex": 2})
GOOD = Measurement(("sex",), [5.0, 6.0], 1.0)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "3", None, float("nan")])
def test_sizes(size: object) -> None:
    with pytest.raises(InvalidInput, match="'age'"):
        Domain({"age": size})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((("sex",), [np.nan, 1.0], 1.0), "sex"),
        ((("sex",), [np.inf, 1.0], 1.0), "sex"),
        ((("sex",), [1.0, 1.0], 0.0), "stddev"),
        ((("sex",), [1.0, 1.0], -1.0), "stddev"),
        ((("sex",), [1.0, 1.0], np.nan), "stddev"),
        (("sex", [1.0, 1.0], 1.0), "string"),
        ((("sex", "sex"), [1.0], 1.0), "sex"),
        ((("sex",), [], 1.0), "sex"),
        ((("sex",), [1.0, 1.0], 1.0, np.eye(3)), "3"),
        ((("sex",), [1.0], 1.0, np.array([[np.nan, 1.0]])), "matrix"),
    ],
)
def test_measurements(arguments: tuple, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Measurement(*arguments)


@pytest.mark.parametrize("index", [["y", "x"], [1, 0]])
def test_numbers_with_labels_of_their_own_are_refused(index: list[object]) -> None:
    """`value_counts` orders them by frequency: the counts of two values would be exchanged."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    counts, domain = pandas.Series([0.75, 0.25], index=index), Domain({"a": 2})
    asks: list[Callable[[Any], object]] = [
        lambda given: Measurement(("a",), given, 1.0),
        lambda given: Factor(domain, given),
        lambda given: FactorGraph(domain, [(("a",), given)]),
        lambda given: FactorGraph.from_conditionals({"a": (("a",), given)}),
        lambda given: FactorGraph(domain, []).posterior(likelihood={"a": given}),
        lambda given: FactoredQuery({"a": given}),
        lambda given: queries.mean(2, given),
    ]
    of_series: list[Callable[[Any], object]] = [
        lambda given: Zeros(("a",), given > 0.5),
        lambda given: Measurement(("a",), [1.0], 1.0, given.to_frame().T.reset_index(drop=True)),
        lambda given: queries.compress((given > 0.5).astype(int)),
    ]
    for ask in [*asks, *of_series]:
        for wrong in (counts, counts.to_dict())[: 2 if ask in asks else 1]:
            with pytest.raises(InvalidInput, match="with labels of its own; order it"):
                ask(wrong)
        ask(counts.reset_index(drop=True))


@pytest.mark.parametrize(
    ("measurement", "message"),
    [
        (Measurement(("height",), [1.0, 1.0], 1.0), "height"),
        (Measurement(("sex",), [1.0], 1.0), "2"),
        (Measurement(("sex",), [1.0, 2.0, 3.0], 1.0), "2"),
        (Measurement(("age", "sex"), np.ones((2, 4)), 1.0), "4"),
        (Measurement(("sex",), [1.0], 1.0, np.ones((1, 3))), "3"),
    ],
)
def test_measurements_that_do_not_fit_the_domain(measurement: Measurement, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        estimate(DOMAIN, [GOOD, measurement], total=10)


def test_nothing_measured() -> None:
    with pytest.raises(TotalUndetermined, match="there are no measurements"):
        estimate(DOMAIN, [])
    with pytest.raises(InvalidInput, match="loss is a callable"):
        estimate(DOMAIN, [], total=10, loss=lambda tables: torch.tensor(0.0))
    with pytest.raises(InvalidInput, match="Measurement records"):
        estimate(DOMAIN, [("sex", [1.0, 2.0])], total=10)  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="must be a pgmkit Domain"):
        estimate({"sex": 2}, [GOOD], total=10)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("method", ["auto", "dual_averaging", "lbfgs"])
def test_a_callable_loss_without_a_finite_value(wrong: float, method: str) -> None:
    with pytest.raises(InvalidInput, match=f"returns a finite number .* got {wrong}"):
        estimate(DOMAIN, [GOOD], total=10, loss=lambda t: wrong * t["sex",].sum(), method=method)


def test_totals() -> None:
    undetermined = Measurement(("sex",), [1.0], 1.0, np.array([[1.0, 0.0]]))
    with pytest.raises(TotalUndetermined, match="total"):
        estimate(DOMAIN, [undetermined])
    with pytest.raises(TotalUndetermined):
        estimate_total([undetermined])
    with pytest.raises(InvalidInput, match=r"not above 0.*total="):
        estimate(DOMAIN, [Measurement(("sex",), [-5.0, -6.0], 1.0)])


def test_too_large_is_refused_at_once() -> None:
    domain = Domain({f"x{i}": 1000 for i in range(8)})
    ones = [Measurement((name,), np.ones(1000), 1.0) for name in domain]
    wide = Measurement(("x0", "x1", "x2", "x3"), [1.0], 1.0, [np.ones((1, 1000))] * 4)

    def refused() -> None:
        with pytest.raises(ModelTooLarge, match=r"x0.*1,000,000,000,000 cells.*limit"):
            estimate(domain, [*ones, wide], total=1000)
        with pytest.raises(ModelTooLarge, match="memory_limit"):
            estimate(domain, ring, total=1000, memory_limit=2**30)

    rng = np.random.default_rng(0)
    ring = [
        Measurement((f"x{i}", f"x{j}"), [rng.normal()], 1.0, [np.ones((1, 1000))] * 2)
        for i in range(8)
        for j in range(i)
    ]
    assert calls(refused) < 50_000


@pytest.mark.parametrize("total", [11.0, None])
@pytest.mark.parametrize(
    ("value", "stddev", "other"),
    [
        (5.0, 1e300, 1e300),
        (5.0, 1e300, 1.0),
        (5.0, 1e-300, 1e-300),
        (5.0, 1e-300, 1.0),
        (5.0, 5e-324, 1.0),
        (5.0, 1e-150, 1e150),
        (5.0, 1e150, 1e-150),
        (1e300, 1.0, 1.0),
        (-1e300, 1.0, 1.0),
        (1e300, 1e300, 1.0),
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda *given, **options: estimate(*given, **options),
        lambda *given, **options: estimate(*given, inference="region", **options),
        lambda domain, measured, **options: estimate_many(domain, [measured] * 2, **options),
    ],
    ids=["exact", "region", "many"],
)
def test_extreme_numbers(
    call: Callable[..., object], value: float, stddev: float, other: float, total: float | None
) -> None:
    """Squares of these overflow or vanish: none of it gets past the boundary, nor do warnings."""
    measured = [
        Measurement(("age", "sex"), np.full((4, 2), value), stddev),
        Measurement(("sex",), [5.0, 6.0], other),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidInput, match=r"2\^-?53|must lie between|not above 0"):
            call(DOMAIN, measured, total=total)


def test_arrays_of_objects_are_refused_without_their_values() -> None:
    for values in ([3.0, "Alice"], [3.0, b"Alice"], [3.0, {"Alice"}]):
        with pytest.raises(InvalidInput, match="^weights must be an array of numbers") as caught:
            float_array(np.array(values, dtype=object), "weights")
        assert "Alice" not in str(caught.value)


def test_one_family_of_errors() -> None:
    assert issubclass(InvalidInput, PgmkitError) and issubclass(InvalidInput, ValueError)
    assert issubclass(ModelTooLarge, PgmkitError) and issubclass(ModelTooLarge, MemoryError)


def test_warm_start_of_another_domain_or_clique() -> None:
    model = estimate(DOMAIN, [GOOD], total=10)
    other = Domain({"sex": 2, "age": 4})
    with pytest.raises(InvalidInput, match="another domain"):
        estimate(other, [GOOD], total=10, warm_start=model)
    age = Measurement(("age",), [1.0] * 4, 1.0)
    with pytest.raises(InvalidInput, match="no measured clique contains"):
        estimate(DOMAIN, [age], total=10, warm_start=model)


MANY = Domain({f"x{i}": 10 for i in range(5000)})
FEWER = MANY.project(list(MANY)[:500])
"""The cells of its joint table have more digits than Python writes, and exceed every float."""
ENDLESS = Domain({"a": 10**400, "b": 2})
"""Its size is above every float and above the length that an array can have."""
MODEL = estimate(DOMAIN, [GOOD])
REGIONS = estimate(DOMAIN, [GOOD], inference="region")
PAIR = FactorGraph(DOMAIN, [(("age", "sex"), np.ones((4, 2)))])
STATES = FactorGraph(DOMAIN, [], states={"sex": ["F", "M"]})
CODES = {"age": [0, 3], "sex": [0, 1]}
REFUSED: dict[str, Callable[[], object]] = {
    "measurements that are None": lambda: estimate(DOMAIN, None),  # type: ignore[arg-type]
    "measurements that are a text": lambda: estimate(DOMAIN, "ab"),  # type: ignore[arg-type]
    "one measurement": lambda: estimate(DOMAIN, GOOD),  # type: ignore[arg-type]
    "a total in words": lambda: estimate(DOMAIN, [GOOD], total="ten"),  # type: ignore[arg-type]
    "a total beyond floats": lambda: estimate(DOMAIN, [GOOD], total=10**400),
    "a tolerance that is None": lambda: estimate(
        DOMAIN,
        [GOOD],
        tolerance=None,  # type: ignore[arg-type]
    ),
    "seconds in words": lambda: estimate(DOMAIN, [GOOD], max_seconds="1"),  # type: ignore[arg-type]
    "seconds beyond floats": lambda: estimate(DOMAIN, [GOOD], max_seconds=10**400),
    "a start that is no model": lambda: estimate(
        DOMAIN,
        [GOOD],
        warm_start="model",  # type: ignore[arg-type]
    ),
    "zeros that are a number": lambda: estimate(DOMAIN, [GOOD], zeros=1),  # type: ignore[arg-type]
    "zeros of no clique": lambda: Zeros(None, [True]),  # type: ignore[arg-type]
    "sets that are None": lambda: estimate_many(DOMAIN, None),  # type: ignore[arg-type]
    "a total of None": lambda: estimate_total(None),  # type: ignore[arg-type]
    "bars of no measurements": lambda: error_bars(MODEL, None),  # type: ignore[arg-type]
    "a query that is None": lambda: MODEL.answer(None),  # type: ignore[call-overload]
    "a marginal of no domain": lambda: FactoredQuery.marginal(
        None,  # type: ignore[arg-type]
        ("age",),
    ),
    "factors that are None": lambda: Kronecker(None),  # type: ignore[arg-type]
    "a factor beyond floats": lambda: Factor(DOMAIN, 10**400),  # type: ignore[arg-type]
    "a graph of no tables": lambda: FactorGraph(DOMAIN, None),  # type: ignore[arg-type]
    "states that are a text": lambda: FactorGraph(DOMAIN, [], states="ab"),  # type: ignore[arg-type]
    "states that are lists": lambda: FactorGraph(DOMAIN, [], states={"sex": [["f"], ["m"]]}),  # type: ignore[dict-item]
    "a seed below 0": lambda: error_bars(MODEL, [GOOD], seed=-1),
    "a seed in words": lambda: error_bars(MODEL, [GOOD], seed="x"),  # type: ignore[arg-type]
    "seconds of bars that are no number": lambda: error_bars(
        MODEL, [GOOD], max_seconds=float("nan")
    ),
    "a statistic of another shape": lambda: error_bars(MODEL, [GOOD]).statistic(
        lambda model: [0.0] * (1 + (model is MODEL))
    ),
    "a statistic in words": lambda: error_bars(MODEL, [GOOD]).statistic(lambda model: "x"),
    "a statistic without a result": lambda: error_bars(MODEL, [GOOD]).statistic(lambda model: None),
    "a loss that is a class": lambda: estimate(DOMAIN, [GOOD], loss=Squared),  # type: ignore[arg-type]
    "cliques that are None": lambda: MODEL.marginals(None),  # type: ignore[arg-type]
    "evidence that is None": lambda: MODEL.given(None),  # type: ignore[arg-type]
    "evidence in words": lambda: MODEL.given({"age": "x"}),  # type: ignore[dict-item]
    "evidence between codes": lambda: MODEL.given({"age": [0.5]}),  # type: ignore[list-item]
    "a limit in words": lambda: estimate(
        DOMAIN,
        [GOOD],
        memory_limit="1 GB",  # type: ignore[arg-type]
    ),
    "a whole-number type": lambda: estimate(DOMAIN, [GOOD], dtype=torch.int64),
    "bars of a query that is a list": lambda: error_bars(MODEL, [GOOD]).answer(
        [],  # type: ignore[arg-type]
    ),
    "divergence from None": lambda: FactorGraph(DOMAIN, []).divergence(None),  # type: ignore[arg-type]
    "data that are None": lambda: FactorGraph(DOMAIN, []).expected_log_likelihood(
        None,  # type: ignore[arg-type]
    ),
    "columns that are a text": lambda: Schema("x"),  # type: ignore[arg-type]
    "a graph of no model": lambda: FactorGraph.from_model(None),  # type: ignore[arg-type]
    "a device that is a number": lambda: estimate(DOMAIN, [GOOD], device=10**30),  # type: ignore[arg-type]
    "unread values without names": lambda: Dataset(DOMAIN, CODES, unread=3),  # type: ignore[arg-type]
    "unread values in words": lambda: Dataset(DOMAIN, CODES, unread={"age": "x", "sex": 0}),  # type: ignore[dict-item]
    "a conditional table without attributes": lambda: FactorGraph.from_conditionals(
        {"age": 3},  # type: ignore[dict-item]
    ),
    "conditional attributes that are a number": lambda: FactorGraph.from_conditionals(
        {"age": (1, [0.5, 0.5])},  # type: ignore[dict-item]
    ),
    "a total of another domain": lambda: estimate_total([GOOD], domain="x"),  # type: ignore[arg-type]
    "seconds of no sets": lambda: estimate_many(DOMAIN, [], max_seconds="1"),  # type: ignore[arg-type]
    "totals in words": lambda: estimate_many(DOMAIN, [[GOOD]], total=["x"]),  # type: ignore[list-item]
    "totals of several lengths": lambda: estimate_many(DOMAIN, [[GOOD]], total=[[1.0], [1.0, 2.0]]),  # type: ignore[list-item]
    "a statistic that is a number": lambda: error_bars(MODEL, [GOOD]).statistic(1),  # type: ignore[arg-type]
    "records beyond memory": lambda: MODEL.sample(2**63),
    "a total below float64's full precision": lambda: GraphicalModel(DOMAIN, (), total=1e-310),
    "answers beyond float64": lambda: MODEL.answer(FactoredQuery({"age": [1.7e308] * 4})),
    "values with masked entries": lambda: Measurement(
        ("sex",), np.ma.masked_array([5.0, 6.0], [False, True]), 1.0
    ),
    "a query with masked entries": lambda: FactoredQuery(
        {"sex": np.ma.masked_array([1.0, 1.0], [False, True])}
    ),
    "complex values": lambda: Factor(DOMAIN.project(["sex"]), np.array([1, 1j])),
    "numbers in words": lambda: Factor(DOMAIN.project(["sex"]), ["1", "2"]),
    "a tensor with a gradient": lambda: Measurement(
        ("sex",), torch.ones(2, requires_grad=True), 1.0
    ),
    "zeros in words": lambda: Zeros(("sex",), ["False", "True"]),
    "zeros that are counts": lambda: Zeros(("sex",), [0, 5]),
    "zeros that are NaN": lambda: Zeros(("sex",), [np.nan, 1.0]),
    "seconds that are a Decimal": lambda: estimate(DOMAIN, [GOOD], max_seconds=Decimal("1.5")),  # type: ignore[arg-type]
    "a part in words": lambda: MODEL.sample_in_parts(3, 2, rng=0).part("0"),  # type: ignore[arg-type]
    "codes that are a number": lambda: queries.compress(np.array(1)),
    "a posterior given an array": lambda: STATES.posterior({"sex": np.array([0, 1])}),
    "no records": lambda: MODEL.sample(0),
    "no records of a posterior": lambda: PAIR.posterior({"age": 0}).sample(0),
    "a record that is not there": lambda: PAIR.posteriors({"age": [0, 1]}).alone(2),
    "a record that is True": lambda: PAIR.posteriors({"age": [0, 1]}).alone(True),
    "data of other sizes": lambda: PAIR.expected_log_likelihood(
        Dataset(Domain({"sex": 3, "age": 4}), {"age": [3], "sex": [2]})
    ),
    "a posterior of other sizes": lambda: PAIR.expected_log_product(
        FactorGraph(Domain({"sex": 3, "age": 4}), []).posterior()
    ),
    "soft evidence that makes the probability overflow": (
        lambda: PAIR.posterior({}, {"age": [1e308] * 4, "sex": [1e308] * 2}).probability
    ),
    "a column of records that is a set": lambda: PAIR.posteriors({"age": {0, 1}}),
    "a memory limit of NaN": lambda: GraphicalModel(DOMAIN, (), 1.0, memory_limit=np.nan),
    "a memory limit of None": lambda: GraphicalModel(DOMAIN, (), 1.0, memory_limit=None),
    "no query for the bars of tables": lambda: MeasuredBars(MODEL, [GOOD]).answer([MODEL]),
    "soft evidence beyond floats": lambda: PAIR.posterior({}, {"age": [10**400] * 4}),
    "codes that are Boolean": lambda: MODEL.given({"age": True}),
    "members that are a number": lambda: queries.subset(3, 1),  # type: ignore[arg-type]
    "a target outside its source": lambda: DOMAIN.cell_map(["sex"], ["age"]),
    "a posterior that is a text": lambda: PAIR.expected_log_product("x"),  # type: ignore[arg-type]
    "zeros outside a clique": lambda: Zeros(("age",), [True] * 4).within(DOMAIN, ("sex",)),
    "a written graph of None": lambda: uai.write_model(None, "x"),  # type: ignore[arg-type]
    "written codes in words": lambda: uai.write_map(["x"], "x"),  # type: ignore[list-item]
    "written codes in rows": lambda: uai.write_map([[0, 1]], "x"),  # type: ignore[list-item]
    "written codes in an array of rows": lambda: uai.write_map(np.zeros((1, 2), int), "x"),
    "written marginals in rows": lambda: uai.write_marginals([np.ones((2, 2))], "x"),
    "written marginals that are numbers": lambda: uai.write_marginals(np.ones(2), "x"),  # type: ignore[arg-type]
    "a total of True": lambda: estimate(DOMAIN, [GOOD], total=np.True_),  # type: ignore[arg-type]
    "a tolerance of True": lambda: estimate(DOMAIN, [GOOD], tolerance=np.array(True)),  # type: ignore[arg-type]
    "a marginal of a set": lambda: MODEL.marginal({"age", "sex"}),
    "a query of a set": lambda: FactoredQuery.marginal(DOMAIN, {"age", "sex"}),
    "counts of a set": lambda: Dataset(DOMAIN, CODES).marginal(frozenset(CODES)),
    "sizes of a set": lambda: DOMAIN.shape({"age", "sex"}),
    "a measured set": lambda: Measurement({"age", "sex"}, np.ones((4, 2)), 1.0),
    "zeros of a set": lambda: Zeros({"age", "sex"}, np.ones((4, 2))),
    "axes that are a set": lambda: FactorGraph.from_conditionals({"sex": ({"sex"}, [0.5, 0.5])}),
    "states that are a set": lambda: FactorGraph(DOMAIN, [], states={"sex": {"F", "M"}}),
    "written codes that are a set": lambda: uai.write_map({0, 1}, "x"),
    "a loss that is constant": lambda: estimate(
        DOMAIN, [GOOD], total=10, loss=lambda tables: torch.tensor(0.0)
    ),
    "cliques that are a number": lambda: DOMAIN.smallest_holding(3, ["age"]),  # type: ignore[arg-type]
    "cliques of given regions": lambda: REGIONS.given({"sex": 0}).marginals(None),  # type: ignore[arg-type]
    "cells of another shape": lambda: GOOD.applied(np.ones(3)),
    "cells in words": lambda: GOOD.applied(["a", "b"]),  # type: ignore[arg-type]
    "an operand beyond floats": lambda: Factor(DOMAIN, np.ones((4, 2))) * 10**400,
    "a part that is True": lambda: MODEL.sample_in_parts(3, 2, rng=0).part(True),
    "parts in words": lambda: MODEL.sample_in_parts(3, 2, rng=0).parts("0", 1),  # type: ignore[arg-type]
    "half of a part": lambda: MODEL.sample_in_parts(3, 2, rng=0).parts(0, 1.5),  # type: ignore[arg-type]
    "a model's limit in words": lambda: GraphicalModel(DOMAIN, (), total=1.0, memory_limit="1"),  # type: ignore[arg-type]
    "a model's limit of 0": lambda: GraphicalModel(DOMAIN, (), total=1.0, memory_limit=0),
    "a unit of 0": lambda: GraphicalModel(DOMAIN, (), total=1.0, gap=1.0, unit=0.0),
    "a gap in words": lambda: GraphicalModel(DOMAIN, (), total=1.0, gap="x"),  # type: ignore[arg-type]
    "a loss that is NaN": lambda: GraphicalModel(DOMAIN, (), total=1.0, loss=np.nan),
}


@pytest.mark.parametrize("ask", REFUSED.values(), ids=REFUSED)
def test_wrong_types_are_refused_by_name(ask: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput, match="must "):
        ask()


@pytest.mark.parametrize(
    "ask",
    [
        lambda: MODEL.sample(10**15),
        lambda: REGIONS.sample(10**15),
        lambda: REGIONS.given({}).sample(10**15),
        lambda: ENDLESS.allowed("a", [1]),
        lambda: ENDLESS.cell_map(["b", "a"], ["b"]),
        lambda: GraphicalModel(ENDLESS, (), 1.0).given({"a": 0}),
        lambda: PAIR.posterior({"age": 0}).sample(10**15),
        lambda: PAIR.posterior({"age": 0, "sex": 1}).sample(10**15),
        lambda: error_bars(estimate(DOMAIN, [GOOD]), [GOOD], replicates=10**15),
        lambda: Kronecker([np.eye(300)] * 3).to_dense(),
        lambda: FactorGraph(MANY, []).posterior().marginal(MANY),
        lambda: FactorGraph(MANY, []).posteriors({"x0": [0, 1]}).marginal(MANY),
        lambda: GraphicalModel(MANY, (), 1.0).marginal(MANY),
        lambda: GraphicalModel(FEWER, (), 1.0).answer(FactoredQuery.marginal(FEWER, FEWER)),
        lambda: check_fits(junction_tree(MANY, [tuple(MANY)[:400]]), 1 << 30),
        lambda: MarginalOracle(MANY, [tuple(MANY)[:400]], memory_limit=1 << 30),
    ],
)
def test_what_no_memory_holds_is_refused_before_any_is_taken(ask: Callable[[], object]) -> None:
    with pytest.raises(ModelTooLarge, match=r"bytes.*memory"):
        ask()


def test_attributes_in_no_potential_take_no_memory() -> None:
    model = GraphicalModel(ENDLESS, (), 1.0)
    assert model.map() == {"a": 0, "b": 0}
    assert np.isclose(model.log_partition, 400 * math.log(10) + math.log(2))


def test_potentials_that_their_format_cannot_hold_are_refused() -> None:
    """In float32 neighbours of 1e6 are 0.06 apart, so that these values become equal."""
    held = Factor(DOMAIN.project(["age"]), 1e6 + np.array([0.0, 0.01, 0.02, 0.03]))
    assert np.ptp(GraphicalModel(DOMAIN, (held,), 1.0).marginal(["age"])) > 0.005
    single = Factor(held.domain, held.values.float())
    with pytest.raises(InvalidInput, match=r"must sum to at most 8.39e\+04, got 1e\+06"):
        GraphicalModel(DOMAIN, (single,), 1.0)


def test_options_that_are_arrays_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="exact answers do not use region_cells, tolerance"):
        PAIR.posterior(region_cells=np.ones(2), tolerance=np.ones(2))  # type: ignore[call-overload]


def test_conditions_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read, usual = [], Domain.allowed
    monkeypatch.setattr(Domain, "allowed", lambda *args: read.append(args) or usual(*args))
    MODEL.given({"age": [0, 1]})
    assert len(read) == 1


def test_conditions_on_unknown_attributes_are_called_evidence() -> None:
    with pytest.raises(InvalidInput, match="evidence names an unknown attribute 'height'"):
        MODEL.given({"height": 0})


@pytest.mark.parametrize("form", [tuple, list])
def test_attributes_that_cannot_be_hashed_are_unknown(form: type) -> None:
    for ask in (MODEL.marginal, DOMAIN.size, DOMAIN.ordered):
        with pytest.raises(InvalidInput, match=r"names an unknown attribute \['age'\]"):
            ask(form([["age"]]))


def test_numpy_integers_are_limits() -> None:
    model = GraphicalModel(DOMAIN, (), 1.0, memory_limit=np.int64(1 << 20))
    found = FactorGraph.from_model(model).posterior(inference="region", region_cells=np.int64(8))
    assert np.allclose(found.marginal(["sex"]), model.marginal(["sex"]))


def test_no_queries_have_no_answers() -> None:
    assert MODEL.answer([]) == []


def test_likelihoods_that_are_no_mapping_are_called_likelihoods() -> None:
    with pytest.raises(InvalidInput, match="likelihood must be a mapping"):
        PAIR.posterior({}, [0.2, 0.8])  # type: ignore[arg-type]


def test_a_limit_may_be_a_number_of_numpy() -> None:
    assert estimate(DOMAIN, [GOOD], memory_limit=np.int64(1 << 30)).certified  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, "1", -1, 0, 1.5, True])
def test_a_reader_names_a_wrong_limit(tmp_path: Path, wrong: object) -> None:
    for model, path in ((MODEL, tmp_path / "tree"), (REGIONS, tmp_path / "regions")):
        model.save(path)
        with pytest.raises(InvalidInput, match="max_bytes must be a whole number of bytes, 1 or"):
            type(model).load(path, max_bytes=wrong)  # type: ignore[arg-type]
        assert type(model).load(path, max_bytes=10**30).total == model.total


def test_a_file_with_a_unit_of_zero_is_refused(tmp_path: Path) -> None:
    """The unit is a divisor, in `certificate` for example."""
    for model in (MODEL, REGIONS):
        changed = copy(model)
        vars(changed)["unit"] = 0.0
        changed.save(tmp_path / "model")
        with pytest.raises(InvalidInput, match="unit"):
            type(model).load(tmp_path / "model")


def test_options_that_mean_nothing_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"no option 'toleranze' .did you mean 'tolerance'"):
        estimate_many(DOMAIN, [[GOOD]] * 2, toleranze=1.0)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="no option 'inference'; options are zeros, loss"):
        estimate_many(DOMAIN, [[GOOD]], inference="region")  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="^tolerance must be"):  # of no single set
        estimate_many(DOMAIN, [[GOOD]], tolerance=-1.0)
    with pytest.raises(InvalidInput, match=r"warm_start .ndarray. has no meaning"):
        estimate(DOMAIN, [GOOD], inference="region", warm_start=np.ones(2))  # type: ignore[call-overload]


def test_a_question_in_words_is_not_called_a_sequence_of_queries() -> None:
    model = GraphicalModel(Domain({"a": 2}), (), total=4.0)
    with pytest.raises(InvalidInput, match=r"`ask` takes questions in words.*got 'count \| a=1'"):
        model.answer("count | a=1")  # type: ignore[arg-type]
