"""Kernels on a processor that are faster than the reference.

Maxima of sums cannot be computed by a matrix product. A compiled loop takes a third of torch's time
for them and no temporary memory. It is compiled by numba (the extra ``fast``), whose import and
compilation take about a second. So the loop is compiled only after a process has spent about as
long on maxima. Until then, and without numba, the reference computes the same bits.

Torch computes exponentials as fast as a compiled loop, and sums of their products faster, since
nearly all of the work is a matrix product. So the other kernels stay in torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pgmkit.contraction.kernels import reference
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.sizes import CACHE_CELLS, CELL_BYTES, MULTIPLICATIONS_A_SECOND
from pgmkit.runtime.threads import one_thread

COMPILE_AFTER = MULTIPLICATIONS_A_SECOND
"""The number of terms of maxima after which the loop is compiled. Torch takes half a second to a
second for this number, about as long as the compilation.
"""
_SHORTEST_RUN = 64 // CELL_BYTES
"""The number of float64 cells in a cache line of 64 bytes. The compiled loop is used only if there
are at least this many rows or columns, since it works on neighbouring cells side by side.
"""

Loop = Callable[[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]], None]


class Spent:
    """A counter of the terms of maxima that this process has computed."""

    terms = 0


def max_contract(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return max over s of ``left[b, r, s] + right[b, c, s]`` as a tensor with axes (b, r, c); NaN
    where a term is NaN.

    The call also counts its terms in ``Spent``, which decides when the loop is compiled.
    """
    batch, rows, summed = left.shape
    columns = right.shape[1]
    terms = batch * rows * summed * columns
    Spent.terms += terms
    matrices = min(rows, columns, summed) > 1 and max(rows, columns) >= _SHORTEST_RUN
    if matrices and left.device.type == "cpu":
        loop = compiled() if Spent.terms >= COMPILE_AFTER else None
        if loop is not None:
            return looped(loop, left, right)
    # The blocks of a large product fit a core's cache, where two threads take 1.4 to 2 times as
    # long as one, so it is computed in one thread.
    with one_thread() if terms > CACHE_CELLS else nullcontext():
        return reference.max_contract(left, right)


def log_contract(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return log of the sum over s of ``exp(left[b, r, s] + right[b, c, s])`` by a matrix product
    of exponentials, each row of ``left`` and of ``right`` scaled by its own maximum; minus infinity
    where all terms are.

    A sum is computed again, term by term, if it is so small beside the exponential of the two
    rows' maxima that its terms may have underflowed.
    """
    summed = left.shape[2]
    if summed == 1:
        return reference.log_contract(left, right)
    product, scale = reference.contract(left, right)
    # Each term that underflows is at most `least`, so all of them together change a sum of at least
    # `lost` by less than its rounding error.
    lost = reference.least(product.dtype) * summed / torch.finfo(product.dtype).eps
    batch, row, column = torch.where(product < lost)
    out = product.log_().add_(scale)
    per_block = max(1, CACHE_CELLS // summed)
    for start in range(0, len(batch), per_block):
        place = slice(start, start + per_block)
        i, j, k = batch[place], row[place], column[place]
        out[i, j, k] = reference.log_sum(left[i, j] + right[i, k])
    return out


def looped(loop: Loop, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the maxima computed by the compiled loop. The operands are exchanged if needed, so
    that the innermost loop runs over the longer of rows and columns.
    """
    if left.shape[1] > right.shape[1]:
        return looped(loop, right, left).transpose(1, 2)
    out = left.new_empty((len(left), left.shape[1], right.shape[1]))
    loop(left.contiguous().numpy(), right.transpose(1, 2).contiguous().numpy(), out.numpy())
    return out


@cache
def compiled() -> Loop | None:
    """Return `_maxima` compiled by numba, or None if numba is not installed. The compiled function
    takes arrays left, right and out, and writes the maximum over s of left[b, r, s] +
    right[b, s, c] to out[b, r, c].
    """
    if importlib.util.find_spec("numba") is None:
        return None
    import numba

    made: Loop = numba.njit(_maxima, nogil=True)
    return made


def _maxima(
    left: NDArray[np.floating], right: NDArray[np.floating], out: NDArray[np.floating]
) -> None:
    batch, rows, summed = left.shape
    columns = right.shape[2]
    for i in range(batch):
        for j in range(rows):
            for k in range(columns):
                out[i, j, k] = -np.inf
            for s in range(summed):
                own = left[i, j, s]
                for k in range(columns):
                    term = own + right[i, s, k]
                    # The second test is true for NaN only, so that a NaN appears in the result.
                    if term > out[i, j, k] or term != term:
                        out[i, j, k] = term
