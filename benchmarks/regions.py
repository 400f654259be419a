"""Trees that do not fit: region models beside the peer's approximate oracle.

``python -m benchmarks.regions`` writes ``results/regions.json``, one problem after the other, and
goes on where it stopped. The peer's step is the one of ``STEPS`` whose measured tables come
nearest to the truth: its loss is no guide, as its tables may disagree and so fit better than any
tables that agree.

Takes 41 CPU minutes.
"""

from __future__ import annotations

import argparse
import sys
from math import inf, nan
from typing import Any

from benchmarks.common import (
    command_line,
    fresh_process,
    machine,
    read_results,
    table,
    write_results,
)
from benchmarks.region_problems import NAMES, RECORDS, SIGMA

STEPS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Of the peer's mirror descent, in units of the noise's variance over the records."""


def main() -> None:
    """Run what is asked for and print the tables."""
    parser = command_line(__doc__)
    parser.add_argument("--only", choices=NAMES, action="append", help="default: all problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=1000, help="of the peer (its default)")
    parser.add_argument("--step", type=float, action="append", help="of the peer; default: STEPS")
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
        for share in asked.step or STEPS if asked.peer == "run" else ():
            tried = known.setdefault("peer", [])
            if asked.again or share not in [each["share"] for each in tried]:
                tried.append(_peer(request, share, asked))
                write_results("regions", results)
    print(_report(results["problems"]))


def _peer(request: dict[str, Any], share: float, asked: argparse.Namespace) -> dict[str, Any]:
    step = {"step": share * SIGMA**2 / RECORDS, "iterations": asked.iterations}
    found = fresh_process("benchmarks.regions_peer", {**request, **step}, asked.peer_python)
    return {**found, "share": share, "iterations": asked.iterations}


def _nearest(tried: list[dict[str, Any]]) -> dict[str, Any]:
    """The step whose tables are nearest to the truth, which only a benchmark knows."""
    return min(tried, key=lambda found: found["measured"] if found["loss"] > 0 else inf)


def _report(problems: dict[str, Any]) -> str:
    fields = ("cpu_seconds", "loss", "measured", "peak_rss_mb")
    rows = []
    for name, sides in problems.items():
        own, peer = sides["own"], _nearest(sides["peer"]) if sides.get("peer") else {}
        both = [
            f"{own[key]:.4g} / {peer.get(key, nan):.4g}" if peer else f"{own[key]:.4g}"
            for key in fields
        ]
        rest = ("best", "noisy", "joint_cpu_seconds", "agreement", "unmeasured", "independent")
        rows.append([name, *both, *(own[key] for key in rest)])
    header = ("problem", "CPU s", "loss", "measured TV", "MB", "best fit TV", "noise TV")
    return table((*header, "joint CPU s", "agreement TV", "unmeasured TV", "independent TV"), rows)


if __name__ == "__main__":
    main()
