"""Whether auto is ever worse than independent columns, over seeds, on tables of the zoo.

    python -m benchmarks.zoo_auto [--only NAME] [--seeds 10] [--most-rows 2000] [--epsilon 1]

For each table of at most so many rows and each epsilon (0.1, 1 and 10, or the given): the mean
total variation of up to 200 pairs of columns for `auto` (with the table's target, where it has
one) and for `independent`, over the same seeds, and their difference in standard errors of that
difference. Prints a table as Markdown; the rows where auto is worse by more than one standard
error are marked. Where auto takes independent columns both differ by noise alone, so that one row
in six of these is marked by chance.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.zoo import EPSILONS, MOST_PAIRS
from benchmarks.zoo_tables import TABLES, Absent, Table
from mechanisms.release.evaluation import marginal_errors, some_cliques
from mechanisms.synthesis.pipeline import synthesize
from pgmkit.dataset import Dataset
from pgmkit.tables.draft import draft
from pgmkit.tables.files import encode_file
from pgmkit.tables.schema import Schema

_DELTA = 1e-9
"""As the command line's."""


def errors(
    schema: Schema, data: Dataset, mechanism: str, epsilon: float, target: str | None, seeds: int
) -> tuple[list[float], set[str]]:
    """The mean error of pairs for each seed, and the mechanisms that were taken."""
    found, taken = [], set()
    pairs = some_cliques(data.domain, 2, most=MOST_PAIRS)
    for seed in range(seeds):
        # Another stream for each mechanism: the same noise would hide what the two differ in.
        rng = np.random.default_rng([seed, len(mechanism)])
        release = synthesize(
            data,
            schema,
            epsilon=epsilon,
            delta=_DELTA,
            mechanism=mechanism,
            target=target if mechanism == "auto" else None,
            seed=rng,
            progress=False,
        )
        found.append(float(np.mean(list(marginal_errors(release.model, data, pairs).values()))))
        taken.add(release.mechanism)
    return found, taken


def row(table: Table, schema: Schema, data: Dataset, epsilon: float, seeds: int) -> str:
    """A line of the Markdown table."""
    own, taken = errors(schema, data, "auto", epsilon, table.target, seeds)
    plain, _ = errors(schema, data, "independent", epsilon, None, seeds)
    spread = float(np.sqrt((np.var(own, ddof=1) + np.var(plain, ddof=1)) / seeds))
    distance = (np.mean(own) - np.mean(plain)) / max(spread, 1e-12)
    cells = [table.name, f"{epsilon:g}", ", ".join(sorted(taken))]
    cells += [f"{np.mean(own):.3f}", f"{np.mean(plain):.3f}", f"{spread:.3f}", f"{distance:+.1f}"]
    return "| " + " | ".join([*cells, "worse" if distance > 1 else ""]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="tables whose name holds this")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--most-rows", type=int, default=2000)
    parser.add_argument("--epsilon", type=float, action="append")
    options = parser.parse_args()
    head = ["table", "epsilon", "taken", "auto", "independent", "s.e.", "difference / s.e.", ""]
    print("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|")
    for table in TABLES:
        if options.only and not any(part in table.name for part in options.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                path = table.write(Path(folder))
            except Absent:
                continue
            drafted = Path(folder, "s.yaml")
            drafted.write_text(draft(path, look=True), encoding="utf-8")
            schema = Schema.load(drafted)
            if schema.unresolved:
                continue
            data = encode_file(path, schema)
        if not isinstance(data, Dataset) or len(data) > options.most_rows:
            continue
        for epsilon in options.epsilon or EPSILONS:
            print(row(table, schema, data, epsilon, options.seeds), flush=True)


if __name__ == "__main__":
    main()
