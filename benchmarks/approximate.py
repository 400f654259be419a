"""Approximate posteriors beside exact ones, and beside pyAgrum's loopy belief propagation.

``python -m benchmarks.approximate [NAME ...] [--cells N ...] [--out FILE]``. Instances have exact
answers: Ising grids and random 3-regular graphs (couplings uniform in (-J, J), or in (0, J) where
attractive, fields in (-h, h), spins of +-1), noisy-or networks of causes and positive findings, and
published networks given five drawn observations (extra ``networks``). A NAME may also be the path
of a UAI file; where its evidence (``.evid``) and published marginals (``.MAR``) lie beside it, they
are taken, and the exact answers are compared with the latter, too. Of each side the mean and
largest error over all values of all single marginals, and seconds of processor time; of ours the
error of log Z and of both bounds, too. pyAgrum takes Bayesian networks: a factor is given
to it as an observed child of its attributes.

Prints a table and writes
``results/approximate.json``. Takes 0.7 CPU minutes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.common import command_line
from pgmkit import Domain, FactorGraph, ModelTooLarge
from pgmkit.uai import read_evidence, read_marginals, read_model

PUBLISHED = ("alarm", "hailfinder", "win95pts", "hepar2", "insurance")
Instance = tuple[FactorGraph, dict[str, int]]


def spins(
    edges: list[tuple[int, int]], low: float, high: float, field: float, seed: int
) -> Instance:
    """An Ising model with couplings uniform in (low, high)."""
    rng = np.random.default_rng(seed)
    count = 1 + max(map(max, edges))
    tables: list[tuple[tuple[str, ...], Any]] = [
        ((f"x{v}",), np.exp([h, -h])) for v, h in enumerate(rng.uniform(-field, field, count))
    ]
    for (a, b), j in zip(edges, rng.uniform(low, high, len(edges)), strict=True):
        tables.append(((f"x{a}", f"x{b}"), np.exp([[j, -j], [-j, j]])))
    return FactorGraph(Domain({f"x{v}": 2 for v in range(count)}), tables), {}


def grid(side: int, low: float, high: float, field: float) -> Instance:
    at = {(i, j): i * side + j for i in range(side) for j in range(side)}
    steps = [((i, j), (i + a, j + b)) for i, j in at for a, b in ((0, 1), (1, 0))]
    return spins([(at[s], at[t]) for s, t in steps if t in at], low, high, field, 0)


def regular(count: int, strength: float, field: float) -> Instance:
    edges = [(int(a), int(b)) for a, b in nx.random_regular_graph(3, count, seed=0).edges]
    return spins(edges, -strength, strength, field, 0)


def noisy_or(causes: int, findings: int, positive: int) -> Instance:
    """A two-layer network; the first findings are positive, and as many are negative."""
    rng = np.random.default_rng(0)
    tables: dict[str, Any] = {}
    for d, prior in enumerate(rng.uniform(0.02, 0.2, causes)):
        tables[f"d{d}"] = ((f"d{d}",), np.array([1 - prior, prior]))
    for f in range(findings):
        parents = rng.choice(causes, 4, replace=False)
        absent = np.full((), 0.98)
        for _ in parents:
            absent = np.multiply.outer(absent, [1.0, rng.uniform(0.1, 0.8)])
        tables[f"f{f}"] = ((f"f{f}", *(f"d{d}" for d in parents)), np.stack([absent, 1 - absent]))
    seen = {f"f{f}": int(f < positive) for f in range(2 * positive)}
    return FactorGraph.from_conditionals(tables), seen


def published(name: str) -> Instance:
    from benchmarks.networks import observed
    from benchmarks.published_networks import network

    tables = network(name)
    seen = observed(tables, np.random.default_rng(0))
    return FactorGraph.from_conditionals(dict(tables)), seen


def of_file(path: str) -> Instance:
    graph, evidence = read_model(path), Path(path + ".evid")
    return graph, read_evidence(evidence, graph) if evidence.exists() else {}


INSTANCES: dict[str, Callable[[], Instance]] = {
    **{f"grid10 J={j}": (lambda j=j: grid(10, -j, j, 0.1)) for j in (0.5, 1.0, 2.0)},
    **{f"grid10 attractive J={j}": (lambda j=j: grid(10, 0, j, 0.5)) for j in (0.5, 1.0)},
    **{f"grid15 J={j}": (lambda j=j: grid(15, -j, j, 0.1)) for j in (1.0, 2.0)},
    **{f"regular100 J={j}": (lambda j=j: regular(100, j, 0.3)) for j in (0.5, 1.0, 2.0)},
    "noisy-or 40x60": lambda: noisy_or(40, 60, 12),
    **{name: (lambda name=name: published(name)) for name in PUBLISHED},
}


def ours(instance: Instance, cells: int) -> tuple[dict[str, Any], dict[str, Any]]:
    graph, seen = instance
    began = time.process_time()
    found = graph.posterior(seen, inference="region", region_cells=cells)
    laws = {clique[0]: law for clique, law in found.marginals().items()}
    figures = {
        "seconds": time.process_time() - began,
        "log_partition": found.log_partition,
        "bounds": found.log_partition_bounds,
        "converged": found.converged,
    }
    return figures, laws


def as_network(instance: Instance) -> tuple[dict[str, Any], dict[str, int]]:
    """Conditional tables and observations: a potential is the law of a child that was observed."""
    graph, seen = instance
    if graph.children is not None:
        return {clique[0]: (clique, table) for clique, table in graph.tables}, seen
    tables: dict[str, Any] = {
        name: ((name,), np.full(size, 1 / size)) for name, size in graph.domain.sizes.items()
    }
    for place, (clique, table) in enumerate(graph.tables):
        law = table / table.max()
        tables[f"seen{place}"] = ((f"seen{place}", *clique), np.stack([1 - law, law]))
    return tables, {f"seen{place}": 1 for place in range(len(graph.tables))}


def peer(instance: Instance) -> tuple[dict[str, Any], dict[str, Any]]:
    """pyAgrum's loopy belief propagation, which takes Bayesian networks."""
    import pyagrum as gum

    tables, seen = as_network(instance)
    model = gum.BayesNet()
    for name, (_, table) in tables.items():
        model.add(gum.LabelizedVariable(name, name, len(table)))
    for clique, table in tables.values():
        for parent in clique[1:]:
            model.addArc(parent, clique[0])
        held = model.cpt(clique[0])
        axes = [clique.index(name) for name in reversed(held.names)]
        held[:] = np.ascontiguousarray(table.transpose(axes))
    began = time.process_time()
    engine = gum.LoopyBeliefPropagation(model)
    engine.setEvidence(seen)
    engine.makeInference()
    laws = {name: engine.posterior(name).toarray() for name in instance[0].domain}
    return {"seconds": time.process_time() - began}, laws


def errors(laws: dict[str, Any], exact: dict[str, Any]) -> dict[str, float]:
    apart = np.concatenate([np.abs(laws[name] - law) for name, law in exact.items()])
    return {"mean": float(apart.mean()), "max": float(apart.max())}


def compare(name: str, sizes: list[int]) -> dict[str, Any]:
    instance = INSTANCES[name]() if name in INSTANCES else of_file(name)
    graph, seen = instance
    exact = graph.posterior(seen)
    laws = {clique[0]: law for clique, law in exact.marginals().items() if clique[0] not in seen}
    found: dict[str, Any] = {"log_partition": exact.log_partition, "sides": {}}
    if (results := Path(name + ".MAR")).exists():
        stated = dict(zip(graph.domain, read_marginals(results), strict=True))
        found["published"] = errors(stated, laws)["max"]
    for cells in sizes:
        figures, given = ours(instance, cells)
        found["sides"][str(cells)] = figures | errors(given, laws)
    figures, given = peer(instance)
    found["sides"]["peer"] = figures | errors(given, laws)
    return found


def line(name: str, found: dict[str, Any]) -> str:
    cells, truth = [f"| {name}"], found["log_partition"]
    if "published" in found:
        cells.append(f"published: {found['published']:.2g}")
    for side, each in found["sides"].items():
        text = f"{each['mean']:.2g} {each['max']:.2g}"
        if "bounds" in each:
            apart = [bound - truth for bound in (*each["bounds"], each["log_partition"])]
            text += " [{:.3g}, {:+.3g}] {:+.2g}".format(*apart)
            text += "" if each["converged"] else " not converged"
        cells.append(f"{side}: {text} {each['seconds']:.2g} s")
    return " | ".join(cells) + " |"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("names", nargs="*", default=list(INSTANCES))
    parser.add_argument("--cells", nargs="+", type=int, default=[16, 256, 1024])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/approximate.json"))
    arguments = parser.parse_args()
    stored = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    with threadpool_limits(1):
        for name in arguments.names:
            try:
                found = compare(name, arguments.cells)
            except ModelTooLarge as error:
                print(f"| {name}: {error} |", flush=True)
                continue
            title = name if name in INSTANCES else Path(name).stem
            stored[title] = found
            print(line(title, found), flush=True)
            arguments.out.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
