"""All 286 three-way marginals of one fitted ADULT model: pgmkit beside ``mbi``'s routes.

    python -m benchmarks.marginals [--peer cached]

The model is of the kind that an adaptive mechanism ends with: all one-way marginals, the pairs of
a maximum-mutual-information spanning tree, and ``--extra`` more pairs of high mutual information
between neighbours' neighbours, each of which closes a triangle. Noise of standard deviation 25.
Each side fits the same measurements in a process of its own; only the marginals are timed, first
and second time. Prints a table, writes ``results/marginals.json`` and ``results/marginals.svg``.

Takes 3 minutes, nearly all of them the peer's.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from benchmarks import adult
from benchmarks.common import (
    RESULTS,
    command_line,
    fresh_process,
    machine,
    parse_sides,
    read_results,
    table,
    write_results,
)

SIGMA = 25.0
PEER_ROUTINES = ("project", "bulk_variable_elimination", "calculate_many_marginals")
HEADER = ("routine", "first s", "second s", "peak RSS MB")


def mutual_information(joint: np.ndarray) -> float:
    """Mutual information of a two-way table of counts, in nats."""
    law = joint / joint.sum()
    product = law.sum(axis=1, keepdims=True) * law.sum(axis=0, keepdims=True)
    seen = law > 0
    return float((law[seen] * np.log(law[seen] / product[seen])).sum())


def chosen_cliques(data: adult.Adult, extra: int) -> list[tuple[str, ...]]:
    """One-ways, the spanning tree's pairs, and the best pairs at distance two in the tree."""
    graph = nx.Graph()
    for pair in data.pairs():
        weight = mutual_information(adult.counts(data.columns, data.domain, pair))
        graph.add_edge(*pair, weight=weight)
    tree = nx.maximum_spanning_tree(graph)
    near = [pair for pair in data.pairs() if nx.shortest_path_length(tree, *pair) == 2]
    near.sort(key=lambda pair: -graph.edges[pair]["weight"])
    inside = [pair for pair in data.pairs() if tree.has_edge(*pair)]
    return [*((name,) for name in data.domain), *inside, *near[:extra]]


def request_for(data: adult.Adult, extra: int, folder: Path) -> dict[str, Any]:
    """The fitting problem and the wanted marginals, as both sides read them."""
    cliques, rng = chosen_cliques(data, extra), np.random.default_rng(0)
    noisy = [
        adult.counts(data.columns, data.domain, clique).ravel().astype(float) for clique in cliques
    ]
    noisy = [values + rng.normal(0, SIGMA, values.size) for values in noisy]
    np.savez(folder / "noisy.npz", **{f"y{i}": values for i, values in enumerate(noisy)})
    return {
        "job": "marginals",
        "measurements": str(folder / "noisy.npz"),
        "cliques": cliques,
        "domain": data.domain,
        "sigma": SIGMA,
        "total": float(len(next(iter(data.columns.values())))),
        "wanted": list(itertools.combinations(data.domain, 3)),
        "iterations": 1000,
        "routines": PEER_ROUTINES,
    }


def plot(rows: list[tuple[Any, ...]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6.4, 2.6))
    places = np.arange(len(rows))
    axis.barh(places - 0.2, [row[1] for row in rows], 0.4, label="first call")
    axis.barh(places + 0.2, [row[2] for row in rows], 0.4, label="second call")
    axis.set_yticks(places, [row[0] for row in rows])
    axis.set(xscale="log", xlabel="seconds for 286 three-way marginals")
    axis.invert_yaxis()
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(RESULTS / "marginals.svg", metadata={"Date": None})


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--extra", type=int, default=5, help="pairs beyond the spanning tree")
    arguments = parse_sides(parser)
    data = adult.load()
    peer = read_results("peer_marginals") or None
    with tempfile.TemporaryDirectory() as folder:
        request = request_for(data, arguments.extra, Path(folder))
        ours = fresh_process("benchmarks.ours", request)
        if arguments.peer == "run":
            peer = fresh_process("benchmarks.peer", request, arguments.peer_python)
            write_results("peer_marginals", {"machine": machine(), **peer})
    sides = [("pgmkit", ours)] + ([("mbi", peer)] if peer and arguments.peer != "skip" else [])
    rows = [
        (f"{side} {name}", figure["first_seconds"], figure["second_seconds"], answer["peak_rss_mb"])
        for side, answer in sides
        for name, figure in answer["routines"].items()
    ]
    print(f"model: {len(ours['cliques'])} cliques, {ours['cells']} cells; largest difference")
    print(f"between the bulk call and single calls: {ours['largest_difference']:.2e} records\n")
    print(table(HEADER, rows))
    write_results(
        "marginals", {"machine": machine(), "pgmkit": ours, "mbi": dict(sides).get("mbi")}
    )
    plot(rows)


if __name__ == "__main__":
    main()
