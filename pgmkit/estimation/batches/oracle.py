"""MARGINAL-ORACLE for many sets of potentials over the same cliques, in one pass.

In small models the overhead of each operation dominates. Here every table of a pass has one more
axis, which counts the sets; a set that leaves the range of numbers gets a pass of its own.
"""

from __future__ import annotations

from functools import cached_property
from math import nan

import torch

from pgmkit.contraction.batched import batched
from pgmkit.contraction.buffers import ContractionBuffers
from pgmkit.contraction.evaluate import contract
from pgmkit.contraction.semirings import LOG, MAX, Semiring
from pgmkit.errors import NumericalFailure
from pgmkit.inference.marginal_oracle import THREADED_COST, MarginalOracle
from pgmkit.runtime.sizes import CACHE_CELLS

_WIDE_PASS = 8
"""The size of all tables of a pass, as a multiple of the cliques' cells, from which a batch loses:
products of wide tables are copied more than computed.
"""


def gains(single: MarginalOracle) -> bool:
    """True if passes for many sets together cost less than passes for each."""
    most = min(CACHE_CELLS, _WIDE_PASS * single.layout.cells)
    return single.device.type != "cpu" or table_cells(single) <= most


def gains_when_coarse(single: MarginalOracle) -> bool:
    """True if passes for many sets together cost less, for estimates to within a noise unit, as
    error bars need: few of them end with a method of their own, set by set, so wide tables gain
    too.
    """
    return single.device.type != "cpu" or table_cells(single) <= CACHE_CELLS


def gains_by_threads(single: MarginalOracle) -> bool:
    """True if several threads, each with passes of its own, run in parallel on a processor."""
    large = table_cells(single) > CACHE_CELLS and single.plan.cost < THREADED_COST
    return large and single.device.type == "cpu"


def table_cells(single: MarginalOracle) -> int:
    """Return the cells of all tables of a pass."""
    return sum(map(single.plan.cells, range(len(single.plan.axes))))


class BatchedOracle:
    """The oracle ``single`` for ``count`` sets: vectors over the cliques' cells become rows of a
    matrix, in float64.

    It must not be shared between threads, since its buffers cannot be.

    >>> from pgmkit.domain import Domain
    >>> one = MarginalOracle(Domain({"a": 2}), [("a",)])
    >>> both = BatchedOracle(one, 2)
    >>> potentials = torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    >>> totals = torch.tensor([2.0, 4.0], dtype=torch.float64)
    >>> both.marginals(potentials, totals)[0].round(decimals=2)
    tensor([[1.0000, 1.0000],
            [1.0800, 2.9200]], dtype=torch.float64)
    """

    def __init__(self, single: MarginalOracle, count: int) -> None:
        self.single, self.count = single, count
        self.plan = batched(single.plan, count)
        self._guess = torch.zeros(count, dtype=torch.float64, device=single.device)

    @cached_property
    def _passing(self) -> ContractionBuffers:
        return ContractionBuffers(self.plan, self.single.device, torch.float64)

    def marginals(
        self, potentials: torch.Tensor, totals: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``fast_marginals`` of every row, in units of its total, and the log partition
        functions.

        Both are NaN for a row in which no record is possible, or that holds NaN.
        """
        marginals, log_partition = self.try_marginals(potentials, totals)
        for row in torch.nonzero(log_partition.isnan()).flatten().tolist():
            own = self.single.masked(potentials[row])
            marginals[row], log_partition[row] = self._alone(own, float(totals[row]))
            found = log_partition[row] - self.peaks(own.unsqueeze(0)).sum()
            self._guess[row] = torch.where(found.isfinite(), found, self._guess[row])
        return marginals, log_partition

    def begin_marginals(
        self, potentials: torch.Tensor, totals: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what ``marginals`` returns; on a GPU the host does not wait
        (``try_marginals``).
        """
        begun = self.marginals if self.single.device.type == "cpu" else self.try_marginals
        return begun(potentials, totals)

    def try_marginals(
        self, potentials: torch.Tensor, totals: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what ``marginals`` returns, in linear space only, with NaN for rows that leave its
        range.
        """
        potentials = self.single.masked(potentials)
        peaks, guess = self.peaks(potentials), self._guess
        inputs = self._load(potentials, peaks + guess.unsqueeze(1) / peaks.shape[1])
        partition = self._passing.forward()
        below = guess + partition.log()
        one = self.single
        held = (partition > one.smallest) & (partition < one.largest) & (below >= -one.safe_spread)
        guess.copy_(torch.where(held, below, guess))  # in place: a captured pass goes on with it
        adjoint = self._passing.backward(torch.where(held, totals / partition, nan))
        marginals = torch.empty_like(potentials)
        for own, other, cells in zip(
            self._blocks(inputs), self._blocks(adjoint), self.single.layout.slices, strict=True
        ):
            torch.mul(own, other, out=marginals[:, cells])
        return marginals, torch.where(held, below + peaks.sum(1), nan)

    def maximum(self, scores: torch.Tensor) -> torch.Tensor:
        """Return each row's largest sum of scores over all joint configurations."""
        return self._contracted(self.single.masked(scores), MAX)

    def log_partition(self, potentials: torch.Tensor) -> torch.Tensor:
        """Return each row's log partition function, computed in log space throughout."""
        potentials = self.single.masked(potentials)
        peaks = self.peaks(potentials)
        shifted = torch.empty_like(potentials)
        for place, cells in enumerate(self.single.layout.slices):
            torch.sub(potentials[:, cells], peaks[:, place, None], out=shifted[:, cells])
        return self._contracted(shifted, LOG) + peaks.sum(1)

    def peaks(self, potentials: torch.Tensor) -> torch.Tensor:
        """Return the largest potential of each clique, a column each; 0 where all are minus
        infinity.
        """
        highest = torch.stack([potentials[:, cells].amax(1) for cells in self.single.layout.slices])
        return highest.T.masked_fill(torch.isinf(highest.T), 0.0)

    def _load(self, potentials: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
        """Make the exponentials of the shifted potentials the inputs of a pass, and return them."""
        inputs = self._passing.inputs
        slices = self.single.layout.slices
        for place, (block, cells) in enumerate(zip(self._blocks(inputs), slices, strict=True)):
            torch.sub(potentials[:, cells], shifts[:, place, None], out=block)
        return inputs.exp_()

    def _blocks(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the tables of a pass, as a matrix for each clique."""
        count = self.count
        return [
            flat[count * cells.start : count * cells.stop].view(count, -1)
            for cells in self.single.layout.slices
        ]

    def _contracted(self, rows: torch.Tensor, semiring: Semiring) -> torch.Tensor:
        layout = self.single.layout
        tables = [
            rows[:, cells].view(self.count, *shape)
            for cells, shape in zip(layout.slices, layout.shapes, strict=True)
        ]
        return contract(self.plan, tables, semiring)

    def _alone(self, potentials: torch.Tensor, total: float) -> tuple[torch.Tensor, float]:
        try:
            return self.single.fast_marginals(potentials, total)
        except NumericalFailure:
            return torch.full_like(potentials, nan), nan
