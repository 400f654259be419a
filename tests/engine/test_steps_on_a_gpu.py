"""Steps without decisions of the host: traced with values that nobody can read, captured as a graph
on the pretend GPU, and replayed; always with the bits of the plain steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from brute_force import CLIQUE_SETS, FIVE
from pretend_device import PretendGpu, pretend_gpu
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from pgmkit import Measurement, Zeros, estimate
from pgmkit.contraction.kernels import cuda_graphs
from pgmkit.estimation import device_search
from pgmkit.estimation import problem as problem_module
from pgmkit.estimation.batches.problem import BatchedSquares, stacked
from pgmkit.estimation.batches.search import BatchedSearch
from pgmkit.estimation.device_search import KEPT, MeasuredObjective, steps_of
from pgmkit.estimation.model_size import cliques_of
from pgmkit.estimation.problem import Monitor, Problem
from pgmkit.estimation.start import uniform
from pgmkit.estimation.tensor_steps import Objective, Points, State, Steps, advance, start_at
from pgmkit.inference import observations
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.least_squares.sufficient_statistics import combined
from pgmkit.losses import MeasuredLoss, make_loss, statistics
from pgmkit.runtime.progress import Progress
from pgmkit.runtime.sizes import REMEMBERED

NAMES = [
    "nested",
    "cycle of five",
    *(pytest.param(n, marks=pytest.mark.slow) for n in ("chain", "star", "cycle of triples")),
]


def noisy(name: str, seed: int = 0) -> list[Measurement]:
    rng = np.random.default_rng(seed)
    found = []
    for clique in CLIQUE_SETS[name]:
        n = FIVE.size(clique)
        found.append(Measurement(clique, rng.dirichlet(np.ones(n)) * 500 + rng.normal(0, 5, n), 5))
    return found


def alone(name: str, loss: str, device: str = "cpu") -> tuple[Objective, State]:
    measured = noisy(name)
    oracle = MarginalOracle(FIVE, cliques_of(FIVE, measured), device=device)
    made = make_loss(loss, oracle.layout, measured, torch.float64, torch.device(device))
    problem = Problem(oracle, made, 500.0)
    objective = MeasuredObjective(problem, made)
    return objective, start_at(objective, objective.at(problem.point(uniform(oracle))))


def together(name: str, device: str = "cpu", count: int = 3) -> tuple[Objective, State]:
    sets = [noisy(name, seed) for seed in range(count)]
    oracle = MarginalOracle(FIVE, cliques_of(FIVE, sets[0]), device=device)
    loss = BatchedSquares(
        oracle.layout, combined(FIVE, sets[0], stacked(sets)), torch.device(device)
    )
    totals = torch.full((count,), 500.0, dtype=torch.float64, device=device)
    search = BatchedSearch(oracle, loss, totals, 0.1)
    search.oracle.marginals = search.oracle.try_marginals  # as on a GPU
    start = search.point(uniform(oracle).expand(count, -1))
    return search, start_at(search, start)


def flat(objective: Objective, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    state = State(Points(*tensors[:4]), *tensors[4:]).copied()
    advance(objective, state)
    return state.tensors


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["squared", "huber", "three sets"])
def test_a_step_asks_for_no_value(name: str, kind: str) -> None:
    """A trace with fake tensors fails at whatever depends on a value; replayed, it is the step."""
    objective, state = together(name) if kind == "three sets" else alone(name, kind)
    with torch.no_grad():
        state, first = state.copied(), state
        for _ in range(3):  # makes the buffers
            advance(objective, state)
        tracer = make_fx(
            lambda *s: flat(objective, *s), tracing_mode="fake", _allow_non_fake_inputs=True
        )
        traced = tracer(*state.tensors)
        plain = replayed = state.copied().tensors
        guess = getattr(objective, "oracle", None) or objective.inference
        for _ in range(8):
            before = guess._guess.clone()
            plain = flat(objective, *plain)
            guess._guess.copy_(before)
            replayed = traced(*replayed)
            for one, other in zip(plain, replayed, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert plain[3].max() < first.point.loss.max(), "the steps lead nowhere"


def test_a_decision_of_the_host_fails_the_trace() -> None:
    with pytest.raises(GuardOnDataDependentSymNode):
        make_fx(lambda x: x if x.sum() > 0 else -x, tracing_mode="fake")(torch.ones(3))


@pytest.fixture
def gpu() -> Iterator[PretendGpu]:
    with pretend_gpu() as made:
        yield made


def test_a_capture_refuses_what_waits(gpu: PretendGpu) -> None:
    cells = torch.zeros(3, device="cuda")
    for work in (
        lambda: float(cells.sum()),
        lambda: cells.cpu(),
        lambda: cells.add_(torch.ones(3).to("cuda")),
        lambda: cells[cells > 0],
    ):
        graph = torch.cuda.CUDAGraph()
        with (
            pytest.raises(AssertionError, match="in a capture"),
            torch.cuda.device(cells.device),
            torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"),
        ):
            work()


def test_a_capture_does_nothing_and_a_replay_all_of_it(gpu: PretendGpu) -> None:
    cells, sums = torch.zeros(3, device="cuda"), torch.zeros((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with (
        torch.cuda.device(cells.device),
        torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"),
    ):
        sums.copy_(cells.add_(1).sum() * 2)
    assert cells.tolist() == [0, 0, 0] and sums.tolist() == 0
    gpu.reset()
    for time in (1, 2, 3):
        graph.replay()
        assert cells.tolist() == [time] * 3 and sums.tolist() == 6 * time
    assert gpu.launches == 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["squared", "huber", "three sets"])
def test_captured_steps_are_the_plain_ones(gpu: PretendGpu, name: str, kind: str) -> None:
    found = []
    for plain_calls in (2, 10**9):
        objective, first = (
            together(name, "cuda") if kind == "three sets" else alone(name, kind, "cuda")
        )
        gpu.graphs.clear()
        with mock.patch.object(cuda_graphs, "PLAIN_CALLS", plain_calls), torch.inference_mode():
            steps = Steps(objective, first)
            for _ in range(12):
                steps()
        assert len(gpu.graphs) == (plain_calls == 2)
        found.append([each.tolist() for each in steps.state.tensors])
    assert found[0] == found[1]
    assert np.max(found[0][3]) < np.max(first.point.loss.tolist()), "the steps lead nowhere"


def test_the_host_looks_every_eight_steps(gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks nothing waits, and after some plain steps, the last of which prepares the
    capture by copies from the host, each is one launch.
    """
    monkeypatch.setattr(cuda_graphs, "PLAIN_CALLS", 8)
    seen: list[tuple[int, ...]] = []
    looks, tries, certificates = [], [], []
    tried, certify = device_search.try_steps, Monitor.certify

    def looking(steps: Steps, count: int, before: State) -> object:
        looks.append(1)
        tries.extend([1] * count)
        return tried(steps, count, before)

    monkeypatch.setattr(device_search, "try_steps", looking)
    monkeypatch.setattr(Monitor, "certify", lambda *a: certificates.append(1) or certify(*a))

    def record(progress: Progress) -> None:
        counts = (gpu.launches, gpu.synchronisations, gpu.uploads)
        seen.append((*counts, len(looks), len(tries), len(certificates)))

    measured = noisy("cycle of five")
    wanted = {"total": 500, "method": "accelerated", "tolerance": 1e-9}
    there = estimate(FIVE, measured, device="cuda", progress=record, **wanted)
    launches, waits, uploads, looked, tried_, certified = np.diff(np.array(seen), axis=0).T
    plain = certified == 0
    assert plain.sum() >= 3 and uploads[plain][1:].max() == 0
    np.testing.assert_array_equal(waits[plain], looked[plain])
    assert len(looks) <= there.iterations / 2, "most looks are at several steps"
    # A graph, a loss and a count kept for each try; for a look reading them, and two copies.
    assert (launches[plain][1:] <= 3 * tried_[plain][1:] + 35 * looked[plain][1:]).all()
    here = estimate(FIVE, measured, **wanted)
    assert there.loss == pytest.approx(here.loss, abs=1e-8 * here.unit)


@pytest.mark.filterwarnings(
    "ignore::pgmkit.errors.NotCertified", "ignore::pgmkit.errors.Contradictory"
)
@pytest.mark.parametrize("name", ["cycle of five", "star", "chain"])
def test_a_search_ends_where_rounding_hides_any_fall(gpu: PretendGpu, name: str) -> None:
    """Without a tolerance or a limit on time, on both devices."""
    wanted = {"total": 500, "method": "accelerated", "tolerance": 0.0}
    there, here = (estimate(FIVE, noisy(name), device=d, **wanted) for d in ("cuda", "cpu"))
    assert max(there.iterations, here.iterations) < 2000
    assert there.loss == pytest.approx(here.loss, abs=1e-6 * here.unit)


@pytest.mark.filterwarnings(
    "ignore::pgmkit.errors.NotCertified", "ignore::pgmkit.errors.Contradictory"
)
def test_a_search_whose_steps_fail_when_repeated_ends_in_time(
    gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums on a GPU may be rounded otherwise each time, and a step then fails its test."""
    tried, whole, looks = device_search.try_steps, device_search.STEPS_BETWEEN_READS, []

    def rounded(steps: Steps, count: int, before: State) -> tuple[object, list[object], bool]:
        looks.append(count)
        last, accepted, stuck = tried(steps, count, before)
        return last, accepted if count == whole else [], stuck

    monkeypatch.setattr(device_search, "try_steps", rounded)
    monkeypatch.setattr(Problem, "late", lambda self: len(looks) > 1)
    estimate(FIVE, noisy("cycle of five"), device="cuda", method="accelerated", tolerance=1e-9)
    assert len(looks) <= 4


@pytest.mark.filterwarnings("ignore::pgmkit.errors.NotCertified")
@pytest.mark.parametrize(
    ("loss", "tolerance"), [("squared", 0.0005), ("squared", 0.001), ("huber", 0.5)]
)
def test_the_search_ends_where_that_of_the_processor_does(
    gpu: PretendGpu, loss: str, tolerance: float
) -> None:
    """With the same step, between two looks too."""
    measured = noisy("cycle of triples", 3)
    wanted = {"total": 500, "loss": loss, "method": "accelerated", "tolerance": tolerance}
    there, here = (estimate(FIVE, measured, device=d, **wanted) for d in ("cuda", "cpu"))
    assert here.iterations > 8
    assert (there.iterations, there.certified) == (here.iterations, here.certified)
    assert there.loss == pytest.approx(here.loss, abs=1e-6 * here.unit)
    for own, other in zip(there.potentials, here.potentials, strict=True):
        np.testing.assert_allclose(own.values.cpu(), other.values, atol=1e-4)


@pytest.fixture
def captures(gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The number of captures so far; a step is captured after two plain ones."""
    monkeypatch.setattr(cuda_graphs, "PLAIN_CALLS", 2)
    return lambda: len(gpu.graphs)


@contextmanager
def nothing_captured() -> Iterator[None]:
    with mock.patch.object(cuda_graphs, "PLAIN_CALLS", 10**9), mock.patch.dict(KEPT, clear=True):
        yield


def begun(
    seed: int, name: str = "triangle", loss: str = "squared", *extra: Measurement, zero: bool = True
) -> tuple[MeasuredObjective, State]:
    """A search whose values, total and zeros depend on the seed, and for odd seeds standard
    deviations that differ.
    """
    given = [*extra]
    for place, m in enumerate(noisy(name, seed)):
        clique, stddev = FIVE.ordered(m.clique), 5.0 + place * (seed % 2)
        given.append(replace(m, clique=clique, stddev=stddev))
    measured = statistics(FIVE, given, loss).measurements
    zeros = [Zeros(("a", "b"), np.arange(6).reshape(2, 3) != seed)] if zero else []
    cliques = cliques_of(FIVE, measured, zeros)
    oracle = MarginalOracle(FIVE, cliques, device="cuda", zeros=zeros)
    made = make_loss(loss, oracle.layout, measured, torch.float64, oracle.device)
    assert isinstance(made, MeasuredLoss)
    problem = Problem(oracle, made, 500.0 + seed)
    objective = MeasuredObjective(problem, made)
    return objective, start_at(objective, objective.at(problem.point(uniform(oracle))))


def after_steps(*search: object, zero: bool = True) -> list[object]:
    """The state after six steps."""
    with torch.inference_mode(), steps_of(*begun(*search, zero=zero)) as steps:
        for _ in range(6):
            steps()
        return [each.tolist() for each in steps.state.tensors]


def sums(ones: int, rows: int = 1) -> Measurement:
    """A matrix on a measured pair, with so many ones in each row."""
    matrix = (np.arange(6 * rows).reshape(rows, 6) % 6 < ones) * 1.0
    return Measurement(("a", "b"), [300.0] * rows, 4.0, matrix=matrix)


def test_a_structure_is_captured_once(captures: Callable[[], int]) -> None:
    """With the bits of steps that are not captured, whatever the values are."""
    searches = [(0,), (2,), (4,), (0, "triangle", "huber"), (2,)]
    found = [after_steps(*search) for search in searches]
    assert captures() == 1
    with nothing_captured():
        assert found == [after_steps(*search) for search in searches]
    assert captures() == 1 and found[0] != found[1]


def test_another_structure_is_captured_anew(captures: Callable[[], int]) -> None:
    """Other cliques, no zeros, standard deviations that differ, and matrices of other shapes."""
    searches = [
        (0,), (0, "cycle of five"), (1,), (0, "triangle", "squared", sums(2)),
        (0, "triangle", "squared", sums(3)), (0, "triangle", "squared", sums(2, 2)),
    ]  # fmt: skip
    found = [after_steps(*search) for search in searches]
    free = after_steps(0, zero=False)
    assert captures() == len(KEPT) == len(searches) + 1
    again = (3, "triangle"), (4, "triangle", "squared", replace(sums(2), stddev=3.0))
    found += [after_steps(*search) for search in again]
    assert captures() == len(searches) + 1
    with nothing_captured():
        assert found == [after_steps(*search) for search in [*searches, *again]]
        assert free == after_steps(0, zero=False)


def test_a_large_view_is_a_value_of_the_step(
    captures: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its matrix, or a table that is summed, is applied along its axes instead of by an index."""
    monkeypatch.setattr(observations, "CACHE_CELLS", 1)
    monkeypatch.setattr(observations, "FEW_CELLS", 1)
    one, other = Measurement(("b",), [200.0, 200.0, 100.0], 4.0), Measurement(("b",), [9, 9, 9], 3)
    views = [sums(2), replace(sums(3), stddev=3.0), one, other]
    found = [after_steps(seed, "triangle", "squared", view) for seed, view in enumerate(views)]
    assert captures() == 4, "standard deviations of the tables are alike or not"
    found += [after_steps(seed, "triangle", "squared", views[seed - 3]) for seed in (4, 5)]
    assert captures() == 4
    with nothing_captured():
        assert found == [
            after_steps(seed, "triangle", "squared", (views[seed] if seed < 4 else views[seed - 3]))
            for seed in range(6)
        ]


def test_searches_at_the_same_time_share_nothing(captures: Callable[[], int]) -> None:
    """One begins during another one, before and after the capture; and the problem from which the
    captured steps were made is computed with later.
    """
    first, state = begun(0)
    inference, measured = first.inference, first.parts[0]
    point, buffers = state.point.marginals / 100, inference.buffers
    before = begun(0)[0].inference.fast_marginals(point, 500.0)[0], measured.target.tolist()
    inner = []
    with torch.inference_mode():
        with steps_of(first, state) as steps:
            for _ in range(6):
                steps()
                inner.append(after_steps(2))
            outer = [each.tolist() for each in steps.state.tensors]
        inner.append(after_steps(2))
        assert first.inference.buffers is not buffers is inference.buffers
        after = inference.fast_marginals(point, 500.0)[0], measured.target.tolist()
    np.testing.assert_allclose(before[0].tolist(), after[0].tolist(), rtol=1e-12)
    assert before[1] == after[1] and captures() == 2
    with nothing_captured():
        assert outer == after_steps(0) and inner == [after_steps(2)] * 7


def test_kept_steps_are_few_and_small(
    captures: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The structures that were used last, in a 64th of the free memory."""
    after_steps(0)
    (kept,) = KEPT.values()
    room = kept[0].bytes
    monkeypatch.setattr(device_search, "available", lambda device: room * REMEMBERED)
    after_steps(0, zero=False)  # takes less, but there is no room for both
    assert captures() == 2 and len(KEPT) == 1 and kept not in KEPT.values()
    monkeypatch.setattr(device_search, "available", lambda device: room * REMEMBERED - 1)
    after_steps(0)
    after_steps(0)
    assert captures() == 4 and len(KEPT) == 1, "what is too large is not kept"
    monkeypatch.undo()
    monkeypatch.setattr(cuda_graphs, "PLAIN_CALLS", 2)
    monkeypatch.setattr(device_search, "REMEMBERED", 2)
    for name in ("triangle", "cycle of five", "triangle", "chain"):
        after_steps(0, name)
    assert captures() == 7 and len(KEPT) == 2
    after_steps(0)
    assert captures() == 7, "the least recently used one is forgotten"


def test_a_search_that_raises_keeps_nothing(captures: Callable[[], int]) -> None:
    with torch.inference_mode(), pytest.raises(KeyError), steps_of(*begun(0)) as steps:
        for _ in range(6):
            steps()
        raise KeyError
    assert captures() == 1 and not KEPT


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::pgmkit.errors.Contradictory", "ignore::pgmkit.errors.NotCertified"
)
def test_estimates_of_one_structure_capture_once(
    captures: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem_module, "PATIENCE", 3)

    def fitted(seed: int) -> list[object]:
        wanted = {"total": 500, "method": "accelerated", "tolerance": 0.1, "device": "cuda"}
        model = estimate(FIVE, noisy("triangle", seed), **wanted)
        tables = [each.values.tolist() for each in model.potentials]
        return [model.iterations, model.loss, model.gap, tables]

    found = [fitted(seed) for seed in (0, 3, 7)]
    assert captures() == 1 and min(each[0] for each in found) > 2
    with nothing_captured():
        assert found == [fitted(seed) for seed in (0, 3, 7)]
