"""The codes of each attribute whose counts stand out from noise; all its other codes are merged
into one.

A cell counts at most as many records as the rarest of its codes. If noisy one-way marginals cannot
tell the count of a code from 0, queries about the code are not worth selecting: with thousands of
codes nearly all cells are of this kind, and each would be a candidate of every noisy selection. A
family over the frequent codes alone is several times smaller. Nothing here sees private data:
frequent codes are found from noisy measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mechanisms.privacy.cell_line import index_among, measured_cell, selector
from mechanisms.queries.cells import Cell
from mechanisms.workload import Workload
from pgmkit.domain import Domain
from pgmkit.linear.kronecker import Kronecker
from pgmkit.linear.matrix import as_dense
from pgmkit.measurement import Measurement
from pgmkit.runtime.chances import DEVIATIONS


class Frequent:
    """A domain in which each attribute has its frequent codes and, last, one code for all others. A
    code is frequent if its noisy count is more than `DEVIATIONS` standard deviations above 0.

    `first`: noisy one-way marginals in counts; an attribute without one keeps all its codes, and so
    does an attribute with only one code that is not frequent. `total`: the number of records.

    Attributes:
        whole: The domain with all codes.
        domain: The domain of the frequent codes of each attribute, with one last code for all
            others if there are others.
        codes: The frequent codes by attribute, in rising order.

    >>> first = [Measurement(("a",), [50.0, 0.5, 40.0, -1.0], 1.0)]
    >>> frequent = Frequent(Domain({"a": 4, "b": 2}), first, 90.0)
    >>> frequent.codes["a"], frequent.domain.shape()
    (array([0, 2]), (3, 2))
    """

    def __init__(self, whole: Domain, first: Sequence[Measurement], total: float) -> None:
        self.whole, self._total = whole, total
        self.codes = {name: np.arange(size) for name, size in whole.sizes.items()}
        self._rest: dict[str, NDArray[np.float64]] = {}
        for m in first:
            (name,) = m.clique
            seen = m.values > DEVIATIONS * m.stddev
            if (~seen).sum() > 1:
                self.codes[name] = np.flatnonzero(seen)
                self._rest[name] = np.maximum(m.values, 0.0)[~seen]
        sizes = {name: len(own) + (name in self._rest) for name, own in self.codes.items()}
        self.domain = Domain(sizes)

    @classmethod
    def of(
        cls, workload: Workload, first: Sequence[Measurement], total: float, queries: int
    ) -> Frequent:
        """Return the frequent codes by the measurements `first`, or all codes if the workload has
        fewer than `queries` cells that consist of frequent codes only.
        """
        found = cls(workload.domain, first, total)
        cells = sum(
            math.prod(len(found.codes[name]) for name in clique) for clique in workload.cliques
        )
        return found if cells >= queries else cls(workload.domain, [], total)

    def measured(self, measurements: Iterable[Measurement]) -> list[Measurement]:
        """Return the measurements as measurements over `self.domain` (`merged`)."""
        return [*map(self.merged, measurements)]

    def merged(self, m: Measurement) -> Measurement:
        """Return a measurement as a measurement over `self.domain`: of a one-way marginal, of a
        single cell with frequent codes, or with one matrix for each attribute, whose rows must each
        have the same entry at all rare codes of an attribute. Any other is returned unchanged,
        which is right only if no attribute has rare codes.

        In a one-way marginal the count of the merged codes is the total minus the noisy counts of
        the frequent codes, and at least 0. The marginal keeps its `stddev`, although the count of
        the merged codes has the noise of all those of the frequent codes.
        """
        if isinstance(m.matrix, Kronecker):
            kept = [
                as_dense(side)[:, np.unique(self.places(name), return_index=True)[1]]
                for name, side in zip(m.clique, m.matrix.factors, strict=True)
            ]
            return Measurement(m.clique, m.values, m.stddev, kept)
        if m.matrix is not None:
            at = index_among(self.whole, measured_cell(m), self.codes)
            place = int(np.ravel_multi_index(at, self.domain.shape(m.clique)))
            small = selector(self.domain, Cell(m.clique, place))
            return Measurement(m.clique, m.values, m.stddev, small)
        if len(m.clique) == 1 and m.clique[0] in self._rest:
            values = m.values[self.codes[m.clique[0]]]
            rest = max(0.0, self._total - float(values.sum()))
            return Measurement(m.clique, [*values, rest], m.stddev)
        return m

    def places(self, name: str) -> NDArray[np.intp]:
        """Return the code over `self.domain` of each code of an attribute of the whole domain.

        >>> first = [Measurement(("a",), [50.0, 0.5, 40.0, -1.0], 1.0)]
        >>> Frequent(Domain({"a": 4}), first, 90.0).places("a")
        array([0, 2, 1, 2])
        """
        found = np.full(self.whole.sizes[name], len(self.codes[name]))
        found[self.codes[name]] = np.arange(len(self.codes[name]))
        return found

    def expand(
        self, rows: NDArray[np.float64], counts: Mapping[str, NDArray[np.float64]] | None = None
    ) -> NDArray[np.float64]:
        """Return rows (K x all codes) from rows over `self.domain`. The probability of a merged
        code is divided among its codes in proportion to their counts, or evenly if none is above 0.

        `counts`: by attribute, counts of all its codes, at least 0; those of `first` if None.

        >>> first = [Measurement(("a",), [50.0, 3.0, 40.0, 1.0], 2.0)]
        >>> Frequent(Domain({"a": 4}), first, 90.0).expand(np.array([[0.5, 0.3, 0.2]]))
        array([[0.5 , 0.15, 0.3 , 0.05]])
        """
        found = []
        parts = np.split(rows, np.cumsum(self.domain.shape())[:-1], axis=1)
        for name, part in zip(self.whole, parts, strict=True):
            places = self.places(name)
            shares, rare = np.ones(len(places)), places == len(self.codes[name])
            if rare.any():
                within = self._rest[name] if counts is None else counts[name][rare]
                shares[rare] = within / within.sum() if within.sum() else 1 / len(within)
            found.append(part.take(places, axis=1) * shares)
        return np.concatenate(found, axis=1)
