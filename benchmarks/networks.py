"""All posteriors of published Bayesian networks, beside pyAgrum, each task in a process of its own.

``python -m benchmarks.networks [NAME ...] [--out FILE]`` with the extra ``networks``. The networks
are the 24 that pgmpy ships and four that are drawn here (grids, a pedigree, a chain). Of each: all
single posteriors given five observations drawn from the network, and the joint posteriors of five
distant pairs of variables without evidence. Cold is the first answer of the process, after imports
and with the network in memory; again the median of twelve further sets of observed variables (or
of pairs: three) on the same network; all the sum of cold and these, with what is prepared on the
way. Further sets end after three seconds. Seconds are processor time of one thread. Megabytes are
what all answers together added to the peak of the process. pyAgrum runs its three exact algorithms,
and each of its figures is its best.
Figures are medians of three runs, the sides in turn; what takes more than three seconds runs once.

Prints a table and writes ``results/networks.json``. How long all of them take
has not been recorded.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.common import command_line, peak_rss_mb
from benchmarks.published_networks import NAMES, network

Array = NDArray[np.float64]
Tables = Mapping[str, tuple[tuple[str, ...], Array]]
Answer = Callable[[int], list[Array]]
PEER = ("LazyPropagation", "ShaferShenoyInference", "VariableElimination")
LIMIT_SECONDS = 180
LIMIT_BYTES = 6 << 30
FURTHER = {"singles": 12, "pairs": 3}
FURTHER_SECONDS = 3.0
REPEATS = 3
LONG_SECONDS = 3.0
FIGURES = ("cold", "again", "all", "megabytes")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/networks.json"))
    arguments = parser.parse_args()
    # What a process imports is no part of its first answer: tasks are forks of this one.
    import pyagrum
    import torch

    import pgmkit.factor_graph  # noqa: F401

    pyagrum.setNumberOfThreads(1)
    torch.set_num_threads(1)
    stored = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    with threadpool_limits(1):
        for name in arguments.names:
            stored[name] = compare(name)
            print(line(name, stored[name]), flush=True)
            arguments.out.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


def compare(name: str) -> dict[str, Any]:
    """Both sides on one network: seconds, megabytes and the largest difference of the answers."""
    found: dict[str, Any] = {}
    tables = network(name)
    asked = questions(tables)
    for task in ("singles", "pairs"):
        sides = repeated(task, tables, asked)
        done = {side: each for side, each in sides.items() if "failed" not in each}
        best = {
            what: min((done[s][what] for s in PEER if s in done), default=None) for what in FIGURES
        }
        answers = {side: each.pop("answers") for side, each in done.items()}
        found[task] = {"sides": sides, "peer": best, "difference": difference(answers)}
    return found


def repeated(task: str, tables: Tables, asked: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of each side the median of some runs, the sides in turn; what takes long runs once."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in ("pgmkit", *PEER)}
    for _ in range(REPEATS):
        for side, found in runs.items():
            if not found or found[0].get("all", LONG_SECONDS) < LONG_SECONDS:
                found.append(run(side, task, tables, asked))
    medians = {}
    for side, found in runs.items():
        done = [each for each in found if "failed" not in each]
        medians[side] = found[0] if not done else {"answers": done[0]["answers"]}
        if done:
            medians[side] |= {w: statistics.median(each[w] for each in done) for w in FIGURES}
    return medians


def run(side: str, task: str, tables: Tables, asked: Mapping[str, Any]) -> dict[str, Any]:
    """One side's answers in a process of its own."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(sender, side, task, tables, asked))
    process.start()
    sender.close()
    try:
        if not receiver.poll(LIMIT_SECONDS):
            return {"failed": f"more than {LIMIT_SECONDS} s"}
        found: dict[str, Any] = receiver.recv()
        return found
    except EOFError:
        return {"failed": "the process ended"}
    finally:
        process.kill()
        process.join()


def difference(answers: Mapping[str, Sequence[Array]]) -> float | None:
    """The largest difference between ours and any of the peer's answers."""
    ours = answers.get("pgmkit")
    others = [each for side, each in answers.items() if side != "pgmkit"]
    if ours is None or not others:
        return None
    return max(
        float(np.abs(a - b).max())
        for each in others
        for a, b in zip(ours, each, strict=False)  # the slower side may have had fewer sets
    )


def line(name: str, found: Mapping[str, Any]) -> str:
    cells = [f"{name:12}"]
    for task in ("singles", "pairs"):
        ours, peer = found[task]["sides"]["pgmkit"], found[task]["peer"]
        for what in FIGURES:
            pair = [side.get(what) for side in (ours, peer)]
            cells.append("|".join("  -   " if v is None else f"{v:7.4g}" for v in pair))
        cells.append("-" if (d := found[task]["difference"]) is None else f"{d:.0e}")
    return "  ".join(cells)


def questions(tables: Tables) -> dict[str, Any]:
    """Sets of five observations drawn from the network, and of five distant pairs."""
    rng = np.random.default_rng(0)
    pairs = [distant_pairs(tables, rng) for _ in range(1 + FURTHER["pairs"])]
    return {
        "evidence": [observed(tables, rng) for _ in range(1 + FURTHER["singles"])],
        "pairs": pairs,
    }


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


def child(
    sender: Connection, side: str, task: str, tables: Tables, asked: Mapping[str, Any]
) -> None:
    """One side's answers in this process, with seconds and memory."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    gc.collect()  # touches every object: the copies that a fork makes of their pages are made now
    try:
        sender.send(measured((ours if side == "pgmkit" else peer(side))(tables, task, asked), task))
    except (MemoryError, RuntimeError, ValueError) as error:
        sender.send({"failed": f"{type(error).__name__}: {error}"[:200]})


def measured(answer: Answer, task: str) -> dict[str, Any]:
    before = peak_rss_mb()
    started = time.process_time()
    answers = answer(0)
    cold = time.process_time() - started
    again = []
    for number in range(1, 1 + FURTHER[task]):
        started = time.process_time()
        answers += answer(number)
        again.append(time.process_time() - started)
        if sum(again) > FURTHER_SECONDS:
            break
    figures = (cold, statistics.median(again), cold + sum(again), peak_rss_mb() - before)
    return {**dict(zip(FIGURES, figures, strict=True)), "answers": answers}


def ours(tables: Tables, task: str, asked: Mapping[str, Any]) -> Answer:
    from pgmkit import FactorGraph

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
