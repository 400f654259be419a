"""The steps of ``benchmarks.first_contact``: each takes a device and finds out one thing about it.

``python -m benchmarks.first_contact_steps REQUEST.json ANSWER.json`` runs one step in a process of
its own; the tests run all of them on a GPU that pretends, with ``small=True``.
"""

from __future__ import annotations

import itertools
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks import problems
from benchmarks.common import HERE, peak_rss_mb, serve, with_repository

Found = dict[str, Any]
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
CLOSE = {torch.float64: 1e-11, torch.float32: 1e-4}
"""Largest relative difference of a kernel from its reference: the order of sums differs."""


def versions(device: str, small: bool) -> Found:
    """What the other figures depend on."""
    found: Found = {"torch": torch.__version__, "python": platform.python_version()}
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = None
    found["tools"] = [name for name in ("compute-sanitizer", "ncu", "nvidia-smi") if which(name)]
    if is_real(device):
        properties = torch.cuda.get_device_properties(device)
        found |= {"card": properties.name, "memory_gb": properties.total_memory / 1e9}
        found |= {"cuda": torch.version.cuda, "processors": properties.multi_processor_count}
    return found


def kernels(device: str, small: bool) -> Found:
    """The kernels beside their reference, on drawn operands of both formats.

    Raises AssertionError, naming the kernel and the operands, where one is not close.
    """
    from pgmkit.contraction import kernels
    from pgmkit.contraction.kernels import reference

    worst: dict[str, float] = {}
    rng = torch.Generator().manual_seed(0)
    sizes = [(1, 1, 1, 1), (2, 33, 5, 8), (3, 40, 40, 13)] + [(4, 300, 70, 90)] * (not small)
    for (batch, rows, summed, columns), dtype in itertools.product(sizes, CLOSE):
        left, right = (
            30.0 * torch.randn((batch, n, summed), generator=rng, dtype=dtype)
            for n in (rows, columns)
        )
        there = left.to(device), right.to(device)
        for name in ("max_contract", "log_contract"):
            found, expected = getattr(kernels, name)(*there), getattr(reference, name)(left, right)
            compare(worst, f"{name} {dtype}", found, expected, CLOSE[dtype])
        expected = torch.logsumexp(left.double(), 1)
        peaks, sums = kernels.fold(there[0])
        found = torch.logsumexp(peaks + sums.log(), 1)
        compare(worst, f"fold {dtype}", found, expected, CLOSE[torch.float64])
        shift, weights = left.max().double(), expected.exp()
        expected = reference.spread(left, shift, weights, torch.empty_like(left))
        given = (there[0], shift.to(device), weights.to(device), torch.empty_like(there[0]))
        compare(worst, f"spread {dtype}", kernels.spread(*given), expected, CLOSE[dtype])
        cells, starts = left.reshape(-1), torch.tensor([0, summed, left.numel()])
        shifts = reference.peaks(cells, starts)
        out = torch.empty_like(cells)
        expected = reference.shift_exp(cells, shifts, starts, out)
        given = (cells.to(device), shifts.to(device), starts.to(device), out.clone().to(device))
        compare(worst, f"shift_exp {dtype}", kernels.shift_exp(*given), expected, CLOSE[dtype])
        steps_of_the_search(worst, cells, device)
    return {"largest relative difference": worst} | passes(device)


def steps_of_the_search(worst: dict[str, float], cells: torch.Tensor, device: str) -> None:
    """The kernels of a step beside their reference, with these cells as marginals."""
    from pgmkit.contraction import kernels
    from pgmkit.contraction.kernels import reference
    from pgmkit.losses import Huber, Squared

    dtype, backwards = cells.dtype, cells.flip(0)
    for penalty, weights in ((Squared(), cells[:1].expand_as(cells)), (Huber(), backwards)):
        clip = torch.tensor(penalty.clipped, dtype=torch.float64)
        operands = (cells, weights, backwards, clip)
        there = [each.to(device) for each in operands]
        if weights.stride(0) == 0:
            there[1] = there[1][:1].expand_as(there[0])
        (sums, slopes), (losses, expected) = (
            form.penalise(*given) for form, given in ((kernels, there), (reference, operands))
        )
        compare(worst, f"penalise {dtype}", slopes, expected, CLOSE[dtype])
        compare(worst, f"penalise {dtype}", sums.sum(), losses.sum(), CLOSE[torch.float64])
        found = kernels.compare(backwards.to(device), *there).sum(1)
        expected = reference.compare(backwards, *operands).sum(1)
        compare(worst, f"compare {dtype}", found, expected, CLOSE[torch.float64])
    own, other = torch.zeros_like(there[0]).expand(2, -1).clone(), torch.stack([there[0]] * 2)
    kernels.overwrite(own, torch.tensor([False, True]).to(device), other)
    expected = torch.stack([torch.zeros_like(cells), cells])
    compare(worst, f"overwrite {dtype}", own, expected, 0.0)


def passes(device: str) -> Found:
    """Passes of whole plans, which ``contract_steps`` makes, beside the processor's."""
    from pgmkit import Domain
    from pgmkit.inference.marginal_oracle import MarginalOracle

    worst: dict[str, float] = {}
    random = torch.Generator().manual_seed(1)
    for sizes, cliques in (
        ({"a": 7, "b": 5, "c": 6, "d": 4, "e": 9}, ["abc", "cd", "de", "ea", "b"]),
        ({"a": 300, "b": 300, "c": 2}, ["c", "ab"]),  # a table that is not stored as exponentials
    ):
        tables = [tuple(clique) for clique in cliques]
        here, there = (MarginalOracle(Domain(sizes), tables, device=d) for d in ("cpu", device))
        potentials = torch.randn(here.layout.cells, generator=random, dtype=torch.float64)
        with there.session():
            found = there.try_marginals(potentials.to(device), 100.0)[0]
        expected = here.marginals(potentials, 100.0)[0]
        compare(worst, "pass", found, expected, CLOSE[torch.float64])
    return {"pass: largest relative difference": worst["pass"]}


def sanitizer(device: str, small: bool) -> Found:
    """The kernels again under compute-sanitizer, where that is installed."""
    tool = which("compute-sanitizer")
    if tool is None or not is_real(device):
        return {"skipped": "compute-sanitizer is not installed, or this is no GPU"}
    code = f"from benchmarks.first_contact_steps import kernels; kernels({device!r}, True)"
    done = subprocess.run(
        [tool, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-c", code],
        # With torch's own cache of memory, most accesses beyond a tensor would go unnoticed.
        env=with_repository() | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        cwd=HERE.parent, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-1000:]
    return {"memcheck": "no errors"}


def estimates(device: str, small: bool) -> Found:
    """An estimate of each problem here and there: seconds, loss and iterations of two calls.

    A third call on the device has a tolerance of zero and a second, so that its steps are captured
    in any case; its loss is compared with the processor's of the second call.
    """
    found: Found = {}
    for name in ("boolean",) if small else known(problems.NAMES):
        losses = {}
        for where in ("cpu", device):
            for call in ("first", "second"):
                seconds, model = search(name, device=where, max_seconds=0.4 if small else 8.0)
                found[f"{name} {where} {call}"] = [seconds, model.loss, model.iterations]
            losses[where] = model.loss
        model = search(name, device=device, max_seconds=0.4 if small else 1.0, tolerance=0.0)[1]
        found[f"{name}: losses apart, in units"] = (losses[device] - losses["cpu"]) / model.unit
        found[f"{name}: captured, in units"] = (model.loss - losses["cpu"]) / model.unit
    return found


def search(name: str, **options: Any) -> tuple[float, Any]:
    """Seconds of an accelerated search for a problem's model, and the model."""
    from pgmkit import Domain, Measurement, estimate

    problem = problems.load(name, 0)
    measured = [
        Measurement(clique, y, problem.sigma)
        for clique, y in zip(problem.cliques, problem.values, strict=True)
    ]
    begun = time.perf_counter()
    options = {"method": "accelerated", **options}
    model = estimate(Domain(problem.domain), measured, total=problem.total, **options)
    return time.perf_counter() - begun, model


def long_sums(device: str, small: bool) -> Found:
    """A table of a million cells alone, and a triple of 100^3: launches, waits, time."""
    from pgmkit import Domain
    from pgmkit.inference.marginal_oracle import MarginalOracle

    side = 30 if small else 100
    shapes = {"pair": {"a": side * 10, "b": side * 10}, "triple": dict.fromkeys("abc", side)}
    if not small:
        shapes["triple of 1e8"] = dict.fromkeys("abc", 464)
    found: Found = {}
    for name, sizes in shapes.items():
        oracle = MarginalOracle(Domain(sizes), [tuple(sizes)], device=device)
        potentials = torch.zeros(oracle.layout.cells, dtype=torch.float64, device=device)
        with oracle.session():
            seconds = least(partial(oracle.try_marginals, potentials), device)
            counted, _ = events(partial(oracle.try_marginals, potentials), device)
        library = least(partial(torch.sum, potentials), device)
        found[name] = {"pass s": seconds, "torch.sum s": library, **counted}
    return found


def many_models(device: str, small: bool) -> Found:
    """A thousand models of one structure at once, here and there."""
    from pgmkit import Domain, Measurement, estimate_many

    domain, rng = Domain(dict.fromkeys("abcdef", 4)), np.random.default_rng(0)
    pairs = list(itertools.pairwise(domain))
    draws = [
        [Measurement(pair, rng.normal(60.0, 5.0, 16), 5.0) for pair in pairs]
        for _ in range(20 if small else 1000)
    ]
    found: Found = {}
    for where in ("cpu", device):
        for call in ("first", "second"):
            begun = time.perf_counter()
            models = list(estimate_many(domain, draws, total=960.0, device=where))
            found[f"{where} {call} s"] = time.perf_counter() - begun
        found[f"{where} loss"] = sum(model.loss for model in models)
    assert abs(found["cpu loss"] / found[f"{device} loss"] - 1) < 1e-3, found
    return found


def methods(device: str, small: bool) -> Found:
    """The time of an iteration by each method, and its launches, waits and copies."""
    found: Found = {}
    for name in ("boolean",) if small else known(("triangle", "grid")):
        search(name, device=device, max_seconds=0.1)  # the first search of a process loads CUDA
        for method in ("accelerated", "proximal", "mirror_descent"):
            options: Found = {"device": device, "tolerance": 0.0, "method": method}
            seconds, model = search(name, **options, max_seconds=0.1 if small else 1.0)
            row: Found = {"iterations": model.iterations}
            row["s per iteration"] = seconds / max(model.iterations, 1)
            options["max_seconds"] = 0.15
            counted, (_, model) = events(partial(search, name, **options), device)
            count = max(model.iterations, 1)
            row |= {f"{key} per iteration": number / count for key, number in counted.items()}
            found[f"{name} {method}"] = row
    return found


TRAINED: dict[str, dict[str, Any]] = {
    "gem": {"rounds": 4, "steps": 40},
    "gem-pub": {"rounds": 4, "steps": 40, "pretrain_steps": 40},
    "rap": {"rounds": 4, "steps": 100},
    "rap-softmax": {"rounds": 4, "steps": 100},
    "rap++": {"rounds": 4, "steps": 100, "temperatures": (2.0, 8.0)},
}
"""Fewer rounds than by default, so that the processor's side ends within seconds."""


def releases(device: str, small: bool) -> Found:
    """A seeded release by each mechanism that takes a device, here and there.

    Times of a second call each, and the largest difference of pairs of attributes in records.
    """
    from mechanisms.datasets.census import census
    from mechanisms.dispatch import run
    from mechanisms.registry import MECHANISMS, configure
    from mechanisms.workload import k_way

    names = ("education", "sex", "income") if small else tuple(census(1).domain)[:7]
    data, public = (census(rows, seed=k).project(names) for k, rows in ((0, 20_000), (7, 500)))
    workload = k_way(data.domain, 2)
    taking = [
        name for name in MECHANISMS
        if any(field.name == "device" for field in fields(configure(name)[1]))
    ]  # fmt: skip
    found: Found = {}
    for name in ("mst", "independent") if small else taking:
        row: Found = {}
        tables = []
        try:
            for where in ("cpu", device):
                for call in ("first", "second"):
                    begun = time.perf_counter()
                    release = run(
                        configure(name, **TRAINED.get(name, {}), device=where)[1],
                        data, workload, 1.0, 1e-6, neighbours="replace-one",
                        public=public if MECHANISMS[name].public else None, seed=3,
                    )  # fmt: skip
                    row[f"{where} {call} s"] = time.perf_counter() - begun
                tables.append(release.model.marginals(workload.cliques))
            here, there = tables
            row["apart"] = max(float(np.abs(here[c] - there[c]).max()) for c in here)
        except Exception as error:  # the others are worth trying
            row["failed"] = f"{type(error).__name__}: {error}"[:600]
        found[name] = row
    return found


def profile(device: str, small: bool) -> Found:
    """Where the time of a search goes: the operations that take longest, as torch has them."""
    from torch.profiler import ProfilerActivity

    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * is_real(device)
    with torch.profiler.profile(activities=activities) as seen:
        passes(device) if small else search("grid", device=device, tolerance=0.0, max_seconds=0.4)
    key = "self_device_time_total" if is_real(device) else "self_cpu_time_total"
    return {"table": str(seen.key_averages().table(sort_by=key, row_limit=15))}


def compare(
    worst: dict[str, float], name: str, found: torch.Tensor, expected: torch.Tensor, bound: float
) -> None:
    """Keep the largest difference relative to the largest number; AssertionError beyond `bound`."""
    scale = expected[expected.isfinite()].abs().max().clamp_min(1.0)
    difference = float(((found.cpu() - expected).abs() / scale).nan_to_num(0.0).max())
    worst[name] = max(worst.get(name, 0.0), difference)
    assert difference <= bound, f"{name} is off by {difference:.3g}, shape {tuple(expected.shape)}"


def events(work: Callable[[], Any], device: str) -> tuple[Found, Any]:
    """Launches, waits and copies of one call, as torch's profiler counts them on a GPU, and what
    the call returned.
    """
    if not is_real(device):
        return {}, work()
    with torch.profiler.profile() as seen:
        found = work()
        torch.cuda.synchronize()
    averages = seen.key_averages()
    counts = {each.key: each.count for each in averages}
    return {
        "launches": sum(counts.get(name, 0) for name in LAUNCHES),
        "waits": sum(counts.get(name, 0) for name in WAITS) - 1,  # the last is ours
        "copies": counts.get("cudaMemcpyAsync", 0),
        "device s": sum(each.self_device_time_total for each in averages) / 1e6,
    }, found


def least(work: Callable[[], object], device: str) -> float:
    """The least wall time of ten calls after two, each waited for."""
    seconds = []
    for _ in range(12):
        begun = time.perf_counter()
        work()
        if is_real(device):
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return min(seconds[2:])


def known(names: tuple[str, ...]) -> list[str]:
    """The problems that are at hand: stored ones need a folder."""
    found = []
    for name in names:
        try:
            problems.load(name, 0)
        except (OSError, SystemExit):
            continue
        found.append(name)
    return found


def is_real(device: str) -> bool:
    """True on a CUDA build of torch; a GPU that pretends has none behind it."""
    return device != "cpu" and torch.version.cuda is not None


def which(tool: str) -> str | None:
    return shutil.which(tool) or shutil.which(tool, path="/usr/local/cuda/bin")


STEPS: dict[str, Callable[[str, bool], Found]] = {
    each.__name__: each
    for each in (
        versions,
        kernels,
        estimates,
        long_sums,
        many_models,
        methods,
        releases,
        profile,
        sanitizer,
    )
}

if __name__ == "__main__":
    serve(
        lambda request: {
            **STEPS[request["step"]](request["device"], request["small"]),
            "peak_rss_mb": peak_rss_mb(),
        }
    )
