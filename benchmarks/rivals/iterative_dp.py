"""GEM as the authors of the iterative methods released it (terranceliu/iterative-dp), on codes.

The request's `repository` is the path of a copy. All pairs are the workload; the other settings are
those of its script for ADULT, with the middle of the numbers of rounds that the script goes over.
Its one-hot encoder stands on a package that Python 3.11 no longer installs, and is not needed for
codes.
"""

from __future__ import annotations

import itertools
import sys
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from benchmarks.common import peak_rss_mb, serve, within_cap

ROUNDS, ALPHA, RATE, ROWS, WIDTH = 80, 0.67, 1e-4, 1000, 512


def run(request: dict[str, Any]) -> dict[str, Any]:
    started = time.process_time()
    sys.path.insert(0, request["repository"])
    sys.modules |= {name: MagicMock() for name in ("rdt", "rdt.transformers")}
    import pandas as pd
    import torch
    from gem import GEM
    from mbi import Dataset, Domain
    from Util import util_general
    from Util.qm import QueryManager

    torch.set_num_threads(1)
    torch.manual_seed(request["seed"])
    np.random.seed(request["seed"])  # noqa: NPY002 - it draws from numpy's global state
    sizes = request["sizes"]
    frame = pd.DataFrame({name: request["codes"][name] for name in sizes})
    data = Dataset(frame, Domain(list(sizes), list(sizes.values())))
    queries = QueryManager(data.domain, list(itertools.combinations(sizes, 2)))
    budget, _ = util_general.get_eps0_zCDP(
        request["epsilon"], request["delta"], ROUNDS, alpha=ALPHA
    )
    made = GEM(embedding_dim=WIDTH, gen_dim=[2 * WIDTH] * 2, batch_size=ROWS, save_dir="")
    made.transformer = SimpleNamespace(
        output_info=[(size, "softmax") for size in sizes.values()],
        output_dimensions=sum(sizes.values()),
    )
    made.setup_data(frame)
    made.fit(
        T=ROUNDS,
        eps0=budget,
        sensitivity=1 / len(frame),
        qm=queries,
        real_answers=queries.get_answer(data),
        lr=RATE,
        eta_min=None,
        alpha=ALPHA,
        save_interval=ROUNDS + 1,
        save_num=0,
    )
    parts = []
    for _ in range(-(-len(frame) // ROWS)):
        one_hot = made.get_onehot(made.generate_fake_data(made.mean, made.std, resample=True))
        columns = torch.split(one_hot, list(sizes.values()), dim=1)
        parts.append(torch.stack([column.argmax(1) for column in columns]))
    records = torch.cat(parts, dim=1).tolist()
    return {
        "records": dict(zip(sizes, records, strict=True)),
        "cpu_seconds": round(time.process_time() - started, 1),
        "peak_mb": round(peak_rss_mb()),
    }


if __name__ == "__main__":
    serve(lambda request: within_cap(lambda: run(request), request["cap"]))
