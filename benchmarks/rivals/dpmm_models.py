"""dpmm's MST, AIM and PrivBayes (PyPI) on coded records; the request's `model` names one."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks.common import peak_rss_mb, serve, within_cap


def run(request: dict[str, Any]) -> dict[str, Any]:
    started = time.process_time()
    import pandas as pd
    from dpmm.models.aim import AIMGM
    from dpmm.models.mst import MSTGM
    from dpmm.models.priv_bayes import PrivBayesGM

    made = {"MST": MSTGM, "AIM": AIMGM, "PrivBayes": PrivBayesGM}[request["model"]]
    frame = pd.DataFrame({name: np.asarray(request["codes"][name]) for name in request["sizes"]})
    model = made(epsilon=request["epsilon"], delta=request["delta"], n_jobs=1)
    model.set_random_state(np.random.RandomState(request["seed"]))
    model.set_domain(request["sizes"])
    model.fit(frame)
    records = model.generate(n_records=len(frame))
    return {
        "records": {name: records[name].astype(int).tolist() for name in request["sizes"]},
        "cpu_seconds": round(time.process_time() - started, 1),
        "peak_mb": round(peak_rss_mb()),
        "version": f"dpmm {version('dpmm')}",
    }


if __name__ == "__main__":
    serve(lambda request: within_cap(lambda: run(request), request["cap"]))
