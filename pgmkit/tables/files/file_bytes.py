"""The bytes of files that may be compressed, and the byte order mark at their start."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pgmkit.errors import InvalidInput, naming
from pgmkit.runtime import untrusted
from pgmkit.tables.schema_file import FileFormat


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise the OSError of `open` for a file that is missing or a folder. Raises InvalidInput for a
    pipe or a device: a file is opened more than once.
    """
    with naming(os.fspath(path)):
        untrusted.check_file(path)
    Path(path).open("rb").close()


def path_in_utf8(path: str) -> str:
    """Return the path as Arrow needs it: Arrow encodes a path in UTF-8 to open it, whatever the
    encoding of the process's file names is.
    """
    return os.fsencode(path).decode("utf-8", "replace")


def chunks(path: str, size: int) -> Iterator[bytes]:
    """Yield the uncompressed bytes of a file, `size` at a time. Raises InvalidInput for one that
    cannot be decompressed.
    """
    check_file(path)
    try:
        with pa.input_stream(path_in_utf8(path), compression="detect") as raw:
            yield from iter(lambda: raw.read(size), b"")
    except OSError as error:
        if error.errno is not None:
            raise
        raise InvalidInput(
            f"{path} cannot be decompressed ({error}); its copy is cut off or damaged, or it is "
            "not compressed as its suffix says"
        ) from None


_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""The encoding of each byte order mark; that of UTF-32 comes first, as it begins with UTF-16's."""


def check_mark(path: str, form: FileFormat, start: bytes) -> None:
    """Raise InvalidInput if the file begins with the byte order mark of another encoding than the
    declared one.

    It also raises if UTF-8 is declared and the first line has zero bytes and no mark: it is then
    probably UTF-16 without a mark. `start`: the first line.
    """
    marked = next((name for mark, name in _MARKS.items() if start.startswith(mark)), None)
    declared = codecs.lookup(form.encoding).name.removesuffix("-sig")
    if marked is None and declared == "utf-8" and b"\0" in start:
        order = "be" if start.startswith(b"\0") else "le"
        raise InvalidInput(
            f"the first line of {path} holds zero bytes, as UTF-16 has; name its encoding: "
            f"--encoding utf-16-{order}, or `encoding` in the schema's `file`"
        )
    if marked is not None and not declared.startswith(marked):
        raise InvalidInput(
            f"{path} begins with the byte order mark of {marked.upper()}, but is read as "
            f"{form.encoding}; name its encoding: --encoding {marked}, or `encoding` in the "
            "schema's `file`"
        )
