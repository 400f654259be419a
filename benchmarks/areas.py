"""Counts of blocks within tracts within counties: one estimate from noisy tables of every level.

    python -m benchmarks.areas [--blocks 2000] [--codes 100]

Each level's table has noise of 4 counts in each cell. Prints the processor time and peak memory of
the estimate's own process, its certificate, and for each level the root mean squared error of the
noisy table and of the estimate; writes results/areas.json.

Takes 0.1 CPU minutes.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from benchmarks.common import (
    command_line,
    fresh_process,
    machine,
    peak_rss_mb,
    serve,
    table,
    write_results,
)

STDDEV = 4.0
LEVELS = {"block": 1, "tract": 20, "county": 200}
"""The number of blocks in an area of each level."""


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Estimate a drawn table from its noisy sums over areas."""
    from pgmkit import Domain, Measurement, estimate

    blocks, codes = request["blocks"], request["codes"]
    rng = np.random.default_rng(0)
    rates = rng.gamma(0.3, 3, (blocks, codes)) * rng.gamma(0.5, 1, (blocks, 1))
    truth = rng.poisson(rates).astype(float)
    sums = {
        name: np.kron(np.eye(blocks // size), np.ones((1, size))) for name, size in LEVELS.items()
    }
    sums["all"] = np.ones((1, blocks))
    noisy = {n: m @ truth + rng.normal(0, STDDEV, (len(m), codes)) for n, m in sums.items()}
    tables = [
        Measurement(("block", "code"), values, STDDEV)
        if name == "block"
        else Measurement(("block", "code"), values.ravel(), STDDEV, [sums[name], np.eye(codes)])
        for name, values in noisy.items()
    ]
    started = time.process_time()
    model = estimate(Domain({"block": blocks, "code": codes}), tables)
    seconds = time.process_time() - started
    found = model.marginal(("block", "code"))

    def error(name: str, values: Any) -> float:
        return float(np.sqrt(np.square(values - sums[name] @ truth).mean()))

    return {
        "cpu_seconds": seconds,
        "peak_mb": peak_rss_mb(),
        "certificate": model.certificate,
        "errors": {n: (error(n, noisy[n]), error(n, m @ found)) for n, m in sums.items()},
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--blocks", type=int, default=2000, help="a multiple of 200")
    parser.add_argument("--codes", type=int, default=100)
    request = vars(parser.parse_args())
    found = fresh_process("benchmarks.areas", request)
    print(f"{found['cpu_seconds']:.1f} CPU s, {found['peak_mb']:.0f} MB, {found['certificate']}")
    rows = [[name, *errors] for name, errors in found["errors"].items()]
    print(table(("level", "noisy table", "estimate"), rows))
    write_results("areas", {"machine": machine(), **request, **found})


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].endswith(".json"):
        serve(measure)
    else:
        main()
