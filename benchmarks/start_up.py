"""CPU seconds of fresh processes: what each small job costs from its start to its end.

    python -m benchmarks.start_up [--runs 5]
    python -m benchmarks.start_up --beliefs   # small models on plain arrays beside torch

A made-up table of 2,000 rows and its release by `mst` lie in a temporary folder. Prints the least
of the runs, as other work on a machine only adds to it.

Takes 0.4 CPU minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.common import command_line

JOBS = {
    "pgmkit --help": ("--help",),
    "pgmkit mechanisms": ("mechanisms",),
    "ledger of a release": ("ledger", "people.pgm"),
    "query of a measured table, error bars": ("query", "people.pgm", "age"),
    "query with a condition, no error bars": (
        *("query", "people.pgm", "pay | age < 3", "--no-error-bars"),
    ),
    "query of a misspelt column": ("query", "people.pgm", "agge"),
    "sample of 100 records": ("sample", "people.pgm", "--rows", "100", "--out", "records.csv"),
    "infer of a network of two variables": ("infer", "net.uai"),
    "synth with epsilon -1": (
        *("synth", "people.csv", "--schema", "people.yaml", "--epsilon", "-1", "--out", "o.csv"),
    ),
}
COMMAND = "import sys; from mechanisms.cli import main; main(sys.argv[1:])"
NETWORK = "BAYES\n2\n2 2\n2\n1 0\n2 0 1\n\n2\n 0.8 0.2\n4\n 0.9 0.1 0.2 0.8\n"


def prepare(folder: Path) -> None:
    """A table, its schema and release, and a network."""
    import pyarrow as pa
    from pyarrow import csv

    from mechanisms import synthesize
    from pgmkit import Categorical, Integer, Schema

    rng = np.random.default_rng(0)
    age, sex = rng.integers(0, 10, 2000), rng.integers(0, 2, 2000)
    frame = pa.table({"age": age, "sex": np.where(sex, "F", "M"), "pay": (age + sex) % 10})
    schema = Schema({"age": Integer(0, 9), "sex": Categorical(("F", "M")), "pay": Integer(0, 9)})
    csv.write_csv(frame, folder / "people.csv")
    schema.save(folder / "people.yaml")
    release = synthesize(frame, schema, epsilon=5, delta=1e-9, mechanism="mst", seed=0)
    release.save(folder / "people.pgm")
    (folder / "net.uai").write_text(NETWORK)


def seconds(folder: Path, arguments: tuple[str, ...]) -> float:
    """CPU seconds, of user and system, of one process."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    _, _, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime


def beliefs() -> None:
    """Milliseconds from potentials to the beliefs of the tree, of models of drawn trees."""
    import pgmkit.inference.model_tables
    from pgmkit import Domain, Factor, GraphicalModel

    rng = np.random.default_rng(0)
    limit = pgmkit.inference.model_tables.MOST_CELLS
    for count, size in ((3, 10), (14, 8), (28, 16), (100, 8), (14, 30), (14, 64)):
        names = [f"x{i}" for i in range(count)]
        domain = Domain(dict.fromkeys(names, size))
        pairs = [(names[int(rng.integers(i))], names[i]) for i in range(1, count)]
        potentials = tuple(
            Factor(domain.project(pair), rng.normal(size=(size, size))) for pair in pairs
        )
        spent: dict[int, list[float]] = {0: [], limit: []}
        for most in (0, limit) * 15:
            pgmkit.inference.model_tables.MOST_CELLS = most
            model = GraphicalModel(domain, potentials, total=1.0)
            started = time.process_time()
            model.log_partition if most else model._tables.beliefs  # noqa: B018
            spent[most].append(1e3 * (time.process_time() - started))
        print(
            f"{count} attributes of {size} values, {model.tree.cells:,} cells: "
            f"torch {median(spent[0]):.2f} ms, plain {median(spent[limit]):.2f} ms"
        )


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--beliefs", action="store_true")
    options = parser.parse_args()
    if options.beliefs:
        beliefs()
        return
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for name, arguments in JOBS.items():
            spent = min(seconds(Path(folder), arguments) for _ in range(options.runs))
            print(f"{spent:5.2f} s  {name}", flush=True)


if __name__ == "__main__":
    main()
