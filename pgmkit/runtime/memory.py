"""The memory that is left: the machine's, or less where a control group or a limit says so."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.runtime.precision import EXACT
from pgmkit.runtime.sizes import CELL_BYTES, TABLE_CELLS

if TYPE_CHECKING:
    import torch

__all__ = ["available", "check_limit", "check_room", "counted", "peak", "room"]

_GROUPS = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")
_PROCESS = Path("/proc/self/status")
_MACHINE = Path("/proc/meminfo")
_COUNTED = TABLE_CELLS * CELL_BYTES
"""Bytes from which a computation is held against what is free."""


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
    limits = [limit for limit, _ in _groups()]
    return min(
        [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _address_space(), *limits]
    )


def room() -> int:
    """Bytes that this process may still take beside what it and others hold already: what the
    machine has free, what is left of its control groups' limits, and of its address space.

    >>> 0 <= room() <= available()
    True
    """
    held = _numbers(_PROCESS)
    free = _numbers(_MACHINE).get("MemAvailable", available() - held.get("VmRSS", 0))
    left = [limit - used for limit, used in _groups()]
    return max(0, min(free, _address_space() - held.get("VmSize", 0), *left, available()))


def check_room(
    needed: int, what: str, limit: int | None = None, remedy: str = "", held: int = 0
) -> None:
    """Raises ModelTooLarge, before anything is allocated, where ``needed`` bytes are more than the
    ``limit`` or than there is room for.

    Args:
        needed: the most bytes that are held at once.
        what: needs them, for the error.
        limit: what the user allows.
        remedy: what the user can do beside raising the limit.
        held: how many of these bytes the process holds already.

    >>> check_room(1 << 40, "the answer", limit=1 << 30, remedy="ask for less")
    Traceback (most recent call last):
    pgmkit.errors.ModelTooLarge: the answer needs 1,099,511,627,776 bytes at once; the limit ...
    """
    size = f"{counted(needed)} bytes"
    advice = f"{remedy}, or " if remedy else ""
    if limit is not None and needed > limit:
        raise ModelTooLarge(
            f"{what} needs {size} at once; the limit is {limit:,} bytes; {advice}raise memory_limit"
        )
    if needed - held > _COUNTED and needed - held > (left := room()):
        raise ModelTooLarge(
            f"{what} needs {size} at once, and {left:,} bytes are left to this process; "
            f"{advice}give it more memory"
        )


def counted(number: int) -> str:
    """A number of cells or bytes, for people.

    >>> counted(1 << 20), counted(3 << 60)
    ('1,048,576', '2^61.6')
    """
    return f"{number:,}" if number < EXACT else f"2^{math.log2(number):.1f}"


def peak() -> int:
    """Bytes of memory that this process has held at most so far, as the system counts them.

    >>> peak() > 1 << 20
    True
    """
    # Not `ru_maxrss`, which on Linux starts at the parent's peak.
    if (most := _numbers(_PROCESS).get("VmHWM")) is not None:
        return most
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


def _numbers(file: Path) -> dict[str, int]:
    """The lines ``name: number kB`` of a file of the system, in bytes; none where there is none."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    fields = [line.split() for line in lines if line.endswith(" kB")]
    return {name.rstrip(":"): int(number) << 10 for name, number, *_ in fields}


def _address_space() -> int:
    """The limit of the process's addresses, in bytes; very many where there is none."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _groups() -> Iterator[tuple[int, int]]:
    """The limits of the process's group and of those above it, and what each group holds: without
    copies of files, which the system drops when memory is asked for.
    """
    for file, use, files in _group_files():
        limit = _number(file)
        if limit:  # version 2 writes "max" for none
            dropped = 0
            with contextlib.suppress(OSError, ValueError):
                text = file.with_name("memory.stat").read_text()
                dropped = int(text.split(f"{files} ", 1)[1].split(maxsplit=1)[0])
            yield limit, max(0, _number(file.with_name(use)) - dropped)


def _number(file: Path) -> int:
    """The number that a file holds; 0 where it holds none."""
    try:
        text = file.read_text().strip()
    except OSError:  # not this version, or a group that a container does not see
        return 0
    return int(text) if text.isdigit() else 0


_SECOND = ("memory.max", "memory.current", "inactive_file")
_FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""The names in both versions of control groups: the files of limit and use, and the count of
copies.
"""


def _group_files() -> Iterator[tuple[Path, str, str]]:
    """The file of each limit, the name of that of the use, and of the count of copies of files."""
    try:
        lines = _GROUPS.read_text().splitlines()
    except OSError:
        lines = []
    # A container often sees its own group as the root, whatever its path says.
    for root, names in ((_MOUNTED, _SECOND), (_MOUNTED / "memory", _FIRST)):
        yield root / names[0], *names[1:]
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            root, names = _MOUNTED, _SECOND
        elif "memory" in controllers.split(","):
            root, names = _MOUNTED / "memory", _FIRST
        else:
            continue
        group = root / path.lstrip("/")
        for place in (group, *group.parents):
            if place.is_relative_to(root):
                yield place / names[0], *names[1:]
