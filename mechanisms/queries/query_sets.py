"""Sets of linear queries to answer well: a matrix an attribute, over the attributes of a clique.

A set stands for all combinations of its attributes' queries (the Kronecker product of the
matrices). Attributes that it does not name are summed away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pgmkit.errors import InvalidInput, did_you_mean
from pgmkit.linear.matrix import as_dense, as_matrix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgmkit.domain import Clique, Domain
    from pgmkit.linear.matrix import MatrixLike

    Array = NDArray[np.float64]

__all__ = [
    "CODES",
    "QUERIES",
    "Asked",
    "QuerySet",
    "kind_of",
    "number_of_queries",
    "query_gram",
    "query_rows",
]

CODES = "identity"
"""What is asked along an attribute unless something else is said: every single code."""

QUERIES = {
    CODES: "every single code",
    "prefix": "all codes up to each code (cumulative counts)",
    "range": "every interval of codes",
    "circular": "every interval of codes on a circle, such as hours across midnight",
}
"""The queries along an attribute that have a name."""

Asked: TypeAlias = "str | MatrixLike"
"""What is asked along an attribute: a name of `QUERIES`, or a matrix with a column a code."""


@dataclass(frozen=True)
class QuerySet:
    """All combinations of what is asked along the attributes of `clique`, each of this weight.

    `asked` is in the clique's order. Errors are summed over the queries of all sets, each set's
    times its weight.

    >>> QuerySet(("age", "sex"), ("prefix", "identity"))
    QuerySet(clique=('age', 'sex'), asked=('prefix', 'identity'), weight=1.0)
    """

    clique: Clique
    asked: tuple[Asked, ...]
    weight: float = 1.0

    @property
    def plain(self) -> bool:
        """True if every code is asked along all attributes."""
        return all(kind_of(each) == CODES for each in self.asked)

    def along(self, name: str) -> Asked:
        """Return what is asked along an attribute of the clique."""
        return self.asked[self.clique.index(name)]


def kind_of(asked: Asked) -> object:
    """Return a key of what is asked: the name, or the identity of the matrix, which must be kept as
    long as the key is used.

    >>> kind_of("prefix"), kind_of(np.eye(2)) == CODES
    ('prefix', False)
    """
    return asked if isinstance(asked, str) else id(asked)


def query_gram(asked: Asked, n: int) -> Array:
    """Return W'W of the queries W along an attribute of n codes; named ones have a closed form.

    Raises InvalidInput for an unknown name, and a matrix without a column for each code.

    >>> query_gram("prefix", 2), query_gram("range", 2)
    (array([[2., 1.], [1., 1.]]), array([[2., 1.], [1., 2.]]))
    """
    codes = np.arange(n)
    if not isinstance(asked, str):
        rows = query_rows(asked, n)
        return rows.T @ rows
    if asked == "identity":
        return np.eye(n)
    if asked == "prefix":
        return n - np.maximum.outer(codes, codes).astype(np.float64)
    if asked == "range":
        before = np.minimum.outer(codes, codes) + 1
        return before * (n - np.maximum.outer(codes, codes)).astype(np.float64)
    if asked == "circular":  # two codes cut the circle into arcs of g and n - g steps
        gap = np.abs(np.subtract.outer(codes, codes))
        return ((n - gap) * (n - gap + 1) + gap * (gap + 1)) / 2.0
    raise _unknown(asked)


def query_rows(asked: Asked, n: int) -> Array:
    """Return the queries themselves as rows. Raises InvalidInput as `query_gram`.

    >>> query_rows("range", 2)
    array([[1., 0.],
           [1., 1.],
           [0., 1.]])
    """
    if not isinstance(asked, str):
        rows = as_dense(as_matrix(asked, "queries"))
        if rows.shape[1] != n:
            raise InvalidInput(
                f"queries along an attribute of {n} codes must have {n} columns, got {rows.shape}"
            )
        return rows
    if asked not in QUERIES:
        raise _unknown(asked)
    codes = np.arange(n)
    if asked == "identity":
        return np.eye(n)
    if asked == "prefix":
        return np.tri(n)
    if asked == "range":
        low, high = np.triu_indices(n)
        return ((low[:, None] <= codes) & (codes <= high[:, None])).astype(np.float64)
    start, length = np.divmod(np.arange(n * n), n)
    return ((codes - start[:, None]) % n <= length[:, None]).astype(np.float64)


def number_of_queries(domain: Domain, each: QuerySet) -> int:
    """Return the number of queries in a set: of all combinations along its attributes.

    >>> from pgmkit.domain import Domain
    >>> number_of_queries(Domain({"age": 9, "sex": 2}), QuerySet(("age", "sex"), ("range", CODES)))
    90
    """

    def along(n: int, asked: Asked) -> int:
        if not isinstance(asked, str):
            return len(query_rows(asked, n))
        return {"range": n * (n + 1) // 2, "circular": n * n}.get(asked, n)

    sizes = domain.shape(each.clique)
    return math.prod(along(n, asked) for n, asked in zip(sizes, each.asked, strict=True))


def _unknown(name: str) -> InvalidInput:
    near = did_you_mean(name, QUERIES)
    return InvalidInput(f"queries {name!r} are unknown{near}; known are {', '.join(QUERIES)}")
