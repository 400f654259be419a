"""Categories and times with a zone come out as declared, in every library; other columns warn."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mechanisms.release.tabular import TableRelease
from mechanisms.synthesis.pipeline import synthesize
from pgmkit import Categorical, DateTime, FileFormat, Integer, Schema
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset
from pgmkit.tables.engines.frames import FrameForm, decode, encode
from pgmkit.tables.files.record_files import encode_file, write_records

ZONE = "Europe/Berlin"
SCHEMA = Schema(
    {
        "kind": Categorical(("x", "y", "never"), decode_as="category", missing=("?",)),
        "seen": DateTime("2024-05-01T00:00", "2024-05-02T23:59", zone=ZONE, missing=()),
        "kids": Integer(0, 3),
    },
    file=FileFormat(ignore=("row",)),
)


def data(rows: int = 200) -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset(
        SCHEMA.domain, {n: rng.integers(0, s, rows) for n, s in SCHEMA.domain.sizes.items()}
    )


def frame(library: str) -> Any:
    return decode(data(), SCHEMA, np.random.default_rng(1), FrameForm.of(library))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_give_the_same_codes_back(library: str) -> None:
    pytest.importorskip(library)
    again = encode(frame(library), SCHEMA)
    assert isinstance(again, Dataset)
    for name in SCHEMA.columns:
        assert np.array_equal(again.columns[name], data().columns[name]), name


def test_pandas_has_the_schemas_categories_and_zone() -> None:
    made = frame("pandas")
    assert list(made["kind"].cat.categories) == ["x", "y", "never"]
    assert made["kind"].isna().sum() == (data().columns["kind"] == 3).sum()
    assert str(made["seen"].dt.tz) == ZONE
    hours = made["seen"].dropna().dt.day.sub(1).mul(24) + made["seen"].dropna().dt.hour
    codes = data().columns["seen"]
    assert hours.tolist() == codes[codes < 48].tolist()


@pytest.mark.parametrize("suffix", ["csv", "parquet", "xlsx"])
def test_files_give_the_same_codes_back(suffix: str, tmp_path: Path) -> None:
    if suffix == "xlsx":
        pytest.importorskip("openpyxl")
    write_records(tmp_path / f"a.{suffix}", SCHEMA, [data()], np.random.default_rng(0))
    again = encode_file(tmp_path / f"a.{suffix}", SCHEMA)
    assert isinstance(again, Dataset)
    for name in SCHEMA.columns:
        assert np.array_equal(again.columns[name], data().columns[name]), name


def test_schemas_keep_both() -> None:
    assert Schema.from_dict(SCHEMA.to_dict()) == SCHEMA
    with pytest.raises(InvalidInput, match="zone must be a name"):
        DateTime("2024-05-01T00:00", "2024-05-02T00:00", zone="Berlin")


def release(records: Any) -> TableRelease:
    return synthesize(records, SCHEMA, epsilon=5.0, delta=1e-6, mechanism="independent", seed=0)


def test_columns_that_the_schema_does_not_have_are_named() -> None:
    given = frame("pandas")
    with pytest.warns(UserWarning, match="left out: 'wage'"):
        release(given.assign(wage=1))
    with warnings.catch_warnings(action="error"):
        # Columns without a place for missing values are warned of, whatever the frame holds.
        warnings.filterwarnings("default", "missing and unreadable values")
        release(given.assign(row=range(len(given))))
    with warnings.catch_warnings(action="error"), pytest.raises(InvalidInput, match="mean 'Seen'"):
        release(given.rename(columns={"seen": "Seen"}))  # one error, and no warning before it


def test_a_release_that_was_read_gives_frames_by_name_and_is_pickled(tmp_path: Path) -> None:
    release(frame("pandas")).save(tmp_path / "r.pgm")
    read = TableRelease.load(tmp_path / "r.pgm")
    assert isinstance(read.sample(5, rng=0, like="pandas"), pd.DataFrame)
    with pytest.raises(InvalidInput, match="'polars'"):
        read.sample(5, like="spreadsheet")
    again = pickle.loads(pickle.dumps(read))
    assert again.sample(5, rng=0).equals(read.sample(5, rng=0))
