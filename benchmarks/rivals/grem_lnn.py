"""GReM-LNN (bcmullins/efficient-marginal-reconstruction) on coded records: tables of all pairs.

Residuals are measured as its ResidualPlanner does, and its local nonnegativity makes the tables. It
has no records.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from benchmarks.common import peak_rss_mb, serve, within_cap


def run(request: dict[str, Any]) -> dict[str, Any]:
    started = time.process_time()
    import pandas as pd
    import torch
    from rem.algebra import MarginalWorkload, VStack
    from rem.cdp2adp import cdp_rho
    from rem.dataset import Dataset
    from rem.domain import Domain
    from rem.mechanism import residualPlanner
    from rem.reconstruction import gremLNN

    torch.manual_seed(request["seed"])
    # Its code takes the characters of a column's name for columns, so names have one each.
    letter = {name: chr(ord("A") + place) for place, name in enumerate(request["sizes"])}
    names, sizes = list(letter.values()), list(request["sizes"].values())
    frame = pd.DataFrame({letter[name]: request["codes"][name] for name in letter})
    data = Dataset(frame, Domain(names, sizes))
    pairs = list(itertools.combinations(names, 2))
    rho = cdp_rho(request["epsilon"], request["delta"])
    measured = residualPlanner(data=data, target_marginals=pairs, rho=rho)
    wanted = VStack([MarginalWorkload(pair, data.domain) for pair in pairs])
    made = gremLNN(
        target_marginals=wanted,
        residuals=measured.residuals,
        res_answers=measured.z,
        res_sigmas=measured.z_sigmas,
    )
    made.solve(t=0.01)  # the step of the repository's notebook
    return {
        "tables": [table.tolist() for table in made.getMarginals()],
        "cpu_seconds": round(time.process_time() - started, 1),
        "peak_mb": round(peak_rss_mb()),
    }


if __name__ == "__main__":
    serve(lambda request: within_cap(lambda: run(request), request["cap"]))
