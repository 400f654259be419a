"""What a CUDA GPU gives, beside the processor of the same machine.

    python -m benchmarks.gpu [--problems star wide] [--seeds 0]
    python -m benchmarks.gpu --device cpu --small    # all of it without a GPU: that it works

Estimation in double and single precision; passes of one and of a hundred sets of potentials; steps
of a search, captured as a graph; cliques of 1e7 and 1e8 cells as a share of the device's copy
bandwidth; searches of growing sizes; releases of GEM, RAP and AIM; histograms; counting; sampling.
Each figure is of a process of its own. "to 1%" is the time to within 1% of the best loss known,
which is kept in ``best_losses.json``. Where mbi and a CUDA build of jax are installed, mbi
estimates on the same GPU. Prints tables, writes ``results/gpu.json`` (with the GPU's name) and
``results/gpu.svg`` (``--small``: prints only). Without CUDA it says so and ends.

How long it takes has not been recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from benchmarks import problems
from benchmarks.common import RESULTS, command_line, fresh_process, machine, table, write_results
from benchmarks.estimation import BEST, run_ours, time_to_loss

COPY_BYTES = 1 << 30
HEADER = (
    "problem", "device", "1st call s", "2nd call s", "to 1% s", "loss", "gap", "passes",
    "GPU MB", "RSS MB",
)  # fmt: skip
GEM = {"rounds": 2, "steps": 30, "hidden": [1024, 1024], "noise_width": 512}
RAP = {"rounds": 2, "steps": 100}


def sides(device: str) -> dict[str, dict[str, Any]]:
    """What ``estimate`` is given: the device in both precisions, and the processor beside it."""
    chosen: dict[str, dict[str, Any]] = {
        f"{device} float64": {"device": device},
        f"{device} float32": {"device": device, "dtype": "float32"},
    }
    return chosen | {"cpu float64": {"device": "cpu"}}


def row(key: str, side: str, answer: dict[str, Any], best: float | None) -> list[Any]:
    first, second = answer["calls"]
    near = None if best is None else time_to_loss(second, 1.01 * best)
    return [
        key, side, first["seconds"], second["seconds"], near, second["loss"], second["gap"],
        second["iterations"], answer.get("peak_gpu_mb"), answer["peak_rss_mb"],
    ]  # fmt: skip


def estimation(arguments: argparse.Namespace) -> list[list[Any]]:
    """Every problem on every side."""
    best = json.loads(BEST.read_text()) if BEST.exists() else {}
    rows = []
    for name in arguments.problems:
        for seed in arguments.seeds:
            for side, options in sides(arguments.device).items():
                key = f"{name}/{seed}"
                said(f"{key} {side}")
                answer = run_ours(name, seed, calls=2, **options)
                rows.append(row(key, side, answer, best.get(key, {}).get("loss")))
            if on_gpu(arguments.device) and has_jax_with_cuda():
                said(f"{name}/{seed} mbi")
                rows.append(peer(name, seed))
    return rows


def peer(name: str, seed: int) -> list[Any]:
    """mbi on the GPU that jax finds, for a thousand iterations of its mirror descent."""
    request = {"job": "estimation", "name": name, "seed": seed, "calls": 2, "iterations": 1000}
    answer = fresh_process("benchmarks.peer", request)
    first, second = answer["calls"]
    key, side = f"{name}/{seed}", "mbi, jax on CUDA"
    return [
        key, side, first["seconds"], second["seconds"], None, second["loss"], None, None, None,
        answer.get("peak_rss_mb"),
    ]  # fmt: skip


def releases(small: bool) -> dict[str, dict[str, Any]]:
    """Releases whose models or networks are large."""
    few = {"rounds": 1, "steps": 2}
    one = {"job": "release", "rows": 20_000, "epsilon": 1.0}
    return {
        "GEM as wide as the paper's": {
            **one, "mechanism": "gem", "settings": GEM | few if small else GEM,
        },
        "RAP": {**one, "mechanism": "rap", "settings": RAP | few if small else RAP},
        "AIM with models of 80 MB": {
            **one, "mechanism": "aim", "settings": {"model_mb": 0.1 if small else 80},
            "rows": 500 if small else 50_000, "epsilon": 1.0 if small else 10.0,
        },
    }  # fmt: skip


def works(small: bool) -> dict[str, dict[str, Any]]:
    """Everything but estimation: what is done, and with how much."""
    rows, attributes = (10**5, 12) if small else (10**7, 24)
    found: dict[str, dict[str, Any]] = {
        f"clique of {cells:.0e} cells": {"job": "clique", "cells": cells}
        for cells in ((10**4, 10**5) if small else (10**7, 10**8))
    }
    for name in ("tree",) if small else ("star", "tree", "dense", "triangle"):
        for batch in (1, 100):
            key = f"pass of {name}, each of {batch}"
            found[key] = {"job": "passes", "name": name, "batch": batch}
        found[f"step of {name}"] = {"job": "steps", "name": name}
    for shape, many in (("cycle", (20, 80, 160, 320)), ("chain", (320, 1000))):
        for values in (6,) if small else many:
            key = f"search of a {shape}, {values} values"
            found[key] = {"job": "search", "shape": shape, "values": values}
    found |= releases(small)
    found[f"histogram of 2^{attributes} weights"] = {"job": "histogram", "attributes": attributes}
    found[f"counting all pairs of {rows:,} rows"] = {"job": "counting", "rows": rows}
    drawn = 10**5 if small else 10**7
    found[f"sampling {drawn:,} records"] = {"job": "sampling", "rows": drawn}
    return found


def timed(arguments: argparse.Namespace, bandwidth: float) -> list[list[Any]]:
    """Every work on the device and on the processor."""
    rows = []
    for key, request in works(arguments.small).items():
        seconds, share = [], None
        for device in (arguments.device, "cpu"):
            said(f"{key} {device}")
            answer = fresh_process("benchmarks.gpu_work", {**request, "device": device})
            seconds.append(answer["seconds"])
            if "moved_gb" in answer and device == arguments.device:
                share = answer["moved_gb"] / answer["seconds"] / bandwidth
        rows.append([key, *seconds, seconds[1] / seconds[0], share])
    return rows


def on_gpu(device: str) -> bool:
    return device.partition(":")[0] == "cuda"


def has_jax_with_cuda() -> bool:
    """Whether mbi can be run on a GPU here, asked of a process that jax may take memory in."""
    question = "import mbi, jax; assert jax.devices('gpu')"
    done = subprocess.run([sys.executable, "-c", question], capture_output=True, check=False)
    return done.returncode == 0


def said(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)


def plot(rows: list[list[Any]], gpu: str) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    keys = list(dict.fromkeys(row[0] for row in rows))
    figure, axis = pyplot.subplots(figsize=(1.6 + 1.1 * len(keys), 3.2))
    for offset, side in enumerate(dict.fromkeys(row[1] for row in rows)):
        heights = {row[0]: row[3] for row in rows if row[1] == side}
        places = [i + 0.2 * (offset - 1) for i, key in enumerate(keys) if key in heights]
        axis.bar(places, list(heights.values()), 0.19, label=side)
    axis.set_xticks(range(len(keys)), keys)
    axis.set(yscale="log", ylabel="seconds, second call", title=gpu)
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(RESULTS / "gpu.svg", metadata={"Date": None})


def asked() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--problems", nargs="+", choices=problems.NAMES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 and so on, or cpu")
    parser.add_argument("--small", action="store_true", help="little of everything, as a proof")
    arguments = parser.parse_args()
    if arguments.problems is None:
        arguments.problems = ["star"] if arguments.small else problems.NAMES
    return arguments


def main() -> None:
    arguments = asked()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line has it
    import torch

    if on_gpu(arguments.device) and not torch.cuda.is_available():
        print(
            f"no CUDA GPU: torch {torch.__version__} finds none. Run this on a machine with one "
            "and a CUDA build of torch, or with --device cpu --small"
        )
        return
    copied = COPY_BYTES // 16 if arguments.small else COPY_BYTES
    request = {"job": "copy_bandwidth", "bytes": copied, "device": arguments.device}
    bandwidth = fresh_process("benchmarks.gpu_work", request)
    estimated = estimation(arguments)
    others = timed(arguments, bandwidth["copy_gb_per_second"])
    header = ("work", f"{arguments.device} s", "cpu s", "ratio", "share of copy bandwidth")
    print(f"{bandwidth['card']}: copies {bandwidth['copy_gb_per_second']:.0f} GB/s\n")
    print(table(HEADER, estimated), table(header, others), sep="\n\n")
    if arguments.small:
        return
    records = [dict(zip(HEADER, values, strict=True)) for values in estimated]
    more = [dict(zip(header, values, strict=True)) for values in others]
    write_results("gpu", {"machine": machine(), **bandwidth, "rows": records, "works": more})
    plot(estimated, bandwidth["card"])


if __name__ == "__main__":
    main()
