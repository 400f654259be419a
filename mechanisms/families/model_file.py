"""The file of a released model: a header, and named arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.runtime.model_files import read_container, write_container
from pgmkit.runtime.untrusted import LARGEST, refusing


@dataclass(frozen=True)
class ModelFile:
    """The content of a file: the domain, the total in counts, the whole header and the arrays."""

    kind: str
    name: str
    domain: Domain
    total: float
    header: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    def array(self, key: str) -> NDArray[Any]:
        """Return an array that a file of this kind must have. Raises InvalidInput if it is
        missing.
        """
        found: NDArray[Any] = self._held(self.arrays, key)
        return found

    def field(self, key: str) -> Any:
        """Return a field that the header of this kind must have. Raises InvalidInput if it is
        missing.
        """
        return self._held(self.header, key)

    def _held(self, place: Mapping[str, Any], key: str) -> Any:
        if key not in place:
            raise InvalidInput(f"{self.name!r} is not a {self.kind} file: it has no {key!r}")
        return place[key]


def write_model(
    path: str | os.PathLike[str],
    kind: str,
    domain: Domain,
    total: float,
    arrays: Mapping[str, NDArray[Any]],
    **more: Any,
) -> None:
    """Write a model of this kind, completely or not at all; `more` is added to the header."""
    header = {"domain": dict(domain.sizes), "total": total, **more}
    write_container(path, kind, header, arrays)


def read_model(path: str | os.PathLike[str], kind: str, max_bytes: int = LARGEST) -> ModelFile:
    """Read a file of `write_model`. Raises InvalidInput for any other file, or another kind or
    version.
    """
    name = os.fspath(path)
    with refusing(path, f"a {kind} file"):
        header, arrays = read_container(path, kind, max_bytes)
        domain, total = Domain(dict(header["domain"])), float(header["total"])
    return ModelFile(kind, name, domain, total, header, arrays)
