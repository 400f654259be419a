"""Workloads of CDFs: measured by the rows of least error for them, against cell by cell.

    python -m benchmarks.cdfs [--table adult] [--mechanism mst] [--epsilon 1] [--seeds 3]

Each mechanism runs twice on the same records: with the CDFs as its workload, which it then selects
and measures by, and with the tables that hold them as its workload, cell by cell. The error is the
mean distance of all cumulative counts from the records', in shares of the rows. The rules were
settled on `adult`; `salary`, `loans` and `acs` (incomes of a census) were not looked at before.
Writes results/cdfs.json, where figures of other rows stay, and the table of docs/queries.md.

Takes 9 CPU minutes.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import HERE, command_line, read_results, table, write_results
from mechanisms import MECHANISMS, run
from mechanisms.queries.query_sets import QuerySet
from mechanisms.workload import Workload
from pgmkit.domain import Domain
from pgmkit.records.dataset import Dataset

DELTA = 1e-9
EPSILONS = (0.1, 1.0, 10.0)
NAMES = ("aim", "mst", "mwem+pgm", "matrix+pgm")
TABLES: dict[str, tuple[list[str], list[str]]] = {
    "adult": (
        ["age", "hours-per-week", "education-num"],
        ["sex", "relationship", "occupation", "income>50K"],
    ),
    "salary": (
        ["annual-salary", "regular-earnings", "overtime-earning", "ytd-gross"],
        ["pay-rate", "system", "organization-name"],
    ),
    "loans": (["annual_inc", "loan_amnt", "dti"], ["grade", "home_ownership", "emp_length"]),
    "acs": (["PINCP"], ["SEX", "EDU", "MSP"]),
}
"""The ordered columns, whose CDFs are asked, each by every two of the others."""
BEGIN, END = "<!-- cdfs: begin -->", "<!-- cdfs: end -->"


def records(name: str) -> Dataset:
    """The columns of the table that are asked for."""
    folder = Path(os.environ["PGMKIT_DATA"])
    ordered, others = TABLES[name]
    if name == "acs":  # incomes of the American Community Survey, in 200 bins of equal width
        frame = pd.read_csv(folder / "acs-na2019-1000.csv")
        codes = {n: pd.factorize(frame[n].astype(str), sort=True)[0] for n in others}
        income = pd.to_numeric(frame["PINCP"], errors="coerce").fillna(0.0).to_numpy()
        edges = np.linspace(0.0, 200_000.0, 201)[1:-1]
        codes["PINCP"] = np.searchsorted(edges, income, side="right")
        sizes = {n: int(codes[n].max()) + 1 for n in others}
        return Dataset(Domain({"PINCP": 200, **sizes}), codes)
    file = {"adult": "adult-star.csv"}.get(name, f"{name}.csv.gz")
    sizes = pd.read_json(folder / f"{file.split('.')[0]}.domain.json", typ="series")
    frame = pd.read_csv(folder / file)
    names = [*ordered, *others]
    domain = Domain({n: int(sizes[n]) for n in names})
    return Dataset(domain, {n: frame[n].to_numpy() for n in names})


def workload_of(name: str, domain: Domain) -> Workload:
    """The CDFs of each ordered column by two others."""
    ordered, others = TABLES[name]
    pairs = list(itertools.combinations([n for n in others if n in domain], 2))
    asked = ("prefix", "identity", "identity")
    return Workload.of(domain, [QuerySet((n, *pair), asked) for n in ordered for pair in pairs])


def error(data: Dataset, answers: Any, workload: Workload) -> float:
    """The mean distance of a cumulative count from the records', over their number."""
    found = []
    for each in workload.sets:
        away = answers.marginal(each.clique) - data.marginal(each.clique)
        found.append(float(np.abs(away.cumsum(axis=0)).mean()))
    return float(np.mean(found)) / len(data)


def measured(name: str, mechanism: str, epsilon: float, seeds: int) -> dict[str, Any]:
    """The errors by the CDFs' own rows and cell by cell, and the CPU seconds of each."""
    data = records(name)
    queries = workload_of(name, data.domain)
    cells = Workload(data.domain, queries.cliques)
    found: dict[str, Any] = {"seeds": seeds}
    for kind, asked in (("queries", queries), ("cells", cells)):
        started = time.process_time()
        errors = []
        for seed in range(seeds):
            release = run(
                mechanism, data, asked, epsilon, DELTA, neighbours="add/remove", seed=seed
            )
            errors.append(error(data, release.model, queries))
        found[kind] = float(np.mean(errors))
        found[f"{kind} seconds"] = (time.process_time() - started) / seeds
    return found


def page(results: dict[str, Any]) -> str:
    """The results as a table of docs/queries.md."""
    rows = []
    for key, found in results.items():
        name, mechanism, epsilon = key.split()
        ratio = found["queries"] / found["cells"]
        shown = [f"{100 * found[kind]:.3g}%" for kind in ("cells", "queries")]
        seconds = f"{found['cells seconds']:.0f} / {found['queries seconds']:.0f}"
        rows.append([name, mechanism, epsilon, *shown, f"{ratio:.2f}", seconds])
    header = ["table", "mechanism", "epsilon", "cells", "CDFs", "ratio", "CPU s"]
    return table(header, rows)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--table", choices=TABLES, action="append")
    parser.add_argument("--mechanism", choices=[*MECHANISMS], action="append")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    results = read_results("cdfs")
    for name, mechanism, epsilon in itertools.product(
        options.table or TABLES, options.mechanism or NAMES, options.epsilon or EPSILONS
    ):
        found = measured(name, mechanism, epsilon, options.seeds)
        results[f"{name} {mechanism} {epsilon:g}"] = found
        write_results("cdfs", results)
        print(name, mechanism, epsilon, found, flush=True)
    order = list(itertools.product(TABLES, NAMES, EPSILONS))
    keys = [f"{name} {mechanism} {epsilon:g}" for name, mechanism, epsilon in order]
    shown = {key: results[key] for key in keys if key in results}
    docs = HERE.parent / "docs" / "queries.md"
    text = docs.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    docs.write_text(f"{before}{BEGIN}\n{page(shown)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
