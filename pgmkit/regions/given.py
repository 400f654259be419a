"""Answers of a region model about those records that meet given conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.inference.query_answers import QueryAnswers
from pgmkit.linear.matrix import as_dense
from pgmkit.queries import FactoredQuery
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.randomness import Rng, generator
from pgmkit.runtime.sizes import BLOCK_CELLS

_MOST_DRAWS = 2 * BLOCK_CELLS
"""The largest number of records that are drawn in order to keep those that meet the conditions."""
_TOGETHER = _MOST_DRAWS // 10
"""The number of records that are drawn in one call after the first."""


class Whole(Protocol):
    """The interface of the model of all records to which ``GivenRegions`` adds conditions."""

    @property
    def domain(self) -> Domain: ...
    def answer(self, query: FactoredQuery) -> Array: ...
    def sample(self, n: int, *, rng: Rng = None) -> Dataset: ...
    def map(self) -> NoReturn: ...


@dataclass(frozen=True, eq=False)
class GivenRegions(QueryAnswers):
    """Counts of the records with given codes, as ``RegionModel.given`` returns it.

    Every answer is the model's own answer to the question with the conditions added. It comes from
    a region that contains the attributes of both, or else from records near the tables, with the
    warning ``FromRecords``.
    """

    model: Whole
    allowed: Mapping[str, NDArray[np.bool_]]

    @property
    def domain(self) -> Domain:
        """The model's domain; values that the conditions rule out have counts of zero."""
        return self.model.domain

    @cached_property
    def total(self) -> float:
        """The expected number of records that meet the conditions."""
        return float(self.answer(FactoredQuery({})).sum())

    def marginal(self, attrs: Iterable[str]) -> Array:
        """Return the expected counts over ``attrs``; axes in the given order."""
        clique = self.domain.clique(attrs)
        return self.answer(FactoredQuery.marginal(self.domain, clique))

    def marginals(self, cliques: Iterable[Iterable[str]]) -> dict[Clique, Array]:
        """Return marginals as `marginal` does, by clique."""
        checked = [self.domain.clique(clique) for clique in cliques]
        return {clique: self.marginal(clique) for clique in checked}

    def _answered(self, query: FactoredQuery) -> Array:
        query.check(self.domain)
        factors = {name: as_dense(factor) for name, factor in query.factors.items()}
        for name, codes in self.allowed.items():
            factors[name] = factors.get(name, np.ones((1, len(codes)))) * codes
        return self.model.answer(FactoredQuery(factors)).reshape(query.answer_shape)

    def map(self) -> NoReturn:
        """Raise ``InvalidInput``, as the model's ``map`` does."""
        self.model.map()

    def sample(self, n: int, *, rng: Rng = None) -> Dataset:
        """Draw ``n`` records that meet the conditions, by drawing records of the model and
        rejecting the others.

        Raises ``InvalidInput`` if some two million records of the model contain fewer than ``n``
        such records.
        """
        drawn_from, kept, found = generator(rng), list[Dataset](), 0
        size = min(_MOST_DRAWS, max(n, 1000))
        for _ in range(max(1, _MOST_DRAWS // size)):
            kept.append(self._meeting(self.model.sample(size, rng=drawn_from)))
            found += len(kept[-1])
            if found >= n:
                return _first(self.domain, kept, n)
            size = max(size, _TOGETHER)
        raise InvalidInput(
            f"only {found:,} of {_MOST_DRAWS:,} records of this region model have the given codes "
            f"of {', '.join(self.allowed)}, and {n:,} were asked for; ask for fewer records "
            "or give fewer conditions"
        )

    def _meeting(self, records: Dataset) -> Dataset:
        met = np.ones(len(records), dtype=np.bool_)
        for name, codes in self.allowed.items():
            met &= codes[records.columns[name]]
        return Dataset(self.domain, {name: c[met] for name, c in records.columns.items()})


def _first(domain: Domain, parts: Sequence[Dataset], n: int) -> Dataset:
    columns = {name: np.concatenate([part.columns[name] for part in parts])[:n] for name in domain}
    return Dataset(domain, columns)
