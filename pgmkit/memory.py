"""How much memory there is: the machine's, or less where a control group says so."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pgmkit.errors import InvalidInput

if TYPE_CHECKING:
    import torch

__all__ = ["available", "check_limit", "peak"]

_GROUPS = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")


def check_limit(memory_limit: int) -> None:
    """Raises InvalidInput where ``memory_limit`` is no number of bytes."""
    if isinstance(memory_limit, bool) or not isinstance(memory_limit, int) or memory_limit < 1:
        raise InvalidInput(
            f"memory_limit must be a positive integer, a number of bytes, got {memory_limit!r}"
        )


def available(device: torch.device | None = None) -> int:
    """Bytes that this process may use at most: of the machine, or of its control groups; of a CUDA
    card what is free there.

    Containers and batch systems set limits for groups of processes (Linux cgroups, version 1 or 2),
    and end a process that exceeds them without a word.

    >>> available() > 1 << 20
    True
    """
    if device is not None and device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits()])


def peak() -> int:
    """Bytes of memory that this process has held at most so far, as the system counts them.

    >>> peak() > 1 << 20
    True
    """
    status = Path("/proc/self/status")
    if status.exists():
        # Not `ru_maxrss`, which on Linux starts at the parent's peak.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) << 10
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


def _limits() -> Iterator[int]:
    """The limits of the process's group and of those above it."""
    for file in _limit_files():
        try:
            text = file.read_text().strip()
        except OSError:  # not this version, or a group that a container does not see
            continue
        if text.isdigit() and int(text) > 0:  # version 2 writes "max" for none
            yield int(text)


def _limit_files() -> Iterator[Path]:
    try:
        lines = _GROUPS.read_text().splitlines()
    except OSError:
        lines = []
    # A container often sees its own group as the root, whatever its path says.
    yield _MOUNTED / "memory.max"
    yield _MOUNTED / "memory" / "memory.limit_in_bytes"
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            root, name = _MOUNTED, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _MOUNTED / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        for place in (group, *group.parents):
            if place.is_relative_to(root):
                yield place / name
