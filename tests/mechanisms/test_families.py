"""What every class that gives marginals has in common, one table of them all."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import narwhals as nw
import numpy as np
import polars
import pytest
from pricing import cut

from mechanisms.baselines import Independent
from mechanisms.dispatch import run
from mechanisms.families.best_response import Records
from mechanisms.families.histogram import (
    MOST_RECORDS,
    FullDomain,
    HistogramModel,
    PublicSupport,
)
from mechanisms.families.product_mixture import ProductMixtureModel, RelaxedRowsModel
from mechanisms.families.tables import TablesModel
from mechanisms.registry import MECHANISMS
from mechanisms.release.record import Release
from mechanisms.synthesis.pipeline import synthesize
from pgmkit import Dataset, Domain, Factor, GraphicalModel, Integer, InvalidInput, Schema
from pgmkit.errors import ModelTooLarge
from pgmkit.queries import FactoredQuery
from pgmkit.tables.engines.pushdown import FrameCounts

DOMAIN = Domain({"a": 2, "b": 3, "c": 1})
JOINT = np.array([[[4.0], [0.0], [2.0]], [[1.0], [5.0], [0.0]]])
"""Counts of 12 records."""
CODES = np.repeat(np.argwhere(JOINT >= 0), JOINT.ravel().astype(int), axis=0)
DATA = Dataset(DOMAIN, dict(zip(DOMAIN, CODES.T, strict=True)))
SCHEMA = Schema({name: Integer(0, size - 1) for name, size in DOMAIN.sizes.items()})


class Tabulating(Protocol):
    def marginal(self, attrs: Iterable[str]) -> np.ndarray: ...
    def marginals(self, cliques: Iterable[Iterable[str]]) -> Mapping[Any, np.ndarray]: ...


def lazy_counts() -> Tabulating:
    return FrameCounts(nw.from_native(polars.LazyFrame(dict(DATA.columns))), SCHEMA)


def rows() -> np.ndarray:
    """One row for each record: its codes, one-hot."""
    columns = [np.eye(size)[DATA.columns[name]] for name, size in DOMAIN.sizes.items()]
    return np.concatenate(columns, axis=1)


def histogram_of_records() -> HistogramModel:
    support, counts = PublicSupport.of(DATA)
    return HistogramModel(support, counts, 12)


def logs() -> Factor:
    with np.errstate(divide="ignore"):
        return Factor(DOMAIN, np.log(JOINT))


FAMILIES: dict[str, Callable[[], Tabulating]] = {
    "records": lambda: DATA,
    "records in an engine": lazy_counts,
    "graphical": lambda: GraphicalModel(DOMAIN, (logs(),), 12),
    "histogram": lambda: HistogramModel(FullDomain(DOMAIN), JOINT, 12),
    "histogram of records": histogram_of_records,
    "product mixture": lambda: ProductMixtureModel(DOMAIN, rows(), 12),
    "shares": lambda: ProductMixtureModel(DOMAIN, rows(), 12, np.full(12, 3.0)),
    "relaxed rows": lambda: RelaxedRowsModel(DOMAIN, rows(), 12),
    "tables": lambda: TablesModel(DOMAIN, {tuple(DOMAIN): JOINT}, 12),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "asked",
    [
        [()],
        [(), ("a",)],
        [("b",), ()],
        [(), ()],
        [("b", "a"), (), ("c",), ("a", "b"), ("c", "b", "a")],
        [],
    ],
)
def test_marginals_with_the_empty_clique(family: str, asked: list[tuple[str, ...]]) -> None:
    model = FAMILIES[family]()
    found = model.marginals(asked)
    assert list(found) == list(dict.fromkeys(asked))
    for clique, table in found.items():
        kept = [name for name in DOMAIN if name in clique]
        axes = tuple(i for i, name in enumerate(DOMAIN) if name not in clique)
        expected = JOINT.sum(axis=axes).transpose([kept.index(name) for name in clique])
        for each in (table, model.marginal(list(clique))):
            assert isinstance(each, np.ndarray) and each.shape == DOMAIN.shape(clique)
            np.testing.assert_allclose(each, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("family", [name for name in FAMILIES if not name.startswith("records")])
def test_attributes_come_in_any_sequence_and_what_does_not_fit_is_refused(family: str) -> None:
    model: Any = FAMILIES[family]()
    for iterable in (["b", "a"], iter(["b", "a"])):
        assert list(model.marginals([iterable])) == [("b", "a")]
    np.testing.assert_array_equal(model.marginal(iter(["b", "a"])), model.marginal(("b", "a")))
    for wrong in (["b", "b"], ["z"], "b"):
        with pytest.raises(InvalidInput):
            model.marginals([wrong])
        with pytest.raises(InvalidInput):
            model.marginal(wrong)
    for query, said in (({"z": [1.0]}, "the query names"), ({"a": [[1.0] * 9]}, "the query's")):
        with pytest.raises(InvalidInput, match=said):
            model.answer(FactoredQuery(query))
    # Each number is held, their product is not.
    large = FactoredQuery({"a": [1e200, 1e200], "b": [1e200, 1e200, 1e200]})
    with pytest.raises(InvalidInput, match="answers that float64 can hold"):
        model.answer([FactoredQuery({"a": [1.0, 0.0]}), large])


def test_a_histogram_of_few_expected_records_is_conditioned_and_drawn_from() -> None:
    model = HistogramModel(FullDomain(DOMAIN), JOINT, 1.5)
    table = model.marginal(("a",))
    code = int(np.flatnonzero(table)[0])
    assert model.given({"a": code}).total == pytest.approx(table[code]) and table[code] < 1
    assert type(model.given({"a": code}).total) is float
    full = FullDomain(Domain({"a": MOST_RECORDS}))  # the most that there may be
    assert full.shape == (MOST_RECORDS,)


def test_sparse_tables_of_records_have_each_cell_once_and_in_order() -> None:
    records = Records(Domain({"a": 2, "b": 3}), ((1, 2), (0, 0), (1, 2), (1, 0)), total=8)
    found = records.sparse_marginals(iter([("b",), ("a", "b"), ()]))
    assert {c: (r.indices.tolist(), r.data.tolist()) for c, r in found.items()} == {
        ("b",): ([0, 2], [4.0, 4.0]),
        ("a", "b"): ([0, 3, 5], [2.0, 2.0, 4.0]),
        (): ([0], [8.0]),
    }


def test_the_total_of_tables_that_disagree_is_the_stated_one() -> None:
    model = TablesModel(DOMAIN, {("a",): [5.0, 6.0], ("b",): [9.0, 9.0, 9.0]}, 12.0)
    assert model.marginals([(), ("a",)])[()].tolist() == 12.0


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_released_model_knows_its_total(name: str) -> None:
    fewer = {"rounds": 1} if name.startswith(("gem", "rap")) else {}  # there are few queries
    settings = MECHANISMS[name].load()[1](**cut(name), **fewer)
    public = {"public": DATA} if MECHANISMS[name].public else {}
    release = run(settings, DATA, [("a", "b")], 1.0, 1e-6, neighbours="replace-one", **public)
    for table in (release.model.marginal(()), *release.model.marginals([("b",), ()]).values()):
        assert isinstance(table, np.ndarray)
    assert release.model.marginals([()])[()] == pytest.approx(12.0, rel=1e-6)


def test_a_release_with_a_schema() -> None:
    release = synthesize(
        DATA, SCHEMA, epsilon=1.0, delta=1e-6, neighbours="replace-one", mechanism="independent"
    )
    assert isinstance(release.release, Release) and release.settings == Independent()
    assert release.model.marginals([()])[()] == pytest.approx(12.0)
    assert release.table().columns["count"] == pytest.approx([12.0])


@pytest.mark.parametrize("family", [name for name in FAMILIES if not name.startswith("records")])
def test_every_model_draws_records_by_the_same_call(family: str) -> None:
    model: Any = FAMILIES[family]()
    parameters = inspect.signature(model.sample).parameters
    assert list(parameters)[:2] == ["n", "rng"]
    assert parameters["rng"].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["rng"].default is None
    if family == "tables":
        for asked in (lambda: model.sample(5, rng=0), lambda: model.given({"a": 0})):
            with pytest.raises(InvalidInput, match="records cannot be drawn"):
                asked()
        return
    seeded, generated = model.sample(9, rng=4), model.sample(9, rng=np.random.default_rng(4))
    for name in DOMAIN:
        np.testing.assert_array_equal(seeded.columns[name], generated.columns[name])
    assert len(model.sample(3)) == 3
    with pytest.raises(ModelTooLarge, match="draw fewer"):
        model.sample(10**13)
    for wrong in (-1, 1.5, "4", True, np.random.RandomState(0)):
        with pytest.raises(InvalidInput, match="rng.* must be a whole number"):
            model.sample(5, rng=wrong)
