"""Beliefs of small models on plain arrays, beside the written-out joint distribution and torch."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from seams import tables_of

from pgmkit import Domain, Factor, FactoredQuery, GraphicalModel, NumericalFailure
from pgmkit.inference import model_tables

CASES = 40


def drawn(seed: int) -> GraphicalModel:
    """A model of two to seven attributes, some of them in no potential, some cells impossible."""
    rng = np.random.default_rng(seed)
    domain = Domain({f"x{i}": int(rng.integers(1, 5)) for i in range(rng.integers(2, 8))})
    factors = []
    for _ in range(int(rng.integers(1, 7))):
        clique = tuple(rng.permutation(domain.attributes)[: rng.integers(1, 4)])
        values = rng.normal(size=domain.shape(clique)) * rng.choice([1.0, 30.0])
        values[rng.random(values.shape) < 0.1] = -np.inf
        factors.append(Factor(domain.project(clique), values))
    return GraphicalModel(domain, tuple(factors), total=1000.0)


def joint(model: GraphicalModel) -> tuple[NDArray[np.float64], float]:
    """All probabilities, written out, and the log partition function."""
    logs = np.zeros(model.domain.shape())
    for factor in model.potentials:
        logs = logs + factor.expand(model.domain).numpy()
    weights = np.exp(logs - logs.max())
    return weights / weights.sum(), float(logs.max() + np.log(weights.sum()))


def possible() -> list[GraphicalModel]:
    models = [model for model in map(drawn, range(2 * CASES)) if tables_of(model).plain is not None]
    assert len(models) >= CASES
    return models[:CASES]


def test_marginals_and_answers_are_those_of_the_joint_distribution() -> None:
    for model in possible():
        whole, log_partition = joint(model)
        names = model.domain.attributes
        cliques = [(name,) for name in names] + list(itertools.permutations(names, 2))
        for clique, table in model.marginals(cliques).items():
            away = tuple(axis for axis, name in enumerate(names) if name not in clique)
            kept = [name for name in names if name in clique]
            expected = whole.sum(axis=away).transpose([kept.index(name) for name in clique])
            np.testing.assert_allclose(table, 1000 * expected, rtol=1e-9, atol=1e-9)
        assert model.log_partition == pytest.approx(log_partition, rel=1e-12, abs=1e-9)
        query = FactoredQuery({names[0]: np.arange(2.0 * whole.shape[0]).reshape(2, -1) - 1})
        single = whole.reshape(whole.shape[0], -1).sum(axis=1)
        expected = 1000 * query.factors[names[0]] @ single
        np.testing.assert_allclose(model.answer(query), expected, rtol=1e-9, atol=1e-9)


def test_torch_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for model in possible():
        pairs = list(itertools.combinations(model.domain.attributes, 2))
        plain = model.marginals(pairs)
        with monkeypatch.context() as patch:
            patch.setattr(model_tables, "MOST_CELLS", 0)
            again = GraphicalModel(model.domain, model.potentials, model.total)
            assert tables_of(again).plain is None
            for pair, table in again.marginals(pairs).items():
                np.testing.assert_allclose(plain[pair], table, rtol=1e-7, atol=1e-7)


def test_all_pairs_take_one_pass_over_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each clique is summed to few of its attributes, however many pairs are asked."""
    rng = np.random.default_rng(0)
    domain = Domain({f"x{i}": 3 for i in range(30)})
    edges = [(f"x{(i - 1) // 2}", f"x{i}") for i in range(1, 29)]  # x29 is in a tree of its own
    factors = [Factor(domain.project(each), rng.normal(size=(3, 3))) for each in edges]
    tables = tables_of(GraphicalModel(domain, tuple(factors), total=1000.0))
    assert tables.plain is not None
    sums = []
    whole = model_tables.sum_to
    monkeypatch.setattr(model_tables, "sum_to", lambda *each: sums.append(each) or whole(*each))
    assert len(tables.pairs(list(itertools.combinations(domain.attributes, 2)))) == 435
    assert len(sums) <= 5 * len(tables.tree.cliques)


def test_records_are_drawn_from_the_same_beliefs() -> None:
    domain = Domain({"a": 2, "b": 3})
    logs = np.log(np.array([[4.0, 1.0, 5.0], [1.0, 8.0, 1.0]]))
    records = GraphicalModel(domain, (Factor(domain, logs),), total=20.0).sample(2000, rng=0)
    np.testing.assert_allclose(records.marginal(("a", "b")), 100 * np.exp(logs), atol=1)


def test_a_model_without_records_is_refused() -> None:
    domain = Domain({"a": 2})
    model = GraphicalModel(domain, (Factor(domain, [-np.inf, -np.inf]),), total=1.0)
    assert tables_of(model).plain is None
    with pytest.raises(NumericalFailure, match="no record has"):
        model.marginal(("a",))
