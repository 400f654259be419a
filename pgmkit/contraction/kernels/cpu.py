"""Kernels on a processor, used if they are faster than the reference.

Maxima of sums cannot use a matrix product: a compiled loop takes a third of torch's time and no
temporary. It is compiled by numba (the extra ``fast``), whose import and compilation cost a second:
they pay once a process has spent about as long on maxima. Until then, and without numba, the
reference gives the same bits.

Exponentials are as fast in torch as in a compiled loop, and sums of their products faster, as a
matrix product does nearly all of them. So the other kernels stay in torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pgmkit.contraction.kernels import reference
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.sizes import CACHE_CELLS, CELL_BYTES, MULTIPLICATIONS_A_SECOND

COMPILE_AFTER = MULTIPLICATIONS_A_SECOND
"""The number of terms of maxima, done in torch, after which compiling the loop pays; torch takes
half a second to a second for them.
"""
_SHORTEST_RUN = 64 // CELL_BYTES
"""The columns of a cache line, 64 bytes, below which the compiled loop has nothing to do side by
side."""

Loop = Callable[[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]], None]


class Spent:
    """The number of terms of maxima that this process has computed."""

    terms = 0


def max_contract(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the maximum over ``summed`` of left + right; NaN where a term is NaN."""
    batch, rows, summed = left.shape
    columns = right.shape[1]
    Spent.terms += batch * rows * summed * columns
    matrices = min(rows, columns, summed) > 1 and max(rows, columns) >= _SHORTEST_RUN
    if matrices and left.device.type == "cpu":
        loop = compiled() if Spent.terms >= COMPILE_AFTER else None
        if loop is not None:
            return looped(loop, left, right)
    return reference.max_contract(left, right)


def log_contract(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return log sum exp(left + right) by a matrix product of exponentials, every row and column
    scaled by its own maximum.

    Sums so far below the product of their maxima that something may have underflowed are computed
    again, term by term.
    """
    summed = left.shape[2]
    if summed == 1:
        return reference.log_contract(left, right)
    product, scale = reference.contract(left, right)
    # What underflows is below tiny * terms, so this keeps every sum to full precision.
    format = torch.finfo(product.dtype)
    batch, row, column = torch.where(product < format.tiny * summed / format.eps)
    out = product.log_().add_(scale)
    per_block = max(1, CACHE_CELLS // summed)
    for start in range(0, len(batch), per_block):
        place = slice(start, start + per_block)
        i, j, k = batch[place], row[place], column[place]
        out[i, j, k] = torch.logsumexp(left[i, j] + right[i, k], -1)
    return out


def looped(loop: Loop, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the result of the compiled loop, with the longer of rows and columns innermost."""
    if left.shape[1] > right.shape[1]:
        return looped(loop, right, left).transpose(1, 2)
    out = left.new_empty((len(left), left.shape[1], right.shape[1]))
    loop(left.contiguous().numpy(), right.transpose(1, 2).contiguous().numpy(), out.numpy())
    return out


@cache
def compiled() -> Loop | None:
    """Return the loop over (batch, rows, summed) and (batch, summed, columns), or None without
    numba.
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
                    # The second test keeps a NaN.
                    if term > out[i, j, k] or term != term:
                        out[i, j, k] = term
