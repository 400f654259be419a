"""The peer's AIM beside "auto" and "aim", on coded tables of `benchmarks.regret` at epsilon 1.

    PGMKIT_PEER_AIM=/path/to/mbi/mechanisms/aim.py python -m benchmarks.peer_aim
        --peer-python /path/to/python --commit 361705d [--tables carData/Chile,AER/HMDA]
    python -m benchmarks.peer_aim --report        # run nothing, print the table

The script is the one in the folder ``mechanisms`` of the repository ryan112358/mbi; it runs as it
stands, with its defaults (a model of 80 MB, at most 1000 iterations). Both sides get the same
codes, all pairs as the workload, add/remove neighbours and delta = 1/n^2, and are judged by their
records: mean total variation of all pairs, and of triples as in `benchmarks.regret`. The peer
spends by zero-concentrated privacy, as "aim" does; "auto" has the accounting that needs the least
noise. A run of the peer that takes more CPU seconds than the cap is a line that says so. Seconds
are CPU seconds of one process a run, from the first import of the library to the records. Lines
are kept in ``results/peer_aim.jsonl``; what is there is not run again, but pgmkit's side is where
its code has changed.

Takes 14 CPU minutes.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import regret
from benchmarks.common import RESULTS, code_state, command_line, fresh_process, serve, table

LINES = RESULTS / "peer_aim.jsonl"
EPSILON = 1.0
TABLES = (
    "carData/Chile", "AER/CPS1988", "carData/Arrests", "ISLR/Wage", "AER/HMDA", "AER/DoctorVisits",
    "pgmkit/census", "AER/Affairs",
)  # fmt: skip
OURS = ("auto", "mixture", "aim")
_KEYS = ("pairs", "triples")


def peer(name: str, seed: int, python: str, commit: str, cap: int) -> dict[str, Any]:
    """One run of the peer's script on a table: the errors of its records."""
    from pgmkit import Dataset

    script = os.environ.get("PGMKIT_PEER_AIM", "")
    if not Path(script).is_file():
        raise SystemExit("PGMKIT_PEER_AIM must be the path of the peer's mechanisms/aim.py")
    data = regret.load(name)
    request = {
        "script": str(Path(script).resolve()),
        "sizes": dict(data.domain.sizes),
        "codes": {each: data.columns[each].tolist() for each in data.domain},
        "epsilon": EPSILON,
        "delta": len(data) ** -2,
        "seed": seed,
        "cap": cap,
    }
    found = fresh_process("benchmarks.peer_aim_run", request, python)
    if "over" in found:
        return {**found, "commit": commit}
    codes = found.pop("records")
    records = Dataset(data.domain, {each: np.asarray(codes[each]) for each in data.domain})
    return {**judged(data, records), **found, "commit": commit}


def ours(name: str, side: str, seed: int) -> dict[str, Any]:
    """One run of pgmkit in a process of its own."""
    found = fresh_process("benchmarks.peer_aim", {"table": name, "side": side, "seed": seed})
    return {**found, "code": code_state()}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The worker of `ours`; seconds count from the first import of the package's room."""
    data = regret.load(request["table"])
    started = time.perf_counter(), time.process_time()
    from mechanisms import synthesize
    from pgmkit import Schema

    release = synthesize(
        data,
        Schema.from_dict(data.domain.sizes),
        epsilon=EPSILON,
        delta=len(data) ** -2,
        mechanism=request["side"],
        seed=request["seed"],
    ).release
    records = release.sample(len(data), rng=request["seed"])
    seconds, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
    times = {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}
    return {**judged(data, records), **times, "ran": release.mechanism}


def runs_of_peer() -> list[dict[str, Any]]:
    """The peer's runs so far."""
    return [run for run in regret.read(LINES) if run["side"] == "peer"]


def judged(data: Any, records: Any) -> dict[str, Any]:
    """Errors of records, as `benchmarks.regret` has them."""
    pairs, triples = regret.variations(data, records, 2), regret.variations(data, records, 3)
    return {
        "rows": len(data),
        "columns": len(data.domain),
        "pairs": float(pairs.mean()),
        "worst_pair": float(pairs.max()),
        "triples": float(triples.mean()),
    }


def report(runs: Sequence[dict[str, Any]]) -> str:
    """A line a table and a side: mean errors over the seeds, CPU seconds, and both over the peer's.

    Of pgmkit the lines of its last code.
    """
    code = next((run["code"] for run in reversed(runs) if "code" in run), None)
    current = [run for run in runs if run.get("code", code) == code]
    rows = []
    for name, side in itertools.product(TABLES, ("peer", *OURS)):
        means, theirs = (_means(current, name, each) for each in (side, "peer"))
        if not means or not theirs:
            continue
        late = "" if np.isfinite(theirs["pairs"]) else "> "
        errors = [means[key] for key in _KEYS]
        shown = [f"{error:.4f}" if np.isfinite(error) else "late" for error in errors]
        ratios = ["" if late else f"{means[key] / theirs[key]:.2f}" for key in _KEYS]
        faster = f"{late}{theirs['cpu_seconds'] / means['cpu_seconds']:.0f}"
        seconds = f"{means['cpu_seconds']:.1f}"
        rows.append([name, side, int(means["runs"]), *shown, seconds, *ratios, faster])
    figures = ("pairs", "triples", "CPU s", "pairs/peer's", "triples/peer's", "times as fast")
    return table(("table", "side", "runs", *figures), rows)


def _means(runs: Sequence[dict[str, Any]], name: str, side: str) -> dict[str, float]:
    found = [run for run in runs if (run["table"], run["side"]) == (name, side)]
    if not found:
        return {}
    means = {key: float(np.mean([run.get(key, np.inf) for run in found])) for key in _KEYS}
    seconds = float(np.mean([run.get("cpu_seconds", run.get("over")) for run in found]))
    return {"runs": len(found), **means, "cpu_seconds": seconds}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--peer-python", default=sys.executable, help="the one that has mbi")
    parser.add_argument("--commit", default="", help="of the repository the script comes from")
    parser.add_argument("--sides", default="peer," + ",".join(OURS))
    parser.add_argument("--seeds", default="1,2,3", help="the peer runs the first of them alone")
    parser.add_argument("--cap", type=int, default=1500, help="CPU seconds of the peer's run")
    parser.add_argument("--report", action="store_true")
    chosen = parser.parse_args()
    seeds = [int(each) for each in chosen.seeds.split(",")]
    code = code_state()
    done = {(r["table"], r["side"], r["seed"], r.get("code", code)) for r in regret.read(LINES)}
    for name, side in itertools.product(chosen.tables.split(","), chosen.sides.split(",")):
        for seed in seeds[:1] if side == "peer" else seeds:
            if chosen.report or (name, side, seed, code) in done:
                continue
            if side == "peer":
                found = peer(name, seed, chosen.peer_python, chosen.commit, chosen.cap)
            else:
                found = ours(name, side, seed)
            line = {"table": name, "side": side, "epsilon": EPSILON, "seed": seed, **found}
            with LINES.open("a") as lines:
                lines.write(json.dumps(line) + "\n")
    print(report(regret.read(LINES)))


if __name__ == "__main__":
    serve(answer) if sys.argv[1:2] and sys.argv[1].endswith(".json") else main()
