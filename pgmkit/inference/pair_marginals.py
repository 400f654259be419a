"""The marginals of all pairs of attributes at once, from a calibrated junction tree.

`pgmkit.inference.tree_marginals` computes one marginal after another, which takes thousands of
small products for thousands of pairs. Here every clique passes one matrix on to its parent: P(x |
separator) for all values x of all attributes in the clique or below it that the parent lacks, in
neighbouring columns. The paths of two attributes meet at one clique. The product of two matrices
that arrive there gives the tables of all pairs of their attributes, so a clique needs at most one
product for each two of its branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from pgmkit.graphs.bit_sets import each_bit
from pgmkit.inference.tree_paths import TreePaths
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import CACHE_CELLS, CELL_BYTES, TABLE_CELLS

Pair = tuple[str, str]

_MOST_CELLS = 8 * TABLE_CELLS
"""The largest number of cells that all matrices together may have."""


@dataclass(frozen=True)
class _Branch:
    """The matrix ``given`` of P(x | separator), which a clique passes on to its parent. It has a
    row for each cell of ``separator`` (a bit set) and a column for each value x of each of
    ``attributes``, one attribute after the other.
    """

    separator: int
    attributes: tuple[int, ...]
    given: Array


class PairMarginals:
    """The marginal tables, in counts, of pairs of attributes, from the beliefs of a junction tree.

    Args:
        paths: the paths of the tree.
        inside: a function of a clique's number and of some attributes of the clique, as a set, that
            returns their marginal table: counts, non-negative, of one total and one dtype for all
            cliques, equal on the separators they share.
        names: the attributes whose pairs are computed.

    >>> from pgmkit.domain import Domain
    >>> from pgmkit.graphs.junction_tree import junction_tree
    >>> tree = junction_tree(Domain({"a": 2, "b": 2}), [])
    >>> beliefs = [np.array([1.0, 3.0]), np.array([2.0, 2.0])]
    >>> inside = lambda clique, members: beliefs[clique] if members else beliefs[clique].sum()
    >>> dict(PairMarginals(TreePaths(tree), inside, ["a", "b"]).tables())
    {('a', 'b'): array([[0.5, 0.5],
           [1.5, 1.5]])}
    """

    def __init__(
        self, paths: TreePaths, inside: Callable[[int, int], Array], names: Iterable[str]
    ) -> None:
        self.paths, self._inside = paths, inside
        wanted = {paths.bits[name].bit_length() - 1 for name in names}
        self._own: list[list[int]] = [[] for _ in paths.cliques]
        for index in sorted(wanted):
            self._own[paths.top[index]].append(index)

    def pays(self, pairs: int, memory_limit: int) -> bool:
        """Return True if all pairs at once are estimated to take less time than ``pairs`` pairs one
        by one, and all matrices together fit into ``memory_limit`` bytes and `_MOST_CELLS` cells.
        """
        # A single pair takes about as long as CACHE_CELLS cells of matrix products.
        return self._cells() <= min(_MOST_CELLS, memory_limit // CELL_BYTES, CACHE_CELLS * pairs)

    def _cells(self) -> int:
        """Return the number of cells of all matrices that are computed: those that cliques pass on
        to their parents, and the tables of all pairs.
        """
        paths, width = self.paths, [0] * len(self._own)
        cells = 0
        for here in range(len(width) - 1, -1, -1):
            width[here] += sum(paths.lengths[index] for index in self._own[here])
            if here:
                above = paths.above[here]
                cells += width[here] * paths.cells(paths.separators[here, above])
                width[above] += width[here]
        return cells + width[0] ** 2

    def tables(self) -> Iterator[tuple[Pair, Array]]:
        """Yield every pair once with its table. The attributes of a pair are in the domain's order;
        the pairs come in any order.

        Tables may share memory and must not be written to.
        """
        passed: list[list[_Branch]] = [[] for _ in self._own]
        for here in range(len(passed) - 1, -1, -1):
            branches, passed[here] = passed[here], []
            for i, j in combinations(self._own[here], 2):
                table = self._inside(here, 1 << i | 1 << j)
                yield (self.paths.names[i], self.paths.names[j]), table
            groups = _by_separator(branches)
            for attributes, block, others in self._met(here, groups):
                yield from self._split(attributes, block, others)
            if here and (self._own[here] or groups):
                passed[self.paths.above[here]].append(self._passed_on(here, groups))

    def _met(
        self, here: int, groups: Sequence[Sequence[_Branch]]
    ) -> Iterator[tuple[tuple[int, ...], Array, list[tuple[int, ...]]]]:
        """Yield matrices that hold the tables of all pairs that meet at clique ``here`` and of
        which at least one attribute comes from a branch. Branches with the same separator form a
        group.

        Each matrix comes with the attributes of its rows and, for each branch, the attributes of
        its columns.
        """
        joined = [_joined(group) for group in groups]
        for place, (group, merged) in enumerate(zip(groups, joined, strict=True)):
            columns = [branch.attributes for branch in group]
            for index in self._own[here]:
                yield (index,), self._carried(here, 1 << index, merged), columns
            for other in joined[:place]:
                table = self._carried(here, other.separator, merged)
                yield other.attributes, other.given.T @ table, columns
            if len(group) > 1:
                # P(x, y) = sum over s of P(x | s) P(s) P(y | s), for x and y in different branches.
                over_separator = self._inside(here, merged.separator).reshape(-1, 1)
                whole = merged.given.T @ (over_separator * merged.given)
                start = 0
                for number, branch in enumerate(group[:-1]):
                    end = start + branch.given.shape[1]
                    yield branch.attributes, whole[start:end, end:], columns[number + 1 :]
                    start = end

    def _split(
        self, rows: tuple[int, ...], block: Array, columns: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[Pair, Array]]:
        names, lengths = self.paths.names, self.paths.lengths
        after = [index for branch in columns for index in branch]
        top = 0
        for i in rows:
            left = 0
            for j in after:
                table = block[top : top + lengths[i], left : left + lengths[j]]
                yield ((names[i], names[j]), table) if i < j else ((names[j], names[i]), table.T)
                left += lengths[j]
            top += lengths[i]

    def _passed_on(self, here: int, groups: Sequence[Sequence[_Branch]]) -> _Branch:
        """Return the matrix P(x | separator) that the parent needs, where x are the attributes
        asked for in or below clique ``here`` that the parent lacks. ``groups`` are the branches
        that arrive at ``here``, by separator.
        """
        separator = self.paths.separators[here, self.paths.above[here]]
        parts, attributes = [], []
        for index in self._own[here]:
            table = self._inside(here, separator | 1 << index)
            axis = (separator & ((1 << index) - 1)).bit_count()
            parts.append(np.moveaxis(table, axis, -1).reshape(-1, self.paths.lengths[index]))
            attributes.append(index)
        for group in map(_joined, groups):
            parts.append(self._carried(here, separator, group))
            attributes += group.attributes
        over_separator = self._inside(here, separator).reshape(-1, 1)
        joint = np.concatenate(parts, axis=1)
        joint /= np.where(over_separator == 0, 1.0, over_separator)
        return _Branch(separator, tuple(attributes), joint)

    def _carried(self, here: int, members: int, branch: _Branch) -> Array:
        """Return the table, in counts, over the attributes ``members`` of the clique (rows) and all
        values of a branch's attributes (columns).
        """
        # The table is the sum over s of N(m, s) P(x | m, s), where N are counts, m are the members,
        # and s is the rest of the separator. Members in the separator are in both operands, so they
        # form the batch of the product.
        paths, separator = self.paths, branch.separator
        both, own, other = members & separator, members & ~separator, separator & ~members
        order = [*each_bit(both), *each_bit(own), *each_bit(other)]
        table = self._inside(here, members | separator)
        table = table.transpose([sorted(order).index(index) for index in order])
        rows = [*each_bit(both), *each_bit(other)]
        held = list(each_bit(separator))
        given = branch.given.reshape([*(paths.lengths[index] for index in held), -1])
        given = given.transpose([*(held.index(index) for index in rows), len(held)])
        count = paths.cells(both)
        found = np.matmul(
            table.reshape(count, paths.cells(own), paths.cells(other)),
            given.reshape(count, paths.cells(other), branch.given.shape[1]),
        )
        made = [*each_bit(both), *each_bit(own)]
        found = found.reshape([*(paths.lengths[index] for index in made), -1])
        found = found.transpose([*(made.index(index) for index in sorted(made)), len(made)])
        return found.reshape(-1, branch.given.shape[1])


def _by_separator(branches: Sequence[_Branch]) -> list[list[_Branch]]:
    """Group the branches by their separator, since one product serves a group."""
    groups: dict[int, list[_Branch]] = {}
    for branch in branches:
        groups.setdefault(branch.separator, []).append(branch)
    return list(groups.values())


def _joined(group: Sequence[_Branch]) -> _Branch:
    if len(group) == 1:
        return group[0]
    attributes = tuple(index for branch in group for index in branch.attributes)
    return _Branch(group[0].separator, attributes, np.concatenate([b.given for b in group], axis=1))
