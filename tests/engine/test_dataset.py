"""Dataset and its counting against np.add.at and itertools on explicit rows."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.records import counting
from pgmkit.records.dataset import Dataset, NoRows

AGE_SEX = Domain({"age": 10, "sex": 2})


def by_add_at(data: Dataset, clique: Clique) -> NDArray[np.int64]:
    table = np.zeros(data.domain.shape(clique), np.int64)
    np.add.at(table, tuple(data.columns[a] for a in clique), 1)
    return table if clique else np.array(len(data))


def random_dataset(sizes: list[int], rows: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    return Dataset(domain, {a: rng.integers(0, domain.sizes[a], rows) for a in domain})


@st.composite
def datasets_and_cliques(draw: st.DrawFn) -> tuple[Dataset, list[Clique]]:
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=6))
    data = random_dataset(sizes, draw(st.integers(1, 300)), draw(st.integers(0, 2**32)))
    order = st.permutations(data.domain.attributes)
    clique = st.tuples(order, st.integers(0, len(sizes))).map(lambda p: tuple(p[0][: p[1]]))
    return data, draw(st.lists(clique, max_size=12))


def check_tables(data: Dataset, cliques: list[Clique]) -> None:
    tables = data.marginals(cliques)
    assert list(tables) == list(dict.fromkeys(cliques))
    for clique, table in tables.items():
        assert table.dtype == np.int64 and isinstance(table, np.ndarray)
        np.testing.assert_array_equal(table, by_add_at(data, clique), strict=True)


@given(datasets_and_cliques())
def test_marginals_equal_add_at(case: tuple[Dataset, list[Clique]]) -> None:
    check_tables(*case)


@settings(max_examples=40)
@given(
    datasets_and_cliques(),
    st.sampled_from([1, 3, 50]),
    st.sampled_from([1, 20, 10_000]),
    st.sampled_from([1, 4]),
)
def test_marginals_do_not_depend_on_chunks_blocks_or_batches(
    case: tuple[Dataset, list[Clique]], piece: int, block: int, batch: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "CACHE_CELLS", piece)
        patch.setattr(counting, "BLOCK_CELLS", block)
        patch.setattr(counting, "BATCH", batch)
        # Rows enough that blocks pay off in the cost model whatever the data.
        patch.setattr(counting, "seconds_of", lambda cells, k, rows: 1.0 + 1e-9 * cells)
        check_tables(*case)


def test_many_rows_are_counted_in_chunks() -> None:
    data = random_dataset([2, 300, 3, 5, 4], 400_000, seed=1)
    check_tables(data, [c for k in range(6) for c in itertools.combinations(data.domain, k)])


@pytest.mark.parametrize("rows", [50, counting.CACHE_CELLS])
@pytest.mark.parametrize("size", [255, 256, 257, 65_536])
def test_an_attribute_of_one_code_before_one_of_many(size: int, rows: int) -> None:
    """A size of 256 or 65,536 exceeds the type of the codes below it."""
    data = random_dataset([1, size, 1], rows, seed=1)
    cliques = [("x0", "x1"), ("x2", "x0", "x1"), ("x1", "x0"), ("x1",)]
    for clique, table in data.marginals(cliques).items():
        assert np.array_equal(table, by_add_at(data, clique))


def test_the_brute_force_itself_agrees_with_a_loop_over_rows() -> None:
    data = random_dataset([2, 3, 4], 50, seed=2)
    rows = list(zip(*(data.columns[a].tolist() for a in data.domain), strict=True))
    table = by_add_at(data, data.domain.attributes)
    for cell in itertools.product(range(2), range(3), range(4)):
        assert table[cell] == rows.count(cell)


def test_marginals_are_independent_of_each_other() -> None:
    data = Dataset(Domain({"a": 1, "b": 3}), {"a": [0, 0], "b": [1, 2]})
    tables = data.marginals([("a", "b"), ("b", "a"), ("b",)])
    tables["a", "b"][:] = 9
    assert tables["b", "a"].tolist() == [[0], [1], [1]] and tables["b",].tolist() == [0, 1, 1]
    assert data.marginals([]) == {}


def test_blocks_share_the_counting() -> None:
    domain = Domain({f"x{i}": 5 for i in range(10)})
    cliques: list[Clique] = sorted(itertools.combinations(domain, 3))
    blocks = list(counting.blocks(cliques, domain.sizes, 1_000_000))
    assert len(blocks) < len(cliques) / 4
    assert sorted(c for _, members in blocks for c in members) == cliques
    for attributes, members in blocks:
        assert all(set(c) <= set(attributes) for c in members)
        assert domain.size(attributes) <= counting.BLOCK_CELLS


def test_large_cliques_are_counted_alone() -> None:
    domain = Domain({"a": 2000, "b": 2000, "c": 2})
    blocks = list(counting.blocks([("a", "b"), ("a",), ("c",)], domain.sizes, 50_000))
    assert (("a", "b"), [("a", "b")]) in blocks
    rng = np.random.default_rng(3)
    data = Dataset(domain, {a: rng.integers(0, domain.sizes[a], 50_000) for a in domain})
    check_tables(data, [("a", "b"), ("b", "a"), ("a",), ("c",)])


def test_columns_are_small_copied_and_read_only() -> None:
    ages = np.array([0, 299, 3])
    data = Dataset(Domain({"age": 300, "sex": 2, "one": 1, "big": 70_000}), {
        "one": (0, 0, 0), "age": ages, "sex": [0.0, 1.0, 0.0], "big": [69_999, 0, 1],
    })  # fmt: skip
    assert [c.dtype for c in data.columns.values()] == [np.uint16, np.uint8, np.uint8, np.uint32]
    assert tuple(data.columns) == data.domain.attributes and len(data) == 3
    ages[0] = 7
    assert data.columns["age"][0] == 0
    with pytest.raises(ValueError, match="read-only"):
        data.columns["age"][0] = 1
    with pytest.raises(TypeError):
        data.columns["age"] = ages  # type: ignore[index]
    assert pd.DataFrame(data.columns).to_numpy().tolist()[1] == [299, 1, 0, 0]
    changes: list[Callable[[Any], object]] = [
        lambda columns: columns.update(age=None),
        lambda columns: columns.pop("age"),
        lambda columns: columns.popitem(),
        lambda columns: columns.__delitem__("age"),
        lambda columns: columns.setdefault("new", None),
        lambda columns: columns.__ior__({}),
        lambda columns: columns.clear(),
    ]
    for change in changes:
        with pytest.raises(TypeError, match="are read-only"):
            change(data.columns)
    again = pickle.loads(pickle.dumps(data.columns))
    assert type(again) is type(data.columns) and list(again) == list(data.columns)
    small = np.zeros(3, np.uint8)
    assert not np.shares_memory(Dataset(Domain({"a": 2}), {"a": small}).columns["a"], small)


def test_project_keeps_rows_and_order() -> None:
    data = random_dataset([2, 3, 4], 20, seed=4)
    projected = data.project(["x2", "x0"])
    assert projected.domain == Domain({"x2": 4, "x0": 2}) and len(projected) == 20
    np.testing.assert_array_equal(projected.marginal(["x0", "x2"]), data.marginal(["x0", "x2"]))
    assert projected.columns["x2"] is data.columns["x2"]
    assert data.project(()).marginal(()) == len(data.project(())) == 20


def test_repr_shows_no_data_and_copies_work() -> None:
    data = Dataset(AGE_SEX, {"age": [7] * 8877, "sex": [1] * 8877})
    assert repr(data) == "Dataset(Domain({'age': 10, 'sex': 2}))"
    for twin in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        np.testing.assert_array_equal(twin.marginal(("age",)), data.marginal(("age",)))


SECRET = 987654

BAD_COLUMNS: list[tuple[Any, str]] = [
    ([0, SECRET], r"outside 0\.\.9"),
    ([0, -SECRET], r"outside 0\.\.9"),
    ([0, 10], r"outside 0\.\.9"),
    ([0, 1.5], "fractions"),
    ([0, float("nan")], r"outside 0\.\.9"),
    ([0, float("inf")], r"outside 0\.\.9"),
    (np.array([0, 70_000], np.uint32), r"outside 0\.\.9"),
    (np.array([0, np.inf], np.float16), r"outside 0\.\.9"),
    ([0, "987654"], "integer codes"),
    ([0, None], "integer codes"),
    ([0, 10**30], "integer codes"),
    ([True, False], "type bool"),
    ([0, 1j], "type complex"),
    ([[0, 1]], "one-dimensional"),
    (3, "one-dimensional"),
    ([0, [SECRET]], "which is no array"),
    ([0, 1, 2], "'age' and 'sex' have different lengths"),
    (np.ma.array([0, 1], mask=[True, False]), "masked"),
]


class Large:
    """Values that are too many for the memory, which numpy's message would tell."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise MemoryError(f"Unable to allocate 7.00 TiB for an array with shape ({SECRET},)")


def test_a_lack_of_memory_is_no_wrong_kind_of_values() -> None:
    with pytest.raises(ModelTooLarge, match="'age' takes more memory than is left") as caught:
        Dataset(AGE_SEX, {"age": Large(), "sex": [0, 1]})
    assert str(SECRET) not in str(caught.value) and caught.value.__context__ is None


@pytest.mark.parametrize(("values", "message"), BAD_COLUMNS)
def test_bad_codes_are_refused_without_quoting_them(values: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        Dataset(AGE_SEX, {"age": values, "sex": [0, 1]})
    text = str(caught.value)
    assert "'age'" in text and str(SECRET) not in text and "10" not in text
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"age": [0]}, "columns must have codes of 'sex'; it has those of age"),
        (
            {"age": [0], "sex": [1], "zip": [2]},
            "must be those of the domain, not 'zip'; these are age, sex",
        ),
        ({"age": [], "sex": []}, "no rows"),
        ({}, "must have codes of 'age'"),
        ([[0, 1]], "columns must be a mapping from"),
    ],
)
def test_bad_column_sets_are_refused(columns: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Dataset(AGE_SEX, columns)
    with pytest.raises(InvalidInput, match="pgmkit Domain"):
        Dataset({"age": 10}, columns)  # type: ignore[arg-type]


@pytest.mark.parametrize("clique", ["age", ["age", "age"], ["zip"], 3])
def test_bad_cliques_are_refused(clique: Any) -> None:
    data = Dataset(AGE_SEX, {"age": [0], "sex": [1]})
    for counts in (data, NoRows(AGE_SEX)):
        with pytest.raises(InvalidInput):
            counts.marginal(clique)
        with pytest.raises(InvalidInput):
            counts.marginals([clique])
    with pytest.raises(InvalidInput):
        data.marginals(clique)


def test_tables_that_do_not_fit_are_refused_before_counting() -> None:
    domain = Domain({f"x{i}": 10_000 for i in range(100)})
    data = Dataset(domain, {a: [0] for a in domain})
    with pytest.raises(
        ModelTooLarge,
        match=r"\(.x0., .x1., .x2.\) \(1,000,000,000,000 cells\) .*limit is 2,147,483,648 bytes",
    ):
        data.marginal(("x0", "x1", "x2"))
    with pytest.raises(ModelTooLarge, match=r"fewer marginals at once"):
        data.marginals([("x0", f"x{i}") for i in range(1, 5)])
    with pytest.raises(ModelTooLarge, match="cells"):
        data.marginal(domain.attributes)


def test_sizes_beyond_64_bits_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'id' has more than 2\*\*64"):
        Dataset(Domain({"id": 2**65}), {"id": [0]})
    data = Dataset(Domain({"id": 2**64}), {"id": np.array([2**64 - 1], np.uint64)})
    assert data.columns["id"].tolist() == [2**64 - 1]


def test_adult_three_way_marginals() -> None:
    folder = os.environ.get("PGMKIT_DATA")
    if not folder:
        pytest.skip("set PGMKIT_DATA to the folder that holds adult.csv")
    domain = Domain(json.loads((Path(folder) / "adult.domain.json").read_text()))
    lines = (Path(folder) / "adult.csv").read_text().split()
    header, rows = lines[0].split(","), np.array([line.split(",") for line in lines[1:]])
    data = Dataset(domain, {a: rows[:, header.index(a)].astype(int) for a in domain})
    triples = list(itertools.combinations(domain, 3))
    tables = data.marginals(triples)
    assert len(tables) == 286 and sum(t.size for t in tables.values()) == 334_128
    for clique in triples[::7]:
        np.testing.assert_array_equal(tables[clique], by_add_at(data, clique))


def test_a_plan_counts_any_number_of_pieces() -> None:
    """Those of a file: the tables of all pieces add up to that of all rows."""
    data = random_dataset([2, 5, 3, 4], 60_000, seed=4)
    cliques = [c for k in range(4) for c in itertools.combinations(data.domain, k)]
    plan = counting.CountingPlan(data.domain.sizes, [*cliques, cliques[-1]], 20_000)
    pieces = [
        plan.count({a: data.columns[a][first : first + 20_000] for a in data.domain}, 20_000)
        for first in range(0, 60_000, 20_000)
    ]
    for clique in cliques:
        np.testing.assert_array_equal(sum(p[clique] for p in pieces), by_add_at(data, clique))


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (144, None),  # of both tables, 60 + 84
        (143, r"\('c', 'b'\) \(84 cells\) is the largest of tables that need 1,152 bytes"),
        (84, r"\('c', 'b'\) \(84 cells\) is the largest .* ask for fewer marginals at once"),
        (83, r"\('c', 'b'\) \(84 cells\) needs 672 bytes; .* leave out attributes"),
    ],
)
def test_the_tables_of_a_call_have_a_limit_of_bytes(
    cells: int, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MEMORY_LIMIT", 8 * cells)
    data = Dataset(Domain({"a": 5, "b": 12, "c": 7}), {"a": [4], "b": [11], "c": [0]})
    cliques: list[Clique] = [("a", "b"), ("c", "b"), ("a", "b")]
    if said is None:
        check_tables(data, cliques)
    else:
        with pytest.raises(ModelTooLarge, match=said):
            data.marginals(cliques)
