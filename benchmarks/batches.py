"""What batches gain: passes, estimates, error bars and posteriors side by side and one at a time.

``python -m benchmarks.batches [--out FILE] [--only TASK ...] [--names NAME ...]``; the tasks are
passes, estimates, error_bars and posteriors. Both sides run in one process, and seconds are
processor time for one set of potentials, model or record.

Passes: inference for 1, 10 and 100 sets of potentials at once, beside one set at a time, whether
batches are taken for the problem or not; ``gains`` is the rule's word. Estimates:
``estimate_many`` of 1, 10 and 100 redrawn sets of the measurements of each estimation problem,
beside ``estimate`` of the first few of them. Error bars: 50 replicates and the bars of one
unmeasured marginal, beside replicates made by ``estimate`` one after the other from the model as
warm start and asked one by one. Posteriors: all single marginals given five attributes, of records
drawn from the networks that pgmpy ships, beside ``FactorGraph.posterior`` of the first few of them.

Writes ``results/batches.json``. Takes more than 170 s.
"""

from __future__ import annotations

import functools
import json
import statistics
import time
import warnings
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import problems
from benchmarks.common import command_line
from benchmarks.published_networks import network
from pgmkit import (
    Domain,
    FactorGraph,
    GraphicalModel,
    Measurement,
    NotCertified,
    error_bars,
    estimate,
    estimate_many,
)
from pgmkit.estimation.batches.oracle import BatchedOracle, gains, table_cells
from pgmkit.inference.marginal_oracle import MarginalOracle

SIZES = (1, 10, 100)
REPLICATES = 50
ALONE = 5
"""Models, replicates or records that are made one at a time, to compare with."""
ROUNDS = 3
NETWORKS = ("asia", "child", "alarm", "insurance", "hailfinder", "win95pts", "hepar2", "andes")
MOST_CELLS = 1 << 25
"""Cells of all tables of a pass that are tried."""
PATIENCE = 60.0
"""Seconds that a batch may take, as foreseen from one model, to be run."""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/batches.json"))
    parser.add_argument("--only", nargs="*", default=[*TASKS], choices=[*TASKS])
    parser.add_argument("--names", nargs="*", help="problems or networks; all by default")
    arguments = parser.parse_args()
    stored = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    warnings.simplefilter("ignore", NotCertified)
    for task in arguments.only:
        names, run = TASKS[task]
        for name in arguments.names or names:
            found = run(name)
            stored.setdefault(task, {})[name] = found
            print(task, name, json.dumps(found), flush=True)
            arguments.out.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


def passes(name: str) -> dict[str, Any]:
    """Seconds a set of potentials, alone and for each size of batch, and what the rule says."""
    problem = problems.load(name)
    single = MarginalOracle(Domain(problem.domain), problem.cliques)
    rng, cells = np.random.default_rng(0), single.layout.cells
    potentials = torch.as_tensor(rng.normal(0, 0.1, (max(SIZES), cells)))
    found: dict[str, Any] = {"gains": gains(single), "table_cells": table_cells(single)}
    with single.session():
        found["alone"] = taken(lambda: [single.fast_marginals(p) for p in potentials[:ALONE]])[0]
        found["alone"] /= ALONE
        for size in SIZES:
            if size * table_cells(single) > MOST_CELLS:
                continue
            many, totals = BatchedOracle(single, size), torch.ones(size, dtype=torch.float64)
            work = functools.partial(many.marginals, potentials[:size], totals)
            found[str(size)] = taken(work)[0] / size
    return found


def estimates(name: str) -> dict[str, Any]:
    """Seconds a model, alone and for each size of batch; how far losses lie apart, in units."""
    problem = problems.load(name)
    domain, rng = Domain(problem.domain), np.random.default_rng(0)
    sets = [redrawn(problem, rng) for _ in range(max(SIZES))]
    seconds, alone = taken(lambda: [estimate(domain, each) for each in sets[:ALONE]])
    found: dict[str, Any] = {"alone": seconds / ALONE}
    for size in SIZES:
        if size * found["alone"] > PATIENCE:
            continue
        seconds, models = taken(lambda size=size: estimate_many(domain, sets[:size]))
        found[str(size)] = seconds / size
    apart = [abs(a.loss - b.loss) / a.unit for a, b in zip(alone, models, strict=False)]
    found["units_apart"] = max(apart)
    found["certified"] = sum(model.certified for model in models) / len(models)
    return found


def redrawn(problem: problems.Problem, rng: np.random.Generator) -> list[Measurement]:
    return [
        Measurement(clique, y + rng.normal(0, problem.sigma, y.shape), problem.sigma)
        for clique, y in zip(problem.cliques, problem.values, strict=True)
    ]


def bars(name: str) -> dict[str, Any]:
    """Seconds for 50 replicates and the first query, then for another query; alone, foreseen."""
    problem = problems.load(name)
    domain = Domain(problem.domain)
    measured = [
        Measurement(clique, y, problem.sigma)
        for clique, y in zip(problem.cliques, problem.values, strict=True)
    ]
    model = estimate(domain, measured)
    pairs = [
        pair
        for pair in combinations(domain.attributes, 2)
        if not any(set(pair) <= set(clique) for clique in problem.cliques)
    ]
    seconds, replicates = once(lambda: replicated(model, problem))
    asked, _ = once(lambda: [each.marginal(pairs[0]) for each in replicates])
    again, _ = once(lambda: [each.marginal(pairs[-1]) for each in replicates])
    per = REPLICATES / len(replicates)
    found = {"alone": {"first": per * (seconds + asked), "again": per * again}}
    if found["alone"]["first"] > 10 * PATIENCE:
        return found
    held = error_bars(model, measured, replicates=REPLICATES, seed=0)
    first, _ = once(lambda: held.marginal(pairs[0]))
    second, _ = once(lambda: held.marginal(pairs[-1]))
    found["batch"] = {"first": first, "again": second}
    return found


def replicated(model: GraphicalModel, problem: problems.Problem) -> list[GraphicalModel]:
    """A few replicates, each as error bars made them one at a time."""
    rng = np.random.default_rng(0)
    tables = model.marginals(problem.cliques)
    return [
        estimate(
            model.domain,
            [
                Measurement(c, t.ravel() + rng.normal(0, problem.sigma, t.size), problem.sigma)
                for c, t in tables.items()
            ],
            warm_start=model,
            tolerance=1.0,
        )
        for _ in range(ALONE)
    ]


def posteriors(name: str) -> dict[str, Any]:
    """Seconds a record, alone and for each size of batch, on a graph whose trees are known."""
    graph = FactorGraph.from_conditionals(network(name))
    rng = np.random.default_rng(0)
    names = [str(v) for v in rng.choice(graph.domain.attributes, 5, replace=False)]
    drawn = graph.posterior().sample(4000, rng=0)
    different = np.unique(np.stack([drawn.columns[v] for v in names], axis=1), axis=0)
    different = rng.permutation(different)[: max(SIZES)]
    columns = dict(zip(names, different.T, strict=True))
    records = [dict(zip(names, map(int, row), strict=True)) for row in different[:ALONE]]
    seconds, alone = taken(lambda: [graph.posterior(each).marginals() for each in records])
    found: dict[str, Any] = {"alone": seconds / len(records), "different": len(different)}
    for size in SIZES:
        some = {v: codes[:size] for v, codes in columns.items()}
        seconds, tables = taken(lambda some=some: graph.posteriors(some).marginals())
        found[str(size)] = seconds / min(size, len(different))
    found["difference"] = max(
        float(np.abs(each[v] - tables[v][row]).max())
        for row, each in enumerate(alone)
        for v in each
    )
    return found


def taken(work: Callable[[], Any]) -> tuple[float, Any]:
    """The median of some runs in seconds of processor time, after one that is not counted."""
    first, found = once(work)
    if first * ROUNDS > PATIENCE:
        return first, found
    return statistics.median(once(work)[0] for _ in range(ROUNDS)), found


def once(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    found = work()
    return time.process_time() - started, found


TASKS: dict[str, tuple[tuple[str, ...], Callable[[str], dict[str, Any]]]] = {
    "passes": (problems.NAMES, passes),
    "estimates": (problems.NAMES, estimates),
    "error_bars": (("star", "tree", "wide", "grid", "boolean"), bars),
    "posteriors": (NETWORKS, posteriors),
}

if __name__ == "__main__":
    main()
