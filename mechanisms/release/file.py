"""A release as one file: a zip archive of JSON and numpy arrays, without pickles."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pkgutil import resolve_name
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from mechanisms.privacy.ledger import Ledger
from mechanisms.queries.predicates import MeasuredPredicate, Predicate
from mechanisms.registry import MECHANISMS, configure
from pgmkit import GraphicalModel, Kronecker, Measurement
from pgmkit.errors import InvalidInput, check_known
from pgmkit.linear.kronecker import factors_of
from pgmkit.runtime import untrusted
from pgmkit.runtime.atomic_write import atomic_writer, bytes_of
from pgmkit.runtime.untrusted import FilePath
from pgmkit.uncertainty import checked_measurements

_HEADER = {"format": "pgmkit release", "version": 2}
_DIGEST = 2 * hashlib.sha256().digest_size
"""The number of characters of the checksum at the end of the file, in the comment of the
archive.
"""
_ADDED = {"exact": 0, "reason": "", "made_by": ""}
"""The fields that older files lack, with the values that they then have."""
_SPARSE = ("data", "indices", "indptr", "shape")
"""The attributes of a sparse matrix that are stored, each as an array."""
MODELS = {
    "pgmkit model": "pgmkit.model:GraphicalModel",
    "pgmkit region model": "pgmkit.regions.model:RegionModel",
    "pgmkit product mixture": "mechanisms.families.product_mixture:ProductMixtureModel",
    "pgmkit mixture of pairs": "mechanisms.families.product_mixture:PairMixtureModel",
    "pgmkit blend": "mechanisms.families.blended:BlendedModel",
    "pgmkit relaxed rows": "mechanisms.families.product_mixture:RelaxedRowsModel",
    "pgmkit histogram": "mechanisms.families.histogram:HistogramModel",
    "pgmkit tables": "mechanisms.families.tables:TablesModel",
    "pgmkit unfinished run": "mechanisms.release.unfitted:Unfitted",
}
"""The module and class that load a model file, by the format that its header names."""


def save(parts: Mapping[str, Any], path: FilePath) -> None:
    """Write a release, given by its fields, to one file, completely or not at all."""
    settings = parts["settings"]
    header = {
        **_HEADER,
        "mechanism": parts["mechanism"],
        "settings": asdict(settings) if is_dataclass(settings) else settings or {},  # type: ignore[arg-type]
        "schema": parts["schema"],
        "ledger": None if parts["ledger"] is None else parts["ledger"].to_dict(),
        "modified": parts["modified"],
        **{key: parts[key] for key in _ADDED},
    }
    arrays: dict[str, Any] = {}
    stored = [_stored(m, f"m{i}", arrays) for i, m in enumerate(parts["measurements"])]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("release.json", json.dumps(header))
        archive.writestr("measurements.json", json.dumps(stored))
        held = io.BytesIO()
        np.savez(held, **arrays)
        archive.writestr("measurements.npz", held.getvalue())
        archive.writestr("model.npz", bytes_of(parts["model"].save, path))
        archive.comment = b" " * _DIGEST
    body = buffer.getvalue()[:-_DIGEST]
    with atomic_writer(path) as file:
        file.write(body + checksum(body))


def load(path: FilePath, *, allow_modified: bool, max_bytes: int) -> dict[str, Any]:
    """Return the fields of a release that `save` wrote. Another file causes an error of any type,
    which the caller turns into InvalidInput (`pgmkit.runtime.untrusted.refusing`).

    The file ends with a checksum of the rest, which shows accidents and careless edits. It is no
    signature: whoever changes a file on purpose can write a new checksum. With `allow_modified` a
    file with a wrong checksum is read too, and marked as modified. `max_bytes`: the most bytes that
    the file may have, and that its parts may have together when they are expanded.
    """
    content = untrusted.whole_file(path, max_bytes)
    modified = checksum(content[:-_DIGEST]) != content[-_DIGEST:]
    parts = untrusted.unzipped(content, max_bytes)
    header = untrusted.plain_values(parts["release.json"])
    stored = untrusted.plain_values(parts["measurements.json"])
    kind, version = header["format"], header["version"]
    if {"format": kind, "version": version} != _HEADER:
        raise InvalidInput(
            f"it holds {kind!r}, version {version!r}; this reads {_HEADER['format']!r}, "
            f"version {_HEADER['version']}: use the version of pgmkit that wrote it"
        )
    if modified and not allow_modified:
        raise InvalidInput(
            "its checksum is wrong, so it was changed after it was written; get the original, "
            "or read it with allow_modified=True (--allow-modified)"
        )
    arrays = untrusted.zipped_arrays(parts["measurements.npz"], max_bytes)
    model = _model(parts["model.npz"], max_bytes)
    measurements = tuple(_restored(each, arrays) for each in stored)
    if arrays:
        raise InvalidInput(f"it holds arrays of no measurement, such as {min(arrays)!r}")
    for measurement in measurements:
        measurement.check(model.domain)
    if isinstance(model, GraphicalModel):
        checked_measurements(model, [m for m in measurements if isinstance(m, Measurement)])
    return {
        "mechanism": header["mechanism"],
        "model": model,
        "measurements": measurements,
        "ledger": None if header["ledger"] is None else Ledger.from_dict(header["ledger"]),
        "settings": _settings(header["mechanism"], header["settings"]),
        "schema": None if header["schema"] is None else dict(header["schema"]),
        "modified": modified or header["modified"] is not False,
        **{key: header.get(key, without) for key, without in _ADDED.items()},
    }


def checksum(body: bytes) -> bytes:
    """Return the SHA-256 of a file's body in hexadecimal digits."""
    return hashlib.sha256(body).hexdigest().encode("ascii")


def _settings(mechanism: str, stored: Mapping[str, Any]) -> object:
    if mechanism not in MECHANISMS:
        return dict(stored)
    # The stored device belongs to the machine that made the release. This machine may not have it,
    # so the default device takes its place.
    return configure(mechanism, **{k: v for k, v in stored.items() if k != "device"})[1]


def _stored(
    m: Measurement | MeasuredPredicate, prefix: str, arrays: dict[str, Any]
) -> dict[str, Any]:
    """Return the JSON form of a measurement; add its arrays to `arrays` under the prefix."""
    if isinstance(m, MeasuredPredicate):
        return asdict(m)
    arrays[f"{prefix}.values"] = m.values
    factors = factors_of(m.matrix)
    for i, factor in enumerate(factors):
        if isinstance(factor, np.ndarray):
            arrays[f"{prefix}.{i}.dense"] = factor
        else:
            sparse = factor.tocsr()
            arrays |= {f"{prefix}.{i}.{part}": getattr(sparse, part) for part in _SPARSE}
    return {
        "clique": m.clique,
        "stddev": m.stddev,
        "prefix": prefix,
        "factors": len(factors),
        "kronecker": isinstance(m.matrix, Kronecker),
    }


def _restored(stored: Mapping[str, Any], arrays: dict[str, Any]) -> Measurement | MeasuredPredicate:
    """Return the measurement of a JSON form, and take its arrays out of `arrays`."""
    if asked := stored.get("predicate"):
        codes = tuple((name, code) for name, code in asked["codes"])
        weights = tuple((name, weight) for name, weight in asked["weights"])
        predicate = Predicate(codes, weights, asked["bound"])
        return MeasuredPredicate(predicate, stored["value"], stored["stddev"])
    prefix = stored["prefix"]
    factors = [_matrix(f"{prefix}.{i}", arrays) for i in range(stored["factors"])]
    matrix = Kronecker(factors) if stored["kronecker"] else (factors[0] if factors else None)
    values = arrays.pop(f"{prefix}.values")
    return Measurement(tuple(stored["clique"]), values, stored["stddev"], matrix)


def _matrix(prefix: str, arrays: dict[str, Any]) -> Any:
    if f"{prefix}.dense" in arrays:
        return arrays.pop(f"{prefix}.dense")
    data, indices, indptr, shape = (arrays.pop(f"{prefix}.{part}") for part in _SPARSE)
    matrix = csr_array((data, indices, indptr), shape=tuple(int(n) for n in shape))
    matrix.check_format(full_check=True)  # compiled products trust the indices
    return matrix


def _model(content: bytes, max_bytes: int) -> Any:
    header = untrusted.zipped_arrays(content, max_bytes)["header"]
    kind = untrusted.plain_values(str(header))["format"]
    check_known([kind], MODELS, "it holds a model of the unknown format", "known are")
    held = untrusted.HeldFile("model.npz", content)
    return resolve_name(MODELS[kind]).load(held, max_bytes=max_bytes)
