import itertools
import math
import pickle
import random
from collections.abc import Sequence

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from work import calls

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.graphs import elimination_search
from pgmkit.graphs.elimination_search import Step
from pgmkit.graphs.junction_tree import (
    JunctionTree,
    check_fits,
    junction_tree,
    model_cells,
)

Model = tuple[Domain, list[Clique]]


@st.composite
def models(draw: st.DrawFn, most: int = 9, smallest: int = 1) -> Model:
    sizes = draw(st.lists(st.integers(smallest, 7), min_size=1, max_size=most))
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    clique = st.lists(st.sampled_from(domain.attributes), max_size=4, unique=True).map(tuple)
    return domain, draw(st.lists(clique, max_size=12))


def graph_of(domain: Domain, cliques: list[Clique] | tuple[Clique, ...]) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(domain)
    for clique in cliques:
        graph.add_edges_from(itertools.combinations(clique, 2))
    return graph


def eliminated(graph: nx.Graph, order: tuple[str, ...]) -> nx.Graph:
    """The filled graph of an elimination order, by the textbook definition."""
    left, filled = graph.copy(), graph.copy()
    for name in order:
        new = list(itertools.combinations(left[name], 2))
        left.add_edges_from(new)
        filled.add_edges_from(new)
        left.remove_node(name)
    return filled


def cells_of(domain: Domain, chordal: nx.Graph) -> int:
    return sum(math.prod(domain.sizes[a] for a in clique) for clique in nx.find_cliques(chordal))


def optimum(domain: Domain, graph: nx.Graph) -> int:
    return min(
        cells_of(domain, eliminated(graph, order)) for order in itertools.permutations(graph)
    )


def check_tree(tree: JunctionTree, cliques: list[Clique]) -> None:
    position = {name: i for i, name in enumerate(tree.domain)}
    for clique in (*tree.cliques, *tree.separators):
        assert list(clique) == sorted(clique, key=position.__getitem__)
    # Every parent comes first, and what a clique shares with all earlier ones is its separator:
    # the running intersection property.
    for i, (clique, parent) in enumerate(zip(tree.cliques, tree.parents, strict=True)):
        assert -1 <= parent < i
        earlier = {name for before in tree.cliques[:i] for name in before}
        assert set(tree.separators[i]) == set(clique) & earlier
        if parent >= 0:
            assert tree.separators[i]
            assert set(tree.separators[i]) < set(clique)
            assert set(tree.separators[i]) < set(tree.cliques[parent])
            assert i in tree.children[parent]
    assert sum(map(len, tree.children)) == sum(parent >= 0 for parent in tree.parents)
    for clique in cliques:
        assert any(set(clique) <= set(c) for c in tree.cliques)
    assert {name for clique in tree.cliques for name in clique} == set(tree.domain)


@given(models())
@settings(deadline=None)
def test_tree_against_networkx(model: Model) -> None:
    domain, cliques = model
    tree = junction_tree(domain, cliques, seconds=0.002)
    check_tree(tree, cliques)
    graph = graph_of(domain, cliques)
    filled = graph_of(domain, tree.cliques)
    assert nx.is_chordal(filled)
    assert nx.utils.graphs_equal(filled, eliminated(graph, tree.order))
    assert set(map(frozenset, tree.cliques)) == set(map(frozenset, nx.find_cliques(filled)))
    assert nx.number_connected_components(graph) == tree.parents.count(-1)
    assert tree.cells == cells_of(domain, filled)
    assert tree.cells <= model_cells(domain, cliques)
    if nx.is_chordal(graph):
        assert nx.utils.graphs_equal(filled, graph)
        assert tree.cells == model_cells(domain, cliques)


@given(models(most=5))
@settings(max_examples=40, deadline=None)
def test_never_below_the_optimum_of_all_orders(model: Model) -> None:
    domain, cliques = model
    best = optimum(domain, graph_of(domain, cliques))
    assert best <= junction_tree(domain, cliques, seconds=0.001).cells <= model_cells(*model)


def test_reaches_the_optimum_of_all_orders_on_random_graphs() -> None:
    rng = random.Random(0)
    reached = predicted = 0
    for _ in range(25):
        domain = Domain({f"x{i}": rng.randint(2, 12) for i in range(6)})
        pairs = list(itertools.combinations(domain, 2))
        cliques = rng.sample(pairs, rng.randint(6, 11))
        best = optimum(domain, graph_of(domain, cliques))
        reached += junction_tree(domain, cliques).cells == best
        predicted += model_cells(domain, cliques) == best
    assert reached == 25
    assert predicted >= 20


def test_restarts_improve_on_the_heuristics_and_repeat_for_a_seed() -> None:
    rng = random.Random(4)
    sizes = (2, 2, 5, 6, 7, 9, 15, 16, 42, 16, 6, 10, 10)
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    better = 0
    for _ in range(5):
        cliques = [tuple(rng.sample(domain.attributes, 3)) for _ in range(15)]
        tree = junction_tree(domain, cliques, seed=3)
        assert tree == junction_tree(domain, cliques, seed=3)
        assert tree.cells <= model_cells(domain, cliques)
        assert model_cells(domain, cliques) == junction_tree(domain, cliques, seconds=0).cells
        better += tree.cells < model_cells(domain, cliques)
    assert better >= 1


def test_no_global_randomness() -> None:
    random.seed(5)
    state = random.getstate()
    domain = Domain(dict.fromkeys("abcde", 3))
    junction_tree(domain, list(zip("abcde", "bcdea", strict=True)))
    assert random.getstate() == state


def test_star_chain_and_cycle() -> None:
    star = junction_tree(Domain(dict.fromkeys("abcdef", 2)), [("c", a) for a in "abdef"])
    assert star.cells == 20
    assert star.parents == (-1, 0, 0, 0, 0)
    assert star.separators == ((), *[("c",)] * 4)
    names = [f"x{i:02d}" for i in range(33)]
    chain = junction_tree(Domain(dict.fromkeys(names, 2)), list(itertools.pairwise(names)))
    assert depth(chain) == 16  # 32 cliques, the root in the middle
    cycle = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]
    tree = junction_tree(Domain({"a": 10, "b": 2, "c": 10, "d": 2}), cycle)
    assert set(tree.cliques) == {("a", "b", "d"), ("b", "c", "d")}
    assert tree.largest in tree.cliques


def depth(tree: JunctionTree) -> int:
    depths: list[int] = []
    for parent in tree.parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return max(depths)


def test_empty_nested_and_disconnected() -> None:
    domain = Domain({"a": 2, "b": 3, "c": 4, "d": 5})
    for cliques in ([], [()], [("a",)]):
        tree = junction_tree(domain, cliques)
        assert tree.cliques == (("a",), ("b",), ("c",), ("d",))
        assert tree.parents == (-1, -1, -1, -1)
        assert tree.cells == model_cells(domain, cliques) == 14
    tree = junction_tree(domain, [("c", "a"), ("a",), ("a", "c"), ("d", "b")])
    assert tree.cliques == (("a", "c"), ("b", "d"))
    assert tree.separators == ((), ())
    assert tree.bytes() == 23 * 8
    assert tree.children == ((), ())


def test_holds_the_smallest_clique() -> None:
    tree = junction_tree(Domain({"a": 2, "b": 3, "c": 9}), [("a", "b"), ("b", "c")])
    small, large = tree.cliques.index(("a", "b")), tree.cliques.index(("b", "c"))
    assert tree.holds(["b"]) == small
    assert tree.holds(("c", "b")) == large
    assert tree.holds(()) == small
    assert tree.holds(("a", "c")) is None
    with pytest.raises(InvalidInput, match="unknown attribute 'z'"):
        tree.holds(["z"])
    with pytest.raises(InvalidInput, match="string"):
        tree.holds("a")


def test_sizes_are_exact_beyond_floats() -> None:
    domain = Domain({f"x{i}": 1000003 for i in range(12)})
    tree = junction_tree(domain, [domain.attributes])
    assert tree.cells == model_cells(domain, [domain.attributes]) == 1000003**12


def test_check_fits() -> None:
    domain = Domain({"age": 1000, "zip": 1000, "job": 1000, "pay": 1000, "sex": 2})
    tree = junction_tree(domain, [("age", "zip", "job", "pay"), ("sex",)])
    with pytest.raises(ModelTooLarge) as caught:
        check_fits(tree, 10**9)
    message = str(caught.value)
    needed, limit = f"{8 * 10**12 + 16:,} bytes", f"limit is {10**9:,} bytes"
    for part in ("'age', 'zip', 'job', 'pay'", f"{10**12:,} cells", needed, limit, "merge"):
        assert part in message
    check_fits(tree, tree.bytes())
    with pytest.raises(ModelTooLarge):
        check_fits(tree, tree.bytes() - 1)


def test_large_decomposable_models_are_cheap() -> None:
    """The work grows with the number of pairs, not its square: about sixty calls for each."""
    rng = random.Random(2)
    domain = Domain({f"x{i}": 10 for i in range(200)})
    pairs = [(f"x{i}", f"x{rng.randrange(i)}") for i in range(1, 200)]
    assert calls(lambda: junction_tree(domain, pairs)) < 100 * len(pairs)
    tree = junction_tree(domain, pairs)
    assert sorted(tree.cliques) == sorted(
        tuple(sorted(pair, key=domain.attributes.index)) for pair in pairs
    )
    check_tree(tree, pairs)


def test_pickles() -> None:
    tree = junction_tree(Domain({"a": 2, "b": 3}), [("a", "b")])
    assert tree.cells == 6
    assert pickle.loads(pickle.dumps(tree)) == tree


def test_bad_input() -> None:
    domain = Domain({"a": 2, "b": 3})
    with pytest.raises(InvalidInput, match=r"cliques\[1\] names an unknown attribute 'z'"):
        junction_tree(domain, [("a",), ("z",)])
    with pytest.raises(InvalidInput, match="twice"):
        model_cells(domain, [("a", "a")])
    with pytest.raises(InvalidInput, match="string"):
        junction_tree(domain, ["ab"])
    with pytest.raises(InvalidInput, match="cliques must be"):
        model_cells(domain, "ab")


def test_the_search_costs_no_more_than_it_can_save(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    made = elimination_search.maximal_cliques

    def counted(steps: Sequence[Step]) -> dict[int, int]:
        orders.append(steps)  # the cliques of every order that is tried are weighed
        return made(steps)

    monkeypatch.setattr(elimination_search, "maximal_cliques", counted)
    for size, fewest, most in [(2, 4, 40), (10, 100, 1003)]:
        sides = {(i, j): f"x{i}{j}" for i in range(3) for j in range(3)}
        grid = [
            (name, sides[near])
            for (i, j), name in sides.items()
            for near in ((i + 1, j), (i, j + 1))
            if near in sides
        ]
        orders.clear()
        # Trees are remembered, so the seed is one that no other search of a grid has.
        junction_tree(Domain(dict.fromkeys(sides.values(), size)), grid, seed=2026)
        assert fewest <= len(orders) <= most


@pytest.mark.parametrize("side", [8, 16, 24])
def test_large_grids_need_no_clique_wider_than_themselves(side: int) -> None:
    """The treewidth of a grid is its side."""
    names = {(i, j): f"x{i}_{j}" for i in range(side) for j in range(side)}
    pairs = [
        (name, names[near])
        for (i, j), name in names.items()
        for near in ((i + 1, j), (i, j + 1))
        if near in names
    ]
    tree = junction_tree(Domain(dict.fromkeys(names.values(), 2)), pairs)
    assert tree.cells <= side**2 << side + 1
