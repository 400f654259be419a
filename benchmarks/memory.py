"""What an estimate really takes of memory, beside what is predicted before it begins.

    python -m benchmarks.memory

Each problem runs in a process of its own: the growth of its peak resident memory over an estimate
that iterates for some seconds, from after a tiny one. Prints a table and writes
``results/memory.json``.

Takes 0.9 CPU minutes.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np

from benchmarks import problems
from benchmarks.common import (
    command_line,
    fresh_process,
    machine,
    peak_rss_mb,
    serve,
    table,
    write_results,
)

TOTAL, STDDEV = 100_000, 50.0
HEADER = ("problem", "cells", "predicted MB", "measured MB", "predicted / measured", "seconds")
Edges = list[tuple[str, ...]]
STRUCTURES: dict[str, tuple[dict[str, int], Edges]] = {
    "one clique": (dict.fromkeys("abc", 170), [("a", "b", "c")]),
    "few big cliques": (
        dict.fromkeys("abcd", 100),
        [("a", "b", "c"), ("b", "c", "d")],
    ),
    "many small cliques": (
        {f"x{i}": 10 for i in range(4000)},
        [(f"x{i // 2}", f"x{i + 1}") for i in range(3999)],
    ),
    "matrices": (dict.fromkeys("abcd", 60), [("a", "b", "c"), ("b", "c", "d")]),
    "pairs of large attributes": (
        dict.fromkeys("abcd", 140),
        [*itertools.combinations("abcd", 2)],
    ),
    "dense": ({}, []),
    "triangle": ({}, []),
}


def measurements(name: str) -> tuple[Any, list[Any]]:
    """The domain and noisy tables; of `matrices` every measurement is through a Kronecker one."""
    from pgmkit import Domain, Measurement
    from pgmkit.queries import prefix

    if name in problems.NAMES:
        stored = problems.load(name)
        pairs = zip(stored.cliques, stored.values, strict=True)
        return Domain(stored.domain), [Measurement(c, y, stored.sigma) for c, y in pairs]
    sizes, cliques = STRUCTURES[name]
    domain, rng = Domain(sizes), np.random.default_rng(0)
    found = []
    for clique in cliques:
        mean = TOTAL / domain.size(clique)
        values = mean + rng.normal(0, STDDEV, domain.shape(clique))
        matrix = None
        if name == "matrices":
            matrix = [prefix(size) for size in domain.shape(clique)]
            for axis in range(values.ndim):
                values = np.cumsum(values, axis)
        found.append(Measurement(clique, values, STDDEV, matrix))
    return domain, found


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """The growth of the peak over an estimate, and what was predicted."""
    import time

    from pgmkit import Domain, Measurement, estimate
    from pgmkit.estimation import working_bytes

    small = Domain({"a": 2, "b": 2, "c": 2})
    cycle = [Measurement(c, np.ones(4), 1.0) for c in itertools.combinations("abc", 2)]
    estimate(small, cycle, total=4)
    domain, noisy = measurements(request["problem"])
    before, started = peak_rss_mb(), time.perf_counter()
    limits = {"tolerance": 0.0, "max_seconds": request["seconds"]}
    model = estimate(domain, noisy, total=TOTAL, **limits)
    seconds = time.perf_counter() - started
    return {
        "cells": sum(domain.size(clique) for clique in model.cliques),
        "predicted": working_bytes(domain, noisy) / 1e6,
        "measured": peak_rss_mb() - before,
        "seconds": seconds,
        "stopped": model.stopped,
    }


def main() -> None:
    command_line(__doc__).parse_args()
    records = []
    for name in STRUCTURES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        request = {"problem": name, "seconds": 8.0}
        records.append({**request, **fresh_process("benchmarks.memory", request)})
    rows = [
        [
            r["problem"], r["cells"], r["predicted"], r["measured"],
            r["predicted"] / r["measured"], r["seconds"],
        ]
        for r in records
    ]  # fmt: skip
    print(table(HEADER, rows))
    write_results("memory", {"machine": machine(), "records": records})


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].endswith(".json"):
        serve(measure)
    else:
        main()
