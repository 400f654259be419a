"""Error against epsilon for every registered mechanism, on ADULT, beside the authors' figures.

    python -m benchmarks.adaptive [--dataset adult-small] [--mechanisms mwem,aim]
        [--epsilons 0.1,0.25,0.5,1] [--seeds 5] [--jobs 2]
    python -m benchmarks.adaptive --peers      # all rows, add/remove, all pairs: as the peers run
    python -m benchmarks.adaptive --report     # run nothing, write the tables and plots again

All 3-way marginals of the private rows (n = 43,944), replace-one, delta = 1/n^2, seeded noise.
Each run is a process of its own; its figures are appended to ``results/adaptive.jsonl``, and what
is there is not run again (``--again`` does). Prints tables, writes ``results/adaptive-*.svg`` and
the section of ``benchmarks/README.md``.

Takes 99 CPU minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks import adaptive_report as report
from benchmarks.adaptive_run import PUBLIC_ROWS
from benchmarks.common import HERE, RESULTS, command_line, fresh_process, machine
from benchmarks.settings import SETTINGS

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mwem (no past queries)": ("mwem", {"past_queries": False}),
    "mwem (average)": ("mwem", {"result": "average"}),
    "pep (marginals)": ("pep", {"select": "marginals", "select_share": 0.3}),
    "aim (10 MB)": ("aim", {"model_mb": 10.0}),
    "gem (the paper's network)": (
        "gem",
        {
            "rounds": 100,
            "noise_width": 512,
            "hidden": (1024, 1024),
            "precision": "bfloat16",
            "learning_rate": 1e-4,
            "steps": 8,
        },
    ),
}
"""Contestants that are a registered mechanism with other settings, for the papers' orderings."""

PEERED = ["aim (10 MB)", "mst", "clique-tree", "mixture"]
"""What runs as the peers' scripts do."""

Contestants = Mapping[str, tuple[str, Mapping[str, Any]]]


def contestants() -> Contestants:
    """Every name that may run: (mechanism, settings that differ from the defaults)."""
    from mechanisms.registry import MECHANISMS

    plain: dict[str, tuple[str, Mapping[str, Any]]] = {name: (name, {}) for name in MECHANISMS}
    known = {name: variant for name, variant in VARIANTS.items() if variant[0] in MECHANISMS}
    return {PUBLIC_ROWS: (PUBLIC_ROWS, {})} | plain | known


def with_public() -> list[str]:
    """The contestants that see public rows."""
    from mechanisms.registry import MECHANISMS

    return [PUBLIC_ROWS, *(name for name, entry in MECHANISMS.items() if entry.public)]


def identity(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return run["dataset"], run["mechanism"], run["epsilon"], run["seed"]


def read_runs(path: Path) -> list[dict[str, Any]]:
    """The runs so far; of several with the same identity, the last."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    runs = [json.loads(line) for line in lines if line.strip()]
    return list({identity(run): run for run in runs}.values())


def to_do(
    grid: Iterable[tuple[str, str, float, int]], done: Iterable[Mapping[str, Any]]
) -> list[tuple[str, str, float, int]]:
    """What of the grid has not been run; a refusal counts for every epsilon and seed."""
    runs = list(done)
    finished = {identity(run) for run in runs}
    refused = {(run["dataset"], run["mechanism"]) for run in runs if "refused" in run}
    return [task for task in grid if task not in finished and task[:2] not in refused]


def run_all(
    tasks: Sequence[tuple[str, str, float, int]],
    names: Contestants,
    path: Path,
    jobs: int,
    worker: Callable[..., dict[str, Any]] = fresh_process,
) -> int:
    """Run the tasks, `jobs` at a time, appending each as it ends; the number that failed."""
    where = {"machine": _machine(), "commit": _commit()}
    failures = 0

    def one(task: tuple[str, str, float, int]) -> dict[str, Any]:
        dataset, name, epsilon, seed = task
        mechanism, options = names[name]
        asked = {"dataset": dataset, "epsilon": epsilon, "seed": seed}
        request = {**asked, "mechanism": mechanism, "options": dict(options), "asked": time.time()}
        return {**asked, "mechanism": name, **worker("benchmarks.adaptive_run", request), **where}

    path.parent.mkdir(exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool, path.open("a", encoding="utf-8") as lines:
        futures = {pool.submit(one, task): task for task in tasks}
        for count, future in enumerate(as_completed(futures), 1):
            said = f"[{count}/{len(tasks)}] {' '.join(map(str, futures[future]))}"
            try:
                run = future.result()
            except SystemExit as failure:
                failures += 1
                print(f"{said}: FAILED\n{failure}", file=sys.stderr, flush=True)
                continue
            lines.write(json.dumps(run) + "\n")
            lines.flush()
            print(f"{said}: {_outcome(run)}", file=sys.stderr, flush=True)
    return failures


def _outcome(run: Mapping[str, Any]) -> str:
    if "refused" in run:
        return f"refused: {run['refused']}"
    if "over" in run:
        return f"ended after {run['over']} CPU s"
    told = [*report.METRICS, "seconds", "cpu_seconds", "peak_mb"]
    return ", ".join(f"{name} {run[name]:.3g}" for name in told if run.get(name) is not None)


def _machine() -> str:
    now = machine()
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    return f"{now['processor']}, {now['cores']} cores, OMP_NUM_THREADS {threads}"


def _commit() -> str:
    asked = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def section(
    runs: Sequence[Mapping[str, Any]], baselines: Mapping[report.Key, report.Summary]
) -> str:
    """The README section, in markdown."""
    summaries = report.summarise(runs)
    machines = sorted({run["machine"] for run in runs})
    parts = [
        "Errors over all 3-way queries as fractions of n, mean ± standard error over seeds "
        f"({report.seeds_in_words(summaries)}), and those of the authors' code in brackets. Their "
        "hyperparameters were picked on true error; "
        'ours are fixed defaults. "Behind the authors": at which epsilon which error exceeds '
        'theirs by more than one standard error. "Pairs TV" (total variation, averaged over the '
        "pairs), CPU seconds and peak memory of one process are at the largest epsilon. "
        "`results/adaptive.jsonl` has the other epsilons, and all seconds.",
        f"Machine: {'; '.join(machines)}. Several runs at a time: compare errors, not seconds."
        if machines
        else "Not measured yet.",
    ]
    for dataset in _TITLES:
        if any(key[0] == dataset for key in summaries):
            parts.append(f"### {_TITLES[dataset]}")
            if dataset == "adult-all":
                parts.append(report.peer_table(summaries))
            else:
                parts.append(report.error_table(dataset, summaries, baselines))
                parts += [f"![errors](results/adaptive-{dataset}.svg)"] if dataset in DRAWN else []
    parts.append("### Checks")
    parts.append("Goals on ADULT without public data:")
    parts.append("\n".join(report.goal_lines(summaries, with_public())))
    if lines := report.ordering_lines(summaries):
        parts += [
            "Orderings that the papers claim, by the largest and by the mean error:",
            "\n".join(lines),
        ]
    if refusals := sorted({_refusal(run) for run in runs if "refused" in run}):
        parts += ["Refused, before any budget was spent:", "\n".join(refusals)]
    return "\n\n".join(parts)


DRAWN = ("adult", "adult-small")
_TITLES = {
    "adult": "ADULT, 13 attributes",
    "adult-small": "ADULT (reduced), 7 attributes",
    "census": "Built-in census, 9 attributes, 44,000 rows (of all defaults only mixture's saw it)",
    "adult-all": "Beside the peers: all 48,813 rows, add/remove, all pairs, eps 1, delta 4.2e-10",
}


def _refusal(run: Mapping[str, Any]) -> str:
    return f"- {run['mechanism']} on {run['dataset']}: {run['refused']}"


def write_report(folder: Path, readme: Path) -> None:
    """Print the section, put it into the README, and draw the plots."""
    runs = read_runs(folder / "adaptive.jsonl")
    baselines = report.read_baselines(report.baseline_file())
    if not baselines:
        print("no adaptive-baselines.csv: set PGMKIT_BASELINES to it", file=sys.stderr)
    summaries = report.summarise(runs)
    for dataset in DRAWN:
        if any(key[0] == dataset for key in summaries):
            report.plot(dataset, summaries, baselines, folder)
    text = section(runs, baselines)
    print(text)
    report.replace_section(readme, text)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--dataset", choices=SETTINGS, help="default: adult-small, then adult")
    parser.add_argument("--mechanisms", help="names with commas between; default: all")
    parser.add_argument("--epsilons", default="0.1,0.25,0.5,1")
    parser.add_argument("--seeds", type=int, default=5, help="how many; they start at 0")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--peers", action="store_true", help="AIM and MST beside their peers")
    parser.add_argument("--again", action="store_true", help="run what has been run before too")
    parser.add_argument("--report", action="store_true", help="run nothing")
    return parser.parse_args(arguments)


def grid(options: argparse.Namespace, names: Contestants) -> list[tuple[str, str, float, int]]:
    """The tasks asked for: every first seed before any second.

    Raises:
        SystemExit: a mechanism is not known.
    """
    if options.peers:
        asked, datasets, epsilons = PEERED, ["adult-all"], [1.0]
    else:
        asked = (
            [name.strip() for name in options.mechanisms.split(",")]
            if (options.mechanisms)
            else list(names)
        )
        datasets = [options.dataset] if options.dataset else ["adult-small", "adult"]
        epsilons = [float(text) for text in options.epsilons.split(",")]
    for name in asked:
        if name not in names:
            raise SystemExit(f"unknown mechanism {name!r}; known: {', '.join(names)}")
    seeds = range(options.seeds)
    return [(d, n, e, s) for s, e, d, n in itertools.product(seeds, epsilons, datasets, asked)]


def main(
    arguments: Sequence[str] | None = None,
    folder: Path = RESULTS,
    readme: Path = HERE / "README.md",
) -> None:
    options = parse(arguments)
    failures = 0
    if not options.report:
        names = contestants()
        path = folder / "adaptive.jsonl"
        tasks = grid(options, names)
        if not options.again:
            tasks = to_do(tasks, read_runs(path))
        failures = run_all(tasks, names, path, options.jobs)
    write_report(folder, readme)
    if failures:
        raise SystemExit(f"{failures} runs failed")


if __name__ == "__main__":
    main()
