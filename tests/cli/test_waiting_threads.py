"""Threads of the command line sleep while they wait: what OpenMP itself says it goes by."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="other builds of torch bring another OpenMP")
@pytest.mark.parametrize(("set_before", "policy"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_openmp_is_told_before_it_is_loaded(
    tmp_path: Path, set_before: str | None, policy: str
) -> None:
    tables, schema = tmp_path / "tables.json", tmp_path / "schema.json"
    tables.write_text(json.dumps([{"columns": ["a"], "values": [30.0, 70.0], "stddev": 2.0}]))
    schema.write_text(json.dumps({"a": 2}))
    environment = {**os.environ, "OMP_DISPLAY_ENV": "true"}
    environment.pop("OMP_WAIT_POLICY", None)
    if set_before is not None:
        environment["OMP_WAIT_POLICY"] = set_before
    command = "from mechanisms.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "estimate", str(tables), "--schema", str(schema),
         "--out", str(tmp_path / "model.pgm")],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr
