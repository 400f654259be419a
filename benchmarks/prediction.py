"""Train on synthetic Adult, test on the real test file: macro F1 of logistic regression.

    python -m benchmarks.prediction [--seeds 5] [--mechanisms aim,mst,mixture] [--epsilon 1]

The raw UCI files in the folder that PGMKIT_DATA names, the schema of the tests, epsilon 1, delta
1e-9, add/remove, seeded noise, a workload that favours the target. Prints a table and writes
``results/prediction.json``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, machine
from mechanisms.release.evaluation import train_and_test
from mechanisms.synthesis.pipeline import synthesize
from pgmkit.records.dataset import Dataset
from pgmkit.tables.files.record_files import encode_file
from pgmkit.tables.schema import Schema

SCHEMA = Path(__file__).parent.parent / "tests" / "data" / "adult.yaml"
TARGET = "income"


def run(
    mechanism: str, schema: Schema, train: Dataset, test: Dataset, epsilon: float, seed: int
) -> dict[str, Any]:
    # The constraints need a graphical model.
    graphical = mechanism in ("aim", "mst", "mwem+pgm")
    used = schema if graphical else Schema(schema.columns, file=schema.file)
    started = time.perf_counter()
    release = synthesize(
        train, used, epsilon=epsilon, delta=1e-9, mechanism=mechanism, target=TARGET, seed=seed
    )
    seconds = time.perf_counter() - started
    scores = train_and_test(release.codes(len(train), rng=seed), train, test, TARGET)
    return {
        "mechanism": mechanism,
        "seed": seed,
        "synthetic": scores.synthetic,
        "real": scores.real,
        "ratio": scores.ratio,
        "seconds": seconds,
    }


def main() -> None:
    import os

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--mechanisms", default="aim,mst,mixture")
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()
    folder = os.environ.get("PGMKIT_DATA")
    if not folder:
        raise SystemExit("set PGMKIT_DATA to a folder with the raw Adult files")
    schema = Schema.load(SCHEMA)
    train = encode_file(Path(folder, "adult-raw-train.data"), schema)
    test = encode_file(Path(folder, "adult-raw-test.data"), schema)
    runs = [
        run(name, schema, train, test, options.epsilon, seed)
        for name in options.mechanisms.split(",")
        for seed in range(options.seeds)
    ]
    print("| mechanism | seeds | F1 synthetic | F1 real | ratio | seconds |")
    print("|---|---|---|---|---|---|")
    for name in options.mechanisms.split(","):
        mine = [r for r in runs if r["mechanism"] == name]
        ratios = [r["ratio"] for r in mine]
        print(
            f"| {name} | {len(mine)} | {np.mean([r['synthetic'] for r in mine]):.3f} "
            f"| {mine[0]['real']:.3f} | {np.mean(ratios):.3f} (least {min(ratios):.3f}) "
            f"| {np.mean([r['seconds'] for r in mine]):.1f} |"
        )
    record = {"machine": machine(), "epsilon": options.epsilon, "runs": runs}
    (RESULTS / "prediction.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
