"""Files written by others, read with bounded memory and one kind of error.

Every reader of such files goes through here. A file may hold or expand to at most a stated number
of bytes; an array's header is believed only if the bytes after it agree; and every fault is
InvalidInput. Models are kept in a container of this kind, which is written here, too: a header in
JSON with named arrays, in numpy's zip without pickle.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.runtime.atomic_write import atomic_writer, is_special
from pgmkit.runtime.memory import MEMORY_LIMIT, check_limit
from pgmkit.runtime.sizes import CACHE_CELLS
from pgmkit.runtime.typed import typed

FilePath: TypeAlias = str | os.PathLike[str]
"""The path of a file: a text, or an object such as `pathlib.Path`."""
LARGEST = MEMORY_LIMIT // 4
"""The most bytes that a file of models or releases may hold or expand to."""
MOST_TEXT = LARGEST // 64
"""The most bytes of a text that another package parses, which takes a hundred times as much memory.
"""
_MOST_MEMBERS = 2 * CACHE_CELLS
"""The most members of a zip archive."""
MOST_VALUES = MOST_TEXT // 4
"""The most values of a JSON text: an empty list takes 64 bytes of memory, 21 times what is written.
"""
_BROKEN = zipfile.BadZipFile | gzip.BadGzipFile | zlib.error | EOFError | UnicodeDecodeError
"""The errors that readers of archives and texts raise for bytes of another format."""
_KINDS = "biufU"
"""The kinds of numpy's types that an array may have: truth values, numbers and texts."""
_VERSIONS = {"pgmkit region model": 2}
"""The version in which files of a kind are written and read; 1 for all other kinds."""
_READERS = {"pgmkit model": "GraphicalModel.load", "pgmkit region model": "RegionModel.load"}


@contextmanager
@typed
def refusing(path: FilePath, what: str) -> Iterator[None]:
    """Turn every error in the block into InvalidInput, whose message says that the file at ``path``
    is not the expected ``what`` ("a release file", say) and why. FileNotFoundError, PermissionError
    and IsADirectoryError are raised as they are.

    >>> with refusing("a.pgm", "a release file"):
    ...     {}["ledger"]
    Traceback (most recent call last):
    pgmkit.errors.InvalidInput: 'a.pgm' is not a release file: it has no 'ledger'
    """
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    # Every exception is caught, since a hostile file could cause one that a list does not have.
    except Exception as error:
        reason = str(error) or repr(error)
        if isinstance(error, KeyError):
            reason = f"it has no {error}"
        elif isinstance(
            error, _BROKEN | json.JSONDecodeError | AttributeError | TypeError | IndexError
        ):
            reason = "it has another format, or it is cut off or damaged"
        raise InvalidInput(f"{os.fspath(path)!r} is not {what}: {reason[:500]}") from None


@dataclass(frozen=True)
class HeldFile(os.PathLike[str]):
    """A file whose content is in memory, such as a member of an archive; `whole_file` reads it like
    one on disk, and messages have its name.
    """

    name: str
    content: bytes

    def __fspath__(self) -> str:
        return self.name


def check_file(path: FilePath) -> None:
    """Raise InvalidInput, whose message says "it" of the file, for a pipe, a socket or a device: it
    may have no end, or nothing that opens it a second time.
    """
    if is_special(Path(path)):
        raise InvalidInput("it is a pipe or a device; write what it gives to a file first")


def whole_file(path: FilePath, most: int = LARGEST) -> bytes:
    """Return a file's bytes. Raises InvalidInput if the file has more than `most` bytes, for a pipe
    or a device, and if `most` is not a whole number above 0. The message calls `most` by its name
    in the public readers, `max_bytes`.
    """
    check_limit(most, "max_bytes")
    if isinstance(path, HeldFile):
        content = path.content
    else:
        check_file(path)
        with Path(path).open("rb") as file:
            # `read` takes memory for all bytes that it is asked for.
            content = file.read(min(most, max(LARGEST, os.fstat(file.fileno()).st_size)) + 1)
    if len(content) > most:
        raise InvalidInput(f"it has more than {most:,} bytes")
    return content


def ungzipped(content: bytes, most: int) -> bytes:
    """Return the bytes that were packed by gzip into `content`. Raises InvalidInput for more than
    `most` of them, without unpacking the rest.

    >>> ungzipped(gzip.compress(b"text"), 4)
    b'text'
    """
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise InvalidInput(f"it would expand to more than {most:,} bytes")
    return found


def plain_values(text: str | bytes) -> Any:
    """Return the values of a JSON text.

    Raises InvalidInput for a text that may hold more than 4 million values, nests them too deeply,
    or gives a key of an object twice, and ValueError for a text that is not JSON.

    >>> plain_values('{"a": [1, 2]}')
    {'a': [1, 2]}
    """
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    # Each value but the first follows one of these signs; signs within texts are counted too.
    if sum(map(content.count, (b",", b":", b"[", b"{"))) > MOST_VALUES:
        raise InvalidInput(f"it may hold more than {MOST_VALUES:,} values")
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise InvalidInput("its values are nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        check_new(name, found)
        found[name] = value
    return found


def check_new(key: object, found: Mapping[Any, Any]) -> None:
    """Raise InvalidInput for a key of a file that is among those found before it."""
    if key in found:
        raise InvalidInput(f"{key!r} is given twice; give it once")


def unzipped(content: bytes, most: int = LARGEST) -> dict[str, bytes]:
    """Return the members of a zip archive by name.

    Raises InvalidInput if they expand to more than `most` bytes together, if there are more than
    `_MOST_MEMBERS`, or if two have the same name. For a broken archive it raises errors of zipfile,
    which become InvalidInput inside `refusing`.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        names = [member.filename for member in members]
        if len(set(names)) < len(names) or len(names) > _MOST_MEMBERS:
            raise InvalidInput("its parts are too many, or two have the same name")
        # A member is read no further than its stated size, so these sizes can be relied on.
        if sum(member.file_size for member in members) > most:
            raise InvalidInput(
                f"it would expand to more than {most:,} bytes; raise the limit for a file you trust"
            )
        return {name: archive.read(name) for name in names}


def zipped_arrays(content: bytes, most: int = LARGEST) -> dict[str, NDArray[Any]]:
    """Return the arrays of numbers, truth values or texts from the bytes of a file of
    `numpy.savez`, which may expand to at most `most` bytes.

    Raises InvalidInput, and errors of many kinds for a broken archive; inside `refusing` they all
    become InvalidInput.

    >>> buffer = io.BytesIO()
    >>> np.savez(buffer, a=np.arange(3))
    >>> zipped_arrays(buffer.getvalue())["a"]
    array([0, 1, 2])
    """
    return {
        name.removesuffix(".npy"): _array(part) for name, part in unzipped(content, most).items()
    }


def _array(content: bytes) -> NDArray[Any]:
    """Return the array in a file of numpy's format, given its bytes. Memory is taken for these
    bytes only, whatever shape the header states. Raises InvalidInput if they are no array, for
    other types than `_KINDS` and texts of no length, and if the bytes after the header are not as
    many as its shape needs.
    """
    # numpy writes a later version only for headers of over 64 KiB, which no type in `_KINDS` has.
    if not content.startswith(np.lib.format.magic(1, 0)):
        raise InvalidInput("a part of it is no array; a release is read by TableRelease.load")
    file = io.BytesIO(content)
    file.seek(np.lib.format.MAGIC_LEN)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in _KINDS or dtype.hasobject:
        raise InvalidInput(f"an array of it is of type {dtype}, not of numbers or texts")
    rest = content[file.tell() :]
    if not dtype.itemsize:  # numpy would take four bytes for each
        raise InvalidInput("an array of it holds texts of no length")
    if math.prod(shape) * dtype.itemsize != len(rest):
        raise InvalidInput(f"an array of it states the shape {shape}, which it does not have")
    return np.frombuffer(rest, dtype=dtype).reshape(shape, order="F" if fortran else "C").copy()


def write_container(
    path: FilePath, kind: str, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write a file completely or not at all. It holds its ``kind`` (such as "pgmkit model"), the
    version of its format, a ``header`` of values that JSON has, and arrays by name.
    """
    whole = {"format": kind, "version": _VERSIONS.get(kind, 1), **header}
    held: Any = dict(arrays)
    with atomic_writer(path) as file:
        np.savez_compressed(file, header=np.array(json.dumps(whole)), **held)


def read_container(
    path: FilePath, kind: str, max_bytes: int
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and the arrays of a file that ``write_container`` wrote with this kind, in
    the present version. The file may expand to at most ``max_bytes``.

    Raises InvalidInput for another kind or version, and errors of many kinds for a broken file;
    inside ``refusing`` they all become InvalidInput.
    """
    arrays = zipped_arrays(whole_file(path, max_bytes), max_bytes)
    header: dict[str, Any] = plain_values(str(arrays.pop("header")))
    found, other = header.get("format"), header.get("version")
    version = _VERSIONS.get(kind, 1)
    if (found, other) != (kind, version):
        reader = _READERS.get(str(found), "the class and release that wrote it")
        raise InvalidInput(
            f"it holds {found!r}, format version {other!r}; this reads {kind!r}, version "
            f"{version}: load it with {reader}"
        )
    return header, arrays
