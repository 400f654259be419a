"""The errors of a release against the data it protects, and the scores of classifiers that are
trained on its records.

Everything here reads private data without any protection: its results are not private.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.release.record import Model
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, check_known, installing
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.sizes import CACHE_CELLS
from pgmkit.runtime.typed import typed


def sklearn(module: str) -> Any:
    """Return this module of scikit-learn; raise InvalidInput if scikit-learn is not installed."""
    try:
        return import_module(f"sklearn.{module}")
    except ImportError:
        raise InvalidInput(
            f"scores of a classifier need scikit-learn: {installing('report')}"
        ) from None


def one_hot(data: Dataset, names: Sequence[str], *, drop: str | None = None) -> Any:
    """Return the indicators of the codes of these attributes, of which there must be at least one,
    as a sparse matrix of 0 and 1 with a row for each record and a column for each code. If `drop`
    is "first", the first code of each attribute has no column. It needs scikit-learn (`sklearn`).
    """
    codes = np.column_stack([data.columns[name] for name in names])
    known = [np.arange(data.domain.sizes[name]) for name in names]
    return sklearn("preprocessing").OneHotEncoder(categories=known, drop=drop).fit_transform(codes)


AT_ONCE = 4 * CACHE_CELLS
"""The rows, or cells of a table, that one step of a comparison handles: about a second's work."""


@dataclass(frozen=True)
class Scores:
    """The macro F1 scores of logistic regressions, tested on real records.

    `synthetic`: when trained on synthetic records. `real`: when trained on real ones.
    """

    synthetic: float
    real: float

    @property
    def ratio(self) -> float:
        """The synthetic score divided by the real one; infinite if the real one is 0."""
        return self.synthetic / self.real if self.real else math.inf


def some_cliques(domain: Domain, k: int, *, most: int | None = None, seed: int = 0) -> list[Clique]:
    """Return the sets of k columns whose tables have at most `AT_ONCE` cells, among all sets of k
    columns or, if `most` is given and they are more, among `most` of them drawn at random. The list
    is empty if there are fewer than k columns.

    >>> from pgmkit import Domain
    >>> some_cliques(Domain({"a": 2, "b": 2, "c": 2}), 2)
    [('a', 'b'), ('a', 'c'), ('b', 'c')]
    >>> len(some_cliques(Domain({str(i): 2 for i in range(1000)}), 3, most=50))
    50
    """
    names = domain.attributes
    if most is None or math.comb(len(names), k) <= most:
        chosen: Iterable[Clique] = itertools.combinations(names, k)
    else:
        rng = np.random.default_rng(seed)
        drawn: dict[tuple[int, ...], None] = {}
        while len(drawn) < most:
            drawn[tuple(sorted(rng.choice(len(names), k, replace=False).tolist()))] = None
        chosen = (tuple(names[i] for i in places) for places in sorted(drawn))
    return [clique for clique in chosen if domain.size(clique) <= AT_ONCE]


@typed
def marginal_errors(
    model: Model | Dataset, truth: Dataset, cliques: Sequence[Clique]
) -> dict[Clique, float]:
    """Return for each clique the total variation distance, from 0 to 1, between two marginals, both
    as shares: that of a model or of records, and that of `truth`. Counts of a model are divided by
    their sum, or by 1 if that is more: in separate tables, where noise hides them, all may be 0.

    >>> from pgmkit import Dataset, Domain, Measurement, estimate
    >>> data = Dataset(Domain({"a": 2}), {"a": [0, 0, 0, 1]})
    >>> model = estimate(data.domain, [Measurement(("a",), [2, 2], 1.0)])
    >>> marginal_errors(model, data, [("a",)])
    {('a',): 0.25}
    """
    real, found = truth.marginals(cliques), model.marginals(cliques)
    errors = {}
    for clique in cliques:
        apart = real[clique] / len(truth) - found[clique] / max(1.0, found[clique].sum())
        errors[clique] = float(np.abs(apart).sum()) / 2
    return errors


def held_out(data: Dataset, *, most: int | None = None, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Return records to train and to test on, drawn at random: three quarters and a quarter, but at
    least one to test on. There must be at least two records.

    `most`: the largest number of records in both together; None for all.
    """
    order = np.random.default_rng(seed).permutation(len(data))[:most]
    cut = max(1, len(order) // 4)
    return some_rows(data, order[cut:]), some_rows(data, order[:cut])


def some_rows(data: Dataset, rows: NDArray[np.intp]) -> Dataset:
    """Return the records at these places."""
    return Dataset(data.domain, {name: codes[rows] for name, codes in data.columns.items()})


def train_and_test(synthetic: Dataset, train: Dataset, test: Dataset, target: str) -> Scores:
    """Return the macro F1 scores on `test` of two logistic regressions of the target on all other
    columns, coded one-hot: one is trained on synthetic records, the other on `train`.

    This is the evaluation of the RAP++ paper. Raises InvalidInput for an unknown target, for one
    that is the only column, or if scikit-learn is not installed.
    """
    check_known([target], test.domain, "target: there is no column", "columns are")
    if len(test.domain) == 1:
        raise InvalidInput(f"no column is left to predict the target {target!r} from; leave it out")
    return Scores(_score(synthetic, test, target), _score(train, test, target))


def _score(train: Dataset, test: Dataset, target: str) -> float:
    linear, metrics = sklearn("linear_model"), sklearn("metrics")
    labels = train.columns[target]
    if len(np.unique(labels)) < 2:
        predicted: NDArray[np.integer] = np.full(len(test), labels[0])
    else:
        model = linear.LogisticRegression(max_iter=1000)
        others = [name for name in train.domain if name != target]
        model.fit(one_hot(train, others), labels)
        predicted = model.predict(one_hot(test, others))
    return float(metrics.f1_score(test.columns[target], predicted, average="macro"))
