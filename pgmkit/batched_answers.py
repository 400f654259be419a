"""Answers of many models over the same cliques in one contraction: of the replicates of error bars.

The models are one distribution with one more attribute, which says whose record it is, and a query
that asks for each of them by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from pgmkit.batched_oracle import BatchedOracle
from pgmkit.domain import Clique, Domain
from pgmkit.errors import ModelTooLarge
from pgmkit.marginal_oracle import MarginalOracle
from pgmkit.model import GraphicalModel
from pgmkit.queries import FactoredQuery, identity
from pgmkit.variable_elimination import answers

__all__ = ["BatchedAnswers"]

Array = NDArray[np.float64]

_LOST = 1e-9
"""Share of the total that plain numbers may lose before logarithms are asked."""


class BatchedAnswers:
    """What ``models``, at least one, answer; all have the same domain and cliques.

    >>> from pgmkit.factor import Factor
    >>> d = Domain({"a": 2})
    >>> models = [GraphicalModel(d, (Factor(d, [0.0, w]),), total=10.0) for w in (0.0, 50.0)]
    >>> BatchedAnswers(models).answer(FactoredQuery({"a": [0.0, 1.0]})).round(3).tolist()
    [[5.0], [10.0]]
    """

    def __init__(self, models: Sequence[GraphicalModel]) -> None:
        self.models, self.domain = models, models[0].domain
        longest = max(map(len, self.domain))
        self._whose = "*" * (1 + longest)  # no attribute has this name

    def answer(self, query: FactoredQuery) -> Array:
        """One answer for each model: an array of shape (models, *query.answer_shape)."""
        shape = (len(self.models), *query.answer_shape)
        if self._tables is not None:
            try:
                return self._asked(query).reshape(shape)
            except ModelTooLarge:
                pass
        return np.stack([model.answer(query) for model in self.models])

    def _asked(self, query: FactoredQuery) -> Array:
        assert self._tables is not None
        count = len(self.models)
        domain = Domain({self._whose: count, **self.domain.sizes})
        each = FactoredQuery({self._whose: identity(count), **query.factors})
        (found,) = answers(domain, self._tables, [each], self.models[0].memory_limit)
        return found

    @cached_property
    def _tables(self) -> list[tuple[Clique, torch.Tensor]] | None:
        """Plain tables whose product, summed, is each model's total; None where that underflows."""
        first = self.models[0]
        cliques, free = list(first.cliques), set(self.domain).difference(*first.cliques)
        tables = []
        if cliques:
            tables = self._scaled(MarginalOracle(self.domain, cliques))
        else:
            totals = torch.tensor([model.total for model in self.models], dtype=torch.float64)
            tables = [((self._whose,), totals)]
        for name in sorted(free):
            size = self.domain.sizes[name]
            tables.append(((name,), torch.full((size,), 1 / size, dtype=torch.float64)))
        self.__dict__["_tables"] = tables
        totals = np.array([model.total for model in self.models])
        lost = np.abs(self._asked(FactoredQuery({})).reshape(-1) / totals - 1)
        return tables if lost.max() <= _LOST else None

    def _scaled(self, oracle: MarginalOracle) -> list[tuple[Clique, torch.Tensor]]:
        count, slices = len(self.models), oracle.layout.slices
        potentials = torch.stack(
            [
                torch.cat([factor.values.reshape(-1) for factor in model.potentials]).double().cpu()
                for model in self.models
            ]
        )
        batch = BatchedOracle(oracle, count)
        peaks = batch.peaks(potentials)
        totals = torch.tensor([model.total for model in self.models], dtype=torch.float64)
        left = totals.log() + peaks.sum(1) - batch.log_partition(potentials)
        shifts = peaks - left.unsqueeze(1) / len(slices)
        layout = zip(oracle.layout.cliques, oracle.layout.shapes, slices, strict=True)
        return [
            (
                (self._whose, *clique),
                (potentials[:, cells] - shifts[:, place, None]).exp_().view(count, *shape),
            )
            for place, (clique, shape, cells) in enumerate(layout)
        ]
