"""SDV's HMA (PyPI, not private) on a table of parents and one of children."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from benchmarks.common import serve, within_cap


def run(request: dict[str, Any]) -> dict[str, Any]:
    started = time.process_time()
    import pandas as pd
    from sdv.metadata import Metadata
    from sdv.multi_table import HMASynthesizer

    key, order = request["key"], request["order"]
    tables = {n: pd.DataFrame(t).reset_index(drop=True) for n, t in request["tables"].items()}
    tables["child"] = tables["child"].drop(columns=order)
    for table in tables.values():
        for name in table.columns.difference([key]):
            table[name] = [
                None if pd.isna(v) else f"{v:g}" if isinstance(v, float) else str(v)
                for v in table[name]
            ]
    stored = {
        "tables": {
            name: {
                "columns": {
                    column: {"sdtype": "id" if column == key else "categorical"} for column in table
                }
            }
            for name, table in tables.items()
        },
        "relationships": [
            {
                "parent_table_name": "parent",
                "child_table_name": "child",
                "parent_primary_key": key,
                "child_foreign_key": key,
            }
        ],
    }
    stored["tables"]["parent"]["primary_key"] = key
    synthesizer = HMASynthesizer(Metadata.load_from_dict(stored), verbose=False)
    synthesizer.fit(tables)
    drawn = synthesizer.sample(len(tables["parent"]), main_table_name="parent")
    return {
        "tables": {name: drawn[name].to_dict(orient="list") for name in ("parent", "child")},
        "cpu_seconds": round(time.process_time() - started, 1),
        "version": f"sdv {version('sdv')}",
    }


if __name__ == "__main__":
    serve(lambda request: within_cap(lambda: run(request), request["cap"]))
