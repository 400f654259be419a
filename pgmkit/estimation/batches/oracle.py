"""MARGINAL-ORACLE for many sets of potentials over the same cliques, in one pass.

In small models the overhead of each operation dominates the time. Here every table of a pass has
one more axis, which numbers the sets. A set that leaves the range of linear space gets a pass of
its own.
"""

from __future__ import annotations

from functools import cached_property
from math import nan

import torch

from pgmkit.contraction.buffers import ContractionBuffers
from pgmkit.contraction.evaluate import LOG, MAX, contract
from pgmkit.contraction.plan import batched
from pgmkit.errors import NumericalFailure
from pgmkit.inference.marginal_oracle import THREADED_COST, MarginalOracle
from pgmkit.runtime.sizes import CACHE_CELLS

_WIDE_PASS = 8
"""If all tables of a pass have more cells than this multiple of the cliques' cells, one pass for
many sets is slower than one for each, since copying wide tables takes longer than multiplying them.
"""


def gains(single: MarginalOracle) -> bool:
    """Return True if one pass for many sets of potentials takes less time than a pass for each set:
    always on a GPU, and on a CPU if all tables of a pass together have at most ``CACHE_CELLS``
    cells, and at most ``_WIDE_PASS`` times as many as the cliques.
    """
    most = min(CACHE_CELLS, _WIDE_PASS * single.layout.cells)
    return single.device.type != "cpu" or table_cells(single) <= most


def gains_when_coarse(single: MarginalOracle) -> bool:
    """Return True if one pass for many sets of potentials is to be used for estimates that need
    only come within a noise unit (the standard deviation of the loss at the truth) of the optimum,
    as for error bars: always on a GPU, and on a CPU if all tables of a pass together have at most
    ``CACHE_CELLS`` cells. These tables may be much larger than those of the cliques, since at this
    accuracy separate estimates seldom end sooner by a method that batches lack.
    """
    return single.device.type != "cpu" or table_cells(single) <= CACHE_CELLS


def gains_by_threads(single: MarginalOracle) -> bool:
    """Return True if it is faster to make the passes of several sets of potentials in threads, one
    set in each: on a CPU, if all tables of a pass together have more than ``CACHE_CELLS`` cells,
    but the pass takes fewer than ``THREADED_COST`` multiplications.
    """
    large = table_cells(single) > CACHE_CELLS and single.plan.cost < THREADED_COST
    return large and single.device.type == "cpu"


def table_cells(single: MarginalOracle) -> int:
    """Return the number of cells of all tables of a pass."""
    return sum(map(single.plan.cells, range(len(single.plan.axes))))


class BatchedOracle:
    """The oracle ``single`` for ``count`` sets of potentials, which are the rows of a float64
    matrix over the cliques' cells.

    It must not be shared between threads, since every pass overwrites its buffers.

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
    def buffers(self) -> ContractionBuffers:
        return ContractionBuffers(self.plan, self.single.device, torch.float64)

    def marginals(
        self, potentials: torch.Tensor, totals: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the marginals of every row, each with its total, and the log partition functions,
        from one pass in linear space for all rows; a row in which that fails gets a pass of its own
        (``MarginalOracle.fast_marginals``), in log space if need be.

        Both are NaN for a row that has NaN or leaves no record possible.
        """
        marginals, log_partition = self.try_marginals(potentials, totals)
        for row in torch.nonzero(log_partition.isnan()).flatten().tolist():
            own, total = self.single.masked(potentials[row]), float(totals[row])
            try:
                marginals[row], log_partition[row] = self.single.fast_marginals(own, total)
            except NumericalFailure:
                marginals[row], log_partition[row] = nan, nan
            found = log_partition[row] - self.peaks(own.unsqueeze(0)).sum()
            self._guess[row] = torch.where(found.isfinite(), found, self._guess[row])
        return marginals, log_partition

    def try_marginals(
        self, potentials: torch.Tensor, totals: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the marginals and log partition functions of all rows from one pass in linear
        space, without waiting for the device, and without checking whether underflow has lost
        records. Both are NaN for rows that leave the range of linear space. The next pass starts
        from these log partition functions as guesses, which keep it within that range.
        """
        potentials = self.single.masked(potentials)
        peaks, guess, one = self.peaks(potentials), self._guess, self.single
        shifts = peaks + guess.unsqueeze(1) / peaks.shape[1]
        blocks, slices = self._blocks(self.buffers.inputs), one.layout.slices
        for place, (block, cells) in enumerate(zip(blocks, slices, strict=True)):
            torch.sub(potentials[:, cells], shifts[:, place, None], out=block)
        self.buffers.inputs.exp_()
        partition = self.buffers.forward()
        below = guess + partition.log()
        held = (partition > one.smallest) & (partition < one.largest) & (below >= -one.safe_spread)
        # The guess is changed in place, since a captured CUDA graph reads it again.
        guess.copy_(torch.where(held, below, guess))
        adjoint = self.buffers.backward(torch.where(held, totals / partition, nan))
        marginals = torch.empty_like(potentials)
        for own, other, cells in zip(blocks, self._blocks(adjoint), slices, strict=True):
            torch.mul(own, other, out=marginals[:, cells])
        return marginals, torch.where(held, below + peaks.sum(1), nan)

    def maximum(self, scores: torch.Tensor) -> torch.Tensor:
        """Return, for each row of ``scores``, the largest score of a record: the sum of the scores
        of its cells, one in each clique.
        """
        return contract(self.plan, self.single.layout.split(self.single.masked(scores)), MAX)

    def log_partition(self, potentials: torch.Tensor) -> torch.Tensor:
        """Return each row's log partition function, computed in log space throughout."""
        potentials = self.single.masked(potentials)
        peaks = self.peaks(potentials)
        shifted = potentials - peaks[:, self.single.shifts.clique_of_cell]
        return contract(self.plan, self.single.layout.split(shifted), LOG) + peaks.sum(1)

    def peaks(self, potentials: torch.Tensor) -> torch.Tensor:
        """Return the largest potential of each clique (columns) in each row, with 0 in place of an
        infinite one.
        """
        highest = torch.stack([potentials[:, cells].amax(1) for cells in self.single.layout.slices])
        return highest.T.masked_fill(torch.isinf(highest.T), 0.0)

    def _blocks(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return views of a flat vector of a pass as one matrix for each clique, with a row for
        each set.
        """
        count = self.count
        return [
            flat[count * cells.start : count * cells.stop].view(count, -1)
            for cells in self.single.layout.slices
        ]
