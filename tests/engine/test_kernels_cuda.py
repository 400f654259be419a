"""The Triton kernels without a GPU: run by Triton's interpreter, and compiled for sm_90."""

import json
import mmap
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_operands import Stacks, operands, runs

from pgmkit.contraction import kernels
from pgmkit.contraction.buffers import ContractionBuffers
from pgmkit.contraction.kernels import reference
from pgmkit.contraction.order import plan
from pgmkit.contraction.streamed import StreamedBuffers
from pgmkit.losses import Huber, Squared

pytest.importorskip("triton", reason="triton (the extra 'gpu') is not installed")
from pgmkit.contraction.kernels import cuda, cuda_steps

pytestmark = pytest.mark.filterwarnings("ignore:.*divide by zero:RuntimeWarning")
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
"""Memory that takes no room before it is written (MAP_NORESERVE of Linux)."""
KERNELS = {
    f"{name}_kernel"
    for name in (
        "pairs", "shift_exp", "fold", "spread", "steps", "penalise", "compare", "overwrite",
    )
}  # fmt: skip
DTYPES = [torch.float64, torch.float32]
FEW = settings(max_examples=15)  # a program of the interpreter takes milliseconds a line


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    tight = found.dtype == torch.float64
    bound = {"rtol": 1e-12, "atol": 1e-12} if tight else {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(found, expected, **bound)


@FEW
@given(operands(most=35))
def test_maxima_are_those_of_torch(stacks: Stacks) -> None:
    left, right = stacks
    expected = (left[:, :, None] + right[:, None]).amax(-1)
    torch.testing.assert_close(cuda.max_contract(*stacks), expected, rtol=0, atol=0)


@FEW
@given(operands(most=35))
def test_sums_in_log_space_are_those_of_torch(stacks: Stacks) -> None:
    left, right = (side.double() for side in stacks)
    expected = torch.logsumexp(left[:, :, None] + right[:, None], -1)
    assert_near(cuda.log_contract(*stacks), expected.to(stacks[0].dtype))


@FEW
@given(runs(), st.sampled_from(DTYPES))
def test_shifted_exponentials_are_those_of_torch(
    drawn: tuple[list[float], list[int]], dtype: torch.dtype
) -> None:
    cells, starts = torch.tensor(drawn[0], dtype=dtype), torch.tensor(drawn[1])
    shifts = reference.peaks(cells, starts)
    forms = (cuda.shift_exp, reference.shift_exp)
    found, expected = (each(cells, shifts, starts, torch.empty_like(cells)) for each in forms)
    assert_near(found, expected)


@st.composite
def tables(draw: st.DrawFn) -> torch.Tensor:
    """Logarithms of shape (rows, terms, columns), of any spread, some of them minus infinity."""
    shape = [draw(st.sampled_from([1, 2, 5])) for _ in "rtc"]
    shape[draw(st.integers(0, 2))] = draw(st.sampled_from([1, 17, 70, 1100]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    dtype = draw(st.sampled_from(DTYPES))
    cells = draw(st.sampled_from([1.0, 300.0])) * torch.randn(shape, generator=random, dtype=dtype)
    cells[torch.rand(shape, generator=random) < draw(st.sampled_from([0, 0.3, 1]))] = -torch.inf
    return cells


@FEW
@given(tables(), st.sampled_from([1, cuda.PROGRAMS]))
def test_sums_of_exponentials_are_those_of_torch(table: torch.Tensor, programs: int) -> None:
    """In pieces of one lot, or of up to sixteen; ``spread`` then writes what was summed."""
    with mock.patch.object(cuda, "PROGRAMS", programs):
        peaks, sums = cuda.fold(table)
    highest = peaks.amax(1)
    torch.testing.assert_close(highest, table.double().amax(1), rtol=0, atol=0)
    logs = torch.logsumexp(peaks + sums.log(), 1)
    assert_near(logs, torch.logsumexp(table.double(), 1))
    shift, weights = reference.finite(table.amax()).double(), torch.rand_like(highest)
    forms = (cuda.spread, reference.spread)
    found, expected = (form(table, shift, weights, torch.empty_like(table)) for form in forms)
    assert_near(found, expected)


@st.composite
def residuals(draw: st.DrawFn) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Two vectors of marginals, weights (one number or one each), targets and a penalty's clip."""
    count, dtype = draw(st.sampled_from([1, 30, 1024, 2500])), draw(st.sampled_from(DTYPES))
    random = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    new, old, weights, target = (
        torch.rand(count, generator=random, dtype=dtype) * size for size in (90.0, 90.0, 2.0, 90.0)
    )
    if draw(st.booleans()):
        weights = weights[:1].expand(count)
    clip = draw(st.sampled_from([Squared(), Huber(), Huber(0.1, 1.4)])).clipped
    return [new, old, weights, target], torch.tensor(clip, dtype=torch.float64)


@FEW
@given(residuals())
def test_losses_and_gradients_are_those_of_torch(
    drawn: tuple[list[torch.Tensor], torch.Tensor],
) -> None:
    (new, old, weights, target), clip = drawn
    (sums, slopes), (losses, expected) = (
        form.penalise(old, weights, target, clip) for form in (cuda_steps, reference)
    )
    assert_near(sums.sum(), losses.sum())
    assert_near(slopes, expected)
    compared, known = (
        form.compare(new, old, weights, target, clip).sum(1) for form in (cuda_steps, reference)
    )
    assert_near(compared, known)


@pytest.mark.parametrize("form", [cuda_steps, reference])
def test_a_failed_pass_has_no_loss(form: ModuleType) -> None:
    seen, clip = torch.full((3,), torch.nan), torch.tensor(Huber().clipped, dtype=torch.float64)
    some = torch.ones(3)
    assert form.penalise(seen, some, some, clip)[0].sum().isnan()
    assert form.compare(seen, some, some, some, clip).sum(1).isnan().all()


@pytest.mark.parametrize("count", [1, 1024, 1500])
def test_only_chosen_rows_are_overwritten(count: int) -> None:
    other, chosen = torch.randn(3, count, dtype=torch.float64), torch.tensor([True, False, True])
    own = torch.zeros_like(other)
    cuda_steps.overwrite(own, chosen, other)
    torch.testing.assert_close(own, other * chosen[:, None], rtol=0, atol=0)
    one = torch.zeros(count, dtype=torch.float64)
    for picked, expected in ((False, torch.zeros_like(one)), (True, other[1])):
        cuda_steps.overwrite(one, torch.tensor(picked), other[1])
        torch.testing.assert_close(one, expected, rtol=0, atol=0)


@st.composite
def structures(draw: st.DrawFn) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    """Attributes of few values, often one, and cliques of them, some within others."""
    sizes = {name: draw(st.sampled_from([1, 2, 3, 5, 7])) for name in "abcdef"}
    clique = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True)
    return sizes, [tuple(each) for each in draw(st.lists(clique, min_size=1, max_size=6))]


@FEW
@given(structures(), st.sampled_from(DTYPES), st.integers(0, 10**6))
def test_levels_of_a_pass_are_the_pass(
    structure: tuple[dict[str, int], list[tuple[str, ...]]], dtype: torch.dtype, seed: int
) -> None:
    """Forward and backward through a plan in launches of whole levels, and as processors do it."""
    sizes, cliques = structure
    used = plan(cliques, (), sizes)
    random = torch.Generator().manual_seed(seed)
    cells = torch.rand(sum(map(used.cells, range(len(cliques)))), generator=random, dtype=dtype)
    found = []
    for here in (False, True):
        with mock.patch.object(kernels, "on_gpu", lambda device, here=here: here):
            passing = ContractionBuffers(used, torch.device("cpu"), dtype)
            passing.inputs.copy_(cells)
            result = passing.forward().clone()
            found.append((result, passing.backward(2.0).clone(), passing.weighted(2.0, dtype)))
    for plain, launched in zip(*found, strict=True):
        assert_near(launched, plain)
    assert_near(found[0][2], found[0][1] * cells)


@FEW
@given(structures(), st.integers(0, 10**6))
def test_passes_that_read_logarithms_twice_are_those_that_store_exponentials(
    structure: tuple[dict[str, int], list[tuple[str, ...]]], seed: int
) -> None:
    check_streamed(*structure, seed)


@pytest.mark.parametrize(
    ("kept", "extents"),
    [
        ("", (1, 120, 1)),
        ("a", (3, 40, 1)),
        ("b", (12, 10, 1)),
        ("c", (60, 2, 1)),
        ("d", (1, 60, 2)),
        ("ab", (12, 10, 1)),
        ("ac", (60, 2, 1)),
        ("ad", (3, 20, 2)),
        ("bd", (12, 5, 2)),
        ("cd", (1, 12, 10)),
        ("acd", (3, 4, 10)),
    ],
)
def test_the_axes_that_are_summed_may_lie_anywhere(
    kept: str, extents: tuple[int, int, int]
) -> None:
    """The last of them that are neighbours are the terms of each sum."""
    sizes = {"a": 3, "b": 4, "c": 5, "d": 2}
    cliques = [("a", "b", "c", "d"), *((name,) for name in kept)]
    assert check_streamed(sizes, cliques, 0, least=extents[1]) == [extents]
    assert check_streamed(sizes, cliques, 0, least=extents[1] + 1) == []


def test_inputs_of_zeros_alone_have_the_peak_0() -> None:
    check_streamed({"a": 3, "b": 4}, [("a", "b"), ("b",)], 0, impossible=True)


def test_peaks_of_float32_are_float64() -> None:
    """Their sum is a part of the logarithm of a partition function."""
    passing = StreamedBuffers(plan([("a",)], (), {"a": 3}), torch.device("cpu"), torch.float64)
    assert passing.read(torch.zeros(3)).dtype == torch.float64


def check_streamed(
    sizes: dict[str, int],
    cliques: list[tuple[str, ...]],
    seed: int,
    least: int = 1,
    impossible: bool = False,
) -> list[tuple[int, ...]]:
    """Compare passes in which every sum of an input of at least so many terms is streamed with
    plain ones, and return the numbers of rows, terms and columns of those that were.
    """
    used = plan(cliques, (), sizes)
    random = torch.Generator().manual_seed(seed)
    count = sum(map(used.cells, range(len(cliques))))
    logs = 50 * torch.randn(count, generator=random, dtype=torch.float64)
    logs = torch.full_like(logs, -torch.inf) if impossible else logs
    plain = ContractionBuffers(used, torch.device("cpu"), torch.float64)
    with (
        mock.patch.object(kernels, "on_gpu", lambda device: True),
        mock.patch.object(kernels, "TERMS", least),
        mock.patch("pgmkit.contraction.buffers.CACHE_CELLS", 1),
        mock.patch("pgmkit.contraction.kernels.levels.FEW_CELLS", 0),
        mock.patch.object(kernels, "fold", wraps=kernels.fold) as folded,
    ):
        passing = StreamedBuffers(used, torch.device("cpu"), torch.float64)
        peaks = passing.read(logs)
        passing.load(peaks)
        result, found = passing.forward().clone(), passing.weighted(2.0, torch.float64)
    tables = logs.split([used.cells(i) for i in range(len(cliques))])
    highest = torch.stack([kernels.finite(t.max()) for t in tables])
    torch.testing.assert_close(peaks, highest, rtol=0, atol=0)
    plain.inputs.copy_(torch.cat([t - peak for t, peak in zip(tables, peaks, strict=True)]).exp_())
    assert_near(result, plain.forward())
    assert_near(found, plain.weighted(2.0, torch.float64))
    return [tuple(call.args[0].shape) for call in folded.call_args_list]


@pytest.mark.parametrize("kernel", ["max_contract", "log_contract"])
def test_tables_of_more_than_2_to_the_31_cells_are_addressed_right(kernel: str) -> None:
    """Three terms that lie 2^30 cells apart: their distances do not fit in 32 bits.

    The memory is reserved, not used. A distance that overflowed would point as far to the left,
    where there are zeros.
    """
    apart, size = 1 << 30, 4
    held = mmap.mmap(-1, 4 * apart * size + mmap.PAGESIZE, flags=_RESERVED)
    cells = torch.frombuffer(held, dtype=torch.float32)
    left = cells.as_strided((1, 1, 3), (0, 0, apart), 2 * apart - 1024)
    left.copy_(torch.tensor([1.0, 2.0, 5.0]))
    right = torch.tensor([[[0.5, 1.0, 3.0]]])
    found = getattr(cuda, kernel)(left, right)
    terms = left + right
    over = torch.amax if kernel == "max_contract" else torch.logsumexp
    torch.testing.assert_close(found, over(terms, -1)[..., None])


def test_kernels_are_launched_on_the_gpu_of_their_operands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(torch.cuda, "device_of", lambda each: nullcontext(seen.append(each)))
    table = torch.zeros(2, 3, 4, dtype=torch.float64)
    cuda.max_contract(table, table), cuda.log_contract(table, table), cuda.fold(table)
    cuda.spread(table, table[0, 0, :1], table[:, 0], torch.empty_like(table))
    starts = torch.tensor([0, 24])
    flat, clip = table.view(-1), torch.ones(2, dtype=torch.float64)
    cuda.shift_exp(flat, table[0, 0, :1], starts, torch.empty(24))
    cuda_steps.penalise(flat, flat, flat, clip), cuda_steps.compare(flat, flat, flat, flat, clip)
    cuda_steps.overwrite(flat, torch.tensor(True), flat)
    assert [each.data_ptr() for each in seen] == [table.data_ptr()] * 8


@pytest.mark.parametrize("error", [RuntimeError("no C compiler"), OSError("no driver")])
def test_without_a_compiler_torch_computes(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(device: torch.device) -> None:
        raise error

    kernels.has_triton.cache_clear()
    monkeypatch.setattr(cuda, "try_out", fails)
    with pytest.warns(RuntimeWarning, match=str(error)):
        assert not kernels.on_gpu(torch.device("cuda"))
    kernels.has_triton.cache_clear()


def test_what_is_not_a_number_stays_so() -> None:
    left, right = torch.zeros(1, 2, 9), torch.zeros(1, 3, 9)
    left[0, 1, 4] = torch.nan
    for form in (cuda.max_contract, cuda.log_contract):
        found = form(left, right)
        assert found[0, 1].isnan().all() and not found[0, 0].isnan().any()


def test_kernels_compile_for_a_gpu_without_spills() -> None:
    script = Path(__file__).parents[1] / "compile_kernels.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert {record["kernel"] for record in records} == KERNELS
    for record in records:
        assert record["stored"] == record["loaded"] == 0, record
        assert record["registers"] <= 168, record  # three blocks of 128 threads and more at once
        assert record["kernel"] == "steps_kernel" or record["specialised"] <= ["columns"], record
