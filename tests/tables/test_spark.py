"""PySpark in local mode: counted where the data are, bit for bit as in memory."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from replay import replay

from pgmkit import InvalidInput
from pgmkit.tables.frames import FrameForm, counts_of, decode, encode
from pgmkit.tables.pushdown import FrameCounts
from pgmkit.tables.schema import Boolean, Categorical, Date, Integer, Numeric, Schema

pyspark_sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
SCHEMA = Schema(
    {
        "age": Integer(0, 99, bins=10),
        "pay": Numeric(edges=(0, 10.5, 20, 99), missing=()),
        "sex": Categorical(("F", "M"), missing=("?",)),
        "ill": Boolean(),
        "born": Date("2000-01-01", "2001-12-31", unit="month"),
    }
)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not on this machine")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = pyspark_sql.SparkSession.builder.master("local[1]").appName("tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.memory": "1g",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def table(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(4)
    pay = rng.choice([0.0, 10.5, 20.0, 98.9, 99.0], rows)
    return pd.DataFrame(
        {
            "age": rng.integers(0, 100, rows),
            "pay": np.where(rng.random(rows) < 0.2, np.nan, pay),
            "sex": rng.choice(["F", "M", "?"], rows),
            "ill": rng.random(rows) < 0.5,
            "born": pd.Timestamp("2000-01-01") + pd.to_timedelta(rng.integers(0, 730, rows), "D"),
        }
    )


def test_spark_counts_and_gets_a_frame_back(spark: Any) -> None:
    frame = table(500)
    there = spark.createDataFrame(frame)
    counts = counts_of(there, SCHEMA)
    assert isinstance(counts, FrameCounts) and len(counts) == 500
    here = encode(frame, SCHEMA)
    cliques = [("age", "sex"), ("pay", "ill"), ("born",), ("sex", "pay", "age"), ()]
    found, wanted = counts.marginals(cliques), here.marginals(cliques)
    for clique in cliques:
        np.testing.assert_array_equal(found[clique], wanted[clique])
    back = decode(here, SCHEMA, np.random.default_rng(0), FrameForm.of(there))
    # Types are the schema's: a date is a date, whatever the frame had.
    types = {field.name: field.dataType.typeName() for field in back.schema}
    assert types == {
        "age": "long", "pay": "double", "sex": "string", "ill": "boolean", "born": "date"
    }  # fmt: skip
    again = encode(back, SCHEMA)
    for name in SCHEMA.columns:
        np.testing.assert_array_equal(
            np.bincount(again.columns[name]), np.bincount(here.columns[name])
        )


def test_spark_finds_values_outside_the_schema(spark: Any) -> None:
    frame = table(50)
    frame.loc[3, "age"] = 1234
    with pytest.raises(InvalidInput, match="column 'age': 1 rows"):
        counts_of(spark.createDataFrame(frame), SCHEMA)


def test_units_are_bounded_in_a_fetched_frame(spark: Any) -> None:
    from mechanisms.synthesis.pipeline import synthesize

    frame = table(300)
    frame["id"] = [f"u{i % 40}" for i in range(300)]

    options: dict[str, Any] = {
        **{"epsilon": 1.0, "delta": 1e-6, "mechanism": "independent", "seed": 0},
        **{"unit": "id", "max_rows": 3},
    }
    here = synthesize(frame, SCHEMA, **options)
    there = synthesize(spark.createDataFrame(frame), SCHEMA, **options)
    for one, other in zip(here.measurements, there.measurements, strict=True):
        assert np.array_equal(one.values, other.values)
    assert "id" not in there.sample(5, rng=0).columns


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["add/remove", "replace-one"])
@pytest.mark.parametrize("path", ["rows", "units", "auto"])
def test_a_frame_of_spark_is_replayed(
    spark: Any, path: str, relation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same noisy answers forced upon a neighbouring frame: nothing else differs."""
    from mechanisms.privacy.units import random_keys
    from mechanisms.synthesis import units
    from mechanisms.synthesis.pipeline import synthesize

    monkeypatch.setattr(
        units, "random_keys", lambda count, _: random_keys(count, np.random.default_rng(0))
    )
    frame = table(120).assign(id=[f"u{i // 3}" for i in range(120)])
    gone = 3 if path == "units" else 1  # the last unit, or the last row
    other = frame.iloc[:-gone]
    if relation == "replace-one":
        changed = frame.iloc[:gone].assign(sex="M", age=99, ill=True, id="new")
        other = pd.concat([other, changed], ignore_index=True)
    options: dict[str, Any] = {"mechanism": "auto" if path == "auto" else "mst"}
    if path == "units":
        options |= {"unit": "id", "max_rows": 2}

    def job(rows: pd.DataFrame) -> Any:
        there = spark.createDataFrame(rows)
        return synthesize(there, SCHEMA, epsilon=1.0, delta=1e-6, neighbours=relation, **options)

    replay(job, frame, other, tmp_path, pure=False)
