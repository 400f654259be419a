"""Posteriors of many records at once, against the joint written out and one record at a time."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from test_factor_graph import random_graph, summed, weighed, written_out

from pgmkit import Domain, FactorGraph, InvalidInput, ModelTooLarge
from pgmkit.conditioning import posteriors


@pytest.fixture(autouse=True)
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few they are."""
    monkeypatch.setattr(posteriors, "FEW_RECORDS", 2)


@pytest.mark.parametrize("block", range(10))
def test_every_record_is_that_of_the_joint_written_out(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        graph, tables = random_graph(seed)
        assert_as_the_joint(
            graph, written_out(graph.domain, tables), np.random.default_rng(seed + 5000)
        )


def assert_as_the_joint(graph: FactorGraph, joint: np.ndarray, rng: np.random.Generator) -> None:
    domain = graph.domain
    names = [name for name in domain if rng.random() < 0.5] or [domain.attributes[0]]
    rng.shuffle(names)
    columns = {name: rng.integers(domain.sizes[name], size=12) for name in names}
    laws, sums = [], []
    for row in range(12):
        weights = weighed(joint, domain, {name: int(columns[name][row]) for name in names}, {})
        sums.append(weights.sum())
        laws.append(weights / (weights.sum() or 1.0))
    possible = np.flatnonzero(sums)
    if len(possible) < 12:
        first = int(np.flatnonzero(np.array(sums) == 0)[0])
        for ask in ("log_partition", "marginals"):
            with pytest.raises(InvalidInput, match=r"record \d+: .*(zero|no record)") as caught:
                found = getattr(graph.posteriors(columns), ask)
                found()
            assert int(str(caught.value).split()[1].rstrip(":")) == first
        columns = {name: values[possible] for name, values in columns.items()}
        laws, sums = [laws[i] for i in possible], [sums[i] for i in possible]
    if not len(possible):
        return
    batch = graph.posteriors(columns)
    assert len(batch) == len(laws)
    asked = [
        tuple(rng.choice(domain.attributes, int(rng.integers(len(domain) + 1)), replace=False))
        for _ in range(4)
    ]
    found = batch.marginals([*asked, *((name,) for name in domain)])
    for clique, tables in found.items():
        for table, law in zip(tables, laws, strict=True):
            np.testing.assert_allclose(table, summed(law, domain, clique), atol=1e-10)
    np.testing.assert_allclose(batch.log_partition, np.log(sums), atol=1e-9)
    for row in range(len(laws)):
        alone = graph.posterior({name: int(columns[name][row]) for name in names})
        for name, table in alone.marginals().items():
            np.testing.assert_allclose(found[name][row], table, atol=1e-10)


def test_records_are_taken_in_chunks_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = random_graph(6)
    rng = np.random.default_rng(0)
    columns = {
        name: rng.integers(size, size=50) for name, size in list(graph.domain.sizes.items())[:3]
    }
    whole = graph.posteriors(columns).marginals()
    monkeypatch.setattr(posteriors, "BLOCK_CELLS", 20)
    for name, tables in graph.posteriors(columns).marginals().items():
        np.testing.assert_allclose(tables, whole[name], atol=1e-12)


@pytest.mark.parametrize("chunk", [1 << 17, 1])
def test_messages_of_many_records_do_not_stay_in_memory(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Beyond the memory limit nothing but the answers is left, in batches and one by one."""
    monkeypatch.setattr(posteriors, "BLOCK_CELLS", chunk)
    rng, limit, count = np.random.default_rng(0), 2_000_000, 8_000 if chunk > 1 else 300
    names = [f"x{i}" for i in range(30)]
    tables = [(pair, rng.exponential(size=(3, 3))) for pair in pairwise(names)]
    graph = FactorGraph(Domain(dict.fromkeys(names, 3)), tables, memory_limit=limit)
    batch = graph.posteriors({name: rng.integers(3, size=count) for name in names[::3]})
    tracemalloc.start()
    found = batch.marginal(["x1"])
    left, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < limit / 2 + 2 * found.nbytes and most < limit + 10 * found.nbytes
    for row in (0, count - 1):
        alone = graph.posterior({n: int(batch.codes[row, k]) for k, n in enumerate(batch.names)})
        np.testing.assert_allclose(found[row], alone.marginal(["x1"]), rtol=1e-9)


@pytest.mark.parametrize("count", [3, 33, 65, 131, 400])
@pytest.mark.parametrize("chunk", [1 << 20, 300])
def test_rows_of_any_number_of_records_are_in_their_order(
    monkeypatch: pytest.MonkeyPatch, count: int, chunk: int
) -> None:
    """Row by row what one record gives alone, with records that repeat and in no order; in one
    pass and in several.
    """
    monkeypatch.setattr(posteriors, "BLOCK_CELLS", chunk)
    rng = np.random.default_rng(count)
    domain = Domain({"a": 4, "b": 5, "c": 3, "d": 2, "e": 4})
    cliques = [("a", "e", "b"), ("c", "b"), ("d", "c"), ("e", "d")]
    graph = FactorGraph(domain, [(c, rng.exponential(size=domain.shape(c))) for c in cliques])
    names = ["c", "a", "b"]
    kinds = {name: rng.integers(graph.domain.sizes[name], size=count) for name in names}
    batch = graph.posteriors(kinds)
    singles, sums = batch.marginals(), batch.log_partition
    if count == 400:
        assert max(map(len, batch._passes.values())) == (1 if chunk > 300 else 2)
    for row in rng.choice(count, min(count, 25), replace=False):
        alone = graph.posterior({name: int(codes[row]) for name, codes in kinds.items()})
        assert sums[row] == pytest.approx(alone.log_partition, rel=1e-12)
        for clique, table in alone.marginals().items():
            np.testing.assert_allclose(singles[clique][row], table, atol=1e-10)


def test_records_beyond_plain_numbers_go_through_logarithms() -> None:
    """A chain of 100 observations; one record is 1e-900 as likely as the other."""
    tables = {"h0": (("h0",), [0.5, 0.5])}
    for i in range(100):
        tables[f"h{i + 1}"] = ((f"h{i + 1}", f"h{i}"), [[0.9, 0.1], [0.1, 0.9]])
        tables[f"x{i}"] = ((f"x{i}", f"h{i}"), [[1 - 1e-9, 1 - 2e-9], [1e-9, 2e-9]])
    graph = FactorGraph.from_conditionals(tables)
    columns = {f"x{i}": [0, 1, i % 2] for i in range(100)}
    batch = graph.posteriors(columns)
    tables_found, sums = batch.marginals([("h7",), ("h0", "h99")]), batch.log_partition
    assert sums[1] < -1900
    for row in range(3):
        alone = graph.posterior({name: values[row] for name, values in columns.items()})
        assert sums[row] == pytest.approx(alone.log_partition, rel=1e-12)
        for clique, found in tables_found.items():
            np.testing.assert_allclose(found[row], alone.marginal(clique), atol=1e-10)


def test_states_by_name_and_records_that_repeat() -> None:
    graph = FactorGraph(
        Domain({"a": 2, "b": 3}),
        [(("a", "b"), [[1, 2, 3], [3, 2, 1]])],
        states={"b": ["low", "middle", "high"]},
    )
    batch = graph.posteriors({"b": ["high", "low", "high", 1]})
    np.testing.assert_allclose(
        batch.marginal(["a"]), [[0.75, 0.25], [0.25, 0.75], [0.75, 0.25], [0.5, 0.5]]
    )
    assert batch.marginal(["b", "a"]).shape == (4, 3, 2)
    everything = graph.posteriors({"b": [0, 2], "a": [1, 1]})
    np.testing.assert_allclose(everything.log_partition, np.log([3, 1]))
    np.testing.assert_allclose(everything.marginal(["b"]), [[1, 0, 0], [0, 0, 1]])
    assert everything.marginal([]).tolist() == [1, 1]


def test_bad_records_are_refused() -> None:
    graph = FactorGraph(
        Domain({"a": 2, "b": 2}), [(("a", "b"), [[1, 0], [1, 1]])], memory_limit=800
    )
    for evidence, match in (
        ({}, "at least one attribute"),
        ([0, 1], r"mapping from observed attributes .* or dict\(frame\), got list"),
        ({"c": [0]}, "'c'"),
        ({"a": [0, 2]}, "'a' must be an integer code 0..1, got 2"),
        ({"a": [0, 1], "b": [0]}, "columns of"),
        ({"a": []}, "at least one"),
        ({"a": 1}, "must be a sequence"),
        ({"a": "01"}, "must be a sequence"),
    ):
        with pytest.raises(InvalidInput, match=match):
            graph.posteriors(evidence)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"record 2: .*b = 1 is impossible given a = 0"):
        _ = graph.posteriors({"a": [1, 0, 0], "b": [1, 0, 1]}).log_partition
    with pytest.raises(ModelTooLarge, match="marginals of 200 records"):
        graph.posteriors({"a": [0] * 200}).marginals()


def test_a_column_may_be_a_view_of_keys() -> None:
    graph = FactorGraph(Domain({"a": 2, "b": 2}), [(("a", "b"), [[1.0, 2.0], [3.0, 4.0]])])
    found = graph.posteriors({"a": {1: "x", 0: "y"}.keys()}).marginal(("b",))
    assert found == pytest.approx(np.array([[3 / 7, 4 / 7], [1 / 3, 2 / 3]]))
