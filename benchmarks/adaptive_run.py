"""One run of one mechanism in a process of its own, and its true errors.

    python -m benchmarks.adaptive_run REQUEST.json ANSWER.json

The errors look at the private rows: that is for public data only, and the noise is seeded.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import peak_rss_mb, serve

if TYPE_CHECKING:
    from mechanisms.release.record import Release
    from mechanisms.workload import Workload
    from pgmkit.domain import Clique
    from pgmkit.records.dataset import Dataset

PUBLIC_ROWS = "public rows alone"
"""A contestant that spends nothing: the public rows' marginals, scaled to n."""


@dataclass(frozen=True)
class Setting:
    """A data set, how it is protected, the workload's k, and what is compared.

    `rows`: which of adult.csv are private ("private" or "all"), or how many rows of the built-in
    census. `delta` None stands for 1/n^2. `records`: errors of synthetic records, not of the model.
    """

    schema: str
    rows: str | int
    neighbours: str = "replace-one"
    k: int = 3
    delta: float | None = None
    records: bool = False


SETTINGS = {
    "adult": Setting("adult.domain.json", "private"),
    "adult-small": Setting("adult-reduced.domain.json", "private"),
    "adult-all": Setting(
        "adult.domain.json", "all", "add/remove", k=2, delta=4.2e-10, records=True
    ),
    "census": Setting("built in", 44_000),
}


def load(setting: Setting) -> tuple[Dataset, Dataset | None]:
    """The private rows, and the public ones where there are some.

    Raises:
        SystemExit: PGMKIT_DATA does not name a folder with the files.
    """
    from pgmkit.domain import Domain
    from pgmkit.records.dataset import Dataset

    if isinstance(setting.rows, int):
        from mechanisms.datasets.census import census

        return census(setting.rows, seed=0), census(setting.rows // 9, seed=1)
    from benchmarks.adult import read_columns

    folder = Path(os.environ.get("PGMKIT_DATA", ""))
    csv, schema = folder / "adult.csv", folder / setting.schema
    if "PGMKIT_DATA" not in os.environ or not (csv.exists() and schema.exists()):
        raise SystemExit(f"set PGMKIT_DATA to a folder with adult.csv and {setting.schema}")
    sizes = json.loads(schema.read_text())
    columns, domain = read_columns(csv, sizes), Domain(sizes)
    if setting.rows == "all":
        return Dataset(domain, columns), None
    with csv.open() as lines:
        place = next(lines).strip().split(",").index("split")
        split = np.array([line.strip().split(",")[place] for line in lines])
    private, public = (
        Dataset(domain, {name: codes[split == part] for name, codes in columns.items()})
        for part in ("private", "public")
    )
    return private, public


def errors(
    truth: Mapping[Clique, Any], answers: Mapping[Clique, Any], n: float, answered_n: float
) -> dict[str, float]:
    """Largest, mean and root mean square error over all cells of all marginals, as fractions."""
    gaps = np.concatenate(
        [
            np.ravel(np.asarray(answers[clique]) / answered_n - np.asarray(table) / n)
            for clique, table in truth.items()
        ]
    )
    return {
        "max": float(np.abs(gaps).max()),
        "mean": float(np.abs(gaps).mean()),
        "rmse": float(np.sqrt(np.mean(gaps**2))),
    }


def mean_variation(
    truth: Mapping[Clique, Any], answers: Mapping[Clique, Any], n: float, answered_n: float
) -> float:
    """Total variation between the marginals, averaged over the cliques."""
    distances = [
        0.5 * np.abs(np.asarray(answers[clique]) / answered_n - np.asarray(table) / n).sum()
        for clique, table in truth.items()
    ]
    return float(np.mean(distances))


def evaluate(data: Dataset, answering: Any, answered_n: float) -> dict[str, float | None]:
    """The four figures of anything that has `marginals(cliques)`.

    Pairs are None for a model that answers its own marginals only.
    """
    from pgmkit.errors import InvalidInput

    triples, pairs = (list(itertools.combinations(data.domain, k)) for k in (3, 2))
    n = len(data)
    figures: dict[str, float | None] = dict(
        errors(data.marginals(triples), answering.marginals(triples), n, answered_n)
    )
    try:
        tables = answering.marginals(pairs)
    except InvalidInput:
        return {**figures, "pairs": None}
    return {**figures, "pairs": mean_variation(data.marginals(pairs), tables, n, answered_n)}


def run_mechanism(
    request: Mapping[str, Any], setting: Setting, data: Dataset, public: Dataset | None
) -> Release:
    """The mechanism of the request with its settings and seeded noise.

    Public rows go to mechanisms that need them.
    """
    from mechanisms.dispatch import run_on
    from mechanisms.privacy.budget import Budget
    from mechanisms.privacy.curator import Curator
    from mechanisms.registry import configure

    entry, settings = configure(request["mechanism"], **request["options"])
    budget = Budget(request["epsilon"], delta_of(setting, data))
    curator = Curator(data, budget, neighbours=setting.neighbours, seed=request["seed"])
    further = public if entry.public else None
    return run_on(curator, entry, settings, workload_of(setting, data), public=further)


def workload_of(setting: Setting, data: Dataset) -> Workload:
    from mechanisms.workload import k_way

    return k_way(data.domain, setting.k)


def delta_of(setting: Setting, data: Dataset) -> float:
    return len(data) ** -2 if setting.delta is None else setting.delta


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run, then measure what the run took, then what it got wrong.

    `seconds` are the mechanism's alone, the engine's modules loaded before. `process_seconds`
    start when the process was asked for and end before the errors are computed: interpreter,
    imports, reading the file and, where records are compared, sampling them.
    """
    from pgmkit.errors import InvalidInput, ModelTooLarge

    setting = SETTINGS[request["dataset"]]
    data, public = load(setting)
    if request["mechanism"] == PUBLIC_ROWS:
        if public is None:
            return {"refused": "there are no public rows"}
        return {**evaluate(data, public, len(public)), "seconds": 0.0, "cpu_seconds": 0.0}
    import pgmkit.estimation  # noqa: F401

    started = time.perf_counter(), time.process_time()
    try:
        release = run_mechanism(request, setting, data, public)
    except (ModelTooLarge, InvalidInput) as refusal:
        return {"refused": str(refusal)}
    figures = {
        "seconds": time.perf_counter() - started[0],
        "cpu_seconds": time.process_time() - started[1],
        "settings": repr(release.settings),
        "measurements": len(release.measurements),
    }
    records = release.sample(rng=request["seed"]) if setting.records else None
    figures["process_seconds"] = time.time() - request["asked"]
    figures["peak_mb"] = peak_rss_mb()
    if records is None:
        return {**figures, **evaluate(data, release.model, len(data))}
    return {**figures, **evaluate(data, records, len(records))}


if __name__ == "__main__":
    serve(answer)
