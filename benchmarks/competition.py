"""Exact answers of the UAI 2014 competition's instances beside the published ones.

``python -m benchmarks.competition FOLDER/*.uai [--seconds 60]`` and ``... --report``. Beside each
instance lie its evidence (``.evid``) and published results: marginals (``.MAR``), the logarithm of
the partition function (``.PR``), a most likely record (``.MAP``). The repository
``mroavi/uai-2014-inference-competition`` has them. Each instance and task runs in a process of its
own, within ``--seconds`` of processor time. Its line in ``results/competition.jsonl`` has the
largest difference of a marginal, the difference of the logarithms (base 10), or the logarithm of
the published record's product of tables less that of the record found, which is negative or zero
if the latter is at least as likely; or says that the limit of memory or of time was met.

Takes 34 CPU minutes.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import resource
import signal
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, command_line, table
from pgmkit import FactorGraph, ModelTooLarge, PgmkitError
from pgmkit.uai import read_evidence, read_map, read_marginals, read_model, read_probability

LINES = RESULTS / "competition.jsonl"
TASKS = ("MAR", "PR", "MAP")


def log_product(graph: FactorGraph, codes: dict[str, int]) -> float:
    """The logarithm of the product of the tables at a record."""
    cells = (values[tuple(codes[name] for name in clique)] for clique, values in graph.tables)
    return sum(math.log(cell) if cell > 0 else -math.inf for cell in cells)


def difference(path: Path, task: str) -> float:
    graph = read_model(path)
    observed = read_evidence(f"{path}.evid", graph)
    posterior = graph.posterior(observed)
    result = Path(f"{path}.{task}")
    if task == "PR":
        return (posterior.log_partition - read_probability(result)) / math.log(10)
    if task == "MAR":
        found = [posterior.marginals()[(name,)] for name in graph.domain]
        published = read_marginals(result)
        return max(float(np.abs(a - b).max()) for a, b in zip(found, published, strict=True))
    codes, _ = posterior.map()
    theirs = dict(zip(graph.domain, read_map(result), strict=True)) | observed
    return log_product(graph, theirs) - log_product(graph, codes)


def _give_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


def one(path: Path, task: str, seconds: int, pipe: Any) -> None:
    signal.signal(signal.SIGPROF, _give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (2 * seconds, 2 * seconds))
    started = time.process_time()
    try:
        found: dict[str, Any] = {"difference": difference(path, task)}
    except ModelTooLarge:
        found = {"refused": "memory"}
    except TimeoutError:
        found = {"refused": "time"}
    except PgmkitError as error:
        found = {"error": f"{error}"[:300]}
    pipe.send(found | {"seconds": round(time.process_time() - started, 2)})


def run(path: Path, task: str, seconds: int) -> dict[str, Any]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=one, args=(path, task, seconds, there))
    process.start()
    there.close()
    try:
        found = here.recv()
    except EOFError:
        found = {"error": "the process ended without an answer"}
    process.join()
    return {"instance": path.stem, "task": task, "limit": seconds, **found}


def stored() -> list[dict[str, Any]]:
    """The last line of each instance and task."""
    lines = [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []
    return [*{(line["instance"], line["task"]): line for line in lines}.values()]


def report() -> str:
    """A row a task and family: instances, how many were answered, and the worst difference."""
    rows = []
    lines = stored()
    for task in TASKS:
        family = {line["instance"]: line["instance"].split("_")[0] for line in lines}
        for name in sorted({family[line["instance"]] for line in lines if line["task"] == task}):
            kept = [x for x in lines if x["task"] == task and family[x["instance"]] == name]
            worst = [x["difference"] for x in kept if "difference" in x]
            why = Counter(x.get("refused", "error") for x in kept if "difference" not in x)
            largest = max(worst, key=abs if task != "MAP" else float, default=math.nan)
            rows.append((task, name, len(kept), len(worst), why["memory"], why["time"], largest))
    header = ("task", "family", "instances", "answered", "memory", "time", "worst difference")
    return table(header, rows)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="model files (.uai)")
    parser.add_argument("--seconds", type=int, default=60, help="of the processor, for each")
    parser.add_argument("--report", action="store_true", help="run nothing, print the table")
    arguments = parser.parse_args()
    done = {
        (line["instance"], line["task"])
        for line in stored()
        if line.get("refused") != "time" or line["limit"] >= arguments.seconds
    }
    for path in [] if arguments.report else sorted(arguments.paths):
        for task in TASKS:
            if Path(f"{path}.{task}").exists() and (path.stem, task) not in done:
                line = run(path, task, arguments.seconds)
                with LINES.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(line, flush=True)
    print(report())


if __name__ == "__main__":
    main()
