"""Answers of many models over the same cliques, such as the replicates of error bars, by one
contraction.

One more axis of every table numbers the models. No step of the contraction sums over it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from pgmkit.domain import Clique
from pgmkit.errors import ModelTooLarge
from pgmkit.estimation.batches.oracle import BatchedOracle
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.inference.self_check import FirstUses
from pgmkit.inference.variable_elimination import answers_of_many
from pgmkit.model import GraphicalModel
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import SUM_ROUNDING


class BatchedAnswers:
    """The answers of ``models``, of which there must be at least one, all with the same domain and
    cliques.

    >>> from pgmkit import Domain, Factor
    >>> d = Domain({"a": 2})
    >>> models = [GraphicalModel(d, (Factor(d, [0.0, w]),), total=10.0) for w in (0.0, 50.0)]
    >>> BatchedAnswers(models).answer(FactoredQuery({"a": [0.0, 1.0]})).round(3).tolist()
    [[5.0], [10.0]]
    """

    def __init__(self, models: Sequence[GraphicalModel]) -> None:
        self.models, self.domain = models, models[0].domain
        self._oracle = MarginalOracle(self.domain, models[0].cliques or [()])
        self._limit, self._uses = models[0].memory_limit, FirstUses()

    def answer(self, query: FactoredQuery) -> Array:
        """Return one answer for each model: an array of shape (models, *query.answer_shape)."""
        started = time.perf_counter()
        with self._oracle.session():
            try:
                if self._tables is not None:
                    found = answers_of_many(self.domain, self._tables, query, self._limit)
                    self._check(query, found, started)
                    return found
            except ModelTooLarge:  # a single model may still fit
                pass
        return np.stack([model.answer(query) for model in self.models])

    def _check(self, query: FactoredQuery, found: Array, started: float) -> None:
        """Check a row of ``found``, the answer of one model, by a second computation, for a share
        of the time since ``started``. Which model that is depends only on the number of models.
        Nothing is done if an answer to a query of the same attributes and shape was checked before.
        """
        row = int(np.random.default_rng(len(found)).integers(len(found)))
        model = self.models[row]
        self._uses.check(
            "answers",
            (query.attributes, query.shape),
            started,
            lambda seconds: model._tables.second_opinion.answer(
                query, found[row], model.total, seconds
            ),
        )

    @cached_property
    def _tables(self) -> list[tuple[Clique, torch.Tensor]] | None:
        """Tables over the cliques, and over each attribute in no clique, with a row for each model.
        Their product at a record is the expected count of this record (not its logarithm). None if
        some products may underflow, or if the tables do not reproduce the models' totals.
        """
        count, totals = len(self.models), np.array([model.total for model in self.models])
        cliques = list(self.models[0].cliques)
        tables: list[tuple[Clique, torch.Tensor]] | None = [((), torch.as_tensor(totals))]
        if cliques:
            tables = self._scaled(totals)
        if tables is None:
            return None
        for name in self.domain:
            if not any(name in clique for clique in cliques):
                size = self.domain.sizes[name]
                tables.append(((name,), torch.full((count, size), 1 / size, dtype=torch.float64)))
        sums = answers_of_many(self.domain, tables, FactoredQuery({}), self._limit)
        return tables if np.abs(sums / totals - 1).max() <= SUM_ROUNDING else None

    def _scaled(self, totals: Array) -> list[tuple[Clique, torch.Tensor]] | None:
        """Return the cliques' tables, or None if products of their cells may underflow.

        A table is the exponential of the potentials less their peak, times exp(s / K) for K
        cliques, with s = log(total) + sum of peaks - log Z. So no cell exceeds exp(s / K), and the
        product of the cells of a record x over some of the cliques, whichever these are, is at
        least total p(x) exp(-max(s, 0)), in whichever order a query multiplies them.
        """
        oracle, layout = self._oracle, self._oracle.layout
        flat = [layout.join([f.values for f in model.potentials]) for model in self.models]
        potentials = torch.stack([each.double().cpu() for each in flat])
        batch = BatchedOracle(oracle, len(self.models))
        peaks = batch.peaks(potentials)
        left = torch.as_tensor(totals).log() + peaks.sum(1) - batch.log_partition(potentials)
        if float(left.max()) > oracle.safe_spread:
            return None
        shifts = peaks - left.unsqueeze(1) / len(layout.cliques)
        scaled = potentials.sub_(shifts[:, oracle.shifts.clique_of_cell]).exp_()
        return list(zip(layout.cliques, layout.split(scaled), strict=True))
