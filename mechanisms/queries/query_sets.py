"""Sets of linear queries, each given by one matrix for each attribute of a clique.

A set stands for all combinations of its attributes' queries (the Kronecker product of the
matrices). Attributes that it does not name are summed away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, check_known, naming
from pgmkit.linear.matrix import MatrixLike, as_dense, as_matrix
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.typed import typed_class

CODES = "identity"
"""The queries along an attribute unless others are named: every single code."""

Asked: TypeAlias = "str | MatrixLike"
"""The queries along an attribute: a name of `QUERIES`, or a matrix with a column a code."""


@typed_class
@dataclass(frozen=True)
class QuerySet:
    """All combinations of the queries `asked` along the attributes of `clique`, each with this
    weight.

    `asked` is in the clique's order. The error of several sets is the sum of the errors of all
    their queries, each times the weight of its set. Only types are checked here; names, matrices
    and weights are by `Workload.of`.

    >>> QuerySet(("age", "sex"), ("prefix", "identity"))
    QuerySet(clique=('age', 'sex'), asked=('prefix', 'identity'), weight=1.0)
    """

    clique: Clique
    asked: tuple[Asked, ...]
    weight: float = 1.0

    @property
    def plain(self) -> bool:
        """True if the set is a whole marginal: the queries along every attribute of its clique are
        named `CODES` ("identity"). False with any matrix, even the identity matrix.
        """
        return all(kind_of(each) == CODES for each in self.asked)

    def along(self, name: str) -> Asked:
        """Return the queries along an attribute of the clique: their name or their matrix."""
        return self.asked[self.clique.index(name)]


def kind_of(asked: Asked) -> object:
    """Return a key that is different for different queries: the name, or the `id` of the matrix.
    The matrix must exist as long as the key is used.

    >>> kind_of("prefix"), kind_of(np.eye(2)) == CODES
    ('prefix', False)
    """
    return asked if isinstance(asked, str) else id(asked)


def kinds_along(sets: Iterable[QuerySet]) -> dict[str, dict[object, Asked]]:
    """Return the different queries that the sets ask along each attribute, by attribute and
    `kind_of`; both in the order in which they first occur.

    >>> kinds_along([QuerySet(("a", "b"), ("prefix", CODES)), QuerySet(("b",), (CODES,))])
    {'a': {'prefix': 'prefix'}, 'b': {'identity': 'identity'}}
    """
    found: dict[str, dict[object, Asked]] = {}
    for each in sets:
        for name, asked in zip(each.clique, each.asked, strict=True):
            found.setdefault(name, {})[kind_of(asked)] = asked
    return found


def query_gram(asked: Asked, n: int) -> Array:
    """Return W'W of the queries W along an attribute of n codes. For queries whose name is in
    `_GRAMS` it is computed without their rows.

    Raises InvalidInput for an unknown name, and for a matrix without a column for each code, of
    zeros, or of entries the sum of whose squares float64 cannot hold.

    >>> query_gram("prefix", 2), query_gram("range", 2)
    (array([[2., 1.], [1., 1.]]), array([[2., 1.], [1., 2.]]))
    """
    if isinstance(asked, str) and asked in _GRAMS:
        return _GRAMS[asked](n)
    rows = query_rows(asked, n)
    return rows.T @ rows


def query_rows(asked: Asked, n: int) -> Array:
    """Return the queries along an attribute of n codes as rows. Raises InvalidInput for an unknown
    name, and for a matrix that `query_gram` refuses.

    >>> query_rows("range", 2)
    array([[1., 0.],
           [1., 1.],
           [0., 1.]])
    """
    if not isinstance(asked, str):
        rows = as_dense(as_matrix(asked, "the matrix of queries"))
        if rows.shape[1] != n:
            raise InvalidInput(
                f"the matrix of queries must have {n} columns, one a code, got shape {rows.shape}"
            )
        with np.errstate(over="ignore"):
            squares, tiny = float(np.square(rows).sum()), np.finfo(float).tiny
        if not tiny <= squares <= 1 / tiny:
            raise InvalidInput(
                "the matrix of queries must have an entry other than 0, and squares of entries "
                f"that float64 can hold; their sum is {squares:.3g}: scale the matrix"
            )
        return rows
    check_known([asked], QUERIES, "unknown queries", "known are")
    return QUERIES[asked](n)


def check_scale(domain: Domain, sets: Sequence[QuerySet]) -> None:
    """Raise InvalidInput for unknown names of queries, for matrices that do not fit their
    attributes, and for a set in which the product of its weight and its matrices' sums of squared
    entries is so large or small that float64 could not hold the square of this product.
    """
    squares = {}
    for name, kinds in kinds_along(sets).items():
        with naming(f"queries along {name!r}"):
            for key, asked in kinds.items():
                if isinstance(asked, str):
                    check_known([asked], QUERIES, "unknown queries", "known are")
                else:
                    squares[key] = float(np.square(query_rows(asked, domain.sizes[name])).sum())
    least = np.finfo(float).tiny ** 0.5
    for each in sets:
        total = each.weight * math.prod(squares.get(kind_of(asked), 1.0) for asked in each.asked)
        if not least <= total <= 1 / least:
            raise InvalidInput(
                f"the queries over {', '.join(each.clique)} have entries whose squares, times the "
                f"weight, sum to {total:.3g}; scale them to between {least:.3g} and {1 / least:.3g}"
            )


def number_of_queries(domain: Domain, each: QuerySet) -> int:
    """Return the number of queries in a set, which are all combinations of the queries along its
    attributes.

    >>> from pgmkit.domain import Domain
    >>> number_of_queries(Domain({"age": 9, "sex": 2}), QuerySet(("age", "sex"), ("range", CODES)))
    90
    """

    def along(n: int, asked: Asked) -> int:
        if isinstance(asked, str) and asked in _NUMBERS:
            return _NUMBERS[asked](n)
        return len(query_rows(asked, n))

    sizes = domain.shape(each.clique)
    return math.prod(along(n, asked) for n, asked in zip(sizes, each.asked, strict=True))


def _ranges(n: int) -> Array:
    low, high = np.triu_indices(n)
    codes = np.arange(n)
    return ((low[:, None] <= codes) & (codes <= high[:, None])).astype(np.float64)


def _circular(n: int) -> Array:
    start, length = np.divmod(np.arange(n * n), n)
    return ((np.arange(n) - start[:, None]) % n <= length[:, None]).astype(np.float64)


def _hierarchy(n: int) -> Array:
    lengths = 2 ** np.arange((n - 1).bit_length() + 1)
    nodes = [np.arange(n) // s == np.arange(-(-n // s))[:, None] for s in lengths]
    return np.vstack(nodes).astype(np.float64)


def _moments(n: int) -> Array:
    return np.vander(np.linspace(-1, 1, n) if n > 1 else np.zeros(1), 3, increasing=True).T


def _distances(n: int) -> Array:
    codes = np.arange(n, dtype=np.float64)
    return np.abs(np.subtract.outer(codes, codes)) if n > 1 else np.ones((1, 1))


def _range_gram(n: int) -> Array:
    codes = np.arange(n, dtype=np.float64)
    return (np.minimum.outer(codes, codes) + 1) * (n - np.maximum.outer(codes, codes))


def _circular_gram(n: int) -> Array:
    """Return for every two codes the number of intervals on the circle that hold both; the whole
    circle counts once for each of its n starts. The two codes cut the circle into arcs of g and n -
    g steps.
    """
    gap = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    return ((n - gap) * (n - gap + 1) + gap * (gap + 1)) / 2.0


QUERIES: dict[str, Callable[[int], Array]] = {
    CODES: np.eye,
    "prefix": np.tri,
    "range": _ranges,
    "circular": _circular,
    "hierarchy": _hierarchy,
    "moments": _moments,
    "distance": _distances,
}
"""The queries along an attribute that have a name, as functions that return their rows for an
attribute of n codes. They are every single code; all codes up to each code (cumulative counts);
every interval of codes; every interval of codes on a circle, such as hours across midnight;
intervals of 1, 2, 4, ... codes, each from a multiple of its length; the number of records, the sum
of the codes and that of their squares, with codes spread evenly from -1 to 1; and for each code b
the sum of the distances |a - b| of all records' codes a. An attribute of one code has the moments
1, 0 and 0, and as its distance the number of records.
"""
_GRAMS: dict[str, Callable[[int], Array]] = {
    CODES: np.eye,
    "range": _range_gram,
    "circular": _circular_gram,
}
"""The Gram matrices, in closed form, of sets of queries that may be too large to write out."""
_NUMBERS: dict[str, Callable[[int], int]] = {
    "range": lambda n: n * (n + 1) // 2,
    "circular": lambda n: n * n,
}
