"""The few inner loops of inference, each in the form that is fastest on the tensors' device.

``reference`` has all of them in plain torch, ``cpu`` those with a faster form on a processor, and
``cuda`` the Triton kernels for GPUs. All forms give the same maxima bit for bit, and the same sums
up to rounding.

The operands of the three contractions are stacks of matrices of any strides: ``left`` has the shape
(batch, rows, summed) and ``right`` the shape (batch, columns, summed). The result has the shape
(batch, rows, columns).
"""

from __future__ import annotations

import importlib.util
import subprocess
import warnings
from functools import cache

from pgmkit.contraction.kernels import cpu, reference
from pgmkit.contraction.kernels.reference import (
    TERMS,
    TILE_CELLS,
    Table,
    finite,
    log_sum,
    peaks,
    run_levels,
    run_starts,
)
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.sizes import TABLE_CELLS

__all__ = [
    "TERMS",
    "TILE_CELLS",
    "Table",
    "compare",
    "contract_steps",
    "finite",
    "fold",
    "log_contract",
    "log_sum",
    "max_contract",
    "on_gpu",
    "overwrite",
    "peaks",
    "penalise",
    "run_levels",
    "run_starts",
    "shift_exp",
    "spread",
]


def max_contract(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return max over s of ``left[b, r, s] + right[b, c, s]`` as a tensor with axes (b, r, c); NaN
    where a term is NaN.
    """
    if on_gpu(left.device):
        from pgmkit.contraction.kernels import cuda

        if _few_long(left, right):
            return reference.max_contract(left, right, TABLE_CELLS)
        return cuda.max_contract(left, right)
    return cpu.max_contract(left, right)


def log_contract(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return log of the sum over s of ``exp(left[b, r, s] + right[b, c, s])`` as a tensor with axes
    (b, r, c); minus infinity where all terms are.
    """
    if on_gpu(left.device):
        from pgmkit.contraction.kernels import cuda

        if _few_long(left, right):
            return reference.log_contract(left, right, TABLE_CELLS)
        return cuda.log_contract(left, right)
    return cpu.log_contract(left, right)


def contract_steps(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, table: Table
) -> None:
    """Compute several sums of products at once and write them to the flat buffer ``out``;
    ``reference.contract_steps`` explains the table.
    """
    if on_gpu(out.device):
        from pgmkit.contraction.kernels import cuda

        return cuda.contract_steps(left, right, out, table)
    return reference.contract_steps(left, right, out, table)


def shift_exp(
    values: torch.Tensor, shifts: torch.Tensor, starts: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Write exp(values - shift) to ``out`` and return it.

    Run number i of ``values``, the cells from ``starts[i]`` up to ``starts[i + 1]``, has the shift
    ``shifts[i]``.
    """
    if on_gpu(values.device):
        from pgmkit.contraction.kernels import cuda

        return cuda.shift_exp(values, shifts, starts, out)
    return reference.shift_exp(values, shifts, starts, out)


def fold(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``peaks`` and ``sums`` of shape (rows, pieces, columns) for a table of logarithms of
    shape (rows, terms, columns): the largest term of each piece of the terms, and the sum of the
    exponentials of its terms, each divided by that of the peak. The table is read once.
    """
    if on_gpu(table.device):
        from pgmkit.contraction.kernels import cuda

        return cuda.fold(table)
    return reference.fold(table)


def spread(
    table: torch.Tensor, shift: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Write ``exp(table[r, t, c] - shift) * weights[r, c]`` to ``out`` and return it; all but the
    shift are contiguous.
    """
    if on_gpu(table.device):
        from pgmkit.contraction.kernels import cuda

        return cuda.spread(table, shift, weights, out)
    return reference.spread(table, shift, weights, out)


def penalise(
    seen: torch.Tensor, weights: torch.Tensor, target: torch.Tensor, clip: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a vector whose sum is that of the penalties of the residuals ``seen * weights -
    target``, and the derivatives of that sum with respect to ``seen``; ``reference.penalise``
    explains the penalty.
    """
    if on_gpu(seen.device):
        from pgmkit.contraction.kernels import cuda_steps

        return cuda_steps.penalise(seen, weights, target, clip)
    return reference.penalise(seen, weights, target, clip)


def compare(
    new: torch.Tensor,
    old: torch.Tensor,
    weights: torch.Tensor,
    target: torch.Tensor,
    clip: torch.Tensor,
) -> torch.Tensor:
    """Return a matrix whose three rows sum to the penalties at ``new``, their excess over the
    tangent at ``old``, and the product of ``new`` and the slopes at ``old``.
    """
    if on_gpu(new.device):
        from pgmkit.contraction.kernels import cuda_steps

        return cuda_steps.compare(new, old, weights, target, clip)
    return reference.compare(new, old, weights, target, clip)


def overwrite(own: torch.Tensor, chosen: torch.Tensor, other: torch.Tensor) -> None:
    """Copy into ``own`` those rows of ``other`` for which ``chosen``, with one axis less, is
    True.
    """
    if on_gpu(own.device):
        from pgmkit.contraction.kernels import cuda_steps

        return cuda_steps.overwrite(own, chosen, other)
    return reference.overwrite(own, chosen, other)


def on_gpu(device: torch.device) -> bool:
    """Return True if the Triton kernels are used for tensors of this device."""
    return device.type == "cuda" and has_triton(device)


@cache
def has_triton(device: torch.device) -> bool:
    """Return True if Triton is installed, as it is with CUDA builds of torch for Linux, and can
    compile and run a kernel there. Otherwise the reference kernels run on the GPU.
    """
    if importlib.util.find_spec("triton") is None:
        return False
    from pgmkit.contraction.kernels import cuda

    try:
        cuda.try_out(device)
    except (RuntimeError, OSError, ImportError, subprocess.CalledProcessError) as error:
        warnings.warn(
            f"Triton cannot run its kernels here ({type(error).__name__}: {error}), so the GPU "
            "computes with torch's own operations, which take longer; Triton needs a C compiler "
            "and Python's headers",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def _few_long(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return True if there are many terms for each of few results.

    A kernel's program goes through the terms one by one, each in about half a microsecond, however
    few programs there are. Torch writes TABLE_CELLS terms and reduces them in some 40 microseconds.
    """
    batch, rows, summed = left.shape
    results = batch * rows * right.shape[1]
    return summed >= TILE_CELLS and results * TILE_CELLS <= TABLE_CELLS
