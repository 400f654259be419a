"""Other programs beside ours: same tables, epsilon, delta and neighbours, judged by their records.

    PGMKIT_ENVS=/path/to/environments PGMKIT_MBI=/path/to/mbi python -m benchmarks.arena
        [--tables adult,nltcs] [--contestants mst,dpmm-MST] [--cap 300] [--minutes 10]
    python -m benchmarks.arena --report     # run nothing, write the page again

`PGMKIT_ENVS` holds an environment for each rival, made by ``python -m venv`` and ``pip install``:
``mbi``, ``dpmm``, ``margnet``, ``tabpe``, ``grem``, ``idp``, ``rap``, and ``dpsynth``, which needs
Python 3.12; those that are no packages are found through a ``.pth`` file. `PGMKIT_MBI`,
`PGMKIT_IDP` and `PGMKIT_RAP` are copies of the repositories ryan112358/mbi,
terranceliu/iterative-dp and amazon-science/relaxed-adaptive-projection. All rows, add/remove,
epsilon 1, delta 1/n^2, all pairs as the workload.
A run that takes more CPU seconds than the cap is a line that says so. Lines are kept in
``results/arena.jsonl``, and what is there is not run again. Writes ``docs/arena.md``.

Takes 23 CPU minutes.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import arena_page, peer_aim
from benchmarks.common import HERE, RESULTS, command_line, fresh_process, serve
from benchmarks.regret import load as load_coded
from benchmarks.regret import variations
from benchmarks.settings import SETTINGS, Setting, delta_of, load

if TYPE_CHECKING:
    from pgmkit.records.dataset import Dataset

LINES = RESULTS / "arena.jsonl"
PAGE = HERE.parent / "docs" / "arena.md"
EPSILON = 1.0
TABLES = {
    **{"adult-all": "income>50K", "loans-all": None, "nltcs": None, "salary": None},
    **{"carData/Chile": "vote", "AER/HMDA": "deny", "AER/DoctorVisits": None},
    **{"carData/Arrests": "released", "ISLR/Wage": "jobclass", "xor": "label", "scm": "x11"},
}
"""The tables, and what a classifier is asked for. Those with a slash are tables of the zoo, coded
as in `benchmarks.regret`."""
DRAWN = 20_000
"""The rows of the tables that are drawn here."""
OURS = ("auto", "mixture", "aim", "mst", "clique-tree")
RIVALS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "mbi-AIM": ("mbi", "benchmarks.peer_aim_run", {"script": "aim.py"}),
    "mbi-MST": ("mbi", "benchmarks.rivals.mbi_mst", {"script": "mst.py"}),
    "dpmm-MST": ("dpmm", "benchmarks.rivals.dpmm_models", {"model": "MST"}),
    "dpmm-AIM": ("dpmm", "benchmarks.rivals.dpmm_models", {"model": "AIM"}),
    "dpmm-PrivBayes": ("dpmm", "benchmarks.rivals.dpmm_models", {"model": "PrivBayes"}),
    "dpsynth-SWIFT": ("dpsynth", "benchmarks.rivals.dpsynth_models", {"model": "SWIFT"}),
    "dpsynth-MST": ("dpsynth", "benchmarks.rivals.dpsynth_models", {"model": "MST"}),
    "dpsynth-AIM-GDP": ("dpsynth", "benchmarks.rivals.dpsynth_models", {"model": "AIM-GDP"}),
    "MargNet": ("margnet", "benchmarks.rivals.margnet", {}),
    "Tab-PE": ("tabpe", "benchmarks.rivals.tab_pe", {}),
    "GReM-LNN": ("grem", "benchmarks.rivals.grem_lnn", {}),
    "iterative-dp GEM": ("idp", "benchmarks.rivals.iterative_dp", {"copy": "PGMKIT_IDP"}),
    "RAP++": ("rap", "benchmarks.rivals.rap_pp", {"copy": "PGMKIT_RAP"}),
}
"""Environment, adapter and what is asked of it."""
NOT_RUN = {
    "dpsynth SWIFT": "no answer on nltcs after 330 CPU s (run by hand, no line is stored)",
    "dpsynth AIM-GDP": "installs from its repository with Python 3.12 and jax 0.11; no run yet",
    "mbi-AIM on adult-all": "1,062 s and a mean of .0175 for the pairs are published for another "
    "machine; not run here, nor on nltcs, xor, scm, salary and loans-all",
    "iterative-dp GEM": "needs rdt 0.4.0, which installs on Python 3.8 at most; the adapter does "
    "without its one-hot encoder; over 120 CPU s on nltcs, no other table was tried",
    "RAP++": "where a table has a label, its queries are pairs with the label (its default)",
    "dpmm": "AIM on any table, and all models on xor, scm, salary, loans-all and the coded tables, "
    "not run",
    "MargNet, GReM-LNN": "over 90 CPU s; longer runs not made",
    "auto, mixture": "the lines are of 27 November 2026, mixture on loans-all and all others older",
}


def table_of(name: str) -> Dataset:
    """A table of the folder PGMKIT_DATA, or one that is drawn here.

    ``xor``: ten fair bits, and the parity of three of them as the label. ``scm``: twelve attributes
    of five equal classes, each a random nonlinear function of up to three earlier ones and noise.
    """
    from pgmkit.domain import Domain
    from pgmkit.records.dataset import Dataset

    if name in SETTINGS:
        return load(SETTINGS[name])[0]
    if "/" in name:
        return load_coded(name)
    rng = np.random.default_rng(0)
    if name == "xor":
        columns = {f"x{i}": rng.integers(0, 2, DRAWN) for i in range(10)}
        columns["label"] = (columns["x0"] + columns["x1"] + columns["x2"]) % 2
        return Dataset(Domain(dict.fromkeys(columns, 2)), columns)
    values: list[Any] = []
    for place in range(12):
        parents = rng.permutation(place)[:3]
        value = rng.normal(size=DRAWN)
        for parent in parents:
            value = value + 2 * np.sin(rng.normal(0, 2) * values[parent] + rng.uniform(0, 6))
        values.append((value - value.mean()) / value.std())
    columns = {
        f"x{i}": np.searchsorted(np.quantile(v, (0.2, 0.4, 0.6, 0.8)), v)
        for i, v in enumerate(values)
    }
    return Dataset(Domain(dict.fromkeys(columns, 5)), columns)


def setting_of(name: str) -> Setting:
    """How a table is protected, and what is asked of it."""
    return SETTINGS.get(name) or Setting("drawn here", "all", "add/remove", k=2)


def judged(name: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """What records are worth: total variations, NIST's k-marginal score of triples, F1."""
    from mechanisms.release.evaluation import held_out, train_and_test
    from pgmkit.records.dataset import Dataset

    data = table_of(name)
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
    from benchmarks.common import peak_rss_mb
    from mechanisms import synthesize
    from pgmkit import Schema

    data = table_of(request["dataset"])
    started = time.process_time()
    release = synthesize(
        data,
        Schema.from_dict(data.domain.sizes),
        epsilon=request["epsilon"],
        delta=delta_of(setting_of(request["dataset"]), data),
        mechanism=request["mechanism"],
        seed=request["seed"],
    ).release
    records = release.sample(len(data), rng=request["seed"])
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
            data = table_of(name)
            place, module, options = RIVALS[who]
            if "script" in options:
                options = {
                    "script": str(Path(os.environ["PGMKIT_MBI"], "mechanisms", options["script"]))
                }
            targets = [label] if (label := TABLES[name]) else []
            if "copy" in options:  # no column of these tables is a number
                copy = os.environ[options["copy"]]
                options = {"repository": copy, "numbers": {}, "targets": targets}
            request |= {
                "sizes": dict(data.domain.sizes),
                "codes": {each: data.columns[each].tolist() for each in data.domain},
                "delta": delta_of(setting_of(name), data),
                **options,
            }
            python = str(Path(os.environ["PGMKIT_ENVS"], place, "bin", "python"))
            found = fresh_process(module, request, python)
    except SystemExit as failure:
        return {**line, "failed": str(failure).strip().splitlines()[-1][:200]}
    if "over" in found:
        return {**line, "over": found["over"]}
    if "tables" in found:
        return {**line, **judged_tables(name, found.pop("tables")), **found}
    figures = {key: each for key, each in found.items() if not isinstance(each, list | dict)}
    return {**line, **judged(name, found["records"]), **figures}


def judged_tables(name: str, tables: Sequence[Sequence[float]]) -> dict[str, Any]:
    """What the tables of all pairs, flat and in their order, are worth where there are no
    records.
    """
    data = table_of(name)
    pairs = list(itertools.combinations(data.domain, 2))
    truth = data.marginals(pairs)
    away = np.array(
        [
            0.5 * np.abs(truth[pair].ravel() - np.asarray(table)).sum() / len(data)
            for pair, table in zip(pairs, tables, strict=True)
        ]
    )
    return {"pairs": float(away.mean()), "largest pair": float(away.max())}


def lines() -> list[dict[str, Any]]:
    """The runs so far; of several of one contestant on a table, the last. The peer's AIM on tables
    of the zoo is run by `benchmarks.peer_aim`, by the same rules.
    """
    found = [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []
    found = [*map(_of_peer, peer_aim.runs_of_peer()), *found]
    return list({(each["table"], each["who"]): each for each in found}.values())


def _of_peer(run: Mapping[str, Any]) -> dict[str, Any]:
    line = {"table": run["table"], "who": "mbi-AIM", "epsilon": EPSILON, "seed": run["seed"]}
    if "over" in run:
        return {**line, "over": run["over"]}
    known = {name: run[name] for name in ("pairs", "triples", "cpu_seconds", "peak_mb", "version")}
    score = 1000 * (1 - run["triples"])
    return {**line, **known, "largest pair": run["worst_pair"], "k-marginal": score}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--contestants", default=",".join([*OURS, *RIVALS]))
    parser.add_argument("--cap", type=int, default=300, help="CPU seconds of a run")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no run after so many")
    parser.add_argument("--again", action="store_true", help="run what did not end, too")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    done = {
        (each["table"], each["who"]) for each in lines() if "pairs" in each or not options.again
    }
    for name in [] if options.report else options.tables.split(","):
        for who in options.contestants.split(","):
            if (name, who) not in done and time.monotonic() < until:
                with LINES.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(one(name, who, options.cap)) + "\n")
    shown = [each for each in lines() if each["table"] in TABLES]
    arena_page.write(shown, NOT_RUN, OURS, PAGE)


if __name__ == "__main__":
    import sys

    if len(sys.argv) == 3 and sys.argv[1].endswith(".json"):
        serve(ours)
    else:
        main()
