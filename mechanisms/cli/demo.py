"""The text of `pgmkit demo`: MWEM+PGM on the built-in census-like data, which is public."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mechanisms.datasets.census import LABELS
from mechanisms.families.tables import TablesModel
from mechanisms.release.evaluation import marginal_errors
from mechanisms.release.record import Model, Release
from mechanisms.workload import Workload
from pgmkit.queries import FactoredQuery, identity, point, prefix, range_
from pgmkit.records.dataset import Dataset


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
            *_range(release, data),
            *_cdf(release, data),
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


def _range(release: Release, data: Dataset) -> Iterator[str]:
    low, high = LABELS["age"].index("30-34"), LABELS["age"].index("45-49")
    rich = LABELS["income"].index("50-75k")
    asked = {"age": range_(12, low, high), "income": range_(10, rich, 9), "sex": identity(2)}
    query = FactoredQuery(asked)
    estimate, truth = release.answer(query).ravel(), _exact(query, data)
    yield "range: persons of 30 to 49 years with an income of 50k or more"
    for sex, label in enumerate(LABELS["sex"]):
        yield f"  {label:<12} {estimate[sex]:>8.0f}   truth {truth[sex]:>6.0f}"


def _cdf(release: Release, data: Dataset) -> Iterator[str]:
    bachelor = LABELS["education"].index("bachelor")
    query = FactoredQuery({"education": point(8, bachelor), "income": prefix(10)})
    estimate, truth = release.answer(query).ravel(), _exact(query, data)
    yield "CDF: income given a bachelor's degree, share at or below"
    shares, true = (found / max(1.0, found[-1]) for found in (estimate, truth))
    for code, label in enumerate(LABELS["income"]):
        yield f"  {label:<12} {shares[code]:>8.3f}   truth {true[code]:>6.3f}"


def _exact(query: FactoredQuery, data: Dataset) -> NDArray[np.float64]:
    """Return the exact answers of the query to the data, in counts, as one flat array."""
    table = {query.attributes: data.marginal(query.attributes).astype(np.float64)}
    return TablesModel(data.domain, table, len(data)).answer(query).ravel()
