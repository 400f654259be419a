"""MWEM+PGM: draws against charges, the update's scope, limits, accuracy, leaks."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pricing import Priced, reachable, total_variation
from seams import draw_from

from mechanisms.datasets.census import census
from mechanisms.families.graphical import estimator
from mechanisms.mwem_pgm import MwemPgm, mwem_pgm
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import BudgetExceeded
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.release.record import Release
from mechanisms.rounds.loop import Round
from mechanisms.workload import k_way
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.graphs.junction_tree import junction_tree
from pgmkit.model import GraphicalModel
from pgmkit.records.dataset import Dataset

ATTRIBUTES = ["sex", "education", "work", "hours", "income"]


def small_data(rows: int = 4177) -> Dataset:
    return census(rows).project(ATTRIBUTES)


def run(
    budget: Budget,
    relation: str = "add/remove",
    seed: int | None = 0,
    settings: MwemPgm | None = None,
    **options: object,
) -> tuple[Curator, Release]:
    curator = Curator(small_data(), budget, neighbours=relation, seed=seed)
    release = mwem_pgm(curator, k_way(curator.domain, 2), settings, **options)
    return curator, release


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-8])
def test_draws_match_charges_and_the_budget(relation: str, delta: float) -> None:
    curator = Curator(small_data(), Budget(1.0, delta), neighbours=relation)
    noise = Priced(relation, pure=delta == 0)
    draw_from(curator, noise)
    release = mwem_pgm(curator, k_way(curator.domain, 2), MwemPgm(rounds=3))
    assert len(noise.costs) == 5 + 2 * 3
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-9)
    assert math.fsum(noise.costs) <= curator.ledger.budget.total * (1 + 1e-9)


def test_a_curator_already_used_gives_only_what_is_left() -> None:
    curator = Curator(small_data(), Budget(1.0, 1e-8), neighbours="add/remove", seed=0)
    curator.measure(("sex",), 0.5 * curator.remaining)
    mwem_pgm(curator, k_way(curator.domain, 2), MwemPgm(rounds=2))
    assert curator.ledger.spent == pytest.approx(curator.ledger.budget.total, rel=1e-12)
    with pytest.raises(BudgetExceeded):
        curator.measure(("sex",), 1e-6)


def test_the_update_cannot_reach_the_data() -> None:
    # Neither Curator nor Dataset nor any table is in the scope in which the update was built.
    found = list(reachable(estimator(small_data().domain, None)))
    assert not [x for x in found if isinstance(x, Curator | Dataset | np.ndarray)]


@pytest.mark.parametrize("delta", [0.0, 1e-8])
def test_nothing_exact_leaves(
    delta: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    data = small_data()
    curator = Curator(data, Budget(1.0, delta), neighbours="add/remove")
    noise = Priced("add/remove", pure=delta == 0)
    draw_from(curator, noise)
    rounds: list[Round[GraphicalModel, Clique]] = []
    release = mwem_pgm(curator, k_way(curator.domain, 2), MwemPgm(rounds=3), progress=rounds.append)
    exact = {np.asarray(x, dtype=float).tobytes() for x in [*noise.exact, len(data)]}
    exact |= {np.asarray(t, dtype=float).tobytes() for t in curator._counts.values()}
    for thing in reachable((release, rounds)):
        assert not isinstance(thing, Curator | Dataset)
        if isinstance(thing, np.ndarray) and thing.dtype.kind in "iuf":
            assert np.asarray(thing, dtype=float).tobytes() not in exact
        assert not (isinstance(thing, int) and thing == len(data))
    release.model.save(tmp_path / "model.pgm")
    shown = f"{release!r} {release.ledger} {rounds!r} {caplog.text}"
    assert str(len(data)) not in shown.replace(",", "")
    with np.load(tmp_path / "model.pgm") as saved:
        for name in saved.files:
            if saved[name].dtype.kind in "iuf":
                assert np.asarray(saved[name], dtype=float).tobytes() not in exact


def test_rounds_are_published_with_noise_only() -> None:
    rounds: list[Round[GraphicalModel, Clique]] = []
    _, release = run(Budget(1.0, 1e-8), settings=MwemPgm(rounds=3), progress=rounds.append)
    assert [r.index for r in rounds] == [0, 1, 2]
    assert rounds[0].after is rounds[1].before
    assert rounds[-1].after is release.model
    assert [r.picked for r in rounds] == [(r.measurements[0].clique,) for r in rounds]


def test_with_much_budget_the_pairs_are_right() -> None:
    """All but without noise: the error is 4e-5."""
    curator, release = run(Budget(500.0, 1e-8), settings=MwemPgm(rounds=10))
    data, workload = small_data(), k_way(curator.domain, 2)
    assert total_variation(data, release.model, workload) < 0.001
    # Every pair is selected once: one that is known has no error left.
    chosen = {m.clique for m in release.measurements if len(m.clique) == 2}
    assert len(chosen) == 10


def test_rounds_improve_on_independence() -> None:
    """The ratio is 0.23, standard deviation 0.012: 22 away from the limit."""
    curator, release = run(Budget(1.0, 1e-8))
    data, workload = small_data(), k_way(curator.domain, 2)
    one_way = [m for m in release.measurements if len(m.clique) == 1]
    independent = estimator(curator.domain, None)(None, one_way)
    better = total_variation(data, release.model, workload)
    assert better < 0.5 * total_variation(data, independent, workload)


def test_the_model_stays_within_its_limit() -> None:
    limit = 1500 * 8 / 2**20
    curator, release = run(Budget(10.0, 1e-8), settings=MwemPgm(rounds=12, model_mb=limit))
    cliques = [m.clique for m in release.measurements]
    unlimited_curator, unlimited = run(Budget(10.0, 1e-8), settings=MwemPgm(rounds=12))
    assert junction_tree(curator.domain, cliques).cells <= 1500
    more = [m.clique for m in unlimited.measurements]
    assert junction_tree(unlimited_curator.domain, more).cells > 1500


def test_noise_is_weighed_against_error_and_models_may_grow_by_equal_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table's penalty is the noise that it would get: the expected absolute value of a normal
    variable in each cell. Round r of T offers what a model of r / T of the limit could hold.
    """
    asked: list[dict[str, float]] = []
    choose = Curator.choose

    def noted(self: Curator, candidates: list[Clique], *args: Any, **options: Any) -> Clique:
        asked.append(dict(zip(candidates, options["penalties"], strict=True)))
        return choose(self, candidates, *args, **options)

    monkeypatch.setattr(Curator, "choose", noted)
    limit = 3 * 60 * 8 / 2**20
    curator, _ = run(Budget(1.0, 1e-8), settings=MwemPgm(rounds=3, model_mb=limit))
    domain, measured = curator.domain, [e for e in curator.ledger.entries if "round" in e.step]
    stddev = (2 * measured[1].cost) ** -0.5
    pairs = k_way(domain, 2).cliques
    for number, penalties in enumerate(asked, 1):
        assert set(penalties) == {c for c in pairs if domain.size(c) <= number * 60}
        for clique, penalty in penalties.items():
            assert penalty == pytest.approx(domain.size(clique) * stddev * (2 / math.pi) ** 0.5)
    assert len(asked[0]) < len(asked[2])


def test_the_total_is_public_under_replace_one_only() -> None:
    budget = Budget(1.0, 1e-8)
    _, bounded = run(budget, "replace-one", settings=MwemPgm(rounds=1))
    _, unbounded = run(budget, "add/remove", settings=MwemPgm(rounds=1))
    assert bounded.model.total == 4177
    assert unbounded.model.total != 4177


@pytest.mark.parametrize("seed", range(6))
def test_noise_beyond_the_data_still_gives_a_release(seed: int) -> None:
    curator = Curator(small_data(30), Budget(0.001, 1e-9), neighbours="add/remove", seed=seed)
    release = mwem_pgm(curator, k_way(curator.domain, 2), MwemPgm(rounds=2))
    assert release.model.total >= 1
    assert len(release.sample(5, rng=0)) == 5


def test_a_seed_reproduces_the_release_and_marks_it() -> None:
    settings = MwemPgm(rounds=2)
    first, second, third = (
        run(Budget(1.0, 1e-8), seed=seed, settings=settings)[1] for seed in (3, 3, 4)
    )
    values = [np.concatenate([m.values for m in r.measurements]) for r in (first, second, third)]
    assert np.array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])
    assert not first.secure
    assert "INSECURE" in repr(first)
    assert run(Budget(1.0, 1e-8), seed=None, settings=settings)[1].secure


def test_release_samples_and_answers() -> None:
    from pgmkit.queries import FactoredQuery

    _, release = run(Budget(1.0, 1e-8), settings=MwemPgm(rounds=2))
    assert len(release.sample(rng=1)) == round(release.model.total)
    assert len(release.sample(77, rng=1)) == 77
    query = FactoredQuery({"sex": np.eye(2)})
    assert np.allclose(release.answer(query), release.model.marginal(("sex",)))


def test_an_interrupt_returns_nothing() -> None:
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Budget(1.0, 1e-8), progress=stop)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds"),
        ({"rounds": 1.5}, "rounds"),
        ({"rounds": True}, "rounds"),
        ({"one_way_share": 0.0}, "one_way_share"),
        ({"one_way_share": 1.0}, "one_way_share"),
        ({"select_share": math.nan}, "select_share"),
        ({"model_mb": 0.0}, "model_mb"),
        ({"model_mb": math.inf}, "model_mb"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        MwemPgm(**settings)


def test_refusals_come_before_spending() -> None:
    curator = Curator(small_data(), Budget(1.0, 1e-8), neighbours="add/remove", seed=0)
    with pytest.raises(InvalidInput, match="another domain"):
        mwem_pgm(curator, k_way(Domain({"a": 2, "b": 2}), 2))
    with pytest.raises(InvalidInput, match="no workload clique fits"):
        mwem_pgm(curator, k_way(curator.domain, 2), MwemPgm(model_mb=1e-5))
    assert curator.ledger.spent == 0


@pytest.mark.benchmark
def test_adult_pairs_are_no_worse_than_the_peer() -> None:
    import json

    from pgmkit import Schema, encode_file

    folder = os.environ.get("PGMKIT_DATA")
    if not folder:
        pytest.skip("PGMKIT_DATA is not set: it names the folder with adult.csv")
    domain = Domain(json.loads((Path(folder) / "adult.domain.json").read_text()))
    data = encode_file(Path(folder) / "adult.csv", Schema.from_dict(domain.sizes))
    workload = k_way(domain, 2)
    errors = []
    for seed in range(5):
        curator = Curator(data, Budget(1.0, 4.2e-10), neighbours="add/remove", seed=seed)
        release = mwem_pgm(curator, workload, MwemPgm(rounds=13))
        errors.append(total_variation(data, release.sample(rng=seed), workload))
    assert np.mean(errors) <= 0.0318


def test_an_attribute_of_one_value_is_not_measured_by_itself() -> None:
    """Its count is the total: the others share the budget for one-way marginals."""
    domain = Domain({"a": 2, "one": 1, "b": 3})
    data = Dataset(domain, {"a": [0, 1] * 20, "one": [0] * 40, "b": [0, 1, 2, 2] * 10})
    curator = Curator(data, Budget(1.0, 1e-6), neighbours="add/remove", seed=0)
    release = mwem_pgm(curator, k_way(domain, 2), MwemPgm(rounds=1))
    first = [e for e in curator.ledger.entries if e.step.startswith("first")]
    assert [e.step for e in first] == ["first: measure a", "first: measure b"]
    assert [e.cost for e in first] == pytest.approx([0.1 * curator.ledger.budget.total] * 2)
    assert release.model.marginal(["one"]) == pytest.approx([release.model.total])
