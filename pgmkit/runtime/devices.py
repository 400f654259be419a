"""The devices on which torch computes: their names, and how "auto" chooses one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.runtime import memory
from pgmkit.runtime.arguments import shown
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.memory import available
from pgmkit.runtime.sizes import MULTIPLICATIONS_A_SECOND

WORTH_A_GPU = MULTIPLICATIONS_A_SECOND / 300
"""The multiplications of a pass from which "auto" uses a GPU.

Measured on an H200 beside 16 cores (docs/gpu.md): with a million multiplications a search on the
GPU took twice as long as on the processor, with three million equally long, and with 4.6 to 8
million an eighth to a third. Below this number a GPU loses tenths of a second at most, beside the
1.5 seconds in which a process first loads CUDA.
"""


def device_of(
    device: str | torch.device | None, multiplications: Callable[[], float] = lambda: inf
) -> torch.device:
    """Return the device of this name: "cpu" (or None), "cuda", "cuda:1" and so on, or "auto".

    "auto" is CUDA's current GPU if torch finds one and ``multiplications()``, the number that a
    pass takes (by default infinite), is at least ``WORTH_A_GPU``; else the processor. Raises
    InvalidInput for other names, and for a GPU that is not there.

    >>> device_of("auto", lambda: 1000)
    device(type='cpu')
    """
    if isinstance(device, str) and device == "auto":
        worth = torch.cuda.is_available() and multiplications() >= WORTH_A_GPU
        return torch.device("cuda" if worth else "cpu")
    try:
        found = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError, ValueError):  # torch knows no device of this name
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise InvalidInput(
            f'device must be "cpu", "cuda" (or "cuda:1" and so on) or "auto", got {shown(device)}'
        )
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found.type == "cuda" and (found.index or 0) >= there:
        raise InvalidInput(
            f"device {str(device)!r} is not there: torch {torch.__version__} finds {there} CUDA "
            'GPUs. Pass device="cpu" or "auto", or install a CUDA build of torch on a machine '
            "that has the GPU"
        )
    return found


def check_room(device: torch.device, needed: int, what: str) -> None:
    """Raise ModelTooLarge if ``device`` has fewer than ``needed`` bytes free. For the CPU,
    ``memory.check_room`` decides, which always allows 32 MB. ``what`` names the computation in the
    message.
    """
    if device.type == "cpu":
        memory.check_room(needed, what, remedy="take a smaller model")
    elif needed > available(device):
        raise ModelTooLarge(
            f"{what} needs {needed / 2**20:,.0f} MiB on {device}, which has "
            f"{available(device) / 2**20:,.0f} MiB free: use device='cpu', or a smaller model"
        )


@contextmanager
def gpu_memory(device: torch.device) -> Iterator[None]:
    """Turn a GPU's lack of memory inside the block into ModelTooLarge, for work whose memory is not
    known before.
    """
    try:
        yield
    except torch.cuda.OutOfMemoryError as full:
        raise ModelTooLarge(
            f"{device} has not enough free memory ({full}): use device='cpu', or a smaller model"
        ) from None
