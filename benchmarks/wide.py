"""How the time of the graphical mechanisms grows with the number of columns.

    python -m benchmarks.wide [--columns 20 50 100] [--mechanisms mst aim] [--seeds 1] [--way 2]
        [--settings model_mb=1] [--epsilon 1] [--model] [--plan]

Records are drawn from random Bayesian networks: attributes of 2 to 20 values, up to two parents
each among the earlier ones, conditional distributions from a Dirichlet; 100,000 rows, all marginals
of ``--way`` attributes, delta 1/n^2. Errors are the total variation of the workload's
pairs, of as many records as the table has (of a mechanism that draws none, of its tables),
independence beside them. Every run is a process of its own. ``--columns`` also takes tables of
``benchmarks.regret`` by their names. ``--mechanisms rows`` draws the table's own rows again, with
replacement: records of a mechanism without noise, whose error is that of drawing records alone.
``--plan`` predicts the runs that are kept, as ``pgmkit plan``
does, instead of running them. Prints a table and writes ``results/wide.json``, where other runs are
kept.

Takes 12 CPU minutes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import (
    command_line,
    fresh_process,
    machine,
    peak_rss_mb,
    read_results,
    serve,
    table,
    write_results,
)  # fmt: skip

if TYPE_CHECKING:
    from pgmkit import Dataset

RECORDS = 100_000
SIZES = (2, 20)
PARENTS, CONCENTRATION = 2, 0.5
HEADER = (
    "columns", "way", "mechanism", "seed", "seconds", "cpu s", "rounds", "mean tv", "largest tv",
    "independent", "MB", "planned cpu s", "planned MB",
)  # fmt: skip
FIGURES = (
    "seconds", "cpu", "rounds", "mean", "largest", "independent", "peak_mb", "planned_cpu",
    "planned_mb",
)  # fmt: skip


def network(columns: int, seed: int) -> tuple[dict[str, int], np.ndarray]:
    """The attributes' sizes, and records of shape (rows, columns), from one random network."""
    rng = np.random.default_rng([seed, columns])
    sizes = rng.integers(SIZES[0], SIZES[1] + 1, columns)
    codes = np.zeros((RECORDS, columns), dtype=np.int64)
    for i in range(columns):
        parents = rng.choice(i, min(i, int(rng.integers(0, PARENTS + 1))), replace=False)
        rows, states = np.zeros(RECORDS, dtype=np.int64), 1
        for parent in parents:
            rows, states = rows * sizes[parent] + codes[:, parent], states * sizes[parent]
        shares = rng.dirichlet(np.full(sizes[i], CONCENTRATION), states).cumsum(axis=1)
        drawn = (rng.random(RECORDS)[:, None] > shares[rows]).sum(axis=1)
        codes[:, i] = np.minimum(drawn, sizes[i] - 1)
    return {f"x{i}": int(size) for i, size in enumerate(sizes)}, codes


def load(request: dict[str, Any]) -> Dataset:
    """The records of a request: of a random network, or a table by its name."""
    from pgmkit import Dataset, Domain

    if isinstance(request["columns"], str):
        from benchmarks import regret

        return regret.load(request["columns"])
    sizes, codes = network(request["columns"], request["seed"])
    return Dataset(Domain(sizes), dict(zip(sizes, codes.T, strict=True)))


def released(
    request: dict[str, Any], data: Dataset, count: Callable[[object], None]
) -> Callable[[], Any]:
    """What the mechanism makes of the records, "auto" by way of `synthesize`: a function that
    draws as many records, or has the tables of a model without records.
    """
    from mechanisms import k_way, run, synthesize
    from mechanisms.families.tables import TablesModel
    from mechanisms.registry import configure
    from pgmkit import Dataset, Schema

    name, rows, seed = request["mechanism"], len(data), request["seed"]
    budget = {"epsilon": request["epsilon"], "delta": rows**-2.0}
    if name == "rows":
        places = np.random.default_rng(seed).integers(0, rows, rows)
        again = Dataset(data.domain, {name: data.columns[name][places] for name in data.domain})
        return lambda: again
    if name == "auto":
        schema = Schema.from_dict(data.domain.sizes)
        release = synthesize(data, schema, **budget, neighbours="replace-one", seed=seed).release
    else:
        workload = k_way(data.domain, request["way"])
        _, settings = configure(name, **request["settings"])
        reports: dict[str, Any] = {"progress": count} if name == "aim" else {}
        release = run(
            settings, data, workload, **budget, neighbours="replace-one", seed=seed, **reports
        )
    if request["model"] or isinstance(release.model, TablesModel):
        return lambda: release.model
    return lambda: release.sample(rows, rng=seed)


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """One run: its time, and the errors of its records and of independent columns."""
    if request["plan"]:
        return predict(request)
    data = load(request)
    rounds = 0

    def count(_: object) -> None:
        nonlocal rounds
        rounds += 1

    started, spent = time.perf_counter(), time.process_time()
    draw = released(request, data, count)
    seconds, cpu = time.perf_counter() - started, time.process_time() - spent
    peak_mb = round(peak_rss_mb())
    return {
        "seconds": round(seconds, 2), "cpu": round(cpu, 2), "rounds": rounds, "peak_mb": peak_mb,
        **errors(data, draw()),
    }  # fmt: skip


def errors(data: Dataset, answers: Any) -> dict[str, float]:
    """Of the pairs of these records or tables, and of independent columns without noise. Negative
    cells of tables count as 0, and each table is scaled to the number of rows.
    """
    from mechanisms import k_way

    rows, pairs = len(data), k_way(data.domain, 2).cliques
    truth = data.marginals(pairs)
    found = {c: np.maximum(counts, 0) for c, counts in answers.marginals(pairs).items()}
    single = {name: data.marginal((name,)) / rows for name in data.domain}
    away = [0.5 * np.abs(truth[c] / rows - found[c] / found[c].sum()).sum() for c in pairs]
    apart = [
        0.5 * np.abs(truth[c] / rows - np.outer(single[c[0]], single[c[1]])).sum() for c in pairs
    ]
    return {
        "mean": float(np.mean(away)), "largest": float(np.max(away)),
        "independent": float(np.mean(apart)),
    }  # fmt: skip


def predict(request: dict[str, Any]) -> dict[str, Any]:
    """What `pgmkit plan` says of a run, and the imports, which it leaves out."""
    spent = time.process_time()
    import pgmkit.estimation  # noqa: F401
    from mechanisms import k_way, plan
    from mechanisms.privacy.budget import Budget
    from mechanisms.synthesis.auto import Choice, choose_mechanism
    from pgmkit import Schema

    imports = time.process_time() - spent
    data = load(request)
    workload, delta, rows = k_way(data.domain, request["way"]), len(data) ** -2.0, len(data)
    schema, budget = Schema.from_dict(data.domain.sizes), Budget(request["epsilon"], delta)
    chosen = Choice(request["mechanism"], "as asked")
    if chosen.name == "auto":
        chosen = choose_mechanism(schema, workload, budget, rows=rows)
    settings = {**chosen.settings, **request["settings"]}
    found = plan(
        chosen.name, workload, request["epsilon"], delta, neighbours="replace-one", rows=rows,
        settings=settings,
    )  # fmt: skip
    return {"planned_cpu": round(imports + found.seconds, 2), "planned_mb": round(found.peak_mb)}


def identity(run: dict[str, Any]) -> tuple[Any, ...]:
    settings = tuple(sorted(run.get("settings", {}).items()))
    answers = run.get("epsilon", 1.0), run.get("model", False)
    return run["columns"], run["way"], run["mechanism"], run["seed"], settings, *answers


def _named(run: dict[str, Any]) -> str:
    settings = [f"{name}={value:g}" for name, value in run.get("settings", {}).items()]
    epsilon = run.get("epsilon", 1.0)
    budget = [] if epsilon == 1 else [f"epsilon={epsilon:g}"]
    of_model = ["(model)"] * run.get("model", False)
    return " ".join([run["mechanism"], *settings, *budget, *of_model])


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--columns", nargs="+", default=("20", "50", "100"))
    parser.add_argument("--mechanisms", nargs="+", default=("mst", "aim"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--way", type=int, default=2)
    parser.add_argument("--settings", nargs="*", default=())
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--model", action="store_true", help="Errors of the model, not of records.")
    parser.add_argument("--plan", action="store_true")
    arguments = parser.parse_args()
    given = (each.partition("=") for each in arguments.settings)
    settings = {name: float(value) for name, _, value in given}
    kept = {identity(run): run for run in read_results("wide").get("records", [])}
    for seed in range(arguments.seeds):
        for columns in arguments.columns:
            for mechanism in arguments.mechanisms:
                request = {
                    "columns": int(columns) if columns.isdigit() else columns,
                    "way": arguments.way, "mechanism": mechanism, "seed": seed,
                    "settings": settings, "epsilon": arguments.epsilon, "model": arguments.model,
                }  # fmt: skip
                print(f"{mechanism}, {columns} columns ...", file=sys.stderr, flush=True)
                found = fresh_process("benchmarks.wide", {**request, "plan": arguments.plan})
                before = kept.get(identity(request), {})
                kept[identity(request)] = {**before, **request, **found}
                records = [kept[key] for key in sorted(kept, key=str)]
                write_results("wide", {"machine": machine(), "records": records})
    rows = [
        [
            r["columns"], r["way"], _named(r), r["seed"], *(r.get(name) for name in FIGURES),
        ]
        for _, r in sorted(kept.items(), key=str)
    ]  # fmt: skip
    print(table(HEADER, rows))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].endswith(".json"):
        serve(measure)
    else:
        main()
