"""A single counting query: one cell of a marginal."""

from __future__ import annotations

from typing import NamedTuple

from pgmkit.domain import Clique

__all__ = ["Cell"]


class Cell(NamedTuple):
    """A single counting query: one cell of a marginal, by its index in C order."""

    clique: Clique
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
