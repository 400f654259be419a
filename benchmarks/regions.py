"""Trees that do not fit: region models beside the peer's approximate oracle.

``python -m benchmarks.regions`` writes ``results/regions.json``, one problem after the other, and
goes on where it stopped. The peer's step is the best of ``STEPS`` by its loss.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks.common import fresh_process, machine, read_results, table, write_results
from benchmarks.region_problems import NAMES, RECORDS, SIGMA

STEPS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Of the peer's mirror descent, in units of the noise's variance over the records."""


def main() -> None:
    """Run what is asked for and print the tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.regions", description=__doc__)
    parser.add_argument("--only", choices=NAMES, action="append", help="default: all problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=1000, help="of the peer (its default)")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--peer", choices=("run", "skip"), default="run")
    parser.add_argument("--again", action="store_true", help="run what has been run")
    asked = parser.parse_args()
    results = read_results("regions") or {"machine": machine(), "problems": {}}
    for name in asked.only or NAMES:
        known = results["problems"].setdefault(f"{name}/{asked.seed}", {})
        request = {"name": name, "seed": asked.seed}
        if asked.again or "own" not in known:
            known["own"] = fresh_process("benchmarks.regions_run", request)
            write_results("regions", results)
        if asked.peer == "run" and (asked.again or "peer" not in known):
            known["peer"] = _peer(request, asked)
            write_results("regions", results)
    print(_report(results["problems"]))


def _peer(request: dict[str, Any], asked: argparse.Namespace) -> dict[str, Any]:
    """The step with the lowest loss, and what every step reached."""
    tried = []
    for share in STEPS:
        step = {"step": share * SIGMA**2 / RECORDS, "iterations": asked.iterations}
        worker = "benchmarks.regions_peer"
        found = fresh_process(worker, {**request, **step}, asked.peer_python)
        tried.append({**found, "share": share, "iterations": asked.iterations})
    best = min(tried, key=lambda found: found["loss"] if found["loss"] > 0 else float("inf"))
    kept = ("share", "loss", "measured", "cpu_seconds")
    return {**best, "tried": [{key: each[key] for key in kept} for each in tried]}


def _report(problems: dict[str, Any]) -> str:
    fields = ("cpu_seconds", "loss", "measured", "peak_rss_mb")
    rows = []
    for name, sides in problems.items():
        own, peer = sides["own"], sides.get("peer", {})
        both = [
            f"{own[key]:.4g} / {peer[key]:.4g}" if peer else f"{own[key]:.4g}" for key in fields
        ]
        rest = [own[key] for key in ("noisy", "joint_cpu_seconds", "agreement", "unmeasured")]
        rows.append([name, *both, *rest, own["independent"]])
    header = ("problem", "CPU s", "loss", "measured TV", "MB", "noise TV", "joint CPU s")
    return table((*header, "agreement TV", "unmeasured TV", "independent TV"), rows)


if __name__ == "__main__":
    main()
