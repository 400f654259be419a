"""Approximate posteriors of factor graphs: bounds against the joint written out, exact on trees."""

from itertools import combinations, pairwise
from math import inf

import numpy as np
import pytest
from brute_force import Problem, problems, random_problem, summed
from hypothesis import given, settings
from hypothesis import strategies as st

from pgmkit import Domain, FactorGraph, InvalidInput
from pgmkit.approximate import propagation
from pgmkit.approximate.posterior import ApproximatePosterior
from pgmkit.approximate.subgraphs import Bags, Graph
from pgmkit.conditioning.posterior import Posterior
from pgmkit.errors import ModelTooLarge, NumericalFailure


def graph_of(problem: Problem) -> FactorGraph:
    tables = [np.exp(t - max(t.max(), -700)) for t in problem.potentials]
    return FactorGraph(problem.domain, zip(problem.cliques, tables, strict=True))


def grid(side: int, width: float, seed: int = 0) -> Problem:
    names = [[f"x{i}_{j}" for j in range(side)] for i in range(side)]
    domain = Domain({name: 2 for row in names for name in row})
    pairs = [(a, b) for row in names for a, b in pairwise(row)]
    pairs += [each for a, b in pairwise(names) for each in zip(a, b, strict=True)]
    singles = [(name,) for name in domain]
    return random_problem(domain, [*pairs, *singles], seed, width)


def region(graph: FactorGraph, *arguments: object, **options: object) -> ApproximatePosterior:
    found = graph.posterior(*arguments, inference="region", **options)  # type: ignore[call-overload]
    assert isinstance(found, ApproximatePosterior)
    return found


@settings(max_examples=60, deadline=None)
@given(problems(5), st.sampled_from([1, 12, 1000]), st.sampled_from([None, 1e-9]))
def test_bounds_hold_whenever_the_search_ends(
    problem: Problem, cells: int, seconds: float | None
) -> None:
    graph = graph_of(problem)
    try:
        truth = graph.log_partition
    except InvalidInput:
        return
    found = region(graph, region_cells=cells, max_seconds=seconds)
    lower, upper = found.log_partition_bounds
    slack = 1e-9 * max(1.0, abs(truth))
    assert lower - slack <= truth <= upper + slack
    assert lower <= found.log_partition <= upper
    for name, law in found.marginals().items():
        assert law.sum() == pytest.approx(1) and law.min() >= 0, name


@settings(max_examples=40, deadline=None)
@given(problems(5))
def test_what_one_subgraph_holds_is_exact(problem: Problem) -> None:
    graph = graph_of(problem)
    try:
        exact = graph.posterior()
        truth, singles = exact.log_partition, exact.marginals()
    except InvalidInput:
        with pytest.raises(InvalidInput, match="leave no record possible"):
            region(graph)
        return
    found = region(graph)
    assert found.converged and found.residual == 0
    np.testing.assert_allclose(found.log_partition_bounds, truth, rtol=1e-9, atol=1e-9)
    for clique, law in singles.items():
        np.testing.assert_allclose(found.marginal(clique), law, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_trees_are_exact_with_the_smallest_regions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    domain = Domain({f"x{i}": int(rng.integers(1, 4)) for i in range(12)})
    names = domain.attributes
    cliques = [(names[i], names[int(rng.integers(0, i))]) for i in range(1, 12) if i != 7]
    problem = random_problem(domain, cliques, seed, 3.0, zeros=0.1 if seed % 2 else 0.0)
    if not problem.possible():
        return
    found = region(graph_of(problem), region_cells=1)
    assert found.log_partition_bounds == pytest.approx([graph_of(problem).log_partition] * 2)
    joint = problem.joint()
    for clique in cliques:
        np.testing.assert_allclose(
            found.marginal(clique), summed(domain, joint, clique).astype(float), atol=1e-9
        )


@pytest.mark.parametrize("cells", [4, 32])
def test_grids_are_near_and_regions_agree(cells: int) -> None:
    graph = graph_of(grid(6, 0.8))
    exact, found = graph.posterior(), region(graph, region_cells=cells)
    assert found.converged and found.residual <= 1e-6
    lower, upper = found.log_partition_bounds
    assert lower < exact.log_partition < upper
    assert found.log_partition == pytest.approx(exact.log_partition, abs=0.05)
    for clique, law in exact.marginals().items():
        assert np.abs(found.marginal(clique) - law).max() < (0.02 if cells == 4 else 0.005)
    tables = found.tables
    for a in tables:
        for b in tables:
            if shared := tuple(name for name in a if name in b):
                left, right = (summed(found.domain.project(c), tables[c], shared) for c in (a, b))
                np.testing.assert_allclose(left, right, atol=5e-6)


def test_smallest_regions_are_belief_propagation() -> None:
    """The fixed point of Pearl's messages, by plain loops."""
    problem = grid(4, 0.7, seed=3)
    found = region(graph_of(problem), region_cells=4, tolerance=1e-9)
    tables = dict(zip(problem.cliques, problem.potentials, strict=True))
    pairs = {clique: np.exp(t) for clique, t in tables.items() if len(clique) == 2}
    pairs |= {clique[::-1]: table.T for clique, table in pairs.items()}
    messages = {pair: np.ones(2) for pair in pairs}
    for _ in range(200):
        for a, b in messages:
            inward = np.exp(tables[(a,)])
            for c, d in messages:
                if d == a and c != b:
                    inward = inward * messages[c, d]
            outward = inward @ pairs[a, b]
            messages[a, b] = outward / outward.sum()
    for name in problem.domain:
        belief = np.exp(tables[(name,)])
        for (_, target), message in messages.items():
            belief = belief * (message if target == name else 1.0)
        np.testing.assert_allclose(found.marginal([name]), belief / belief.sum(), atol=1e-7)


def test_the_double_loop_settles_where_steps_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(grid(5, 1.0, seed=1))
    settled = region(graph, region_cells=4)
    monkeypatch.setattr(propagation.MessageSearch, "settle", lambda search: search.sweep(1.0))
    slow = region(graph, region_cells=4, tolerance=1e-4)
    assert slow.converged and settled.converged
    for clique, law in settled.marginals().items():
        np.testing.assert_allclose(slow.marginal(clique), law, atol=2e-2)


def test_the_residual_of_a_double_loop_is_how_far_two_subgraphs_are_apart() -> None:
    problem = grid(3, 3.0)
    tables = list(zip(problem.cliques, problem.potentials, strict=True))
    sites = propagation.Sites(Graph(problem.domain, tables, 4))
    search = propagation.MessageSearch(sites, deadline=0.0, tolerance=1e-9)
    search.sweep(1.0)
    for _ in range(2):  # after the first, the residual is the change of the mean
        search.double_loop()
    parts = [marginals[: sites.cells] for marginals in search.marginals]
    apart = max(np.abs(one - other).max() for one, other in combinations(parts, 2))
    assert search.residual >= apart > 0


def test_evidence_equals_conditioning() -> None:
    problem = grid(4, 1.0)
    graph = graph_of(problem)
    names = problem.domain.attributes
    clamped = [((names[0],), [0.0, 1.0]), ((names[5],), [0.3, 0.9])]
    other = FactorGraph(problem.domain, [*graph.tables, *clamped])
    found = region(graph, {names[0]: 1}, {names[5]: [0.3, 0.9]}, region_cells=8)
    same = region(other, region_cells=8)
    exact = graph.posterior({names[0]: 1}, {names[5]: [0.3, 0.9]})
    lower, upper = found.log_partition_bounds
    assert lower <= exact.log_partition <= upper
    assert found.marginal([names[0]]).tolist() == [0.0, 1.0]
    assert same.log_partition == pytest.approx(exact.log_partition, abs=0.1)
    for clique, law in exact.marginals().items():
        assert np.abs(found.marginal(clique) - law).max() < 0.05
        assert np.abs(same.marginal(clique) - law).max() < 0.05
    sure = region(graph, dict.fromkeys(names, 1))
    assert sure.log_partition == pytest.approx(
        graph.posterior(dict.fromkeys(names, 1)).log_partition
    )
    assert sure.log_partition_bounds == (sure.log_partition, sure.log_partition)


def test_zeros_stay_zero() -> None:
    problem = random_problem(
        Domain({name: 3 for name in "abcdef"}),
        [(a, b) for i, a in enumerate("abcdef") for b in "abcdef"[:i]], 11, 1.0, zeros=0.15,
    )  # fmt: skip
    assert problem.possible()
    found = region(graph_of(problem), region_cells=9)
    for clique, table in zip(problem.cliques, problem.potentials, strict=True):
        assert (found.marginal(clique)[np.isneginf(table)] == 0).all()
    assert found.log_partition_bounds[1] < inf


def test_answers_repeat_bit_for_bit() -> None:
    first, second = (region(graph_of(grid(5, 1.0)), region_cells=8) for _ in range(2))
    assert first.log_partition_bounds == second.log_partition_bounds
    for clique, table in first.tables.items():
        np.testing.assert_array_equal(table, second.tables[clique])


def test_auto_is_exact_where_that_fits() -> None:
    problem = grid(8, 1.0)
    graph = graph_of(problem)
    assert isinstance(graph.posterior(inference="auto"), Posterior)
    small = FactorGraph(problem.domain, graph.tables, memory_limit=1000)
    found = small.posterior(inference="auto")
    assert isinstance(found, ApproximatePosterior)
    assert "approximate=True" in repr(found) and "converged=True" in repr(found)
    hurried = region(graph, region_cells=8, max_seconds=1e-9)
    assert not hurried.converged and hurried.iterations == 1


def test_what_is_not_offered_is_refused() -> None:
    graph = graph_of(grid(4, 1.0))
    found = region(graph, region_cells=4)
    with pytest.raises(InvalidInput, match="within no region"):
        found.marginal(["x0_0", "x3_3"])
    with pytest.raises(InvalidInput, match="no most probable record"):
        found.map()
    with pytest.raises(InvalidInput, match="no draw of records"):
        found.sample(3, rng=0)
    with pytest.raises(InvalidInput, match="inference must be one of 'exact', 'region', 'auto'"):
        graph.posterior(inference="loopy")  # type: ignore[call-overload]
    for wrong in ({"region_cells": 0}, {"tolerance": 0.0}, {"max_seconds": -1}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            region(graph, **wrong)
    with pytest.raises(InvalidInput, match="exact answers do not use"):
        graph.posterior(max_seconds=1.0)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="probability zero"):
        region(FactorGraph(Domain({"a": 2}), [(("a",), [1.0, 0.0])]), {"a": 1})


def test_impossible_evidence_is_named_by_its_states() -> None:
    states = {"rain": ["no, not at all", "yes"]}
    graph = FactorGraph(Domain({"rain": 2, "a": 2}), [(("rain",), [1.0, 0.0])], states=states)
    nothing = FactorGraph(Domain({"a": 2}), [(("a",), [0.0, 0.0])])
    for answer in (region, lambda graph, given: graph.posterior(given).log_partition):
        with pytest.raises(InvalidInput, match="probability zero: rain = yes"):
            answer(graph, {"rain": "yes"})
        with pytest.raises(InvalidInput, match="tables of the graph leave no record possible"):
            answer(nothing, {})
    soft = graph.posterior({"rain": "no, not at all"}, likelihood={"a": [0.0, 0.0]})
    with pytest.raises(InvalidInput, match=r"rain = no, not at all, likelihood of a \[0.0, 0.0\]"):
        soft.marginals()


def test_a_bound_below_every_record_shows_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No subgraph alone shows it; the estimate of log Z was -1.2e17."""
    monkeypatch.setattr(propagation, "MOST_ROUNDS", 5)
    rng, names = np.random.default_rng(11), "abcde"
    cliques = list(combinations(names, 3))
    tables = [1.0 * (rng.random((2, 2, 2)) > 0.25) for _ in cliques]
    assert np.einsum(",".join(map("".join, cliques)) + "->", *tables) == 0
    graph = FactorGraph(Domain(dict.fromkeys(names, 2)), list(zip(cliques, tables, strict=True)))
    with pytest.raises(InvalidInput, match="leave no record possible"):
        region(graph, {}, region_cells=1)


@settings(max_examples=60, deadline=None)
@given(problems(6), st.integers(1, 40))
def test_subgraphs_cover_and_keep_to_their_limit(problem: Problem, cells: int) -> None:
    domain, everything = problem.domain, list(range(len(problem.domain)))
    most = max(cells, *map(domain.size, problem.cliques))
    graph = Graph(domain, [(c, np.zeros(domain.shape(c))) for c in problem.cliques], most)
    assert sorted(graph.order) == everything
    trees = graph.cover(graph.scopes)
    assert set().union(*map(set, trees)) == set(range(len(graph.scopes)))
    for tree in trees:
        bags = Bags(graph)
        assert all(bags.add(graph.scopes[place]) for place in tree)
        cliques = bags.cliques()
        assert sorted(v for _, own in cliques for v in own) == everything
    parts = graph.blocks()
    assert sum(parts) == (1 << len(domain)) - 1 and all(parts)


@pytest.mark.parametrize(("above", "wrong"), [(1e-10, False), (1e-3, True)])
def test_bounds_that_contradict_each_other_are_an_error(
    above: float, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rounding alone the lower one may be above the upper one, and is then set to it."""

    def reweighted(graph: Graph, lower: float, *limits: float) -> float:
        return lower - above

    monkeypatch.setattr("pgmkit.approximate.posterior.reweighted", reweighted)
    graph = graph_of(grid(3, 1.0))
    if wrong:
        with pytest.raises(NumericalFailure, match="the lower bound .* is above the upper bound"):
            region(graph)
    else:
        low, high = region(graph).log_partition_bounds
        assert low == high


def test_a_table_of_observed_attributes_without_room_in_memory_is_refused() -> None:
    names = [f"x{i}" for i in range(50)]
    graph = FactorGraph(Domain(dict.fromkeys(names, 2)), [((name,), [1.0, 1.0]) for name in names])
    posterior = region(graph, dict.fromkeys(names, 0))
    assert posterior.marginal(names[:2]).tolist() == [[1.0, 0.0], [0.0, 0.0]]
    with pytest.raises(ModelTooLarge, match="the marginal over .*; ask for fewer attributes"):
        posterior.marginal(names)
