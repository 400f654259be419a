"""What answers of a factor graph take is counted before it is taken."""

import itertools
import resource
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from forks import Fork
from seams import kept_by

from pgmkit import Domain, FactorGraph, ModelTooLarge
from pgmkit.conditioning import pass_memory
from pgmkit.conditioning.elimination import EliminationTree, elimination_tree
from pgmkit.conditioning.posterior import Posterior
from pgmkit.inference.plain_sums import TooLong
from pgmkit.inference.self_check import FirstUses

Ask = Callable[[Posterior], object]
Check = Callable[[float], None]


def grid(rows: int, columns: int, seed: int = 0, **settings: int) -> FactorGraph:
    rng = np.random.default_rng(seed)
    names = {(i, j): f"x{i}_{j}" for i in range(rows) for j in range(columns)}
    tables = [((name,), rng.uniform(0.1, 1.0, 2)) for name in names.values()]
    tables += [
        ((name, names[near]), rng.uniform(0.1, 1.0, (2, 2)))
        for (i, j), name in names.items()
        for near in ((i + 1, j), (i, j + 1))
        if near in names
    ]
    return FactorGraph(Domain(dict.fromkeys(names.values(), 2)), tables, **settings)


ASKS: dict[str, Ask] = {
    "sum": lambda posterior: posterior.log_partition,
    "marginals": lambda posterior: posterior.marginals(),
    "pair": lambda posterior: posterior.marginal(["x0_0", "x13_13"]),
    "record": lambda posterior: posterior.map(),
    "max-marginals": lambda posterior: posterior.max_marginals(),
}


@pytest.mark.parametrize("asked", list(ASKS))
def test_the_count_is_what_numpy_takes(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never less than the peak of all arrays, and never three times as much."""
    counts: list[int] = []
    monkeypatch.setattr(pass_memory, "check_room", lambda needed, *_: counts.append(needed))
    monkeypatch.setattr("pgmkit.conditioning.evidence_marginals.surely_fits", lambda *_: False)
    # A second computation builds tables of its own, as many as its few milliseconds allow.
    monkeypatch.setattr(FirstUses, "check", lambda *_: None)
    graph = grid(14, 14)
    posterior = graph.posterior()
    if asked == "sum":  # where the values do not fit together they are dropped on the way
        monkeypatch.setattr(Posterior, "_evidence_marginals", property(dropping_values))
    tracemalloc.start()
    try:
        ASKS[asked](posterior)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(counts) > 1 << 20
    assert peak - (1 << 20) <= max(counts) <= 3 * peak
    if asked != "pair":  # the bound that saves the count
        (tree,) = kept_by(graph).trees.values()
        assert not pass_memory.surely_fits(tree, max(counts) - 1, [])


@pytest.mark.parametrize("asked", ["sum", "singles", "pair", "record", "entropy"])
def test_second_computations_stay_within_the_limit(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all the time they want they take what the answer leaves, and run if that is enough."""
    rng, names = np.random.default_rng(0), [f"x{i}" for i in range(9)]
    tables = [(pair, rng.uniform(0.1, 1.0, (300, 300))) for pair in itertools.pairwise(names)]
    domain = Domain(dict.fromkeys(names, 300))
    asks: dict[str, Ask] = {
        "sum": lambda posterior: posterior.log_partition,
        "singles": lambda posterior: posterior.marginals(),
        "pair": lambda posterior: posterior.marginal(("x1", "x0")),
        "record": lambda posterior: posterior.map(),
        "entropy": lambda posterior: posterior.entropy(),
    }
    looked: list[bool] = []

    def look(self: FirstUses, kind: str, structure: object, started: float, at: Check) -> None:
        try:
            at(60.0)
        except TooLong:
            looked.append(False)
        else:
            looked.append(True)

    def peak(limit: int) -> int:
        posterior = FactorGraph(domain, tables, memory_limit=limit).posterior()
        tracemalloc.start()
        try:
            asks[asked](posterior)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    with monkeypatch.context() as patch:
        patch.setattr(FirstUses, "check", lambda *_: None)
        alone = peak(1 << 30)
    monkeypatch.setattr(FirstUses, "check", look)
    for limit in (alone + (1 << 20), 2 * alone, 4 * alone):
        with suppress(ModelTooLarge):
            assert peak(limit) <= limit + (1 << 16)
    assert looked[-1]


def dropping_values(posterior: Posterior) -> object:
    from pgmkit.conditioning.evidence_marginals import EvidenceMarginals

    class Dropping(EvidenceMarginals):
        def messages(self, *_: object) -> object:  # type: ignore[override]
            raise ModelTooLarge

    return Dropping(posterior.graph, posterior.evidence)


def chain(length: int, size: int) -> EliminationTree:
    scopes = [0b11 << i for i in range(length - 1)]
    return elimination_tree(scopes, [-1] * len(scopes), list(range(length)), (size,) * length)


def test_counts_of_a_chain() -> None:
    """By hand: 3 tables of 10 x 10, from which attributes are summed out one by one."""
    tree = chain(4, 10)
    # Inputs 300. Then 10 are made of 100 (twice, scaled), and so on: the last steps hold least.
    with pytest.raises(ModelTooLarge) as raised:
        pass_memory.check_sum(tree, 1)
    # the second product: the inputs and the first value, copies of both operands, the result twice
    needed = 300 + 10 + (10 + 100) + 2 * 10
    assert f"needs {8 * needed:,} bytes" in str(raised.value)
    pass_memory.check_sum(tree, 8 * needed)


def test_costs_of_many_pairs_take_little_memory() -> None:
    """Each is one number that is kept, however many tables lie between the two attributes."""
    tree = chain(200, 2)
    pairs = [1 << i | 1 << j for i, j in itertools.combinations(range(0, 200, 8), 2)]
    tree.joint_cost(pairs[0])
    tracemalloc.start()
    try:
        for members in pairs:
            tree.joint_cost(members)
        assert tracemalloc.get_traced_memory()[0] < 1000 * len(pairs)
    finally:
        tracemalloc.stop()


def test_a_clique_of_sixty_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_work(*_: object) -> None:
        raise AssertionError("a table was multiplied")

    names = [f"x{i}" for i in range(60)]
    pairs = [(pair, np.ones((2, 2)) + np.eye(2)) for pair in itertools.combinations(names, 2)]
    graph = FactorGraph(Domain(dict.fromkeys(names, 2)), pairs)
    monkeypatch.setattr("pgmkit.conditioning.message_passing.Messages.pass_upward", no_work)
    monkeypatch.setattr("pgmkit.conditioning.modes.MaxKernel.__call__", no_work)
    for asked in ("sum", "marginals", "record", "max-marginals"):
        with pytest.raises(ModelTooLarge, match=r"over 2\^60\.0 cells\) needs 2\^6.* bytes"):
            ASKS[asked](graph.posterior())
    with pytest.raises(ModelTooLarge, match=r"needs 2\^6.* bytes"):
        graph.model().log_partition  # noqa: B018


def test_the_limit_is_of_all_that_is_held() -> None:
    """No table of the grid has more than 2^16 cells; all together have some millions."""
    graph, unlimited = grid(16, 16, memory_limit=8 << 20), grid(16, 16).posterior()
    with pytest.raises(ModelTooLarge, match="the limit is 8,388,608 bytes"):
        graph.posterior().marginals()
    posterior = graph.posterior()
    assert posterior.log_partition == pytest.approx(unlimited.log_partition, abs=1e-9)
    assert posterior.map()[0] == unlimited.map()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="addresses are limited on Linux only")
def test_under_a_limit_of_addresses() -> None:
    """A process that may have 150 MB more refuses what does not fit, by name, and goes on."""

    def program() -> None:
        graph = grid(19, 19)
        grid(3, 3).posterior().marginals()
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + 150_000_000, held + 150_000_000))
        for name in ("sum", "marginals", "max-marginals"):
            try:
                ASKS[name](graph.posterior())
                print(name, "answered")
            except ModelTooLarge as error:
                print(name, "left to this process" in str(error))

    said, _ = Fork(program).end()
    assert said.splitlines() == ["sum answered", "marginals True", "max-marginals True"]


def test_the_nodes_that_hold_attributes() -> None:
    tree = elimination_tree([0b0011, 0b0110, 0b1100, 0b1000], [-1] * 4, [0, 1, 2, 3], (2, 3, 2, 2))
    for members in range(16):
        held = [node for node, table in enumerate(tree.tables) if not members & ~table]
        assert [*tree.holding(members)] == held
