"""A rounded draw of many records in parts, each of which can be made separately, by any process.

The counts of all records are rounded first, clique by clique down the junction tree, as
`pgmkit.records.sampling.sample` does; no record is needed for that. Then the counts are divided
among the parts: of the records of a group (those with the same values of a clique's separator), a
random part of known size is taken without replacement, which is equivalent to cutting shuffled
records into parts. So the parts together are one draw of `sample(..., "round")`: their counts add
up to the rounded ones exactly, whoever makes them and in whatever order.

The range of parts is halved again and again, and each cut draws from a generator with its own seed.
So a part needs only the cuts on the path to it, and parts that are made separately agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pgmkit.graphs.junction_tree import JunctionTree
from pgmkit.linear.axes import sum_to
from pgmkit.records import sampling
from pgmkit.records.counting import codes_of
from pgmkit.runtime.arguments import check_whole
from pgmkit.runtime.threads import cores, in_threads

Counts = list[NDArray[np.int32]]

MOST_RECORDS = 999_999_999
"""The most records that are drawn together: numpy's hypergeometric draws are limited to fewer than
a billion.
"""


@dataclass(frozen=True, eq=False)
class PartedSample:
    """Records in `count` parts of `rows` records each; the last part has the remaining ones.

    It holds the rounded counts over each clique of the tree, with a row for each cell of the
    separator and a column for each cell of the residual attributes, and a seed. It can be pickled.
    """

    tree: JunctionTree
    counts: Counts
    n: int
    rows: int
    seed: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of parts; without records there is one, which is empty."""
        return max(1, -(-self.n // self.rows))

    def some_cell(self) -> tuple[dict[str, int], int]:
        """Return the codes of a cell of one of the cliques, by attribute, and the number of records
        in it. The seed chooses the clique and a record; the cell is that of this record.

        Without records or cliques, no codes and the number of all records are returned.
        """
        if not self.n or not self.counts:
            return {}, self.n
        rng = part_rng(self.seed, 0, 0, 0)  # no cut has this number
        i, record = int(rng.integers(len(self.counts))), int(rng.integers(self.n))
        axes = (*self.tree.separators[i], *self.tree.residuals[i])
        flat = self.counts[i].reshape(-1)
        cell = int(np.searchsorted(flat.cumsum(dtype=np.int64), record, side="right"))
        codes = np.unravel_index(cell, self.tree.domain.shape(axes))
        return {name: int(code) for name, code in zip(axes, codes, strict=True)}, int(flat[cell])

    def part(self, number: int) -> dict[str, np.ndarray]:
        """Return the codes of a part's records, in random order; always the same for the same
        number. Raises InvalidInput unless it is a whole number from 0 to before `count`.
        """
        check_whole(number, "number", 0, self.count - 1)
        (made,) = self.parts(number, number + 1)
        return made

    def parts(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield the parts from `start` to before `stop`, one after the other. A cut that several
        parts need is made once.

        As many parts are made at once as there are cores; each is the same as when made alone.
        Raises InvalidInput unless `start` and `stop` are whole numbers with 0 <= `start` <= `stop`
        <= `count`.
        """
        check_whole(stop, "stop", 0, self.count)
        check_whole(start, "start", 0, stop)
        made = self._within(self.counts, 0, self.count, start, stop)
        return in_threads(made, cores() if stop - start > 1 else 1)

    def _within(
        self, counts: Counts, low: int, high: int, start: int, stop: int
    ) -> Iterator[Callable[[], dict[str, np.ndarray]]]:
        """Yield a function that makes a part, for each part from `start` to before `stop` that is
        among the parts from `low` to before `high`. `counts` are the counts of all records of the
        parts from `low` to before `high`.
        """
        if high <= start or stop <= low:
            return
        if high - low == 1:
            size, rng = self._size(low, high), part_rng(self.seed, low)
            yield partial(_records, self.tree, counts, size, rng)
            return
        middle = (low + high) // 2
        # The generator of a cut has three numbers, that of a part one (or two, where
        # `mechanisms.release` decodes it), so none is used twice.
        rng = part_rng(self.seed, low, middle, high)
        taken = _cut(self.tree, counts, self._size(low, middle), rng)
        yield from self._within(taken, low, middle, start, stop)
        if middle < stop:
            left = [each - some for each, some in zip(counts, taken, strict=True)]
            del taken
            yield from self._within(left, middle, high, start, stop)

    def _size(self, low: int, high: int) -> int:
        return min(self.n, high * self.rows) - min(self.n, low * self.rows)


def parted_sample(
    tree: JunctionTree,
    clique_marginals: Callable[[int], np.ndarray],
    n: int,
    rows: int,
    rng: np.random.Generator,
) -> PartedSample:
    """Prepare `n` records by `pgmkit.records.sampling.sample`'s method "round", in parts of `rows`.

    This call takes time and memory in proportion to the cells of the tree's tables, whatever `n`
    is; a part takes as much, and more for its own records. Raises InvalidInput unless `n` is a
    whole number from 0 to MOST_RECORDS and `rows` one of at least 1, and NumericalFailure as
    `sample` does.

    >>> from pgmkit.domain import Domain
    >>> from pgmkit.graphs.junction_tree import junction_tree
    >>> tree = junction_tree(Domain({"a": 2, "b": 2}), [("a", "b")])
    >>> tables = {("a", "b"): np.array([[2.0, 0.0], [1.0, 1.0]])}
    >>> rng = np.random.default_rng(0)
    >>> made = parted_sample(tree, lambda i: tables[tree.cliques[i]], 8, 3, rng)
    >>> [len(made.part(i)["a"]) for i in range(made.count)]
    [3, 3, 2]
    >>> sorted(int(cell) for i in range(3) for cell in 2 * made.part(i)["a"] + made.part(i)["b"])
    [0, 0, 0, 0, 2, 2, 3, 3]
    """
    sampling.check_count(n, most=MOST_RECORDS)
    sampling.check_count(rows, "rows", least=1)
    counts: Counts = []
    for i, clique in enumerate(tree.cliques):
        table = sampling.grouped_table(tree, i, clique_marginals(i))
        sizes = _group_sizes(tree, counts, i, int(n))
        whole = np.zeros(table.shape, dtype=np.int32)
        for members in sampling.blocks(np.flatnonzero(sizes), table.shape[1]):
            whole[members] = sampling.rounded_counts(table[members], sizes[members], rng, clique)
        counts.append(whole)
    seed = tuple(int(word) for word in rng.integers(0, 1 << 32, 4))
    return PartedSample(tree, counts, int(n), rows, seed)


def part_rng(seed: Sequence[int], *number: int) -> np.random.Generator:
    """Return the generator of this seed and number; generators of different numbers are
    independent.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=number))


def _group_sizes(tree: JunctionTree, counts: Counts, i: int, n: int) -> NDArray[np.int64]:
    """Return how many of `n` records are in each cell of the i-th clique's separator; the counts
    over its parent clique tell it.
    """
    separator = tree.separators[i]
    if not separator:
        return np.array([n], dtype=np.int64)
    parent = tree.parents[i]
    axes = (*tree.separators[parent], *tree.residuals[parent])
    # Sums of fewer than 2^53 records are exact in float64.
    table = counts[parent].astype(np.float64).reshape(tree.domain.shape(axes))
    return sum_to(table, axes, separator).reshape(-1).astype(np.int64)


def _cut(tree: JunctionTree, counts: Counts, n: int, rng: np.random.Generator) -> Counts:
    """Return the counts, clique by clique, of `n` records drawn without replacement from the
    records that `counts` counts.
    """
    taken: Counts = []
    for i, table in enumerate(counts):
        sizes = _group_sizes(tree, taken, i, n)
        part = np.zeros_like(table)
        for members in sampling.blocks(np.flatnonzero(sizes), table.shape[1]):
            part[members] = without_replacement(table[members], sizes[members], rng)
        taken.append(part)
    return taken


def without_replacement(
    counts: NDArray[np.int32], sizes: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the counts of records drawn without replacement (multivariate hypergeometric), in the
    shape of `counts`. Each row of `counts` has the number of records in each cell; `sizes` has, for
    each row, how many of its records are drawn.

    The draws are shared among the halves of a row, then among halves of halves, for all rows at
    once.
    """
    sums = [counts.astype(np.int64)]
    while sums[-1].shape[1] > 1:
        below = sums[-1]
        pairs = below.shape[1] // 2 * 2
        sums.append(np.hstack([below[:, :pairs:2] + below[:, 1:pairs:2], below[:, pairs:]]))
    drawn = sizes[:, None]
    for below in reversed(sums[:-1]):
        pairs = below.shape[1] // 2
        left, right = below[:, : 2 * pairs : 2], below[:, 1 : 2 * pairs : 2]
        wanted = drawn[:, :pairs]
        # Most splits need no draw: one half is empty, or nothing or everything is taken.
        first = np.where(right == 0, wanted, np.where(wanted == left + right, left, 0))
        open_ = (left > 0) & (right > 0) & (wanted > 0) & (wanted < left + right)
        first[open_] = rng.hypergeometric(left[open_], right[open_], wanted[open_])
        split = np.empty_like(below)
        split[:, : 2 * pairs : 2], split[:, 1 : 2 * pairs : 2] = first, wanted - first
        split[:, 2 * pairs :] = drawn[:, pairs:]
        drawn = split
    return drawn


def _records(
    tree: JunctionTree, counts: Counts, n: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return a column of codes for each attribute: `n` records, in random order, that have exactly
    these counts over the tree's cliques.
    """
    columns: dict[str, np.ndarray] = {}
    for i, table in enumerate(counts):
        groups = codes_of(columns, tree.domain.sizes, tree.separators[i], 0, n)
        occupied = np.flatnonzero(np.bincount(groups, minlength=len(table)))
        cells = sampling.given_out(groups, rng, table.__getitem__, occupied, table.shape[1])
        columns.update(sampling.unravel(tree.domain, tree.residuals[i], cells))
    return {name: columns[name] for name in tree.domain.attributes}
