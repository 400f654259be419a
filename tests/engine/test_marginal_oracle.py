"""Inference on the cliques against the joint table, potentials up to +-700, zeros included."""

import itertools

import numpy as np
import pytest
import torch
from brute_force import (
    CLIQUE_SETS,
    FIVE,
    Problem,
    log_weights,
    problems,
    random_problem,
    structures,
    summed,
)
from hypothesis import given
from hypothesis import strategies as st

from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput, ModelTooLarge, NumericalFailure
from pgmkit.inference import marginal_oracle
from pgmkit.inference.layout import Layout
from pgmkit.inference.marginal_oracle import MarginalOracle

RELATIVE = 1e-10
# Cells below this are not numbers that float64 holds to full precision.
SMALLEST = 1e-290


def check_full_accuracy(problem: Problem, bp: MarginalOracle, total: float) -> None:
    flat, log_partition = bp.marginals(problem.flat(), total)
    joint = problem.joint(total)
    for clique, table in zip(problem.cliques, bp.layout.split(flat), strict=True):
        expected = summed(problem.domain, joint, clique).astype(np.float64)
        np.testing.assert_allclose(table.numpy(), expected, rtol=RELATIVE, atol=SMALLEST)
    check_log_partition(problem, log_partition)


def check_fast(problem: Problem, bp: MarginalOracle, total: float) -> None:
    flat, log_partition = bp.fast_marginals(problem.flat(), total)
    joint = problem.joint(total)
    for clique, table in zip(problem.cliques, bp.layout.split(flat), strict=True):
        expected = summed(problem.domain, joint, clique).astype(np.float64)
        np.testing.assert_allclose(table.numpy(), expected, rtol=0, atol=1e-12 * total)
    check_log_partition(problem, log_partition)


def check_log_partition(problem: Problem, found: float) -> None:
    """Of the cliques' attributes: the others multiply it by their sizes."""
    covered = {name for clique in problem.cliques for name in clique}
    free = np.prod([problem.domain.sizes[n] for n in problem.domain if n not in covered])
    assert found + np.log(free) == pytest.approx(problem.log_partition(), rel=RELATIVE, abs=1e-10)


def check_mode(problem: Problem, bp: MarginalOracle) -> None:
    weights = log_weights(problem.domain, problem.cliques, problem.potentials)
    found = bp.mode(problem.flat())
    place = tuple(found.get(name, 0) for name in problem.domain)
    assert float(weights[place]) == pytest.approx(float(weights.max()), rel=1e-13, abs=1e-13)
    assert bp.maximum(problem.flat()) == pytest.approx(float(weights.max()), rel=1e-13, abs=1e-13)


@given(problems(), st.sampled_from([1.0, 48842.0]))
def test_against_the_joint(problem: Problem, total: float) -> None:
    bp = MarginalOracle(problem.domain, problem.cliques)
    if not problem.possible():
        for routine in (bp.marginals, bp.fast_marginals):
            with pytest.raises(NumericalFailure, match="structural zeros"):
                routine(problem.flat(), total)
        return
    check_full_accuracy(problem, bp, total)
    check_fast(problem, bp, total)
    check_mode(problem, bp)


@pytest.mark.parametrize("name", CLIQUE_SETS)
@pytest.mark.parametrize(
    ("width", "zeros"), [(1.0, 0.0), (60.0, 0.0), (700.0, 0.0), (1.0, 0.15), (700.0, 0.15)]
)
def test_every_kind_of_clique_set(name: str, width: float, zeros: float) -> None:
    for seed in range(3):
        problem = random_problem(FIVE, CLIQUE_SETS[name], seed, width, zeros)
        bp = MarginalOracle(FIVE, problem.cliques)
        if problem.possible():
            check_full_accuracy(problem, bp, 1000.0)
            check_fast(problem, bp, 1000.0)
            check_mode(problem, bp)


@given(structures(), st.lists(st.integers(0, 10**6), min_size=2, max_size=5), st.data())
def test_one_object_for_many_potentials(
    structure: tuple[Domain, list[tuple[str, ...]]], seeds: list[int], data: st.DataObject
) -> None:
    """What a pass remembers for the next never costs the next its accuracy."""
    domain, cliques = structure
    bp = MarginalOracle(domain, cliques)
    for seed in seeds:
        width = data.draw(st.sampled_from([0.1, 20.0, 60.0, 290.0, 700.0]))
        problem = random_problem(domain, cliques, seed, width)
        offset = data.draw(st.sampled_from([0.0, 0.0, -150.0, 150.0, 1e4]))
        lifted = Problem(domain, cliques, [table + offset for table in problem.potentials])
        data.draw(st.sampled_from([check_full_accuracy, check_fast]))(lifted, bp, 10.0)


@given(problems())
def test_a_session_changes_nothing_that_matters(problem: Problem) -> None:
    """Denormal numbers are flushed inside, and only cells below 1e-290 of the total notice."""
    bp = MarginalOracle(problem.domain, problem.cliques)
    if problem.possible():
        with bp.session():
            check_full_accuracy(problem, bp, 1.0)
            check_fast(problem, bp, 1.0)


def test_float32_to_its_own_precision() -> None:
    for cliques in CLIQUE_SETS.values():
        problem = random_problem(FIVE, cliques, 1, 5.0)
        bp = MarginalOracle(FIVE, cliques, dtype=torch.float32)
        joint = problem.joint(1000.0)
        for routine in (bp.marginals, bp.fast_marginals):
            flat, _ = routine(problem.flat().float(), 1000.0)
            assert flat.dtype == torch.float32
            for clique, table in zip(cliques, bp.layout.split(flat), strict=True):
                expected = summed(FIVE, joint, clique).astype(np.float64)
                np.testing.assert_allclose(table.numpy(), expected, rtol=1e-4, atol=1e-3)


def test_float32_falls_back_to_logarithms() -> None:
    problem = random_problem(FIVE, CLIQUE_SETS["chain"], 2, 300.0)
    bp = MarginalOracle(FIVE, problem.cliques, dtype=torch.float32)
    joint = problem.joint()
    for routine in (bp.marginals, bp.fast_marginals):
        flat, _ = routine(problem.flat().float())
        for clique, table in zip(problem.cliques, bp.layout.split(flat), strict=True):
            expected = summed(FIVE, joint, clique).astype(np.float64)
            np.testing.assert_allclose(table.numpy(), expected, atol=1e-3)


@pytest.mark.parametrize("name", ["chain", "triangle", "disconnected pairs", "nested"])
def test_contradicting_zeros_are_an_error_everywhere(name: str) -> None:
    """The first clique leaves only a = 0 (or c = 0), another only the opposite."""
    cliques = CLIQUE_SETS[name]
    problem = random_problem(FIVE, cliques, 0, 1.0)
    problem.potentials[-1][...] = -np.inf
    bp = MarginalOracle(FIVE, cliques)
    for routine in (bp.marginals, bp.fast_marginals, bp.mode):
        with pytest.raises(NumericalFailure, match="structural zeros"):
            routine(problem.flat())


def test_zeros_that_contradict_only_across_cliques() -> None:
    domain = Domain({"a": 2, "b": 2, "c": 2})
    equal = np.where(np.eye(2) > 0, 0.0, -np.inf)
    differ = equal[::-1].copy()
    cycle = [("a", "b"), ("b", "c"), ("c", "a")]
    bp = MarginalOracle(domain, cycle)
    odd = Problem(domain, cycle, [equal, equal, differ])
    even = Problem(domain, cycle, [differ, equal, differ])
    for routine in (bp.marginals, bp.fast_marginals, bp.mode):
        with pytest.raises(NumericalFailure, match="structural zeros"):
            routine(odd.flat())
    check_full_accuracy(even, bp, 5.0)
    check_mode(even, bp)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_potentials_that_are_no_numbers(bad: float) -> None:
    problem = random_problem(FIVE, CLIQUE_SETS["cycle of five"], 0, 1.0)
    problem.potentials[2].flat[1] = bad
    bp = MarginalOracle(FIVE, problem.cliques)
    for routine in (bp.marginals, bp.fast_marginals):
        with pytest.raises(NumericalFailure, match="not a number"):
            routine(problem.flat())


def test_records_that_outnumber_an_underflow() -> None:
    """With x = 1 a factor underflows, but there are 2^300 such records. The odds are known."""
    names = [f"y{i}" for i in range(300)]
    domain = Domain(dict.fromkeys(["x", *names], 2))
    bp = MarginalOracle(domain, [("x",), *(("x", name) for name in names)])
    fewer = np.array([[0.0, -50.0], [0.0, 0.0]])  # with x = 0 nearly all have y = 0
    for factor in (-720.0, -760.0, -800.0):
        tables = [np.array([0.0, factor]), fewer - [[590.0], [0.0]], *[fewer] * 299]
        flat = torch.as_tensor(np.concatenate([table.ravel() for table in tables]))
        found, log_z = bp.fast_marginals(flat)
        logs = np.array([-590.0, factor + 300 * np.log(2)])
        assert log_z == pytest.approx(np.logaddexp(*logs), rel=1e-12)
        np.testing.assert_allclose(found[:2].numpy(), np.exp(logs - np.logaddexp(*logs)), rtol=1e-9)


def test_a_chain_from_small_to_large_attributes() -> None:
    """Few values on one side and many on the other: adjoints overflow in linear space."""
    sizes = [2] * 421 + [100] * 300
    names = [f"x{i}" for i in range(len(sizes))]
    cliques = list(itertools.pairwise(names))
    tables = [np.zeros(shape) for shape in itertools.pairwise(sizes)]
    tables[419][:, 1] = -290.0
    tables[420][0] = -300.0
    flat = torch.as_tensor(np.concatenate([table.ravel() for table in tables]))
    bp = MarginalOracle(Domain(dict(zip(names, sizes, strict=True))), cliques)
    for routine in (bp.marginals, bp.fast_marginals):
        found, _ = routine(flat)
        middle = bp.layout.split(found)[419].numpy().sum(axis=0)
        np.testing.assert_allclose(middle, [1 / (1 + np.exp(10)), 1 / (1 + np.exp(-10))], rtol=1e-9)


def test_long_chain_against_matrix_products() -> None:
    """300 attributes, forward and backward by numpy."""
    rng = np.random.default_rng(0)
    count, size = 300, 5
    names = [f"x{i}" for i in range(count)]
    domain = Domain(dict.fromkeys(names, size))
    cliques = list(itertools.pairwise(names))
    tables = [rng.normal(0, 1.5, (size, size)) for _ in cliques]
    left, right = [np.ones(size)], [np.ones(size)]
    log_partition = 0.0
    for table in tables:
        message = left[-1] @ np.exp(table)
        log_partition += np.log(message.sum())
        left.append(message / message.sum())
    for table in reversed(tables):
        message = np.exp(table) @ right[-1]
        right.append(message / message.sum())
    right.reverse()
    flat = torch.as_tensor(np.concatenate([table.ravel() for table in tables]))
    bp = MarginalOracle(domain, cliques)
    for routine in (bp.marginals, bp.fast_marginals):
        found, log_z = routine(flat, 7.0)
        assert log_z == pytest.approx(log_partition, rel=1e-12)
        for i, table in enumerate(bp.layout.split(found)):
            expected = left[i][:, None] * np.exp(tables[i]) * right[i + 1]
            np.testing.assert_allclose(table.numpy(), 7 * expected / expected.sum(), rtol=1e-10)


def test_a_clique_of_small_factors_is_never_written_out() -> None:
    """40 attributes of size 20 as one product of a star: the joint has 20^40 cells."""
    domain = Domain({f"x{i}": 20 for i in range(40)})
    cliques = [("x0", f"x{i}") for i in range(1, 40)]
    bp = MarginalOracle(domain, cliques, memory_limit=4 * 10**6)
    assert bp.plan.largest == 400
    flat, log_partition = bp.marginals(torch.zeros(39 * 400, dtype=torch.float64), 400.0)
    assert log_partition == pytest.approx(40 * np.log(20))
    np.testing.assert_allclose(flat.numpy(), 1.0, rtol=1e-12)


def test_session_restores_threads_and_denormals() -> None:
    bp = MarginalOracle(FIVE, CLIQUE_SETS["chain"])
    threads = torch.get_num_threads()
    tiny = torch.tensor([1e-310], dtype=torch.float64)
    with pytest.raises(KeyboardInterrupt), bp.session():
        assert torch.get_num_threads() == 1
        raise KeyboardInterrupt
    assert torch.get_num_threads() == threads
    assert float(tiny * 0.5) > 0
    assert not torch.is_inference_mode_enabled()


def test_layout_views_share_the_flat_vector() -> None:
    layout = Layout(FIVE, [("a", "b"), ("c",)])
    flat = torch.zeros(layout.cells)
    layout.split(flat)[1][2] = 5
    assert flat.tolist() == [0] * 8 + [5, 0]
    assert torch.equal(layout.join(layout.split(flat)), flat)


def test_bad_cliques_and_sizes() -> None:
    with pytest.raises(InvalidInput, match="'z'"):
        MarginalOracle(FIVE, [("a", "z")])
    huge = Domain({f"x{i}": 1000 for i in range(6)})
    with pytest.raises(ModelTooLarge, match="1,000,000,000,000 cells"):
        MarginalOracle(huge, [("x0", "x1", "x2", "x3")], memory_limit=1 << 30)
    pairs = list(itertools.combinations(huge, 2))
    with pytest.raises(ModelTooLarge, match="limit is 1,073,741,824 bytes"):
        MarginalOracle(huge, pairs, memory_limit=1 << 30)


@given(problems())
def test_calls_for_each_clique_agree_with_the_index_of_cells(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pgmkit.inference.layout.CALL_CELLS", 0)
        bp = MarginalOracle(problem.domain, problem.cliques)
        if problem.possible():
            check_full_accuracy(problem, bp, 10.0)
            check_fast(problem, bp, 10.0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("zeros", [0.0, 0.1])
def test_what_cliques_cancel_of_each_other_needs_no_logarithms(seed: int, zeros: float) -> None:
    """Any table of what two cliques share, added to one and taken from the other."""
    rng = np.random.default_rng(seed)
    cliques = [("a", "b", "c"), ("b", "c", "d"), ("a", "b", "d"), ("d", "e"), ("b", "e")]
    problem = random_problem(FIVE, cliques, seed, 3.0, zeros)
    for (i, left), (j, right) in itertools.combinations(enumerate(cliques), 2):
        shared = tuple(name for name in left if name in right)
        table = rng.uniform(-1500, 1500, FIVE.shape(shared))
        for place, sign in ((i, 1), (j, -1)):
            axes = [slice(None) if name in shared else None for name in cliques[place]]
            problem.potentials[place] = problem.potentials[place] + sign * table[tuple(axes)]
    bp = MarginalOracle(FIVE, cliques)
    if problem.possible():
        check_fast(problem, bp, 1000.0)
        assert bp.log_passes == 0
        check_full_accuracy(problem, bp, 1000.0)


def test_where_no_balance_helps_few_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle whose values contradict each other by 1,000 nats, for every record."""
    domain = Domain({"a": 2, "b": 2, "c": 2})
    equal, differ = np.eye(2) * 1000, 1000 - np.eye(2) * 1000
    problem = Problem(domain, [("a", "b"), ("b", "c"), ("a", "c")], [equal, equal, differ])
    bp = MarginalOracle(domain, problem.cliques)
    looked = []
    diffusion = marginal_oracle.diffusion
    monkeypatch.setattr(
        marginal_oracle, "diffusion", lambda *given: looked.append(0) or diffusion(*given)
    )
    for _ in range(100):
        check_fast(problem, bp, 10.0)
    assert bp.log_passes == 100 and 1 <= len(looked) <= 8
