"""The kernels in plain torch, for any device. Every other form of them must agree with these.

The operands of the three contractions are stacks of matrices of any strides: ``left`` has the shape
(batch, rows, summed) and ``right`` the shape (batch, columns, summed). The result has the shape
(batch, rows, columns).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from math import inf, log, nan
from typing import TypeAlias

from pgmkit.runtime.deferred import torch
from pgmkit.runtime.sizes import CACHE_CELLS, CALL_CELLS

Table: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor]"
"""The steps, places and tiles of ``contract_steps``, three tensors of integers."""
TILE_CELLS = 64
"""The number of results that one program of ``contract_steps`` computes."""
TERMS = TILE_CELLS // 4
"""The number of terms of a sum that one program of ``contract_steps`` adds at once. A step with at
least this number of rows, of columns and of terms is left to torch as a product of matrices: here
it would take longer than the separate launch that torch needs.
"""


def max_contract(left: torch.Tensor, right: torch.Tensor, most: int = CACHE_CELLS) -> torch.Tensor:
    """Return max over s of ``left[b, r, s] + right[b, c, s]`` as a tensor with axes (b, r, c); NaN
    where a term is NaN. About ``most`` terms are computed at a time.

    >>> one = torch.tensor([[[0.0, 2.0]]])
    >>> max_contract(one, torch.tensor([[[1.0, 1.0], [5.0, -torch.inf]]]))
    tensor([[[3., 5.]]])
    """
    return _blocks(left, right, lambda terms: terms.amax(-1), most)


def log_contract(left: torch.Tensor, right: torch.Tensor, most: int = CACHE_CELLS) -> torch.Tensor:
    """Return log of the sum over s of ``exp(left[b, r, s] + right[b, c, s])`` as a tensor with axes
    (b, r, c); minus infinity where all terms are. About ``most`` terms are computed at a time.

    >>> zeros = torch.zeros(1, 1, 4, dtype=torch.float64)
    >>> log_contract(zeros, zeros).exp()
    tensor([[[4.]]], dtype=torch.float64)
    """
    return _blocks(left, right, log_sum, most)


def log_sum(terms: torch.Tensor) -> torch.Tensor:
    """Return log sum exp over the last dimension; minus infinity where all terms are.

    >>> log_sum(torch.tensor([[0.0, 0.0], [-2000.0, -torch.inf]])).exp()
    tensor([2., 0.])
    """
    high = terms.amax(-1, keepdim=True)
    return below_one(terms - finite(high)).sum(-1).log_().add_(high.squeeze(-1))


def below_one(logs: torch.Tensor) -> torch.Tensor:
    """Replace logarithms of at most 0 by their exponentials, in place, and return them;
    exponentials below ``least(logs.dtype)`` become that number.

    Arithmetic libraries take 20 to 100 times as long for an exponential that underflows.
    """
    return logs.clamp_min_(log(least(logs.dtype))).exp_()


def least(dtype: torch.dtype) -> float:
    """Return a positive number near the smallest that this format holds with all its digits."""
    return 4 * torch.finfo(dtype).tiny


def contract(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``sums`` and ``scale``, with axes (b, r, c), such that ``sums * exp(scale)`` is the
    sum over s of ``exp(left[b, r, s] + right[b, c, s])``.

    The scale is the maximum over s of ``left[b, r]`` plus that of ``right[b, c]``, 0 in place of
    minus infinity. So no sum exceeds the number of its terms. Each of the two exponentials in a
    term, divided by that of its maximum, counts as ``least`` if it is smaller.
    """
    high_left = finite(left.amax(-1, keepdim=True))
    high_right = finite(right.amax(-1, keepdim=True))
    product = torch.bmm(below_one(left - high_left), below_one(right - high_right).transpose(1, 2))
    return product, high_left + high_right.transpose(1, 2)


def contract_steps(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, table: Table
) -> None:
    """Compute several sums of products at once, one for each row of the table's steps.

    The operands are read from the flat buffers ``left`` and ``right``, and the results are written
    to the flat buffer ``out``. A row of steps holds first the starts of the left operand, the right
    operand and the result in their buffers; then the extents of batch, rows, summed and columns;
    then where, among the table's places, the relative places of the cells begin: for (batch, rows,
    summed) of the left operand, (batch, summed, columns) of the right one and (batch, rows,
    columns) of the result. The table's tiles divide the work among programs on a GPU and are not
    used here.
    """
    steps, places, _ = table
    for row in steps.tolist():
        starts, (batch, rows, summed, columns), runs = row[:3], row[3:7], row[7:]
        extents = (batch, rows, summed, batch, summed, columns, batch, rows, columns)
        lb, lr, ls, rb, rs, rc, ob, orow, oc = (
            places[first : first + count] for first, count in zip(runs, extents, strict=True)
        )
        a = left[starts[0] + lb[:, None, None] + lr[:, None] + ls]
        b = right[starts[1] + rb[:, None, None] + rs[:, None] + rc]
        product = torch.bmm(a.double(), b.double()).to(out.dtype)
        out[starts[2] + ob[:, None, None] + orow[:, None] + oc] = product


def peaks(values: torch.Tensor, *levels: torch.Tensor) -> torch.Tensor:
    """Return the maximum of each run (stretch of entries) of ``values``, 0 for minus infinity.

    Each of ``levels`` holds the places where runs begin and, at its end, the number of entries that
    are divided into runs. The runs of the first level are of ``values``, and those of each further
    level are of the maxima before it.

    >>> peaks(torch.tensor([1.0, 3.0, -torch.inf]), torch.tensor([0, 2, 3]))
    tensor([3., 0.])
    >>> peaks(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0, 1, 2, 3]), torch.tensor([0, 2, 3]))
    tensor([3., 2.])
    """
    for starts in levels:
        # `unsafe` leaves out a check of the starts, which would wait for the device.
        values = torch.segment_reduce(values, "max", offsets=starts, unsafe=True)
    return finite(values)


def run_starts(sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return where runs of these sizes begin, and the number of all cells."""
    return torch.tensor([*accumulate(sizes, initial=0)], device=device)


def run_levels(sizes: Sequence[int], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return the levels that ``peaks`` takes for runs of these sizes. If some are long, all are
    divided into pieces of at most CALL_CELLS cells first.

    >>> run_levels([CALL_CELLS, CALL_CELLS + 1], torch.device("cpu"))
    (tensor([   0, 4096, 8192, 8193]), tensor([0, 1, 3]))
    """
    if max(sizes) <= CALL_CELLS:
        return (run_starts(sizes, device),)
    pieces = [[min(CALL_CELLS, n - i) for i in range(0, n, CALL_CELLS)] for n in sizes]
    return run_starts([*chain(*pieces)], device), run_starts([*map(len, pieces)], device)


def shift_exp(
    values: torch.Tensor, shifts: torch.Tensor, starts: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Write exp(values - shift) to ``out`` and return it.

    Run number i of ``values``, the cells from ``starts[i]`` up to ``starts[i + 1]``, has the shift
    ``shifts[i]``.

    >>> cells, out = torch.tensor([1.0, 3.0, 5.0]), torch.empty(3)
    >>> shift_exp(cells, torch.tensor([1.0, 5.0]), torch.tensor([0, 1, 3]), out).log()
    tensor([ 0., -2.,  0.])
    """
    spread = torch.repeat_interleave(shifts, starts.diff(), output_size=len(values))
    return torch.sub(values.to(out.dtype), spread.to(out.dtype), out=out).exp_()


def fold(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``peaks`` and ``sums`` of shape (rows, pieces, columns) for a table of logarithms of
    shape (rows, terms, columns), whose terms are divided into pieces.

    ``peaks`` has the largest term of each piece and ``sums`` the sum of ``exp(term - peak)`` over
    the piece, both in float64. If all terms of a piece are minus infinity, its peak is too and its
    sum is 0. Here all terms are one piece; the kernel for GPUs has more.

    >>> peaks, sums = fold(torch.tensor([[[2.0], [2.0]], [[5.0], [-torch.inf]]]))
    >>> peaks.flatten().tolist(), sums.flatten().tolist()
    ([2.0, 5.0], [2.0, 1.0])
    """
    peaks = table.amax(1, keepdim=True).double()
    return peaks, (table - finite(peaks)).exp_().sum(1, keepdim=True)


def spread(
    table: torch.Tensor, shift: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Write ``exp(table[r, t, c] - shift) * weights[r, c]`` to ``out`` and return it.

    >>> spread(torch.zeros(1, 2, 1), torch.tensor(0.0), torch.ones(1, 1) / 2, torch.empty(1, 2, 1))
    tensor([[[0.5000],
             [0.5000]]])
    """
    return out.copy_((table.double() - shift).exp_() * weights.unsqueeze(1))


def penalise(
    seen: torch.Tensor, weights: torch.Tensor, target: torch.Tensor, clip: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a vector whose sum is that of the penalties phi(r) of the residuals r = seen * weights
    - target, and phi'(r) * weights, the derivatives of that sum with respect to ``seen``.

    ``clip`` has a width and a scale: phi(r) = scale * c * (r - c / 2), with c as r clipped to
    [-width, width]. So phi is the squared penalty if the width is infinite, and Huber's otherwise.

    >>> seen, one = torch.tensor([3.0, 0.0]), torch.ones(2)
    >>> penalise(seen, one, one, torch.tensor([torch.inf, 1.0]))
    (tensor([2.5000], dtype=torch.float64), tensor([ 2., -1.]))
    """
    width, scale = clip
    residual = seen.double() * weights - target
    near = residual.clamp(-width, width)
    penalties = scale * (near * (residual - near / 2)).sum(-1, keepdim=True)
    return penalties, (near * (scale * weights)).to(seen.dtype)


def compare(
    new: torch.Tensor,
    old: torch.Tensor,
    weights: torch.Tensor,
    target: torch.Tensor,
    clip: torch.Tensor,
) -> torch.Tensor:
    """Return a matrix of three rows, for the penalties of ``penalise``. The entries of the first
    row sum to the penalties at ``new``; those of the second to the excess of these over the tangent
    at ``old``, computed without a difference of large numbers; and those of the third to the scalar
    product of ``new`` and the slopes at ``old``.
    """
    width, scale = clip
    there = new.double() * weights
    residual = there - target
    near = (old.double() * weights - target).clamp(-width, width)
    far = residual.clamp(-width, width)
    excess = (far - near) * (residual - (far + near) / 2)
    parts = torch.stack([far * (residual - far / 2), excess, near * there])
    return scale * parts.sum(-1, keepdim=True)


def overwrite(own: torch.Tensor, chosen: torch.Tensor, other: torch.Tensor) -> None:
    """Copy into ``own`` those rows of ``other`` for which ``chosen`` is True.

    >>> own = torch.zeros(2, 2)
    >>> overwrite(own, torch.tensor([False, True]), torch.ones(2, 2))
    >>> own
    tensor([[0., 0.],
            [1., 1.]])
    """
    torch.where(chosen.unsqueeze(-1), other, own, out=own)


def finite(highest: torch.Tensor) -> torch.Tensor:
    """Return the maxima with 0 in place of minus infinity. Subtracting such a maximum from values
    that are all minus infinity then leaves them so instead of making them NaN.
    """
    return highest.nan_to_num(nan, inf, 0.0)


def _blocks(
    left: torch.Tensor,
    right: torch.Tensor,
    reduction: Callable[[torch.Tensor], torch.Tensor],
    most: int,
) -> torch.Tensor:
    """Return ``reduction`` over s of the terms left[b, r, s] + right[b, c, s] as a tensor with axes
    (b, r, c), computed in blocks of about ``most`` terms; ``reduction`` removes the last dimension.
    """
    batch, rows, summed = left.shape
    columns = right.shape[1]
    if summed == 1:  # nothing to sum
        return left + right.transpose(1, 2)
    out = left.new_empty((batch, rows, columns))
    per_row = max(1, summed * columns)
    row_step = max(1, min(rows, most // per_row))
    batch_step = max(1, most // (per_row * rows)) if row_step == rows else 1
    for i in range(0, batch, batch_step):
        for j in range(0, rows, row_step):
            block = (
                left[i : i + batch_step, j : j + row_step, None] + right[i : i + batch_step, None]
            )
            out[i : i + batch_step, j : j + row_step] = reduction(block)
    return out
