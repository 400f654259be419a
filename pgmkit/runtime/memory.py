"""The memory that is left: that of the machine, or less if a control group or a limit says so."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from pgmkit.errors import ModelTooLarge
from pgmkit.runtime.arguments import check_whole
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.precision import EXACT
from pgmkit.runtime.sizes import CELL_BYTES, TABLE_CELLS

MEMORY_LIMIT = 4 << 30
"""The most bytes that the tables of a model's junction tree, or of an answer, may take together."""
GROUPS = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")
PROCESS = Path("/proc/self/status")
_COUNTED = TABLE_CELLS * CELL_BYTES
"""The bytes from which a computation's need is compared with the free memory."""


def check_limit(limit: int, name: str = "memory_limit") -> None:
    """Raise InvalidInput unless ``limit``, the value of an argument called ``name``, is a whole
    number of bytes above 0.
    """
    check_whole(limit, name, 1, of=" of bytes")


def available(device: torch.device | None = None) -> int:
    """Return the most bytes that this process may use: all of the machine's memory, or the least
    limit of the process's control groups and address space if that is less. For a CUDA GPU, return
    the bytes free there, with those that torch keeps for its next tensors.

    Containers and batch systems set limits for groups of processes (Linux cgroups, version 1 or 2),
    and end a process that exceeds them without a message.

    >>> available() > 1 << 20
    True
    """
    if device is not None and device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    limits = filter(None, [_number(file) for file, *_ in _group_files()])
    return min([psutil.virtual_memory().total, address_space(), *limits])


def room() -> int:
    """Return the bytes that this process may still take: the least of the machine's free memory and
    what is left of the limits of the process's control groups and address space.

    >>> 0 <= room() <= available()
    True
    """
    held = psutil.Process().memory_info().vms
    left = [psutil.virtual_memory().available, address_space() - held, available()]
    for file, use, files in _group_files():
        limit = _number(file)
        if limit:  # version 2 writes "max" for none
            lines = _text(file.with_name("memory.stat")).splitlines()
            cached = dict(line.partition(" ")[::2] for line in lines).get(files, "")
            # The system drops file caches when memory is needed.
            dropped = int(cached) if cached.isdigit() else 0
            left.append(limit - max(0, _number(file.with_name(use)) - dropped))
    return max(0, min(left))


def check_room(
    needed: int, what: str, limit: int | None = None, remedy: str = "", held: int = 0
) -> None:
    """Raise ModelTooLarge, before anything is allocated, if ``needed`` bytes exceed the ``limit``,
    or if ``needed - held`` bytes exceed both ``_COUNTED`` and the memory that is left (``room``).

    Args:
        needed: the most bytes that are held at once.
        what: the computation that needs them, for the message.
        limit: the bytes that the user allows; None for any number.
        remedy: what the user can do other than raise the limit, for the message.
        held: how many of these bytes the process holds already.

    >>> check_room(1 << 40, "the answer", limit=1 << 30, remedy="ask for less")
    Traceback (most recent call last):
    pgmkit.errors.ModelTooLarge: the answer needs 1,099,511,627,776 bytes at once; the limit ...
    """
    if limit is not None and needed > limit:
        reason, last = f"; the limit is {limit:,} bytes", "raise memory_limit"
    elif needed - held > _COUNTED and needed - held > (left := room()):
        reason, last = f", and {left:,} bytes are left to this process", "give it more memory"
    else:
        return
    advice = f"{remedy}, or {last}" if remedy else last
    raise ModelTooLarge(f"{what} needs {counted(needed)} bytes at once{reason}; {advice}")


def counted(number: int) -> str:
    """Return a number of cells or bytes as text: with commas below 2^53, and as a power of two from
    there.

    >>> counted(1 << 20), counted(3 << 60)
    ('1,048,576', '2^61.6')
    """
    return f"{number:,}" if number < EXACT else f"2^{math.log2(number):.1f}"


def peak() -> int:
    """Return the most bytes of memory that this process has held so far, as the system counts them.

    >>> peak() > 1 << 20
    True
    """
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    # On Linux `ru_maxrss` starts at the parent's peak, so it is used only if the system states no
    # other one.
    if found := re.search(r"^VmHWM:\s*(\d+) kB$", _text(PROCESS), re.MULTILINE):
        return int(found[1]) << 10
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


def _text(file: Path) -> str:
    """Return the content of a file of the system; empty if it cannot be read, since it belongs to
    another version of control groups, or to a group that a container does not see.
    """
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def address_space() -> int:
    """Return the limit of the process's address space in bytes; a very large number if there is
    none.
    """
    try:
        import resource
    except ImportError:  # a system without such limits
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _number(file: Path) -> int:
    """Return the number that a file holds; 0 if there is no such file, or no number in it."""
    text = _text(file).strip()
    return int(text) if text.isdigit() else 0


_SECOND = ("memory.max", "memory.current", "inactive_file")
_FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""The names in version 2 and version 1 of control groups: the files of limit and use, and the entry
for file caches.
"""


def _group_files() -> Iterator[tuple[Path, str, str]]:
    """Yield, for the process's control group and those above it, the file with the group's limit,
    the name of the file with its use, and the name of the entry for file caches in its statistics.
    """
    known = {"": (MOUNTED, _SECOND), "memory": (MOUNTED / "memory", _FIRST)}  # by controller
    # A container often sees its own group as the root, whatever its path says.
    groups = [f"0:{controller}:/" for controller in known]
    for line in groups + _text(GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in known.keys() & controllers.split(","):
            root, (limit, use, cached) = known[controller]
            group = root / path.lstrip("/")
            for place in (group, *group.parents):
                if place.is_relative_to(root):
                    yield place / limit, use, cached
