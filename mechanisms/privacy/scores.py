"""Scores on a grid on which the stated sensitivity holds exactly, not only up to rounding.

Sensitivities are proved in real arithmetic. In floating point a count of 1 beside an estimate of
2^60 is lost or doubled by rounding. Here estimates, penalties and shares are rounded to whole
numbers of a unit before a count is compared with them, all further arithmetic is on integers, and
scores are returned as whole numbers of 2^-11 counts, fewer than 2^53 of them, which float64 holds
exactly. If a product has more digits than that, it is rounded down: if integers differ by at
most a whole number S of coarser units, so do their floors in these units (a <= b + S gives floor(a)
<= floor(b + S) = floor(b) + S). Rounding to the nearest even number does not have this property.

Data sets hold fewer than 2^40 rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from mechanisms.privacy.integer_matrix import ENTRY_BITS, GridMatrix
from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import float_array, instance, listed
from pgmkit.runtime.arrays import Array

Integers = NDArray[np.int64]
Counts = NDArray[np.integer[Any]]
Tables = Mapping[Clique, ArrayLike] | Iterable[tuple[Clique, ArrayLike]]
Queries = Mapping[Clique, Sequence[GridMatrix]]

LARGEST = 2.0**40
"""The bound of estimates and penalties, in counts: some 10^12."""
_COUNT_BITS = int(math.log2(LARGEST))
_BITS = np.finfo(np.float64).nmant - (_COUNT_BITS + 1)
"""The binary digits after the point that float64 holds for numbers up to twice `LARGEST`: 11."""
_SHARE_BITS = np.iinfo(np.int64).bits - 2 - _COUNT_BITS
"""The binary digits of a share for which its product with `LARGEST` fits into 64 bits: 22."""


def estimate_of(
    clique: Clique, estimates: Mapping[Clique, ArrayLike], shape: tuple[int, ...]
) -> Array:
    """Return the table that `estimates` has for the clique, in counts.

    Raises InvalidInput if there is none, if it does not have this shape, for values that are not
    finite, and for absolute values that add up to more than 2^40.
    """
    if clique not in estimates:
        raise InvalidInput(f"estimates has no table for the clique {clique!r}")
    name = f"the estimate of {clique!r}"
    table = float_array(estimates[clique], name)
    if table.shape != shape:
        raise InvalidInput(f"{name} must have the marginal's shape, {shape}; got {table.shape}")
    with np.errstate(over="ignore"):
        size = float(np.abs(table).sum())
    if not math.isfinite(size) and not np.isfinite(table).all():
        raise InvalidInput(f"{name} has values that are not finite")
    _check_size(f"{name}, in absolute values,", size)
    return table


def row_of(
    clique: Clique, estimates: Mapping[Clique, ArrayLike | csr_array], shape: tuple[int, ...]
) -> csr_array:
    """Return the clique's estimate as one sparse row of its cells, in C order, in counts. Raises
    InvalidInput if there is none, for another number of cells, for values that are not finite, and
    for absolute values that add up to more than 2^40.
    """
    row = estimates.get(clique)
    if not isinstance(row, csr_array):
        return csr_array(estimate_of(clique, estimates, shape).reshape(1, -1))
    if row.shape != (1, math.prod(shape)):
        raise InvalidInput(
            f"the estimate of {clique!r} is a sparse array of shape {row.shape}; it must have one "
            f"row of {math.prod(shape)} cells"
        )
    # The stored values are checked as the values of a dense table are.
    estimate_of(clique, {clique: row.data}, row.data.shape)
    once = row.copy()
    once.sum_duplicates()
    return once


def nonzero_differences(counts: Counts, row: csr_array) -> tuple[Integers, Integers]:
    """Return the places where a count or an estimate is not zero, in rising order, and count -
    estimate at these places, in units of 2^-11 counts. `row`: the estimates as `row_of` returns
    them.

    >>> from scipy.sparse import csr_array
    >>> places, units = nonzero_differences(np.array([0, 3, 0, 1]), csr_array([[0.5, 0, 0, 1.0]]))
    >>> places.tolist(), units.tolist()
    ([0, 1, 3], [-1024, 6144, 0])
    """
    flat = counts.reshape(-1)
    places = np.union1d(np.flatnonzero(flat), row.indices).astype(np.int64)
    known = np.zeros_like(places)
    known[np.searchsorted(places, row.indices)] = on_grid("estimates", row.data)
    return places, cell_differences(flat[places], known)


def distances(
    cliques: Sequence[Clique],
    estimates: Tables,
    counts: Mapping[Clique, Counts],
    queries: Queries | None = None,
) -> list[int]:
    """Return the distance between the counted and the estimated table of each clique, in units of
    2^-11 counts; its sensitivity is exactly that of the counts.

    The distance is ||counts - estimate||_1 or, where `queries` has matrices for the clique, that of
    their answers (`asked_distance`). The tables of an iterable of pairs are compared one by one in
    the order in which they come, so only one of them need be in memory. Raises InvalidInput for a
    clique without an estimate or with one of another shape, for values that are not finite, and for
    absolute values that add up to more than 2^40.

    >>> distances([("a",)], {("a",): np.array([1.0, 0.5])}, {("a",): np.array([1, 1])})
    [1024]
    """
    if isinstance(estimates, Mapping):
        estimates = [(clique, estimates[clique]) for clique in cliques if clique in estimates]
    wanted = frozenset(cliques)
    found: dict[Clique, int] = {}
    for clique, table in estimates:
        if clique in wanted:
            known = estimate_of(clique, {clique: table}, counts[clique].shape)
            away = cell_differences(counts[clique], on_grid("estimates", known))
            given = queries.get(clique, ()) if queries else ()
            asked = listed(given, "the queries of a clique", "query matrices")
            found[clique] = asked_distance(away, asked) if asked else int(np.abs(away).sum())
    for clique in (each for each in cliques if each not in found):
        estimate_of(clique, {}, ())  # it raises InvalidInput
    return [found[clique] for clique in cliques]


def asked_distance(away: Integers, asked: Sequence[GridMatrix]) -> int:
    """Return the mean, over the matrices Q in `asked`, of ||Q away||_1 / |Q|, where `away` is
    counts - estimate in units of 2^-11 counts and |Q| is the largest L1 norm of a column of Q.

    One more count changes the L1 norm of the answers by at most |Q|, and quotients are rounded
    down, as scores are. So the distance has exactly the sensitivity of the counts.

    >>> prefixes = GridMatrix((np.tri(2, dtype=np.int64),), 1.0)
    >>> asked_distance(2048 * np.array([2, -2]), [prefixes])
    2048
    """
    flat, given = away.reshape(-1), [instance(each, GridMatrix, "a query matrix") for each in asked]
    norms = [sum(np.abs(each.answers(flat)).tolist()) // each.l1(differ=False) for each in given]
    return sum(norms) // len(norms)


def one_each(name: str, values: ArrayLike | None, default: float, length: int) -> Array:
    """Return `values` as an array of `length` finite numbers, one for each candidate; for None each
    is `default`. Raises InvalidInput for another length and for values, or a default, that are not
    finite numbers.
    """
    array = np.full(length, default) if values is None else float_array(values, name)
    if array.shape != (length,) or not np.isfinite(array).all():
        raise InvalidInput(
            f"{name} must be {length} finite numbers, one a candidate; got shape {array.shape}"
        )
    return array


def on_grid(name: str, values: Array) -> Integers:
    """Return numbers in counts as whole numbers of 2^-11 counts. Raises InvalidInput if one is
    above 2^40 in absolute value; `name` says in its message what the numbers are.

    >>> on_grid("the estimate", np.array([1.0, 0.25])).tolist()
    [2048, 512]
    """
    _check_size(f"the largest of {name}", float(np.abs(values).max(initial=0)))
    return np.rint(np.ldexp(values, _BITS)).astype(np.int64)


def _check_size(name: str, size: float) -> None:
    if size > LARGEST:
        raise InvalidInput(
            f"{name} comes to {size:.6g}; at most 2^40 (about 1.1e12) counts can be compared with "
            "data exactly: give counts of a data set's size"
        )


def in_counts(units: Integers) -> Array:
    """Return whole numbers of 2^-11 counts as counts; exact below 2^53 units."""
    return np.ldexp(units.astype(np.float64), -_BITS)


def cell_differences(counts: Counts, grid: Integers) -> Integers:
    """Return count - estimate of every cell, in units of 2^-11 counts; one more record in a cell
    adds exactly 2^11 units there. `grid`: the estimates as `on_grid` returns them.
    """
    return np.left_shift(counts, _BITS, dtype=np.int64) - grid


def weighted_scores(distances: Sequence[int], penalties: Integers, weights: Array) -> Array:
    """Return weight / (largest weight) * (distance - penalty) for each candidate, in counts,
    rounded down to a multiple of 2^-11. Distances and penalties are in units of 2^-11 counts.

    The fractions of the largest weight are rounded to 30 bits and lie between 2^-30 and 1. Scores
    are rounded down to units, so a score changes by at most as much as its distance.

    >>> weighted_scores([2048, 4096], np.array([0, 2048]), np.array([1.0, 4.0])).tolist()
    [0.25, 1.0]
    """
    one = 1 << ENTRY_BITS
    fractions = np.maximum(1, np.rint(weights / weights.max() * one)).astype(np.int64)
    parts = zip(fractions.tolist(), distances, penalties.tolist(), strict=True)
    found = [(part * (distance - penalty)) >> ENTRY_BITS for part, distance, penalty in parts]
    return in_counts(np.array(found, dtype=np.int64))


def share_score(
    counts: Mapping[Clique, Integers], shares: Mapping[Clique, Array], rows: int
) -> float:
    """Return minus the largest |count - rows * share| of all cells of all tables, in counts.

    `counts`, `shares`: the tables and their estimates in 0..1, by clique. `rows`: the number of
    rows of the data. Shares are rounded to 22 bits. One more row adds 1 - share to the
    difference of its own cell and -share to that of every other cell, so the score changes by at
    most 1.

    >>> share_score({("a",): np.array([3, 1])}, {("a",): np.array([0.5, 0.5])}, 4)
    -1.0
    """
    largest = 0
    for clique, share in shares.items():
        expected = rows * np.rint(np.ldexp(share, _SHARE_BITS)).astype(np.int64)
        largest = max(largest, int(np.abs((counts[clique] << _SHARE_BITS) - expected).max()))
    return float(in_counts(np.array([(-largest) >> (_SHARE_BITS - _BITS)]))[0])
