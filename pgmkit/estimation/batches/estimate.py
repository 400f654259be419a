"""Many sets of measurements of one structure, estimated in batches, with the results of
``estimate`` for each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pgmkit.domain import Clique
from pgmkit.errors import NumericalFailure
from pgmkit.estimation import factors, fitted
from pgmkit.estimation.batches.oracle import BatchedOracle
from pgmkit.estimation.batches.problem import BatchedSquares, naming_set
from pgmkit.estimation.batches.proximal import ProximalSteps, affordable
from pgmkit.estimation.batches.search import BatchedSearch
from pgmkit.estimation.limited_memory import minimise_many
from pgmkit.estimation.loss_checks import check_point
from pgmkit.estimation.methods import finish
from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.estimation.start import fold, uniform
from pgmkit.estimation.tensor_steps import Points
from pgmkit.estimation.tree_potentials import tree_potentials
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.inference.self_check import LEAST, SHARE
from pgmkit.least_squares.consistency import Relaxation
from pgmkit.least_squares.sufficient_statistics import Statistics
from pgmkit.losses import make_loss
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import SLIGHT
from pgmkit.runtime.precision import CLOSE, SUM_ROUNDING
from pgmkit.runtime.progress import CERTIFIED
from pgmkit.structural_zeros import Zeros


@dataclass(frozen=True)
class BatchedEstimate:
    """The estimation of one model for each of many sets of measurements, with the squared loss.
    ``known`` has the measurements of all sets, in each of which those of one clique are combined,
    and ``totals`` the total of each set. ``inference`` is the oracle for one set, ``deadline`` a
    time of ``time.perf_counter``, and ``model_limit`` the memory limit of each model. ``zeros``,
    ``warm_start`` and ``tolerance`` are as for ``estimate``, the same for all sets.
    """

    first: int
    """The position of the first set among those that the caller gave, for error messages."""
    inference: MarginalOracle
    known: Statistics
    totals: Array
    zeros: Sequence[Zeros]
    warm_start: GraphicalModel | None
    tolerance: float
    deadline: float
    model_limit: int
    dtype: torch.dtype = torch.float64
    """The format of the models; the search for them is in float64."""

    def models(self) -> list[GraphicalModel]:
        """Return one model for each set, in order. Raises NumericalFailure if a second computation
        contradicts one of those that are checked.
        """
        started = time.perf_counter()
        one = self.inference
        with one.session():
            loss = BatchedSquares(one.layout, self.known, one.device)
            totals = torch.as_tensor(self.totals, device=one.device)
            search = BatchedSearch(one, loss, totals, self.tolerance * loss.unit, self.deadline)
            search.run(self._start(search))
            self._verify(search, started)
            certified = search.certified().tolist()
            late = time.perf_counter() >= self.deadline
            return [
                self._model(search, row) if known or late else self._finished(search, row)
                for row, known in enumerate(certified)
            ]

    def _start(self, search: BatchedSearch) -> Points:
        """Return, for each set, the one of its starts that has the lowest loss.

        If there is an earlier model and ``affordable`` returns True, this best start, whichever it
        is, is improved by ``ProximalSteps``, which take their coordinates from the earlier model.
        Without these steps, a search that ended early would leave the models of redrawn
        measurements too similar to the earlier one.
        """
        one = self.inference
        model = self.warm_start
        earlier = None if model is None else fold(one, one.layout.domain, model)
        shape = len(self.totals), one.layout.cells
        starts = [start.expand(shape) for start in self._starts(search, earlier)]
        found = Points(*map(torch.stack, zip(*map(search.point, starts), strict=True)))
        rows = torch.arange(len(self.totals), device=one.device)
        best = Points(*(value[found.loss.argmin(0), rows] for value in found))
        if earlier is None or not affordable(one.layout, self.known.measurements):
            return best
        return ProximalSteps(search, earlier).improved(best)

    def _starts(self, search: BatchedSearch, earlier: torch.Tensor | None) -> list[torch.Tensor]:
        """Return the potentials to start from: those of the earlier model, those of consistent
        tables (of each set), and the earlier model's plus the difference between the potentials of
        the consistent tables and those of the earlier model's tables. If there is neither an
        earlier model nor a measured table, the potentials are uniform.
        """
        one, starts = self.inference, [] if earlier is None else [earlier]
        if any(m.matrix is None for m in self.known.measurements):
            tables = self._consistent(search)
            if self.warm_start is not None:
                # The earlier model's own tables are appended as one more set, so that they get the
                # same tree.
                before = self.warm_start.marginals(tables)
                for clique, values in tables.items():
                    tables[clique] = np.append(values, before[clique][..., None], axis=-1)
            # `trees` has a row of potentials for each set, all over the most informative tree of
            # the tables.
            parts = tree_potentials(one.layout.domain, one.layout.cliques, tables, self.deadline)
            flat = np.concatenate([part.reshape(-1, *part.shape[-1:]) for part in parts])
            trees = torch.as_tensor(np.ascontiguousarray(flat.T), device=one.device)
            starts.append(trees[: len(self.totals)])
            if earlier is not None:
                starts.append(earlier + trees[:-1] - trees[-1])
        return starts or [uniform(one)]

    def _consistent(self, search: BatchedSearch) -> dict[Clique, Array]:
        """Return the consistent tables nearest to the measured ones; the last axis of each numbers
        the sets. If all measurements are tables, the least-squares loss of the consistent tables is
        a lower bound, to which the bounds of ``search`` are raised.
        """
        pairs = zip(self.known.measurements, self.known.values, strict=True)
        tables, values = zip(*(pair for pair in pairs if pair[0].matrix is None), strict=True)
        domain = self.inference.layout.domain
        relaxation = Relaxation(domain, tables, values, self.totals, self.zeros)
        multipliers, reached = minimise_many(
            lambda sets: relaxation.of(sets).negative_dual,
            relaxation.start,
            np.full(len(self.totals), SLIGHT * search.goal),
            self.deadline,
        )
        if len(tables) == len(self.known.measurements):
            bound = torch.as_tensor(relaxation.spread - reached).to(search.bound)
            search.bound = torch.maximum(search.bound, bound)
        return relaxation.tables(multipliers)

    def _verify(self, search: BatchedSearch, started: float) -> None:
        """Raise NumericalFailure if the log partition function of any set differs from that of a
        pass in log space, or its marginals do not sum to its total.

        Then the marginals and losses of some sets, the first of them always, are checked against a
        second computation, for a share of the time since ``started``.
        """
        best, one = search.best, self.inference
        again = BatchedOracle(one, len(self.totals)).log_partition(best.potentials)
        apart = (again - best.log_partition).abs() / (1 + again.abs())
        sums = torch.stack([best.marginals[:, cells].sum(1) for cells in one.layout.slices])
        wrong = ~((apart <= CLOSE) & ((sums / search.totals - 1).abs().amax(0) <= SUM_ROUNDING))
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise NumericalFailure(
                f"inference contradicts itself: the logarithm of the sum over all records is "
                f"{float(best.log_partition[row])!r} by one pass and {float(again[row])!r} by "
                f"another, for measurement_sets[{self.first + row}]. Please report these "
                f"{len(one.layout.cliques)} cliques"
            )
        checked = time.perf_counter()
        seconds = max(LEAST, SHARE * (checked - started))
        for row in range(len(self.totals)):
            self._check(search.row(row), row, float(search.best.loss[row]), started)
            if (time.perf_counter() - checked) * (row + 2) / (row + 1) > seconds:
                break

    def _check(self, point: Point, row: int, loss: float, started: float) -> None:
        total, measured = float(self.totals[row]), self._measured(row)
        with naming_set(self.first + row):
            check_point(self.inference, point, total, "squared", measured, loss, started)

    def _measured(self, row: int) -> list[Measurement]:
        """Return the combined measurements of one set."""
        return [
            Measurement(m.clique, values[:, row], m.stddev, m.matrix)
            for m, values in zip(self.known.measurements, self.known.values, strict=True)
        ]

    def _model(self, search: BatchedSearch, row: int) -> GraphicalModel:
        one, loss = self.inference, float(search.best.loss[row])
        return GraphicalModel(
            domain=one.layout.domain,
            potentials=factors(one, search.best.potentials[row], self.dtype),
            total=float(self.totals[row]),
            loss=loss + float(self.known.constant[row]),
            gap=max(0.0, loss - float(search.bound[row])),
            unit=search.loss.unit,
            certified=search.stopped[row] == CERTIFIED,
            iterations=int(search.iterations[row]),
            stopped=search.stopped[row],
            memory_limit=self.model_limit,
        )

    def _finished(self, search: BatchedSearch, row: int) -> GraphicalModel:
        """Return the model of a set whose search ended without a certificate, after ``finish`` has
        continued the search.
        """
        one = self.inference
        loss = make_loss(
            "squared", one.layout, self._measured(row), one.dtype, one.device, self.known.count
        )
        total, constant = float(self.totals[row]), float(self.known.constant[row])
        problem = Problem(one, loss, total, self.deadline, constant)
        now = time.perf_counter()
        monitor = Monitor(problem, tolerance=self.tolerance, report=None, started=now)
        monitor.best, monitor.best_loss = search.row(row), float(search.best.loss[row])
        monitor.raise_bound(float(search.bound[row]))
        monitor.iterations, monitor.stopped = int(search.iterations[row]), search.stopped[row]
        finish(problem, monitor)
        self._check(monitor.best, row, monitor.best_loss, now)
        return fitted(monitor, self.model_limit, self.dtype)
