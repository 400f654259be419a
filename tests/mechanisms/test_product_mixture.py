"""Mixtures of product rows against the joint they stand for."""

import itertools
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from chance import assert_mean, assert_no_more_spread

from mechanisms.families.fitting import CellAnswers, ProductRows
from mechanisms.families.histogram import HistogramModel
from mechanisms.families.product_mixture import (
    Columns,
    PairMixtureModel,
    ProductAnswers,
    ProductMixtureModel,
    systematic,
)
from mechanisms.families.tables import TablesModel
from mechanisms.families.training import Generator
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.queries import FactoredQuery, prefix
from pgmkit.runtime.untrusted import write_container

DOMAIN = Domain({"a": 2, "b": 3, "c": 2, "d": 4})
CLIQUES = [(x,) for x in DOMAIN] + [c for k in (2, 3) for c in itertools.permutations(DOMAIN, k)][
    ::5
]


def random_rows(count: int = 7) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.hstack([rng.dirichlet(np.ones(size), count) for size in DOMAIN.shape()])


def joint(rows: np.ndarray, total: float = 1.0) -> np.ndarray:
    """The mean of the outer products of every row's distributions."""
    columns = Columns(DOMAIN)
    parts = [rows[:, columns.of(name)] for name in DOMAIN]
    return np.einsum("ka,kb,kc,kd->abcd", *parts) * total / len(rows)


def summed(table: np.ndarray, clique: tuple[str, ...]) -> np.ndarray:
    kept = [name for name in DOMAIN if name in clique]
    away = tuple(i for i, name in enumerate(DOMAIN) if name not in clique)
    return table.sum(axis=away).transpose([kept.index(name) for name in clique])


def test_answers_of_marginals_and_cells() -> None:
    rows = random_rows()
    columns = Columns(DOMAIN)
    tensor = torch.as_tensor(rows)
    table = joint(rows)
    for clique, found in ProductAnswers(columns, CLIQUES)(tensor).items():
        np.testing.assert_allclose(found.numpy(), summed(table, clique), rtol=1e-12)
    cells = [(c, i) for c in CLIQUES for i in (0, DOMAIN.size(c) - 1)]
    found = CellAnswers(columns, cells)(tensor).numpy()
    expected = [summed(table, c).flat[i] for c, i in cells]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_file_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    path, header = tmp_path / "model", {"domain": dict(DOMAIN.sizes), "total": 5.0}
    write_container(path, ProductMixtureModel.format, header, {"rows": random_rows()})
    with pytest.raises(InvalidInput, match="no 'shares'"):
        ProductMixtureModel.load(path)
    write_container(path, TablesModel.format, header, {"table0": np.ones(2)})
    with pytest.raises(InvalidInput, match="no 'cliques'"):
        TablesModel.load(path)
    write_container(path, HistogramModel.format, header, {})
    with pytest.raises(InvalidInput, match="no 'weights'"):
        HistogramModel.load(path)
    with pytest.raises(InvalidInput, match="this reads"):
        TablesModel.load(path)


EVIDENCE = {"b": [0, 2], "d": 1}


def test_conditioning_is_exact(tmp_path: Path) -> None:
    shares = np.array([0.3, 0.0, 0.1, 0.25, 0.05, 0.2, 0.1])
    rows = random_rows()
    whole = np.tensordot(shares, np.stack([joint(row[None]) for row in rows]), 1) * 500
    model = ProductMixtureModel(DOMAIN, rows, 500.0, shares)
    held = np.zeros_like(whole)
    held[:, [0, 2], :, 1] = whole[:, [0, 2], :, 1]
    narrowed = model.given(EVIDENCE)
    narrowed.save(tmp_path / "model")
    for found in (narrowed, ProductMixtureModel.load(tmp_path / "model")):
        assert found.total == pytest.approx(held.sum(), rel=1e-12)
        for clique, table in found.marginals(CLIQUES).items():
            np.testing.assert_allclose(table, summed(held, clique), rtol=1e-9, atol=1e-9)
    query = FactoredQuery({"a": prefix(2), "c": prefix(2)})
    sums = np.cumsum(np.cumsum(held.sum((1, 3)), 0), 1)
    np.testing.assert_allclose(narrowed.answer(query), sums, rtol=1e-9)
    records = narrowed.sample(20_000, rng=np.random.default_rng(0))
    assert set(records.columns["b"]) == {0, 2} and set(records.columns["d"]) == {1}
    assert_no_more_spread(records.marginal(DOMAIN), held)
    with pytest.raises(InvalidInput, match="no records"):
        ProductMixtureModel(Domain({"a": 2}), [[1, 0]], 5.0).given({"a": 1})
    with pytest.raises(InvalidInput, match="from 0 to 1"):
        model.given({"a": 2})
    with pytest.raises(InvalidInput, match="unknown attribute 'z'"):
        model.given({"z": 0})


def test_rows_that_cannot_meet_the_evidence_are_left_out() -> None:
    rows = [[1, 0, 0.5, 0.5], [0, 1, 1, 0], [0.25, 0.75, 0, 1]]
    model = ProductMixtureModel(Domain({"a": 2, "b": 2}), rows, 10.0, [0.5, 0.3, 0.2])
    before = np.array(model.rows), np.array(model.shares)
    found = model.given({"a": 0, "b": [0]})
    assert type(found) is ProductMixtureModel
    np.testing.assert_allclose(found.marginal(("a", "b")), [[2.5, 0], [0, 0]], rtol=1e-12)
    np.testing.assert_array_equal(model.rows, before[0])
    np.testing.assert_array_equal(model.shares, before[1])
    with pytest.raises(InvalidInput, match="no records with the given values of a, b"):
        model.given({"a": 1}).given({"a": 0, "b": 0})


@pytest.mark.parametrize(("small", "kept"), [(2.0**-511, True), (2.0**-512, False)])
def test_evidence_too_rare_for_full_precision_is_refused(small: float, kept: bool) -> None:
    """The least number of all digits is 2^-1022, about 2e-308."""
    domain = Domain({"a": 2, "b": 2, "c": 2})
    rows = [[1 - small, small, 1 - small, small, 0.25, 0.75]]
    model = ProductMixtureModel(domain, rows, 1000.0)
    if kept:
        found = model.given({"a": 1, "b": 1})
        assert found.total == pytest.approx(1000 * small**2, rel=1e-12)
        np.testing.assert_allclose(found.marginal(["c"]), found.total * np.array([0.25, 0.75]))
    else:
        with pytest.raises(InvalidInput, match="no records"):
            model.given({"a": 1, "b": 1})


def test_model_answers_and_samples(tmp_path: Path) -> None:
    rows = random_rows()
    model = ProductMixtureModel(DOMAIN, rows, 500.0)
    table = joint(rows, 500.0)
    for clique, found in model.marginals(CLIQUES).items():
        np.testing.assert_allclose(found, summed(table, clique), rtol=1e-10)
    query = FactoredQuery({"d": prefix(4), "a": [1.0, -1.0]})
    expected = np.einsum("abcd,xd,a->x", table, prefix(4), [1.0, -1.0])
    np.testing.assert_allclose(model.answer(query).ravel(), expected, rtol=1e-10)
    assert float(model.answer(FactoredQuery({}))) == pytest.approx(500.0)
    data = model.sample(100_000, rng=np.random.default_rng(0))
    assert_no_more_spread(data.marginal(DOMAIN.attributes), table)
    model.save(tmp_path / "m")
    loaded = ProductMixtureModel.load(tmp_path / "m")
    np.testing.assert_allclose(loaded.marginal(("b", "d")), model.marginal(("b", "d")), rtol=1e-12)


def test_the_generator_is_reproducible_and_on_the_simplex() -> None:
    columns = Columns(DOMAIN)
    first, second = (
        Generator(columns, 8, (16,), 20, torch.Generator().manual_seed(3))() for _ in range(2)
    )
    assert torch.equal(first, second) and first.shape == (20, columns.width)
    for name in DOMAIN:
        sums = first[:, columns.of(name)].sum(1)
        torch.testing.assert_close(sums, torch.ones(20), rtol=1e-5, atol=1e-5)


def moved(by: float) -> np.ndarray:
    """Rows of which one number is moved, and with it one sum."""
    rows = np.array([[0.5, 0.5, 0, 0.5, 0.5, 1, 0, 0.25, 0.25, 0.25, 0.25]])
    rows[0, 2] += by
    return rows


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (random_rows()[:, :-1], r"shape \(7, 10\), but must be K x 11"),
        (np.ones((0, 11)), r"shape \(0, 11\)"),
        (random_rows()[0], r"shape \(11,\)"),
        (random_rows()[:, :, None], r"shape \(7, 11, 1\)"),
        (random_rows() * 2, "values of 'a' must be probabilities"),
        (random_rows() * 0.9998, "values of 'a' must be probabilities"),
        (np.full((2, 11), np.nan), "must be probabilities"),
        (moved(1.9e-4), "values of 'b' must be probabilities"),
        (moved(-1e-9), "values of 'b' must be probabilities"),
        (np.array([[-1, 2, 1, 0, 0, 1, 0, 1, 0, 0, 0]]), "values of 'a' must be probabilities"),
        (np.vstack([moved(0)] * 2 + [moved(1)]), "values of 'b' must be probabilities"),
    ],
)
def test_rows_that_are_no_probabilities_are_refused(rows: np.ndarray, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ProductMixtureModel(DOMAIN, rows, 10.0)


@pytest.mark.parametrize(
    "shares",
    [
        [0.5],
        [[0.5], [0.5]],
        [0.5, 0.5, 0.0],
        0.5,
        [1.5, -0.5],
        [0.0, 0.0],
        [np.nan, 1.0],
        [np.inf, 1.0],
    ],
)
def test_shares_are_two_numbers_of_which_one_is_above_zero(shares: object) -> None:
    with pytest.raises(InvalidInput, match="shares must be 2 numbers of at least 0, not all 0"):
        ProductMixtureModel(DOMAIN, random_rows(2), 10.0, shares)


def test_parts_of_a_model_are_scaled_copies_that_stay_as_they_are() -> None:
    rows, shares = moved(0.9e-4).repeat(2, 0), np.array([0.0, 0.3])
    given, weights = rows.copy(), shares.copy()
    model = ProductMixtureModel(DOMAIN, rows, 10, shares)
    assert model.total == 10.0 and type(model.total) is float
    assert model.shares.tolist() == [0.0, 1.0]
    assert ProductMixtureModel(DOMAIN, rows, 10).shares.tolist() == [0.5, 0.5]
    for name in DOMAIN:
        part = rows[:, Columns(DOMAIN).of(name)]
        found = model.rows[:, Columns(DOMAIN).of(name)]
        np.testing.assert_allclose(found, part / part.sum(1)[:, None], rtol=1e-15)
    np.testing.assert_array_equal(rows, given)
    np.testing.assert_array_equal(shares, weights)
    for kept in (model.rows, model.shares):
        with pytest.raises(ValueError, match="read-only"):
            kept[0] = 0.5
    for total in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(InvalidInput, match="total must be"):
            ProductMixtureModel(DOMAIN, rows, total)


def test_columns_of_cells_and_of_attributes() -> None:
    columns = Columns(DOMAIN)
    assert [columns.of(name) for name in DOMAIN] == [
        slice(0, 2), slice(2, 5), slice(5, 7), slice(7, 11)
    ]  # fmt: skip
    assert columns.width == 11
    for cliques in (CLIQUES, [("b",)], [()], []):
        cells = [(c, i) for c in cliques for i in range(DOMAIN.size(c))]
        longest = max([1, *map(len, cliques)])
        wanted = []
        for clique in cliques:
            for codes in itertools.product(*(range(DOMAIN.sizes[name]) for name in clique)):
                places = [columns.of(n).start + c for n, c in zip(clique, codes, strict=True)]
                wanted.append(places + [11] * (longest - len(places)))
        found = columns.of_cells(cells)
        assert found.tolist() == wanted
        assert found.shape == (len(wanted), longest) and found.dtype == torch.int64
    logits = torch.linspace(-2, 3, 22, dtype=torch.float64).reshape(2, 11)
    found = columns.softmax(logits).numpy()
    assert found.shape == (2, 11)
    for name in DOMAIN:
        powers = np.exp(logits.numpy()[:, columns.of(name)])
        wanted = powers / powers.sum(1)[:, None]
        np.testing.assert_allclose(found[:, columns.of(name)], wanted, rtol=1e-12)


def test_rows_in_training_answer_in_counts() -> None:
    rows = random_rows().astype(np.float32)
    state = ProductRows(Columns(DOMAIN), torch.from_numpy(rows), 50.0)
    table = joint(rows.astype(np.float64), 50.0)
    found = state.marginals([*CLIQUES, ()])
    assert set(found) == {*CLIQUES, ()}
    for clique, marginal in found.items():
        assert isinstance(marginal, np.ndarray) and marginal.dtype == np.float64
        np.testing.assert_allclose(marginal, summed(table, clique), rtol=1e-5)
    np.testing.assert_array_equal(state.whole_rows(), rows)
    assert state.whole_rows().dtype == np.float64


def test_answers_of_more_rows_than_are_multiplied_at_once() -> None:
    rng = np.random.default_rng(0)
    rows, shares = random_rows(4100), rng.dirichlet(np.ones(4100))
    table = sum(s * joint(row[None]) for s, row in zip(shares, rows, strict=True))
    model = ProductMixtureModel(DOMAIN, rows, 30.0, shares)
    factors = {"c": rng.random((3, 2)), "d": rng.random((2, 4)), "a": rng.random((4, 2))}
    wanted = np.einsum("abcd,xc,yd,za->xyz", table, *factors.values()) * 30
    np.testing.assert_allclose(model.answer(FactoredQuery(factors)), wanted, rtol=1e-10)
    assert float(model.answer(FactoredQuery({}))) == pytest.approx(30.0, rel=1e-12)
    for wrong in ({"a": [1.0, 2.0, 3.0]}, {"height": [1.0]}):
        with pytest.raises(InvalidInput):
            model.answer(FactoredQuery(wrong))


def test_every_row_gives_its_share_of_the_records_in_any_order() -> None:
    """Rows that are sure of one code each, so that a record tells its row."""
    shares = np.array([0.3, 0.0, 0.25, 0.45])
    model = ProductMixtureModel(Domain({"a": 4}), np.eye(4), 1.0, shares)
    counts = np.array([model.sample(7, rng=seed).marginal(("a",)) for seed in range(400)])
    assert (counts >= np.floor(7 * shares)).all() and (counts <= np.ceil(7 * shares)).all()
    for place in (0, 2, 3):
        assert_mean(counts[:, place], 7 * shares[place])
    assert len(model.sample(1, rng=np.random.default_rng(0))) == 1
    records = model.sample(400, rng=0).columns["a"]
    assert_no_more_spread(np.bincount(records[:200], minlength=4), shares)
    for wrong in (0, -1, 1.0, True):
        with pytest.raises(InvalidInput, match="n must be a whole number"):
            model.sample(wrong)


class Largest:
    """A generator whose number is the largest below 1."""

    def random(self) -> float:
        return float(np.nextafter(1.0, 0.0))


@pytest.mark.parametrize("scale", [1.0, 0.1, 3.0])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000])
def test_places_without_weight_are_never_drawn(count: int, scale: float) -> None:
    """The place of the largest number, too, is the last with a weight."""
    weights = np.array([0.0, scale, 0.0, 2 * scale, 0.0, 0.0])
    found = systematic(weights, count, cast("np.random.Generator", Largest()))
    assert len(found) == count and found[-1] == 3 and set(found) <= {1, 3}
    assert abs((found == 3).sum() - 2 * count / 3) <= 1


def test_files_of_another_kind_are_refused_by_name(tmp_path: Path) -> None:
    path, header = tmp_path / "model", {"domain": dict(DOMAIN.sizes), "total": "5"}
    arrays = {"rows": random_rows(), "shares": np.ones(7)}
    write_container(path, ProductMixtureModel.format, header, arrays)
    with pytest.raises(InvalidInput, match="model' is not a pgmkit product mixture file: total"):
        ProductMixtureModel.load(path)
    ProductMixtureModel(DOMAIN, random_rows(), 5.0).save(path)
    with pytest.raises(InvalidInput):
        ProductMixtureModel.load(path, max_bytes=100)
    assert ProductMixtureModel.load(path).total == 5.0


def test_flattened_rows_are_geometric_means_with_the_one_way_marginals() -> None:
    rows, shares = random_rows(3), np.array([0.5, 0.3, 0.2])
    model = PairMixtureModel(DOMAIN, rows, 10.0, shares)
    found = model.flattened(0.4)
    for name in DOMAIN:
        at = Columns(DOMAIN).of(name)
        mixed = np.exp(0.4 * np.log(shares @ rows[:, at]) + 0.6 * np.log(rows[:, at]))
        np.testing.assert_allclose(found.rows[:, at], (mixed.T / mixed.sum(1)).T, rtol=1e-12)
    np.testing.assert_allclose(found.shares, shares)
    drawn, expected = model.first_records(50, rng=3), model.flattened().sample(50, rng=3)
    assert all(np.array_equal(drawn.columns[n], expected.columns[n]) for n in DOMAIN)
