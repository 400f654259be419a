"""What overlapping tables share, without redundancy: residuals of their sums.

The residual of a table for a set of attributes is its contrasts along each of them, summed over the
rest (of no attribute: the sum of all cells). A table's sums over a set are combinations of the
residuals of its subsets, and residuals of different sets are independent. So tables agree wherever
they overlap if each residual that several of them have is the same in all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert

from pgmkit.domain import Clique, Domain

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Shared:
    """For each table the rows that take its cells to what it shares, and where that lies.

    The first row of each is the sum of all cells; ``places`` are those of the others in a vector
    that holds every shared residual once, of length ``size``.
    """

    rows: tuple[Array, ...]
    places: tuple[NDArray[np.int64], ...]
    size: int


def shared_sizes(domain: Domain, cliques: Sequence[Clique]) -> tuple[int, list[int]]:
    """Length of the vector of all shared residuals, and the rows of each table.

    >>> shared_sizes(Domain({"a": 3, "b": 4, "c": 2}), [("a", "b"), ("b", "c")])
    (3, [4, 4])
    """
    lengths = {each: _length(domain, each) for each in _shared_sets(cliques)}
    rows = [1 + sum(lengths.get(each, 0) for each in _subsets(clique)) for clique in cliques]
    return sum(lengths.values()), rows


def shared_residuals(domain: Domain, cliques: Sequence[Clique]) -> Shared:
    """See ``Shared``.

    >>> domain = Domain({"a": 3, "b": 4, "c": 2})
    >>> shared = shared_residuals(domain, [("a", "b"), ("b", "c")])
    >>> [rows.shape for rows in shared.rows], shared.places[0]
    ([(4, 12), (4, 8)], array([0, 1, 2]))
    """
    starts, size = {}, 0
    for each in _shared_sets(cliques):
        starts[each] = size
        size += _length(domain, each)
    rows, places = [], []
    for clique in cliques:
        held = [each for each in _subsets(clique) if each in starts]
        rows.append(
            np.concatenate([_rows(domain, clique, each) for each in (frozenset[str](), *held)])
        )
        ranges = [np.arange(starts[each], starts[each] + _length(domain, each)) for each in held]
        places.append(np.concatenate([np.zeros(0, dtype=np.int64), *ranges]))
    return Shared(tuple(rows), tuple(places), size)


def _shared_sets(cliques: Sequence[Clique]) -> list[frozenset[str]]:
    counted = Counter(chain.from_iterable(map(_subsets, cliques)))
    return [each for each, tables in counted.items() if tables > 1]


def _subsets(clique: Clique) -> list[frozenset[str]]:
    sizes = range(1, len(clique) + 1)
    return [frozenset(each) for size in sizes for each in combinations(clique, size)]


def _length(domain: Domain, attributes: frozenset[str]) -> int:
    return int(np.prod([domain.sizes[name] - 1 for name in attributes]))


def _rows(domain: Domain, clique: Clique, kept: frozenset[str]) -> Array:
    rows = np.ones((1, 1))
    for name in clique:
        size = domain.sizes[name]
        rows = np.kron(rows, helmert(size) if name in kept else np.ones((1, size)))
    return rows
