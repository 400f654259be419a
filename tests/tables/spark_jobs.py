"""Spark sessions that a test cannot share: an executor or the driver's JVM dies, or Spark Connect.

    python spark_jobs.py executor|driver|connect FOLDER

Each prints its findings as JSON. Counts are compared with those of the same rows in memory.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyspark
from pyspark.sql import SparkSession

from mechanisms import Budget, Ledger, synthesize
from pgmkit import Categorical, EngineFailed, Integer, Schema, counts_of
from pgmkit.tables.engines.frames import encode

SCHEMA = Schema(
    {"a": Integer(0, 3), "b": Categorical(("x", "y")), "c": Integer(0, 4), "d": Integer(0, 2)}
).placed()
PAIRS = list(itertools.combinations(SCHEMA.columns, 2))
OPTIONS: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "seed": 0, "progress": None}


def rows(count: int = 600) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    a = rng.integers(0, 4, count)
    return pd.DataFrame(
        {
            "a": a,
            "b": np.where(a > 1, "x", "y"),
            "c": (a + rng.integers(0, 2, count)) % 5,
            "d": rng.integers(0, 3, count),
        }
    )


def session(master: str) -> SparkSession:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.remote(master[8:]) if master.startswith("connect:") else (
        SparkSession.builder.master(master)
    )  # fmt: skip
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.artifact.isolation.enabled": "false",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def equal(counts: Any) -> bool:
    here = encode(rows(), SCHEMA)
    found = counts.marginals(PAIRS)
    return all(np.array_equal(found[pair], here.marginal(pair)) for pair in PAIRS)


def executor_of(pid: int) -> int:
    """The executor's JVM, above a Python worker."""
    while "CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_text():
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
        assert pid > 1, "no executor above this worker"
    return pid


def executor(folder: Path) -> dict[str, Any]:
    """The last partition's first attempt kills the executor that runs it."""
    find, place = executor_of, str(folder)

    def deadly(batches: Any) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition, attempt = context.partitionId(), context.attemptNumber()
        # Attempts that Spark repeats because shuffle files went with the executor begin at 0.
        number = len(list(Path(place).glob(f"task-{partition}-*")))
        Path(place, f"task-{partition}-{number}").touch()
        for batch in batches:
            yield batch
            if partition == 3 and attempt == 0 and number == 0:
                jvm = find(os.getpid())
                Path(place, f"killed-{jvm}").touch()
                os.kill(jvm, signal.SIGKILL)

    spark = session("local-cluster[2,1,1024]")
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.createDataFrame(rows()).repartition(4)
    counts = counts_of(frame.mapInArrow(deadly, frame.schema), SCHEMA, PAIRS)
    found = {
        "equal": equal(counts),
        "scans": counts.scans,
        "killed": len(list(folder.glob("killed-*"))),
        "tasks": len(list(folder.glob("task-*"))),
    }
    application = spark.sparkContext.applicationId
    spark.stop()
    # What the executors said; Spark keeps it beside its own files.
    home = Path(os.environ.get("SPARK_HOME") or pyspark.__path__[0])
    shutil.rmtree(home / "work" / application, ignore_errors=True)
    return found


def driver(folder: Path) -> dict[str, Any]:
    """The driver's JVM dies after the columns were counted: their noise is charged, no more."""
    spark = session("local[1]")
    spark.sparkContext.setLogLevel("OFF")
    counts: Any = counts_of(spark.createDataFrame(rows()), SCHEMA)
    gateway = spark.sparkContext._gateway  # type: ignore[attr-defined]
    os.kill(gateway.proc.pid, signal.SIGKILL)
    gateway.proc.wait()
    ledger = Ledger.create(folder / "ledger", Budget(5.0, 1e-5), neighbours="add/remove")
    try:
        synthesize(counts, SCHEMA, mechanism="aim", ledger=ledger, **OPTIONS)
    except EngineFailed as error:
        return {
            "scans": counts.scans,
            "error": str(error),
            "charged": [entry.step for entry in ledger.entries],
            "open": list(ledger.open_runs),
        }
    return {}


def connect(folder: Path) -> dict[str, Any]:
    spark = session("connect:local[2]")
    frame = spark.createDataFrame(rows())
    counts = counts_of(frame, SCHEMA, PAIRS)
    release = synthesize(counts, SCHEMA, mechanism="mst", **OPTIONS)
    made = release.sample(500, rng=1, like=frame)
    again = release.sample(500, rng=1, like=frame)
    order = list(SCHEMA.columns)
    return {
        "module": type(frame).__module__,
        "equal": equal(counts),
        "scans": counts.scans,
        "rows": made.count(),
        "again": made.toPandas().sort_values(order).to_numpy().tolist()
        == again.toPandas().sort_values(order).to_numpy().tolist(),
    }


if __name__ == "__main__":
    job = {"executor": executor, "driver": driver, "connect": connect}[sys.argv[1]]
    print(json.dumps(job(Path(sys.argv[2]))), flush=True)
    # What is left of a killed JVM must not be waited for.
    os._exit(0)
