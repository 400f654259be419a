"""The estimation problems on a CUDA card, in double and single precision, beside the CPU.

    python -m benchmarks.gpu [--problems star wide] [--seeds 0]

Each figure is of a process of its own, first and second call, with the card's copy bandwidth
measured beside it. "to 1%" is the time to within 1% of the best loss known, which is kept in
``best_losses.json``. Prints a table, writes ``results/gpu.json`` and ``results/gpu.svg``. Without
CUDA it says so and ends.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks import problems
from benchmarks.common import RESULTS, fresh_process, machine, table, write_results
from benchmarks.estimation import BEST, run_ours, time_to_loss

SIDES = {
    "cuda float64": {"device": "cuda"},
    "cuda float32": {"device": "cuda", "dtype": "float32"},
    "cpu float64": {"device": "cpu"},
}
COPY_BYTES = 1 << 30
HEADER = (
    "problem", "device", "1st call s", "2nd call s", "to 1% s", "loss", "gap", "passes",
    "GPU MB", "RSS MB",
)  # fmt: skip


def row(key: str, side: str, answer: dict[str, Any], best: float | None) -> list[Any]:
    first, second = answer["calls"]
    near = None if best is None else time_to_loss(second, 1.01 * best)
    return [
        key, side, first["seconds"], second["seconds"], near, second["loss"], second["gap"],
        second["iterations"], answer.get("peak_gpu_mb"), answer["peak_rss_mb"],
    ]  # fmt: skip


def plot(rows: list[list[Any]], card: str) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    keys = list(dict.fromkeys(row[0] for row in rows))
    figure, axis = pyplot.subplots(figsize=(1.6 + 1.1 * len(keys), 3.2))
    for offset, side in enumerate(SIDES):
        heights = [row[3] for row in rows if row[1] == side]
        axis.bar([i + 0.27 * (offset - 1) for i in range(len(keys))], heights, 0.26, label=side)
    axis.set_xticks(range(len(keys)), keys)
    axis.set(yscale="log", ylabel="seconds, second call", title=card)
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(RESULTS / "gpu.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", nargs="+", choices=problems.NAMES, default=problems.NAMES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    arguments = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit(
            "no CUDA card: torch.cuda.is_available() is false. Run this on a machine with a card "
            f"and a CUDA build of torch (this is torch {torch.__version__})."
        )
    bandwidth = fresh_process("benchmarks.ours", {"job": "copy_bandwidth", "bytes": COPY_BYTES})
    best = json.loads(BEST.read_text()) if BEST.exists() else {}
    rows = []
    for name in arguments.problems:
        for seed in arguments.seeds:
            for side, options in SIDES.items():
                key = f"{name}/{seed}"
                print(f"{key} {side} ...", file=sys.stderr, flush=True)
                answer = run_ours(name, seed, calls=2, **options)
                rows.append(row(key, side, answer, best.get(key, {}).get("loss")))
    print(f"{bandwidth['card']}: copies {bandwidth['copy_gb_per_second']:.0f} GB/s\n")
    print(table(HEADER, rows))
    write_results(
        "gpu",
        {
            "machine": machine(),
            **bandwidth,
            "rows": [dict(zip(HEADER, values, strict=True)) for values in rows],
        },
    )
    plot(rows, bandwidth["card"])


if __name__ == "__main__":
    main()
