"""Sets of attributes as integers with one bit for each attribute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from math import prod
from operator import or_


@lru_cache(maxsize=1 << 16)
def each_bit(members: int) -> tuple[int, ...]:
    """Return the numbers of the attributes in a set, ascending.

    >>> each_bit(0b1010)
    (1, 3)
    """
    found = []
    while members:
        low = members & -members
        found.append(low.bit_length() - 1)
        members ^= low
    return tuple(found)


def cells_of(members: int, sizes: Sequence[int]) -> int:
    """Return the number of cells of a table over a set of attributes; ``sizes`` has the size of
    every attribute.

    >>> cells_of(0b101, (2, 3, 5))
    10
    """
    return prod([sizes[v] for v in each_bit(members)])


def neighbours(scopes: Iterable[int], count: int) -> list[int]:
    """Return, for each of ``count`` attributes, the set of the others that share a scope with it.

    >>> neighbours([0b011, 0b110], 3)
    [2, 5, 2]
    """
    found = [0] * count
    for scope in scopes:
        for v in each_bit(scope):
            found[v] |= scope
    return [around & ~(1 << v) for v, around in enumerate(found)]


def union(sets: Iterable[int]) -> int:
    """Return the union of sets of attributes.

    >>> union([0b1010, 0b0011]) == 0b1011
    True
    """
    return reduce(or_, sets, 0)
