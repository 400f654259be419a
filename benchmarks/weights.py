"""Weighted totals of a survey: their bias, their errors beside the stated ones, and the coverage.

    python -m benchmarks.weights [--runs 200] [--epsilon 1]

Totals of `HHweight` (households) and `Pweight` (persons, at most six of a household, which is the
unit) by region. "points": weights rounded at random to 41 points from 0 to the bound (220 and 140).
"low bound": the same with the bound at 100 and 80, which clips some weights. "bins": the same
number of bins in place of points. Errors are those of the regions: the largest bias relative to the
total, the root mean squared error, the root mean squared stated standard error, and the share of
95% intervals that hold the true total. Writes results/weights.json.

Takes more than 170 s.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import command_line, machine, table, write_results
from mechanisms import synthesize
from pgmkit import Categorical, Numeric, Schema, round_at_random

REGION = "SUBREGCluster"
POINTS = 41
MOST = 6
SURVEYS = {"HHweight": ("households", 220.0, 100.0), "Pweight": ("persons", 140.0, 80.0)}


def survey(weight: str) -> pd.DataFrame:
    """The region, weight and household of each record."""
    frame = pd.read_csv(Path(os.environ["PGMKIT_DATA"], f"{SURVEYS[weight][0]}.csv.gz"))
    frame = frame[["hhID", REGION, weight]]
    return frame[frame.groupby("hhID").cumcount() < MOST]


def figures(weight: str, way: str, runs: int, epsilon: float) -> dict[str, Any]:
    """The errors of weighted totals over runs with fresh noise and fresh rounding."""
    frame = survey(weight)
    _, high, low = SURVEYS[weight]
    bound = low if way == "low bound" else high
    points = np.linspace(0, bound, POINTS)
    regions = Categorical(sorted(frame[REGION].unique().tolist()))
    column = (
        Numeric(0, bound, bins=POINTS - 1, decimals=3)
        if way == "bins"
        else Categorical(points.tolist())
    )
    schema = Schema({REGION: regions, weight: column})
    true = frame.groupby(REGION)[weight].sum().to_numpy()
    question = f"sum({weight}) | {REGION}"
    most = 1 if weight == "HHweight" else MOST
    started = time.process_time()
    errors, stated, held = [], [], []
    for seed in range(runs):
        drawn = round_at_random(frame[weight].to_numpy(), points, rng=seed)
        given = frame if way == "bins" else frame.assign(**{weight: drawn})
        release = synthesize(
            given,
            schema,
            epsilon=epsilon,
            delta=1e-9,
            unit="hhID",
            max_rows=most,
            queries=[question],
            seed=seed,
        )
        found = release.ask(question).columns
        errors.append(found[f"sum({weight})"] - true)
        stated.append(found["stderr"])
        held.append((found["low"] <= true) & (true <= found["high"]))
    own = np.array(errors)
    return {
        "weight": weight,
        "way": way,
        "bias": float(np.abs(own.mean(axis=0) / true).max()),
        "chance": float((own.std(axis=0) / true).max() / runs**0.5),
        "error": float(np.sqrt(np.square(own).mean())),
        "stated": float(np.sqrt(np.square(stated).mean())),
        "coverage": float(np.mean(held)),
        "total": float(true.mean()),
        "cpu_seconds": (time.process_time() - started) / runs,
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--epsilon", type=float, default=1.0)
    request = parser.parse_args()
    found = []
    for weight in SURVEYS:
        for way in ("points", "low bound", "bins"):
            found.append(figures(weight, way, request.runs, request.epsilon))
            print(found[-1], flush=True)
    names = ("weight", "way", "bias", "chance", "error", "stated", "coverage", "total")
    print(table(names, [[each[name] for name in names] for each in found]))
    write_results("weights", {"machine": machine(), **vars(request), "figures": found})


if __name__ == "__main__":
    main()
