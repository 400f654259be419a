"""The text of `pgmkit demo`: MWEM+PGM on the built-in census-like data, which is public."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mechanisms.datasets.census import schema
from mechanisms.families.tables import TablesModel
from mechanisms.release.evaluation import marginal_errors
from mechanisms.release.record import Model, Release
from mechanisms.workload import Workload
from pgmkit import Dataset, ask
from pgmkit.domain import Clique

_QUESTIONS = {
    "range": "sex | age in {30-34, 35-39, 40-44, 45-49}, income in {50-75k, 75k+}",
    "CDF": "cdf(income) | education = bachelor",
}
"""The questions that the demonstration asks, by their kind."""


def report(release: Release, data: Dataset, synthetic: Dataset, workload: Workload) -> str:
    """Return the demonstration's text: the ledger, the workload's error, a range and a CDF answer.

    It compares with the exact data, as no private mechanism may: the data must be public.
    """
    return "\n".join(
        [
            "Privacy ledger",
            str(release.ledger),
            "",
            "Error (computed on the built-in data, which is public: on private data it would leak)",
            *_errors(release, data, synthetic, workload),
            "",
            "Answers of the model, from factored queries without sampling (truth: public data)",
            *_answers(release, data),
        ]
    )


def _errors(
    release: Release, data: Dataset, synthetic: Dataset, workload: Workload
) -> Iterator[str]:
    sources: dict[str, Model | Dataset] = {"model": release.model, "synthetic records": synthetic}
    yield f"{'total variation of the pairs':<30} {'mean':>8} {'worst':>8}"
    for name, source in sources.items():
        distances = marginal_errors(source, data, workload.cliques)
        worst = max(distances, key=distances.__getitem__)
        mean = np.mean(list(distances.values()))
        yield f"{name:<30} {mean:>8.4f} {distances[worst]:>8.4f}  {' x '.join(worst)}"


def _answers(release: Release, data: Dataset) -> Iterator[str]:
    """Yield the model's replies to `_QUESTIONS`, each with a column of exact counts."""
    asked: Clique = ("age", "sex", "education", "income")
    truth = TablesModel(data.domain, {asked: data.marginal(asked)}, len(data))
    for kind, question in _QUESTIONS.items():
        reply, exact = (ask(model, schema(), question) for model in (release.model, truth))
        yield f"{kind}: {question}"
        yield str(replace(reply, columns={**reply.columns, "truth": exact.columns["count"]}))
