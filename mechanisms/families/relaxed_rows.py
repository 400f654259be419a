"""The model of RAP: rows whose entries need not be probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mechanisms.families.product_mixture import ProductMixtureModel
from pgmkit.errors import InvalidInput
from pgmkit.runtime.arrays import Array


class RelaxedRowsModel(ProductMixtureModel):
    """RAP's rows in [-1, 1], which are not probabilities: product queries of them need not be
    consistent.

    Marginals and answers are means of products of the entries (so they may be negative, and a
    marginal need not sum to `total`). Records are drawn from the positive parts, scaled to sum to 1
    within each attribute (uniform if none is positive): the randomised rounding of RAP.
    """

    format = "pgmkit relaxed rows"

    def given(self, evidence: Mapping[str, int | Sequence[int]]) -> ProductMixtureModel:
        """Raise InvalidInput, since relaxed rows are not a distribution that can be conditioned."""
        raise InvalidInput(
            "relaxed rows are no distribution and cannot be conditioned; use rap-softmax"
        )

    def _check_rows(self) -> None:
        """Raise InvalidInput for rows with entries outside [-1, 1]."""
        if not (np.abs(self.rows) <= 1).all():
            raise InvalidInput("relaxed rows must lie in [-1, 1]; clamp them first")

    def _simplex(self, name: str) -> Array:
        positive = np.maximum(self.rows[:, self._columns.of(name)], 0.0)
        sums = positive.sum(1, keepdims=True)
        uniform = np.full_like(positive, 1 / positive.shape[1])
        return np.divide(positive, sums, out=uniform, where=sums > 0)
