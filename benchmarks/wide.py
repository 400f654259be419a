"""How the time of the graphical mechanisms grows with the number of columns.

    python -m benchmarks.wide [--columns 20 50 100] [--mechanisms mst aim] [--seeds 1] [--way 2]

Records are drawn from random Bayesian networks: attributes of 2 to 20 values, up to two parents
each among the earlier ones, conditional distributions from a Dirichlet; 100,000 rows, all marginals
of ``--way`` attributes, epsilon 1, delta 1/n^2. Errors are the total variation of the workload's
pairs, of as many records as the table has, independence beside them. Every run is a process of its
own. Prints a table and writes ``results/wide.json``, where other runs are kept.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np

from benchmarks.common import (
    fresh_process,
    machine,
    peak_rss_mb,
    read_results,
    serve,
    table,
    write_results,
)  # fmt: skip

RECORDS, EPSILON = 100_000, 1.0
SIZES = (2, 20)
PARENTS, CONCENTRATION = 2, 0.5
HEADER = (
    "columns", "way", "mechanism", "seed", "seconds", "cpu s", "rounds", "mean tv", "largest tv",
    "independent", "MB",
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


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """One run: its time, and the errors of its records and of independent columns."""
    from mechanisms import k_way, run
    from pgmkit import Dataset, Domain

    sizes, codes = network(request["columns"], request["seed"])
    data = Dataset(Domain(sizes), dict(zip(sizes, codes.T, strict=True)))
    rounds = 0

    def count(_: object) -> None:
        nonlocal rounds
        rounds += 1

    started, spent = time.perf_counter(), time.process_time()
    release = run(
        request["mechanism"],
        data,
        k_way(data.domain, request["way"]),
        EPSILON,
        RECORDS**-2,
        neighbours="replace-one",
        seed=request["seed"],
        **({"progress": count} if request["mechanism"] == "aim" else {}),
    )
    seconds, cpu = time.perf_counter() - started, time.process_time() - spent
    records = release.sample(RECORDS, rng=request["seed"])
    pairs = k_way(data.domain, 2).cliques
    truth, found = data.marginals(pairs), records.marginals(pairs)
    single = {name: data.marginal((name,)) / RECORDS for name in data.domain}
    errors = [0.5 * np.abs(truth[c] - found[c]).sum() / RECORDS for c in pairs]
    apart = [
        0.5 * np.abs(truth[c] / RECORDS - np.outer(single[c[0]], single[c[1]])).sum() for c in pairs
    ]
    return {
        "seconds": round(seconds, 2), "cpu": round(cpu, 2), "rounds": rounds,
        "mean": float(np.mean(errors)), "largest": float(np.max(errors)),
        "independent": float(np.mean(apart)), "peak_mb": round(peak_rss_mb()),
    }  # fmt: skip


def identity(run: dict[str, Any]) -> tuple[Any, ...]:
    return run["columns"], run["way"], run["mechanism"], run["seed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--columns", nargs="+", type=int, default=(20, 50, 100))
    parser.add_argument("--mechanisms", nargs="+", default=("mst", "aim"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--way", type=int, default=2)
    arguments = parser.parse_args()
    kept = {identity(run): run for run in read_results("wide").get("records", [])}
    for seed in range(arguments.seeds):
        for columns in arguments.columns:
            for mechanism in arguments.mechanisms:
                request = {
                    "columns": columns, "way": arguments.way, "mechanism": mechanism, "seed": seed,
                }  # fmt: skip
                print(f"{mechanism}, {columns} columns ...", file=sys.stderr, flush=True)
                kept[identity(request)] = {**request, **fresh_process("benchmarks.wide", request)}
                records = [kept[key] for key in sorted(kept)]
                write_results("wide", {"machine": machine(), "records": records})
    rows = [
        [
            *identity(r), r["seconds"], r["cpu"], r["rounds"], r["mean"], r["largest"],
            r["independent"], r["peak_mb"],
        ]
        for _, r in sorted(kept.items())
    ]  # fmt: skip
    print(table(HEADER, rows))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].endswith(".json"):
        serve(measure)
    else:
        main()
