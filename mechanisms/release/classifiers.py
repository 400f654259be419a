"""scikit-learn, which the scores by a classifier need, and records in the form that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from pgmkit.errors import InvalidInput, installing
from pgmkit.records.dataset import Dataset


def sklearn(module: str) -> Any:
    """Return this module of scikit-learn; raise InvalidInput if scikit-learn is not installed."""
    try:
        return import_module(f"sklearn.{module}")
    except ImportError:
        raise InvalidInput(
            f"scores of a classifier need scikit-learn: {installing('report')}"
        ) from None


def one_hot(data: Dataset, names: Sequence[str], *, drop: str | None = None) -> Any:
    """Return the indicators of these columns' codes as a sparse matrix with a row for each record;
    with `drop` "first", each column's first code has none.
    """
    codes = np.column_stack([data.columns[name] for name in names])
    known = [np.arange(data.domain.sizes[name]) for name in names]
    encoder = sklearn("preprocessing").OneHotEncoder(categories=known, drop=drop)
    return encoder.fit_transform(codes)
