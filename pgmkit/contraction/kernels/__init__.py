"""The few inner loops of inference, each in the form that is fastest on the tensors' device.

``reference`` has all of them in plain torch, ``cpu`` those with a faster form on a processor, and
``cuda`` and ``cuda_steps`` the Triton kernels for GPUs. All forms give the same maxima bit for bit,
and the same sums up to rounding.

The operands of ``max_contract`` and ``log_contract`` are stacks of matrices of any strides:
``left`` has the shape (batch, rows, summed) and ``right`` the shape (batch, columns, summed). The
result has the shape (batch, rows, columns).
"""

from __future__ import annotations

import importlib.util
import subprocess
import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

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

__all__ = ["TERMS", "TILE_CELLS", "Table", "finite", "log_sum", "peaks", "run_levels", "run_starts"]

P = ParamSpec("P")
R = TypeVar("R")
_Contraction: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"


def _by_device(form: Callable[P, R]) -> Callable[P, R]:
    """Return a function that calls the Triton form of the same name if its first argument is on a
    GPU on which Triton works (``on_gpu``), and ``form`` otherwise.
    """

    @wraps(form)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        first: Any = args[0]
        if not on_gpu(first.device):
            return form(*args, **kwargs)
        from pgmkit.contraction.kernels import cuda, cuda_steps

        module = cuda if hasattr(cuda, form.__name__) else cuda_steps
        kernel: Callable[P, R] = getattr(module, form.__name__)
        return kernel(*args, **kwargs)

    return called


def _unless_few_long(form: _Contraction, in_blocks: Callable[..., torch.Tensor]) -> _Contraction:
    """Return a contraction that calls ``form`` or, on a GPU, the Triton form of the same name. On a
    GPU, at most TABLE_CELLS / TILE_CELLS results of at least TILE_CELLS terms each are computed by
    ``in_blocks``, the reference in plain torch, instead.

    A kernel's program goes through the terms one by one, each in about half a microsecond, however
    few programs there are. Torch writes TABLE_CELLS terms and reduces them in some 40 microseconds.
    """
    by_device = _by_device(form)

    @wraps(form)
    def called(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        batch, rows, summed = left.shape
        results = batch * rows * right.shape[1]
        few_long = summed >= TILE_CELLS and results * TILE_CELLS <= TABLE_CELLS
        if few_long and on_gpu(left.device):
            return in_blocks(left, right, TABLE_CELLS)
        return by_device(left, right)

    return called


max_contract = _unless_few_long(cpu.max_contract, reference.max_contract)
log_contract = _unless_few_long(cpu.log_contract, reference.log_contract)
contract_steps = _by_device(reference.contract_steps)
shift_exp = _by_device(reference.shift_exp)
fold = _by_device(reference.fold)
spread = _by_device(reference.spread)
penalise = _by_device(reference.penalise)
compare = _by_device(reference.compare)
overwrite = _by_device(reference.overwrite)


def on_gpu(device: torch.device) -> bool:
    """Return True if the Triton kernels are used for tensors of this device."""
    return device.type == "cuda" and has_triton(device)


@cache
def has_triton(device: torch.device) -> bool:
    """Return True if Triton is installed, as it is with CUDA builds of torch for Linux, and can
    compile and run a kernel on this GPU. Otherwise the GPU runs the reference kernels, after a
    warning if Triton is installed. The first call for a GPU tries this out, and its answer is kept.
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
