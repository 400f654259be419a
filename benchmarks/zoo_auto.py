"""Whether auto is ever worse than independent columns, over seeds, on tables of the zoo.

    python -m benchmarks.zoo_auto [--only NAME] [--seeds 10] [--first-seed 0] [--most-rows 7000]
                                  [--epsilon 1] [--accounting zcdp]

For each table of at most so many rows and each epsilon (0.1, 1 and 10, or the given): the mean
total variation of up to 200 pairs of columns for `auto` (with the table's target, where it has
one) and for `independent`, and their difference in standard errors of that difference. Every run
has noise of its own. Prints a table as Markdown, and appends its rows to
``results/zoo_auto.jsonl``; those where auto is worse by more than one standard error are marked.
Where auto takes independent columns both differ by noise, and by what auto pays to choose, so that
one row in six of these is marked by chance: `--first-seed` looks at such a row again with fresh
seeds, more of them. Both have the same accounting by default; `--accounting` gives independent
columns another.

How long it takes has not been recorded.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, command_line
from benchmarks.zoo_tables import TABLES, Absent

LINES = RESULTS / "zoo_auto.jsonl"

EPSILONS = (0.1, 1.0, 10.0)
MOST_PAIRS = 200
_DELTA = 1e-9
"""As the command line's."""


@dataclass(frozen=True)
class Comparison:
    """The mean errors of pairs, a number a seed, and which mechanisms auto took."""

    auto: tuple[float, ...]
    independent: tuple[float, ...]
    taken: tuple[str, ...]

    @property
    def standard_error(self) -> float:
        """Of the difference of the means."""
        parts = [np.var(each, ddof=1) / len(each) for each in (self.auto, self.independent)]
        return float(np.sqrt(sum(parts)))

    @property
    def distance(self) -> float:
        """Auto less independent, in standard errors: above 1 where auto is worse."""
        difference = float(np.mean(self.auto) - np.mean(self.independent))
        return difference / max(self.standard_error, 1e-12)


def compare(
    path: Path,
    schema: Any,
    epsilon: float,
    target: str | None,
    seeds: Sequence[int],
    accounting: str | None = None,
) -> Comparison:
    """Both mechanisms on a file, a run of each a seed."""
    from pgmkit.tables.files.record_files import read_frame

    frame = read_frame(path, schema)
    found: dict[str, list[float]] = {"auto": [], "independent": []}
    taken = set()
    for seed in seeds:
        for mechanism, errors in found.items():
            # A stream for each: the same noise would hide what the two differ in.
            rng = np.random.default_rng([seed, len(mechanism)])
            own = {"target": target} if mechanism == "auto" else {"accounting": accounting}
            error, name = _error(path, frame, schema, mechanism, epsilon, rng, **own)
            errors.append(error)
            if mechanism == "auto":
                taken.add(name)
    return Comparison(tuple(found["auto"]), tuple(found["independent"]), tuple(sorted(taken)))


def _error(
    path: Path,
    frame: Any,
    schema: Any,
    mechanism: str,
    epsilon: float,
    rng: np.random.Generator,
    **options: Any,
) -> tuple[float, str]:
    """The mean error of pairs of one release, and the mechanism that ran."""
    from mechanisms.release.evaluation import marginal_errors, some_cliques
    from mechanisms.synthesis.pipeline import synthesize
    from pgmkit.tables.files.record_files import encode_file

    release = synthesize(
        frame,
        schema,
        epsilon=epsilon,
        delta=_DELTA,
        mechanism=mechanism,
        seed=rng,
        progress=False,
        **options,
    )
    truth = encode_file(path, release.schema)
    pairs = some_cliques(truth.domain, 2, most=MOST_PAIRS)
    errors = marginal_errors(release.model, truth, pairs)
    return float(np.mean(list(errors.values()))), release.mechanism


def main() -> None:
    from pgmkit import Schema
    from pgmkit.tables.draft.draft import draft

    parser = command_line(__doc__)
    parser.add_argument("--only", action="append", help="tables whose name holds this")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0, help="fresh seeds confirm a row")
    parser.add_argument("--most-rows", type=int, default=7000)
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--accounting", help="that of independent columns")
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
            if rows_of(path) > options.most_rows:
                continue
            drafted = Path(folder, "s.yaml")
            drafted.write_text(draft(path, look=True), encoding="utf-8")
            schema = Schema.load(drafted)
            for epsilon in options.epsilon or EPSILONS:
                found = compare(
                    path,
                    schema,
                    epsilon,
                    table.target,
                    range(options.first_seed, options.first_seed + options.seeds),
                    accounting=options.accounting,
                )
                line = {
                    "table": table.name,
                    "epsilon": epsilon,
                    "seeds": options.seeds,
                    "first_seed": options.first_seed,
                    "taken": found.taken,
                    "auto": round(float(np.mean(found.auto)), 4),
                    "independent": round(float(np.mean(found.independent)), 4),
                    "standard_error": round(found.standard_error, 4),
                    "distance": round(found.distance, 1),
                }
                with LINES.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                cells = [table.name, f"{epsilon:g}", ", ".join(found.taken)]
                cells += [f"{np.mean(each):.3f}" for each in (found.auto, found.independent)]
                cells += [f"{found.standard_error:.3f}", f"{found.distance:+.1f}"]
                worse = "worse" if found.distance > 1 else ""
                print("| " + " | ".join([*cells, worse]) + " |", flush=True)


def rows_of(path: Path) -> int:
    """The lines of a file, but for a header."""
    with path.open("rb") as lines:
        return sum(1 for _ in lines) - 1


if __name__ == "__main__":
    main()
