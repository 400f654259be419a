"""Mixtures of product rows against the joint they stand for."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from chance import assert_no_more_spread

from mechanisms.families.generator import Generator
from mechanisms.families.histogram import HistogramModel
from mechanisms.families.pair_mixture import PairMixtureModel
from mechanisms.families.product_mixture import (
    Columns,
    ProductAnswers,
    ProductMixtureModel,
)
from mechanisms.families.tables import TablesModel
from mechanisms.families.targets import CellAnswers
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.queries import FactoredQuery, prefix
from pgmkit.runtime.model_files import write_container

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
    with pytest.raises(InvalidInput, match="within 0"):
        model.given({"a": 2})
    with pytest.raises(InvalidInput, match="shares"):
        ProductMixtureModel(DOMAIN, rows, 500.0, shares[:3])


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


def test_rows_off_the_simplex_are_refused() -> None:
    rows = random_rows()
    for bad in (rows * 2, rows[:, :-1], np.full_like(rows, np.nan)):
        with pytest.raises(InvalidInput):
            ProductMixtureModel(DOMAIN, bad, 10.0)


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
