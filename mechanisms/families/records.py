"""Synthetic records as the family that a mechanism updates: each round adds some records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from mechanisms.families.histogram import HistogramModel, PublicSupport
from pgmkit.domain import Clique, Domain
from pgmkit.records.dataset import Dataset


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
        rows = self.sparse_marginals(cliques)
        return {c: row.toarray().reshape(self.domain.shape(c)) for c, row in rows.items()}

    def sparse_marginals(self, cliques: Iterable[Clique]) -> dict[Clique, csr_array]:
        """Return marginals in counts, by clique, each as one sparse row of its cells in C order."""
        wanted = list(cliques)
        sizes = {clique: self.domain.size(clique) for clique in wanted}
        if not self.list:
            return {c: csr_array(np.full((1, n), self.total / n)) for c, n in sizes.items()}
        columns = self._dataset().columns
        each = np.full(len(self.list), self.total / len(self.list))
        start = np.array([0, len(self.list)])
        rows = {}
        for c, n in sizes.items():
            codes = [columns[name] for name in c]
            cells = np.ravel_multi_index(codes, self.domain.shape(c)) if c else np.zeros(len(each))
            row = csr_array((each, cells.astype(np.int64), start), (1, n), copy=True)
            row.sum_duplicates()  # in place, so each row needs weights of its own
            rows[c] = row
        return rows

    def joined(self, others: Sequence[tuple[int, ...]]) -> Records:
        """Return these records followed by `others`, which are tuples of codes in the domain's
        order. All together stand for the same `total`.
        """
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
