"""RAP++ as its authors released it (amazon-science/relaxed-adaptive-projection).

The request has numbers in [0, 1] by column, codes and sizes by column, targets, epsilon and the
path of a copy of the repository; the answer has records of both kinds. The settings are those of
the repository's `main.py`, but for the number of random projections. delta is 1/n^2 there, too.
Where there are no numbers, only its cells of pairs are fitted.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import peak_rss_mb, serve, within_cap

OVERSAMPLES = 40
"""Records made from one relaxed row, as in the repository."""


def run(request: dict[str, Any]) -> dict[str, Any]:
    # Both programs have a package `mechanisms`, and theirs would lose without an __init__.py.
    others = [each for each in sys.path if not Path(each, "mechanisms").exists()]
    sys.path[:] = [request["repository"], *others]
    import jax
    import pandas as pd

    stacked = jax.numpy.hstack
    # The code was written for jax 0.2, which took generators here.
    jax.numpy.hstack = lambda parts, *more: stacked(list(parts), *more)
    from dataloading.dataloading_util import get_upsampled_dataset_from_relaxed
    from dataloading.dataset import Dataset
    from dataloading.domain import Domain
    from modules.marginal_queries import MarginalQueryClass
    from modules.random_features_linear import RandomFeaturesLinearQueryClass

    from mechanisms.rap_pp import RAPpp, RAPppConfiguration

    started = time.process_time()
    shape = {**dict.fromkeys(request["numbers"], 1), **request["sizes"]}
    domain = Domain(list(shape), list(shape.values()), request["targets"])
    columns = {**request["numbers"], **request["codes"]}
    data = Dataset(pd.DataFrame({name: columns[name] for name in shape}), domain)
    cells = RAPppConfiguration(
        iterations=[1],
        sigmoid_doubles=[0],
        optimizer_learning_rate=[0.003],
        top_q=1,
        get_dp_select_epochs=lambda domain: len(domain.get_cat_cols()),
        get_privacy_budget_weight=lambda domain: len(domain.get_cat_cols()),
    )
    halfspaces = RAPppConfiguration(
        iterations=[3],
        sigmoid_0=[2],
        sigmoid_doubles=[10],
        optimizer_learning_rate=[0.006],
        top_q=5,
        get_dp_select_epochs=lambda domain: request["epochs"],
        get_privacy_budget_weight=lambda domain: len(domain.get_cont_cols()),
    )
    # Without a target the conditional form (pairs with a target) has no queries.
    kinds, asked = [cells], [MarginalQueryClass(K=2, conditional=bool(request["targets"]))]
    if request["numbers"]:
        kinds.append(halfspaces)
        asked.append(RandomFeaturesLinearQueryClass(request["projections"], max_number_rows=2000))
    mechanism = RAPpp(kinds, asked)
    mechanism.initialize(data, request["seed"])
    mechanism.train(epsilon=request["epsilon"], seed=request["seed"])
    made = get_upsampled_dataset_from_relaxed(
        mechanism.get_dprime(), domain, oversample=OVERSAMPLES, seed=request["seed"]
    ).df
    codes = {name: made[name].astype(int).tolist() for name in request["codes"]}
    return {
        "numbers": {name: np.clip(made[name], 0, 1).tolist() for name in request["numbers"]},
        "codes": codes,
        "records": codes,
        "cpu_seconds": round(time.process_time() - started, 1),
        "peak_mb": round(peak_rss_mb()),
    }


if __name__ == "__main__":
    serve(lambda request: within_cap(lambda: run(request), request["cap"]))
