"""Factored queries: one small matrix for each attribute (Table 2 of McKenna et al., 2019).

A query over a clique is the Kronecker product of per-attribute matrices r_i x n_i. The building
blocks below make the common ones; any other dense or scipy-sparse matrix serves as well, negative
entries included. Codes run from 0 to n - 1. All blocks are dense float64, and raise ModelTooLarge
if they do not fit into memory: for an attribute of many thousands of values pass a sparse matrix
of your own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pgmkit.domain import Domain, check_domain
from pgmkit.errors import InvalidInput
from pgmkit.linear.matrix import Matrix, MatrixLike, as_matrix, rows_of_identity
from pgmkit.runtime.arguments import any_array, check_unlabelled, check_whole, listed, mapped, shown
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.memory import check_room, counted
from pgmkit.runtime.sizes import CELL_BYTES

__all__ = [
    "FactoredQuery",
    "compress",
    "identity",
    "mean",
    "moments",
    "point",
    "prefix",
    "range_",
    "ranges",
    "subset",
    "total",
]


def identity(n: int) -> Array:
    """Return I, n x n: row a counts the records with code a."""
    return np.eye(_shape(n, n)[0])


def total(n: int) -> Array:
    """Return the row of ones, 1 x n. It counts all records, and the answer keeps the attribute's
    axis, with length 1.
    """
    return np.ones(_shape(1, n))


def point(n: int, j: int) -> Array:
    """Return e_j, 1 x n, which counts the records whose code is j."""
    return subset(n, [j])


def subset(n: int, members: Iterable[int]) -> Array:
    """Return e_S, 1 x n, which counts the records whose code is in ``members``. Raises
    `InvalidInput` for no members, repeated ones, or one that is not a code.

    >>> subset(4, [0, 3])
    array([[1., 0., 0., 1.]])
    """
    shape = _shape(1, n)
    codes = listed(members, "members", "codes")
    for code in codes:
        check_whole(code, "a code in members", 0, n - 1)
    if not codes:
        raise InvalidInput(
            "members is empty, but must have at least one code; name the codes to count"
        )
    if len(set(codes)) < len(codes):
        raise InvalidInput(f"members are {codes!r:.60}, but each code may occur once; drop repeats")
    row = np.zeros(shape)
    row[0, codes] = 1.0
    return row


def range_(n: int, lo: int, hi: int) -> Array:
    """Return a row, 1 x n, that counts the records whose code is in lo..hi, both ends included.
    This function is also named ``pgmkit.queries.range``. Raises `InvalidInput` unless 0 <= lo <= hi
    < n.

    >>> range_(5, 1, 3)
    array([[0., 1., 1., 1., 0.]])
    """
    return ranges(n, [(lo, hi)])


def ranges(n: int, bounds: Iterable[tuple[int, int]]) -> Array:
    """Return one row for each (lo, hi) of ``bounds``, len(bounds) x n, which counts the records
    whose code is in lo..hi, both ends included. Raises `InvalidInput` for no bounds, and unless
    0 <= lo <= hi < n.

    >>> ranges(4, [(0, 1), (1, 3)])
    array([[1., 1., 0., 0.],
           [0., 1., 1., 1.]])
    """
    check_whole(n, "n", 1)
    checked = [_bounds(pair, n) for pair in listed(bounds, "bounds", "pairs (lo, hi)")]
    if not checked:
        raise InvalidInput("bounds is empty, but must have at least one pair (lo, hi); pass some")
    lo, hi = np.array(checked).T[:, :, None]
    codes = np.arange(_shape(len(checked), n)[1])
    return np.asarray((lo <= codes) & (codes <= hi), dtype=np.float64)


def prefix(n: int) -> Array:
    """Return P, n x n, the cumulative distribution: row b counts the records whose code is at most
    b.

    >>> prefix(3) @ [5, 2, 1]
    array([5., 7., 8.])
    """
    return np.tri(_shape(n, n)[0])


def compress(mapping: Mapping[int, int] | Sequence[int], n_out: int | None = None) -> Array:
    """Return R_f, n_out x n: row b counts the records whose code a has ``mapping[a]`` = b.

    ``mapping`` gives a new code for every old one: a sequence of length n, or a dict whose keys are
    exactly 0..n-1. ``n_out`` is the number of new codes, by default the largest of them plus 1; the
    answer for a new code that no code maps to is 0.

    >>> compress([0, 0, 1]) @ [5, 2, 1]
    array([7., 1.])
    """
    if n_out is not None:
        check_whole(n_out, "n_out", 1)
    new = _new_codes(mapping, inf if n_out is None else n_out - 1)
    matrix = np.zeros(_shape(max(new) + 1 if n_out is None else n_out, len(new)))
    matrix[new, np.arange(len(new))] = 1.0
    return matrix


def mean(n: int, values: ArrayLike | None = None) -> Array:
    """Return E, 1 x n, which has the value of each code: its answer is the sum over records of the
    attribute's value, to be divided by the number of records.

    ``values`` are the n numbers that the codes stand for, by default the codes 0..n-1.

    >>> mean(3) @ [5, 2, 1] / (total(3) @ [5, 2, 1])
    array([0.5])
    """
    return moments(n, 1, values)


def moments(n: int, k: int, values: ArrayLike | None = None) -> Array:
    """Return E_k, k x n: row b - 1 has the b-th power of each code's value, b = 1..k, so that its
    answer is the sum of these powers over all records.

    ``values`` are the n numbers that the codes stand for, by default the codes 0..n-1. Raises
    `InvalidInput` if a power is too large for float64.

    >>> moments(3, 2)
    array([[0., 1., 2.],
           [0., 1., 4.]])
    """
    check_whole(k, "k", 1)
    degree, size = _shape(k, n)
    check_unlabelled(values, "values")
    given = any_array(np.arange(size) if values is None else values, "values")
    if given.shape != (size,):
        raise InvalidInput(
            f"values has shape {given.shape}, but must be a vector of length n = {size}; give one "
            "number for each code"
        )
    row, powers = as_matrix(given, "values"), np.arange(1, degree + 1)[:, None]
    with np.errstate(over="ignore"):
        matrix: Array = row**powers
    if not np.isfinite(matrix).all():
        raise InvalidInput(
            f"moments up to k = {k} are too large for float64; lower k or rescale the values"
        )
    return matrix


@dataclass(frozen=True, eq=False, init=False, repr=False)
class FactoredQuery:
    """A query on the joint distribution: a Kronecker product of per-attribute matrices (Definition
    4 of McKenna et al., 2019).

    ``factors`` maps an attribute to its matrix r_i x n_i, dense or scipy-sparse, negative entries
    included; a vector stands for one row. Attributes left out are summed away and leave no axis:
    the answers have the shape (r_1, ..., r_d), axes in the mapping's order, in counts. No factor at
    all asks for the total.

    Arrays have at most 64 axes: the answers of a query over more attributes leave out the axes of
    length 1 (`answer_shape`). The matrices are copied and read-only. Raises `InvalidInput` for an
    attribute that is not a string or a factor that is not a finite matrix.

    >>> query = FactoredQuery({"age": prefix(10), "income": identity(2)})
    >>> query.attributes, query.shape
    (('age', 'income'), (10, 2))
    """

    factors: Mapping[str, Matrix]

    def __init__(self, factors: Mapping[str, MatrixLike]) -> None:
        for attribute in mapped(
            factors, "factors", "attributes to matrices, as {'age': prefix(10)}"
        ):
            if not isinstance(attribute, str):
                raise InvalidInput(
                    f"factors has the attribute {shown(attribute)}, but attributes are strings; "
                    "use the domain's names"
                )
        checked = {a: as_matrix(f, f"the query's factor of {a!r}") for a, f in factors.items()}
        object.__setattr__(self, "factors", MappingProxyType(checked))

    @classmethod
    def marginal(cls, domain: Domain, clique: Iterable[str]) -> FactoredQuery:
        """Return the query for the marginal of ``clique``: the identity on each of its
        attributes.
        """
        check_domain(domain)
        shape = {a: domain.sizes[a] for a in domain.clique(clique)}
        return cls({a: rows_of_identity(np.arange(n), n) for a, n in shape.items()})

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes that have a factor, in the order of the answers' axes."""
        return tuple(self.factors)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tuple (r_1, ..., r_d) of the numbers of rows of the attributes' matrices."""
        return tuple(int(factor.shape[0]) for factor in self.factors.values())

    @property
    def answer_shape(self) -> tuple[int, ...]:
        """The shape of the array of answers: `shape`, without the axes of length 1 if the query has
        more attributes than an array may have axes (64).

        >>> FactoredQuery({"y": prefix(3), "x": total(2)}).answer_shape
        (3, 1)
        >>> wide = {f"x{i}": total(2) for i in np.arange(99)}
        >>> FactoredQuery({"y": prefix(3), **wide}).answer_shape
        (3,)
        """
        shape = self.shape
        return shape if len(shape) <= 64 else tuple(rows for rows in shape if rows > 1)

    def check(self, domain: Domain) -> None:
        """Raise `InvalidInput` for an attribute that ``domain`` does not have, or a matrix whose
        number of columns is not the attribute's size.
        """
        check_domain(domain)
        domain.clique(self.attributes, "the query")
        for attribute, factor in self.factors.items():
            size = domain.sizes[attribute]
            if factor.shape[1] != size:
                raise InvalidInput(
                    f"the query's factor of {attribute!r} has {factor.shape[1]} columns, but must "
                    f"have {size}, one for each code; build it with n = {size}"
                )

    def __repr__(self) -> str:
        shapes = ", ".join(f"{a}: {f.shape[0]}x{f.shape[1]}" for a, f in self.factors.items())
        return f"FactoredQuery({{{shapes}}})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FactoredQuery, (dict(self.factors),)  # a mappingproxy does not pickle


def _new_codes(mapping: Any, most: float) -> list[int]:
    if isinstance(mapping, Mapping):
        codes = np.arange(len(mapping)).tolist()
        if set(mapping) != set(codes):
            raise InvalidInput(
                f"mapping has the keys {list(mapping)!r:.60}, but they must be 0..n-1, all the "
                "codes of the attribute; give every code a new one"
            )
        mapping = [mapping[code] for code in codes]
    check_unlabelled(mapping, "mapping")
    flat = isinstance(mapping, Sequence) or getattr(mapping, "ndim", 0) == 1
    if not flat or isinstance(mapping, str | bytes) or not len(mapping):
        raise InvalidInput(
            f"mapping is {mapping!r:.60}, but must be a dict or a sequence with a new code for "
            "each old one; write [f(a) for a in codes] for a function f"
        )
    for code in mapping:
        check_whole(code, "a new code in mapping", 0, most)
    return list(map(int, mapping))


def _shape(rows: int, n: int) -> tuple[int, int]:
    """Return both numbers as int. Raises InvalidInput unless ``n`` is a whole number above 0, and
    ModelTooLarge if a dense matrix of this shape does not fit into memory.
    """
    check_whole(n, "n", 1)
    rows, n = int(rows), int(n)
    what = f"a dense matrix of {counted(rows)} x {counted(n)} numbers"
    check_room(CELL_BYTES * rows * n, what, remedy="pass a sparse matrix of your own")
    return rows, n


def _bounds(pair: Any, n: int) -> tuple[int, int]:
    try:
        lo, hi = pair
    except (TypeError, ValueError):
        raise InvalidInput(f"a range must be a pair (lo, hi), got {pair!r:.60}") from None
    check_whole(lo, "lo", 0, n - 1)
    check_whole(hi, "hi", lo, n - 1)
    return lo, hi


# This is the public name. It hides the builtin in this module, so no function here may use that.
range = range_
