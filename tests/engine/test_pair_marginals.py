"""All pairs at once, against the joint written out and against one marginal after another."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seams import tables_of
from test_tree_marginals import beliefs_of, joint_of, problems, summed

from pgmkit.domain import Clique, Domain
from pgmkit.factor import Factor
from pgmkit.graphs.junction_tree import junction_tree
from pgmkit.inference import model_tables
from pgmkit.inference.pair_marginals import PairMarginals
from pgmkit.inference.tree_marginals import Tables, marginals
from pgmkit.inference.tree_paths import TreePaths
from pgmkit.model import GraphicalModel


@given(problems(), st.integers(0, 1000), st.sampled_from([0.0, 0.15]))
@settings(deadline=None, max_examples=300)
def test_against_the_joint(
    problem: tuple[Domain, list[Clique], list[Clique]], seed: int, zeros: float
) -> None:
    domain, cliques, _ = problem
    joint = joint_of(domain, cliques, np.random.default_rng(seed), zeros)
    tree = junction_tree(domain, cliques, seconds=0.001)
    paths = TreePaths(tree)
    tables = Tables(paths, beliefs_of(tree, joint), None)
    found = list(PairMarginals(paths, lambda *at: tables.inside(*at).numpy(), domain).tables())
    pairs = list(itertools.combinations(domain, 2))
    assert sorted(pair for pair, _ in found) == sorted(pairs)
    for pair, table in found:
        np.testing.assert_allclose(
            table, summed(domain, joint, pair), rtol=1e-10, atol=1e-10, err_msg=str(pair)
        )


def wide(columns: int, edges: int, seed: int) -> tuple[GraphicalModel, np.random.Generator]:
    """A model of random pairs and triples over many attributes, some of them in none."""
    rng = np.random.default_rng(seed)
    domain = Domain({f"x{i}": int(size) for i, size in enumerate(rng.integers(1, 7, columns))})
    names = rng.permutation(list(domain))[: columns - 3].tolist()
    cliques = [
        tuple(rng.choice(names[max(0, i - 4) : i + 1], min(i + 1, 3), replace=False))
        for i in range(0, len(names), max(1, len(names) // edges))
    ]
    factors = [
        Factor(domain.project(c), torch.as_tensor(rng.normal(0, 1, domain.shape(c))))
        for c in cliques
    ]
    return GraphicalModel(domain, tuple(factors), total=1000.0), rng


@pytest.mark.parametrize("seed", range(5))
def test_a_model_asked_for_many_pairs_gives_what_single_ones_are(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_tables, "MOST_CELLS", 0)  # small models have a route of their own
    model, rng = wide(30, 40, seed)
    pairs = [
        pair if rng.random() < 0.5 else pair[::-1]
        for pair in itertools.combinations(model.domain, 2)
    ]
    found = model.marginals(pairs)
    assert list(found) == pairs
    one_by_one = marginals(model.tree, tables_of(model).beliefs, pairs)
    for pair, table in found.items():
        assert table.flags.writeable
        np.testing.assert_allclose(table, one_by_one[pair].numpy(), rtol=1e-9, atol=1e-9)


def test_attributes_left_out_are_left_out() -> None:
    model, _ = wide(12, 12, 0)
    names = model.domain.attributes[::3]
    found = dict(PairMarginals(TreePaths(model.tree), tables_of(model).inside(), names).tables())
    assert sorted(found) == sorted(itertools.combinations(names, 2))
    for pair, table in found.items():
        np.testing.assert_allclose(table, model.marginal(pair), rtol=1e-9, atol=1e-9)


def test_what_would_take_too_much_is_left_to_the_other_way() -> None:
    model, _ = wide(20, 20, 1)
    pairs = PairMarginals(TreePaths(model.tree), tables_of(model).inside(), model.domain)
    assert pairs.pays(190, 1 << 30)
    assert not pairs.pays(190, 1 << 10)
    assert not pairs.pays(0, 1 << 30)
