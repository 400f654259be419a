"""Answers of a region model about those records that meet given conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.inference.query_answers import QueryAnswers
from pgmkit.queries import FactoredQuery
from pgmkit.records.counting import Codes
from pgmkit.records.dataset import Dataset
from pgmkit.records.sampling import check_draw
from pgmkit.runtime.arguments import Rng, generator, listed
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import BLOCK_CELLS

_MOST_DRAWS = 2 * BLOCK_CELLS
"""The number of records that may be drawn, however few are asked for, in order to keep those that
meet the conditions.
"""
_TOGETHER = _MOST_DRAWS // 10
"""The least number of records that a call after the first draws, unless it reaches the limit of all
draws.
"""


class Whole(Protocol):
    """The interface of the model of all records to which ``GivenRegions`` adds conditions."""

    @property
    def domain(self) -> Domain: ...
    def answer(self, query: FactoredQuery) -> Array: ...
    def sample(self, n: int, *, rng: Rng = None) -> Dataset: ...
    def map(self) -> NoReturn: ...


@dataclass(frozen=True, eq=False)
class GivenRegions(QueryAnswers):
    """A model of those records of ``model`` that meet conditions, as ``RegionModel.given`` returns
    it. ``allowed`` has, for each attribute with a condition, a mask of the codes that meet it.

    Every answer is the answer of ``model`` to the question with the conditions added. It comes from
    a region that contains the attributes of the question and of the conditions, or if there is none
    from records near the tables, with the warning ``FromRecords``.
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
        return self.answer(FactoredQuery.marginal(self.domain, attrs))

    def marginals(self, cliques: Iterable[Iterable[str]]) -> dict[Clique, Array]:
        """Return a mapping from each clique to its marginal, as `marginal` returns it."""
        asked = [self.domain.clique(clique) for clique in listed(cliques, "cliques", "cliques")]
        return {clique: self.marginal(clique) for clique in asked}

    def _answered(self, query: FactoredQuery) -> Array:
        query.check(self.domain)
        factors = dict(query.factors)
        for name, codes in self.allowed.items():
            factors[name] = factors.get(name, np.ones((1, len(codes)))) * codes
        return self.model.answer(FactoredQuery(factors)).reshape(query.answer_shape)

    def map(self) -> NoReturn:
        """Raise ``InvalidInput``: a region model has no most probable record."""
        self.model.map()

    def sample(self, n: int, *, rng: Rng = None) -> Dataset:
        """Return ``n`` records that meet the conditions: the first ``n`` such records among records
        drawn from the model. ``rng``: a seed, a numpy Generator, or None for a fresh one.

        Raises ``InvalidInput`` if ``n`` is not a positive integer, or if fewer than ``n`` of the
        drawn records meet the conditions. Some two million are drawn at most, or ten for each
        record asked for if these are more. Raises ``ModelTooLarge`` for more records than there is
        memory for.
        """
        check_draw(n, self.domain)
        random, kept, found, drawn = generator(rng), list[dict[str, Codes]](), 0, 0
        size, most = max(n, 1000), max(_MOST_DRAWS, n * (_MOST_DRAWS // _TOGETHER))
        while found < n and drawn < most:
            size = min(size, most - drawn)
            records = self.model.sample(size, rng=random).columns
            met = np.ones(size, dtype=np.bool_)
            for name, codes in self.allowed.items():
                met &= codes[records[name]]
            kept.append({name: records[name][met] for name in self.domain})
            found, drawn, size = found + int(met.sum()), drawn + size, max(size, _TOGETHER)
        if found < n:
            raise InvalidInput(
                f"only {found:,} of {drawn:,} records of this region model have the given values "
                f"of {', '.join(self.allowed)}, and {n:,} were asked for; ask for fewer records "
                "or give fewer conditions"
            )
        columns = {name: np.concatenate([c[name] for c in kept])[:n] for name in self.domain}
        return Dataset(self.domain, columns)
