import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.graphs.junction_tree import JunctionTree, junction_tree
from pgmkit.inference.tree_marginals import each_marginal, marginals

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def joint_of(
    domain: Domain, cliques: Sequence[Clique], rng: np.random.Generator, zeros: float
) -> np.ndarray:
    """The whole joint table of a random model with these cliques; `zeros` of the factors' cells."""
    symbols = dict(zip(domain, LETTERS, strict=False))
    factors = [np.exp(rng.normal(0, 2, domain.shape(clique))) for clique in cliques]
    for factor in factors:
        factor[rng.random(factor.shape) < zeros] = 0
    ones = [np.ones(size) for size in domain.shape()]
    terms = ["".join(symbols[a] for a in clique) for clique in (*cliques, *zip(domain))]
    joint = np.einsum(
        ",".join(terms) + "->" + "".join(symbols[a] for a in domain),
        *factors,
        *ones,
        optimize="greedy",
    )
    return joint * (1234.5 / joint.sum()) if joint.sum() > 0 else joint


def summed(domain: Domain, joint: np.ndarray, attrs: Clique) -> np.ndarray:
    away = tuple(i for i, name in enumerate(domain) if name not in attrs)
    left = [name for name in domain if name in attrs]
    return joint.sum(axis=away).transpose([left.index(name) for name in attrs])


def beliefs_of(tree: JunctionTree, joint: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(summed(tree.domain, joint, c))) for c in tree.cliques]


def assert_as_the_joint(
    domain: Domain, cliques: Sequence[Clique], requested: list[Clique], **how: float
) -> None:
    joint = joint_of(domain, cliques, np.random.default_rng(int(how["seed"])), how["zeros"])
    tree = junction_tree(domain, cliques, seconds=0.001)
    found = marginals(tree, beliefs_of(tree, joint), requested)
    assert list(found) == list(dict.fromkeys(requested))
    one_by_one = list(each_marginal(tree, beliefs_of(tree, joint), requested))
    assert sorted(clique for clique, _ in one_by_one) == sorted(found)
    for clique, table in [*found.items(), *one_by_one]:
        assert tuple(table.shape) == domain.shape(clique)
        np.testing.assert_allclose(
            table.numpy(),
            summed(domain, joint, clique),
            rtol=1e-10,
            atol=1e-10,
            err_msg=str(clique),
        )


@st.composite
def problems(draw: st.DrawFn) -> tuple[Domain, list[Clique], list[Clique]]:
    """Any graph: cyclic, nested, disconnected, attributes in no clique; requests of 0 to 4."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=7))
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    names = st.sampled_from(domain.attributes)
    cliques = draw(st.lists(st.lists(names, min_size=1, max_size=3, unique=True), max_size=9))
    requested = draw(st.lists(st.lists(names, max_size=4, unique=True), max_size=12))
    return domain, list(map(tuple, cliques)), list(map(tuple, requested))


@given(problems(), st.integers(0, 1000), st.sampled_from([0.0, 0.15]))
@settings(deadline=None)
def test_against_the_joint(
    problem: tuple[Domain, list[Clique], list[Clique]], seed: int, zeros: float
) -> None:
    assert_as_the_joint(*problem, seed=seed, zeros=zeros)


@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([0.0, 0.2]))
@settings(deadline=None, max_examples=40)
def test_every_request_on_random_trees_against_the_joint(
    seed: int, triangles: bool, zeros: float
) -> None:
    rng = random.Random(seed)
    domain = Domain({f"x{i}": rng.randint(1, 4) for i in range(7)})
    names = rng.sample(domain.attributes, 7)
    cliques: list[Clique] = [(names[i], names[rng.randrange(i)]) for i in range(1, 7)]
    if triangles:
        cliques = [(*pair, rng.choice([a for a in names if a not in pair])) for pair in cliques]
    requested = [r for way in range(5) for r in itertools.combinations(names, way)]
    assert_as_the_joint(domain, cliques, requested, seed=seed, zeros=zeros)


def test_separator_values_without_mass_get_none() -> None:
    domain = Domain({"a": 2, "b": 3, "c": 2})
    tree = junction_tree(domain, [("a", "b"), ("b", "c")])
    ab = torch.tensor([[4.0, 0.0, 1.0], [2.0, 0.0, 3.0]]).double()
    bc = torch.tensor([[6.0, 0.0], [0.0, 0.0], [1.0, 3.0]]).double()
    tables = {("a", "b"): ab, ("b", "c"): bc}
    found = marginals(tree, [tables[c] for c in tree.cliques], [("a", "c"), ("a", "b", "c")])
    assert torch.equal(found["a", "c"], torch.tensor([[4.25, 0.75], [2.75, 2.25]]).double())
    assert found["a", "b", "c"][:, 1].abs().sum() == 0


def test_components_are_independent_whatever_the_total() -> None:
    domain = Domain({"a": 2, "b": 2, "c": 3})
    tree = junction_tree(domain, [])
    for total in (0.0, 1.0, 48842.0, 1e300):
        beliefs = [
            torch.full(domain.shape(c), total / domain.size(c), dtype=torch.float64)
            for c in tree.cliques
        ]
        found = marginals(tree, beliefs, [("c", "a", "b"), (), ("b",)])
        assert found["c", "a", "b"].numpy() == pytest.approx(np.full((3, 2, 2), total / 12))
        assert float(found[()]) == pytest.approx(total)
        assert found[()].shape == ()


def test_orders_duplicates_and_dtype() -> None:
    domain = Domain({"a": 2, "b": 3, "c": 4})
    cliques: list[Clique] = [("a", "b"), ("b", "c")]
    joint = joint_of(domain, cliques, np.random.default_rng(0), 0)
    tree = junction_tree(domain, cliques)
    beliefs = [belief.float() for belief in beliefs_of(tree, joint)]
    orders = list(itertools.permutations("abc"))
    found = marginals(tree, beliefs, [*orders, *orders, ["c", "a"]])
    assert list(found) == [*orders, ("c", "a")]
    for order, table in found.items():
        assert table.dtype == torch.float32
        np.testing.assert_allclose(table.numpy(), summed(domain, joint, order), rtol=1e-5)
    assert marginals(tree, beliefs, []) == {}


def test_long_chain_against_matrix_products() -> None:
    """Far more cliques in a row than Python lets functions nest."""
    names = [f"x{i:04d}" for i in range(1500)]
    rng = np.random.default_rng(0)
    law, tables = np.array([0.5, 0.3, 0.2]), {}
    law_first, step = law, np.eye(3)
    for pair in itertools.pairwise(names):
        kernel = 0.98 * np.eye(3) + 0.02 * rng.dirichlet(np.ones(3), 3)
        tables[pair] = torch.from_numpy(1000 * law[:, None] * kernel)
        step, law = step @ kernel, law @ kernel
    tree = junction_tree(Domain(dict.fromkeys(names, 3)), list(tables))
    ends = (names[-1], names[0])
    found = marginals(tree, [tables[c] for c in tree.cliques], [ends])  # type: ignore[index]
    expected = 1000 * law_first[:, None] * step
    np.testing.assert_allclose(found[ends].numpy(), expected.T, rtol=1e-9)


def test_large_cliques_by_way_of_smaller_tables() -> None:
    domain = Domain({"a": 9, "b": 10, "c": 11, "d": 12, "e": 3})
    joint = joint_of(domain, [("a", "b", "c", "d"), ("d", "e")], np.random.default_rng(1), 0.1)
    tree = junction_tree(domain, [("a", "b", "c", "d"), ("d", "e")])
    requested = [r for way in range(5) for r in itertools.combinations(domain.attributes, way)]
    for clique, table in marginals(tree, beliefs_of(tree, joint), requested).items():
        np.testing.assert_allclose(table.numpy(), summed(domain, joint, clique), rtol=1e-10)


def model_of_pairs() -> tuple[JunctionTree, list[torch.Tensor]]:
    domain = Domain({"hub": 3, "age": 100, "zip": 200, "job": 300})
    cliques: list[Clique] = [("hub", "age"), ("hub", "zip"), ("hub", "job")]
    tree = junction_tree(domain, cliques)
    beliefs = [torch.full(domain.shape(c), 1 / domain.size(c)).double() for c in tree.cliques]
    return tree, beliefs


def test_memory_limit() -> None:
    tree, beliefs = model_of_pairs()
    with pytest.raises(ModelTooLarge) as caught:
        marginals(tree, beliefs, [("age", "zip", "job")], memory_limit=10**7)
    for part in ("'age', 'zip', 'job'", "48,000,000", "10,000,000", "raise"):
        assert part in str(caught.value)
    # Together the pairs need 0.88 MB; each fits by itself.
    pairs = [("age", "zip"), ("age", "job"), ("zip", "job")]
    with pytest.raises(ModelTooLarge):
        marginals(tree, beliefs, pairs, memory_limit=800_000)
    found = marginals(tree, beliefs, pairs, memory_limit=1_200_000)
    assert all(float(table.sum()) == pytest.approx(1) for table in found.values())
    huge = [("age", "zip", "job", "hub")]
    with pytest.raises(ModelTooLarge):
        marginals(tree, beliefs, huge, memory_limit=tree.bytes())


def test_remembered_tables_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    tree, beliefs = model_of_pairs()
    requested = [r for way in (1, 2) for r in itertools.combinations(tree.domain.attributes, way)]
    usual = marginals(tree, beliefs, requested)
    monkeypatch.setattr("pgmkit.inference.tree_marginals.KEPT_BYTES", 0)
    for clique, table in marginals(tree, beliefs, requested).items():
        torch.testing.assert_close(table, usual[clique])


def test_random_tree_of_many_attributes_sums_to_the_total() -> None:
    rng = random.Random(1)
    domain = Domain({f"x{i}": 4 for i in range(60)})
    pairs = [(f"x{i}", f"x{rng.randrange(i)}") for i in range(1, 60)]
    tree = junction_tree(domain, pairs)
    beliefs = [torch.full(domain.shape(c), 7 / 16).double() for c in tree.cliques]
    requested = [tuple(rng.sample(domain.attributes, 3)) for _ in range(50)]
    for table in marginals(tree, beliefs, requested).values():
        assert math.isclose(float(table.sum()), 7)


def test_bad_input() -> None:
    tree, beliefs = model_of_pairs()
    with pytest.raises(InvalidInput, match="clique names an unknown attribute 'sex'"):
        marginals(tree, beliefs, [("age",), ("sex",)])
    with pytest.raises(InvalidInput, match="twice"):
        marginals(tree, beliefs, [("age", "age")])
    with pytest.raises(InvalidInput, match="string"):
        marginals(tree, beliefs, ["age"])


@settings(max_examples=25)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1), cells=st.sampled_from([1, 30, 1 << 20]))
def test_all_triples_are_slices_of_few_products(
    problem: tuple[Domain, list[Clique], list[Clique]], seed: int, cells: int
) -> None:
    domain, cliques, _ = problem
    every = [c for k in range(4) for c in itertools.combinations(domain, k)]
    turned = [tuple(reversed(clique)) for clique in every[::3]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pgmkit.inference.tree_marginals.BLOCK_CELLS", cells)
        assert_as_the_joint(domain, cliques, [*every, *turned], seed=seed, zeros=0.3)


def test_triples_of_a_chain_are_slices_of_common_products() -> None:
    """A chain in which several attributes of different sizes lie beyond the same pair."""
    domain = Domain({"a": 2, "b": 3, "c": 2, "d": 4, "e": 3, "f": 2})
    cliques = [*itertools.pairwise(domain)]
    assert_as_the_joint(domain, cliques, [*itertools.combinations(domain, 3)], seed=0, zeros=0.0)
