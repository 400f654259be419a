"""Gaussian accounting beside zCDP: the noise of mechanisms that only measure, and ADULT's error.

    python -m benchmarks.accounting [--seeds 5] [--mechanisms matrix,mixture] [--epsilons 1]

All pairs of ADULT's columns, add/remove, delta 1e-9, the same (epsilon, delta) and seeds for both.
Error: the mean total variation of the model's pairs (fractions). Prints how much smaller noise and
error are, in percent of zCDP's, with the standard error over seeds. Writes results/accounting.json,
where figures of other mechanisms and epsilons stay.

Takes more than 170 s.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from benchmarks import adult
from benchmarks.common import command_line, machine, read_results, write_results
from mechanisms.dispatch import run
from mechanisms.privacy.budget import Accounting
from mechanisms.workload import k_way
from pgmkit import Dataset, Domain

MECHANISMS = (
    "independent",
    "gaussian",
    "gaussian+projection",
    "matrix",
    "matrix+pgm",
    "mixture",
    "clique-tree",
)
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


def saved(row: dict[str, Any]) -> tuple[float, float, float]:
    """Noise and error less than by zCDP, as fractions, and the latter's standard error."""
    before, after = (np.array(row[f"{name} errors"]) for name in ("zcdp", "gaussian"))
    less = 1 - after / before
    spread = float(less.std(ddof=1)) / len(less) ** 0.5
    return 1 - row["gaussian noise"] / row["zcdp noise"], float(less.mean()), spread


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--mechanisms", default=",".join(MECHANISMS))
    parser.add_argument("--epsilons", default=",".join(map(str, EPSILONS)))
    given = parser.parse_args()
    table = adult.load()
    data = Dataset(Domain(table.domain), table.columns)
    for name in given.mechanisms.split(","):
        for epsilon in map(float, given.epsilons.split(",")):
            row: dict[str, Any] = {"seeds": given.seeds, "machine": machine()}
            for accounting in get_args(Accounting):
                noise, found = errors(data, name, epsilon, accounting, given.seeds)
                row |= {f"{accounting} noise": noise, f"{accounting} errors": found}
            noise, error, spread = saved(row)
            told = f"noise {noise:.1%}, error {error:.1%} +- {spread:.1%} less"
            print(f"{name} at {epsilon:g}: {told}", flush=True)
            rows = read_results("accounting").get("rows", {})
            write_results(
                "accounting", {"delta": DELTA, "rows": {**rows, f"{name} {epsilon:g}": row}}
            )


if __name__ == "__main__":
    main()
