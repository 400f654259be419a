"""The peer's side: ``mbi`` 2.0.0 through its public API, one job a process.

Run by the benchmarks as ``python -m benchmarks.peer REQUEST.json ANSWER.json``; imports nothing of
pgmkit.
"""

from __future__ import annotations

import os

# Before jax is imported: double precision, and no cache between processes (cold means cold).
os.environ["JAX_ENABLE_X64"] = "1"
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import itertools
import time
from typing import Any

import jax
import mbi
import numpy as np

from benchmarks import drawn
from benchmarks.common import peak_rss_mb, serve
from benchmarks.problems import Problem, load


def estimation(request: dict[str, Any]) -> dict[str, Any]:
    """Mirror descent from the call to its return, first and second call in this process."""
    problem = load(request["name"], request["seed"])
    domain = mbi.Domain(list(problem.domain), list(problem.domain.values()))
    measurements = [
        mbi.LinearMeasurement(y, clique, stddev=problem.sigma)
        for clique, y in zip(problem.cliques, problem.values, strict=True)
    ]
    imported = peak_rss_mb()
    calls = []
    for _ in range(2):
        snapshots: list[tuple[float, list[np.ndarray]]] = []
        start = time.perf_counter()

        def record(
            marginals: Any,
            start: float = start,
            snapshots: list[tuple[float, list[np.ndarray]]] = snapshots,
        ) -> None:
            # Copies at once: the solver gives its buffers away on the next step.
            arrays = [np.array(marginals.tables[c].values) for c in marginals.cliques]
            snapshots.append((time.perf_counter() - start, arrays))

        model = mbi.estimation.MirrorDescent().estimate(
            domain,
            measurements,
            known_total=problem.total,
            iters=request["iterations"],
            callback_fn=record,
        )
        for factor in model.marginals.tables.values():
            factor.values.block_until_ready()
        calls.append((time.perf_counter() - start, snapshots))
    peak = peak_rss_mb()

    def loss_of(arrays: list[np.ndarray]) -> float:
        tables = {
            clique: mbi.Factor(domain.project(clique), array)
            for clique, array in zip(model.marginals.cliques, arrays, strict=True)
        }
        vector = mbi.CliqueVector(domain, model.marginals.cliques, tables)
        return problem.loss([vector.project(c).datavector() for c in problem.cliques])

    second, snapshots = calls[1]
    return {
        "first_seconds": calls[0][0],
        "second_seconds": second,
        "loss": problem.loss([model.project(c).datavector() for c in problem.cliques]),
        "unmeasured": _unmeasured(problem, model),
        "first_times": [seconds for seconds, _ in calls[0][1]],
        "trace": [(seconds, loss_of(arrays)) for seconds, arrays in snapshots],
        "peak_rss_mb": peak,
        "imported_rss_mb": imported,
    }


def _unmeasured(problem: Problem, model: Any) -> float | None:
    """How far off the model is on the problem's unmeasured pairs.

    Computed from the model's potentials: to ``project`` takes the peer seconds a pair.
    """

    def numbers(clique: tuple[str, ...]) -> tuple[int, int]:
        a, b = (int(name[1:]) for name in clique)
        return a, b

    if not problem.unmeasured:
        return None
    tables = model.potentials.tables.items()
    factors = {numbers(c): np.exp(np.asarray(f.values - f.values.max())) for c, f in tables}
    return problem.variation([drawn.marginal(factors, numbers(c)) for c in problem.unmeasured])


def marginals(request: dict[str, Any]) -> dict[str, Any]:
    """Many marginals of one fitted model: a call each and the bulk routines, twice over."""
    with np.load(request["measurements"]) as stored:
        values = [stored[f"y{i}"] for i in range(len(request["cliques"]))]
    domain = mbi.Domain(list(request["domain"]), list(request["domain"].values()))
    cliques = [tuple(clique) for clique in request["cliques"]]
    measurements = [
        mbi.LinearMeasurement(y, clique, stddev=request["sigma"])
        for clique, y in zip(cliques, values, strict=True)
    ]
    model = mbi.estimation.MirrorDescent().estimate(
        domain, measurements, known_total=request["total"], iters=request["iterations"]
    )
    wanted = [tuple(clique) for clique in request["wanted"]]
    oracles = mbi.marginal_oracles
    routines = {
        "project": lambda: [model.project(c).datavector() for c in wanted],
        "bulk_variable_elimination": lambda: _vectors(
            oracles.bulk_variable_elimination(model.potentials, wanted, model.total), wanted
        ),
        "calculate_many_marginals": lambda: _vectors(
            oracles.calculate_many_marginals(model.potentials, wanted, model.total), wanted
        ),
    }
    answer: dict[str, Any] = {}
    for name in request["routines"]:
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            result = [np.asarray(vector) for vector in routines[name]()]
            seconds.append(time.perf_counter() - start)
        answer[name] = {"first_seconds": seconds[0], "second_seconds": seconds[1]}
        answer[name]["checksum"] = float(sum(np.square(vector).sum() for vector in result))
    return {"routines": answer, "peak_rss_mb": peak_rss_mb()}


def _vectors(vector: Any, wanted: list[tuple[str, ...]]) -> list[Any]:
    return [vector.tables[clique].datavector() for clique in wanted]


def mwem_pgm(request: dict[str, Any]) -> dict[str, Any]:
    """MWEM+PGM with the choices of the peer's published script: no one-way start, 90% of a round's
    budget on the measurement, candidates limited to the part of ``limit_mb`` that the round allows.
    """
    rng = np.random.default_rng(request["seed"])
    start = time.perf_counter()
    table = np.loadtxt(
        request["csv"],
        delimiter=",",
        skiprows=1,
        usecols=request["columns"],
        dtype=np.int64,
    )
    domain = mbi.Domain(list(request["domain"]), list(request["domain"].values()))
    data = mbi.Dataset({name: table[:, j] for j, name in enumerate(domain.attributes)}, domain)
    rounds, rho = request["rounds"], request["rho"] / request["rounds"]
    sigma, epsilon = np.sqrt(0.5 / (0.9 * rho)), np.sqrt(8 * 0.1 * rho)
    workload = list(itertools.combinations(domain.attributes, 2))
    truth = {pair: np.asarray(data.project(pair).datavector()) for pair in workload}
    measurements: list[Any] = []
    chosen: list[tuple[str, ...]] = []
    solver = mbi.estimation.MirrorDescent()
    model = solver.estimate(domain, measurements, iters=1000)
    for index in range(1, rounds + 1):
        limit = request["limit_mb"] * index / rounds
        candidates = [c for c in workload if _size_mb(domain, [*chosen, c]) <= limit]
        scores = np.array([_misfit(model, truth[c], c, domain) for c in candidates])
        odds = np.exp(0.5 * epsilon * (scores - scores.max()))
        pair = candidates[rng.choice(len(candidates), p=odds / odds.sum())]
        noisy = truth[pair] + rng.normal(0, sigma, truth[pair].size)
        measurements.append(mbi.LinearMeasurement(noisy, pair, stddev=float(sigma)))
        chosen.append(pair)
        # The programs compiled for the last structure are of no more use; keeping those of every
        # round can end at the system's limit on memory maps ("Cannot allocate memory").
        jax.clear_caches()
        model = solver.estimate(domain, measurements, iters=1000, warm_start=model)
    synthetic = model.synthetic_data()
    columns = [np.asarray(synthetic.to_dict()[name]) for name in domain.attributes]
    np.savetxt(
        request["out"],
        np.column_stack(columns),
        fmt="%d",
        delimiter=",",
        header=",".join(domain.attributes),
        comments="",
    )
    return {
        "seconds": time.perf_counter() - start,
        "peak_rss_mb": peak_rss_mb(),
        "chosen": chosen,
    }


def _size_mb(domain: Any, cliques: list[tuple[str, ...]]) -> float:
    return float(mbi.junction_tree.hypothetical_model_size(domain, cliques))


def _misfit(model: Any, truth: np.ndarray, clique: tuple[str, ...], domain: Any) -> float:
    guess = np.asarray(model.project(clique).datavector())
    return float(np.abs(truth - guess).sum() - domain.size(clique))


JOBS = {"estimation": estimation, "marginals": marginals, "mwem_pgm": mwem_pgm}

if __name__ == "__main__":
    serve(lambda request: JOBS[request["job"]](request))
