"""Spark in processes of its own: an executor or the driver's JVM is killed, and Spark Connect."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
JOBS = Path(__file__).with_name("spark_jobs.py")


def job(name: str, folder: Path) -> dict[str, Any]:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not on this machine")
    done = subprocess.run(
        [sys.executable, str(JOBS), name, str(folder)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_killed_executor_changes_no_count(tmp_path: Path) -> None:
    """Two executors; one is killed with a task running and finished ones' results in it."""
    found = job("executor", tmp_path)
    assert found["killed"] == 1
    assert found["tasks"] > 4  # what went with it was run again
    assert found["equal"] and found["scans"] == 1


@pytest.mark.slow
def test_a_killed_driver_is_one_error_and_charges_no_more(tmp_path: Path) -> None:
    found = job("driver", tmp_path)
    assert found["scans"] == 1
    assert found["error"].startswith("pyspark failed in pass 2 over the records")
    # The four columns were counted before, and their noisy counts given; the pairs were not.
    assert [step.split()[0] for step in found["charged"]] == ["measure"] * 4
    assert found["open"] == []


@pytest.mark.slow
def test_spark_connect_counts_and_makes_records(tmp_path: Path) -> None:
    for module in ("grpc", "grpc_status", "zstandard"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"Spark Connect needs {module} (pyspark[connect])")
    found = job("connect", tmp_path)
    assert ".connect." in found["module"]
    assert found["equal"] and found["scans"] == 1
    assert found["rows"] == 500 and found["again"]
