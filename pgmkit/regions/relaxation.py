"""The measured tables of the relaxed problem: the best fit among tables that agree locally.

    minimise  L(x)  over  x in the local polytope

If whole tables are measured with Gaussian noise, the solution is a projection. Otherwise it is
found by interior points (``pgmkit.regions.interior_point``) or, if their matrices do not fit into
memory, by projected gradients with momentum (Beck and Teboulle, 2009) in the metric of a diagonal
that majorises the loss's Hessian. The multipliers of each projection give a lower bound: a cut
(linear lower bound) of the loss, minimised over the polytope (``LocalPolytope.lowest``). The
marginals of every distribution lie in the polytope, so this is a bound for the exact problem too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.linalg import LinAlgError

from pgmkit.errors import NumericalFailure
from pgmkit.inference.layout import Layout
from pgmkit.inference.observations import host
from pgmkit.linear.kronecker import applied, factors_of
from pgmkit.losses import MeasuredLoss
from pgmkit.measurement import Measurement
from pgmkit.regions.interior_point import InteriorPoint
from pgmkit.regions.parts import Parts
from pgmkit.regions.polytope import LocalPolytope
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.iterations import MOST_ROUNDS, PATIENCE
from pgmkit.runtime.precision import CLOSE
from pgmkit.runtime.progress import CERTIFIED, OUT_OF_TIME, OutOfTime, Progress

UNSEEN = 1e-2
"""The curvature for cells that no measurement involves, as a share of the smallest curvature of the
other cells.
"""


@dataclass
class Search:
    """A search in a local polytope for the minimum of the loss ``target``, a function of all cells.
    It ends at a duality gap of at most ``goal``, if the loss falls no more, if rounding ends it, or
    at the ``deadline`` of ``time.perf_counter``. ``constant`` is added to the losses that are
    reported.

    The best ``tables`` so far are in counts, concatenated to one vector; ``loss`` is the value of
    ``target`` at them, and ``bound`` a lower bound on ``target`` at any tables of the polytope.
    ``steps`` is the number of steps, and ``stopped`` says why the search has ended; it is empty
    before.
    """

    polytope: LocalPolytope
    target: MeasuredLoss
    constant: float
    goal: float
    deadline: float
    report: Callable[[Progress], None] | None

    def __post_init__(self) -> None:
        self.tables, self.loss, self.bound = self.polytope.even(), inf, 0.0
        self.began, self.steps, self.stopped = time.perf_counter(), 0, ""

    def run(self, squares: Array, parts: Parts | None) -> None:
        """Search until it ends. ``squares`` is the ``hessian_bound`` of ``target``. Without
        ``parts``, those of the interior-point search, or if that search does not reach the goal,
        projected gradients follow. Raises NumericalFailure if no agreeing tables are found at all;
        the search may then be run again.
        """
        point = self.tables
        try:
            if parts is not None:
                point = _centred(self, parts)
                if self.stopped:
                    return
            for stage in self.target.smooth_stages():
                assert isinstance(stage, MeasuredLoss)
                curvature = squares / stage.penalty.curvature
                seen = curvature[curvature > 0]
                curvature = np.maximum(curvature, UNSEEN * seen.min() if len(seen) else 1.0)
                self.stopped = ""
                point = _descend(self, stage, curvature, point)
        except OutOfTime:
            self.end()

    def record(self, tables: Array, stage: float, history: list[float]) -> None:
        """Record the tables of a step, report the progress, and set ``stopped`` if the search is to
        end. The present stage (``Loss.smooth_stages``) minimises a loss of its own: ``stage`` is
        the value of this loss at these tables, and ``history`` has the lowest value so far for each
        step of the stage; an entry for this step is appended.
        """
        self.steps += 1
        loss = self.target.value(torch.from_numpy(tables))
        if loss < self.loss:
            self.tables, self.loss = tables, loss
        history.append(min(stage, history[-1] if history else inf))
        gap = max(0.0, self.loss - self.bound)
        if self.report is not None:
            seconds = time.perf_counter() - self.began
            shown = loss + self.constant, self.loss + self.constant
            self.report(Progress(self.steps, seconds, *shown, gap))
        rounding = self.target.rounding(torch.from_numpy(self.tables))
        self.stopped = self._reason(gap - rounding, history)

    def end(self) -> None:
        """Stop since the time is over, with the best tables so far or, if there are none, uniform
        tables moved to satisfy the zeros.
        """
        if self.loss == inf:
            even = self.polytope.even()
            if self.polytope.zeros:
                even, _ = self.polytope.nearest(even, np.ones(len(even)))
            self.tables, self.loss = even, self.target.value(torch.from_numpy(even))
        self.stopped = OUT_OF_TIME

    def _reason(self, gap: float, history: list[float]) -> str:
        if gap <= self.goal:
            return CERTIFIED
        if time.perf_counter() >= self.deadline:
            return OUT_OF_TIME
        if len(history) > PATIENCE and history[-1 - PATIENCE] - history[-1] <= self.goal / 10:
            return f"progress: the loss fell by at most {self.goal / 10:.3g} in {PATIENCE} steps"
        return ""


def _centred(search: Search, parts: Parts) -> Array:
    """Return the last tables of an interior-point search, those of its start if the first step
    fails. After each step its tables are projected onto the polytope, so that they agree up to
    rounding, and recorded in ``search``. A numerical failure ends the search, with
    ``search.stopped`` empty; OutOfTime is raised at the deadline.
    """
    loss = search.target
    inner = InteriorPoint(search.polytope, parts, loss.penalty, search.deadline)
    tables, length = inner.tables, 1.0
    for _ in range(MOST_ROUNDS):
        try:
            length = inner.step()
            # No cell of the polytope exceeds the total, but where rounding has spoilt a step a cell
            # may exceed it so far that the total would be lost beside it.
            found = np.minimum(inner.tables, search.polytope.total)
            tables, _ = search.polytope.nearest(
                found, np.ones(len(tables)), deadline=search.deadline
            )
        except (LinAlgError, NumericalFailure):
            break
        search.bound = max(search.bound, inner.bound())
        search.record(tables, loss.value(torch.from_numpy(tables)), [])
        if search.stopped or length < CLOSE:
            break
    return tables


def _descend(search: Search, stage: MeasuredLoss, curvature: Array, start: Array) -> Array:
    """Minimise the loss ``stage`` by projected gradients from the tables ``start``, in the metric
    of ``curvature`` (a number for each cell), with momentum that restarts whenever the loss rises.
    Return the last tables; ``search`` has the best ones.
    """
    before = point = start
    multipliers: Array | None = None
    momentum, history = 1.0, list[float]()
    while not search.stopped:
        _, slope = stage.value_and_gradient(torch.from_numpy(point))
        gradient = slope.numpy()
        try:
            after, multipliers = search.polytope.nearest(
                point - gradient / curvature, curvature, multipliers, deadline=search.deadline
            )
        except NumericalFailure as failure:
            if search.loss == inf:
                raise
            search.stopped = f"rounding: {failure}"
            break
        # The loss of a stage is a lower bound of the loss that it approximates, so its cuts hold
        # for that loss too.
        cut = stage.cut(torch.from_numpy(point))
        bound = cut.offset + search.polytope.lowest(cut.gradient.numpy(), multipliers)
        search.bound = max(search.bound, bound)
        value = stage.value(torch.from_numpy(after))
        if history and value > history[-1]:
            momentum = 1.0
        search.record(after, value, history)
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        point = after + (momentum - 1) / following * (after - before)
        before, momentum = after, following
    return before


def hessian_bound(layout: Layout, measurements: Sequence[Measurement]) -> Array:
    """Return the vector |Q|' |Q| 1 / stddev^2 over all cells, summed over the measurements, with Q
    the measurement matrix and 1 the vector of ones. As a diagonal it majorises the Hessian of the
    squared loss, the sum of Q'Q / stddev^2.
    """
    result = np.zeros(layout.cells)
    for m in measurements:
        place = host(layout, m.clique)
        cells = layout.domain.cell_map(layout.cliques[place], m.clique)
        size = layout.domain.size(m.clique)
        magnitudes = [abs(factor) for factor in factors_of(m.matrix)]
        sums = applied(magnitudes, np.ones(size))
        diagonal = applied([each.T for each in magnitudes], sums)
        result[layout.slices[place]] += diagonal[cells] * (len(cells) / size / m.stddev**2)
    return result
