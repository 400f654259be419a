"""Synthetic records as the family that a mechanism updates: each round adds some records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mechanisms.families.histogram import HistogramModel, PublicSupport
from pgmkit.domain import Clique, Domain
from pgmkit.records.dataset import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Records"]


@dataclass(frozen=True, eq=False)
class Records:
    """Records of equal weight that stand for `total` rows; before there are any, a uniform model.

    >>> records = Records(Domain({"a": 2, "b": 3}), ((0, 2), (1, 2)), total=10)
    >>> records.marginals([("b",)])
    {('b',): array([ 0.,  0., 10.])}
    >>> Records(records.domain, (), 6).marginals([("b",)])
    {('b',): array([2., 2., 2.])}
    """

    domain: Domain
    list: tuple[tuple[int, ...], ...]
    total: float

    def marginals(self, cliques: Iterable[Clique]) -> dict[Clique, NDArray[np.float64]]:
        """Return marginals in counts, by clique."""
        if not self.list:
            return {
                clique: np.full(
                    self.domain.shape(clique), self.total / self.domain.size(clique), np.float64
                )
                for clique in cliques
            }
        counts = self._dataset().marginals(list(cliques))
        each = self.total / len(self.list)
        return {clique: np.asarray(table * each) for clique, table in counts.items()}

    def joined(self, others: Sequence[tuple[int, ...]]) -> Records:
        """Return these records and others."""
        return Records(self.domain, (*self.list, *others), self.total)

    def model(self) -> HistogramModel:
        """Return a histogram on the distinct records, for the release. There must be at least one
        record.
        """
        support, counts = PublicSupport.of(self._dataset())
        return HistogramModel(support, counts, self.total)

    def _dataset(self) -> Dataset:
        columns = np.array(self.list).T
        return Dataset(self.domain, dict(zip(self.domain, columns, strict=True)))
