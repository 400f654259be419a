"""PySpark in local mode: counted where the data are, bit for bit as in memory."""

import datetime
import itertools
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from replay import replay

from pgmkit import Boolean, Categorical, Date, DateTime, Integer, InvalidInput, Numeric, Schema
from pgmkit.tables.engines.frames import counts_of, encode
from pgmkit.tables.engines.pushdown import FrameCounts

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
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = pyspark_sql.SparkSession.builder.master("local[2,3]").appName("tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.memory": "1g",
        # The slower of Java's compilers costs as much time as it saves in jobs as short as these.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.session.timeZone": "UTC",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


HARD = Schema(
    {
        "age": Integer(0, 99, bins=10, missing=()),
        "pay": Numeric(edges=(0, 10.5, 20, 99), missing=()),
        "sex": Categorical(("F", "M"), missing=("?",), other="else"),
        "ill": Boolean(missing=()),
        "born": Date("2000-01-01", "2001-12-31", unit="month", missing=()),
        "seen": DateTime("2020-01-01T00:00", "2020-01-02T23:00", unit="hour", missing=()),
        "kids": Integer(0, 3, outside="clip"),
        "a b": Categorical(("1", "2")),
    }
)
HARD_TYPES = (
    "age long, pay double, sex string, ill boolean, born date, seen timestamp, kids int, `a b` int"
)


def hard_table(seed: int, rows: int) -> pa.Table:
    """Nulls, NaNs, codes of missing, values outside the schema, in every column."""
    rng = np.random.default_rng(seed)
    day, moment = datetime.date(1999, 12, 1), datetime.datetime(2019, 12, 31, 20)

    def some(values: list[Any]) -> list[Any]:
        return [None if rng.random() < 0.1 else value for value in values]

    columns = {
        "age": some(rng.integers(-5, 110, rows).tolist()),
        "pay": some(rng.choice([0, 10.5, 10.4999, 20, 99, 99.1, -1, np.nan], rows).tolist()),
        "sex": some(rng.choice(["F", "M ", "?", " ", "x", "y"], rows).tolist()),
        "ill": some((rng.random(rows) < 0.5).tolist()),
        "born": some([day + datetime.timedelta(int(i)) for i in rng.integers(0, 800, rows)]),
        "seen": some(
            [moment + datetime.timedelta(minutes=int(i)) for i in rng.integers(0, 4000, rows)]
        ),
        "kids": some(rng.integers(-2, 9, rows).tolist()),
        "a b": some(rng.integers(0, 4, rows).tolist()),
    }
    kinds = {"born": pa.date32(), "seen": pa.timestamp("us"), "kids": pa.int32(), "a b": pa.int32()}
    return pa.table({name: pa.array(v, kinds.get(name)) for name, v in columns.items()})


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


@pytest.mark.slow
@settings(max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 300), keep=st.booleans())
def test_counts_of_random_frames_are_those_in_memory(
    spark: Any, seed: int, rows: int, keep: bool
) -> None:
    frame = hard_table(seed, rows)
    there = spark.createDataFrame(frame, HARD_TYPES).repartition(3)
    schema = HARD.placed()
    pairs = list(itertools.combinations(schema.columns, 2))
    counts = counts_of(there, schema, pairs, keep=keep)
    here = encode(frame, schema)
    assert isinstance(counts, FrameCounts)
    for cliques in (pairs, [("sex", "pay", "seen"), (), ("born",)]):
        found, wanted = counts.marginals(cliques), here.marginals(cliques)
        for clique in cliques:
            np.testing.assert_array_equal(found[clique], wanted[clique])
    assert counts.scans == 2


@pytest.mark.slow
@pytest.mark.parametrize("death", ["raises", "is killed"])
def test_a_task_that_dies_changes_no_count(spark: Any, death: str, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def dies_once(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        for number, batch in enumerate(batches):
            yield batch
            if context.attemptNumber() == 0 and number == 0:
                Path(folder, f"dead-{context.partitionId()}").touch()
                if death == "raises":
                    raise RuntimeError("a first attempt")
                os.kill(os.getpid(), signal.SIGKILL)

    frame = table(500)
    there = spark.createDataFrame(frame).repartition(3)
    failing = there.mapInArrow(dies_once, there.schema)
    cliques = list(itertools.combinations(SCHEMA.columns, 2))
    counts, here = counts_of(failing, SCHEMA, cliques), encode(frame, SCHEMA)
    assert len(list(tmp_path.glob("dead-*"))) == 3
    for clique in cliques:
        np.testing.assert_array_equal(counts.marginal(clique), here.marginal(clique))


def released(rows: int = 400) -> Any:
    from mechanisms.synthesis.pipeline import synthesize

    options: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-6, "mechanism": "mst", "seed": 0}
    return synthesize(table(rows), SCHEMA, **options)


@pytest.mark.slow
def test_records_are_made_by_spark_from_the_model(spark: Any, monkeypatch: Any) -> None:
    from mechanisms.release import tabular

    monkeypatch.setattr(tabular, "PART", 150)
    there = spark.createDataFrame(table(5))
    release = released()
    made = release.sample(1000, rng=3, like=there)
    plan = made._jdf.queryExecution().toString()
    assert "LocalRelation" not in plan and "LocalTableScan" not in plan and "Range" in plan
    # Types are the schema's: a date is a date, whatever the frame had.
    types = {field.name: field.dataType.typeName() for field in made.schema}
    assert types == {
        "age": "long", "pay": "double", "sex": "string", "ill": "boolean", "born": "date"
    }  # fmt: skip
    assert made.rdd.getNumPartitions() == 7
    found = made.toArrow()
    assert found.num_rows == 1000
    order = [(name, "ascending") for name in found.column_names]
    again = release.sample(1000, rng=3, like=there).coalesce(2).toArrow()
    assert again.sort_by(order).equals(found.sort_by(order))
    assert not release.sample(1000, rng=4, like=there).toArrow().equals(found)
    # Together the partitions are one rounded draw: the counts of a clique that stands first in the
    # tree are the model's, rounded up or down.
    clique = release.model.tree.cliques[0]
    expected = release.model.marginal(clique) / release.model.total * 1000
    assert np.abs(encode(found, SCHEMA).marginal(clique) - expected).max() < 1


@pytest.mark.slow
def test_released_records_go_to_the_engine_of_the_data(spark: Any) -> None:
    from mechanisms.synthesis.pipeline import synthesize

    counts = counts_of(spark.createDataFrame(table(400)), SCHEMA.placed())
    options: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-6, "mechanism": "mst", "seed": 0}
    release = synthesize(counts, SCHEMA, **options)
    assert np.array_equal(
        release.model.marginal(("age", "pay")), released().model.marginal(("age", "pay"))
    )
    assert release.sample(20, rng=0).count() == 20


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
    # The bridge to Java logs every call with the numbers of its objects.
    monkeypatch.setattr(logging.getLogger("py4j"), "propagate", False)
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
