"""Estimation on a pretend GPU: the same model as on the processor, and how often it waits."""

from typing import Any

import numpy as np
import pytest
import torch
from benchmark_structures import LONG, structure
from brute_force import CLIQUE_SETS, FIVE
from pretend_device import GPU, MixedDevices, PretendGpu, pretend_gpu

from benchmarks import problems
from pgmkit import Dataset, Domain, Measurement, Zeros, error_bars, estimate
from pgmkit.contraction import kernels
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.estimation import Progress
from pgmkit.estimation.model_size import BASE_BYTES, needed_bytes
from pgmkit.estimation.problem import Monitor, Problem
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.runtime.devices import WORTH_A_GPU, device_of
from pgmkit.runtime.memory import available

METHODS = ("accelerated", "proximal", "newton")


def noisy(cliques: list[tuple[str, ...]], seed: int = 0) -> list[Measurement]:
    rng = np.random.default_rng(seed)
    sizes = [FIVE.size(clique) for clique in cliques]
    return [
        Measurement(clique, rng.dirichlet(np.ones(n)) * 1000 + rng.normal(0, 5, n), 5.0)
        for clique, n in zip(cliques, sizes, strict=True)
    ]


@pytest.fixture
def gpu() -> PretendGpu:
    with pretend_gpu() as made:
        yield made


def test_the_gpu_holds_values_and_refuses_the_host(gpu: PretendGpu) -> None:
    there = torch.arange(4.0, device="cuda")
    assert there.device == GPU and (there * 2).tolist() == [0, 2, 4, 6]
    with pytest.raises(MixedDevices):
        there + torch.ones(4)
    with pytest.raises(TypeError):
        there.numpy()


def test_the_gpu_counts(gpu: PretendGpu) -> None:
    there = torch.zeros(4, 4, device="cuda")
    gpu.reset()
    there.view(16)[3:].t()
    assert (gpu.launches, gpu.synchronisations, gpu.uploads) == (0, 0, 0)
    (there + 1).exp_()
    assert (gpu.launches, gpu.synchronisations) == (2, 0)
    float(there.sum())
    bool((there > 0).any())
    there[there > 0]
    assert gpu.synchronisations == 3
    torch.tensor([1.0], device="cuda")
    torch.ones(3).to("cuda")
    assert gpu.uploads == 2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["chain", "nested"])
@pytest.mark.filterwarnings("ignore::pgmkit.errors.NotCertified")
def test_estimates_are_those_of_the_processor(gpu: PretendGpu, method: str, name: str) -> None:
    measured = noisy(CLIQUE_SETS[name])
    there = estimate(FIVE, measured, total=1000, method=method, device="cuda")
    here = estimate(FIVE, measured, total=1000, method=method)
    assert there.loss == pytest.approx(here.loss, abs=0.05 * here.unit)
    assert there.gap <= max(0.2, 1.5 * here.gap / here.unit) * here.unit


def test_zeros_and_wide_spreads(gpu: PretendGpu) -> None:
    """Passes that linear space cannot hold fail on the GPU, and are done again in log space."""
    domain = Domain({"a": 3, "b": 3, "c": 3})
    cliques = [("a", "b"), ("b", "c")]
    impossible = [Zeros(("a", "b"), ~np.eye(3, dtype=bool)[::-1])]
    values = [1000 * np.eye(3).reshape(-1), 300 * np.ones(9)]
    measured = [Measurement(c, v, 0.01) for c, v in zip(cliques, values, strict=True)]
    both = [
        estimate(domain, measured, total=3000, zeros=impossible, device=device, max_seconds=20)
        for device in ("cpu", "cuda")
    ]
    assert both[1].loss == pytest.approx(both[0].loss, rel=1e-3, abs=0.1 * both[0].unit)
    oracle = MarginalOracle(domain, cliques, device="cuda")
    apart = torch.tensor([0.0] + [-800.0] * 17, dtype=torch.float64)
    apart[9:17] = torch.linspace(-900, 0, 8)
    _, log_partition = oracle.try_marginals(apart.to("cuda"))
    exact = MarginalOracle(domain, cliques).marginals(apart)[1]
    failed = bool(torch.isnan(log_partition))
    assert failed or float(log_partition) == pytest.approx(exact)


def test_a_step_of_mirror_descent_waits_five_times_an_attempt_and_once_more(
    gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An iteration without a certificate reads the loss, and of every attempted step the partition
    function with its shifts, the loss, the excess and the divergence.
    """
    seen: list[tuple[int, int, int, int, int]] = []
    attempts, certificates = [], []
    attempt, certify = Problem.attempt, Monitor.certify
    monkeypatch.setattr(Problem, "attempt", lambda *a: attempts.append(1) or attempt(*a))
    monkeypatch.setattr(Monitor, "certify", lambda *a: certificates.append(1) or certify(*a))

    class Enough(Exception):
        pass

    def record(progress: Progress) -> None:
        counts = (gpu.launches, gpu.synchronisations, gpu.uploads)
        seen.append((*counts, len(attempts), len(certificates)))
        if progress.iteration == 25:
            raise Enough

    measured = noisy(CLIQUE_SETS["cycle of five"])
    with pytest.raises(Enough):
        estimate(
            FIVE, measured, total=1000, method="mirror_descent", tolerance=0.0, device="cuda",
            progress=record,
        )  # fmt: skip
    launches, waits, uploads, tried, certified = np.diff(np.array(seen), axis=0).T
    plain = certified == 0
    assert plain.sum() >= 18 and uploads.max() == 0
    np.testing.assert_array_equal(waits[plain], 5 * tried[plain] + 1)
    assert tried.min() == 1
    assert (launches[plain] <= (1 + tried[plain]) * 110).all(), "a pass and some products each"


@pytest.mark.parametrize("name", problems.NAMES)
def test_a_pass_is_at_most_sixty_launches(gpu: PretendGpu, name: str) -> None:
    sizes, cliques = structure(name)
    oracle = MarginalOracle(Domain(sizes), cliques, device="cuda")
    potentials = torch.randn(oracle.layout.cells, dtype=torch.float64)
    there = potentials.to("cuda")
    with oracle.session():
        oracle.try_marginals(there, 100.0)
        gpu.reset()
        marginals, log_partition = oracle.try_marginals(there, 100.0)
        assert gpu.launches <= 60
        assert (gpu.synchronisations, gpu.uploads) == (0, 0)
    expected = MarginalOracle(oracle.layout.domain, cliques).marginals(potentials, 100)
    np.testing.assert_allclose(marginals.cpu(), expected[0], rtol=1e-9, atol=1e-12)
    assert float(log_partition) == pytest.approx(expected[1], abs=1e-9)


@pytest.mark.parametrize("name", [*problems.NAMES, *LONG])
def test_no_program_adds_more_than_1024_terms_one_after_the_other(
    gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sizes, cliques = structure(name)
    summed = [0]
    launch = kernels.contract_steps

    def recorded(left: Any, right: Any, out: Any, table: kernels.Table) -> None:
        summed.extend(row[5] for row in table[0].host.tolist())
        launch(left, right, out, table)

    monkeypatch.setattr(kernels, "contract_steps", recorded)
    oracle = MarginalOracle(Domain(sizes), cliques, device="cuda")
    potentials = torch.randn(oracle.layout.cells, dtype=torch.float64)
    with oracle.session():
        marginals, _ = oracle.try_marginals(potentials.to("cuda"), 100.0)
    assert max(summed) <= 1024
    assert len(summed) > 1 or name == "a million cells", "most steps of a problem share launches"
    expected = MarginalOracle(oracle.layout.domain, cliques).marginals(potentials, 100)[0]
    np.testing.assert_allclose(marginals.cpu(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", ["max_contract", "log_contract"])
@pytest.mark.parametrize(
    ("rows", "summed", "columns", "alone"),
    [(1, 6000, 1, False), (30, 1000, 1, False), (300, 70, 300, True), (300, 20, 3, True)],
)
def test_long_sums_with_few_results_are_reduced_by_torch(
    gpu: PretendGpu, form: str, rows: int, summed: int, columns: int, alone: bool
) -> None:
    """The few programs of a kernel would go through thousands of terms one by one."""
    left, right = (torch.randn(1, n, summed, dtype=torch.float64) for n in (rows, columns))
    found = getattr(kernels, form)(left.to("cuda"), right.to("cuda"))
    assert gpu.ops[form] == alone and gpu.launches <= 12
    over = torch.amax if form == "max_contract" else torch.logsumexp
    np.testing.assert_allclose(found.cpu(), over(left[:, :, None] + right[:, None], -1), rtol=1e-12)


@pytest.mark.parametrize("name", ["nested", "cycle of five"])
def test_a_gpu_without_triton_computes_the_same(
    gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With torch's operations; passes that linear space cannot hold as well."""
    monkeypatch.setattr(kernels, "has_triton", lambda device: False)
    measured = noisy(CLIQUE_SETS[name])
    there, here = (estimate(FIVE, measured, total=1000, device=d) for d in ("cuda", "cpu"))
    assert not {"contract_steps", "shift_exp", "max_contract"} & set(gpu.ops)
    assert there.loss == pytest.approx(here.loss, abs=0.05 * here.unit)
    oracle = MarginalOracle(FIVE, CLIQUE_SETS[name], device="cuda")
    wide = 2000 * torch.randn(oracle.layout.cells, dtype=torch.float64)
    found = oracle.marginals(wide.to("cuda"), 10.0)
    expected = MarginalOracle(FIVE, CLIQUE_SETS[name]).marginals(wide, 10.0)
    np.testing.assert_allclose(found[0].cpu(), expected[0], atol=1e-9)


@pytest.mark.parametrize("cliques", [[("a", "b", "c"), ("c", "d")], [("a", "b", "c")]])
@pytest.mark.parametrize(("dtype", "times"), [(torch.float64, 3), (torch.float32, 1.5)])
def test_a_pass_of_a_large_clique_moves_its_table_three_times(
    gpu: PretendGpu, cliques: list[tuple[str, ...]], dtype: torch.dtype, times: float
) -> None:
    """Potentials are read for their sums, and again for the marginals, which are written."""
    domain = Domain({"a": 103, "b": 101, "c": 105, "d": 10})
    oracle = MarginalOracle(domain, cliques, device="cuda", dtype=dtype)
    potentials = torch.randn(oracle.layout.cells, dtype=dtype)
    there = potentials.to("cuda")
    with oracle.session():
        oracle.try_marginals(there, 100.0)
        gpu.reset()
        marginals, log_partition = oracle.try_marginals(there, 100.0)
    assert gpu.moved_bytes <= (times + 0.012) * 8 * domain.size(cliques[0])
    assert marginals.dtype == dtype
    expected = MarginalOracle(domain, cliques).marginals(potentials.double(), 100)
    rtol = 1e-9 if dtype == torch.float64 else 1e-6
    np.testing.assert_allclose(marginals.cpu(), expected[0], rtol=rtol, atol=1e-15)
    assert float(log_partition) == pytest.approx(expected[1], abs=1e-9)


@pytest.mark.parametrize("piece", [1, 3, 7, 1 << 12])
@pytest.mark.parametrize("seed", range(4))
def test_peaks_of_cliques_in_pieces_are_those_of_the_processor(
    gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch, piece: int, seed: int
) -> None:
    """Of random cliques, some of them impossible throughout."""
    rng = np.random.default_rng(seed)
    domain = Domain({name: int(rng.integers(1, 6)) for name in "abcde"})
    cliques = [tuple(rng.permutation(list("abcde"))[: rng.integers(1, 4)]) for _ in range(5)]
    here, there = (MarginalOracle(domain, cliques, device=device) for device in ("cpu", "cuda"))
    potentials = torch.randn(here.layout.cells, dtype=torch.float64)
    potentials[torch.rand(len(potentials)) < 0.2] = -torch.inf
    potentials[here.layout.slices[1]] = -torch.inf
    monkeypatch.setattr("pgmkit.contraction.kernels.reference.CALL_CELLS", piece)
    found = there.shifts.peaks(potentials.to("cuda")).cpu()
    assert len(there.shifts.levels) == 1 + (max(map(domain.size, cliques)) > piece)
    assert found.tolist() == here.shifts.peaks(potentials).tolist()


def test_the_gpu_counts_what_is_moved(gpu: PretendGpu) -> None:
    there, row = torch.zeros(100, 50, device="cuda"), torch.zeros(50, device="cuda")
    for work, cells in (
        (lambda: there + 1, 2 * 5000),
        (lambda: there.add_(row.expand(100, 50)), 2 * 5000 + 50),
        (lambda: there.fill_(1.0), 5000),
        (lambda: there.copy_(row.expand(100, 50)), 5000 + 50),
        (lambda: there.sum(0), 5000 + 50),
        (lambda: there[:, 3].exp(), 200),
        (lambda: there.t().view(50, 100), 0),
    ):
        gpu.reset()
        work()
        assert gpu.moved_bytes == 4 * cells


def test_memory_that_torch_keeps_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second model of the same size is not refused for what the first one left behind."""
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    with pretend_gpu(gpu_bytes=1000):
        assert available(torch.device("cuda")) == 1050


def test_memory_is_asked_of_the_gpu() -> None:
    domain = Domain({"a": 1000, "b": 1000})
    measured = [Measurement(("a", "b"), np.ones(10**6), 1.0)]
    with (
        pretend_gpu(gpu_bytes=100 << 20),
        pytest.raises(ModelTooLarge, match="limit is 52,428,800 bytes"),
    ):
        estimate(domain, measured, total=10, device="cuda")


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("sizes", [(20, 20, 20, 2), (12, 40, 5, 60)])
def test_an_estimate_holds_no_more_than_it_asks_for(
    gpu: PretendGpu, sizes: tuple[int, ...], loss: str
) -> None:
    domain = Domain(dict(zip("abcd", sizes, strict=True)))
    rng = np.random.default_rng(0)
    cliques = [("a", "b", "c"), ("c", "d"), ("a", "d")]
    measured = [Measurement(c, rng.dirichlet(np.ones(domain.size(c))) * 1e4, 3.0) for c in cliques]
    asked = needed_bytes(MarginalOracle(domain, cliques, device="cuda"), measured) - BASE_BYTES
    gpu.reset()

    class Enough(Exception):
        pass

    def record(progress: Progress) -> None:
        if progress.iteration > 12:
            raise Enough

    with pytest.raises(Enough):
        estimate(
            domain, measured, total=1e4, loss=loss, method="accelerated", tolerance=1e-9,
            device="cuda", progress=record,
        )  # fmt: skip
    assert gpu.peak_bytes <= asked <= 4 * gpu.peak_bytes


def test_error_bars_stay_where_the_model_is(gpu: PretendGpu) -> None:
    measured = noisy(CLIQUE_SETS["chain"])
    models = [estimate(FIVE, measured, total=1000, device=device) for device in ("cpu", "cuda")]
    pair = (FIVE.attributes[0], FIVE.attributes[-1])
    bars = [error_bars(model, measured, replicates=20, seed=1) for model in models]
    found = [each.marginal(pair) for each in bars]
    assert found[1].method == "bootstrap"
    assert {r.potentials[0].values.device for r in bars[1].replicates} == {GPU}
    np.testing.assert_allclose(found[1].estimate, found[0].estimate, atol=1.0)
    np.testing.assert_allclose(found[1].stddev, found[0].stddev, rtol=0.2, atol=0.5)


def test_error_bars_keep_the_precision() -> None:
    measured = noisy(CLIQUE_SETS["chain"])
    model = estimate(FIVE, measured, total=1000, dtype=torch.float32)
    bars = error_bars(model, measured, replicates=20, seed=1)
    assert {r.potentials[0].values.dtype for r in bars.replicates} == {torch.float32}


@pytest.mark.parametrize(
    ("gpus", "multiplications", "chosen"),
    [(1, 1e9, "cuda"), (1, WORTH_A_GPU, "cuda"), (1, 0.9 * WORTH_A_GPU, "cpu"), (0, 1e9, "cpu")],
)
def test_auto_takes_a_gpu_for_large_passes(
    gpus: int, multiplications: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert device_of("auto", lambda: multiplications).type == chosen


def test_auto_estimates_small_models_on_the_processor(
    gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = noisy(CLIQUE_SETS["chain"])
    small = estimate(FIVE, measured, total=1000, device="auto")
    assert small.potentials[0].values.device.type == "cpu" and gpu.launches == 0
    monkeypatch.setattr("pgmkit.runtime.devices.WORTH_A_GPU", 10)
    large = estimate(FIVE, measured, total=1000, device="auto")
    assert large.potentials[0].values.device == GPU


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", r"device 'cuda' is not there: torch .* finds 0 CUDA GPUs\. Pass device=\"cpu\""),
        ("cuda:3", "device 'cuda:3' is not there"),
        ("mps", "device must be"),
        ("gpu", "device must be"),
        (3.5, "device must be"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(device: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        estimate(FIVE, noisy(CLIQUE_SETS["chain"]), total=1000, device=device)


def test_records_are_counted_on_the_gpu(gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgmkit.records.dataset.TABLE_CELLS", 700)
    rng = np.random.default_rng(0)
    sizes = {"a": 3, "b": 300, "c": 2, "d": 1}
    data = Dataset(Domain(sizes), {name: rng.integers(0, n, 2000) for name, n in sizes.items()})
    there = data.on("cuda")
    cliques = [("a",), ("b", "a"), ("a", "b"), ("c", "b", "a"), (), ("d", "c"), ("a",)]
    found, expected = there.marginals(cliques), data.marginals(cliques)
    assert list(found) == list(expected) and len(there) == 2000 and gpu.launches > 0
    for clique, counts in found.items():
        assert counts.dtype == np.int64
        np.testing.assert_array_equal(counts, expected[clique])


def test_records_that_do_not_fit_on_the_gpu() -> None:
    data = Dataset(Domain({"a": 2}), {"a": np.zeros(5000, dtype=int)})
    said = r"the data set needs more memory than cuda\S* has free; count it on the processor$"
    with pretend_gpu(gpu_bytes=4096), pytest.raises(ModelTooLarge, match=said):
        data.on("cuda")
