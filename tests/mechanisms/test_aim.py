"""AIM: draws against charges, annealing, limits, and accuracy against MWEM+PGM."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pricing import Priced, reachable, total_variation
from seams import draw_from

from mechanisms.aim import Aim, aim, final_fit, moved_within_noise, relevance
from mechanisms.datasets.census import census
from mechanisms.families.graphical import Affordable, estimator
from mechanisms.mwem_pgm import mwem_pgm
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS, relation
from mechanisms.release.record import Release
from mechanisms.rounds.loop import Round
from mechanisms.strategies.clique_queries import CliqueQueries
from mechanisms.workload import Workload, downward_closure, k_way
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.graphs.junction_tree import junction_tree
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel
from pgmkit.records.dataset import Dataset
from pgmkit.structural_zeros import Zeros

ATTRIBUTES = ["sex", "education", "work", "hours", "income"]


def small_data(rows: int = 4177) -> Dataset:
    return census(rows).project(ATTRIBUTES)


def run(budget: Budget, seed: int | None = 0, **settings: float) -> tuple[Curator, Release]:
    curator = Curator(small_data(), budget, neighbours="add/remove", seed=seed)
    return curator, aim(curator, k_way(curator.domain, 2), Aim(**settings))


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-8])
def test_draws_match_charges_and_the_budget(relation: str, delta: float) -> None:
    curator = Curator(small_data(), Budget(1.0, delta), neighbours=relation)
    noise = Priced(relation, pure=delta == 0)
    draw_from(curator, noise)
    rounds: list[Round[GraphicalModel, Clique]] = []
    release = aim(curator, k_way(curator.domain, 2), progress=rounds.append)
    assert len(noise.costs) == 5 + 2 * len(rounds) and len(rounds) > 2
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-9)
    assert math.fsum(noise.costs) <= curator.ledger.budget.total * (1 + 1e-9)
    exact = {np.asarray(x, dtype=float).tobytes() for x in noise.exact}
    for thing in reachable((release, rounds)):
        assert not isinstance(thing, Curator | Dataset)
        if isinstance(thing, np.ndarray) and thing.dtype.kind in "iuf":
            assert np.asarray(thing, dtype=float).tobytes() not in exact


def test_rounds_grow_fourfold_and_only_after_a_round_that_taught_nothing() -> None:
    curator = Curator(small_data(), Budget(1.0, 1e-8), neighbours="add/remove", seed=1)
    rounds: list[Round[GraphicalModel, Clique]] = []
    release = aim(curator, k_way(curator.domain, 2), progress=rounds.append)
    queries = CliqueQueries(k_way(curator.domain, 2), pure=False)
    costs = [e.cost for e in release.ledger.entries if e.step.startswith("measure")][5:]
    scales = [curator.expected_error(cost) for cost in costs]
    for i in range(len(costs) - 2):  # the last round spends the rest
        factor = 4 if moved_within_noise(rounds[i], queries, scales[i]) else 1
        assert costs[i + 1] == pytest.approx(factor * costs[i], rel=1e-9)


def test_the_annealing_rule() -> None:
    domain = Domain({"a": 2})

    class Fixed:
        def __init__(self, *counts: float) -> None:
            self.counts = np.array(counts)

        def marginal(self, clique: Clique) -> np.ndarray:
            return self.counts

    queries = CliqueQueries(Workload(domain, [("a",)]), pure=False)
    for moved, expected in [(1.0, True), (3.0, False)]:
        after = Fixed(10 + moved, 10 - moved)
        last = Round(0, (("a",),), (Measurement(("a",), [1, 1], 1.0),), Fixed(10, 10), after)
        assert moved_within_noise(last, queries, noise=2.0) is expected
    assert domain.size() == 2


def test_relevance_counts_shared_attributes() -> None:
    domain = Domain({"a": 2, "b": 2, "c": 2})
    workload = Workload(domain, [("a", "b"), ("b", "c")], weights=[1, 3])
    weights = relevance(workload, downward_closure(workload))
    expected = {("a",): 1, ("b",): 4, ("c",): 3, ("a", "b"): 5, ("b", "c"): 7}
    assert weights == expected


def test_more_accurate_than_mwem_pgm() -> None:
    """The log of the ratio is -0.19, standard deviation 0.019: 10 away from 0."""
    data = census(20_000)
    workload = k_way(data.domain, 2)
    ours, theirs = (
        total_variation(data, mechanism(curator, workload).model, workload)
        for mechanism in (aim, mwem_pgm)
        for curator in [Curator(data, Budget(1.0, 1e-8), neighbours="add/remove", seed=0)]
    )
    assert ours < theirs


def test_the_model_stays_within_its_limit() -> None:
    limit = 1500 * 8 / 2**20
    curator, release = run(Budget(10.0, 1e-8), model_mb=limit)
    cliques = [m.clique for m in release.measurements]
    assert junction_tree(curator.domain, cliques).cells <= 1500


def test_a_seed_reproduces_the_release() -> None:
    first, second = (run(Budget(1.0, 1e-8), seed=3)[1] for _ in range(2))
    for a, b in zip(first.measurements, second.measurements, strict=True):
        assert a.clique == b.clique and np.array_equal(a.values, b.values)
    assert not first.secure
    assert run(Budget(1.0, 1e-8), seed=None)[1].secure


def test_refusals_come_before_spending() -> None:
    for settings, message in [
        ({"select_share": 1.0}, "select_share"),
        ({"model_mb": 0.0}, "model_mb"),
        ({"tolerance": math.nan}, "tolerance"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            Aim(**settings)
    curator = Curator(small_data(), Budget(1.0, 1e-8), neighbours="add/remove", seed=0)
    with pytest.raises(InvalidInput, match="another domain"):
        aim(curator, k_way(Domain({"a": 2, "b": 2}), 2))
    with pytest.raises(InvalidInput, match="no workload clique fits"):
        aim(curator, k_way(curator.domain, 2), Aim(model_mb=1e-5))
    assert curator.ledger.spent == 0


def test_of_two_starts_the_better_model_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a warm start is not certified and queries are dense, a cold one is tried, too."""
    asked: list[tuple[bool, float]] = []

    def unsure(*args: Any, **options: Any) -> Any:
        update = estimator(*args, **options)

        def updated(model: GraphicalModel | None, known: Any) -> GraphicalModel:
            found = update(model, known)
            asked.append((model is None, found.loss))
            return replace(found, certified=False, loss=found.loss + (5.0 if model else 0.0))

        return updated

    monkeypatch.setattr("mechanisms.aim.estimator", unsure)
    curator = Curator(small_data(500), Budget(1.0, 1e-7), neighbours="add/remove", seed=0)
    workload = k_way(curator.domain.project(["sex", "hours"]), 2)
    dense = Workload(curator.domain, workload.cliques).asking({"hours": "prefix"})
    assert not dense.plain
    release = aim(curator, dense)
    assert asked[-1][0] and not asked[-2][0]
    assert release.model.loss == min(asked[-1][1], asked[-2][1] + 5.0)


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_rounds_are_those_of_the_algorithm(relation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each selection was given, from the ledger and from the models before it."""
    asked: list[tuple[float, Any, dict[Clique, np.ndarray], float, dict[str, Any]]] = []
    limits: list[tuple[list[Clique], float, float]] = []
    choose, within = Curator.choose, Affordable.within

    def chosen(self: Curator, cliques: Any, tables: Any, cost: float, **rest: Any) -> Clique:
        asked.append((self.remaining, cliques, known := dict(tables), cost, rest))
        return choose(self, cliques, known, cost, **rest)

    def limited(self: Affordable, measured: Any, limit: float, most: float) -> Any:
        limits.append((list(measured), limit, most))
        return within(self, measured, limit, most)

    monkeypatch.setattr(Curator, "choose", chosen)
    monkeypatch.setattr(Affordable, "within", limited)
    curator = Curator(small_data(1000), Budget(0.7, 1e-8), neighbours=relation, seed=0)
    whole, domain, workload = curator.remaining, curator.domain, k_way(curator.domain, 2)
    weighted = Workload(domain, workload.cliques, [1.0 + (c[0] == "sex") for c in workload.cliques])
    rounds: list[Round[GraphicalModel, Clique]] = []
    release = aim(curator, weighted, Aim(model_mb=0.02, select_share=0.2), progress=rounds.append)
    entries = release.ledger.entries
    assert [" ".join(e.step.split()[:2]) for e in entries[:7]] == [
        *(f"measure {i}" for i in range(1, 6)),
        "select 6",
        "measure 6",
    ]
    queries, spent = CliqueQueries(weighted, pure=False), [each[3] for each in asked]
    for i, cost in enumerate(spent[1:-1]):
        moved = moved_within_noise(rounds[i], queries, curator.expected_error(4 * spent[i]))
        assert cost == pytest.approx(spent[i] * (4 if moved else 1), rel=1e-9)
    first = 0.8 * whole / (16 * 5)
    assert [e.cost for e in entries[:6]] == pytest.approx([first] * 5 + [first / 4], rel=1e-9)
    assert len(asked) == len(rounds) == len(limits) > 3 and curator.remaining == 0
    for model in (release.model, *(each.before for each in rounds)):
        assert (model.total == 1000) == (relation == "replace-one")
    for i, (left, cliques, tables, cost, rest) in enumerate(asked):
        measured = [m.clique for m in release.measurements[: 5 + i]]
        after = left - entries[5 + 2 * i].cost - entries[6 + 2 * i].cost
        assert after == pytest.approx(0 if i == len(asked) - 1 else left - 5 * cost, abs=1e-12)
        assert after == 0 or after >= 5 * cost * (1 - 1e-9)
        assert limits[i][0] == measured and limits[i][2] == 0.02
        assert limits[i][1] == pytest.approx(0.02 * (1 - after / whole))
        cell = curator.expected_error(4 * cost)
        assert rest["penalties"] == pytest.approx([cell * domain.size(c) for c in cliques])
        weights = relevance(weighted, tuple(cliques))
        assert rest["weights"] == [weights[c] for c in cliques] and not rest["queries"]
        for clique, table in tables.items():
            np.testing.assert_allclose(table, rounds[i].before.marginal(clique), atol=1e-6)
        assert list(rounds[i].picked) == [release.measurements[5 + i].clique]


def test_the_last_round_begins_where_less_than_two_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In units of a round, of 32: two singles take 0.9 each, rounds one each, the last 1.2."""
    monkeypatch.setattr("mechanisms.aim.moved_within_noise", lambda *_: False)
    data = small_data(200).project(["sex", "income"])
    curator = Curator(data, Budget(1.0, 1e-8), neighbours="add/remove", seed=0)
    unit = curator.remaining / 32
    release = aim(curator, k_way(data.domain, 2))
    rounds = [0.1, 0.9] * 29 + [0.12, 1.08]
    found = [e.cost for e in release.ledger.entries]
    assert found == pytest.approx([unit * each for each in [0.9, 0.9, *rounds]])


def test_limits_count_tables_with_the_place_that_is_measured_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[list[Clique]] = []
    within = Affordable.within

    def limited(self: Affordable, measured: Any, *limits: float) -> Any:
        seen.append(list(measured))
        return within(self, measured, *limits)

    monkeypatch.setattr(Affordable, "within", limited)
    data = small_data(300)
    units = relation("add/remove", "home", data.domain.sizes["work"])
    curator = Curator(data, Budget(0.5, 1e-8), neighbours=units, seed=0)
    placed = curator.table(data, units, curator.remaining, place="work")
    release = aim(placed, Workload(data.domain, [("sex", "income")]))
    cliques = [m.clique for m in release.measurements]
    assert all("work" in clique for clique in cliques)
    assert seen == [cliques[: 2 + i] for i in range(len(seen))] and len(seen) > 1


def test_columns_measured_before_are_not_measured_alone_and_zeros_start_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[dict[str, Any], list[bool]]] = []

    def spied(*args: Any, **options: Any) -> Any:
        update, cold = estimator(*args, **options), list[bool]()
        made.append((options | dict(enumerate(args[2:])), cold))

        def updated(model: GraphicalModel | None, known: Any) -> GraphicalModel:
            cold.append(model is None)
            return update(model, known)

        return updated

    monkeypatch.setattr("mechanisms.aim.estimator", spied)
    for rule in ((), (Zeros(("sex", "income"), 1 - np.eye(2, 10)),)):
        curator = Curator(small_data(500), Budget(0.5, 1e-8), neighbours="add/remove", seed=0)
        cells = curator.domain.size(("sex", "work"))
        known = Measurement(("sex", "work"), np.full(cells, 500 / cells), 9.0)
        release = aim(
            curator, k_way(curator.domain, 2), Aim(tolerance=2.0), first=[known], zeros=rule
        )
        assert release.measurements[0] is known
        assert {m.clique for m in release.measurements[1:4]} == {
            ("education",),
            ("hours",),
            ("income",),
        }
        assert release.ledger.entries[0].step == "measure 2 education"
        (rough, starts), (final, ends) = made[-2:]
        assert rough[0] == 2.0 and "zeros" not in rough and 0 not in final
        assert final["zeros"] == rule and starts == [True] + [False] * (len(starts) - 1)
        assert ends == [bool(rule)]
        assert (release.model.marginal(("sex", "income"))[0, 0] == 0) == bool(rule)


def test_a_table_measured_before_may_need_more_than_the_limit() -> None:
    curator = Curator(small_data(500), Budget(1.0, 1e-8), neighbours="add/remove", seed=0)
    triple = ("education", "work", "income")
    before = Measurement(triple, np.full(8 * 6 * 10, 500 / 480), 1.0)
    release = aim(curator, k_way(curator.domain, 2), Aim(model_mb=0.001), first=[before])
    assert curator.remaining == 0 and len(release.measurements) > 3
    assert release.model.tree.cells == 8 * 6 * 10 + 2 + 7  # nothing is joined to the triple


@pytest.mark.parametrize(
    ("poor", "certified", "plain", "again"),
    [
        (False, True, True, False),
        (False, False, True, False),
        (False, True, False, False),
        (False, False, False, True),
        (True, True, True, True),
    ],
)
def test_a_cold_start_is_tried_where_the_warm_one_ends_poorly(
    poor: bool, certified: bool, plain: bool, again: bool
) -> None:
    warm = SimpleNamespace(poor_fit=poor, certified=certified, loss=1.0)
    for cold, better in [
        (SimpleNamespace(poor_fit=False, loss=2.0), poor),
        (SimpleNamespace(poor_fit=False, loss=0.5), True),
        (SimpleNamespace(poor_fit=True, loss=0.5), poor),
    ]:
        fits = {id(warm): warm, id(None): cold}
        found = final_fit(lambda start, _: fits[id(start)], warm, [], plain=plain)  # noqa: B023
        assert found is (cold if again and better else warm)
