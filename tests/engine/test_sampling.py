"""Records against the model's own tables: expectations in closed form, laws by chi-square."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from chance import FALSE_ALARM, assert_chi_square, assert_follows, assert_mean
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, NumericalFailure
from pgmkit.graphs.junction_tree import JunctionTree
from pgmkit.records.counting import codes_of
from pgmkit.records.sampling import (
    Method,
    blocks,
    check_count,
    draw_independent,
    rounded_counts,
    sample,
    unravel,
)
from pgmkit.runtime.sizes import BLOCK_CELLS

METHODS: tuple[Method, ...] = ("round", "sample")


@dataclass(frozen=True)
class Tree:
    """What sampling reads of a junction tree, written down by hand."""

    domain: Domain
    cliques: tuple[Clique, ...]
    separators: tuple[Clique, ...]
    residuals = JunctionTree.residuals


@dataclass(frozen=True)
class Model:
    tree: Tree
    tables: tuple[np.ndarray, ...]

    def draw(self, n: int, seed: int, method: Method = "round") -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return sample(cast(Any, self.tree), lambda i: self.tables[i], n, rng, method)

    def joint(self) -> np.ndarray:
        """The model's law over the whole domain, by brute force: clique tables over separators."""
        letters = {name: chr(97 + i) for i, name in enumerate(self.tree.domain.attributes)}
        operands, terms = [], []
        for clique, separator, table in zip(
            self.tree.cliques, self.tree.separators, self.tables, strict=True
        ):
            drop = tuple(i for i, name in enumerate(clique) if name not in separator)
            mass = table.sum(axis=drop, keepdims=True)
            operands.append(np.divide(table, mass, out=np.zeros_like(table), where=mass > 0))
            terms.append("".join(letters[name] for name in clique))
        return np.einsum(",".join(terms) + "->" + "".join(letters.values()), *operands)


def counted(records: dict[str, np.ndarray], clique: Sequence[str], domain: Domain) -> np.ndarray:
    table = np.zeros(domain.shape(clique), dtype=np.int64)
    np.add.at(table, tuple(records[name].astype(np.intp) for name in clique), 1)
    return table


def variation(records: dict[str, np.ndarray], model: Model) -> float:
    """Mean total variation over the cliques, as a fraction of the records."""
    distances = []
    for clique, table in zip(model.tree.cliques, model.tables, strict=True):
        seen = counted(records, clique, model.tree.domain)
        distances.append(0.5 * np.abs(seen / seen.sum() - table / table.sum()).sum())
    return float(np.mean(distances))


def chain(length: int, size: int, seed: int, strength: float = 1.5) -> Model:
    """x0 - x1 - ...: pairs with log-normal conditional tables; counts of total 1,000."""
    rng = np.random.default_rng(seed)
    names = [f"x{i}" for i in range(length)]
    before, tables = rng.dirichlet(np.ones(size)), []
    for _ in range(length - 1):
        conditional = np.exp(strength * rng.normal(size=(size, size)))
        conditional /= conditional.sum(axis=1, keepdims=True)
        tables.append(1000 * before[:, None] * conditional)
        before = tables[-1].sum(axis=0) / 1000
    separators = ((), *((name,) for name in names[1:-1]))
    domain = Domain(dict.fromkeys(names, size))
    return Model(Tree(domain, tuple(itertools.pairwise(names)), separators), tuple(tables))


def star(sizes: Sequence[int], seed: int, couple: float = 1.0) -> Model:
    """A binary hub and peaked leaves; with `couple=0` the leaves do not depend on the hub."""
    rng = np.random.default_rng(seed)
    leaves = [f"leaf{i}" for i in range(len(sizes))]
    hub, tables = np.array([0.76, 0.24]), []
    for size in sizes:
        peaked = rng.permutation(np.arange(1.0, size + 1) ** -rng.uniform(0.8, 2.5))
        conditional = peaked * np.exp(couple * rng.normal(size=(2, size)))
        tables.append(hub[:, None] * conditional / conditional.sum(axis=1, keepdims=True))
    domain = Domain({"hub": 2, **dict(zip(leaves, sizes, strict=True))})
    cliques = tuple(("hub", leaf) for leaf in leaves)
    return Model(Tree(domain, cliques, ((), *[("hub",)] * (len(sizes) - 1))), tuple(tables))


ADULT_LEAVES = (85, 9, 100, 16, 7, 15, 6, 5, 2, 100, 100, 99, 42)


@pytest.mark.parametrize("seed", range(2))
def test_rounded_chain_is_close_to_the_model(seed: int) -> None:
    """The distance is 3.7e-5, standard deviation 1e-6: 66 away from the limit."""
    model = chain(20, 10, seed)
    assert variation(model.draw(500_000, seed), model) <= 0.0001  # the target is 0.0012


@pytest.mark.parametrize("seed", range(2))
def test_rounded_star_is_close_to_the_model(seed: int) -> None:
    """The distance is 3.0e-5, standard deviation 6e-7: 115 away from the limit."""
    model = star(ADULT_LEAVES, seed)
    assert variation(model.draw(500_000, seed), model) <= 0.0001  # the target is 0.0006


def mixed() -> Model:
    """Two components; separators in another order than the clique; residuals of two attributes."""
    rng = np.random.default_rng(5)
    domain = Domain({"a": 3, "b": 4, "c": 2, "d": 5, "e": 1, "f": 3})
    first = rng.gamma(0.5, size=(4, 2, 3))  # b, c, a
    first[0, 1] = 0
    second = np.zeros((5, 2, 1, 4))  # d, c, e, b
    second[:, :, 0] = rng.dirichlet(np.ones(5), size=(2, 4)).transpose(2, 0, 1)
    second *= first.sum(axis=2).T[None, :, None]
    return Model(
        Tree(domain, (("b", "c", "a"), ("d", "c", "e", "b"), ("f",)), ((), ("b", "c"), ())),
        (first, second, np.array([0.0, 3.0, 1.0])),
    )


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    groups=st.integers(1, 6),
    width=st.integers(1, 9),
    n=st.integers(0, 300),
    seed=st.integers(0, 2**32 - 1),
)
def test_rounded_counts_are_floor_or_ceiling(
    data: st.DataObject, groups: int, width: int, n: int, seed: int
) -> None:
    weights = st.one_of(st.just(0.0), st.floats(1e-9, 1e9))
    table = np.array(
        data.draw(st.lists(weights, min_size=groups * width, max_size=groups * width))
    ).reshape(groups, width)
    table[:, 0] += 1.0
    domain = Domain({"s": groups, "r": width})
    parent = table.sum(axis=1)
    model = Model(Tree(domain, (("s",), ("r", "s")), ((), ("s",))), (parent, table.T))
    seen = counted(model.draw(n, seed), ("s", "r"), domain)
    totals = seen.sum(axis=1)
    assert totals.sum() == n
    assert np.all(np.abs(totals - n * parent / parent.sum()) < 1 + 1e-6)
    expected = table * (totals / parent)[:, None]
    assert np.all(np.abs(seen - expected) < 1 + 1e-6)
    assert np.all(seen[table == 0] == 0)


@pytest.mark.parametrize("n", [7, 100])
def test_rounded_counts_are_unbiased(n: int) -> None:
    model, draws = mixed(), 2000
    expected = n * model.joint().ravel() / model.joint().sum()
    seen = np.array(
        [
            counted(model.draw(n, seed), model.tree.domain.attributes, model.tree.domain).ravel()
            for seed in range(draws)
        ]
    )
    level = FALSE_ALARM / len(expected)  # for all cells together
    error = seen.mean(axis=0) - expected
    common = draws * expected > 100
    reach = stats.norm.isf(level / 2) * np.sqrt(seen.var(axis=0) / draws)
    assert np.all(np.abs(error[common]) <= reach[common])
    # Rare cells, if they are seen at all, come at most as unevenly as Poisson's rare events.
    times, mean = seen.sum(axis=0)[~common], draws * expected[~common]
    assert np.all(times <= stats.poisson.isf(level, mean))
    assert np.all(times >= stats.poisson.ppf(level, mean))


def test_independent_draws_follow_the_joint_law() -> None:
    model, n = mixed(), 20_000
    law = model.joint().ravel() / model.joint().sum()
    everything = model.tree.domain.attributes
    statistics, freedom, whole = [], 0, np.zeros(len(law), dtype=np.int64)
    for seed in range(40):
        seen = counted(model.draw(n, seed, "sample"), everything, model.tree.domain).ravel()
        assert np.all(seen[law == 0] == 0)
        whole += seen
        common = n * law >= 20
        pooled = np.append(seen[common], seen[~common].sum())
        wanted = np.append(n * law[common], n * law[~common].sum())
        statistics.append(((pooled - wanted) ** 2 / wanted).sum())
        freedom += common.sum()
    assert_follows(whole, law)  # 800,000 records: no bias
    assert_chi_square(sum(statistics), freedom)  # and the spread of independent draws


def contingency(table: np.ndarray) -> tuple[float, int]:
    """Pearson's statistic for independence and its degrees of freedom."""
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    wanted = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    return float(((table - wanted) ** 2 / wanted).sum()), (table.shape[0] - 1) * (
        table.shape[1] - 1
    )


@pytest.mark.parametrize("method", METHODS)
def test_no_spurious_correlation_between_leaves(method: Method) -> None:
    model = star((5, 8, 20, 3, 12), seed=3, couple=0.0)
    excess = []
    for seed in range(30):
        records = model.draw(5_000, seed, method)
        pairs = itertools.combinations(model.tree.domain.attributes[1:], 2)
        found = [contingency(counted(records, pair, model.tree.domain)) for pair in pairs]
        excess.append(sum(value - degrees for value, degrees in found))
    assert_mean(excess, 0)


@pytest.mark.parametrize("method", METHODS)
def test_no_spurious_correlation_within_groups_of_a_chain(method: Method) -> None:
    """x0 and x2 are independent given x1: Pearson's statistic in every group of x1."""
    model = chain(3, 6, seed=2, strength=0.5)
    excess = []
    for seed in range(60):
        seen = counted(model.draw(20_000, seed, method), ("x1", "x0", "x2"), model.tree.domain)
        excess.append(sum(value - degrees for value, degrees in map(contingency, seen)))
    assert_mean(excess, 0)


@pytest.mark.parametrize("method", METHODS)
def test_no_spurious_correlation_along_an_independent_chain(method: Method) -> None:
    names = [f"x{i}" for i in range(6)]
    margin = np.array([0.4, 0.3, 0.2, 0.1])
    tables = (np.outer(margin, margin),) * 5
    separators = ((), *((name,) for name in names[1:-1]))
    domain = Domain(dict.fromkeys(names, 4))
    model = Model(Tree(domain, tuple(itertools.pairwise(names)), separators), tables)
    excess = []
    for seed in range(100):
        records = model.draw(3_001, seed, method)
        pairs = (("x0", "x2"), ("x0", "x5"), ("x1", "x4"))
        found = [contingency(counted(records, pair, domain)) for pair in pairs]
        excess.append(sum(value - degrees for value, degrees in found))
    assert_mean(excess, 0)


def test_sparse_clique_does_not_fall_into_step() -> None:
    """100 records in a uniform 100 x 100 clique: neither attribute may crowd into few values."""
    domain = Domain({"a": 100, "b": 100})
    model = Model(Tree(domain, (("a", "b"),), ((),)), (np.ones((100, 100)),))
    draws = [model.draw(100, seed) for seed in range(50)]
    for name in domain.attributes:
        seen = np.array([counted(records, (name,), domain) for records in draws])
        value = ((seen - 1.0) ** 2).sum()
        degrees = 50 * 99
        # No more spread than independent draws.
        assert value <= stats.chi2.isf(FALSE_ALARM, degrees)
        assert_follows(seen.sum(axis=0), np.ones(100))


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_the_records_carries_nothing(method: Method) -> None:
    model = chain(3, 4, seed=0)
    records = model.draw(40_000, 1, method)
    for name, column in records.items():
        before, after = column[:-1], column[1:]
        table = counted({"p": before, "q": after}, ("p", "q"), Domain({"p": 4, "q": 4}))
        value, degrees = contingency(table)
        assert stats.chi2.sf(value, degrees) >= FALSE_ALARM, name
        halves = np.stack([np.bincount(half, minlength=4) for half in np.split(column, 2)])
        assert stats.chi2.sf(*contingency(halves)) >= FALSE_ALARM


@pytest.mark.parametrize("method", METHODS)
def test_many_groups_and_wide_codes(method: Method) -> None:
    """A separator beyond 65,536 cells whose values decide the residual attribute."""
    domain = Domain({"a": 300, "b": 400, "c": 300})
    first = np.random.default_rng(0).gamma(1.0, size=(300, 400))
    decided = np.zeros((300, 400, 300))
    decided[np.arange(300)[:, None], np.arange(400), np.arange(300)[:, None]] = first
    model = Model(Tree(domain, (("a", "b"), ("a", "b", "c")), ((), ("a", "b"))), (first, decided))
    records = model.draw(50_000, 0, method)
    assert np.array_equal(records["a"], records["c"])
    assert [column.dtype for column in records.values()] == [np.uint16] * 3


def test_dtypes_lengths_and_seeds() -> None:
    model = mixed()
    for method in METHODS:
        for n in (0, 1, 1000):
            first, again = model.draw(n, 7, method), model.draw(n, 7, method)
            assert tuple(first) == model.tree.domain.attributes
            for name, column in first.items():
                assert column.dtype == np.uint8
                assert column.shape == (n,)
                assert np.array_equal(column, again[name])


@pytest.mark.parametrize("attributes", ["a", "ab", "ba", "bac", "abcd"])
def test_codes_of_cells_are_numbers_of_mixed_radix_in_the_smallest_type(attributes: str) -> None:
    """As numpy counts them, and back again; sizes of 256 and 257 codes are at the types' limits."""
    domain = Domain({"a": 256, "b": 257, "c": 1, "d": 3})
    shape, rng = domain.shape(tuple(attributes)), np.random.default_rng(0)
    given = {name: np.append(rng.integers(0, domain.sizes[name], 50), domain.sizes[name] - 1)
             for name in attributes}  # fmt: skip
    small = {"a": np.uint8, "b": np.uint16, "c": np.uint8, "d": np.uint8}
    columns = {name: codes.astype(small[name]) for name, codes in given.items()}
    wanted = np.ravel_multi_index([given[name] for name in attributes], shape)
    cells = codes_of(columns, domain.sizes, tuple(attributes), 0, 51)
    assert cells.tolist() == wanted.tolist()
    kind = np.min_scalar_type(math.prod(shape))
    again = unravel(domain, tuple(attributes), wanted.astype(kind))
    for name, codes in again.items():
        assert codes.dtype == small[name]
        assert codes.tolist() == given[name].tolist()


@pytest.mark.parametrize("shares", [(0.3, 0.7), (0.5, 0.2, 0.3), (0.1, 0.4, 0.1, 0.4)])
def test_one_record_is_in_each_cell_as_often_as_its_share(shares: tuple[float, ...]) -> None:
    """Of 20,000 groups of one record; with two, each is rounded up or down."""
    table, rng = np.tile(shares, (20_000, 1)), np.random.default_rng(0)
    counts = rounded_counts(table, np.ones(20_000, int), rng, ("a",))
    assert (counts.sum(axis=1) == 1).all() and counts.min() == 0
    for cell, share in enumerate(shares):
        assert_mean(counts[:, cell].astype(float), share)
    twice = rounded_counts(table, np.full(20_000, 2), rng, ("a",))
    assert (twice.sum(axis=1) == 2).all()
    for cell, share in enumerate(shares):
        assert {*twice[:, cell].tolist()} <= {math.floor(2 * share), math.ceil(2 * share)}


@pytest.mark.parametrize(("drawn", "cell"), [(0.0, 1), (0.49, 1), (0.5, 3), (1 - 2**-53, 3)])
def test_a_level_at_a_cumulative_sum_is_of_the_next_possible_cell(drawn: float, cell: int) -> None:
    """Of the counts 0, 2, 0, 2, 0 no draw gives an impossible cell, not even one of 0."""
    rng = cast(Any, SimpleNamespace(random=lambda n: np.full(n, drawn)))
    table, groups = np.array([[1.0] * 5, [0.0, 2.0, 0.0, 2.0, 0.0]]), np.array([1, 1], np.uint8)
    assert draw_independent(table, groups, rng, ("a",)).tolist() == [cell, cell]


@pytest.mark.parametrize(
    ("width", "lengths"),
    [(BLOCK_CELLS // 3, [3, 3, 1]), (BLOCK_CELLS, [1] * 7), (2 * BLOCK_CELLS, [1] * 7)],
)
def test_blocks_have_a_limit_of_cells_but_one_group_at_least(
    width: int, lengths: list[int]
) -> None:
    made = list(blocks(np.arange(7), width))
    assert [len(block) for block in made] == lengths
    assert np.concatenate(made).tolist() == [*range(7)]


def test_the_most_records_are_those_of_an_array() -> None:
    check_count(sys.maxsize // 8)
    check_count(1, "rows", least=1)
    for n, least in ((sys.maxsize // 8 + 1, 0), (0, 1)):
        with pytest.raises(
            InvalidInput, match=f"n must be a whole number of records from {least} to"
        ):
            check_count(n, least=least)


def test_bad_arguments_are_named() -> None:
    model, rng = mixed(), np.random.default_rng(0)
    tree, tables = cast(Any, model.tree), model.tables
    for n in (-1, 2.5, True, "3"):
        with pytest.raises(InvalidInput, match="n must be a whole number of records from 0 to"):
            sample(tree, lambda i: tables[i], cast(Any, n), rng)
    with pytest.raises(InvalidInput, match="method must be one of"):
        sample(tree, lambda i: tables[i], 5, rng, cast(Any, "rounded"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.array([[1.0, -1e-3], [1.0, 1.0]]), "negative"),
        (np.array([[1.0, np.nan], [1.0, 1.0]]), "NaN"),
        (np.array([[1.0, np.inf], [1.0, 1.0]]), "no finite mass"),
        (np.array([[0.0, 0.0], [1.0, 1.0]]), "no finite mass"),
    ],
)
def test_impossible_marginals_are_refused(method: Method, wrong: np.ndarray, message: str) -> None:
    domain = Domain({"a": 2, "b": 2})
    model = Model(Tree(domain, (("a",), ("a", "b")), ((), ("a",))), (np.ones(2), wrong))
    with pytest.raises(NumericalFailure, match=message):
        model.draw(10, 0, method)
