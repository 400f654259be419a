"""Sets of linear queries to answer well: a matrix an attribute, over the attributes of a clique.

A set stands for all combinations of its attributes' queries (the Kronecker product of the
matrices). Attributes that it does not name are summed away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pgmkit.errors import InvalidInput, did_you_mean
from pgmkit.linear.matrix import as_dense, as_matrix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mechanisms.workload import Workload
    from pgmkit.domain import Clique
    from pgmkit.linear.matrix import MatrixLike

    Array = NDArray[np.float64]

__all__ = ["QUERIES", "Asked", "QuerySet", "query_gram", "query_rows", "query_sets"]

QUERIES = {
    "identity": "every single code",
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


def query_sets(workload: Workload, queries: Mapping[str, Asked]) -> list[QuerySet]:
    """Return one set for each clique of the workload; attributes without an entry are asked code by
    code.

    Raises InvalidInput for attributes that are not in the domain.

    >>> from mechanisms.workload import Workload
    >>> from pgmkit.domain import Domain
    >>> ages = Workload(Domain({"age": 9, "sex": 2}), [("age",), ("sex", "age")])
    >>> [each.asked for each in query_sets(ages, {"age": "range"})]
    [('range',), ('identity', 'range')]
    """
    workload.domain.clique(queries, "queries")
    return [
        QuerySet(clique, tuple(queries.get(name, "identity") for name in clique), weight)
        for clique, weight in zip(workload.cliques, workload.weights, strict=True)
    ]


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


def _unknown(name: str) -> InvalidInput:
    near = did_you_mean(name, QUERIES)
    return InvalidInput(f"queries {name!r} are unknown{near}; known are {', '.join(QUERIES)}")
