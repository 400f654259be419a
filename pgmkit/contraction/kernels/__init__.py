"""The few inner loops of inference, each in the form that is fastest on its device.

``reference`` has all of them in plain torch; ``cpu`` has those that are faster on a processor,
``cuda`` the Triton kernels for GPUs. The forms agree: maxima bit for bit, sums to rounding.
Operands are stacks of matrices, ``left`` of shape (batch, rows, summed) and ``right`` of shape
(batch, columns, summed), of any strides; results have the shape (batch, rows, columns).
"""

from __future__ import annotations

import importlib.util
from functools import cache

from pgmkit.contraction.kernels import cpu, reference
from pgmkit.contraction.kernels.reference import TERMS, TILE_CELLS, Table, peaks
from pgmkit.runtime.deferred import torch

__all__ = [
    "TERMS",
    "TILE_CELLS",
    "Table",
    "contract",
    "contract_steps",
    "log_contract",
    "max_contract",
    "on_gpu",
    "peaks",
    "shift_exp",
]


def max_contract(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the maximum over ``summed`` of left + right."""
    if on_gpu(left):
        from pgmkit.contraction.kernels import cuda

        return cuda.max_contract(left, right)
    return cpu.max_contract(left, right)


def log_contract(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return log sum exp(left + right) over ``summed``."""
    if on_gpu(left):
        from pgmkit.contraction.kernels import cuda

        return cuda.log_contract(left, right)
    return cpu.log_contract(left, right)


def contract(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums of exp(left + right) over ``summed`` divided by exp(scale), and ``scale``."""
    if on_gpu(left):
        from pgmkit.contraction.kernels import cuda

        return cuda.contract(left, right)
    return reference.contract(left, right)


def contract_steps(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, table: Table
) -> None:
    """Compute several sums of products in flat buffers at once (see ``reference``)."""
    if on_gpu(out):
        from pgmkit.contraction.kernels import cuda

        return cuda.contract_steps(left, right, out, table)
    return reference.contract_steps(left, right, out, table)


def shift_exp(
    values: torch.Tensor, shifts: torch.Tensor, starts: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Write exp(values - shift) to ``out`` and return it, with one shift for each run of cells
    between ``starts``.
    """
    if on_gpu(values):
        from pgmkit.contraction.kernels import cuda

        return cuda.shift_exp(values, shifts, starts, out)
    return reference.shift_exp(values, shifts, starts, out)


def on_gpu(values: torch.Tensor) -> bool:
    """True if the Triton kernels serve this tensor."""
    return values.device.type == "cuda" and has_triton()


@cache
def has_triton() -> bool:
    """True if Triton is installed, as it is with CUDA builds of torch for Linux; without it a GPU
    runs the reference.
    """
    return importlib.util.find_spec("triton") is not None
