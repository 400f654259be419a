"""Every table and figure of the five papers beside this program's.

    python -m benchmarks.papers [--paper 003] [--table 2] [--figure 7] [--jobs 1] [--minutes 10]
    python -m benchmarks.papers --report     # run nothing, write the page again

``papers.toml`` lists what the papers show, and what is run here for it. Each run is a process of
its own and a line of ``results/papers.jsonl`` as it ends; what is there, or in
``results/adaptive.jsonl``, is not run again. Writes ``docs/reproduction.md``.

Takes 98 CPU minutes.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import re
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks import adaptive, papers_page
from benchmarks.common import HERE, RESULTS, command_line, fresh_process, serve
from benchmarks.papers_mixed import SOURCES
from benchmarks.papers_other import WORK
from benchmarks.settings import SETTINGS

LIST = HERE / "papers.toml"
PAGE = HERE.parent / "docs" / "reproduction.md"
CAP = 90
"""CPU seconds after which a run is ended, and a line says so."""

Task: TypeAlias = tuple[str, str, float, int]
"""Setting, contestant, epsilon, seed."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "A.1 mirror descent": ("method", {"method": "mirror_descent"}),
    "A.2 dual averaging": ("method", {"method": "dual_averaging"}),
    "A.3 L-BFGS": ("method", {"method": "lbfgs"}),
    "this project's default": ("method", {}),
    "L1": ("losses", {"loss": "absolute"}),
    "L2": ("losses", {"loss": "squared"}),
    "factored": ("factored", {"factored": True}),
    "estimate": ("estimate", {}),
    "through the marginal": ("factored", {"factored": False}),
    "dual-query+pgm": ("likelihood", {"pgm": True}),
    "least mixture error": ("least mixture error", {}),
    "matrix+pgm (mean)": ("matrix+pgm", {"objective": "mean"}),
    "gem (z resampled)": ("gem (z resampled)", {}),
    "gem (B = 100)": ("gem", {"batch_rows": 100}),
    "gem (B = 10)": ("gem", {"batch_rows": 10}),
    "gem (one layer of 512)": ("gem", {"hidden": [512]}),
    "gem (three layers of 128)": ("gem", {"hidden": [128, 128, 128]}),
    "gem (marginals)": ("gem", {"select": "marginals"}),
    "pmw-pub (average)": ("pmw-pub", {"result": "average"}),
    **{f"pmw-pub (T = {rounds})": ("pmw-pub", {"rounds": rounds}) for rounds in (10, 50, 200)},
    "annealed": ("projection", {"temperatures": [4, 8, 16, 32, 64, 128, 256]}),
    **{f"fixed {t}": ("projection", {"temperatures": [t]}) for t in (4, 16, 64, 256)},
    "real rows": ("real rows", {"numbers": True}),
    "real rows, no numbers": ("real rows", {"numbers": False}),
    "rap++ (50 epochs)": ("rap++", {"rounds": 50, "queries": 10}),
    **{
        f"rap++ ({count} thousand thresholds)": ("rap++", {"directions": 1000 * count // 4})
        for count in (1, 10, 50)
    },
    "queries": ("counted", {"what": "queries"}),
    "queries above 0.1": ("counted", {"what": "queries", "above": 0.1}),
    "queries above 0.2": ("counted", {"what": "queries", "above": 0.2}),
    "attributes": ("counted", {"what": "attributes"}),
    "values of all attributes": ("counted", {"what": "values"}),
    "cells of the domain": ("counted", {"what": "cells"}),
    "share of women": ("counted", {"what": "women"}),
    "authors' rap++": ("authors' rap++", {"epochs": 50, "projections": 2000}),
    "mwem+pgm (30 bins)": ("mwem+pgm", {}),
    "mixture (30 bins)": ("mixture", {}),
}
"""Contestants that are not a registered mechanism with its defaults."""


def contestants(setting: str) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """Every name that may run on a setting: (mechanism, settings that differ from the defaults)."""
    names = {**adaptive.contestants(), **VARIANTS}
    if setting == "dual-query likelihood":
        names["dual-query"] = ("likelihood", {"pgm": False})
    return names


QUICK = (
    *("pmw-pub", "pep-pub", "mwem", "pep", "rap-softmax", "matrix"),
    *("public rows", "independent", "gaussian"),
)
"""What takes about a second, by the start of its name: such runs share a process."""


def together(tasks: Sequence[Task], path: Path, seconds: float) -> list[Task]:
    """Run the quick ones of a setting's tasks in one process, which reads the table once; return
    the others.
    """
    quick = [
        task
        for task in tasks
        if SETTINGS.get(task[0], SETTINGS["loans"]).table == "adult.csv"
        and task[1].startswith(QUICK)
    ]
    if quick:
        names = contestants(quick[0][0])
        requests = [
            {"dataset": setting, "mechanism": names[name][0], "options": dict(names[name][1]),
             "epsilon": epsilon, "seed": seed, "asked": time.time()}
            for setting, name, epsilon, seed in quick
        ]  # fmt: skip
        found = fresh_process("benchmarks.papers", {"requests": requests, "seconds": seconds})
        answers = iter(found["answers"])
        done = quick[: len(found["answers"])]  # the rest had no time
        adaptive.run_all(done, names, path, 1, lambda *_: next(answers))
    return [task for task in tasks if task not in quick]


def several(request: Mapping[str, Any]) -> dict[str, Any]:
    """The other side of `together`: the answers to the requests, as many as the time allows."""
    from benchmarks import adaptive_run, settings

    adaptive_run.load = functools.cache(settings.load)  # type: ignore[assignment]
    until, answers = time.monotonic() + request["seconds"], []
    for each in request["requests"]:
        if time.monotonic() < until:
            answers.append(adaptive_run.answer(each))
    return {"answers": answers}


def worker(module: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Run a request in the module that can; `module` is that of the adaptive mechanisms."""
    if request["mechanism"] in WORK:
        module = "benchmarks.papers_other"
    elif request["dataset"] in SOURCES:
        module = "benchmarks.papers_mixed"
    return fresh_process(module, {"cap": CAP, **request})


def listed(kind: str) -> list[dict[str, Any]]:
    """The entries of a kind: "experiment", in the papers' order, or "cause"."""
    found: list[dict[str, Any]] = tomllib.loads(LIST.read_text(encoding="utf-8"))[kind]
    return found


def experiments() -> list[dict[str, Any]]:
    """The list of experiments."""
    return listed("experiment")


def tasks_of(experiment: Mapping[str, Any]) -> list[Task]:
    """What is run for an experiment; every first seed before any second."""
    return [
        (setting, name, float(epsilon), seed)
        for seed, epsilon, setting, name in itertools.product(
            range(experiment.get("seeds", 0)),
            experiment.get("epsilons", ()),
            experiment.get("settings", ()),
            experiment.get("contestants", ()),
        )
    ]


def runs_so_far(folder: Path) -> list[dict[str, Any]]:
    """The runs of this benchmark, and those of `adaptive` where there is none here of the same
    setting, mechanism and epsilon: theirs may be of earlier code.
    """
    own = adaptive.read_runs(folder / "papers.jsonl")
    known = {adaptive.identity(run)[:3] for run in own}
    others = adaptive.read_runs(folder / "adaptive.jsonl")
    return [
        *own,
        *({**run, "earlier": True} for run in others if adaptive.identity(run)[:3] not in known),
    ]


def chosen(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The experiments asked for."""
    labels = [f"Table {options.table}"] if options.table else []
    labels += [f"Figure {options.figure}"] if options.figure else []
    return [
        each
        for each in experiments()
        if options.paper in (None, each["paper"])
        and (not labels or any(_names(each["label"], label) for label in labels))
    ]


def _names(label: str, wanted: str) -> bool:
    """Whether "Figures 1 and 6" names "Figure 6"."""
    kind, number = wanted.split()
    return kind in label and number in re.findall(r"\d+[ab]?", label)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--paper", help="001, 002, 003, 004 or 000; default: all")
    parser.add_argument("--table", help="number of a table")
    parser.add_argument("--figure", help="number of a figure")
    parser.add_argument("--settings", help="names with commas between; default: all")
    parser.add_argument("--contestants", help="names with commas between; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no run after so many")
    parser.add_argument(
        "--again", action="store_true", help="run what only results/adaptive.jsonl has, too"
    )
    parser.add_argument("--report", action="store_true", help="run nothing")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, folder: Path = RESULTS, page: Path = PAGE) -> None:
    options = parse(arguments)
    failures, until = 0, time.monotonic() + 60 * options.minutes
    for each in [] if options.report else chosen(options):
        for setting, group in itertools.groupby(sorted(tasks_of(each)), key=lambda task: task[0]):
            if options.settings and setting not in options.settings.split(","):
                continue
            own = adaptive.read_runs(folder / "papers.jsonl")
            if "PGMKIT_RAP" not in os.environ:
                group = (task for task in group if not task[1].startswith("authors'"))
            if options.contestants:
                group = (task for task in group if task[1] in options.contestants.split(","))
            left = adaptive.to_do(group, own if options.again else runs_so_far(folder))
            if time.monotonic() < until:
                left = together(left, folder / "papers.jsonl", until - time.monotonic())
            for task in sorted(left, key=lambda task: task[3]):
                if time.monotonic() < until:
                    failures += adaptive.run_all(
                        [task], contestants(setting), folder / "papers.jsonl", options.jobs, worker
                    )
    pictures = page.parent / "img"
    papers_page.write(experiments(), listed("cause"), runs_so_far(folder), page, pictures)
    if failures:
        raise SystemExit(f"{failures} runs failed")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].endswith(".json"):
        serve(several)
    else:
        main()
