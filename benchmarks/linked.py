"""Households and their persons: how near linked records come, beside flat tables and independence.

    python -m benchmarks.linked --epsilons 1,4 --seeds 2

Distances are mean total variations of pairs of columns from the private data's: of a person with
its household ("parent-child"), within a person ("child"), and of all pairs of persons of one
household ("siblings"). "flat" is `synthesize` on persons with their household's columns, under the
same budget and unit; "independent siblings" puts the data's own persons into households at random,
within their position. Writes results/linked.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mechanisms import Link, synthesize, synthesize_linked
from pgmkit.tables.constraints import Forbid
from pgmkit.tables.labelled import Categorical
from pgmkit.tables.schema import Schema

RESULTS = Path(__file__).parent / "results" / "linked.json"
MOST = 6
HOME = ["SUBREGCluster", "HHIncome", "HHDwelling", "HHChildren"]
PERSON = ["PAge", "PGender", "PEmp", "POcc", "PComm"]


def tables() -> dict[str, Any]:
    """The households, and up to `MOST` of their persons in the survey's order."""
    folder = Path(os.environ["PGMKIT_DATA"])
    home = pd.read_csv(folder / "households.csv.gz")[["hhID", *HOME]]
    person = pd.read_csv(folder / "persons.csv.gz")[["hhID", "per_num", *PERSON]]
    person = person.sort_values(["hhID", "per_num"], ignore_index=True)
    return {"household": home, "person": person[person.groupby("hhID").cumcount() < MOST]}


def schema(frame: Any, names: Sequence[str], rules: Sequence[Any] = ()) -> Schema:
    """Categories by the survey's code book; missing values where it has them."""
    columns = {}
    for name in names:
        labels = tuple(sorted(frame[name].dropna().map(_text).unique()))
        missing = () if frame[name].isna().any() else None
        columns[name] = Categorical(labels, missing=missing)
    return Schema(columns, rules)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def distance(one: Any, other: Any, pairs: Iterable[tuple[str, str]]) -> float:
    """The mean total variation of pairs of columns."""
    found = []
    for a, b in pairs:
        tables = [frame[[a, b]].map(_text).value_counts(normalize=True) for frame in (one, other)]
        found.append(tables[0].sub(tables[1], fill_value=0).abs().sum() / 2)
    return float(np.mean(found))


def siblings(person: Any, names: Sequence[str]) -> Any:
    """All pairs of persons of one household, the one before the other."""
    numbered = person.assign(place=person.groupby("hhID").cumcount())[["hhID", "place", *names]]
    pairs = numbered.merge(numbered, on="hhID", suffixes=("", " 2"))
    return pairs[pairs["place"] < pairs["place 2"]]


def figures(data: dict[str, Any], home: Any, person: Any) -> dict[str, float]:
    """The distances of synthetic households and persons from the data."""
    joined = [p.merge(h, on="hhID") for h, p in (data.values(), (home, person))]
    between = list(itertools.product(PERSON, [f"{name} 2" for name in PERSON]))
    return {
        "parent-child": distance(*joined, itertools.product(HOME, PERSON)),
        "child": distance(*joined, itertools.combinations(PERSON, 2)),
        "siblings": distance(siblings(data["person"], PERSON), siblings(person, PERSON), between),
    }


def independent(data: dict[str, Any], rng: np.random.Generator) -> Any:
    """The data's own persons, exchanged among the households within their position."""
    person = data["person"].copy()
    place = person.groupby("hhID").cumcount()
    for _, rows in person.groupby(place):
        person.loc[rows.index, PERSON] = rows.loc[rng.permutation(rows.index), PERSON].to_numpy()
    return person


def run(data: dict[str, Any], epsilon: float, seed: int) -> dict[str, Any]:
    """The figures of one linked release and one flat one."""
    home = schema(data["household"], HOME)
    # Whoever has no job has no occupation and no way to it: the code book says so.
    person = schema(data["person"], PERSON)
    adult = Forbid({"position": 1, "PAge": ["0", "1"]})
    link = Link("person", "household", "hhID", MOST, order="per_num", constraints=(adult,))
    started = time.process_time()
    options: dict[str, Any] = {"epsilon": epsilon, "delta": 1e-9, "seed": seed}
    schemas = {"household": home, "person": person}
    drawn = synthesize_linked(data, schemas, [link], **options).sample(rng=seed)
    seconds = time.process_time() - started
    linked = figures(data, drawn["household"], drawn["person"])
    orphans = int((~drawn["person"]["hhID"].isin(drawn["household"]["hhID"])).sum())
    first = drawn["person"][drawn["person"]["per_num"] == 1]
    broken = int(first["PAge"].map(_text).isin(["0", "1"]).sum())
    both = data["person"].merge(data["household"], on="hhID")
    joint = Schema({**home.columns, **person.columns})
    flat = synthesize(both, joint, unit="hhID", max_rows=MOST, mechanism="aim", **options)
    records = flat.sample(rng=seed)
    pairs = itertools.product(HOME, PERSON)
    return {
        "epsilon": epsilon,
        "seed": seed,
        "cpu_seconds": round(seconds, 1),
        "linked": linked,
        "flat parent-child": distance(both, records, pairs),
        "orphans": orphans,
        "broken": broken,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilons", default="1,4")
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    data = tables()
    alone = independent(data, np.random.default_rng(0))
    rows: list[dict[str, Any]] = [
        {"independent siblings": figures(data, data["household"], alone)["siblings"]}
    ]
    print(rows[0], flush=True)
    for epsilon in map(float, arguments.epsilons.split(",")):
        for seed in range(arguments.seeds):
            rows.append(run(data, epsilon, seed))
            print(rows[-1], flush=True)
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
