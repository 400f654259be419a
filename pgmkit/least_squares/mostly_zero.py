"""Consistent tables of which most cells are zero, over a growing set of their cells.

The problem and its dual are those of `consistency`. Where a table has many more cells than records,
nearly all of them are zero in the optimum, x = max(0, y + s^2 B'l), and a cell at zero adds nothing
to the dual. So the dual is minimised over the cells that are kept, first those which a table alone
would have above zero if there were twice as many records. Then every table is gone over once, and
the cells which the multipliers l raise above zero are kept too. When there are none, and the limit
of the next paragraph has stopped no multiplier, the multipliers solve the whole problem, since the
conditions of its optimum hold in all cells.

Kept cells alone may have no tables that agree, and then no finite multipliers are best. So in each
turn a multiplier moves the cells of a table by a standard deviation at most, and by twice as much
in each later turn. The noisy tables and the solution are the only arrays of the tables' size,
unless most cells are above zero.

The search ends. The problem over all cells has a solution with finite multipliers, since some
tables agree (those of independent attributes). So if no finite multipliers are best for the kept
cells, the growing multipliers raise further cells above zero, which are then kept. The limit on
the multipliers doubles, so a few tens of turns suffice; after ``MOST_ROUNDS`` turns all cells are
kept and the multipliers have no limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.errors import NotCertified, warn
from pgmkit.least_squares.conjugate_gradients import solution
from pgmkit.least_squares.consistency import agreeing
from pgmkit.least_squares.sufficient_statistics import average_tables
from pgmkit.linear.axes import spread
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ITERATIONS, MOST_ROUNDS, SLIGHT, SOLVED, SUFFICIENT
from pgmkit.runtime.precision import CLOSE
from pgmkit.runtime.sizes import CELL_BYTES

_Places = NDArray[np.intp]
_Chosen = tuple[int, list[_Places]]
"""Some kept cells of a table: their number, and for each agreement the row of each cell, counted
from the agreement's first row."""
_Agreement = tuple[Clique, slice, float]
"""Attributes that a table shares with others, the rows of their cells, and the sign of the table in
these rows."""


def nonnegative_tables(
    domain: Domain, measurements: Sequence[Measurement], total: float
) -> dict[Clique, Array]:
    """Return nonnegative tables, in counts, by clique, that each sum to ``total`` and agree on
    shared attributes: those nearest to the measured tables, of which there must be at least one.

    The tables agree to 0.01 counts or, if that is more, to half of the digits of the total. Warns
    of NotCertified if rounding keeps them further apart, as where standard deviations differ by a
    factor of a billion.

    >>> y = [Measurement(("a",), [3.0, -1.0], 1.0)]
    >>> nonnegative_tables(Domain({"a": 2}), y, total=2.0)[("a",)].round(6)
    array([2., 0.])
    """
    averages, _ = average_tables(domain, measurements, [m.values for m in measurements])
    noisy = [table for table, _ in averages]
    del averages  # which hold the values of some tables once more
    parts, rows = agreeing(domain, [table.clique for table in noisy])
    shared: list[list[_Agreement]] = [[] for _ in noisy]
    for place, names, first, sign in parts:
        shared[place].append((names, slice(first, first + domain.size(names)), sign))
    tables = [
        _Kept(domain, table, each, rows + place, total)
        for place, (table, each) in enumerate(zip(noisy, shared, strict=True))
    ]
    multipliers = np.zeros(rows + len(tables))
    for table in tables:
        multipliers[table.row] = -table.threshold / table.variance
    variance = _largest_variance(tables, len(multipliers))
    reach, damping = variance**-0.5, SOLVED * variance
    for _ in range(MOST_ROUNDS):
        multipliers, held = best_multipliers(tables, multipliers, reach, damping, total)
        raised = sum([table.keep_raised(multipliers) for table in tables])
        if not held and not raised:
            break
        reach = 2 * reach
    else:
        for table in tables:
            table.keep(np.arange(table.noisy.size))
        reach = np.full_like(reach, np.inf)
        multipliers, _ = best_multipliers(tables, multipliers, reach, damping, total)
    apart = np.linalg.norm(_negative_dual(tables, multipliers, total)[1], np.inf)
    if not apart <= max(SLIGHT, CLOSE * total):
        warn(
            f"the nonnegative tables miss their total, or one another on shared attributes, by up "
            f"to {apart:.3g} counts; look for measurements whose stddev cannot be right",
            NotCertified,
            stacklevel=2,
        )
    return {table.clique: table.whole(multipliers) for table in tables}


def nonnegative_bytes(domain: Domain, cliques: Sequence[Clique]) -> int:
    """Return the most bytes that `nonnegative_tables` holds at once for tables over ``cliques``:
    what it holds if every cell is above zero.

    Kept are a cell's place, its noisy value and its row in each agreement, which is copied for
    cells above zero; and the noisy values of tables whose axes are not in the domain's order.
    Beside these there are the solution, with two temporary arrays of the largest table, and fifteen
    vectors over the constraints, a third of them of the conjugate gradients; or at the start an
    index along each axis of one table.

    >>> nonnegative_bytes(Domain({"a": 2, "b": 3}), [("a",), ("b",)])
    408
    """
    sizes = [domain.size(clique) for clique in cliques]
    parts, constraints = agreeing(domain, cliques)
    rows = sum(sizes[place] for place, *_ in parts)
    searched = sum(sizes) + rows + 2 * max(sizes) + 15 * (constraints + len(cliques))
    started = max(domain.size(clique) * len(clique) for clique in cliques)
    turned = sum(domain.size(clique) for clique in cliques if clique != domain.ordered(clique))
    return CELL_BYTES * (2 * sum(sizes) + turned + rows + max(searched, started))


def _largest_variance(tables: Sequence[_Kept], rows: int) -> Array:
    """Return, for each row of the constraints, the largest variance of the tables in it."""
    found = np.zeros(rows)
    for table in tables:
        found[table.row] = table.variance
        for _, part, _ in table.shared:
            found[part] = np.maximum(found[part], table.variance)
    return found


def best_multipliers(
    tables: Sequence[_Kept], multipliers: Array, reach: Array, damping: Array, total: float
) -> tuple[Array, bool]:
    """Return the multipliers within ``reach`` of the given ones that minimise minus the dual over
    the kept cells, and whether ``reach`` ended the search. The search takes Newton's steps, since
    the dual is quadratic while the same cells are above zero.
    """
    start = multipliers
    value, violated = _negative_dual(tables, multipliers, total)
    for _ in range(MOST_ROUNDS):
        if np.linalg.norm(violated, np.inf) <= SLIGHT:  # a hundredth of a record
            break
        step = _newton(tables, multipliers, violated, damping)
        slope = violated @ step
        used = np.abs(step) / (reach - np.sign(step) * (multipliers - start))
        most = 1 / max(1.0, used.max())
        share = most
        while share > SUFFICIENT * most:
            found, gradient = _negative_dual(tables, multipliers + share * step, total)
            if found <= value + SUFFICIENT * share * slope:
                break
            share /= 2
        else:
            break
        multipliers, value, violated = multipliers + share * step, found, gradient
        if share == most < 1:
            return multipliers, True
    return multipliers, False


def _negative_dual(
    tables: Sequence[_Kept], multipliers: Array, total: float
) -> tuple[float, Array]:
    """Return minus the dual objective over the kept cells, and its gradient by the multipliers."""
    violated, value = np.zeros_like(multipliers), 0.0
    for table in tables:
        x = table.of_kept(multipliers)
        violated[table.row] -= total
        above = np.flatnonzero(x)
        table.add(x[above], table.chosen(above), violated)
        x -= table.values
        value += float(x @ x) / table.variance
    return float(multipliers @ violated) - value / 2, violated


def _newton(tables: Sequence[_Kept], multipliers: Array, violated: Array, damping: Array) -> Array:
    """Return Newton's step, by conjugate gradients, from the gradient ``violated``. Constraints of
    which no kept cell is above zero have no curvature; so every one gets its ``damping``.
    """
    diagonal = damping.copy()
    # The kept cells that are above zero give the dual its curvature.
    above = [table.chosen(np.flatnonzero(table.of_kept(multipliers))) for table in tables]
    for table, chosen in zip(tables, above, strict=True):
        table.add(np.full(chosen[0], table.variance), chosen, diagonal, squared=True)

    def curved(direction: Array) -> Array:
        found = damping * direction
        for table, chosen in zip(tables, above, strict=True):
            x = table.spread(direction, chosen)
            x *= table.variance
            table.add(x, chosen, found)
        return found

    return solution(curved, -violated, diagonal, SLIGHT, MOST_ITERATIONS)


class _Kept:
    """A noisy table, and those of its cells that the search goes over.

    ``row``: the index, among the multipliers, of the constraint on the table's sum; ``shared``: its
    agreements with other tables; ``threshold``: the number to subtract from each cell so that the
    positive parts sum to ``total``.
    """

    def __init__(
        self,
        domain: Domain,
        noisy: Measurement,
        shared: Sequence[_Agreement],
        row: int,
        total: float,
    ) -> None:
        self.clique, self.variance, self.row = noisy.clique, noisy.stddev**2, row
        self._domain, self.noisy, self.shared = domain, noisy.values, shared
        self.threshold = _threshold(noisy.values, total)
        self.keep(np.flatnonzero(noisy.values > _threshold(noisy.values, 2 * total)))

    def keep(self, cells: _Places) -> None:
        """Make ``cells``, places in the flat table, the kept cells."""
        self.cells, self.values = cells, self.noisy[cells]
        places = np.unravel_index(cells, self._domain.shape(self.clique))
        codes = dict(zip(self.clique, places, strict=True))
        rows = [
            np.ravel_multi_index([codes[name] for name in names], self._domain.shape(names))
            for names, *_ in self.shared
        ]
        self.kept: _Chosen = len(cells), rows

    def chosen(self, cells: _Places) -> _Chosen:
        """Return those of the kept cells whose places in the list of kept cells are ``cells``."""
        return len(cells), [rows[cells] for rows in self.kept[1]]

    def of_kept(self, multipliers: Array) -> Array:
        """Return the kept cells, in counts, of the nonnegative table that minimises the Lagrangian
        with these multipliers.
        """
        x = self.spread(multipliers, self.kept)
        x *= self.variance
        x += self.values
        return np.maximum(x, 0.0, out=x)

    def spread(self, multipliers: Array, chosen: _Chosen) -> Array:
        """Return for each of the chosen cells the sum of the multipliers of its rows, each times
        the sign that the table has in the row.
        """
        count, rows = chosen
        x = np.full(count, multipliers[self.row])
        for (_, part, sign), places in zip(self.shared, rows, strict=True):
            x += (sign * multipliers[part])[places]
        return x

    def add(self, x: Array, chosen: _Chosen, sums: Array, *, squared: bool = False) -> None:
        """Add each entry of ``x``, one for each chosen cell, to the entries of ``sums`` for the
        cell's rows: times the sign that the table has in the row or, if ``squared``, unsigned.
        """
        sums[self.row] += x.sum()
        for (_, part, sign), places in zip(self.shared, chosen[1], strict=True):
            added = np.bincount(places, x, part.stop - part.start)
            sums[part] += added if squared else sign * added

    def whole(self, multipliers: Array) -> Array:
        """Return the nonnegative table, in counts, that minimises the Lagrangian with these
        multipliers.
        """
        x = np.full(self._domain.shape(self.clique), multipliers[self.row])
        for names, part, sign in self.shared:
            own = multipliers[part].reshape(self._domain.shape(names))
            x += sign * spread(self.clique, names, own)
        x *= self.variance
        x += self.noisy.reshape(x.shape)
        return np.maximum(x, 0.0, out=x)

    def keep_raised(self, multipliers: Array) -> int:
        """Add the cells that the multipliers raise above zero to the kept ones. Return the number
        of added cells.
        """
        raised = self.whole(multipliers).reshape(-1) > 0
        raised[self.cells] = False
        found = np.flatnonzero(raised)
        if len(found):
            self.keep(np.union1d(self.cells, found))
        return len(found)


def _threshold(values: Array, total: float) -> float:
    """Return t such that the positive parts of ``values`` - t sum to ``total``: the mean excess of
    all values, then of those above it, until none is below (Michelot, 1986).
    """
    while True:
        level = (values.sum() - total) / len(values)
        above = values[values > level]
        if len(above) == len(values):
            return level
        values = above
