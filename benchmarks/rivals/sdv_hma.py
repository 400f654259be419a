"""SDV's HMA (PyPI, not private) on a table of parents and one of children."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from benchmarks.common import serve, within_cap


def read_tables(stored: dict[str, Any], key: str, order: str) -> dict[str, Any]:
    """The tables of a request, with columns as texts."""
    import pandas as pd

    tables = {n: pd.DataFrame(t).reset_index(drop=True) for n, t in stored.items()}
    tables["child"] = tables["child"].drop(columns=order)
    for table in tables.values():
        for name in table.columns.difference([key]):
            table[name] = [
                None if pd.isna(v) else f"{v:g}" if isinstance(v, float) else str(v)
                for v in table[name]
            ]
    return tables


def _quality(real: Any, drawn: Any, stored: Any) -> dict[str, float]:
    """SDMetrics' quality report: its score, and the scores of its parts."""
    from sdmetrics.reports.multi_table import QualityReport

    report = QualityReport()
    report.generate(real, drawn, stored, verbose=False)
    parts = report.get_properties()
    found = dict(zip(parts["Property"], parts["Score"].round(3), strict=True))
    return {"score": round(report.get_score(), 3), **found}


def run(request: dict[str, Any]) -> dict[str, Any]:
    started = time.process_time()
    from sdv.metadata import Metadata
    from sdv.multi_table import HMASynthesizer

    key, order = request["key"], request["order"]
    tables = read_tables(request["tables"], key, order)
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
    seconds = round(time.process_time() - started, 1)
    judged = {name: read_tables(each, key, order) for name, each in request["drawn"].items()}
    return {
        "quality": {n: _quality(tables, each, stored) for n, each in {**judged, "": drawn}.items()},
        "tables": {name: drawn[name].to_dict(orient="list") for name in ("parent", "child")},
        "cpu_seconds": seconds,
        "version": f"sdv {version('sdv')}",
    }


if __name__ == "__main__":
    serve(lambda request: within_cap(lambda: run(request), request["cap"]))
