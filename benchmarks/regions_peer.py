"""The peer's side of ``regions.py``: ``mbi`` 2.0.0's approximate oracle; imports no pgmkit.

Its mirror descent needs a step, and searches for none: each of some is tried, and the one that
ends at the lowest loss is reported, with the time of that one alone.
"""

from __future__ import annotations

import os

os.environ["JAX_ENABLE_X64"] = "1"
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import time
from typing import Any

import mbi
import numpy as np
from mbi import approximate_oracles

from benchmarks.common import peak_rss_mb, serve
from benchmarks.region_problems import SIGMA, draw


def relaxed(request: dict[str, Any]) -> dict[str, Any]:
    """The first call of a fresh process: seconds of wall time and of processor time."""
    problem = draw(request["name"], request["seed"])
    domain = mbi.Domain(list(problem.domain), list(problem.domain.values()))
    measurements = [
        mbi.LinearMeasurement(y.reshape(-1), clique, stddev=SIGMA, **_query(problem))
        for clique, y in zip(problem.cliques, problem.values, strict=True)
    ]
    wall, cpu = time.perf_counter(), time.process_time()
    found = approximate_oracles.mirror_descent(
        domain,
        measurements,
        known_total=problem.total,
        stepsize=request["step"],
        iters=request["iterations"],
    )
    tables = [np.asarray(found.project(clique).datavector()) for clique in problem.cliques]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "seconds": wall,
        "cpu_seconds": cpu,
        "loss": sum(
            float(((_asked(problem, t, y) - y) ** 2).sum()) / 2 / SIGMA**2
            for t, y in zip(tables, problem.values, strict=True)
        ),
        "measured": float(np.mean([*map(problem.variation, problem.cliques, tables)])),
        "disagreement": _disagreement(problem.domain, problem.cliques, tables),
        "peak_rss_mb": peak_rss_mb(),
    }


def _query(problem: Any) -> dict[str, Any]:
    if not problem.cumulative:
        return {}
    return {"query": lambda factor: factor.values.cumsum(0).cumsum(1).reshape(-1)}


def _asked(problem: Any, table: np.ndarray, values: np.ndarray) -> np.ndarray:
    shaped = table.reshape(values.shape)
    return shaped.cumsum(0).cumsum(1) if problem.cumulative else shaped


def _disagreement(
    domain: dict[str, int], cliques: tuple[tuple[str, ...], ...], tables: list[np.ndarray]
) -> float:
    """Largest difference, in counts, of a single attribute's counts between two tables."""
    singles: dict[str, list[np.ndarray]] = {}
    for clique, flat in zip(cliques, tables, strict=True):
        table = flat.reshape([domain[name] for name in clique])
        for axis, name in enumerate(clique):
            others = tuple(i for i in range(table.ndim) if i != axis)
            singles.setdefault(name, []).append(table.sum(axis=others))
    return max(float(np.ptp(np.stack(rows), axis=0).max()) for rows in singles.values())


if __name__ == "__main__":
    serve(relaxed)
