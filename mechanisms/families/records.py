"""Synthetic records as the family that a mechanism updates: each round adds some records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

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
    _tally: _Tally = field(default_factory=lambda: _Tally(), kw_only=True)

    def marginals(self, cliques: Iterable[Clique]) -> dict[Clique, NDArray[np.float64]]:
        """Return marginals in counts, by clique."""
        if not self.list:
            return {
                clique: np.full(
                    self.domain.shape(clique), self.total / self.domain.size(clique), np.float64
                )
                for clique in cliques
            }
        each = self.total / len(self.list)
        counts = self._tally.of(self, list(cliques))
        return {clique: np.asarray(table * each) for clique, table in counts.items()}

    def joined(self, others: Sequence[tuple[int, ...]]) -> Records:
        """Return these records and others."""
        return Records(self.domain, (*self.list, *others), self.total, _tally=self._tally)

    def model(self) -> HistogramModel:
        """Return a histogram on the distinct records, for the release. There must be at least one
        record.
        """
        support, counts = PublicSupport.of(self._dataset())
        return HistogramModel(support, counts, self.total)

    def _dataset(self) -> Dataset:
        columns = np.array(self.list).T
        return Dataset(self.domain, dict(zip(self.domain, columns, strict=True)))


class _Tally:
    """The marginal counts of a growing list of records. Records counted in an earlier call are not
    counted again while the list only grows and the cliques stay the same.
    """

    def __init__(self) -> None:
        self._counted: tuple[tuple[int, ...], ...] = ()
        self._cliques: list[Clique] = []
        self._counts: dict[Clique, NDArray[np.int64]] = {}

    def of(self, records: Records, cliques: list[Clique]) -> Mapping[Clique, NDArray[np.int64]]:
        """Return the counts of the records; a later call may change these arrays."""
        known = len(self._counted)
        if cliques != self._cliques or records.list[:known] != self._counted:
            known, self._cliques = 0, cliques
            self._counts = {c: np.zeros(records.domain.shape(c), np.int64) for c in cliques}
        columns = np.array(records.list[known:], dtype=np.int64).reshape(-1, len(records.domain)).T
        codes = dict(zip(records.domain, columns, strict=True))
        for clique, table in self._counts.items():
            np.add.at(table, tuple(codes[name] for name in clique), 1)
        self._counted = records.list
        return self._counts
