"""The container of models on disk: a header in JSON and named arrays, in numpy's zip, no pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.runtime.atomic_write import atomic_writer
from pgmkit.runtime.untrusted import plain_values, whole_file, zipped_arrays

_VERSIONS = {"pgmkit region model": 2}
"""The version in which files of a kind are written and read; 1 for all other kinds."""
_READERS = {"pgmkit model": "GraphicalModel.load", "pgmkit region model": "RegionModel.load"}


def write_container(
    path: str | os.PathLike[str],
    kind: str,
    header: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    """Write a file completely or not at all. It holds its ``kind`` (such as "pgmkit model"), the
    version of its format, a ``header`` of values that JSON has, and arrays by name.
    """
    whole = {"format": kind, "version": _VERSIONS.get(kind, 1), **header}
    held: Any = dict(arrays)
    with atomic_writer(path) as file:
        np.savez_compressed(file, header=np.array(json.dumps(whole)), **held)


def read_container(
    path: str | os.PathLike[str], kind: str, max_bytes: int
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
