"""What a second core gives: each piece of work on one thread and on two, in one run.

    python -m benchmarks.threads [--repeat 5]

Every figure is the median wall time of calls in processes of their own, which take turns on one and
on two threads (OMP_NUM_THREADS). Only undisturbed calls count: those whose threads waited for a
core at most a twentieth of the time. On a busy machine a high priority (``nice -n -19``, as root)
keeps calls undisturbed, though other processes then still share caches and memory with them. Prints
a table and writes ``results/threads.json``, where the works that ``--only`` leaves out keep their
figures.

Takes more than 170 s.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import problems
from benchmarks.common import (
    command_line,
    fresh_process,
    machine,
    read_results,
    serve,
    table,
    write_results,
)

Work = Callable[[], object]
HEADER = (
    "work", "1 thread: wall s", "2 threads: wall s", "speed-up", "1 thread: CPU s",
    "2 threads: CPU s", "undisturbed calls", "calls",
)  # fmt: skip


def estimation(name: str) -> Work:
    """``estimate`` of a stored problem, some seconds of it at most."""
    from pgmkit import Domain, Measurement, estimate

    problem = problems.load(name)
    domain = Domain(problem.domain)
    measurements = [
        Measurement(clique, y, problem.sigma)
        for clique, y in zip(problem.cliques, problem.values, strict=True)
    ]
    return lambda: estimate(domain, measurements, total=problem.total)


def replicates(name: str) -> Work:
    """Two re-estimations of a stored problem, as error bars make them."""
    from pgmkit import Domain, Measurement, estimate, estimate_many

    problem, rng = problems.load(name), np.random.default_rng(0)
    domain = Domain(problem.domain)
    first, *sets = (
        [
            Measurement(clique, y + rng.normal(0, problem.sigma, y.shape), problem.sigma)
            for clique, y in zip(problem.cliques, problem.values, strict=True)
        ]
        for _ in range(3)
    )
    model = estimate(domain, first)
    return lambda: estimate_many(domain, sets, warm_start=model, tolerance=1.0)


def large_pass() -> Work:
    """A pass of inference of 5e8 multiplications."""
    import torch

    from pgmkit import Domain
    from pgmkit.inference.marginal_oracle import MarginalOracle

    domain = Domain(dict.fromkeys("abc", 800))
    oracle = MarginalOracle(domain, [("a", "b"), ("b", "c"), ("a", "c")])
    potentials = torch.randn(oracle.layout.cells, dtype=torch.float64)

    def passed() -> None:
        with oracle.session():
            oracle.fast_marginals(potentials)

    return passed


def sampling() -> Work:
    """Two million records of a chain of 20 attributes, in eight parts."""
    from pgmkit import Domain, Factor, GraphicalModel

    rng = np.random.default_rng(0)
    domain = Domain({f"x{i}": 20 for i in range(20)})
    pairs = list(itertools.pairwise(domain))
    factors = tuple(Factor(domain.project(p), rng.normal(size=(20, 20))) for p in pairs)
    model = GraphicalModel(domain, factors, total=1.0)
    made = model.sample_in_parts(2_000_000, 250_000, rng=0)

    def drawn() -> None:
        for _ in made.parts(0, made.count):
            pass

    return drawn


def training(name: str, **settings: Any) -> Work:
    """A mechanism of trained rows on the built-in census."""
    from mechanisms.datasets.census import census
    from mechanisms.dispatch import run
    from mechanisms.registry import configure
    from mechanisms.workload import k_way

    data = census(20_000)
    workload = k_way(data.domain, 2)
    chosen = configure(name, **settings)[1]
    return lambda: run(chosen, data, workload, 1.0, 1e-6, neighbours="replace-one", seed=0)


WORKS: dict[str, Callable[[], Work]] = {
    "estimation of triangle": lambda: estimation("triangle"),
    "two replicates of dense": lambda: replicates("dense"),
    "a pass of 5e8 multiplications": large_pass,
    "sampling in parts": sampling,
    "GEM, 2 rounds of 10 steps": lambda: training("gem", rounds=2, steps=10),
    "GEM as wide as the paper's, 1 round of 5 steps": lambda: training(
        "gem", rounds=1, steps=5, hidden=(1024, 1024), noise_width=512
    ),
    "mixture, 50 steps": lambda: training("mixture", steps=50),
}


def answer(request: dict[str, Any]) -> list[tuple[float, float]]:
    """The wall and CPU seconds of the undisturbed ones of so many calls."""
    work = WORKS[request["work"]]()
    work()
    found = []
    for _ in range(request["calls"]):
        before = time.perf_counter(), time.process_time(), waited_seconds()
        work()
        after = time.perf_counter(), time.process_time(), waited_seconds()
        wall, cpu, waited = (end - start for start, end in zip(before, after, strict=True))
        if waited <= 0.05 * wall:
            found.append((wall, cpu))
    return found


def waited_seconds() -> float:
    """Seconds that this process's present threads have been ready to run without a core (Linux)."""
    threads = Path("/proc/self/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[1]) for each in threads) / 1e9


def on(threads: int, work: str, calls: int) -> list[tuple[float, float]]:
    """``answer`` in a process that has so many threads."""
    # A thread that waits for another sleeps instead of spinning, as under the command `pgmkit`.
    asked = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
    with mock.patch.dict(os.environ, asked):
        return fresh_process("benchmarks.threads", {"work": work, "calls": calls})["undisturbed"]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="processes for each figure")
    parser.add_argument("--calls", type=int, default=3, help="timed calls in each")
    parser.add_argument("--only", nargs="+", default=[*WORKS], choices=[*WORKS])
    arguments = parser.parse_args()
    known = {row["work"]: row for row in read_results("threads").get("rows", [])}
    for work in arguments.only:
        print(f"{work} ...", file=sys.stderr, flush=True)
        runs = [
            [on(threads, work, arguments.calls) for threads in (1, 2)]
            for _ in range(arguments.repeat)
        ]
        sides = [list(itertools.chain.from_iterable(side)) for side in zip(*runs, strict=True)]
        counted, calls = sum(map(len, sides)), 2 * arguments.repeat * arguments.calls
        if not all(sides):
            print(f"{work}: all calls on one thread or on two were disturbed", file=sys.stderr)
            continue
        walls, cpus = ([median(call[which] for call in side) for side in sides] for which in (0, 1))
        found = [work, *walls, walls[0] / walls[1], *cpus, counted, calls]
        known[work] = dict(zip(HEADER, found, strict=True))
        rows = [known[each] for each in WORKS if each in known]
        write_results("threads", {"machine": machine(), "rows": rows})
    rows = [known[each] for each in WORKS if each in known]
    print(table(HEADER, [list(row.values()) for row in rows]))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].endswith(".json"):
        serve(lambda request: {"undisturbed": answer(request)})
    else:
        main()
