"""Data in an engine: passes, time and memory of counting, of a release, and of records back.

    python -m benchmarks.engines [--rows 10000000] [--columns 12] [--growth]
        [--partitions 4] [--engines spark duckdb dask] [--releases spark]

Spark in local mode with a heap of 2 GB, DuckDB and Dask beside it, every run in a process of its
own. Rows are drawn column by column, each from the one before, and stored as parquet (one file a
partition) first. `count` is all pairs in one pass, `release` AIM at epsilon 1 from the frame to a
parquet folder of as many records. CPU seconds and the peak of resident memory are those of all
processes together: this one, the JVM and the Python workers. ``--growth`` adds a tenth and a
hundredth of the rows, and Spark with 1 and 2 partitions. Writes ``results/engines.json`` and
``docs/img/engines.svg``.

Takes 15 CPU minutes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import (
    RESULTS,
    command_line,
    fresh_process,
    machine,
    read_results,
    serve,
    table,
    write_results,
)  # fmt: skip

SIZES = (2, 3, 5, 8, 10, 12, 16, 20, 4, 6, 7, 9)
HEADER = ("engine", "what", "rows", "columns", "partitions", "passes", "seconds", "cpu s", "MB")


def sizes_of(columns: int) -> dict[str, int]:
    return {f"x{i}": SIZES[i % len(SIZES)] for i in range(columns)}


def store(folder: Path, rows: int, columns: int, partitions: int) -> None:
    """Parquet files of codes, of dependent columns; texts in every third column."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir(parents=True)
    for part in range(partitions):
        rng = np.random.default_rng([part, partitions])
        some = rows * (part + 1) // partitions - rows * part // partitions
        arrays, before = {}, np.zeros(some, dtype=np.int64)
        for i, (name, size) in enumerate(sizes_of(columns).items()):
            kept = rng.random(some) < 0.6
            before = np.where(kept, before % size, rng.integers(0, size, some))
            texts = pa.array([f"label {code}" for code in range(size)])
            arrays[name] = texts.take(pa.array(before)) if i % 3 == 2 else pa.array(before)
        parquet.write_table(pa.table(arrays), folder / f"part-{part}.parquet")


def schema_of(columns: int) -> Any:
    from pgmkit import Categorical, Integer, Schema

    return Schema(
        {
            name: Categorical(tuple(f"label {code}" for code in range(size)))
            if i % 3 == 2
            else Integer(0, size - 1)
            for i, (name, size) in enumerate(sizes_of(columns).items())
        }
    )


def frame_of(engine: str, folder: str) -> Any:
    """The stored rows as a frame of the engine."""
    if engine == "duckdb":
        import duckdb

        duckdb.sql("set memory_limit = '1GB'")
        return duckdb.read_parquet(f"{folder}/*.parquet")
    if engine == "dask":
        import dask.dataframe

        return dask.dataframe.read_parquet(folder)
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "2g")
    # One partition a file: none is cut, and none shares a partition.
    builder = builder.config("spark.sql.files.maxPartitionBytes", str(1 << 30))
    builder = builder.config("spark.sql.files.openCostInBytes", str(1 << 30))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session.read.parquet(folder)


def processes() -> dict[int, tuple[float, float]]:
    """CPU seconds and resident MB of this process and all that it started."""
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    parents, found = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(folder.name)
        parents[pid] = int(fields[1])
        # utime, stime, and those of children that have ended.
        found[pid] = sum(map(int, fields[11:15])) / tick, int(fields[21]) * page / 1e6
    kept = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in kept} - kept:
        kept |= grown
    return {pid: found[pid] for pid in kept if pid in found}


class Peak(threading.Thread):
    """Looks at the resident memory of all processes five times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0.0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.2):
            self.most = max(self.most, sum(mb for _, mb in processes().values()))


def written(made: Any, request: dict[str, Any]) -> None:
    """The records as parquet, as many as were asked for."""
    from pyarrow import dataset

    with tempfile.TemporaryDirectory(dir=Path(request["folder"]).parent) as folder:
        target = f"{folder}/records"
        if request["engine"] == "spark":
            made.write.parquet(target)
        elif request["engine"] == "dask":
            made.to_parquet(target)
        else:
            made.write_parquet(target)
        assert dataset.dataset(target, format="parquet").count_rows() == request["rows"]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """One run: passes, wall and CPU seconds, and peak memory."""
    from pgmkit import counts_of

    frame = frame_of(request["engine"], request["folder"])
    schema = schema_of(request["columns"]).placed()
    pairs = list(itertools.combinations(schema.columns, 2))
    peak = Peak()
    peak.start()
    started, spent = time.perf_counter(), sum(cpu for cpu, _ in processes().values())
    counts: Any = counts_of(frame, schema, pairs)
    found = counts.marginals(pairs)
    assert all(int(each.sum()) == request["rows"] for each in found.values())
    laps = {"count": time.perf_counter() - started}
    if request["what"] == "release":
        from mechanisms import synthesize

        release = synthesize(
            counts, schema, epsilon=1.0, delta=1e-9, mechanism="aim", seed=0, progress=None
        )
        laps["aim"] = time.perf_counter() - started - laps["count"]
        made = release.sample(request["rows"], rng=0, like=frame)
        written(made, request)
        laps["records"] = time.perf_counter() - started - laps["count"] - laps["aim"]
    peak.done.set()
    return {
        "passes": counts.scans,
        "seconds": round(time.perf_counter() - started, 2),
        "cpu": round(sum(cpu for cpu, _ in processes().values()) - spent, 2),
        "laps": {name: round(seconds, 2) for name, seconds in laps.items()},
        "peak_mb": round(peak.most),
    }


def requests(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows, columns = arguments.rows, arguments.columns

    def asked(engine: str, what: str, rows: int, partitions: int) -> dict[str, Any]:
        return {
            "engine": engine,
            "what": what,
            "rows": rows,
            "columns": columns,
            "partitions": partitions,
        }

    # The small ones first: what fails, fails soon.
    sizes = (rows // 100, rows // 10, rows) if arguments.growth else (rows,)
    usual = arguments.partitions
    found = []
    for size in sizes:
        for engine in arguments.engines:
            parts = (1, 2, 4) if arguments.growth and engine == "spark" else (usual,)
            found += [asked(engine, "count", size, each) for each in parts]
        found += [asked(engine, "release", size, usual) for engine in arguments.releases]
    return found


def plot(records: list[dict[str, Any]]) -> None:
    """CPU seconds by rows: counting in each engine, by partitions in Spark, and each release."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "engines"
    figure, axes = pyplot.subplots(1, 3, figsize=(9.6, 3.2), sharey=True)

    def line(axis: Any, label: str, what: str, **wanted: Any) -> None:
        chosen = [r for r in records if r["what"] == what and wanted.items() <= r.items()]
        points = sorted((r["rows"], r["cpu"]) for r in chosen)
        if points:
            axis.plot(*zip(*points, strict=True), "o-", label=label)

    engines = sorted({r["engine"] for r in records})
    for engine in engines:
        line(axes[0], engine, "count", engine=engine, partitions=4)
        line(axes[2], engine, "release", engine=engine, partitions=4)
    for partitions in sorted({r["partitions"] for r in records}):
        line(axes[1], f"{partitions}", "count", engine="spark", partitions=partitions)
    titles = ("all pairs, 4 partitions", "all pairs, Spark by partitions", "AIM, end to end")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(xscale="log", yscale="log", xlabel="rows")
        axis.set_title(title, fontsize=9)
        axis.legend(fontsize=7)
    axes[0].set_ylabel("CPU seconds, all processes")
    figure.tight_layout()
    figure.savefig(RESULTS.parents[1] / "docs/img/engines.svg", metadata={"Date": None})
    pyplot.close(figure)


def identity(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[k] for k in ("engine", "what", "rows", "columns", "partitions"))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=12)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--engines", nargs="*", default=("spark", "duckdb", "dask"))
    parser.add_argument("--releases", nargs="*", default=("spark",))
    parser.add_argument("--growth", action="store_true")
    arguments = parser.parse_args()
    kept = {identity(r): r for r in read_results("engines").get("records", [])}
    with tempfile.TemporaryDirectory() as place:
        for request in requests(arguments):
            named = f"{request['rows']}-{request['columns']}-{request['partitions']}"
            folder = Path(place, named)
            if not folder.exists():
                store(folder, request["rows"], request["columns"], request["partitions"])
            asked = {**request, "folder": str(folder)}
            found = {**request, **fresh_process("benchmarks.engines", asked)}
            print(found, file=sys.stderr, flush=True)
            kept[identity(request)] = found
            records = [kept[key] for key in sorted(kept)]
            write_results("engines", {"machine": machine(), "records": records})
    print(
        table(HEADER, [[*identity(r), r["passes"], r["seconds"], r["cpu"], r["peak_mb"]]
                       for _, r in sorted(kept.items())])
    )  # fmt: skip
    plot([r for _, r in sorted(kept.items())])


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].endswith(".json"):
        serve(answer)
    else:
        main()
