"""Sets of evidence one after another on one graph, against the joint written out and pyAgrum."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from seams import kept_by
from test_factor_graph import (
    part_all_questions,
    random_evidence,
    random_graph,
    summed,
    weighed,
    written_out,
)

from pgmkit import Domain, FactorGraph, InvalidInput
from pgmkit.linear.axes import sum_axes

Array = NDArray[np.float64]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=8), st.data())
@settings(max_examples=200, deadline=None)
def test_sums_over_any_axes(shape: list[int], data: st.DataObject) -> None:
    away = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    table = np.random.default_rng(0).random(shape)
    np.testing.assert_allclose(
        sum_axes(table, tuple(sorted(away))), table.sum(tuple(away)), rtol=1e-12
    )


def larger_graph(seed: int) -> tuple[FactorGraph, Array]:
    """Sparse tables over ten attributes, so that trees have cliques apart; and the joint."""
    rng = np.random.default_rng(seed)
    names = [f"v{i}" for i in range(10)]
    domain = Domain({name: int(rng.integers(1, 4)) for name in names})
    tables = []
    for place in range(1, 10):
        if rng.random() < 0.1:
            continue  # another component
        clique = (names[place], *rng.choice(names[:place], min(place, int(rng.integers(1, 3)))))
        held = tuple(str(name) for name in dict.fromkeys(clique))
        shape = domain.shape(held)
        values = 10.0 ** rng.integers(-4, 4) * rng.exponential(size=shape)
        tables.append((held, values * (rng.random(shape) > 0.1)))
    return FactorGraph(domain, tables), written_out(domain, tables)


def check(
    graph: FactorGraph, joint: Array, rng: np.random.Generator, codes: Any, soft: Any
) -> None:
    """Whatever was asked before, this evidence's answers are those of the joint."""
    domain = graph.domain
    weights = weighed(joint, domain, codes, soft)
    posterior = graph.posterior(codes, soft)
    if weights.sum() == 0:
        with pytest.raises(InvalidInput, match="zero|no record possible"):
            posterior.marginals()
        return
    law = weights / weights.sum()
    names = list(domain)
    sets = [(name,) for name in names]
    if rng.random() < 0.7:
        sets = sets[: int(rng.integers(0, 3))]
        for _ in range(4):
            count = int(rng.integers(0, min(5, len(names)) + 1))
            sets.append(tuple(map(str, rng.choice(names, count, replace=False))))
    answers = posterior.marginals(sets)
    for clique, found in answers.items():
        np.testing.assert_allclose(found, summed(law, domain, clique), atol=1e-11)
    for found in answers.values():
        found.fill(np.nan)  # what was given away is not what is kept
    assert posterior.log_partition == pytest.approx(np.log(weights.sum()), abs=1e-9)


@pytest.mark.parametrize("block", range(8))
def test_evidence_one_set_after_another(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # In two blocks small graphs have their joint distribution written out instead.
    joint = block in (2, 7)
    monkeypatch.setattr("pgmkit.conditioning.joint.MOST_CELLS", 1 << 10 if joint else 0)
    # Every kind of clique, though the tables are small.
    monkeypatch.setattr(
        "pgmkit.conditioning.calibrated_cliques.CALL_CELLS", [1 << 13, 0, 20, 8][block % 4]
    )
    monkeypatch.setattr(
        "pgmkit.conditioning.calibrated_tree.CALL_CELLS", [1 << 14, 0, 30][block % 3]
    )
    calibrated = 0
    for seed in range(10 * block, 10 * block + 10):
        if seed % 2:
            graph, table = larger_graph(seed)
        else:
            graph, tables = random_graph(seed // 2)
            table = written_out(graph.domain, tables)
        rng = np.random.default_rng(seed)
        codes: dict[str, int] = {}
        for _ in range(8):  # observations come, change and go; some cannot be
            new, soft = random_evidence(rng, graph.domain)
            kept = {name: code for name, code in codes.items() if rng.random() < 0.5}
            codes = kept | new
            check(graph, table, rng, codes, soft if rng.random() < 0.5 else {})
        shared = kept_by(graph)
        calibrated += (shared.joint if joint else shared.calibrated) is not None
    assert calibrated >= 3  # the rest have no possible record, or are asked the impossible


def deterministic_network(rng: np.random.Generator) -> dict[str, tuple[tuple[str, ...], Array]]:
    """Nine variables, most of them functions of two or three of the ones before."""
    sizes = {f"v{i}": int(rng.integers(2, 4)) for i in range(9)}
    names, found = list(sizes), {}
    for place, name in enumerate(names):
        count = min(place, int(rng.integers(2, 4)))
        axes = (name, *map(str, rng.choice(names[:place], count, replace=False)))
        shape = [sizes[each] for each in axes]
        if place > 2 and rng.random() < 0.7:
            table = np.eye(shape[0])[rng.integers(0, shape[0], shape[1:])]
            table = np.moveaxis(table, -1, 0)
        else:
            table = np.moveaxis(rng.dirichlet(np.ones(shape[0]), size=shape[1:]), -1, 0)
        found[name] = (axes, table)
    return found


def test_deterministic_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgmkit.conditioning.joint.MOST_CELLS", 0)
    calibrated = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        tables = deterministic_network(rng)
        graph = FactorGraph.from_conditionals(tables)
        joint = written_out(graph.domain, list(tables.values()))
        for _ in range(6):
            codes, soft = random_evidence(rng, graph.domain)
            check(graph, joint, rng, codes, soft)
        calibrated += kept_by(graph).calibrated is not None
    assert calibrated >= 10


@pytest.mark.parametrize("small", [0, 8])
def test_impossible_evidence_between_others_changes_nothing(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgmkit.conditioning.joint.MOST_CELLS", small)
    tables = {
        "a": (("a",), np.array([0.5, 0.5])),
        "b": (("b", "a"), np.array([[1.0, 0.2], [0.0, 0.8]])),
        "c": (("c", "b"), np.array([[0.3, 0.6], [0.7, 0.4]])),
    }
    graph = FactorGraph.from_conditionals(tables)
    expected = [graph.posterior({"b": code}).marginals() for code in (0, 1)]
    for _ in range(4):
        for code in (0, 1):
            with pytest.raises(InvalidInput, match="probability zero: b = 1 is impossible"):
                graph.posterior({"a": 0, "b": 1}).marginals()
            found = graph.posterior({"b": code}).marginals()
            for clique, table in expected[code].items():
                np.testing.assert_allclose(found[clique], table, atol=1e-14)
    assert (kept_by(graph).joint if small else kept_by(graph).calibrated) is not None


def test_evidence_too_unlikely_for_plain_numbers() -> None:
    """A chain of rare events: 1e-400 together, which only logarithms hold."""
    count = 400
    tables: dict[str, tuple[tuple[str, ...], Array]] = {"x0": (("x0",), np.array([0.5, 0.5]))}
    for i in range(1, count):
        tables[f"x{i}"] = ((f"x{i}", f"x{i - 1}"), np.array([[0.9, 0.1], [0.1, 0.9]]))
    graph = FactorGraph.from_conditionals(tables)
    for _ in range(3):
        graph.posterior({"x3": 0}).marginals()
    assert kept_by(graph).calibrated is not None
    codes = {f"x{i}": i % 2 for i in range(count) if i != 7}
    posterior = graph.posterior(codes)
    # x6 and x8 are 0: all steps but those beside x7 are rare ones.
    assert posterior.log_partition == pytest.approx(
        np.log(0.5) + (count - 3) * np.log(0.1) + np.log(0.82), rel=1e-12
    )
    np.testing.assert_allclose(posterior.marginal(["x7"]), [0.81 / 0.82, 0.01 / 0.82], atol=1e-12)


def pairs_of(tables: Mapping[str, Any], rng: np.random.Generator) -> list[tuple[str, str]]:
    return [tuple(map(str, rng.choice(list(tables), 2, replace=False))) for _ in range(3)]  # type: ignore[misc]


@pytest.mark.parametrize("name", ["asia", "child", "alarm", "insurance", "hailfinder", "win95pts"])
def test_published_networks_beside_pyagrum(name: str) -> None:
    gum = pytest.importorskip("pyagrum")
    pytest.importorskip("pgmpy")
    from benchmarks.networks import peer_network
    from benchmarks.published_networks import network

    tables = network(name)
    graph = FactorGraph.from_conditionals(tables)
    engine = gum.LazyPropagation(peer_network(tables))
    rng = np.random.default_rng(1)
    codes: dict[str, int] = {}
    for _ in range(6):
        record = {n: int(rng.integers(s)) for n, s in graph.domain.sizes.items()}
        new = rng.choice(list(record), 3, replace=False)
        codes = {n: c for n, c in codes.items() if rng.random() < 0.6}
        codes |= {str(n): record[str(n)] for n in new}
        engine.setEvidence(codes)
        try:
            engine.makeInference()
            expected = {n: engine.posterior(n).toarray() for n in tables if n not in codes}
        except gum.IncompatibleEvidence:
            with pytest.raises(InvalidInput, match="probability zero"):
                graph.posterior(codes).marginals()
            continue
        posterior = graph.posterior(codes)
        for n, table in expected.items():
            np.testing.assert_allclose(posterior.marginal([n]), table, atol=1e-10)
        found = graph.posterior(codes).marginals([(n,) for n in expected])
        for (n,), table in found.items():
            np.testing.assert_allclose(table, expected[n], atol=1e-10)
        for a, b in pairs_of(expected, rng):
            joint = graph.posterior(codes).marginal([a, b])
            np.testing.assert_allclose(joint.sum(1), expected[a], atol=1e-10)
            np.testing.assert_allclose(joint.sum(0), expected[b], atol=1e-10)
    assert (kept_by(graph).joint or kept_by(graph).calibrated) is not None


def random_network(rng: np.random.Generator) -> dict[str, tuple[tuple[str, ...], Array]]:
    """Conditional tables over up to 39 attributes, in a third of the networks with zeros."""
    count = int(rng.integers(2, 40))
    sizes, holes = rng.integers(2, 5, count), rng.random() < 0.3
    tables = {}
    for i in range(count):
        near = np.arange(max(0, i - int(rng.integers(3, 12))), i)
        parents = rng.choice(near, min(len(near), int(rng.integers(0, 4))), replace=False)
        table = rng.exponential(size=[sizes[i], *sizes[parents]]) ** rng.integers(1, 4)
        if holes:
            table *= rng.random(table.shape) > 0.5
            table[0] += table.sum(0) == 0
        tables[f"v{i}"] = ((f"v{i}", *(f"v{j}" for j in parents)), table / table.sum(0))
    return tables


@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.parametrize("block", range(4))
def test_random_networks_beside_pyagrum(
    block: int, parted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hard and soft evidence, single attributes and pairs, and what both refuse."""
    if parted:
        part_all_questions(monkeypatch)
    gum = pytest.importorskip("pyagrum")
    from benchmarks.networks import peer_network

    answered = several = 0
    for seed in range(10 * block, 10 * block + 10):
        rng = np.random.default_rng(seed)
        tables = random_network(rng)
        graph, net, names = FactorGraph.from_conditionals(tables), peer_network(tables), [*tables]
        for _ in range(5):
            seen = rng.choice(names, int(rng.integers(0, min(6, len(names)))), replace=False)
            codes = {str(n): int(rng.integers(graph.domain.sizes[n])) for n in seen}
            left = [name for name in names if name not in codes]
            # The peer's posterior of what is certain by soft evidence is not normalised.
            soft = {
                n: rng.random(graph.domain.sizes[n]) + 0.01 for n in left if rng.random() < 0.05
            }
            pairs = [tuple(map(str, rng.choice(left, 2, replace=False))) for _ in left[1:4]]
            engine = gum.LazyPropagation(net)
            engine.setEvidence({**codes, **{name: w.tolist() for name, w in soft.items()}})
            engine.addAllTargets()
            for pair in pairs:
                engine.addJointTarget(set(pair))
            posterior = graph.posterior(codes, soft)
            if not possible(engine, gum):
                with pytest.raises(InvalidInput, match="probability zero"):
                    posterior.marginals()
                continue
            answered += 1
            for clique, found in posterior.marginals([*((n,) for n in left), *pairs]).items():
                if len(clique) == 1:
                    expected = engine.posterior(clique[0]).toarray()
                else:
                    joint = engine.jointPosterior(set(clique))
                    axes = list(reversed(joint.names))
                    expected = joint.toarray().transpose([axes.index(n) for n in clique])
                np.testing.assert_allclose(found, expected, atol=1e-10)
        several += kept_by(graph).was_split
    assert answered > 25
    assert (several > 5) == parted


def possible(engine: Any, gum: Any) -> bool:
    try:
        return bool(engine.evidenceProbability() > 0)
    except gum.IncompatibleEvidence:
        return False
