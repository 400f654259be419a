"""Records in parts: together one rounded draw, by the law of records that are drawn at once."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
from chance import FALSE_ALARM, assert_follows
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.graphs.junction_tree import JunctionTree, junction_tree
from pgmkit.records.sampling import sample
from pgmkit.records.sampling_parts import MOST_RECORDS, parted_sample, without_replacement

CLIQUES = [
    [("a", "b"), ("b", "c")],
    [("a", "b", "c"), ("c", "d"), ("b", "c", "e")],
    [("a",), ("b", "c"), ("c", "d", "e"), ("e", "f")],
    [],
]


def model(cliques: list[tuple[str, ...]], seed: int) -> tuple[JunctionTree, list[np.ndarray]]:
    """A tree, and marginals of its cliques that come from one joint table with zeros in it."""
    rng = np.random.default_rng(seed)
    names = sorted({name for clique in cliques for name in clique} | {"a", "b"})
    domain = Domain({name: int(rng.integers(1, 4)) for name in names})
    joint = rng.gamma(0.3, size=domain.shape()) * (rng.random(domain.shape()) < 0.8)
    joint.flat[0] += 1
    tree = junction_tree(domain, cliques)
    tables = []
    for clique in tree.cliques:
        axes = tuple(i for i, name in enumerate(names) if name not in clique)
        kept = [name for name in names if name in clique]
        tables.append(joint.sum(axis=axes).transpose([kept.index(name) for name in clique]))
    return tree, tables


def counted(records: dict[str, np.ndarray], clique: tuple[str, ...], domain: Domain) -> np.ndarray:
    table = np.zeros(domain.shape(clique), dtype=np.int64)
    np.add.at(table, tuple(records[name].astype(np.intp) for name in clique), 1)
    return table


@settings(max_examples=60)
@given(
    cliques=st.sampled_from(CLIQUES),
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 400),
    count=st.integers(1, 16),
)
def test_parts_add_up_to_one_rounded_draw(
    cliques: list[tuple[str, ...]], seed: int, n: int, count: int
) -> None:
    tree, tables = model(cliques, seed)
    rows = max(1, -(-n // count))
    made = parted_sample(tree, tables.__getitem__, n, rows, np.random.default_rng(seed))
    there = pickle.loads(pickle.dumps(made))
    parts = [made.part(i) for i in range(made.count)]
    for part, other in zip(parts, made.parts(0, made.count), strict=True):
        assert all(np.array_equal(part[name], other[name]) for name in tree.domain)
    sizes = [len(part["a"]) for part in parts]
    assert sum(sizes) == n and set(sizes[:-1]) <= {rows} and sizes[-1] <= rows
    for number in reversed(range(made.count)):
        again = there.part(number)
        assert all(np.array_equal(again[name], parts[number][name]) for name in tree.domain)
    whole = {name: np.concatenate([part[name] for part in parts]) for name in tree.domain}
    for clique, separator, table in zip(tree.cliques, tree.separators, tables, strict=True):
        found = counted(whole, clique, tree.domain)
        axes = tuple(i for i, name in enumerate(clique) if name not in separator)
        groups, mass = (t.sum(axis=axes, keepdims=True) for t in (found, table))
        expected = table * np.divide(groups, mass, out=np.zeros_like(table), where=mass > 0)
        # The whole is a rounding: each cell the floor or ceiling of what its group expects.
        assert (np.abs(found - expected) < 1 + 1e-9).all()


@pytest.mark.parametrize("colours", [[3, 1], [2, 0, 3], [1, 4, 2, 2], [5, 1, 0, 0, 2]])
def test_draws_without_replacement_follow_their_law(colours: list[int]) -> None:
    draws, size = 20_000, sum(colours) // 2
    rng = np.random.default_rng(len(colours))
    repeated = np.tile(np.array(colours, dtype=np.int32), (draws, 1))
    found = without_replacement(repeated, np.full(draws, size), rng)
    outcomes = [o for o in itertools.product(*(range(c + 1) for c in colours)) if sum(o) == size]
    law = [stats.multivariate_hypergeom.pmf(o, colours, size) for o in outcomes]
    places = {outcome: i for i, outcome in enumerate(outcomes)}
    seen = np.bincount([places[tuple(row)] for row in found.tolist()], minlength=len(outcomes))
    assert_follows(seen, law)


def test_records_of_parts_go_together_like_records_of_one_draw() -> None:
    tree, tables = model([("a", "b"), ("b", "c")], seed=8)
    n, rows, draws = 7, 3, 2500
    cells = tree.domain.size()

    def pair(records: list[dict[str, np.ndarray]]) -> int:
        """The cells of the first record of all and of the last one, as one number."""
        ends = (records[0], 0), (records[-1], -1)
        first, last = (
            np.ravel_multi_index([part[name][i] for name in tree.domain], tree.domain.shape())
            for part, i in ends
        )
        return int(first) * cells + int(last)

    found = np.zeros((2, cells * cells), dtype=np.int64)
    for seed in range(draws):
        once = sample(tree, tables.__getitem__, n, np.random.default_rng(seed))
        found[0, pair([once])] += 1
        rng = np.random.default_rng(draws + seed)
        made = parted_sample(tree, tables.__getitem__, n, rows, rng)
        found[1, pair([made.part(0), made.part(made.count - 1)])] += 1
    often = found.sum(axis=0) >= 25
    assert often.sum() > 5
    pooled = np.column_stack([found[:, often], found[:, ~often].sum(axis=1)])
    assert stats.chi2_contingency(pooled[:, pooled.any(axis=0)]).pvalue >= FALSE_ALARM


def test_what_cannot_be_drawn_is_refused() -> None:
    tree, tables = model([("a", "b")], seed=0)
    for n in (-1, 2.5, True, MOST_RECORDS + 1):
        with pytest.raises(InvalidInput, match="n must be"):
            parted_sample(tree, tables.__getitem__, n, 10, np.random.default_rng(0))  # type: ignore[arg-type]
    for rows in (0, -3, 2.5, "a", None, True):
        with pytest.raises(InvalidInput, match="rows must be a whole number of records from 1 to"):
            parted_sample(tree, tables.__getitem__, 20, rows, np.random.default_rng(0))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="number must be a whole number from 0 to 1, got 2"):
        parted_sample(tree, tables.__getitem__, 20, 10, np.random.default_rng(0)).part(2)


@pytest.mark.parametrize("cliques", CLIQUES[:3])
def test_a_cell_of_some_record_has_as_many_as_all_parts_have(
    cliques: list[tuple[str, ...]],
) -> None:
    tree, tables = model(cliques, 3)
    seen = set()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        made = parted_sample(tree, lambda i: tables[i], 50, 20, rng)
        codes, number = made.some_cell()
        parts = [made.part(i) for i in range(made.count)]
        records = {name: np.concatenate([part[name] for part in parts]) for name in codes}
        here = np.all([records[name] == code for name, code in codes.items()], axis=0)
        assert number == here.sum() > 0
        assert {*codes} in [{*clique} for clique in tree.cliques]
        assert {type(each) for each in (*codes.values(), number)} == {int}
        seen.add(tuple(codes))
    assert len(seen) == len(tree.cliques)
    empty = parted_sample(tree, lambda i: tables[i], 0, 20, np.random.default_rng(0))
    assert empty.some_cell() == ({}, 0) and empty.count == 1
    assert replace(made, counts=[]).some_cell() == ({}, 50)
    assert [[*each.parts(0, 0)] for each in (empty, made)] == [[], []]
    with pytest.raises(InvalidInput, match="from 0 to 999,999,999"):
        parted_sample(tree, lambda i: tables[i], 10**9, 20, np.random.default_rng(0))
