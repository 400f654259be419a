"""What a second core gives: each piece of work on one thread and on two, in one run.

    python -m benchmarks.threads [--repeat 5]

Every figure is the least wall time of some calls in processes of their own, which take turns on one
and on two threads (OMP_NUM_THREADS): on a shared machine the least is nearest to what the work
takes by itself. CPU seconds of the same call stand beside it: where they grow as the wall time
stays, the second thread only waited. Prints a table and writes ``results/threads.json``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import problems
from benchmarks.common import fresh_process, machine, serve, table, write_results

Work = Callable[[], object]
HEADER = ("work", "1 thread s", "2 threads s", "speed-up", "1 thread CPU s", "2 threads CPU s")


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


def large_pass() -> Work:
    """A pass of inference of 5e8 multiplications."""
    import torch

    from pgmkit import Domain
    from pgmkit.marginal_oracle import MarginalOracle

    domain = Domain(dict.fromkeys("abc", 800))
    oracle = MarginalOracle(domain, [("a", "b"), ("b", "c"), ("a", "c")])
    potentials = torch.randn(oracle.layout.cells, dtype=torch.float64)

    def passed() -> None:
        with oracle.session():
            oracle.fast_marginals(potentials)

    return passed


def counting() -> Work:
    """All three-way marginals of a million rows of 13 columns."""
    from benchmarks.counting import ADULT
    from pgmkit import Dataset, Domain

    rng = np.random.default_rng(0)
    columns = {name: rng.integers(0, size, 1_000_000) for name, size in ADULT.items()}
    data = Dataset(Domain(ADULT), columns)
    cliques = list(itertools.combinations(ADULT, 3))
    return lambda: data.marginals(cliques)


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
    "a pass of 5e8 multiplications": large_pass,
    "counting": counting,
    "sampling in parts": sampling,
    "GEM, 2 rounds of 10 steps": lambda: training("gem", rounds=2, steps=10),
    "GEM as wide as the paper's, 1 round of 5 steps": lambda: training(
        "gem", rounds=1, steps=5, hidden=(1024, 1024), noise_width=512
    ),
    "mixture, 50 steps": lambda: training("mixture", steps=50),
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The least wall time of some calls, and the CPU time of that one."""
    work = WORKS[request["work"]]()
    work()
    timed = []
    for _ in range(request["calls"]):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        timed.append((time.perf_counter() - wall, time.process_time() - cpu))
    return dict(zip(("wall", "cpu"), min(timed), strict=True))


def on(threads: int, work: str, calls: int) -> dict[str, Any]:
    """``answer`` in a process that has so many threads."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        return fresh_process("benchmarks.threads", {"work": work, "calls": calls})
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def main() -> None:
    parser = argparse.ArgumentParser(description="Time work on one thread and on two.")
    parser.add_argument("--repeat", type=int, default=5, help="processes for each figure")
    parser.add_argument("--calls", type=int, default=3, help="timed calls in each")
    parser.add_argument("--only", nargs="+", default=[*WORKS], choices=[*WORKS])
    arguments = parser.parse_args()
    rows = []
    for work in arguments.only:
        print(f"{work} ...", file=sys.stderr, flush=True)
        runs = [
            [on(threads, work, arguments.calls) for threads in (1, 2)]
            for _ in range(arguments.repeat)
        ]
        one, two = (min(side, key=lambda r: r["wall"]) for side in zip(*runs, strict=True))
        speed_up = one["wall"] / two["wall"]
        rows.append([work, one["wall"], two["wall"], speed_up, one["cpu"], two["cpu"]])
    print(table(HEADER, rows))
    write_results(
        "threads",
        {"machine": machine(), "rows": [dict(zip(HEADER, row, strict=True)) for row in rows]},
    )


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].endswith(".json"):
        serve(answer)
    else:
        main()
