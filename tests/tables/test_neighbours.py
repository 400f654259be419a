"""Data that differ in one row: nothing but the noisy counts can tell them apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from mechanisms.cli import main
from mechanisms.release.tabular import TableRelease
from mechanisms.synthesis.pipeline import synthesize
from pgmkit import (
    Boolean,
    Categorical,
    Forbid,
    Integer,
    InvalidInput,
    Numeric,
    OpenCategorical,
    Schema,
)

pytestmark = pytest.mark.usefixtures("short_fits")

SCHEMA = Schema(
    {
        "age": Integer(0, 99, bins=5),
        "sex": Categorical(("F", "M")),
        "job": Categorical(("clerk", "nurse"), other="else"),
        "pay": Numeric(0, 100, bins=4, missing=("?",)),
        "ill": Boolean(),
    },
    [Forbid({"age": "0..19", "ill": True})],
)
RUN: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "mechanism": "independent", "seed": 0}

CHANGES: dict[str, dict[str, Any]] = {
    "a null": {"age": None},
    "a null label": {"sex": None},
    "an odd text": {"pay": "?"},
    "an extra label": {"sex": "X"},
    "an extra label with a place": {"job": "judge"},
    "beyond the range": {"age": 4711},
    "not whole": {"age": 30.5},
    "a broken constraint": {"age": 3, "ill": True},
    "no text": {"ill": "perhaps"},
}


def rows(change: dict[str, Any]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    plain = [
        {
            "age": int(rng.integers(20, 100)),
            "sex": "FM"[rng.integers(2)],
            "job": ["clerk", "nurse"][rng.integers(2)],
            "pay": float(rng.integers(0, 100)),
            "ill": bool(rng.integers(2)),
        }
        for _ in range(120)
    ]
    return [{**plain[0], **change}, *plain[1:]]


def typed(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns as a library without mixed types holds them: of texts where types differ."""
    columns = {}
    for name in records[0]:
        values = [record[name] for record in records]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            columns[name] = pa.array([None if v is None else str(v) for v in values])
    return columns


KINDS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "pandas": pd.DataFrame,
    "polars": lambda r: pl.from_arrow(pa.table(typed(r))),
    "pyarrow": lambda r: pa.table(typed(r)),
    "duckdb": lambda r: duckdb.from_arrow(pa.table(typed(r))),
}


def shape_of(release: TableRelease) -> tuple[Any, ...]:
    """All of a release that is no noisy number."""
    sample = nw.from_native(release.sample(20, rng=0))
    return (
        release.schema.to_dict(),
        type(sample.to_native()),
        [(name, str(kind)) for name, kind in sample.collect_schema().items()],
        release.ledger.to_dict(),
        [(m.clique, m.values.shape, m.stddev) for m in release.measurements],
        release.reason,
        release.settings,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_neighbours_give_the_same_but_for_the_noise(kind: str, tmp_path: Path) -> None:
    schema = Schema(SCHEMA.columns)
    plain = synthesize(KINDS[kind](rows({})), schema, **RUN)
    plain.save(tmp_path / "plain.pgm")
    for change in CHANGES.values():
        other = synthesize(KINDS[kind](rows(change)), schema, **RUN)
        assert shape_of(other) == shape_of(plain)
        for one, two in zip(plain.measurements, other.measurements, strict=True):
            # The noise is the same: what differs is one row, in two cells at most.
            assert np.abs(one.values - two.values).sum() <= 2
        other.save(tmp_path / "other.pgm")
        found = [shape_of(TableRelease.load(tmp_path / f"{n}.pgm")) for n in ("plain", "other")]
        assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mechanism", ["mst", "aim"])
def test_constraints_are_held_whatever_the_data_hold(kind: str, mechanism: str) -> None:
    options = {**RUN, "mechanism": mechanism}
    for change in ({}, {"age": 3, "ill": True}):
        release = synthesize(KINDS[kind](rows(change)), SCHEMA, **options)
        codes = release.codes(200, rng=0)
        assert not ((codes.columns["age"] == 0) & (codes.columns["ill"] == 1)).any()


@pytest.mark.parametrize("kind", KINDS)
def test_strict_runs_say_what_does_not_fit_before_anything_is_spent(kind: str) -> None:
    fits = ("an odd text", "an extra label with a place")
    for name, change in CHANGES.items():
        if name in fits:
            synthesize(KINDS[kind](rows(change)), SCHEMA, strict=True, **RUN | {"mechanism": "mst"})
            continue
        with pytest.raises(InvalidInput, match="exact: do not publish"):
            synthesize(KINDS[kind](rows(change)), SCHEMA, strict=True, **RUN | {"mechanism": "mst"})


def test_a_row_more_than_none(tmp_path: Path) -> None:
    schema = Schema(SCHEMA.columns)
    for make in (pd.DataFrame, lambda r: pa.table(typed(r))):
        one = make(rows({})[:1])
        empty = one.iloc[:0] if isinstance(one, pd.DataFrame) else one.slice(0, 0)
        for mechanism in ("independent", "mst", "aim", "mwem+pgm", "auto"):
            options = {**RUN, "mechanism": mechanism}
            shapes = []
            for frame in (empty, one):
                release = synthesize(frame, schema, **options)
                shapes.append((release.schema.to_dict(), len(release.sample(5, rng=0))))
            assert shapes[0] == shapes[1]
        with pytest.raises(InvalidInput, match="no rows"):
            synthesize(empty, schema, neighbours="replace-one", **RUN)
        with pytest.raises(InvalidInput, match="no rows"):
            synthesize(empty, schema, strict=True, **RUN)


LINES = [
    "44,F,clerk,3.5,true",
    "4711,X,judge,?,perhaps",
    ",,,,",
    "44,F",
    "44,F,clerk,3.5,true,extra",
    b"44,\xff\xfe,clerk,3.5,true",
]


def test_files_of_neighbours_run_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command succeeds, and prints the same; the records have the same columns."""
    monkeypatch.chdir(tmp_path)
    Schema(SCHEMA.columns).save("s.yaml")
    said, types = [], []
    for line in LINES:
        last = line if isinstance(line, bytes) else line.encode()
        body = "".join(f"{20 + i % 80},{'FM'[i % 2]},nurse,{i},false\n" for i in range(90))
        Path("d.csv").write_bytes(b"age,sex,job,pay,ill\n" + body.encode() + last + b"\n")
        command = "synth d.csv --schema s.yaml --mechanism independent --rows 50 --seed 1"
        result = CliRunner().invoke(
            main, [*command.split(), "--out", "o.parquet", "--save", "m.pgm"]
        )
        assert result.exit_code == 0, result.output
        Path("m.pgm").unlink()  # a saved release is not replaced
        said.append(result.output)
        types.append(str(pq.read_schema("o.parquet")))
        strict = CliRunner().invoke(main, [*command.split(), "--out", "o.csv", "--strict"])
        assert strict.exit_code == (0 if line == LINES[0] else 2)
    assert len(set(said)) == 1 and len(set(types)) == 1


@pytest.mark.parametrize("extra", [{}, {"pay": Numeric(0, 100, bins=4, quantiles=True)}])
def test_open_columns_of_neighbours(extra: dict[str, Any]) -> None:
    schema = Schema({**SCHEMA.columns, "job": OpenCategorical(), **extra})
    shapes: dict[str, list[list[str]]] = {}
    for change in CHANGES.values():
        release = synthesize(pd.DataFrame(rows(change)), schema, **RUN)
        # What follows may depend on the labels found, which are a noisy answer.
        found = repr(release.schema.to_dict())
        shapes.setdefault(found, []).append([e.step for e in release.ledger.entries])
    assert all(shape == each[0] for each in shapes.values() for shape in each)
    assert max(map(len, shapes.values())) > len(CHANGES) / 2


@pytest.mark.parametrize("odd", [None, float("nan"), "", "no such job", 7, [1], b"\xff"])
@pytest.mark.parametrize("places", [{}, {"missing": ()}, {"other": "else"}])
def test_no_value_of_an_open_column_ends_a_run(odd: Any, places: dict[str, Any]) -> None:
    """Neither an undeclared missing value nor any other: success would tell of one row."""
    frame = pd.DataFrame({"job": ["clerk"] * 60 + ["nurse"] * 59 + [odd]})
    schema, options = Schema({"job": OpenCategorical(**places)}), RUN | {"epsilon": 9.0}
    release = synthesize(frame, schema, **options)
    assert {"clerk", "nurse"} <= set(release.schema.columns["job"].labels)
    plain = synthesize(frame[:-1], schema, **options)
    assert set(plain.schema.columns["job"].labels) == set(release.schema.columns["job"].labels)


def test_an_open_schema_runs_and_quantiles_clip() -> None:
    frame = pd.DataFrame(rows({}))
    release = synthesize(frame, Schema({n: OpenCategorical() for n in frame}), **RUN)
    assert list(release.sample(3, rng=0).columns) == list(frame.columns)
    clip = Schema({"age": Numeric(40, 60, bins=4, quantiles=True, outside="clip")})
    assert synthesize(frame, clip, strict=True, **RUN).sample(9, rng=0).age.between(40, 60).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workload": [("age", "nobody")]}, "nobody"),
        ({"workload": 9}, "k must be"),
        ({"target": "wages"}, "no column"),
        ({"strict": True, "schema": {"job": OpenCategorical()}}, "'job': 1 rows"),
        ({"strict": True, "schema": {"age": Integer(0, 9)}}, "'age'"),
        ({"forbid": {"job": "nurse", "sex": "F"}}, "still to be found"),
        ({"public": ["age"], "mechanism": "pep-pub"}, "lack"),
        ({"public": ["nothing"], "mechanism": "gem-pub"}, "no column of the schema"),
        ({"mechanism": "auto", "settings": {"speed": 3}}, "auto chooses its own"),
        ({"neighbours": "swap"}, "neighbours must be"),
    ],
)
def test_open_columns_are_refused_before_the_first_charge(
    change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def charged(*_arguments: object) -> None:
        raise AssertionError("something was spent")

    monkeypatch.setattr("mechanisms.privacy.ledger.Ledger.charge", charged)
    change = dict(change)
    frame = pd.DataFrame(rows({"job": None}))
    columns = {**SCHEMA.columns, "job": OpenCategorical(missing=()), **change.pop("schema", {})}
    ruled_out = [Forbid(change.pop("forbid"))] if "forbid" in change else []
    if "public" in change:
        public = change.pop("public")
        change["public"] = frame.rename(columns=dict(zip(frame, public, strict=False)))[public]
    with pytest.raises(InvalidInput, match=message):
        synthesize(frame, Schema(columns, ruled_out), **{**RUN, **change})


@pytest.mark.parametrize("mechanism", ["independent", "mst", "aim"])
def test_a_column_of_one_value_costs_nothing(mechanism: str) -> None:
    frame = pd.DataFrame(rows({})).assign(year=2020)
    plain = {name: SCHEMA.columns[name] for name in ("sex", "ill")}
    release = synthesize(
        frame, Schema({**plain, "year": Categorical((2020,))}), **{**RUN, "mechanism": mechanism}
    )
    assert release.ledger.spent == pytest.approx(release.ledger.budget.total)
    assert not [m for m in release.measurements if m.clique == ("year",)]
    assert set(release.sample(9, rng=0).year) == {2020}


def test_places_are_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    SCHEMA.save("s.yaml")
    result = CliRunner().invoke(main, ["plan", "--schema", "s.yaml", "--mechanism", "mst"])
    assert "sex: counted as 'F'" in result.output and "job: counted as 'else'" in result.output
    assert "pay: counted in the nearest bin, unreadable ones as missing" in result.output
    fractions = [name for name, column in SCHEMA.columns.items() if isinstance(column, Integer)]
    assert result.output.count("a fraction counts as the whole number below it") == len(fractions)
    assert fractions
    SCHEMA.placed().save("p.yaml")
    assert yaml.safe_load(Path("p.yaml").read_text())["columns"]["age"]["outside"] == "clip"
    assert Schema.load("p.yaml").columns == SCHEMA.placed().columns
