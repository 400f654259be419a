"""Other programs beside ours: same tables, epsilon, delta and neighbours, judged by their records.

    PGMKIT_ENVS=/path/to/environments PGMKIT_MBI=/path/to/mbi python -m benchmarks.arena
        [--tables adult,nltcs] [--contestants mst,dpmm-MST] [--cap 300] [--minutes 10]
    python -m benchmarks.arena --report     # run nothing, print the table

`PGMKIT_ENVS` holds an environment for each rival, made by ``python -m venv`` and ``pip install``:
``mbi``, ``dpmm``, and ``dpsynth``, which needs Python 3.12. `PGMKIT_MBI` is a copy of the
repository ryan112358/mbi. All rows, add/remove, epsilon 1, delta 1/n^2, all pairs as the workload.
A run that takes more CPU seconds than the cap is a line that says so. Lines are kept in
``results/arena.jsonl``, and what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, fresh_process, serve, table
from benchmarks.regret import variations
from benchmarks.settings import SETTINGS, load

LINES = RESULTS / "arena.jsonl"
EPSILON = 1.0
TABLES = {"adult-all": "income>50K", "nltcs": None, "salary": None}
"""The tables, and what a classifier is asked for."""
OURS = ("mixture", "aim", "mst", "clique-tree")
RIVALS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "mbi-AIM": ("mbi", "benchmarks.peer_aim_run", {"script": "aim.py"}),
    "mbi-MST": ("mbi", "benchmarks.rivals.mbi_mst", {"script": "mst.py"}),
    "dpmm-MST": ("dpmm", "benchmarks.rivals.dpmm_models", {"model": "MST"}),
    "dpmm-AIM": ("dpmm", "benchmarks.rivals.dpmm_models", {"model": "AIM"}),
    "dpmm-PrivBayes": ("dpmm", "benchmarks.rivals.dpmm_models", {"model": "PrivBayes"}),
    "dpsynth-SWIFT": ("dpsynth", "benchmarks.rivals.dpsynth_models", {"model": "SWIFT"}),
    "dpsynth-MST": ("dpsynth", "benchmarks.rivals.dpsynth_models", {"model": "MST"}),
    "dpsynth-AIM-GDP": ("dpsynth", "benchmarks.rivals.dpsynth_models", {"model": "AIM-GDP"}),
}
"""Environment, adapter and what is asked of it."""
NOT_RUN = {
    "dpsynth SWIFT, AIM-GDP": "SWIFT had no answer on nltcs after 330 CPU s; AIM-GDP not tried",
    "MargNet": "not tried; its requirements name CUDA packages",
    "Tab-PE": "not tried; its example fetches tables from the network",
    "ReM/GReM-LNN": "not tried; it is no package",
    "iterative-dp, RAP++ (the authors')": "not run here; see docs/reproduction.md",
}
MEASURES = ("pairs", "largest pair", "triples", "k-marginal", "f1", "cpu_seconds", "peak_mb")


def judged(name: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """What records are worth: total variations, NIST's k-marginal score of triples, F1."""
    from mechanisms.release.evaluation import held_out, train_and_test
    from pgmkit.records.dataset import Dataset

    data, _ = load(SETTINGS[name])
    made = Dataset(data.domain, {each: np.asarray(columns[each]) for each in data.domain})
    pairs, triples = variations(data, made, 2), variations(data, made, 3)
    found = {
        "pairs": float(pairs.mean()),
        "largest pair": float(pairs.max()),
        "triples": float(triples.mean()),
        "k-marginal": 1000 * (1 - float(triples.mean())),
    }
    if (target := TABLES[name]) is not None:
        train, test = held_out(data, most=20_000)
        found["f1"] = train_and_test(made, train, test, target).synthetic
    return found


def ours(request: Mapping[str, Any]) -> dict[str, Any]:
    """A run of one of our mechanisms, in a process of its own."""
    from benchmarks.adaptive_run import run_mechanism
    from benchmarks.common import peak_rss_mb

    setting = SETTINGS[request["dataset"]]
    data, _ = load(setting)
    started = time.process_time()
    release = run_mechanism(request, setting, data, None)
    records = release.sample(rng=request["seed"])
    seconds = time.process_time() - started
    return {
        "records": {name: records.columns[name].tolist() for name in data.domain},
        "cpu_seconds": round(seconds, 1),
        "peak_mb": round(peak_rss_mb()),
    }


def one(name: str, who: str, cap: int) -> dict[str, Any]:
    """A line: what a contestant's records of a table are worth, or why there are none."""
    line: dict[str, Any] = {"table": name, "who": who, "epsilon": EPSILON, "seed": 0}
    request: dict[str, Any] = {"dataset": name, "mechanism": who, "options": {}, **line, "cap": cap}
    try:
        if who in OURS:
            found = fresh_process("benchmarks.arena", request)
        else:
            data, _ = load(SETTINGS[name])
            place, module, options = RIVALS[who]
            if "script" in options:
                options = {
                    "script": str(Path(os.environ["PGMKIT_MBI"], "mechanisms", options["script"]))
                }
            request |= {
                "sizes": dict(data.domain.sizes),
                "codes": {each: data.columns[each].tolist() for each in data.domain},
                "delta": SETTINGS[name].delta or len(data) ** -2,
                **options,
            }
            python = str(Path(os.environ["PGMKIT_ENVS"], place, "bin", "python"))
            found = fresh_process(module, request, python)
    except SystemExit as failure:
        return {**line, "failed": str(failure).strip().splitlines()[-1][:200]}
    if "over" in found:
        return {**line, "over": found["over"]}
    return {**line, **judged(name, found.pop("records")), **found}


def lines() -> list[dict[str, Any]]:
    if not LINES.exists():
        return []
    return [json.loads(line) for line in LINES.read_text().splitlines()]


def report() -> str:
    """The table of all lines, and who was not run."""
    rows = []
    for each in sorted(lines(), key=lambda each: (each["table"], each.get("pairs", 9))):
        if "pairs" in each:
            cells = [each.get(measure) for measure in MEASURES]
        else:
            why = f"over {each['over']} CPU s" if "over" in each else each["failed"]
            cells = [why, *[None] * (len(MEASURES) - 1)]
        rows.append([each["table"], each["who"], *cells])
    parts = [table(["table", "who", *MEASURES], rows)]
    parts += [f"- {who}: {why}." for who, why in NOT_RUN.items()]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--contestants", default=",".join([*OURS, *RIVALS]))
    parser.add_argument("--cap", type=int, default=300, help="CPU seconds of a run")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no run after so many")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    done = {(each["table"], each["who"]) for each in lines()}
    for name in [] if options.report else options.tables.split(","):
        for who in options.contestants.split(","):
            if (name, who) not in done and time.monotonic() < until:
                with LINES.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(one(name, who, options.cap)) + "\n")
    print(report())


if __name__ == "__main__":
    import sys

    if len(sys.argv) == 3 and sys.argv[1].endswith(".json"):
        serve(ours)
    else:
        main()
