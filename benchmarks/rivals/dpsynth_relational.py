"""google/dpsynth's relational mechanism on a table of parents and one of children.

The unit is a parent. `model` names the mechanism of its link, AIM or MST; the other settings are
its defaults.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from benchmarks.common import peak_rss_mb, serve, within_cap


def run(request: dict[str, Any]) -> dict[str, Any]:
    started = time.process_time()
    import numpy as np
    from dpsynth import discrete_mechanisms, domain
    from dpsynth.relational import domain as relations
    from dpsynth.relational import synthesizer

    from benchmarks.rivals.sdv_hma import read_tables

    key, order = request["key"], request["order"]
    tables = {n: t.fillna("missing") for n, t in read_tables(request["tables"], key, order).items()}
    link = relations.ForeignKeyRelation("parent", key, "child", key, request["most"])
    mechanisms = {"AIM": discrete_mechanisms.AIMConfig, "MST": discrete_mechanisms.MSTConfig}
    config = synthesizer.MultiTableConfig(
        domains={
            name: {
                column: domain.CategoricalAttribute(sorted(set(table[column])))
                for column in table.columns.difference([key])
            }
            for name, table in tables.items()
        },
        foreign_keys=[link],
        discrete_mechanism=mechanisms[request["model"]](),
    )
    # Its own search for rho starts at 0, which it refuses.
    mechanism = config.configure(zcdp_rho=request["rho"])
    drawn = mechanism(np.random.default_rng(request["seed"]), tables).synthetic_tables
    return {
        "tables": {name: table.to_dict(orient="list") for name, table in drawn.items()},
        "cpu_seconds": round(time.process_time() - started, 1),
        "peak_mb": round(peak_rss_mb()),
        "version": f"dpsynth {version('dpsynth')}",
    }


if __name__ == "__main__":
    serve(lambda request: within_cap(lambda: run(request), request["cap"]))
