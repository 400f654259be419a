"""Sets of attributes as integers with one bit for each attribute."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

__all__ = ["each_bit", "union"]


@lru_cache(maxsize=1 << 16)
def each_bit(members: int) -> tuple[int, ...]:
    """Return the attributes of a set, ascending.

    >>> each_bit(0b1010)
    (1, 3)
    """
    found = []
    while members:
        low = members & -members
        found.append(low.bit_length() - 1)
        members ^= low
    return tuple(found)


def union(sets: Iterable[int]) -> int:
    """Return the union of sets of attributes.

    >>> union([0b1010, 0b0011]) == 0b1011
    True
    """
    found = 0
    for members in sets:
        found |= members
    return found
