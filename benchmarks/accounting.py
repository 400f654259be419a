"""Gaussian accounting beside zCDP: the noise of mechanisms that only measure, and ADULT's error.

    python -m benchmarks.accounting [--seeds 3]

All pairs of ADULT's columns, add/remove, delta 1e-9, the same (epsilon, delta) and seeds for both.
Error: the mean total variation of the model's pairs (fractions). Writes results/accounting.json.
"""

from __future__ import annotations

import argparse
import json
from typing import get_args

import numpy as np

from benchmarks import adult
from benchmarks.common import RESULTS, machine
from mechanisms.dispatch import run
from mechanisms.privacy.budget import Accounting
from mechanisms.workload import k_way
from pgmkit import Dataset, Domain

MECHANISMS = ("independent", "gaussian", "gaussian+projection", "hdmm", "mixture", "clique-tree")
EPSILONS, DELTA = (0.1, 1.0, 10.0), 1e-9


def errors(
    data: Dataset, name: str, epsilon: float, accounting: Accounting, seeds: int
) -> tuple[float, list[float]]:
    """The first table's noise in counts, and the mean total variation of pairs for each seed."""
    workload, noise, found = k_way(data.domain, 2), 0.0, []
    truth = data.marginals(workload.cliques)
    for seed in range(seeds):
        release = run(
            name,
            data,
            workload,
            epsilon,
            DELTA,
            neighbours="add/remove",
            accounting=accounting,
            seed=seed,
        )
        noise = float(release.measurements[0].stddev)
        model = release.model.marginals(workload.cliques)
        found.append(
            float(np.mean([np.abs(truth[c] - model[c]).sum() for c in truth]) / 2 / len(data))
        )
    return noise, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mechanisms", default=",".join(MECHANISMS))
    given = parser.parse_args()
    table = adult.load()
    data = Dataset(Domain(table.domain), table.columns)
    rows: dict[str, dict[str, float]] = {}
    for name in given.mechanisms.split(","):
        for epsilon in EPSILONS:
            row: dict[str, float] = {}
            for accounting in get_args(Accounting):
                noise, found = errors(data, name, epsilon, accounting, given.seeds)
                row[f"{accounting} noise"] = noise
                row[f"{accounting} error"] = float(np.mean(found))
            rows[f"{name} {epsilon:g}"] = row
            saved, better = (
                1 - row[f"gaussian {what}"] / row[f"zcdp {what}"] for what in ("noise", "error")
            )
            print(
                f"{name} at {epsilon:g}: noise {saved:.1%} less, error {better:.1%} less",
                flush=True,
            )
            text = {"machine": machine(), "seeds": given.seeds, "delta": DELTA, "rows": rows}
            (RESULTS / "accounting.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
