"""Estimation from noisy marginals: pgmkit beside ``mbi`` on seven problems, three noise draws each.

    python -m benchmarks.estimation [--problems star wide] [--seeds 0 1 2] [--peer cached]
        [--records FILE]

Every figure is of a process of its own. The peer runs mirror descent for 1,000 iterations, twice in
one process. pgmkit runs in three ways: with its defaults, two calls in a process as the peer; with
the tolerance that the peer's loss amounts to, two calls again; and for ``--seconds`` at a tolerance
of zero, which shows how fast the loss and its certificate go down.
Prints tables, writes ``results/estimation.json`` and ``results/estimation.svg``, and keeps in
``best_losses.json`` the lowest loss that anybody has reached on each problem.

Takes 35 (the peer alone) CPU minutes.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from benchmarks import problems
from benchmarks.common import (
    RESULTS,
    command_line,
    fresh_process,
    machine,
    parse_sides,
    read_results,
    table,
    write_results,
)

BEST = RESULTS.parent / "best_losses.json"
ITERATIONS = 1000

TIMES = (
    "problem", "peer 1st s", "peer 2nd s", "to peer's loss: cold s", "2nd s",
    "cold: x peer 1st", "cold: x peer 2nd", "2nd: x peer 2nd",
    "to 1% of best s", "gap <= 1% s",
)  # fmt: skip
QUALITY = (
    "problem", "best known", "peer loss", "default: cold s", "2nd s", "loss", "gap", "passes",
    "long run: loss", "long run: gap", "unmeasured TV", "peer's", "RSS MB", "peer RSS MB",
)  # fmt: skip


def run_peer(name: str, seed: int, python: str) -> dict[str, Any]:
    request = {"job": "estimation", "name": name, "seed": seed, "iterations": ITERATIONS}
    return fresh_process("benchmarks.peer", request, python)


def run_ours(name: str, seed: int, calls: int, **options: Any) -> dict[str, Any]:
    request = {
        "job": "estimation", "name": name, "seed": seed, "calls": calls, "options": options,
    }  # fmt: skip
    return fresh_process("benchmarks.ours", request)


def run_all_ways(
    name: str, seed: int, peer: dict[str, Any] | None, seconds: float
) -> dict[str, Any]:
    """The peer's figures and our three runs on one problem."""
    default = run_ours(name, seed, calls=2)
    return {
        "peer": peer,
        "default": default,
        "target": run_to_peer(name, seed, peer, default["calls"][-1]["loss"]) if peer else None,
        "long": run_ours(name, seed, calls=1, tolerance=0.0, max_seconds=seconds),
    }


def run_to_peer(name: str, seed: int, peer: dict[str, Any], optimum: float) -> dict[str, Any]:
    """Ours, told to stop as far above the optimum as the peer ends, in units of the tolerance."""
    cells = sum(values.size for values in problems.load(name, seed).values)
    tolerance = max(0.0, peer["loss"] - optimum) / math.sqrt(cells / 2)
    return run_ours(name, seed, calls=2, tolerance=tolerance)


def time_to_loss(call: dict[str, Any], target: float) -> float | None:
    """Seconds from the call until a model of at most that loss could have been returned.

    The time of the first report at the target, and what this call spent between its last report
    and its return; the whole call if only the returned model is that good.
    """
    closing = call["seconds"] - call["trace"][-1][0] if call["trace"] else 0.0
    for seconds, loss, _ in call["trace"]:
        if loss <= target:
            return min(float(seconds + closing), float(call["seconds"]))
    return float(call["seconds"]) if call["loss"] <= target else None


def time_to_gap(call: dict[str, Any], fraction: float) -> float | None:
    """Seconds from the call to the first report whose certified gap is that part of the loss."""
    for seconds, loss, gap in call["trace"]:
        if gap <= fraction * loss:
            return float(seconds)
    return None


def best_known(records: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The stored best losses, lowered by what the runs reached, and the highest certified bound."""
    known: dict[str, dict[str, Any]] = json.loads(BEST.read_text()) if BEST.exists() else {}
    for key, record in records.items():
        entry = known.setdefault(key, {"loss": float("inf"), "by": "", "bound": 0.0})
        reached = [("peer", record["peer"]["loss"])] if record.get("peer") else []
        for call in [*record["default"]["calls"], *record["long"]["calls"]]:
            reached.append(("pgmkit", call["loss"]))
            entry["bound"] = max(entry["bound"], call["loss"] - call["gap"])
        for by, loss in reached:
            if loss < entry["loss"]:
                entry.update(loss=loss, by=by)
    BEST.write_text(json.dumps(known, indent=1) + "\n")
    return known


def ratio(slow: float | None, fast: float | None) -> float | None:
    return slow / fast if slow is not None and fast is not None else None


def rows(
    records: dict[str, dict[str, Any]], known: dict[str, dict[str, Any]]
) -> tuple[list[list[Any]], list[list[Any]]]:
    """The rows of the two tables."""
    times, quality = [], []
    for key, record in records.items():
        default, long, peer = record["default"], record["long"], record.get("peer") or {}
        first, second = default["calls"]
        target_first, target_second = (record["target"] or default)["calls"]
        last, best = long["calls"][0], known[key]["loss"]
        target = peer.get("loss", -1.0)
        cold, warm = time_to_loss(target_first, target), time_to_loss(target_second, target)
        peer_first, peer_second = peer.get("first_seconds"), peer.get("second_seconds")
        times.append([
            key, peer_first, peer_second, cold, warm, ratio(peer_first, cold),
            ratio(peer_second, cold), ratio(peer_second, warm),
            time_to_loss(last, 1.01 * best), time_to_gap(last, 0.01),
        ])  # fmt: skip
        quality.append([
            key, best, peer.get("loss"), first["seconds"], second["seconds"], second["loss"],
            second["gap"], second["iterations"], last["loss"], last["gap"],
            second["unmeasured"], peer.get("unmeasured"),
            default["peak_rss_mb"], peer.get("peak_rss_mb"),
        ])  # fmt: skip
    return times, quality


def _place(key: str) -> tuple[int, int]:
    name, seed = key.split("/")
    return problems.NAMES.index(name), int(seed)


def plot(records: dict[str, dict[str, Any]], known: dict[str, dict[str, Any]]) -> None:
    """Loss above the certified bound over time, both sides, for the stored noise."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    shown = [key for key in records if key.endswith("/0")] or list(records)
    columns = min(4, len(shown))
    rows_of_plots = -(-len(shown) // columns)
    size = (3.4 * columns, 3.4 * rows_of_plots)
    figure, axes = pyplot.subplots(rows_of_plots, columns, figsize=size, squeeze=False)
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    for axis, key in zip(axes.flat, shown, strict=False):
        record, bound = records[key], known[key]["bound"]
        last, peer = record["long"]["calls"][0], record.get("peer")
        lines = [("pgmkit, cold", [(t, loss) for t, loss, _ in last["trace"]], "C0-")]
        if peer:
            losses = [loss for _, loss in peer["trace"]]
            first = list(zip(peer["first_times"], losses, strict=True))
            lines += [
                ("mbi, first call", first, "C1--"),
                ("mbi, second call", peer["trace"], "C1-"),
            ]
        for label, points, style in lines:
            above = [(seconds, loss - bound) for seconds, loss in points if loss > bound]
            axis.plot([t for t, _ in above], [loss for _, loss in above], style, label=label)
        axis.set(title=key, xlabel="seconds from the call", xscale="log", yscale="log")
    for row in axes:
        row[0].set_ylabel("loss above the certified bound")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(RESULTS / "estimation.svg", metadata={"Date": None})


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--problems", nargs="+", choices=problems.NAMES, default=problems.NAMES)
    parser.add_argument("--seeds", nargs="+", type=int, default=problems.SEEDS)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the long runs")
    parser.add_argument(
        "--records",
        type=Path,
        help="keep what was measured in this file, and do not measure again what is in it",
    )
    arguments = parse_sides(parser)
    kept = arguments.records
    cached = read_results("peer_estimation").get("records", {})
    records: dict[str, dict[str, Any]] = {}
    if kept and kept.exists():
        records = json.loads(kept.read_text())
    for name in arguments.problems:
        for seed in arguments.seeds:
            key = f"{name}/{seed}"
            if key in records:
                continue
            print(f"{key} ...", file=sys.stderr, flush=True)
            if arguments.peer == "run":
                side = run_peer(name, seed, arguments.peer_python)
                cached[key] = {**side, "machine": machine()}
                write_results("peer_estimation", {"records": cached})
            peer = None if arguments.peer == "skip" else cached.get(key)
            records[key] = run_all_ways(name, seed, peer, arguments.seconds)
            if kept:
                kept.write_text(json.dumps(records))
    records = {key: records[key] for key in sorted(records, key=_place)}
    known = best_known(records)
    times, quality = rows(records, known)
    print(table(TIMES, times), table(QUALITY, quality), sep="\n\n")
    write_results(
        "estimation",
        {
            "machine": machine(),
            "peer": arguments.peer,
            "times": [dict(zip(TIMES, row, strict=True)) for row in times],
            "quality": [dict(zip(QUALITY, row, strict=True)) for row in quality],
        },
    )
    plot(records, known)


if __name__ == "__main__":
    main()
