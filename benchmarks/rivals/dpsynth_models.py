"""google/dpsynth's SWIFT, MST and AIM-GDP on coded records; the request's `model` names one.

All pairs are the workload. SWIFT has cliques of at most a million cells and 1,000 iterations, which
two processor cores can bear; the other settings are its defaults.
"""

from __future__ import annotations

import itertools
import time
from importlib.metadata import version
from typing import Any

import numpy as np

from benchmarks.common import peak_rss_mb, serve, within_cap


def run(request: dict[str, Any]) -> dict[str, Any]:
    started = time.process_time()
    import mbi
    from dpsynth.discrete_mechanisms import aim_gdp, discrete, mst, swift

    sizes = request["sizes"]
    pairs = list(itertools.combinations(sizes, 2))
    config = {
        "SWIFT": lambda: swift.SWIFTConfig(workload=pairs, max_clique_size=1e6, pgm_iters=1000),
        "MST": mst.MSTConfig,
        "AIM-GDP": lambda: aim_gdp.AIMGDPConfig(workload=pairs),
    }[request["model"]]()
    mechanism = discrete.DiscreteConfig(mechanism=config).calibrate(
        epsilon=request["epsilon"], delta=request["delta"]
    )
    domain = mbi.Domain(list(sizes), list(sizes.values()))
    data = mbi.Dataset({name: np.asarray(request["codes"][name]) for name in sizes}, domain)
    made = mechanism(np.random.default_rng(request["seed"]), data).synthetic_data
    return {
        "records": {name: np.asarray(column).tolist() for name, column in made.to_dict().items()},
        "cpu_seconds": round(time.process_time() - started, 1),
        "peak_mb": round(peak_rss_mb()),
        "version": f"dpsynth {version('dpsynth')}",
    }


if __name__ == "__main__":
    serve(lambda request: within_cap(lambda: run(request), request["cap"]))
