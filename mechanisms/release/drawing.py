"""Records from a released model, near its pairs of columns."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from pgmkit.records.fitting import LARGEST_WIDTH, fit_records
from pgmkit.runtime.randomness import Rng, generator

if TYPE_CHECKING:
    from pgmkit.records.dataset import Dataset

__all__ = ["draw_near"]

_MOST_LOOKUPS = 2e9
"""Records times pairs of columns, beyond which counting alone takes minutes."""


def draw_near(model: Any, n: int, rng: Rng = None) -> Dataset:
    """`n` records of a released model, with codes exchanged so that all pairs are near the model's.

    Drawn records stray from the model's tables as any sample does; of a few thousand records, or of
    many columns, by more than the noise. What follows from the model alone costs no budget. Records
    stay as they were drawn where the columns have more than 2500 codes together, where there are
    very many records, and where combinations of three columns or more are impossible, which an
    exchange of one code could not respect.

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
    records: Dataset = model.sample(n, rng=random)
    names = list(model.domain)
    width = sum(model.domain.shape())
    large = width > LARGEST_WIDTH or n * len(names) ** 2 > _MOST_LOOKUPS
    if len(names) < 2 or large or _bars_triples(model):
        return records
    tables = model.marginals(combinations(names, 2))
    return fit_records(
        records,
        {pair: np.maximum(table, 0.0) for pair, table in tables.items() if table.max() > 0},
        rng=random,
    )


def _bars_triples(model: Any) -> bool:
    """True if the model holds combinations of three columns or more to be impossible."""
    return any(len(zeros.clique) > 2 for zeros in getattr(model, "zeros", ())) or any(
        len(factor.domain) > 2 and bool(np.isneginf(factor.numpy()).any())
        for factor in getattr(model, "potentials", ())
    )
