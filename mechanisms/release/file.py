"""A release as one file: a zip of JSON and numpy arrays, no pickle."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms.privacy.budget import Budget, Ledger
from pgmkit.atomic_write import atomic_writer
from pgmkit.errors import InvalidInput
from pgmkit.kronecker import Kronecker
from pgmkit.measurement import Measurement

__all__ = ["load", "save"]

FORMAT = "pgmkit release"
VERSION = 1
MODELS = {
    "pgmkit model": "pgmkit.model:GraphicalModel",
    "pgmkit product mixture": "mechanisms.families.product_mixture:ProductMixtureModel",
    "pgmkit relaxed rows": "mechanisms.families.product_mixture:RelaxedRowsModel",
    "pgmkit histogram": "mechanisms.families.histogram:HistogramModel",
    "pgmkit tables": "mechanisms.families.tables:TablesModel",
}
"""Where the class lives that loads a model file, by the format in the file's header."""


def save(parts: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a release, given by its fields, to one file, whole or not at all."""
    settings = parts["settings"]
    header = {
        "format": FORMAT,
        "version": VERSION,
        "mechanism": parts["mechanism"],
        "settings": asdict(settings) if is_dataclass(settings) else {},  # type: ignore[arg-type]
        "schema": parts["schema"],
        "ledger": None if parts["ledger"] is None else parts["ledger"].to_dict(),
    }
    arrays: dict[str, Any] = {}
    stored = [_stored(m, f"m{i}", arrays) for i, m in enumerate(parts["measurements"])]
    with atomic_writer(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("release.json", json.dumps(header))
        archive.writestr("measurements.json", json.dumps(stored))
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        archive.writestr("measurements.npz", buffer.getvalue())
        archive.writestr("model.npz", _model_bytes(parts["model"]))


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of a release that `save` wrote; InvalidInput for anything else."""
    name = os.fspath(path)
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read("release.json"))
            stored = json.loads(archive.read("measurements.json"))
            with np.load(io.BytesIO(archive.read("measurements.npz")), allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
            model_bytes = archive.read("model.npz")
        kind, version = header["format"], header["version"]
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise InvalidInput(
            f"{name!r} is not a release file ({type(error).__name__}); `Release.save` writes one"
        ) from None
    if (kind, version) != (FORMAT, VERSION):
        raise InvalidInput(
            f"{name!r} holds {kind!r}, version {version!r}; this reads {FORMAT!r}, version "
            f"{VERSION}: use the version of pgmkit that wrote it"
        )
    return {
        "mechanism": header["mechanism"],
        "model": _model(name, model_bytes),
        "measurements": tuple(_restored(each, arrays) for each in stored),
        "ledger": None if header["ledger"] is None else _ledger(header["ledger"]),
        "settings": _settings(header["mechanism"], header["settings"]),
        "schema": header["schema"],
    }


def _ledger(stored: Mapping[str, Any]) -> Ledger:
    budget = Budget(stored["epsilon"], stored["delta"], stored["reserved"])
    ledger = Ledger(budget, secure=stored["secure"], neighbours=stored["neighbours"])
    for entry in stored["entries"]:
        ledger.charge(entry["step"], entry["mechanism"], entry["cost"])
    return ledger


def _settings(mechanism: str, stored: Mapping[str, Any]) -> object:
    from mechanisms.registry import MECHANISMS

    if mechanism not in MECHANISMS:
        return dict(stored)
    # JSON has no tuples, settings have no lists.
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
    return MECHANISMS[mechanism].load()[1](**values)


def _stored(m: Measurement, prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """What JSON holds of a measurement; its arrays go beside it under the prefix."""
    arrays[f"{prefix}.values"] = m.values
    factors: Sequence[Any] = ()
    if m.matrix is not None:
        factors = m.matrix.factors if isinstance(m.matrix, Kronecker) else [m.matrix]
    for i, factor in enumerate(factors):
        arrays.update({f"{prefix}.{i}.{key}": part for key, part in _parts(factor).items()})
    return {
        "clique": m.clique,
        "stddev": m.stddev,
        "prefix": prefix,
        "factors": len(factors),
        "kronecker": isinstance(m.matrix, Kronecker),
    }


def _parts(factor: Any) -> dict[str, Any]:
    if isinstance(factor, np.ndarray):
        return {"dense": factor}
    sparse = factor.tocsr()
    return {
        "data": sparse.data,
        "indices": sparse.indices,
        "indptr": sparse.indptr,
        "shape": np.array(sparse.shape),
    }


def _restored(stored: Mapping[str, Any], arrays: Mapping[str, Any]) -> Measurement:
    prefix = stored["prefix"]
    factors = [_matrix(f"{prefix}.{i}", arrays) for i in range(stored["factors"])]
    matrix = Kronecker(factors) if stored["kronecker"] else (factors[0] if factors else None)
    values = arrays[f"{prefix}.values"]
    return Measurement(tuple(stored["clique"]), values, stored["stddev"], matrix)


def _matrix(prefix: str, arrays: Mapping[str, Any]) -> Any:
    if f"{prefix}.dense" in arrays:
        return arrays[f"{prefix}.dense"]
    from scipy.sparse import csr_array

    data, indices, indptr, shape = (
        arrays[f"{prefix}.{part}"] for part in ("data", "indices", "indptr", "shape")
    )
    return csr_array((data, indices, indptr), shape=tuple(int(n) for n in shape))


def _model_bytes(model: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "model.npz")
        model.save(target)
        return target.read_bytes()


def _model(name: str, content: bytes) -> Any:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        kind = json.loads(str(file["header"]))["format"]
    if kind not in MODELS:
        raise InvalidInput(
            f"{name!r} holds a model of the unknown format {kind!r}; known are {', '.join(MODELS)}"
        )
    module, _, owner = MODELS[kind].partition(":")
    found = getattr(import_module(module), owner)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "model.npz")
        target.write_bytes(content)
        return found.load(target)
