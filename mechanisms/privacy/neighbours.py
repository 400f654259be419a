"""Neighbour relations, and what follows from each for one marginal."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["NEIGHBOURS", "Neighbours"]


@dataclass(frozen=True)
class Neighbours:
    """A neighbour relation and what follows from it for one marginal, in counts.

    `l1`, `l2`: the largest L1 and L2 change of a marginal between neighbouring data sets. The L1
    distance of a marginal to any fixed table changes by at most `l1` (triangle inequality).
    `rows_public`: whether all neighbours have the same number of rows, which is then public.
    `one_sided_values`: in how many ways neighbours can differ by a value that one of them alone
    has: each of two replaced rows may hold one, an added row holds one.
    """

    name: str
    l1: int
    l2: float
    rows_public: bool
    one_sided_values: int


NEIGHBOURS = {
    relation.name: relation
    for relation in [
        Neighbours("replace-one", l1=2, l2=math.sqrt(2), rows_public=True, one_sided_values=2),
        Neighbours("add/remove", l1=1, l2=1.0, rows_public=False, one_sided_values=1),
    ]
}
"""The relations by name: one row replaced by another, or one row more or less."""
