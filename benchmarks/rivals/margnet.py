"""MargNet (KaiChen9909/margnet) on coded records, on the CPU, with its settings of ADULT."""

from __future__ import annotations

import tempfile
import time
from types import SimpleNamespace
from typing import Any

from benchmarks.common import peak_rss_mb, serve, within_cap

SETTINGS: dict[str, Any] = {
    "train": {
        "selection_iterations": 200,
        "final_iterations": 200,
        "lr": 0.001,
        "batch_size": 512,
    },
    "model_params": {"d_layers": [256, 256], "dropout": 0.0},
}


def run(request: dict[str, Any]) -> dict[str, Any]:
    started = time.process_time()
    import numpy as np
    import pandas as pd
    import torch
    from method.MargDL.main import MargDLGen
    from scipy.optimize import brentq

    torch.set_num_threads(1)
    torch.manual_seed(request["seed"])
    np.random.seed(request["seed"])  # noqa: NPY002 - it draws from numpy's global state
    # It asks a GPU for its memory, whatever the device.
    torch.cuda.reset_peak_memory_stats = lambda *_: None
    torch.cuda.max_memory_allocated = lambda *_, **__: 0
    log = float(np.log(1 / request["delta"]))
    rho = brentq(lambda r: r + 2 * (r * log) ** 0.5 - request["epsilon"], 1e-9, 10)
    frame = pd.DataFrame({n: np.asarray(request["codes"][n]) for n in request["sizes"]})
    options = SimpleNamespace(iter=None, lr=None, batch=None, test=False, resample=False)
    with tempfile.TemporaryDirectory() as folder:
        made = MargDLGen(options, frame, request["sizes"], "cpu", SETTINGS, folder, "gan")
        made.fit_adaptive(rho)
    records = made.model.sample(len(frame))
    return {
        "records": dict(zip(request["sizes"], records.T.tolist(), strict=True)),
        "cpu_seconds": round(time.process_time() - started, 1),
        "peak_mb": round(peak_rss_mb()),
    }


if __name__ == "__main__":
    serve(lambda request: within_cap(lambda: run(request), request["cap"]))
