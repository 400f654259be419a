"""Tab-PE (microsoft/DPSDA) on coded records, with the settings of its example for ADULT.

Its package imports what its image and text parts need; those modules are stood in for.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from benchmarks.common import peak_rss_mb, serve, within_cap

RECORDS, ITERATIONS = 1000, 30


ABSENT = (
    "torchvision torchvision.transforms torchvision.datasets openai azure azure.identity cleanfid "
    "cleanfid.inception_torchscript cleanfid.resize cleanfid.clip_features fld fld.features "
    "fld.features.InceptionFeatureExtractor"
)
"""What its package imports for images and texts, none of which a table needs."""


def run(request: dict[str, Any]) -> dict[str, Any]:
    started = time.process_time()
    sys.modules |= {name: MagicMock() for name in ABSENT.split()}
    import numpy as np
    import pandas as pd
    from omegaconf import DictConfig
    from pe.api import TabularAPI
    from pe.constant.data import TABULAR_DATA_COLUMN_NAME
    from pe.data import TabularCSV
    from pe.embedding import TabularEmbedding
    from pe.histogram import NearestNeighbors
    from pe.population import CompositePopulation, PEPopulation
    from pe.runner import PE

    DictConfig.__hash__ = lambda self: len(self)  # Its package keeps configurations in sets.
    np.random.seed(request["seed"])  # noqa: NPY002 - it draws from numpy's global state
    names = list(request["sizes"])
    with tempfile.TemporaryDirectory() as folder:
        table, described = Path(folder, "table.csv"), Path(folder, "table.json")
        frame = pd.DataFrame({name: request["codes"][name] for name in names})
        frame.assign(all=0).to_csv(table, index=False)
        kinds = {"cat_columns": names, "int_columns": [], "float_columns": []}
        described.write_text(json.dumps({**kinds, "label_columns": ["all"]}))
        private = TabularCSV(csv_path=str(table), metadata_path=str(described))
    info = private.get_tab_info()
    for name, size in request["sizes"].items():
        info[name]["categories"] = list(range(size))  # known, not read from the rows
    api = TabularAPI(
        info=info,
        mutation_rate_init=0.5,
        mutation_rate_final=0.01,
        decay_type="polynomial",
        gamma=0.2,
        num_iterations=ITERATIONS,
    )
    first = PEPopulation(
        api=api,
        initial_variation_api_fold=0,
        next_variation_api_fold=1,
        keep_selected=False,
        selection_mode="sample",
        histogram_threshold=0,
    )
    later = PEPopulation(
        api=api,
        initial_variation_api_fold=3,
        next_variation_api_fold=3,
        keep_selected=True,
        selection_mode="rank",
    )
    nearest = NearestNeighbors(
        embedding=TabularEmbedding(info=info), mode="L2", lookahead_degree=0, backend="torch"
    )
    stages = CompositePopulation(populations=[first] * 5 + [later] * (ITERATIONS - 5))
    made = PE(priv_data=private, population=stages, histogram=nearest).run(
        num_samples_schedule=[RECORDS] * ITERATIONS,
        save_checkpoint=False,
        delta=request["delta"],
        epsilon=request["epsilon"],
    )
    records = np.array(made.data_frame[TABULAR_DATA_COLUMN_NAME].tolist())
    return {
        "records": dict(zip(names, records.astype(int).T.tolist(), strict=True)),
        "cpu_seconds": round(time.process_time() - started, 1),
        "peak_mb": round(peak_rss_mb()),
    }


if __name__ == "__main__":
    serve(lambda request: within_cap(lambda: run(request), request["cap"]))
