"""One run of one mechanism in a process of its own, and its true errors.

    python -m benchmarks.adaptive_run REQUEST.json ANSWER.json

The errors look at the private rows: that is for public data only, and the noise is seeded.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import peak_rss_mb, serve, within_cap
from benchmarks.settings import SETTINGS, Setting, delta_of, load, workload_of

if TYPE_CHECKING:
    from mechanisms.release.record import Release
    from pgmkit.domain import Clique
    from pgmkit.records.dataset import Dataset

BLOCK = 8
"""Marginals that are compared at once: eight of 1.5e7 cells take a gigabyte."""
PUBLIC_ROWS = "public rows alone"
"""A contestant that spends nothing: the public rows' marginals, scaled to n."""


def errors(
    truth: Mapping[Clique, Any], answers: Mapping[Clique, Any], n: float, answered_n: float
) -> dict[str, float]:
    """Largest, mean and root mean square error over all cells of all marginals, as fractions."""
    return joined([cell_errors(table, answers[c], n, answered_n) for c, table in truth.items()])


def cell_errors(
    table: Any, answered: Any, n: float, answered_n: float
) -> tuple[int, float, float, float]:
    """Of one marginal: cells, largest error, sum of the errors, sum of their squares."""
    gaps = np.ravel(np.asarray(answered) / answered_n - np.asarray(table) / n)
    away = np.abs(gaps)
    return len(gaps), float(away.max()), float(away.sum()), float(gaps @ gaps)


def joined(parts: Sequence[tuple[int, float, float, float]]) -> dict[str, float]:
    """The figures of all marginals from those of each."""
    cells, largest, sums, squares = (np.array(column) for column in zip(*parts, strict=True))
    return {
        "max": float(largest.max()),
        "mean": float(sums.sum() / cells.sum()),
        "rmse": float(np.sqrt(squares.sum() / cells.sum())),
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


def evaluate(
    data: Dataset, answering: Any, answered_n: float, triples: Sequence[Clique] | None = None
) -> dict[str, float | None]:
    """The four figures of anything that has `marginals(cliques)`; of all triples by default.

    Pairs are None for a model that answers its own marginals only, and where some triples are
    asked.
    """
    from pgmkit.errors import InvalidInput

    n = len(data)
    asked = list(itertools.combinations(data.domain, 3)) if triples is None else list(triples)
    # A few marginals at a time: of many columns all together would not fit in memory.
    parts = []
    for start in range(0, len(asked), BLOCK):
        some = asked[start : start + BLOCK]
        truth, answers = data.marginals(some), answering.marginals(some)
        parts += [cell_errors(truth[c], answers[c], n, answered_n) for c in some]
    figures: dict[str, float | None] = dict(joined(parts))
    pairs = list(itertools.combinations(data.domain, 2))
    try:
        tables = None if triples is not None else answering.marginals(pairs)
    except InvalidInput:
        tables = None
    if tables is None:
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


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run, then measure what the run took, then what it got wrong.

    `seconds` are the mechanism's alone, the engine's modules loaded before. `process_seconds`
    start when the process was asked for and end before the errors are computed: interpreter,
    imports, reading the file and, where records are compared, sampling them. A run that takes more
    CPU seconds than the request's `cap` is ended.
    """
    setting = SETTINGS[request["dataset"]]
    data, public = load(setting)
    triples = None if setting.triples is None else workload_of(setting, data).cliques
    if request["mechanism"] == PUBLIC_ROWS:
        if public is None:
            return {"refused": "there are no public rows"}
        found = evaluate(data, public, len(public), triples)
        return {**found, "seconds": 0.0, "cpu_seconds": 0.0}
    if "cap" in request:
        return within_cap(lambda: _measured(request, setting, data, public), request["cap"])
    return _measured(request, setting, data, public)


def _measured(
    request: Mapping[str, Any], setting: Setting, data: Dataset, public: Dataset | None
) -> dict[str, Any]:
    import pgmkit.estimation  # noqa: F401
    from pgmkit.errors import InvalidInput, ModelTooLarge

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
    triples = None if setting.triples is None else workload_of(setting, data).cliques
    if records is None:
        return {**figures, **evaluate(data, release.model, len(data), triples)}
    return {**figures, **evaluate(data, records, len(records), triples)}


if __name__ == "__main__":
    serve(answer)
