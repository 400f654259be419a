"""Counting all three-way marginals of a million rows: pgmkit against one bincount a clique.

    python -m benchmarks.counting [--rows 1000000]

Prints CPU and wall seconds (best of the repetitions, one thread) and writes them with the machine
to benchmarks/results/counting.json, with a plot beside it. Rows are drawn at random over ADULT's
domain; with the folder of adult.csv in PGMKIT_DATA they are also resampled from it.

Takes 0.1 CPU minutes.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import RESULTS, command_line, machine, table, write_results
from pgmkit import Schema, encode_file
from pgmkit.domain import Clique, Domain
from pgmkit.records.dataset import Dataset

ADULT = {
    "sex": 2,
    "income>50K": 2,
    "race": 5,
    "relationship": 6,
    "marital-status": 7,
    "workclass": 9,
    "occupation": 15,
    "education-num": 16,
    "native-country": 42,
    "capital-gain": 16,
    "capital-loss": 6,
    "hours-per-week": 10,
    "age": 10,
}

Tables = dict[Clique, NDArray[np.int64]]


def one_bincount_each(data: Dataset, cliques: list[Clique]) -> Tables:
    """The plain way: number the cells of each clique, count them."""
    tables = {}
    for clique in cliques:
        shape = data.domain.shape(clique)
        cells = np.ravel_multi_index([data.columns[a] for a in clique], shape)
        tables[clique] = np.bincount(cells, minlength=data.domain.size(clique)).reshape(shape)
    return tables


def datasets(rows: int) -> Iterator[tuple[str, Dataset]]:
    rng = np.random.default_rng(0)
    domain = Domain(ADULT)
    uniform = {a: rng.integers(0, size, rows) for a, size in ADULT.items()}
    yield "uniform", Dataset(domain, uniform)
    folder = os.environ.get("PGMKIT_DATA")
    if folder is None:
        print("PGMKIT_DATA is not set: the rows resampled from adult.csv are left out")
        return
    adult = encode_file(Path(folder) / "adult.csv", Schema.from_dict(ADULT))
    drawn = rng.integers(0, len(adult), rows)
    yield "adult", Dataset(domain, {a: column[drawn] for a, column in adult.columns.items()})


def measure(count: Callable[[], Tables], repeat: int) -> dict[str, float]:
    cpu, wall = [], []
    for _ in range(repeat):
        started = time.process_time(), time.perf_counter()
        count()
        cpu.append(time.process_time() - started[0])
        wall.append(time.perf_counter() - started[1])
    return {"cpu_s": min(cpu), "wall_s": min(wall)}


def plot(results: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "counting"
    figure, axis = pyplot.subplots(figsize=(4.8, 3.2))
    for source, way in sorted({(result["source"], result["way"]) for result in results}):
        timed = [r for r in results if (r["source"], r["way"]) == (source, way)]
        ks, seconds = [r["k"] for r in timed], [r["cpu_s"] for r in timed]
        axis.plot(ks, seconds, "o-", label=f"{way}, {source} rows")
    axis.set(yscale="log", xticks=(1, 2, 3), xlabel="attributes a marginal", ylabel="CPU seconds")
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(RESULTS / "counting.svg", metadata={"Date": None})


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    ways: dict[str, Callable[[Dataset, list[Clique]], Tables]] = {
        "pgmkit": lambda data, cliques: dict(data.marginals(cliques)),
        "one bincount each": one_bincount_each,
    }
    results = []
    for source, data in datasets(arguments.rows):
        for k in (1, 2, 3):
            cliques: list[Clique] = list(itertools.combinations(data.domain, k))
            expected = one_bincount_each(data, cliques)
            for clique, counted in data.marginals(cliques).items():
                np.testing.assert_array_equal(counted, expected[clique])
            for way, count in ways.items():
                timed = measure(partial(count, data, cliques), arguments.repeat)
                results.append(
                    {"source": source, "k": k, "cliques": len(cliques), "way": way} | timed
                )
    print(table(list(results[0]), [list(result.values()) for result in results]))
    record = {"machine": machine(), "rows": arguments.rows, "threads": 1, "results": results}
    print(f"wrote {write_results('counting', record)}")
    plot(results)


if __name__ == "__main__":
    main()
