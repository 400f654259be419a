"""Marginal inference centred on graphical models: estimate from noisy marginals, query, sample."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgmkit.dataset import Dataset
    from pgmkit.domain import Domain
    from pgmkit.errors import (
        InvalidInput,
        ModelTooLarge,
        NotCertified,
        NumericalFailure,
        PgmkitError,
        TotalUndetermined,
    )
    from pgmkit.estimation import estimate
    from pgmkit.factor import Factor
    from pgmkit.kronecker import Kronecker
    from pgmkit.measurement import Measurement
    from pgmkit.model import GraphicalModel
    from pgmkit.queries import FactoredQuery
    from pgmkit.schema import Schema
    from pgmkit.total import TotalEstimate, estimate_total
    from pgmkit.uncertainty import Interval, Uncertainty, error_bars
    from pgmkit.zeros import Zeros

# Loaded on first use, so that importing the package does not cost what torch costs.
_HOMES = {
    "Dataset": "dataset",
    "Domain": "domain",
    "FactoredQuery": "queries",
    "Factor": "factor",
    "GraphicalModel": "model",
    "Interval": "uncertainty",
    "InvalidInput": "errors",
    "Kronecker": "kronecker",
    "Measurement": "measurement",
    "ModelTooLarge": "errors",
    "NotCertified": "errors",
    "NumericalFailure": "errors",
    "PgmkitError": "errors",
    "Schema": "schema",
    "TotalEstimate": "total",
    "TotalUndetermined": "errors",
    "Uncertainty": "uncertainty",
    "Zeros": "zeros",
    "error_bars": "uncertainty",
    "estimate": "estimation",
    "estimate_total": "total",
}

__all__ = [
    "Dataset",
    "Domain",
    "Factor",
    "FactoredQuery",
    "GraphicalModel",
    "Interval",
    "InvalidInput",
    "Kronecker",
    "Measurement",
    "ModelTooLarge",
    "NotCertified",
    "NumericalFailure",
    "PgmkitError",
    "Schema",
    "TotalEstimate",
    "TotalUndetermined",
    "Uncertainty",
    "Zeros",
    "error_bars",
    "estimate",
    "estimate_total",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pgmkit' has no attribute {name!r}")
    value = getattr(import_module(f"pgmkit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
