"""All posteriors of published Bayesian networks, beside pyAgrum, each task in a fresh process.

``python -m benchmarks.networks [NAME ...] [--out FILE]`` with the extra ``networks``. The networks
are the 24 that pgmpy ships and four that are drawn here (grids and a pedigree). Of each: all
single posteriors given five observations drawn from the network (cold: the first answer of the
process, after imports and with the network in memory; again: the median of three further sets of
observed variables on the same network), and the joint posteriors of five distant pairs of variables
without evidence (again: of other pairs). Seconds are processor time of one thread, which other
programs on the machine do not lengthen much. pyAgrum runs its three exact algorithms, and each of
its figures is its best.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import peak_rss_mb
from benchmarks.published_networks import NAMES, network

Array = NDArray[np.float64]
Tables = Mapping[str, tuple[tuple[str, ...], Array]]
PEER = ("LazyPropagation", "ShaferShenoyInference", "VariableElimination")
LIMIT_SECONDS = 180
LIMIT_BYTES = 12 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/networks.json"))
    parser.add_argument("--child", nargs=4, metavar=("SIDE", "TASK", "NETWORK", "ANSWERS"))
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    stored = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in arguments.names:
        stored[name] = compare(name)
        print(line(name, stored[name]), flush=True)
        arguments.out.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


def compare(name: str) -> dict[str, Any]:
    """Both sides on one network: seconds, megabytes and the largest difference of the answers."""
    found: dict[str, Any] = {}
    tables = network(name)
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "network.pickle"
        stored.write_bytes(pickle.dumps((tables, questions(tables))))
        for task in ("singles", "pairs"):
            sides = {side: run(side, task, stored) for side in ("pgmkit", *PEER)}
            done = {side: each for side, each in sides.items() if "failed" not in each}
            best = {
                what: min((done[s][what] for s in PEER if s in done), default=None)
                for what in ("cold", "again", "megabytes")
            }
            answers = {side: each.pop("answers") for side, each in done.items()}
            found[task] = {
                "sides": sides,
                "peer": best,
                "difference": difference(answers),
            }
    return found


def run(side: str, task: str, stored: Path) -> dict[str, Any]:
    answers = stored.with_name(f"{side}-{task}.pickle")
    command = [sys.executable, "-m", "benchmarks.networks", "--child", side, task]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, str(stored), str(answers)],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {LIMIT_SECONDS} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return {**json.loads(done.stdout), "answers": pickle.loads(answers.read_bytes())}


def difference(answers: Mapping[str, Sequence[Array]]) -> float | None:
    """The largest difference between ours and any of the peer's answers."""
    ours = answers.get("pgmkit")
    others = [each for side, each in answers.items() if side != "pgmkit"]
    if ours is None or not others:
        return None
    return max(
        float(np.abs(a - b).max()) for each in others for a, b in zip(ours, each, strict=True)
    )


def line(name: str, found: Mapping[str, Any]) -> str:
    cells = [f"{name:12}"]
    for task in ("singles", "pairs"):
        ours, peer = found[task]["sides"]["pgmkit"], found[task]["peer"]
        for what in ("cold", "again", "megabytes"):
            pair = [side.get(what) for side in (ours, peer)]
            cells.append("|".join("  -   " if v is None else f"{v:7.4g}" for v in pair))
        cells.append("-" if (d := found[task]["difference"]) is None else f"{d:.0e}")
    return "  ".join(cells)


def questions(tables: Tables) -> dict[str, Any]:
    """Four sets of five observations drawn from the network, and four of distant pairs."""
    rng = np.random.default_rng(0)
    evidence = [observed(tables, rng) for _ in range(4)]
    return {"evidence": evidence, "pairs": [distant_pairs(tables, rng) for _ in range(4)]}


def observed(tables: Tables, rng: np.random.Generator) -> dict[str, int]:
    record: dict[str, int] = {}
    for name, (axes, table) in tables.items():
        law = table[(slice(None), *(record[parent] for parent in axes[1:]))]
        record[name] = int(rng.choice(len(law), p=law / law.sum()))
    # Never all but nothing of a small network.
    count = min(5, len(record) // 2)
    return {str(name): record[name] for name in rng.choice(list(record), count, replace=False)}


def distant_pairs(tables: Tables, rng: np.random.Generator) -> list[tuple[str, str]]:
    """The five most distant in the moral graph of a hundred random pairs."""
    import networkx as nx

    graph = nx.Graph()
    for axes, _ in tables.values():
        nx.add_path(graph, axes)
        graph.add_edges_from((a, b) for a in axes for b in axes if a != b)
        graph.add_nodes_from(axes)
    names = list(tables)
    pairs = {tuple(sorted(map(str, rng.choice(names, 2, replace=False)))) for _ in range(100)}
    apart = {
        (a, b): nx.shortest_path_length(graph, a, b)
        for a, b in sorted(pairs)
        if nx.has_path(graph, a, b)
    }
    return sorted(apart, key=lambda pair: -apart[pair])[:5]


def child(side: str, task: str, stored: str, target: str) -> None:
    """One side's answers in this process; seconds and memory on standard output."""
    tables, asked = pickle.loads(Path(stored).read_bytes())
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    answer = (ours if side == "pgmkit" else peer(side))(tables, task, asked)
    before = peak_rss_mb()
    started = time.process_time()
    first = answer(0)
    cold = time.process_time() - started
    taken = peak_rss_mb() - before
    again, answers = [], list(first)
    for number in (1, 2, 3):
        started = time.process_time()
        answers += answer(number)
        again.append(time.process_time() - started)
    Path(target).write_bytes(pickle.dumps(answers))
    print(json.dumps({"cold": cold, "again": statistics.median(again), "megabytes": taken}))


Answer = Callable[[int], list[Array]]


def ours(tables: Tables, task: str, asked: Mapping[str, Any]) -> Answer:
    import torch

    from pgmkit import FactorGraph

    torch.set_num_threads(1)
    graph = FactorGraph.from_conditionals(tables)

    def answer(number: int) -> list[Array]:
        if task == "pairs":
            found = graph.posterior({}).marginals(asked["pairs"][number])
            return list(found.values())
        evidence = asked["evidence"][number]
        posterior = graph.posterior(evidence)
        found = posterior.marginals([(name,) for name in tables if name not in evidence])
        return list(found.values())

    return answer


def peer(algorithm: str) -> Callable[[Tables, str, Mapping[str, Any]], Answer]:
    def prepare(tables: Tables, task: str, asked: Mapping[str, Any]) -> Answer:
        import pyagrum as gum

        gum.setNumberOfThreads(1)
        engine = getattr(gum, algorithm)(peer_network(tables))
        return peer_answer(engine, tables, task, asked)

    return prepare


def peer_network(tables: Tables) -> Any:
    """The network in pyAgrum."""
    import pyagrum as gum

    net = gum.BayesNet()
    for name, (_, table) in tables.items():
        net.add(gum.LabelizedVariable(name, name, len(table)))
    for name, (axes, table) in tables.items():
        for parent in axes[1:]:
            net.addArc(parent, name)
        cpt = net.cpt(name)
        order = [axes.index(each) for each in reversed(cpt.names)]
        cpt[:] = np.ascontiguousarray(table.transpose(order))
    return net


def peer_answer(engine: Any, tables: Tables, task: str, asked: Mapping[str, Any]) -> Answer:
    def singles(number: int) -> list[Array]:
        evidence = asked["evidence"][number]
        engine.setEvidence(evidence)
        engine.makeInference()
        return [engine.posterior(name).toarray() for name in tables if name not in evidence]

    def pairs(number: int) -> list[Array]:
        engine.eraseAllTargets()
        for pair in asked["pairs"][number]:
            engine.addJointTarget(set(pair))
        engine.makeInference()
        found = [(pair, engine.jointPosterior(set(pair))) for pair in asked["pairs"][number]]
        return [
            table.toarray().transpose([list(reversed(table.names)).index(n) for n in pair])
            for pair, table in found
        ]

    return pairs if task == "pairs" else singles


if __name__ == "__main__":
    main()
