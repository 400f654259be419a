"""Records drawn from a released model so that their pairs of columns are near the model's."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from pgmkit.records.dataset import Dataset
from pgmkit.records.fitting import LARGEST_WIDTH, fit_records
from pgmkit.runtime.arguments import Rng, generator
from pgmkit.runtime.sizes import MULTIPLICATIONS_A_SECOND

MOST_LOOKUPS = 2 * MULTIPLICATIONS_A_SECOND
"""The largest product of the number of records and the square of the number of columns, since to
count the pairs of more takes minutes.
"""


def draw_near(model: Any, n: int, rng: Rng = None) -> Dataset:
    """Return `n` records of a released model, with codes replaced so that the counts of all pairs
    of columns are near the model's, scaled to `n`.

    Drawn records differ from the model's tables as any sample does; with a few thousand records, or
    with many columns, by more than the noise. Only the model is used, so this costs no budget. The
    records stay as they were drawn if there is only one column, if the columns have more than
    `LARGEST_WIDTH` codes together, if `n` times the squared number of columns is above
    `MOST_LOOKUPS`, or if combinations of three columns or more are impossible, which replacing
    single codes could not respect.

    >>> from pgmkit.domain import Domain
    >>> from pgmkit.factor import Factor
    >>> from pgmkit.model import GraphicalModel
    >>> d = Domain({"a": 2, "b": 2})
    >>> model = GraphicalModel(d, (Factor(d, np.log([[4.0, 1.0], [1.0, 4.0]])),), total=100.0)
    >>> draw_near(model, 1000, rng=0).marginal(("a", "b"))
    array([[400, 100],
           [100, 400]])
    """
    random = generator(rng)
    names = list(model.domain)
    large = sum(model.domain.shape()) > LARGEST_WIDTH or n * len(names) ** 2 > MOST_LOOKUPS
    triples = any(len(zeros.clique) > 2 for zeros in getattr(model, "structural_zeros", ()))
    if len(names) < 2 or large or triples:
        return model.sample(n, rng=random)
    records = getattr(model, "first_records", model.sample)(n, rng=random)
    tables = model.marginals(combinations(names, 2))
    goals = {pair: np.maximum(table, 0.0) for pair, table in tables.items() if table.max() > 0}
    return fit_records(records, goals, rng=random)
