"""Pair graph: draws against charges, what is drawn and measured, wide tables, refusals."""

import itertools
import math
from typing import Any

import networkx as nx
import numpy as np
import pytest
from pricing import Priced, total_variation
from seams import draw_from

from mechanisms import pair_graph as module
from mechanisms.datasets.census import census
from mechanisms.mst import mst
from mechanisms.pair_graph import PairGraph, pair_graph
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.rounds.merging import known_of
from mechanisms.rounds.select_and_measure import measure_one_way
from mechanisms.workload import k_way
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.graphs.junction_tree import junction_tree
from pgmkit.records.dataset import Dataset


def small_data(rows: int = 4177) -> Dataset:
    return census(rows).project(["sex", "education", "work", "hours", "income"])


def chained(columns: int, rows: int, seed: int) -> Dataset:
    """Columns of 6 codes, each a copy of the one before it half of the time."""
    rng = np.random.default_rng(seed)
    codes = [rng.integers(0, 6, rows)]
    for _ in range(columns - 1):
        codes.append(np.where(rng.random(rows) < 0.5, codes[-1], rng.integers(0, 6, rows)))
    domain = Domain({f"c{i}": 6 for i in range(columns)})
    return Dataset(domain, dict(zip(domain, codes, strict=True)))


def pairs_in(release: object) -> list[tuple[str, ...]]:
    return [m.clique for m in release.measurements if len(m.clique) == 2]


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-8])
def test_draws_match_charges_and_the_budget(relation: str, delta: float) -> None:
    curator = Curator(small_data(), Budget(2.0, delta), neighbours=relation)
    noise = draw_from(curator, Priced(relation, pure=delta == 0))
    release = pair_graph(curator, k_way(curator.domain, 2))
    # Distances of several pairs at once, each of which a neighbour moves by l1.
    squares = {"replace-one": 2, "add/remove": 1}[relation]
    vectors = {"errors of pairs": [4, 2]}
    for i, entry in enumerate(release.ledger.entries):
        if entry.step in vectors:
            number = vectors[entry.step].pop(0)
            noise.costs[i] *= number if delta == 0 else number * squares
    assert not vectors["errors of pairs"]
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-9)


def spied(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[Any, ...]]:
    """The arguments of each call of a function of the module, what it gave, and the budget left."""
    calls: list[tuple[Any, ...]] = []
    function = getattr(module, name)

    def called(*args: Any, **options: Any) -> Any:
        left = args[0].remaining if isinstance(args[0], Curator) else None
        kept = [each.copy() if isinstance(each, np.ndarray) else each for each in args]
        calls.append((kept, options, found := function(*args, **options), left))
        return found

    monkeypatch.setattr(module, name, called)
    return calls


@pytest.mark.parametrize(("delta", "most"), [(0.0, 0.2), (1e-8, 0.5)])
def test_pairs_and_shares_are_those_of_the_text(
    delta: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each step was given, from the ledger, the noisy answers and the models before it."""
    names = ("draw_forest", "worst_pairs", "measure_distances", "best_tables", "measure_tables")
    forest, worst, distances, tables, measured = (spied(monkeypatch, name) for name in names)
    data = small_data(1500)
    columns = {name: np.asarray(data.columns[name]) for name in data.domain}
    columns |= {f"x{i}": np.arange(1500) * (i + 2) // 7 % 6 for i in range(2)}
    columns["year"] = np.zeros(1500, dtype=int)
    domain = Domain({**data.domain.sizes, "x0": 6, "x1": 6, "year": 1})
    curator = Curator(Dataset(domain, columns), Budget(1.5, delta), neighbours="add/remove", seed=2)
    whole, pure = curator.remaining, delta == 0
    settings = PairGraph(
        one_way_share=0.2, select_share=0.15, errors_share=0.05, noise_left=0.4, hidden=most
    )
    release = pair_graph(curator, k_way(domain, 2), settings)
    half = 0.8 * whole / 2
    ((_, _, pairs, cost), _, drawn, left) = forest[0]
    assert left == pytest.approx(2 * half) and cost == pytest.approx(0.15 * half)
    assert sorted(pairs) == sorted(itertools.combinations([n for n in domain if n != "year"], 2))
    ((_, fitting, _, number, cost, penalties), _, again, left) = worst[0]
    assert number == len(domain) // 2 == 4 and cost == pytest.approx(0.15 * left)
    assert left == pytest.approx(half) and {*fitting} <= {*pairs}
    noise = curator.expected_error((left - cost) / 4)
    assert penalties == pytest.approx([noise * domain.size(pair) for pair in fitting])
    assert len(distances) == len(measured) == 2 and curator.remaining == 0
    hidden = 0
    for turn, wanted in enumerate([drawn, again]):
        (_, model, asked, cost), _, found, left = distances[turn]
        assert asked == wanted and left == pytest.approx(0.85 * half + (1 - turn) * half)
        assert cost == pytest.approx(0.05 * 0.85 * half)
        rest = 0.95 * 0.85 * half
        before = [*release.measurements[:7], *(measured[0][2] if turn else [])]
        cell = curator.expected_error(rest)
        names = [n for n in domain if n != "year"]
        every = known_of(names, model.marginal, before, {}, pure=pure)
        known = {name: one.noise for name, one in every.items()}
        far = np.zeros(len(asked))
        for i, (a, b) in enumerate(asked):
            wrong = (known[a] * domain.sizes[a]) ** 2 + (known[b] * domain.sizes[b]) ** 2
            beyond = found.of[a, b] - math.sqrt(wrong)
            far[i] = beyond if beyond >= 2 * found.stddev else 0.0
        own = [call for call in tables if call[0][0] == asked]
        for (_, attributes, used, noise), options, best, _ in own:
            assert used == pytest.approx(far) and noise == pytest.approx(0.4 * cell)
            noises = {name: one.noise for name, one in attributes.items()}
            assert noises == pytest.approx({name: 0.4 * each for name, each in known.items()})
            # Half of a pair's error is counted for each attribute; each is in six pairs.
            assert {(one.weight, one.bins) for one in attributes.values()} == {(3.0, 0)}
            assert options == {"pure": pure, "residuals": False}
            for name, one in attributes.items():
                np.testing.assert_allclose(one.counts, model.marginal((name,)), atol=1e-6)
            ratios = np.zeros(len(asked))
            for i, (one, other) in enumerate(best.groups):
                sides = len({*one.tolist()}), len({*other.tolist()})
                share = best.pairs[i] if pure else math.sqrt(best.pairs[i])
                if far[i] * share > 0:
                    filled = max(sides[0] * sides[1] * (1 - far[i] / model.total / 2), *sides)
                    ratios[i] = 0.4 * cell * filled / (far[i] * share)
            if (ratios > most).any():
                hidden += 1
                far = np.where(ratios >= np.median(ratios[ratios > most]), 0.0, far)
        (_, of, shown, best, cost), _, _, _ = measured[turn]
        assert not (ratios > most).any() and best is own[-1][2] and shown == asked
        assert cost == pytest.approx(rest) and of == list(known)
    assert hidden


def test_a_chain_is_found_and_nothing_else() -> None:
    """Further pairs of a chain follow from its edges: its model answers them."""
    data = chained(12, 20_000, 0)
    curator = Curator(data, Budget(5.0, 1e-9), neighbours="add/remove", seed=0)
    release = pair_graph(curator, k_way(data.domain, 2))
    names = list(data.domain)
    assert set(itertools.pairwise(names)) <= set(pairs_in(release))
    assert total_variation(data, release.model, k_way(data.domain, 2)) < 0.02


def test_the_second_turn_draws_what_a_forest_leaves_out() -> None:
    """A triangle of columns: the third has the code of either of the other two, which depend."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 4, (2, 20_000))
    b = np.where(rng.random(20_000) < 0.3, a, b)
    columns = {"a": a, "b": b, "c": np.where(rng.random(20_000) < 0.5, a, b)}
    columns |= {f"x{i}": rng.integers(0, 4, 20_000) for i in range(3)}
    data = Dataset(Domain(dict.fromkeys(columns, 4)), columns)
    curator = Curator(data, Budget(5.0, 1e-9), neighbours="add/remove", seed=0)
    release = pair_graph(curator, k_way(data.domain, 2))
    graph = nx.Graph(pairs_in(release))
    assert {("a", "b"), ("a", "c"), ("b", "c")} <= {tuple(sorted(edge)) for edge in graph.edges}


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_pairs_that_noise_hides_are_not_measured(relation: str) -> None:
    """Independent columns: nearly all goes to them, and to no pair."""
    rng = np.random.default_rng(2)
    data = Dataset(
        Domain({f"c{i}": 9 for i in range(20)}),
        {f"c{i}": rng.integers(0, 9, 2000) for i in range(20)},
    )
    curator = Curator(data, Budget(0.5, 1e-9), neighbours=relation, seed=0)
    release = pair_graph(curator, k_way(data.domain, 2))
    assert not pairs_in(release)
    single = [e.cost for e in release.ledger.entries if "measure" in e.step]
    assert math.fsum(single) > 0.9 * curator.ledger.budget.total
    assert curator.remaining == pytest.approx(0.0, abs=1e-12)


def test_bins_are_merged_where_they_are_said_to_be_in_order() -> None:
    """Two numbers in 64 bins, one near the other, of few records."""
    rng = np.random.default_rng(3)
    a = rng.integers(0, 64, 3000)
    b = np.clip(a + rng.integers(-6, 7, 3000), 0, 63)
    data = Dataset(Domain({"a": 64, "b": 64}), {"a": a, "b": b})
    merged = {}
    for bins in ({}, {"a": 64, "b": 64}):
        curator = Curator(data, Budget(1.0, 1e-9), neighbours="add/remove", seed=0)
        release = pair_graph(curator, k_way(data.domain, 2), bins=bins)
        merged[bool(bins)] = total_variation(data, release.model, k_way(data.domain, 2))
        assert any(m.matrix is not None for m in release.measurements) == bool(bins)
    assert merged[True] < merged[False]


def test_nearer_than_a_spanning_tree_where_few_columns_depend() -> None:
    """A tree spends on 45 independent columns: 0.91 times its error, standard deviation 0.02."""
    few, rng = chained(15, 20_000, 4), np.random.default_rng(5)
    alone = {f"x{i}": rng.integers(0, 6, 20_000) for i in range(45)}
    columns = {name: np.asarray(few.columns[name]) for name in few.domain} | alone
    data = Dataset(Domain(dict.fromkeys(columns, 6)), columns)
    workload = k_way(data.domain, 2)
    errors: dict[str, list[float]] = {"pair-graph": [], "mst": []}
    for seed in range(2):
        for mechanism in (pair_graph, mst):
            curator = Curator(data, Budget(1.0, 1e-9), neighbours="add/remove", seed=seed)
            release = mechanism(curator, workload)
            errors[release.mechanism].append(total_variation(data, release.model, workload))
    assert np.mean(errors["pair-graph"]) < np.mean(errors["mst"])


@pytest.mark.parametrize("delta", [0.0, 1e-9])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_noise_beyond_the_data_still_gives_a_release(delta: float, k: int) -> None:
    curator = Curator(small_data(30), Budget(0.001, delta), neighbours="add/remove", seed=1)
    assert len(pair_graph(curator, k_way(curator.domain, k)).sample(5, rng=0)) == 5
    assert curator.remaining == pytest.approx(0.0, abs=1e-12)


def test_the_model_stays_within_its_limit_and_known_columns_are_left_alone() -> None:
    data = small_data()
    columns = {name: np.asarray(data.columns[name]) for name in data.domain}
    domain = Domain({**data.domain.sizes, "year": 1})
    wide = Dataset(domain, columns | {"year": np.zeros(len(data), dtype=int)})
    curator = Curator(wide, Budget(100.0, 1e-8), neighbours="add/remove", seed=0)
    release = pair_graph(curator, k_way(domain, 2), PairGraph(model_mb=0.01))
    assert release.model.tree.bytes() <= 0.01 * 2**20
    assert release.model.marginal(("year",)).tolist() == pytest.approx([release.model.total])


@pytest.mark.parametrize("cells", [700, 5000])
def test_drawn_pairs_that_do_not_fit_together_are_left_out(cells: int) -> None:
    """A forest has 3 * 256 cells, and 4,096 with any further pair; two of these do not fit."""
    rng = np.random.default_rng(0)
    domain = Domain(dict.fromkeys("abcd", 16))
    shared, own = rng.integers(0, 16, 3000), rng.integers(0, 16, (4, 3000))
    codes = np.where(rng.random((4, 3000)) < 0.7, shared, own)  # no forest explains all pairs
    data = Dataset(domain, dict(zip(domain, codes, strict=True)))
    curator = Curator(data, Budget(100.0, 1e-8), neighbours="add/remove", seed=0)
    limit = cells * 8 / 2**20
    release = pair_graph(curator, k_way(domain, 2), PairGraph(model_mb=limit))
    joined = nx.Graph(pairs_in(release))
    assert joined.number_of_edges() == (3 if cells < 3 * 256 else 4)
    assert release.model.tree.bytes() <= max(cells, 3 * 256) * 8
    assert curator.remaining == pytest.approx(0.0, abs=1e-12)


def test_refusals_come_before_spending() -> None:
    for settings in [{"one_way_share": 0.0}, {"select_share": 1.0}, {"model_mb": 0.0}]:
        with pytest.raises(InvalidInput, match=next(iter(settings))):
            PairGraph(**settings)
    curator = Curator(small_data(), Budget(1.0, 1e-8), neighbours="add/remove", seed=0)
    with pytest.raises(InvalidInput, match="another domain"):
        pair_graph(curator, k_way(Domain({"a": 2, "b": 2}), 2))
    with pytest.raises(InvalidInput, match="raise model_mb"):
        pair_graph(curator, k_way(curator.domain, 2), PairGraph(model_mb=1e-6))
    assert curator.ledger.spent == 0


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_marginals_measured_before_are_used_and_left_alone(relation: str) -> None:
    data = small_data(800)
    curator = Curator(data, Budget(2.0, 1e-8), neighbours=relation, seed=0)
    first, _ = measure_one_way(curator, 0.3)
    given = list(first)
    release = pair_graph(curator, k_way(data.domain, 2), first=given)
    assert given == first and list(release.measurements[: len(first)]) == first
    assert release.ledger.entries[len(first)].step == "edge 1: select"
    assert (release.model.total == 800) == (relation == "replace-one")
    # Without pairs the rest goes to the single columns, measured again.
    again = Curator(data, Budget(2.0, 1e-8), neighbours=relation, seed=0)
    given, _ = measure_one_way(again, 0.3)
    alone = pair_graph(again, k_way(data.domain, 1), first=given)
    assert len(alone.measurements) == 2 * len(given) and again.remaining == 0


@pytest.mark.parametrize(("columns", "half"), [(2, 1), (3, 1), (4, 2)])
def test_half_as_many_pairs_as_columns_are_drawn(
    columns: int, half: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = spied(monkeypatch, "worst_pairs")
    data = small_data(500)
    data = data.project(list(data.domain)[:columns])
    curator = Curator(data, Budget(100.0, 1e-8), neighbours="add/remove", seed=0)
    pair_graph(curator, k_way(data.domain, 2))
    ((args, _, drawn, _),) = calls
    assert args[3] == len(drawn) == half


def test_pairs_are_drawn_among_those_that_fit_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = spied(monkeypatch, "worst_pairs")
    domain, rng = Domain({"a": 2, "b": 16, "c": 5, "d": 9}), np.random.default_rng(0)
    shared = rng.random(2000)
    columns = {
        n: np.where(rng.random(2000) < 0.7, shared * size, rng.random(2000) * size).astype(int)
        for n, size in domain.sizes.items()
    }
    fitting = []
    for cells in (300, 400, 800):
        curator = Curator(
            Dataset(domain, columns), Budget(100.0, 1e-8), neighbours="add/remove", seed=0
        )
        release = pair_graph(curator, k_way(domain, 2), PairGraph(model_mb=cells * 8 / 2**20))
        forest = pairs_in(release)[:3]
        fit = [
            pair
            for pair in itertools.combinations(domain, 2)
            if junction_tree(domain, [*forest, pair]).cells <= cells
        ]
        fitting.append(calls[-1][0][1])
        assert {*forest} <= {*fitting[-1]} <= {*fit}
    assert [*map(len, fitting)] == [3, 3, 5]


@pytest.mark.parametrize("delta", [0.0, 1e-8])
def test_a_pair_is_hidden_from_a_ratio_of_noise_to_distance_on(
    delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first turn ends at once where the largest ratio is allowed, and otherwise goes on."""
    calls = spied(monkeypatch, "best_tables")

    def first_turn(hidden: float) -> tuple[float, list[Any]]:
        calls.clear()
        curator = Curator(small_data(1500), Budget(3.0, delta), neighbours="add/remove", seed=1)
        pair_graph(curator, k_way(curator.domain, 2), PairGraph(hidden=hidden))
        (pairs, known, *_), *_ = calls[0]
        return float(known["sex"].counts.sum()), [call for call in calls if call[0][0] == pairs]

    total, (((_, _, far, noise), _, best, _),) = first_turn(1e9)
    ratios = []
    for i, (one, other) in enumerate(best.groups):
        sides = len({*one.tolist()}), len({*other.tolist()})
        filled = max(sides[0] * sides[1] * (1 - far[i] / total / 2), *sides)
        share = best.pairs[i] if delta == 0 else math.sqrt(best.pairs[i])
        ratios.append(noise * filled / (far[i] * share) if share else 0.0)
    assert len(first_turn(max(ratios) * (1 + 1e-5))[1]) == 1
    assert len(first_turn(max(ratios) * (1 - 1e-5))[1]) > 1
