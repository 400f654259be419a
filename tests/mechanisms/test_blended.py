"""Blends of a graphical model and a mixture, the graphical model of noisy tables, and the share."""

import itertools
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from mechanisms import synthesize
from mechanisms.families.blended import BlendedModel, blended
from mechanisms.families.held_out import blending_share
from mechanisms.families.product_mixture import PairMixtureModel, ProductMixtureModel
from mechanisms.families.table_graph import graph_of_tables
from mechanisms.mixture import Mixture, mixture
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release, draw_near
from mechanisms.workload import k_way
from pgmkit import Schema
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.factor import Factor
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel
from pgmkit.queries import FactoredQuery, prefix
from pgmkit.records.dataset import Dataset

DOMAIN = Domain({"a": 2, "b": 3, "c": 2})


def chain(total: float = 60.0) -> GraphicalModel:
    rng = np.random.default_rng(5)
    tables = [rng.normal(size=DOMAIN.shape(c)) for c in (("a", "b"), ("b", "c"))]
    cliques = [("a", "b"), ("b", "c")]
    factors = [Factor(DOMAIN.project(c), t) for c, t in zip(cliques, tables, strict=True)]
    return GraphicalModel(DOMAIN, tuple(factors), total=total)


def rows(family: type[ProductMixtureModel] = PairMixtureModel) -> ProductMixtureModel:
    return family(DOMAIN, [[1, 0, 0.2, 0.3, 0.5, 0.9, 0.1], [0.4, 0.6, 0.7, 0.2, 0.1, 0, 1]], 40.0)


def test_a_blend_counts_the_records_of_both() -> None:
    model, whole = BlendedModel(chain(), rows()), ("a", "b", "c")
    joint = chain().marginal(whole) + rows().marginal(whole)
    assert (model.total, joint.sum()) == pytest.approx((100.0, 100.0))
    np.testing.assert_allclose(model.marginal(("c", "a")), joint.sum(1).T)
    np.testing.assert_allclose(model.marginal(iter(("c", "a"))), joint.sum(1).T)
    found = model.marginals([("b",), ("c", "a"), ()])
    np.testing.assert_allclose(found[("b",)], joint.sum((0, 2)))
    np.testing.assert_allclose(found[("c", "a")], joint.sum(1).T)
    np.testing.assert_allclose(found[()], 100.0)
    query = FactoredQuery({"b": prefix(3), "c": [[0.0, 2.0]]})
    np.testing.assert_allclose(model.answer(query).ravel(), 2 * joint.sum(0)[:, 1].cumsum())


def test_conditions_weigh_both_by_how_likely_they_are() -> None:
    model = BlendedModel(chain(), rows())
    joint = model.marginal(("a", "b", "c"))
    found = model.given({"b": [0, 2], "c": 1})
    assert isinstance(found, BlendedModel)
    np.testing.assert_allclose(found.marginal(("a",)), joint[:, [0, 2], 1].sum(1))
    assert found.total == pytest.approx(joint[:, [0, 2], 1].sum())


def test_a_model_without_such_records_has_no_part_in_the_condition() -> None:
    one = ProductMixtureModel(DOMAIN, [[1, 0, 0.2, 0.3, 0.5, 0.9, 0.1]], 40.0)
    only_graph = BlendedModel(chain(), one).given({"a": 1})
    np.testing.assert_allclose(only_graph.total, chain().marginal(("a",))[1])
    never = GraphicalModel(DOMAIN, (Factor(DOMAIN.project(("a",)), [-math.inf, 0.0]),), total=60.0)
    only_rows = BlendedModel(never, one).given({"a": 0})
    assert only_rows.total == pytest.approx(40.0)
    with pytest.raises(InvalidInput, match="no records"):
        BlendedModel(never, rows()).given({"a": 0, "b": 0}).given({"a": 1})
    with pytest.raises(InvalidInput, match="'d'"):
        BlendedModel(chain(), one).given({"d": 0})


def test_records_come_from_both_in_their_shares() -> None:
    """The mixture never has the code 1 of a, and the graph always has."""
    graph = GraphicalModel(DOMAIN, (Factor(DOMAIN.project(("a",)), [-math.inf, 0.0]),), total=30.0)
    mixture = PairMixtureModel(DOMAIN, [[1, 0, 0.2, 0.3, 0.5, 0.9, 0.1]], 70.0)
    model = BlendedModel(graph, mixture)
    for drawn in (model.sample(1001, rng=3), model.first_records(1001, rng=3)):
        ones = drawn.columns["a"]
        assert len(drawn) == 1001 and ones.sum() in (300, 301)
        assert 0.2 < ones[:300].mean() < 0.4  # they are shuffled: a false alarm in 1e4 at most
    assert len(model.sample(1, rng=0)) == 1
    near = draw_near(model, 2000, rng=1)
    np.testing.assert_allclose(near.marginal(("a",)), [1400, 600], atol=2)
    first = model.sample(50, rng=9)
    assert all(np.array_equal(first.columns[n], model.sample(50, rng=9).columns[n]) for n in DOMAIN)
    with pytest.raises(InvalidInput, match="n must be"):
        model.sample(0)


@pytest.mark.parametrize("family", [PairMixtureModel, ProductMixtureModel])
def test_files_and_copies_hold_both(family: type[ProductMixtureModel], tmp_path: Path) -> None:
    model = BlendedModel(chain(), rows(family))
    model.save(tmp_path / "model")
    assert [each.name for each in tmp_path.iterdir()] == ["model"]
    for found in (BlendedModel.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert type(found.mixture) is family
        np.testing.assert_array_equal(found.marginal(("a", "c")), model.marginal(("a", "c")))
    with pytest.raises(InvalidInput, match="more than 100 bytes"):
        BlendedModel.load(tmp_path / "model", max_bytes=100)
    with pytest.raises(
        FileNotFoundError, match="cannot write .*model: the folder .* does not exist"
    ):
        model.save(tmp_path / "none" / "model")
    chain().save(tmp_path / "graph")
    with pytest.raises(InvalidInput, match="is not a pgmkit blend file"):
        BlendedModel.load(tmp_path / "graph")


def test_the_domains_must_be_the_same() -> None:
    other = ProductMixtureModel(Domain({"a": 2}), [[1, 0]], 40.0)
    with pytest.raises(InvalidInput, match="same domain"):
        BlendedModel(chain(), other)


@pytest.mark.parametrize(("share", "expected"), [(0.25, 0.25), (1.0, 1 - 0.5 / 40)])
def test_a_share_is_one_of_the_mixtures_total(share: float, expected: float) -> None:
    """The mixture keeps half a record at least."""
    model = blended(chain(7.0), rows(), share)
    assert model.total == pytest.approx(40.0)
    assert model.graph.total == pytest.approx(expected * 40.0)
    assert type(model.mixture) is PairMixtureModel
    np.testing.assert_allclose(
        model.mixture.marginal(("b",)) / (1 - expected), rows().marginal(("b",))
    )


# The share of least distance.


def trials(seed: int, far: float) -> tuple[Any, Any, Any]:
    """Two trials of three tables. The other model is `far` times as far as the first one."""
    rng = np.random.default_rng(seed)
    cliques = [("a", "b"), ("b", "c"), ("a", "c")]
    truth = {c: rng.uniform(20, 90, DOMAIN.shape(c)) for c in cliques}
    scales = {c: rng.uniform(1, 4) for c in cliques}
    held, ones, others = [], [], []
    for _ in range(2):
        noise = {c: rng.normal(0, scales[c], t.shape) for c, t in truth.items()}
        held.append([Measurement(c, (truth[c] + noise[c]).ravel(), scales[c]) for c in cliques])
        ones.append({c: t + rng.normal(0, 9, t.shape) for c, t in truth.items()})
        others.append({c: t + rng.normal(0, 9 * far, t.shape) for c, t in truth.items()})
    return held, ones, others


def share_of(held: Any, ones: Any, others: Any) -> float:
    tables = [each.items() for each in others]
    return blending_share(zip(held, ones, tables, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_the_share_is_that_of_least_squares_shrunk_by_its_noise(seed: int) -> None:
    held, ones, others = trials(seed, 1.2)
    terms = []
    for tables, one, other in zip(held, ones, others, strict=True):
        for m in tables:
            d, r = (other[m.clique] - one[m.clique]).ravel(), m.values - one[m.clique].ravel()
            terms.append((1 / math.sqrt(d @ d + len(d) * m.stddev**2), d, r, m.stddev))
    least = minimize_scalar(lambda w: sum(q * ((r - w * d) ** 2).sum() for q, d, r, _ in terms)).x
    # The variance of the share, from draws of the noise.
    rng, noisy = np.random.default_rng(seed), []
    below = sum(q * (d @ d) for q, d, *_ in terms)
    for _ in range(4000):
        noisy.append(sum(q * (d @ rng.normal(0, s, len(d))) for q, d, _, s in terms) / below)
    expected = least * (1 - np.var(noisy) / least**2)
    assert 0.1 < expected < 0.9
    assert share_of(held, ones, others) == pytest.approx(expected, rel=0.01)


def test_a_model_is_kept_if_blending_gains_little() -> None:
    held, ones, others = trials(0, 1.0)
    assert share_of(held, ones, ones) == 0.0
    exact = [{m.clique: m.values.reshape(DOMAIN.shape(m.clique)) for m in t} for t in held]
    assert share_of(held, exact, others) == 0.0
    assert share_of(held, ones, exact) == pytest.approx(1.0, abs=0.02)
    beyond = [
        {c: t + 3 * (e[c] - t) / 4 for c, t in one.items()}
        for one, e in zip(ones, exact, strict=True)
    ]
    assert share_of(held, ones, beyond) == 1.0  # 4/3 of the way


@pytest.mark.parametrize(("squared", "share"), [(0.069, 0.0), (0.071, math.sqrt(0.071) / 2)])
def test_a_mean_is_taken_if_it_lowers_the_squares_by_seven_hundredths(
    squared: float, share: float
) -> None:
    """The first model is 100 counts from the values, the other 200 from it, in a direction at an
    angle to that of the values; the squared cosine is the part by which the mean lowers squares.
    """
    held = [[Measurement(("a",), [100.0, 0.0], 1e-3)]]
    other = 200 * np.array([squared, 1 - squared]) ** 0.5
    found = share_of(held, [{("a",): np.zeros(2)}], [{("a",): other}])
    assert found == pytest.approx(share, abs=1e-6)


# The graphical model of noisy tables.


def tables_of(joint: np.ndarray[Any, Any], domain: Domain, noise: float) -> list[Measurement]:
    rng, names = np.random.default_rng(0), list(domain)
    found = []
    for k in (1, 2):
        for clique in itertools.combinations(names, k):
            others = tuple(i for i, name in enumerate(names) if name not in clique)
            exact = joint.sum(others)
            found.append(
                Measurement(clique, (exact + rng.normal(0, noise, exact.shape)).ravel(), noise)
            )
    return found


def test_a_pair_near_independence_is_kept_where_the_forest_relates_its_columns() -> None:
    """The column c is 1 where a and b are; the forest has both pairs with c, so that it relates a
    and b, which are independent.
    """
    domain, joint = Domain({"a": 2, "b": 2, "c": 2, "d": 2}), np.zeros((2, 2, 2, 2))
    for a, b in itertools.product((0, 1), repeat=2):
        joint[a, b, a * b] = 1250.0
    model = graph_of_tables(
        domain, tables_of(joint, domain, 5.0), 10_000.0, 1.0, whole=domain, pure=False
    )
    assert model is not None
    assert {frozenset(c) for c in model.cliques} == {*map(frozenset, ("ac", "bc", "ab"))} | {
        frozenset("d")
    }
    np.testing.assert_allclose(model.marginal(("a", "b")), 2500.0, atol=40)


@pytest.mark.parametrize("pure", [False, True])
def test_noise_alone_has_no_graph(pure: bool) -> None:
    """Of m tables of noise one stands out with a probability below 1 / sqrt(m), about."""
    domain = Domain(dict.fromkeys("abcdefgh", 3))
    joint = np.full(domain.shape(), 10.0 * 3**-4)
    tables = tables_of(joint, domain, 20.0)
    assert graph_of_tables(domain, tables, joint.sum(), 1.0, whole=domain, pure=pure) is None


def test_pairs_that_do_not_fit_are_left_out() -> None:
    domain, joint = Domain({"a": 2, "b": 2}), np.array([[400.0, 100.0], [100.0, 400.0]])
    tables = tables_of(joint, domain, 1.0)
    fits = 4 * 8 / 2**20
    assert graph_of_tables(domain, tables, 1000.0, fits, whole=domain, pure=False) is not None
    assert graph_of_tables(domain, tables, 1000.0, fits / 2, whole=domain, pure=False) is None
    merged = Domain({"a": 20, "b": 2})  # before its codes are merged
    assert graph_of_tables(domain, tables, 1000.0, fits, whole=merged, pure=False) is None


# The mechanism.


def related(rows: int) -> Dataset:
    """Ten columns: a chain of strongly related ones."""
    rng = np.random.default_rng(0)
    codes = [rng.integers(0, 8, rows)]
    for _ in range(9):
        codes.append(np.where(rng.random(rows) < 0.8, codes[-1], rng.integers(0, 8, rows)))
    domain = Domain({f"c{i}": 8 for i in range(10)})
    return Dataset(domain, dict(zip(domain, codes, strict=True)))


def released(data: Dataset, **settings: Any) -> Release:
    schema = Schema.from_dict(data.domain.sizes)
    return synthesize(
        data, schema, epsilon=1.0, delta=1e-7, mechanism="mixture", seed=0, settings=settings
    ).release


def test_a_tree_that_no_model_may_have_is_refused_before_spending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What does not fit was refused by the engine, after the budget was spent."""
    curator = Curator(related(100), Budget(1.0, 1e-7), neighbours="add/remove", seed=0)
    with pytest.raises(InvalidInput, match="graph_mb must be a number from 0 to 4096; got 4097"):
        Mixture(graph_mb=4097.0)
    monkeypatch.setattr("pgmkit.runtime.memory.room", lambda: 2**30)
    with pytest.raises(ModelTooLarge, match="a tree of graph_mb needs .* lower graph_mb"):
        mixture(curator, k_way(curator.domain, 2), Mixture(graph_mb=4000.0))
    assert curator.ledger.spent == 0


def test_a_mixture_is_blended_where_held_out_tables_ask_for_it(tmp_path: Path) -> None:
    """On a Markov chain a graphical model follows far less noise than rows do."""
    data = related(3000)
    found, alone = released(data), released(data, graph_mb=0.0)
    assert isinstance(found.model, BlendedModel) and type(alone.model) is PairMixtureModel
    assert found.model.total == pytest.approx(alone.model.total)
    pairs = list(itertools.combinations(data.domain, 2))
    truth = data.marginals(pairs)
    errors = [
        np.mean([np.abs(truth[c] - model.marginal(c)).sum() for c in pairs])
        for model in (found.model, alone.model)
    ]
    assert errors[0] < 0.95 * errors[1]
    found.save(tmp_path / "release")
    again = Release.load(tmp_path / "release")
    np.testing.assert_allclose(again.model.marginal(pairs[0]), found.model.marginal(pairs[0]))
