"""pgmkit's side, one job a process: ``python -m benchmarks.ours REQUEST.json ANSWER.json``."""

from __future__ import annotations

import resource
import time
from typing import Any

import numpy as np
import torch

from benchmarks.common import peak_rss_mb, serve
from benchmarks.problems import Problem, load
from pgmkit import Domain, Measurement, estimate


def estimation(request: dict[str, Any]) -> dict[str, Any]:
    """``pgmkit.estimate`` from the call to its return, first and second call in this process.

    ``request["options"]`` goes to ``estimate``; ``dtype`` by its name.
    """
    problem = load(request["name"], request["seed"])
    domain = Domain(problem.domain)
    measurements = [
        Measurement(clique, y, problem.sigma)
        for clique, y in zip(problem.cliques, problem.values, strict=True)
    ]
    imported = peak_rss_mb()
    options = dict(request["options"])
    if "dtype" in options:
        options["dtype"] = getattr(torch, options["dtype"])
    calls = [_call(problem, domain, measurements, options) for _ in range(request["calls"])]
    answer = {"calls": calls, "peak_rss_mb": peak_rss_mb(), "imported_rss_mb": imported}
    if options.get("device") == "cuda":
        answer["peak_gpu_mb"] = torch.cuda.max_memory_allocated() / 1e6
    return answer


def _call(
    problem: Problem, domain: Any, measurements: list[Any], options: dict[str, Any]
) -> dict[str, Any]:
    trace: list[tuple[float, float, float]] = []
    start = time.perf_counter()

    def record(progress: Any) -> None:
        elapsed = time.perf_counter() - start
        trace.append((elapsed, float(progress.best_loss), float(progress.gap)))

    model = estimate(domain, measurements, total=problem.total, progress=record, **options)
    seconds = time.perf_counter() - start
    fitted = model.marginals(problem.cliques)
    loss = problem.loss([fitted[clique] for clique in problem.cliques])
    unmeasured = model.marginals(problem.unmeasured)
    # Single precision keeps about seven digits of counts; the reported loss must agree that far.
    if not np.isclose(loss, model.loss, rtol=1e-3 if "dtype" in options else 1e-6):
        raise SystemExit(f"the model's loss {model.loss} is not that of its marginals, {loss}")
    return {
        "seconds": seconds,
        "loss": loss,
        "gap": float(model.gap),
        "iterations": int(model.iterations),
        "stopped": str(model.stopped),
        "trace": trace,
        "unmeasured": problem.variation([unmeasured[clique] for clique in problem.unmeasured]),
    }


def marginals(request: dict[str, Any]) -> dict[str, Any]:
    """``model.marginals`` of many cliques in one call, and ``model.marginal`` one by one."""
    with np.load(request["measurements"]) as stored:
        values = [stored[f"y{i}"] for i in range(len(request["cliques"]))]
    domain = Domain(request["domain"])
    measurements = [
        Measurement(clique, y, request["sigma"])
        for clique, y in zip(request["cliques"], values, strict=True)
    ]
    model = estimate(domain, measurements, total=request["total"])
    wanted = [tuple(clique) for clique in request["wanted"]]
    routines = {
        "marginals": lambda: model.marginals(wanted),
        "marginal": lambda: {clique: model.marginal(clique) for clique in wanted},
    }
    answer: dict[str, Any] = {}
    results = {}
    for name, routine in routines.items():
        seconds, cpu = [], []
        for _ in range(2):
            start, used = time.perf_counter(), _cpu_seconds()
            results[name] = routine()
            seconds.append(time.perf_counter() - start)
            cpu.append(_cpu_seconds() - used)
        answer[name] = {"first_seconds": seconds[0], "second_seconds": seconds[1], "cpu": cpu}
    worst = max(
        float(np.abs(results["marginals"][clique] - results["marginal"][clique]).max())
        for clique in wanted
    )
    return {
        "routines": answer,
        "largest_difference": worst,
        "cliques": [list(clique) for clique in model.tree.cliques],
        "cells": sum(domain.size(clique) for clique in model.tree.cliques),
        "peak_rss_mb": peak_rss_mb(),
    }


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


JOBS = {"estimation": estimation, "marginals": marginals}

if __name__ == "__main__":
    serve(lambda request: JOBS[request["job"]](request))
