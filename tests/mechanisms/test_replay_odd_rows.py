"""Neighbours that differ in a row which no schema foresaw, replayed through every front door."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from replay import replay

from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.synthesis.pipeline import synthesize
from pgmkit import Boolean, Categorical, Column, Integer, Numeric, Schema
from pgmkit.tables.dates import Date
from pgmkit.tables.files.record_files import encode_file, read_frame

pytestmark = pytest.mark.usefixtures("short_fits")

CLOSED: dict[str, Column] = {
    "age": Integer(0, 99, bins=5),
    "wage": Numeric(0, 100, bins=4, missing=("?",)),
    "sex": Categorical(("F", "M")),
    "ill": Boolean(),
    "born": Date("1990-01-01", "2019-12-31", bins=4),
    "number": Integer(2**53, 2**53 + 7, bins=8),
}
OPEN: dict[str, Column] = {
    **CLOSED,
    "wage": Numeric(0, 100, bins=4, missing=("?",), quantiles=True),
}
ODD: dict[str, dict[str, Any]] = {
    "nothing": dict.fromkeys(CLOSED),
    "texts": dict.fromkeys(CLOSED, "?"),
    "hexadecimal": dict.fromkeys(CLOSED, "0x1F"),
    "huge": dict.fromkeys(CLOSED, 10**30),
    "halves": dict.fromkeys(CLOSED, 0.5),
    "lists": {name: [1] for name in CLOSED},
    "bytes": dict.fromkeys(CLOSED, b"\xff"),
    "truth": dict.fromkeys(CLOSED, True),
    "infinite": dict.fromkeys(CLOSED, float("-inf")),
    "another century": dict.fromkeys(CLOSED, datetime.date(1, 1, 1)),
    "a zone": dict.fromkeys(CLOSED, datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)),
}


def records(rows: int = 150) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    day = datetime.date(1990, 1, 1)
    return [
        {
            "age": int(rng.integers(0, 100)),
            "wage": float(rng.integers(0, 400)) / 4,
            "sex": str(rng.choice(["F", "M"])),
            "ill": bool(rng.random() < 0.3),
            "born": day + datetime.timedelta(days=int(rng.integers(0, 10_000))),
            "number": 2**53 + int(rng.integers(0, 8)),
        }
        for _ in range(rows)
    ]


def as_objects(rows: list[dict[str, Any]], folder: Path) -> Any:
    columns = {}
    for name in CLOSED:
        held = np.empty(len(rows), dtype=object)
        for i, row in enumerate(rows):
            held[i] = row[name]
        columns[name] = pd.Series(held, dtype=object)
    return pd.DataFrame(columns)


def as_texts(rows: list[dict[str, Any]], folder: Path) -> Any:
    import polars

    texts = {n: [None if r[n] is None else str(r[n]) for r in rows] for n in CLOSED}
    return polars.DataFrame(texts, schema=dict.fromkeys(CLOSED, polars.String))


def in_an_engine(rows: list[dict[str, Any]], folder: Path) -> Any:
    import duckdb

    return duckdb.connect().from_arrow(as_texts(rows, folder).to_arrow())


def in_a_file(rows: list[dict[str, Any]], folder: Path) -> Any:
    path = folder / "rows.csv"
    as_texts(rows, folder).write_csv(path)
    return path


FORMS: dict[str, Callable[[list[dict[str, Any]], Path], Any]] = {
    "objects": as_objects,
    "texts": as_texts,
    "engine": in_an_engine,
    "file": in_a_file,
}


# A fifth of the cases, each kind, form and relation among them, runs always.
CASES = [
    pytest.param(*case, marks=[pytest.mark.slow] * bool(place % 5))
    for place, case in enumerate(itertools.product(ODD, FORMS, NEIGHBOURS))
]


@pytest.mark.parametrize(("kind", "form", "relation"), CASES)
def test_a_row_that_no_schema_foresaw_changes_noisy_counts_alone(
    kind: str, form: str, relation: str, tmp_path: Path
) -> None:
    rows = records()
    other = [*rows[:70], ODD[kind], *rows[71 if relation == "replace-one" else 70 :]]
    columns = OPEN if form in ("texts", "file") else CLOSED
    schema = Schema(columns).placed()

    def job(rows: list[dict[str, Any]]) -> Any:
        data = FORMS[form](rows, tmp_path)
        if isinstance(data, Path):
            read = encode_file if columns is CLOSED else read_frame
            data = read(str(data), schema)
        return synthesize(
            data, schema, epsilon=2.0, delta=1e-6, neighbours=relation, mechanism="independent"
        )

    share = replay(job, rows, other, tmp_path, pure=False)
    assert share > 0, "the odd row is counted nowhere"
