"""Access to scikit-learn, which the scores by a classifier need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pgmkit.errors import InvalidInput, installing


def sklearn(module: str) -> Any:
    """Return this module of scikit-learn; raise InvalidInput if scikit-learn is not installed."""
    try:
        return import_module(f"sklearn.{module}")
    except ImportError:
        raise InvalidInput(
            f"scores of a classifier need scikit-learn: {installing('report')}"
        ) from None
