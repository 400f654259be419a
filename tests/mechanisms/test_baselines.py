"""The baselines: draws against charges, what the tables answer, projections, refusals."""

import math
from pathlib import Path

import numpy as np
import pytest
from pricing import Priced, total_variation
from scipy.sparse import csr_array
from seams import draw_from

from mechanisms.baselines import Gaussian, Projection, gaussian, independent, projection
from mechanisms.datasets.census import census
from mechanisms.families.tables import (
    TablesModel,
    check_projection,
    least_squares_table,
    projected,
)
from mechanisms.matrix import MatrixPgm, matrix_pgm
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.workload import Workload, k_way
from pgmkit import RegionModel, Zeros
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel
from pgmkit.queries import FactoredQuery, prefix
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.memory import MEMORY_LIMIT

DATA = census(2000).project(["sex", "work", "hours", "income"])
PAIRS = k_way(DATA.domain, 2)


def curator_with(
    relation: str = "replace-one", delta: float = 1e-8, epsilon: float = 1.0
) -> Curator:
    return Curator(DATA, Budget(epsilon, delta), neighbours=relation, seed=0)


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-8])
@pytest.mark.parametrize("mechanism", [gaussian, projection, independent])
def test_draws_match_charges_and_the_budget(relation: str, delta: float, mechanism: object) -> None:
    curator = curator_with(relation, delta)
    noise = Priced(relation, pure=delta == 0)
    draw_from(curator, noise)
    release = mechanism(curator, PAIRS)
    assert len(noise.costs) == len(release.measurements)
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-12)
    assert release.model.total == (2000 if relation == "replace-one" else release.model.total)


def test_shares_follow_the_weights() -> None:
    curator = curator_with()
    gaussian(curator, Workload(DATA.domain, [("sex",), ("work",)], weights=[3, 1]))
    first, second = (entry.cost for entry in curator.ledger.entries)
    assert first == pytest.approx(3 * second)


def test_gaussian_answers_its_tables_and_refuses_others(tmp_path: Path) -> None:
    workload = Workload(DATA.domain, [("work", "sex"), ("hours",)])
    release = gaussian(curator_with(), workload, Gaussian(clip=False))
    table = release.measurements[0].values.reshape(DATA.domain.shape(("work", "sex")))
    model = release.model
    assert np.array_equal(model.marginal(("sex", "work")), table.T)
    assert np.array_equal(model.marginal(("sex",)), table.sum(0))
    query = FactoredQuery({"work": prefix(DATA.domain.sizes["work"])})
    assert np.allclose(release.answer(query), np.cumsum(table.sum(1)))
    for refused in [("income",), ("sex", "hours")]:
        with pytest.raises(InvalidInput, match="no released table holds"):
            model.marginal(refused)
    with pytest.raises(InvalidInput, match="no distribution over all attributes; fit a model"):
        release.sample(5)
    model.save(tmp_path / "tables.npz")
    again = TablesModel.load(tmp_path / "tables.npz")
    assert again.total == model.total and again.domain == model.domain
    assert np.array_equal(again.marginal(("sex", "work")), table.T)
    with pytest.raises(InvalidInput, match="not a pgmkit tables file"):
        (tmp_path / "junk.npz").write_text("junk")
        TablesModel.load(tmp_path / "junk.npz")


def test_clipping_changes_negative_cells_alone() -> None:
    raw, clipped = (
        gaussian(curator_with(epsilon=0.01), PAIRS, Gaussian(clip=clip)).model
        for clip in (False, True)
    )
    for clique in PAIRS.cliques:
        table = raw.marginal(clique)
        assert np.array_equal(clipped.marginal(clique), np.maximum(table, 0))
    assert min(raw.marginal(clique).min() for clique in PAIRS.cliques) < 0


@pytest.mark.parametrize("model_mb", [80.0, 0.0])
def test_projection_is_a_model_or_consistent_tables(model_mb: float) -> None:
    release = projection(curator_with(), PAIRS, Projection(model_mb))
    model = release.model
    assert isinstance(model, GraphicalModel if model_mb else TablesModel)
    sums = {c: model.marginal(c) for c in PAIRS.cliques}
    for (a, b), table in sums.items():
        assert table.min() >= 0 and table.sum() == pytest.approx(2000, abs=1)
        for other, second in sums.items():
            if a in other:
                shared = second.sum(axis=1 - other.index(a))
                assert np.allclose(table.sum(axis=1), shared, atol=3)
        assert a != b


@pytest.mark.parametrize("model_mb", [80.0, 0.0])
def test_projection_brings_the_tables_nearer(model_mb: float) -> None:
    """The ratio is 0.84, standard deviation 0.042: of three seeds, 6.6 away from 1."""
    ratios = []
    for seed in range(3):
        one, other = (
            Curator(DATA, Budget(1.0, 1e-8), neighbours="replace-one", seed=seed) for _ in range(2)
        )
        model, noisy = (
            projection(one, PAIRS, Projection(model_mb)).model,
            gaussian(other, PAIRS).model,
        )
        ratios.append(total_variation(DATA, model, PAIRS) / total_variation(DATA, noisy, PAIRS))
    assert np.mean(ratios) < 1


def test_tables_of_measurements_through_matrices() -> None:
    domain = Domain({"a": 3, "b": 2})
    truth = np.arange(6.0)
    matrices = [np.tril(np.ones((3, 3))), np.array([[1.0, 0], [0, 1], [1, 1]])]
    m = Measurement(("a", "b"), np.kron(*matrices) @ truth, 0.02, matrices)
    inverse = np.linalg.pinv(np.kron(*matrices))
    table = least_squares_table(m)
    assert np.allclose(table.values, truth)
    assert table.stddev == pytest.approx(0.02 * math.sqrt(np.diag(inverse @ inverse.T).mean()))
    for model_mb in (0.0, 1.0):
        model = projected(domain, [m], [table], 15, Projection(model_mb=model_mb))
        assert np.allclose(model.marginal(("b", "a")), truth.reshape(3, 2).T, atol=0.05)


def test_independent_knows_the_single_attributes_only() -> None:
    """The largest error is 0.2 counts, standard deviation 0.4."""
    model = independent(curator_with(epsilon=100.0), PAIRS).model
    for name in DATA.domain:
        assert np.allclose(model.marginal((name,)), DATA.marginal((name,)), atol=10)
    expected = np.outer(model.marginal(("sex",)), model.marginal(("work",))) / 2000
    assert np.allclose(model.marginal(("sex", "work")), expected)


def test_refusals_come_before_spending() -> None:
    with pytest.raises(InvalidInput, match="model_mb"):
        Projection(math.nan)
    curator = curator_with()
    for mechanism in (gaussian, projection, independent):
        with pytest.raises(InvalidInput, match="another domain"):
            mechanism(curator, k_way(Domain({"a": 2, "b": 2}), 2))
    assert curator.ledger.spent == 0
    for tables, total in [({}, 1.0), ({("a",): [1.0]}, 1.0), ({("a",): [1.0, 2.0]}, 0.0)]:
        with pytest.raises(InvalidInput):
            TablesModel(Domain({"a": 2}), tables, total)


@pytest.mark.parametrize(
    ("mechanism", "settings"),
    [(projection, Projection(model_mb=1)), (matrix_pgm, MatrixPgm(model_mb=1))],
)
def test_tables_that_cannot_be_made_to_agree_in_memory_cost_no_budget(
    monkeypatch: pytest.MonkeyPatch, mechanism: object, settings: object
) -> None:
    domain = Domain(dict.fromkeys("abc", 500))
    data = Dataset(domain, {name: [0] for name in "abc"})
    curator = Curator(data, Budget(1.0, 1e-6), neighbours="replace-one", seed=0)
    monkeypatch.setattr("pgmkit.runtime.memory.room", lambda: 0)
    with pytest.raises(ModelTooLarge, match="making 3 tables agree"):
        mechanism(curator, k_way(domain, 2), settings)
    assert not curator.ledger.entries


CHAIN = Domain({"a": 2, "b": 3, "c": 4})
NOISY = [
    Measurement(("a", "b"), [[5.0, -1.0, 3.0], [2.0, 4.0, 0.0]], 1.0),
    Measurement(("b", "c"), np.linspace(-1.0, 4.0, 12), 2.0),
]
TREE = (6 + 12) * 8 / 2**20
"""The MB of the junction tree of these pairs."""


@pytest.mark.parametrize("below", [True, False])
def test_a_model_is_graphical_up_to_the_limit_and_tables_beyond(below: bool) -> None:
    settings = Projection(model_mb=TREE * (0.999 if below else 1.0))
    for total in (None, 20):
        model = projected(CHAIN, NOISY, NOISY, total, settings)
        assert isinstance(model, TablesModel if below else GraphicalModel)
        for m in NOISY:
            table = model.marginal(m.clique)
            assert table.min() >= 0 and table.sum() == pytest.approx(model.total, rel=1e-12)
        assert total is None or model.total == total
    none = [Measurement(m.clique, np.full_like(m.values, -0.1), m.stddev) for m in NOISY]
    assert projected(CHAIN, none, none, None, settings).total == 1.0


@pytest.mark.parametrize("inference", ["region", "auto"])
def test_beyond_the_limit_a_region_model_draws_records(inference: str) -> None:
    settings = Projection(model_mb=0.0, inference=inference)  # type: ignore[arg-type]
    model = projected(CHAIN, NOISY, NOISY, 20, settings)
    assert isinstance(model, RegionModel) and model.total == 20


@pytest.mark.parametrize("megabytes", [0.0, TREE])
def test_zeros_hold_whether_or_not_the_tree_fits(megabytes: float) -> None:
    allowed = np.array([[True, True, True], [True, False, True]])
    settings, zeros = Projection(model_mb=megabytes), [Zeros(("a", "b"), allowed)]
    model = projected(CHAIN, NOISY, NOISY, 20, settings, zeros)
    assert (np.asarray(model.marginal(["a", "b"]))[~allowed] == 0).all()
    assert model.total == 20 and np.asarray(model.marginal(["b"]))[1] > 0


def test_only_tables_that_must_be_made_to_agree_need_room(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "mechanisms.families.tables.check_room", lambda n, what, remedy: asked.append(what)
    )
    pairs = [("a", "b"), ("b", "c"), ("a", "b"), ()]
    for settings in (
        Projection(model_mb=TREE),
        Projection(model_mb=0.0, inference="region"),
        Projection(model_mb=0.0, inference="auto"),
    ):
        check_projection(CHAIN, pairs, pairs, settings)
    zeros = [Zeros(("a",), np.array([True, False]))]  # the result is then a region model
    check_projection(CHAIN, pairs, pairs, Projection(model_mb=0.0), zeros)
    assert not asked
    check_projection(CHAIN, pairs, pairs, Projection(model_mb=0.0))
    assert asked == ["making 2 tables agree"]
    for share, times in ((0.75, 0), (1.25, 1)):  # no model takes more than the limit of memory
        asked.clear()
        wide = Domain({"a": int(share * MEMORY_LIMIT / 8)})
        check_projection(wide, [("a",)], [("a",)], Projection(model_mb=1e9))
        assert len(asked) == times


def test_a_sparse_matrix_is_inverted_as_a_dense_one() -> None:
    rows = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    found, expected = (
        least_squares_table(Measurement(("b",), [3.0, 5.0, 9.0], 1.5, matrix))
        for matrix in (csr_array(rows), rows)
    )
    assert found.values == pytest.approx([3.0, 2.0, 4.0]) and found.stddev == expected.stddev
