"""The MST script of ryan112358/mbi on coded records; the request's `script` is its path."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.common import peak_rss_mb, serve, within_cap
from benchmarks.peer_aim_run import library, script


def run(request: dict[str, Any]) -> dict[str, Any]:
    started = time.process_time()
    mbi = library(request["script"])
    sizes = request["sizes"]
    domain = mbi.Domain(list(sizes), list(sizes.values()))
    data = mbi.Dataset({name: np.asarray(request["codes"][name]) for name in sizes}, domain)
    np.random.seed(request["seed"])  # noqa: NPY002 - the script draws from numpy's global state
    records = script(request["script"]).MST(data, request["epsilon"], request["delta"])
    return {
        "records": {name: np.asarray(v).tolist() for name, v in records.to_dict().items()},
        "cpu_seconds": round(time.process_time() - started, 1),
        "peak_mb": round(peak_rss_mb()),
        "version": "mbi of the script's commit",
    }


if __name__ == "__main__":
    serve(lambda request: within_cap(lambda: run(request), request["cap"]))
