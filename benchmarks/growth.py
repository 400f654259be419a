"""How the time of an estimate grows with the number of attributes: chains, stars and trees.

    python -m benchmarks.growth [--attributes 500 1000 2000 4000]

Every pair of neighbours is measured with noise of standard deviation 50 on 100,000 records;
attributes have 10 values. The estimate is the default one. "Passes' worth" is its time in units of
one call of the marginal oracle. Each structure runs in a process of its own: the first estimate of
a process, and the median of three. Prints a table and writes ``results/growth.json``.

Takes 0.2 CPU minutes.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np

from benchmarks.common import command_line, fresh_process, machine, serve, table, write_results

STRUCTURES = ("chain", "star", "tree")
SIZE, TOTAL, STDDEV = 10, 100_000, 50.0
HEADER = (
    "structure", "attributes", "seconds", "first s", "pass ms", "passes' worth", "gap", "goal",
)  # fmt: skip


def edges(structure: str, attributes: int) -> list[tuple[str, str]]:
    """The measured pairs; a tree's attributes hang on an earlier one each, drawn at random."""
    rng = np.random.default_rng(0)
    parents = {
        "chain": lambda i: i - 1,
        "star": lambda i: 0,
        "tree": lambda i: int(rng.integers(i)),
    }[structure]
    return [(f"x{parents(i)}", f"x{i}") for i in range(1, attributes)]


def tables(pairs: list[tuple[str, str]], attributes: int, stddev: float) -> list[np.ndarray]:
    """Noisy tables of records in which every attribute copies its parent half of the time."""
    rng = np.random.default_rng(1)
    columns = {"x0": rng.integers(SIZE, size=TOTAL)}
    found = []
    for parent, child in pairs:
        copied = rng.random(TOTAL) < 0.5
        columns[child] = np.where(copied, columns[parent], rng.integers(SIZE, size=TOTAL))
        cells = columns[parent] * SIZE + columns[child]
        counts = np.bincount(cells, minlength=SIZE * SIZE).astype(np.float64)
        found.append(counts + rng.normal(0, stddev, counts.size))
    return found


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """One structure: times, a pass, and what the estimate certifies."""

    from pgmkit import Domain, Measurement, estimate
    from pgmkit.inference.marginal_oracle import MarginalOracle

    attributes = request["attributes"]
    pairs = edges(request["structure"], attributes)
    domain = Domain({f"x{i}": SIZE for i in range(attributes)})
    noisy = tables(pairs, attributes, STDDEV)
    measurements = [Measurement(c, y, STDDEV) for c, y in zip(pairs, noisy, strict=True)]
    seconds = []
    for _ in range(1 + request["repeats"]):
        started = time.perf_counter()
        model = estimate(domain, measurements, total=TOTAL)
        seconds.append(time.perf_counter() - started)
    inference = MarginalOracle(domain, model.cliques)
    potentials = inference.layout.join([factor.values for factor in model.potentials])
    with inference.session():
        inference.fast_marginals(potentials)
        passes = []
        for _ in range(20):
            started = time.perf_counter()
            inference.fast_marginals(potentials)
            passes.append(time.perf_counter() - started)
    return {
        "first": seconds[0], "seconds": statistics.median(seconds[1:]),
        "pass": statistics.median(passes), "gap": model.gap,
        "goal": 0.1 * (sum(len(y) for y in noisy) / 2) ** 0.5, "stopped": model.stopped,
    }  # fmt: skip


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--attributes", nargs="+", type=int, default=(500, 1000, 2000, 4000))
    parser.add_argument("--structures", nargs="+", choices=STRUCTURES, default=STRUCTURES)
    arguments = parser.parse_args()
    records = []
    for structure in arguments.structures:
        for attributes in arguments.attributes:
            print(f"{structure} of {attributes} ...", file=sys.stderr, flush=True)
            request = {"structure": structure, "attributes": attributes, "repeats": 3}
            records.append({**request, **fresh_process("benchmarks.growth", request)})
    rows = [
        [
            r["structure"], r["attributes"], r["seconds"], r["first"], 1e3 * r["pass"],
            r["seconds"] / r["pass"], r["gap"], r["goal"],
        ]
        for r in records
    ]  # fmt: skip
    print(table(HEADER, rows))
    write_results("growth", {"machine": machine(), "records": records})


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].endswith(".json"):
        serve(measure)
    else:
        main()
