"""Writing a file completely or not at all."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pgmkit.errors import InvalidInput
from pgmkit.runtime.typed import typed


@contextmanager
def naming_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Give the file's name to the system's errors of the block that name none, such as those for
    lack of room or of locks. Errors of pipes and connections are not the file's.
    """
    try:
        yield
    except ConnectionError:
        raise
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return the path without symbolic links. Raises InvalidInput for one with a zero byte, which
    the name of no file has.
    """
    if "\0" in os.fspath(path):
        raise InvalidInput(f"{os.fspath(path)!r} is no name of a file: it has a zero byte")
    return Path(os.path.realpath(path))


def bytes_of(save: Callable[[Path], None], path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of the file that `save` writes when it is given a path. They are to become a
    part of the file at `path`, which errors of the system name.
    """
    # The disk of temporary files may be full; that of the whole file must have room in any case.
    beside = real_path(path).parent
    try:
        with tempfile.TemporaryDirectory(dir=beside if beside.is_dir() else None) as folder:
            save(target := Path(folder, "part"))
            return target.read_bytes()
    except OSError as error:
        # The error names a temporary file, which the user, who named `path`, never saw.
        error.filename = os.fspath(path)
        raise


def is_special(path: Path) -> bool:
    """Return True for a pipe, a socket or a device."""
    return path.exists() and not (path.is_file() or path.is_dir())


@contextmanager
@typed
def atomic_writer(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new binary file for the block; when the block ends, it replaces the file at `path`. If
    the block raises, the new file is removed and the file at `path` stays as it was.

    The new file is written in the same folder under another name and then renamed to `path`, so
    readers see the old file or the whole new one. A symbolic link is followed.

    Raises OSError as `open` does; an error for lack of room names the file. Raises InvalidInput for
    a pipe or a device, which a file would replace for all programs of the machine.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_writer(Path(folder, "a.txt")) as file:
    ...         _ = file.write(b"whole")
    ...     [p.name for p in Path(folder).iterdir()]
    ['a.txt']
    """
    target = real_path(path)
    if is_special(target):
        raise InvalidInput(f"cannot write {target}: it is a pipe or a device; name a file")
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {target}: it is a folder; name a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"cannot write {target}: the folder {target.parent} does not exist; create it first"
        )
    # The file is opened by name, not by tempfile, so that it gets the usual permissions. Systems
    # allow names of 255 bytes, and a character of the target's name may take four.
    temporary = target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}.tmp")
    try:
        with naming_file(path):
            with open(temporary, "xb") as file:
                yield file
            os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
