"""Sets of attributes as integers with one bit for each."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["each_bit"]


@lru_cache(maxsize=1 << 16)
def each_bit(members: int) -> tuple[int, ...]:
    """The attributes of a set, ascending.

    >>> each_bit(0b1010)
    (1, 3)
    """
    found = []
    while members:
        low = members & -members
        found.append(low.bit_length() - 1)
        members ^= low
    return tuple(found)
