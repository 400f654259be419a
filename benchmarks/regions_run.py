"""pgmkit's side of ``regions.py``: one problem a process."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

import pgmkit
from benchmarks.common import peak_rss_mb, serve
from benchmarks.region_problems import SIGMA, draw


def relaxed(request: dict[str, Any]) -> dict[str, Any]:
    """The first call of a fresh process, then the joint records and what they answer."""
    warnings.simplefilter("ignore", pgmkit.FromRecords)
    problem = draw(request["name"], request["seed"])
    domain = pgmkit.Domain(problem.domain)
    measured = [
        pgmkit.Measurement(clique, y, SIGMA, _sums(y) if problem.cumulative else None)
        for clique, y in zip(problem.cliques, problem.values, strict=True)
    ]
    # What is imported on first use is imported here.
    pgmkit.estimate(pgmkit.Domain({"a": 2}), [pgmkit.Measurement(["a"], [1.0, 2.0], 1.0)])
    wall, cpu = time.perf_counter(), time.process_time()
    model = pgmkit.estimate(domain, measured, total=float(problem.total), inference="region")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = peak_rss_mb()
    found = {
        "seconds": wall,
        "cpu_seconds": cpu,
        "loss": model.loss,
        "gap": model.gap,
        "measured": _mean(problem, problem.cliques, model),
        "weight": model.weight,
        "noisy": float(
            np.mean([*map(problem.variation, problem.cliques, map(problem.seen, problem.values))])
        ),
        "peak_rss_mb": peak,
    }
    best = pgmkit.estimate(
        domain, measured, total=float(problem.total), inference="region", shrink=False
    )
    found |= {"best_loss": best.loss, "best": _mean(problem, problem.cliques, best)}
    cpu = time.process_time()
    agreement = model.agreement
    return {
        **found,
        "joint_cpu_seconds": time.process_time() - cpu,
        "agreement": agreement.mean,
        "worst_agreement": agreement.worst,
        "unmeasured": _mean(problem, problem.unmeasured, model),
        "independent": float(np.mean([_independent(problem, c) for c in problem.unmeasured])),
        "joint_peak_rss_mb": peak_rss_mb(),
    }


def _sums(values: np.ndarray) -> list[np.ndarray]:
    return [np.tri(size) for size in values.shape]


def _mean(problem: Any, cliques: Any, model: pgmkit.RegionModel) -> float:
    tables = model.marginals(cliques)
    return float(np.mean([problem.variation(c, tables[c]) for c in cliques]))


def _independent(problem: Any, clique: tuple[str, ...]) -> float:
    table = np.ones(())
    for name in clique:
        table = np.multiply.outer(table, problem.counts((name,)) / problem.total)
    return float(problem.variation(clique, table * problem.total))


if __name__ == "__main__":
    serve(relaxed)
