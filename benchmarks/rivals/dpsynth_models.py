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


def gaussian_rho(epsilon: float, delta: float) -> float:
    """Return the rho of the Gaussian mechanism with this (epsilon, delta), by its exact curve.

    All that SWIFT and AIM-GDP draw is Gaussian, and their own search for this number starts at 0,
    by which they divide.
    """
    from math import exp

    from scipy.optimize import brentq
    from scipy.stats import norm

    def excess(mu: float) -> float:
        curve = norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(curve) - delta

    return float(brentq(excess, 1e-3, 50.0)) ** 2 / 2


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
    whole = discrete.DiscreteConfig(mechanism=config)
    if request["model"] == "MST":
        mechanism = whole.calibrate(epsilon=request["epsilon"], delta=request["delta"])
    else:
        mechanism = whole.configure(zcdp_rho=gaussian_rho(request["epsilon"], request["delta"]))
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
