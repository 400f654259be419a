"""MWEM+PGM on ADULT, CSV to CSV: ``pgmkit synth`` beside the peer's script.

    python -m benchmarks.mwem_pgm [--seeds 0 1 2 3 4] [--peer skip]

All rows, add/remove neighbours, all pairs, 13 rounds, epsilon 1, delta 4.2e-10. Each run is a
process of its own, measured from outside: wall time from start to exit, imports included, and
peak memory. The error is the total variation between the synthetic table's pair marginals and the
real ones, averaged over the 78 pairs; it looks at the real rows, which only public data allows.
Prints a table, writes ``results/mwem_pgm.json`` and ``results/mwem_pgm.svg``.

Takes 4 minutes, nearly all of them the peer's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import adult
from benchmarks.common import (
    RESULTS,
    command_line,
    fresh_process,
    machine,
    parse_sides,
    read_results,
    table,
    with_repository,
    write_results,
)

EPSILON, DELTA, ROUNDS = 1.0, 4.2e-10, 13
QUOTED = {"wall": 178.0, "rss_mb": 3700.0, "variation": 0.0318}
"""The peer's script on another machine, as published with the problems."""

HEADER = ("side", "seed", "wall s", "peak RSS MB", "mean TV over pairs")


def measured(command: list[str]) -> dict[str, float]:
    """Run a command; its wall time and its peak resident memory, seen from outside."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=with_repository())
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status != 0:
        raise SystemExit(f"{' '.join(command)} failed with status {status}")
    unit = 1 if sys.platform == "darwin" else 1024
    return {"wall": wall, "rss_mb": usage.ru_maxrss * unit / 1e6}


def run_ours(data: adult.Adult, seed: int, folder: Path) -> dict[str, Any]:
    out = folder / f"ours-{seed}.csv"
    command = [
        sys.executable, "-c", "from mechanisms.cli import main; main()", "synth", str(data.csv),
        "--schema", str(data.schema), "--ignore-extra-columns", "--mechanism", "mwem+pgm",
        "--workload", "2", "--set", f"rounds={ROUNDS}", "--epsilon", str(EPSILON),
        "--delta", str(DELTA), "--seed", str(seed), "--out", str(out),
    ]  # fmt: skip
    figures: dict[str, Any] = measured(command)
    figures["variation"] = error(data, out)
    return figures


def run_peer(data: adult.Adult, seed: int, folder: Path, python: str) -> dict[str, Any]:
    from mechanisms.privacy.conversions import rho_from_epsilon

    out = folder / f"peer-{seed}.csv"
    header = data.csv.open().readline().strip().split(",")
    request = {
        "job": "mwem_pgm", "csv": str(data.csv), "domain": data.domain, "seed": seed,
        "columns": [header.index(name) for name in data.domain], "rounds": ROUNDS,
        "rho": rho_from_epsilon(EPSILON, DELTA), "limit_mb": 25, "out": str(out),
    }  # fmt: skip
    start = time.perf_counter()
    answer = fresh_process("benchmarks.peer", request, python)
    wall = time.perf_counter() - start
    return {"wall": wall, "rss_mb": answer["peak_rss_mb"], "variation": error(data, out)}


def error(data: adult.Adult, synthetic: Path) -> float:
    columns = adult.read_columns(synthetic, data.domain)
    return adult.mean_pair_variation(data.columns, columns, data.domain)


def mean(runs: dict[str, dict[str, Any]]) -> dict[str, float]:
    return {name: sum(run[name] for run in runs.values()) / len(runs) for name in QUOTED}


def plot(sides: dict[str, dict[str, dict[str, Any]]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(4.8, 3.2))
    for side, runs in sides.items():
        points = [(run["wall"], run["variation"]) for run in runs.values()]
        axis.plot(*zip(*points, strict=True), "o", label=side)
    axis.set(xscale="log", xlabel="seconds, CSV to CSV", ylabel="mean total variation, 78 pairs")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(RESULTS / "mwem_pgm.svg", metadata={"Date": None})


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5))
    parser.add_argument("--peer-seeds", nargs="+", type=int, default=[0])
    arguments = parse_sides(parser)
    data = adult.load()
    peer = {} if arguments.peer == "skip" else read_results("peer_mwem_pgm").get("runs", {})
    with tempfile.TemporaryDirectory() as folder:
        ours = {str(seed): run_ours(data, seed, Path(folder)) for seed in arguments.seeds}
        if arguments.peer == "run":
            peer = {
                str(seed): run_peer(data, seed, Path(folder), arguments.peer_python)
                for seed in arguments.peer_seeds
            }
            write_results("peer_mwem_pgm", {"machine": machine(), "runs": peer})
    sides = {"pgmkit": ours} | ({"mbi": peer} if peer else {})
    rows = [
        (side, seed, run["wall"], run["rss_mb"], run["variation"])
        for side, runs in sides.items()
        for seed, run in [*runs.items(), ("mean", mean(runs))]
    ]
    rows.append(("mbi, its script, another machine", "-", *QUOTED.values()))
    print(table(HEADER, rows))
    write_results(
        "mwem_pgm",
        {
            "machine": machine(),
            **sides,
            "means": {side: mean(runs) for side, runs in sides.items()},
        },
    )
    plot(sides)


if __name__ == "__main__":
    main()
