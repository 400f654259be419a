"""Passes on a GPU that leave the exponentials of large inputs unwritten.

A plan often only sums a large input, down to the axes that it shares with others. Then one kernel
reads the input's logarithms and writes sums of exponentials relative to the largest of each piece;
in the backward pass another kernel reads the logarithms again and writes the marginals. So the
cells are moved three times. Two times would be the least, but no marginal can be written before the
partition function is known, and a GPU's cache does not hold a large table until then.
"""

from __future__ import annotations

from itertools import groupby
from math import prod

from pgmkit.contraction import kernels
from pgmkit.contraction.buffers import ContractionBuffers, Spread, is_large_input
from pgmkit.contraction.plan import Plan, Step
from pgmkit.runtime.deferred import torch


class StreamedBuffers(ContractionBuffers):
    """The buffers of a pass on a GPU, to which inputs are given as logarithms.

    Call ``read`` with the logarithms, then ``load``, then ``forward`` and ``weighted``. The
    logarithms must not change in between. ``backward`` fails if an input is streamed.
    """

    def __init__(self, plan: Plan, device: torch.device, dtype: torch.dtype) -> None:
        self._streamed: dict[int, _Streamed] = {}
        super().__init__(plan, device, dtype)
        self._parts: list[_Streamed | _Stored] = []
        for alone, group in groupby(range(len(plan.inputs)), self._streamed.get):
            self._parts.append(alone or _Stored(self, list(group)))

    def read(self, logs: torch.Tensor) -> torch.Tensor:
        """Return the largest logarithm of each input, 0 in place of minus infinity. ``logs`` has
        the logarithms of all inputs, flattened one after another.
        """
        found = [part.read(logs) for part in self._parts]
        return torch.cat(found) if len(found) > 1 else found[0]

    def load(self, shifts: torch.Tensor) -> None:
        """Set input number i to the exponentials of its logarithms minus ``shifts[i]``. Of an input
        that is streamed, only the sums of these exponentials are written.
        """
        start = 0
        for part in self._parts:
            part.load(shifts[start : start + part.inputs])
            start += part.inputs

    def _bind_reduction(self, step: Step) -> None:
        # If each sum has fewer than TERMS terms, writing and reading the sums takes as long as
        # streaming saves, so the input is not streamed.
        if is_large_input(self.plan, step.left) and _extents(self.plan, step)[1] >= kernels.TERMS:
            made = _Streamed(self, step)
            self._streamed[step.left] = made
            self._spreads.append(made)
        else:
            super()._bind_reduction(step)


class _Streamed(Spread):
    """A large input that the plan only sums; its exponentials are computed when they are needed."""

    inputs = 1

    def __init__(self, buffers: StreamedBuffers, step: Step) -> None:
        plan = buffers.plan
        self._extents = *_, columns = _extents(plan, step)
        rows = step.source[: _first_term(step)]
        self._sizes = [plan.sizes[name] for name in rows]
        kept = [plan.sizes[name] if name in step.kept else 1 for name in rows]
        self._dims = [i for i, name in enumerate(rows) if name not in step.kept] + [len(rows)]
        out = [n for n, name in zip(kept, rows, strict=True) if name in step.kept]
        self._out = buffers.view(buffers.values, step.out).view(*out, columns)
        adjoint = buffers.view(buffers.adjoint, step.out).view(*kept, columns)
        cells = buffers.view(buffers.values, step.left)
        super().__init__(buffers.offsets[step.left], cells, adjoint.expand(*self._sizes, columns))

    def read(self, logs: torch.Tensor) -> torch.Tensor:
        self._table = logs[self.start : self.end].view(self._extents)
        self._peaks, self._sums = kernels.fold(self._table)
        return kernels.finite(self._peaks.amax()).view(1)

    def load(self, shift: torch.Tensor) -> None:
        self._shift = shift
        sums = (self._peaks - shift).exp_().mul_(self._sums)
        torch.sum(sums.view(*self._sizes, *sums.shape[1:]), self._dims, out=self._out)

    def multiply(self, found: torch.Tensor) -> None:
        rows, _, columns = self._extents
        out = found[self.start : self.end].view(self._extents)
        kernels.spread(self._table, self._shift, self._adjoint.reshape(rows, columns), out)


class _Stored:
    """Inputs with consecutive numbers, whose exponentials are written to the buffers."""

    def __init__(self, buffers: StreamedBuffers, numbers: list[int]) -> None:
        sizes = [buffers.plan.cells(number) for number in numbers]
        self.inputs, start = len(numbers), buffers.offsets[numbers[0]]
        self._place = slice(start, start + sum(sizes))
        self._target = buffers.inputs[self._place]
        self._levels = kernels.run_levels(sizes, buffers.device)
        self._starts = kernels.run_starts(sizes, buffers.device)

    def read(self, logs: torch.Tensor) -> torch.Tensor:
        self._logs = logs[self._place]
        return kernels.peaks(self._logs, *self._levels).double()

    def load(self, shifts: torch.Tensor) -> None:
        kernels.shift_exp(self._logs, shifts, self._starts, self._target)


def _first_term(step: Step) -> int:
    """Return the position in ``step.source`` of the first axis of the last group of neighbouring
    axes that the step sums over.
    """
    marks = "".join("k" if name in step.kept else "s" for name in step.source)
    return len(marks.rstrip("k").rstrip("s"))


def _extents(plan: Plan, step: Step) -> tuple[int, int, int]:
    """Return the numbers of cells (rows, terms, columns) of three groups of axes of the operand of
    a step that only sums. The terms are the last group of neighbouring axes that it sums over, the
    rows the axes before them (some may be summed over too), the columns those after them (all
    kept).
    """
    first = _first_term(step)
    rows, others = step.source[:first], step.source[first:]
    terms, columns = (
        prod(plan.sizes[name] for name in others if (name in step.kept) == kept)
        for kept in (False, True)
    )
    return prod(plan.sizes[name] for name in rows), terms, columns
