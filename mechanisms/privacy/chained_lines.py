"""An append-only file of lines for several processes, each line with a digest of all lines before
it.

A line counts once it is complete and on the disk. A line that was cut short, by a kill or a full
disk, is overwritten by the next.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock

from pgmkit.errors import InvalidInput
from pgmkit.runtime.atomic_write import naming_file, real_path
from pgmkit.runtime.typed import typed_class
from pgmkit.runtime.untrusted import FilePath, plain_values, refusing, whole_file

_DIGITS = hashlib.sha256().digest_size // 2
"""The hexadecimal digits of a line's digest; an accidental change keeps it with probability
2^-64.
"""
_OWNER_ONLY = stat.S_IRUSR | stat.S_IWUSR


@typed_class
class ChainedLines:
    """Lines of plain values in a file; `append` is atomic among processes of one machine.

    Locks are the operating system's and end with their process. The digests reveal damage and
    careless edits; they are not a signature, and a file cut back to an earlier line is not
    detected.
    """

    def __init__(self, path: FilePath) -> None:
        self.path = real_path(path)

    @classmethod
    def create(cls, path: FilePath, first: Mapping[str, Any]) -> ChainedLines:
        """Create a new file with one line, the values `first`. Raises InvalidInput if there is a
        file already, and for a folder that takes no hard links.
        """
        lines = cls(path)
        temporary = lines.path.with_name(f".{lines.path.name[:50]}.{secrets.token_hex(8)}.tmp")
        try:
            owned = partial(os.open, mode=_OWNER_ONLY)
            with naming_file(path), open(temporary, "xb", opener=owned) as file:
                _flushed(file, _line(first, "")[0])
            # Unlike a rename, a link never replaces an existing file.
            os.link(temporary, lines.path)
        except FileExistsError:
            raise InvalidInput(
                f"{os.fspath(path)!r} exists already and is not begun anew; go on with it "
                "(`Ledger.open`, `--ledger`), or choose another name"
            ) from None
        except OSError as error:
            if error.filename2 is None:  # only the link has two names
                raise
            raise InvalidInput(
                f"{os.fspath(path)!r} cannot be begun, since its folder takes no hard links "
                f"({error.strerror}); choose a folder on a disk of this machine"
            ) from None
        finally:
            temporary.unlink(missing_ok=True)
        _flush_folder(lines.path.parent)
        return lines

    def read(self) -> list[dict[str, Any]]:
        """Return the values of all complete lines. Raises InvalidInput for a damaged line or if no
        line is complete, and errors of any kind for a file that is no such list of lines: inside
        `refusing` these become InvalidInput too.
        """
        return self._parsed(whole_file(self.path))[0]

    def append(self, decide: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> dict[str, Any]:
        """Write the line that `decide` returns for all lines before it, and return it; write
        nothing if `decide` raises.

        It returns when the line is on the disk. Raises InvalidInput for a file that was damaged,
        and for one with several names (hard links), and FileNotFoundError if there is no file.
        """
        with naming_file(self.path), self._alone() as file:
            self._check_names()
            with refusing(self.path, "a ledger file"):
                content = whole_file(self.path)
                lines, digest = self._parsed(content)
            values = decide(lines)
            end = content.rfind(b"\n") + 1
            file.truncate(end)
            file.seek(end)
            _flushed(file, _line(values, digest)[0])
        return values

    @contextmanager
    def _alone(self) -> Iterator[BinaryIO]:
        """Give the open file while two locks are held: that of a file beside it, and its own. The
        latter is one for all containers that mount the file, under whatever path.
        """
        with FileLock(f"{self.path}.lock", mode=_OWNER_ONLY), open(self.path, "r+b") as file:
            _lock(file, "LOCK_EX")
            try:
                yield file
            finally:
                _lock(file, "LOCK_UN")  # a fork may hold the file open for longer

    def _check_names(self) -> None:
        """Raise InvalidInput for a file with several names (hard links), each of which would have
        another lock.
        """
        names = self.path.stat().st_nlink
        if names > 1:
            raise InvalidInput(
                f"{os.fspath(self.path)!r} is one of {names} names (hard links) of one file, which "
                "would not wait for each other; delete the others"
            )

    @staticmethod
    def _parsed(content: bytes) -> tuple[list[dict[str, Any]], str]:
        """Return the values of all complete lines, and the digest of the last. Raises InvalidInput
        for a changed or damaged line, and for no complete line.
        """
        digest, found = "", []
        for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(True), 1):
            values = plain_values(line)
            del values["digest"]
            expected, digest = _line(values, digest)
            if expected != line:
                raise InvalidInput(f"line {number} was changed or damaged")
            found.append(values)
        if not found:
            raise InvalidInput("it has no whole line")
        return found, digest


def _line(values: Mapping[str, Any], before: str) -> tuple[bytes, str]:
    text = json.dumps(dict(values))
    digest = hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()[:_DIGITS]
    return (json.dumps({**values, "digest": digest}) + "\n").encode(), digest


def _lock(file: BinaryIO, operation: str) -> None:
    """Take ("LOCK_EX") or free ("LOCK_UN") the lock of a file, if the system and the disk have such
    locks.
    """
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, getattr(fcntl, operation))


def _flush_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, if the system supports that."""
    if os.name == "posix":
        place = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def _flushed(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
