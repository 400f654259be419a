"""Histograms: lattices, slice updates and the released model, against numpy on the whole joint."""

from pathlib import Path

import numpy as np
import pytest
import torch
from chance import assert_follows
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanisms.families.histogram import (
    FullDomain,
    Histogram,
    HistogramModel,
    PublicSupport,
    binned,
    index,
    numbers,
    on_host,
    placed,
)
from mechanisms.queries.cells import Cell
from mechanisms.workload import downward_closure, k_way
from pgmkit import Dataset, Domain, InvalidInput, ModelTooLarge
from pgmkit.queries import FactoredQuery, identity, prefix

DOMAIN = Domain({"a": 3, "b": 2, "c": 4, "d": 2})
RNG = np.random.default_rng(0)
PUBLIC = Dataset(DOMAIN, {n: RNG.integers(0, size, 30) for n, size in DOMAIN.sizes.items()})
CELL = st.sampled_from([*downward_closure(k_way(DOMAIN, 3)), ("c", "a"), ("d", "b", "a")]).flatmap(
    lambda clique: st.builds(Cell, st.just(clique), st.integers(0, DOMAIN.size(clique) - 1))
)


def supports() -> list[tuple[Histogram, np.ndarray]]:
    """A histogram of each kind beside the joint table that it stands for."""
    full = RNG.random(DOMAIN.shape())
    support, counts = PublicSupport.of(PUBLIC)
    return [
        (Histogram(FullDomain(DOMAIN), full), full.copy()),
        (Histogram(support, counts), PUBLIC.marginal(DOMAIN.attributes).astype(float)),
    ]


def satisfying(cell: Cell) -> np.ndarray:
    places = np.unravel_index(cell.index, DOMAIN.shape(cell.clique))
    codes = dict(zip(cell.clique, places, strict=True))
    mask = np.ones(DOMAIN.shape(), dtype=bool)
    for axis, name in enumerate(DOMAIN):
        if name in codes:
            shape = [-1 if i == axis else 1 for i in range(len(DOMAIN))]
            mask &= (np.arange(DOMAIN.sizes[name]) == codes[name]).reshape(shape)
    return mask


def test_conditioning_is_exact() -> None:
    for histogram, joint in supports():
        model = HistogramModel(histogram.support, histogram.weights, joint.sum())
        held = np.zeros_like(joint)
        held[np.ix_([0, 2], [0, 1], [1], [0, 1])] = joint[np.ix_([0, 2], [0, 1], [1], [0, 1])]
        narrowed = model.given({"a": [0, 2], "c": 1})
        assert narrowed.total == pytest.approx(held.sum())
        np.testing.assert_allclose(narrowed.marginal(DOMAIN), held, rtol=1e-12, atol=1e-12)
        records = narrowed.sample(200, rng=np.random.default_rng(0))
        assert set(records.columns["a"]) <= {0, 2} and set(records.columns["c"]) == {1}
    alone = Dataset(DOMAIN, {n: [0, 0] for n in DOMAIN})
    support, counts = PublicSupport.of(alone)
    with pytest.raises(InvalidInput, match="no records"):
        HistogramModel(support, counts, 3.0).given({"a": 1})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(CELL, st.floats(1e-6, 1e6)), min_size=1, max_size=8))
def test_slice_updates_are_products_on_the_joint(updates: list[tuple[Cell, float]]) -> None:
    for histogram, joint in supports():
        for cell, factor in updates:
            histogram.scale(cell, factor)
            joint[satisfying(cell)] *= factor
        for cell, _ in updates:
            share = joint[satisfying(cell)].sum() / joint.sum()
            assert histogram.answer(cell) == pytest.approx(share, rel=1e-6, abs=1e-12)
        cliques = [*k_way(DOMAIN, 2).cliques, ("d", "c", "a"), ("b",), ()]
        for clique, table in histogram.tables(cliques).items():
            np.testing.assert_allclose(table, _marginal(joint, clique), rtol=1e-9, atol=1e-12)


def _marginal(joint: np.ndarray, clique: tuple[str, ...]) -> np.ndarray:
    summed = joint.sum(axis=tuple(i for i, n in enumerate(DOMAIN) if n not in clique))
    kept = [n for n in DOMAIN if n in clique]
    return summed.transpose([kept.index(n) for n in clique]) / joint.sum()


def test_extreme_factors_neither_overflow_nor_lose_the_rest() -> None:
    histogram = Histogram(FullDomain(DOMAIN), np.ones(DOMAIN.shape()))
    for _ in range(300):
        histogram.scale(Cell(("a",), 0), 1e8)
        histogram.scale(Cell(("a",), 1), 1e8)
        histogram.scale(Cell(("a",), 2), 1e8)
    assert histogram.answer(Cell(("a",), 1)) == pytest.approx(1 / 3)
    assert np.isfinite(histogram.weights).all()


def test_a_histogram_that_loses_nearly_all_its_mass_keeps_its_sum() -> None:
    histogram = Histogram(FullDomain(Domain({"a": 2})), np.array([1.0, 1e-14]))
    histogram.scale(Cell(("a",), 0), 1e-15)
    assert histogram.answer(Cell(("a",), 1)) == pytest.approx(10 / 11, rel=1e-9)


def test_a_histogram_that_shrinks_in_many_steps_keeps_its_sum() -> None:
    histogram = Histogram(FullDomain(DOMAIN), np.ones(DOMAIN.shape()))
    for step in range(400):
        histogram.scale(Cell(("a",), step % DOMAIN.sizes["a"]), 0.5 + 0.1 * (step % 4))
        assert histogram.mass == pytest.approx(float(histogram.weights.sum()), rel=1e-10, abs=0.0)


def test_a_histogram_that_grows_and_shrinks_in_many_steps_keeps_its_sum() -> None:
    histogram = Histogram(FullDomain(Domain({"a": 2})), np.ones(2))
    for factor in [2.0] * 60 + [0.5] * 67:
        histogram.scale(Cell(("a",), 0), factor)
    assert histogram.answer(Cell(("a",), 1)) == pytest.approx(128 / 129, rel=1e-10)


def test_the_last_record_is_drawn() -> None:
    last = HistogramModel(FullDomain(Domain({"a": 2})), np.array([0.0, 1.0]), total=1.0)
    assert last.sample(1, rng=0).columns["a"].tolist() == [1]


def test_both_orders_of_a_clique_are_answered() -> None:
    for histogram, joint in supports():
        tables = histogram.tables([("a", "c"), ("c", "a"), ("a", "c")])
        for clique in [("a", "c"), ("c", "a")]:
            np.testing.assert_allclose(tables[clique], _marginal(joint, clique))


def test_who_changes_an_answer_does_not_change_the_model_or_another_answer() -> None:
    model = HistogramModel(FullDomain(DOMAIN), np.ones(DOMAIN.shape()), 48.0)
    orders = DOMAIN.attributes, DOMAIN.attributes[::-1], ("a", "b"), ("b", "a")
    answers = model.marginals(orders)
    for order in orders:
        assert (answers[order] == model.marginal(order)).all() and answers[order].sum() == 48
        answers[order][...] = 0


def test_the_model_answers_samples_and_comes_back(tmp_path: Path) -> None:
    for histogram, joint in supports():
        model = HistogramModel(histogram.support, histogram.weights, total=500.0)
        np.testing.assert_allclose(model.marginal(("d", "a")), 500 * _marginal(joint, ("d", "a")))
        query = FactoredQuery({"c": prefix(4), "a": identity(3)[:1]})
        wanted = np.cumsum(500 * _marginal(joint, ("c", "a"))[:, :1], axis=0)
        np.testing.assert_allclose(model.answer(query), wanted)
        records = model.sample(20_000, rng=np.random.default_rng(0))
        assert_follows(records.marginal(("a", "b")), _marginal(joint, ("a", "b")))
        model.save(tmp_path / "h")
        again = HistogramModel.load(tmp_path / "h")
        np.testing.assert_allclose(again.marginal(("c", "b")), model.marginal(("c", "b")))


def test_too_large_a_domain_is_refused_with_what_would_fit() -> None:
    with pytest.raises(ModelTooLarge, match="mst, aim, mixture or gem"):
        FullDomain(Domain({f"x{i}": 10 for i in range(12)}))
    with pytest.raises(ModelTooLarge, match="at most 64 axes, got 65"):
        FullDomain(Domain({f"x{i}": 1 for i in range(65)}))


def test_wrong_weights_and_files_are_refused(tmp_path: Path) -> None:
    support = FullDomain(DOMAIN)
    even = np.ones(DOMAIN.shape())
    for weights, total, named in [
        (np.ones(3), 1.0, r"weights must .* shape \(3, 2, 4, 2\) .* got shape \(3,\)"),
        (-even, 1.0, "weights must .* and sum -48"),
        (0 * even, 1.0, "weights must .* and sum 0"),
        (np.nan * even, 1.0, "weights must .* and sum nan"),
        (np.inf * even, 1.0, "weights must .* and sum inf"),
        (even, 0.0, "total must be .* got 0.0"),
    ]:
        with pytest.raises(InvalidInput, match=named):
            HistogramModel(support, weights, total)
    (tmp_path / "x").write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match="not a pgmkit histogram"):
        HistogramModel.load(tmp_path / "x")
    model = HistogramModel(support, np.ones(DOMAIN.shape()), 1.0)
    for n in (0, -1, 1.5):
        with pytest.raises(InvalidInput, match="n must be a whole number"):
            model.sample(n, rng=RNG)


def test_tensors_of_weights_behave_as_arrays_do() -> None:
    rng = np.random.default_rng(1)
    values = rng.random((2, 3, 4))
    tensor, flat = torch.from_numpy(values.copy()), values.reshape(-1)
    support, cliques = FullDomain(Domain({"a": 2, "b": 3, "c": 4})), [("a", "b", "c"), ("b",), ()]
    for wanted in ([*cliques, ("c", "a")], [("c", "a")], *([each] for each in cliques)):
        of_array, of_tensor = support.tables(values, wanted), support.tables(tensor, wanted)
        for clique in wanted:
            away = tuple(i for i, name in enumerate("abc") if name not in clique)
            expected = values.sum(axis=away) if clique != ("c", "a") else values.sum(axis=1).T
            for found in (of_array[clique], of_tensor[clique]):
                np.testing.assert_allclose(found, expected, rtol=1e-14)
                assert found.shape == expected.shape and isinstance(found, np.ndarray)
    places = rng.integers(0, 6, 24)
    sums = [binned(flat, places, 7), binned(tensor.reshape(-1), places, 7).numpy()]
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-14)
    at = np.array([3, 1])
    for where, kind in (((slice(None), 2), tuple), (at, torch.Tensor)):
        assert isinstance(index(where, tensor), kind) and index(where, values) is where
        picked = tensor.reshape(-1)[index(at, tensor)] if where is at else tensor[where]
        expected = flat[at] if where is at else values[where]
        np.testing.assert_array_equal(picked.numpy(), expected)
    found = numbers([tensor[0].sum(), tensor[1].sum()])
    assert found == pytest.approx(numbers([values[0].sum(), values[1].sum()]))
    assert all(type(each) is float for each in found) and numbers([]) == on_host([]) == []
    several = on_host([tensor, tensor[0, 0], tensor[1]])
    for each, expected in zip(several, (values, values[0, 0], values[1]), strict=True):
        np.testing.assert_array_equal(each, expected)
    for weights in (values, tensor):
        first = Histogram(FullDomain(Domain({"a": 24})), flat)
        first.weights = weights
        other = first.copy()
        other.weights *= 2
        assert float(weights.sum()) == pytest.approx(float(other.weights.sum()) / 2)


def test_weights_are_numpys_on_the_processor_and_torchs_elsewhere() -> None:
    for device in (None, torch.device("cpu")):
        assert isinstance(placed([1, 2], device), np.ndarray)
    there = placed([[1, 2, 3]], torch.device("meta"))
    assert there.device.type == "meta" and there.dtype == torch.float64 and there.shape == (1, 3)


def test_no_tables_are_none() -> None:
    assert Histogram(FullDomain(Domain({"a": 2})), np.ones(2)).tables([]) == {}
