"""Marginals and MAP on larger networks against another library."""

import itertools
from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np
import pytest

from pgmkit import Domain, GraphicalModel
from pgmkit.factor import Factor

pytest.importorskip("pgmpy", reason="the comparison needs pgmpy; install the extra 'test'")


def network(seed: int, nodes: int, extra: int) -> tuple[Domain, dict[tuple[str, str], np.ndarray]]:
    """A random tree and some edges more, with normal potentials."""
    rng = np.random.default_rng(seed)
    graph = nx.random_labeled_tree(nodes, seed=seed)
    far = [e for e in itertools.combinations(range(nodes), 2) if not graph.has_edge(*e)]
    graph.add_edges_from(far[i] for i in rng.choice(len(far), extra, replace=False))
    domain = Domain({f"x{i}": int(rng.integers(2, 5)) for i in range(nodes)})
    edges = [(f"x{u}", f"x{v}") for u, v in graph.edges]
    return domain, {edge: rng.normal(0, 1.5, domain.shape(edge)) for edge in edges}


def both(seed: int, nodes: int, extra: int) -> tuple[GraphicalModel, Any]:
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.models import DiscreteMarkovNetwork

    domain, tables = network(seed, nodes, extra)
    theirs = DiscreteMarkovNetwork(list(tables))
    for edge, table in tables.items():
        theirs.add_factors(DiscreteFactor(list(edge), domain.shape(edge), np.exp(table)))
    factors = tuple(Factor(domain.project(edge), table) for edge, table in tables.items())
    return GraphicalModel(domain, factors, total=1.0), theirs


@pytest.mark.parametrize(("seed", "nodes", "extra"), [(0, 30, 0), (1, 25, 4), (2, 20, 6)])
def test_marginals(seed: int, nodes: int, extra: int) -> None:
    from pgmpy.inference import VariableElimination

    ours, theirs = both(seed, nodes, extra)
    elimination = VariableElimination(theirs)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        clique = tuple(str(n) for n in rng.choice(ours.domain.attributes, 3, replace=False))
        found = elimination.query(list(clique), show_progress=False)
        order = [found.variables.index(name) for name in clique]
        expected = (found.values / found.values.sum()).transpose(order)
        np.testing.assert_allclose(ours.marginal(clique), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("seed", "extra"), [(0, 0), (1, 3), (2, 6)])
def test_map(seed: int, extra: int) -> None:
    """The other library writes a table over all attributes: ten of them."""
    from pgmpy.inference import VariableElimination

    ours, theirs = both(seed, 10, extra)
    best = VariableElimination(theirs).map_query(list(ours.domain), show_progress=False)

    def score(record: Mapping[str, int]) -> float:
        potentials = [(f.domain.attributes, f.numpy()) for f in ours.potentials]
        return sum(float(t[record[u], record[v]]) for (u, v), t in potentials)

    expected = score({name: int(code) for name, code in best.items()})
    assert score(ours.map()) == pytest.approx(expected, rel=1e-10)
