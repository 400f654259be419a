"""Records whose tables of pairs are near given tables: drawn records, with some codes replaced.

Records drawn from a model differ from its tables as any sample does, by about the square root of
each count, and that is often more than the error of the tables themselves. Here some records get
another code in one column at a time, if that brings the tables of all pairs together nearer to the
given ones. With C the records' counts and T the given tables, the descent is on

    sum over pairs, over cells of (C - T)^2 / sqrt(T + 1),

and what a record's new code gains is a sum of one number for each other column, looked up by the
record's code in that column.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgmkit.domain import Clique
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.arguments import Rng, generator
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.iterations import PATIENCE
from pgmkit.runtime.precision import SUM_ROUNDING
from pgmkit.runtime.sizes import BLOCK_CELLS, DENSE_ROWS, TABLE_CELLS
from pgmkit.runtime.threads import one_thread

Codes = NDArray[np.int64]

LARGEST_WIDTH = DENSE_ROWS
"""The most codes, of all columns together, for which records are fitted: tables take the square of
it.
"""
_ENOUGH = 0.003
"""The gain of a sweep, as a share of the remaining objective, below which the descent ends. Records
from models of `mixture` at epsilon 10 then have errors of pairs of 0.0022 on CPS1988, as the model
itself has, 0.0192 on Wage and 0.0035 on Arrests. With 0.01 here, and at most 25 sweeps, the errors
are 0.0025, 0.0198 and 0.0036.
"""
_LOOKED_AT = 10_000
"""The most records that one sweep considers for one column."""
_LOOKUPS = 32 * TABLE_CELLS
"""The most lookups of one sweep (records considered for a column, times the number of columns,
times that of all codes), which take some tenths of a second. For 100 columns, 1,000 records bring
nine tenths of the gain of 10,000, in an eighth of the time.
"""
_ALL_LOOKUPS = PATIENCE * _LOOKUPS
"""The most lookups of all sweeps together: the more columns and codes, the fewer sweeps, since
models of wide tables are less accurate anyway.
"""
_FORBIDDEN = 1 / SUM_ROUNDING
"""The loss assigned to a code that a table rules out, larger than any sum of gains."""


def fit_records(
    records: Dataset, tables: Mapping[Clique, ArrayLike], *, rng: Rng = None
) -> Dataset:
    """Return the records with some codes replaced, so that pairs of columns are near the tables.

    `tables` are tables of pairs of attributes, in counts or fractions; each is scaled to the number
    of records. No record gets two codes whose cell in a table is 0, unless it held such a pair
    already. Without tables the records themselves are returned. Rows keep their places.

    The caller sees to finite entries of at least 0 with a total above 0, and to at most
    `LARGEST_WIDTH` codes of all columns together, as memory grows with their square; neither is
    checked here. `rng`: a seed, a numpy Generator, or None for a fresh one.

    >>> from pgmkit.domain import Domain
    >>> domain = Domain({"a": 2, "b": 2})
    >>> rng = np.random.default_rng(0)
    >>> drawn = Dataset(domain, {"a": rng.integers(0, 2, 100), "b": rng.integers(0, 2, 100)})
    >>> wanted = np.array([[40, 10], [10, 40]])
    >>> found = fit_records(drawn, {("a", "b"): wanted}, rng=0).marginal(("a", "b"))
    >>> bool(abs(found - wanted).max() <= 1)
    True
    """
    if not tables:
        return records
    random, fit = generator(rng), _Fit(records, tables)
    steps = np.ones(len(fit.sizes))
    left = fit.objective()
    for _ in range(fit.sweeps):
        for j in random.permutation(len(steps)):
            steps[j] = fit.exchange(int(j), steps[j], random)
        before, left = left, fit.objective()
        if left >= before * (1 - _ENOUGH):
            break
    codes = fit.places - fit.ends[:-1]
    return Dataset(records.domain, {name: codes[:, j] for j, name in enumerate(records.domain)})


class _Fit:
    """The records as an array ``places`` of rows x columns, in which all columns' codes are
    numbered in one sequence: column j has the numbers from ``ends[j]`` to before ``ends[j + 1]``.

    Three matrices have a cell for each pair of codes: ``away`` is the number of records that hold
    both codes minus the number that their table, scaled to all records, asks for; ``weights`` are
    those of the objective; both are 0 where no table covers the pair. ``barred`` marks the cells
    where a table is 0.
    """

    def __init__(self, records: Dataset, tables: Mapping[Clique, ArrayLike]) -> None:
        names, self.sizes = records.domain.attributes, records.domain.shape()
        self.ends = np.cumsum([0, *self.sizes])
        shifted = [
            np.asarray(records.columns[name]).astype(np.int64) + start
            for name, start in zip(names, self.ends[:-1], strict=True)
        ]
        self.places = np.stack(shifted, axis=1)
        width = int(self.ends[-1])
        counts, wanted = np.zeros((2, width, width))
        asked = np.zeros((width, width), dtype=np.bool_)
        own = {name: self.of(j) for j, name in enumerate(names)}
        for given, values in tables.items():
            a, b = (own[name] for name in records.domain.clique(given, "table"))
            table = np.asarray(values, dtype=np.float64)
            scaled = table * (len(records) / table.sum())
            wanted[a, b], wanted[b, a] = scaled, scaled.T
            asked[a, b] = asked[b, a] = True
        for (one, other), held in records.marginals(combinations(names, 2)).items():
            counts[own[one], own[other]], counts[own[other], own[one]] = held, held.T
        self.weights = asked / np.sqrt(wanted + 1)
        self.barred = asked & (wanted == 0)
        self.away = np.where(asked, counts - wanted, 0.0)

    def of(self, j: int) -> slice:
        return slice(int(self.ends[j]), int(self.ends[j + 1]))

    def objective(self) -> float:
        return float((self.weights * self.away**2).sum())

    @property
    def sweeps(self) -> int:
        """The largest number of sweeps over the columns that make at most `_ALL_LOOKUPS` lookups
        together.
        """
        cells = len(self.sizes) * int(self.ends[-1])
        return _ALL_LOOKUPS // min(min(len(self.places), _LOOKED_AT) * cells, _LOOKUPS)

    def counted(self, rows: Codes, j: int, codes: Codes) -> Array:
        """Return how often each code (rows of the result) would occur in the records of the indices
        ``rows`` together with each code of column j (columns of the result) if these records had
        ``codes`` in column j. The rows for the codes of column j itself are 0.
        """
        size, width = self.sizes[j], int(self.ends[-1])
        cells = self.places[rows] * size + (codes - self.ends[j])[:, None]
        counted = np.bincount(cells.reshape(-1), minlength=width * size).reshape(width, size)
        counted[self.of(j)] = 0
        return counted.astype(np.float64)

    def exchange(self, j: int, step: float, random: np.random.Generator) -> float:
        """Give some records another code of column j, update `away`, and return the `step` for the
        next call with this column.

        For each of some records, drawn at random, the best other code is found; the record gains if
        this code lowers the objective. The share `step` of the gaining records is changed, those
        with the largest gains first. A gain is computed as if only this record changed, so many
        changes together can go too far; then fewer or none are made. The returned share is the one
        for which the objective would have been least, but at most twice the share of the gaining
        records that was changed in the end and at least one record of those looked at; it is `step`
        if no record gains.
        """
        size, rows = self.sizes[j], len(self.places)
        lookups = len(self.sizes) * int(self.ends[-1])
        most = min(rows, _LOOKED_AT, max(1, TABLE_CELLS // size), max(1, _LOOKUPS // lookups))
        looked = random.choice(rows, most, replace=False) if most < rows else np.arange(rows)
        better, gains = self.better(j, looked)
        gaining = np.flatnonzero(gains > 0)
        if not len(gaining):
            return step
        order = gaining[np.argsort(-gains[gaining], kind="stable")]
        mine = self.of(j)
        weight, off = self.weights[:, mine], self.away[:, mine]
        taken, length = max(1, round(step * len(order))), 0.0
        while taken:
            moved, codes = looked[order[:taken]], better[order[:taken]]
            change = self.counted(moved, j, codes)
            change -= self.counted(moved, j, self.places[moved, j])
            change[weight == 0] = 0.0
            # The objective is least at this multiple of the change.
            length = -float((weight * off * change).sum() / (weight * change**2).sum())
            if length > 0.5:  # the objective falls
                self.places[moved, j] = codes
                self.away[:, mine] = off + change
                self.away[mine] = self.away[:, mine].T
                break
            taken = int(taken * min(max(length, 0.2), 0.8))
        return float(np.clip(taken / len(order) * min(length, 2.0), 1 / most, 1.0))

    def better(self, j: int, looked: Codes) -> tuple[Codes, Array]:
        """Return for each record of ``looked`` the best other code of column j, numbered as in
        ``places``, and the decrease of the objective if that record alone changes to it, where each
        pair that a table rules out adds `_FORBIDDEN` to the objective. For a column of one code the
        decrease is minus infinity.
        """
        mine = self.of(j)
        weight = self.weights[:, mine]
        pulls = 2 * weight * self.away[:, mine] + np.where(self.barred[:, mine], _FORBIDDEN, 0.0)
        plain = self.places.size * len(self.weights) <= BLOCK_CELLS
        where = self.places[looked]
        summed = [_rows_summed(where, each.astype(np.float32), plain) for each in (pulls, weight)]
        leaving, entering = summed[0] - summed[1], summed[0] + summed[1]
        line, own = np.arange(len(looked)), self.places[looked, j] - self.ends[j]
        entering[line, own] = np.inf
        best = entering.argmin(axis=1)
        return best + self.ends[j], leaving[line, own] - entering[line, best]


def _rows_summed(where: Codes, table: NDArray[np.float32], plain: bool) -> NDArray[np.float32]:
    """Return for each row of ``where`` the sum of the rows of ``table`` whose indices it holds. A
    ``plain`` sum is the same, bit for bit, without torch, which takes longer to load than little
    work takes.
    """
    if plain:
        found = table[where[:, 0]]
        for rows in where.T[1:]:
            found += table[rows]
        return found
    bags = torch.nn.functional.embedding_bag
    with one_thread():
        return bags(torch.from_numpy(where), torch.from_numpy(table), mode="sum").numpy()
