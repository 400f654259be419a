"""A release beside the data it protects: errors, and what a classifier loses.

Everything here reads private data without any protection: its results are not private.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pgmkit.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mechanisms.release.record import Model
    from pgmkit.dataset import Dataset
    from pgmkit.domain import Clique

__all__ = ["Scores", "marginal_errors", "train_and_test"]

_MOST_CELLS = 200_000


@dataclass(frozen=True)
class Scores:
    """Macro F1 of logistic regression on real records: trained on synthetic and on real ones."""

    synthetic: float
    real: float

    @property
    def ratio(self) -> float:
        """What of the real score the synthetic one reaches."""
        return self.synthetic / self.real


def marginal_errors(model: Model, truth: Dataset, k: int) -> dict[Clique, float]:
    """Total variation distance of every marginal over k columns that is not too large.

    >>> from pgmkit import Dataset, Domain, Measurement, estimate
    >>> data = Dataset(Domain({"a": 2}), {"a": [0, 0, 0, 1]})
    >>> marginal_errors(estimate(data.domain, [Measurement(("a",), [2, 2], 1.0)]), data, 1)
    {('a',): 0.25}
    """
    cliques = [
        clique
        for clique in itertools.combinations(truth.domain.attributes, k)
        if truth.domain.size(clique) <= _MOST_CELLS
    ]
    real, found = truth.marginals(cliques), model.marginals(cliques)
    return {
        clique: float(np.abs(real[clique] / len(truth) - found[clique] / found[clique].sum()).sum())
        / 2
        for clique in cliques
    }


def train_and_test(synthetic: Dataset, train: Dataset, test: Dataset, target: str) -> Scores:
    """Logistic regression of the target on all other columns, one-hot (as in the RAP++ paper).

    Raises InvalidInput for an unknown target, or where scikit-learn is not installed.
    """
    if target not in test.domain:
        raise InvalidInput(
            f"target {target!r} is no column; columns are {', '.join(test.domain.attributes)}"
        )
    return Scores(_score(synthetic, test, target), _score(train, test, target))


def _score(train: Dataset, test: Dataset, target: str) -> float:
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import f1_score
    except ImportError:
        raise InvalidInput(
            "scores of a classifier need scikit-learn: pip install 'pgmkit[report]'"
        ) from None
    labels = train.columns[target]
    if len(np.unique(labels)) < 2:
        predicted: NDArray[np.integer] = np.full(len(test), labels[0])
    else:
        model = LogisticRegression(max_iter=1000)
        model.fit(_one_hot(train, target), labels)
        predicted = model.predict(_one_hot(test, target))
    return float(f1_score(test.columns[target], predicted, average="macro"))


def _one_hot(data: Dataset, target: str) -> NDArray[np.float64]:
    parts = [
        np.eye(size, dtype=np.float64)[data.columns[name]]
        for name, size in data.domain.sizes.items()
        if name != target
    ]
    return np.concatenate(parts, axis=1)
