"""The peer's AIM on one table: run by `benchmarks.peer_aim` under the peer's interpreter.

Does what the script's command line does with its defaults (that line asks a domain for ``attrs``,
which the library of the same commit no longer has); imports nothing of pgmkit. The library is that
of the script's own repository.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Before jax is imported: the peer warns that its cache is counterproductive.
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")

import numpy as np

from benchmarks.common import peak_rss_mb, serve, within_cap


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """One run, or that it took more than its cap of CPU seconds."""
    return within_cap(lambda: run(request), request["cap"])


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Records of the request's table by AIM: codes by column, and seconds."""
    started = time.perf_counter(), time.process_time()
    mbi = library(request["script"])
    aim = script(request["script"])
    sizes = request["sizes"]
    domain = mbi.Domain(list(sizes), list(sizes.values()))
    codes = {name: np.asarray(request["codes"][name]) for name in sizes}
    data = mbi.Dataset(codes, domain)
    workload = [
        (pair, 1.0) for pair in itertools.combinations(sizes, 2) if domain.size(pair) <= 10_000
    ]
    np.random.seed(request["seed"])  # noqa: NPY002 - the script draws from numpy's global state
    mechanism = aim.AIM(request["epsilon"], request["delta"])
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        _, records = mechanism.run(data, workload)
    found = {name: np.asarray(values).tolist() for name, values in records.to_dict().items()}
    return {
        "records": found,
        "rounds": said.getvalue().count("Measuring Clique"),
        "seconds": round(time.perf_counter() - started[0], 1),
        "cpu_seconds": round(time.process_time() - started[1], 1),
        "peak_mb": round(peak_rss_mb()),
        "version": f"mbi of the script's commit, jax {version('jax')}",
    }


def library(path: str) -> Any:
    """The library of the repository that the script is in."""
    sys.path.insert(0, str(Path(path).parents[1] / "src"))
    return importlib.import_module("mbi")


def script(path: str) -> Any:
    """A script of that repository, as a module."""
    spec = importlib.util.spec_from_file_location("peer_aim_script", Path(path))
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    serve(answer)
