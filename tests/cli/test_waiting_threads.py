"""Threads of the command line sleep while they wait: what OpenMP itself says it goes by."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, importlib.util, sys
from pathlib import Path
from mechanisms.cli import main
main(["mechanisms"], standalone_mode=False)
assert "torch" not in sys.modules
(folder,) = importlib.util.find_spec("torch").submodule_search_locations
(library,) = Path(folder, "lib").glob("libgomp*")
ctypes.CDLL(str(library))
"""
"""A command, and then the OpenMP that torch loads, without the rest of torch."""


@pytest.mark.skipif(sys.platform != "linux", reason="other builds of torch bring another OpenMP")
@pytest.mark.parametrize(("set_before", "spins"), [(None, "0"), ("ACTIVE", "30000000000")])
def test_openmp_is_told_before_it_is_loaded(set_before: str | None, spins: str) -> None:
    """Told nothing, it turns 300,000 times before it sleeps, and calls this PASSIVE as well."""
    environment = {**os.environ, "OMP_DISPLAY_ENV": "verbose"}
    environment.pop("GOMP_SPINCOUNT", None)
    environment.pop("OMP_WAIT_POLICY", None)
    if set_before is not None:
        environment["OMP_WAIT_POLICY"] = set_before
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr
