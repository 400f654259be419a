"""The beliefs (clique marginals) of a small junction tree, by two passes of log messages on numpy
arrays.

``marginal_oracle`` computes the same in torch, by a contraction that is faster for large models and
searches. Here a small model answers in less time than it takes to load torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique
from pgmkit.graphs.junction_tree import JunctionTree
from pgmkit.inference.query_answers import answers_of_table
from pgmkit.linear.named_axes import spread, sum_to
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import CACHE_CELLS, TABLE_CELLS

MOST_CELLS = CACHE_CELLS
"""The largest tree, in cells, that is answered here. Up to this size the passes take 0.15 to 0.4
times as long as those in torch, planning included (``python -m benchmarks.start_up --beliefs``).
"""


@dataclass(frozen=True, eq=False)
class PlainBeliefs:
    """The probabilities over each clique of a junction tree (``tables``), and the log partition
    function.

    The error of a probability is relative to the probability itself, however small, and grows with
    the potentials' size; each table sums to 1 up to rounding. Axes are in the domain's order.

    >>> from pgmkit.domain import Domain
    >>> from pgmkit.graphs.junction_tree import junction_tree
    >>> tree = junction_tree(Domain({"a": 2, "b": 2}), [("a", "b")])
    >>> beliefs = PlainBeliefs.of(tree, [(("b", "a"), np.log([[4.0, 3], [1, 2]]))])
    >>> beliefs.tables[0].round(2), round(float(np.exp(beliefs.log_partition)), 6)
    (array([[0.4, 0.1],
           [0.3, 0.2]]), 10.0)
    """

    tree: JunctionTree
    tables: list[Array]
    log_partition: float

    @classmethod
    def of(
        cls, tree: JunctionTree, potentials: Iterable[tuple[Clique, Array]]
    ) -> PlainBeliefs | None:
        """Return the beliefs of potentials, or None if no record is possible.

        The attributes of each potential must lie in one clique of the tree. Minus infinity marks
        impossible cells.
        """
        logs = [np.zeros(tree.domain.shape(clique)) for clique in tree.cliques]
        for names, values in potentials:
            place = tree.holds(names)
            assert place is not None
            logs[place] += spread(tree.cliques[place], names, values)
        messages = dict[int, Array]()
        for place in reversed(range(len(logs))):  # children before their parents
            parent, shared = tree.parents[place], tree.separators[place]
            messages[place] = log_sums(logs[place], tree.cliques[place], shared)
            if parent >= 0:
                logs[parent] += spread(tree.cliques[parent], shared, messages[place])
        log_partition = float(sum(messages[p] for p, above in enumerate(tree.parents) if above < 0))
        if not isfinite(log_partition):
            return None
        for place, (parent, shared) in enumerate(zip(tree.parents, tree.separators, strict=True)):
            known = log_sums(logs[parent], tree.cliques[parent], shared) if parent >= 0 else 0.0
            message = messages[place]
            # Where the message is minus infinity, `known` is too. So 0 is subtracted there, as the
            # difference of the two would be NaN.
            change = known - np.where(np.isneginf(message), 0.0, message)
            logs[place] += spread(tree.cliques[place], shared, change)
        return cls(tree, [np.exp(each) for each in logs], log_partition)

    def marginal(self, attrs: Clique) -> Array | None:
        """Return the probabilities over attributes that share a clique, with axes in the order of
        ``attrs``; None if they share none.
        """
        place = self.tree.holds(attrs)
        if place is None:
            return None
        return sum_to(self.tables[place], self.tree.cliques[place], attrs)

    def pairs(self, asked: Sequence[Clique]) -> dict[Clique, Array] | None:
        """Return the probabilities over pairs of attributes, wherever they lie in the tree. Return
        None if the number of cells of the tree times that of the values of the pairs' first
        attributes exceeds ``TABLE_CELLS``, which would take more than some tens of milliseconds.
        """
        names = dict.fromkeys(first for first, _ in asked)
        if self.tree.cells * sum(self.tree.domain.sizes[name] for name in names) > TABLE_CELLS:
            return None
        cliques = self.tree.cliques
        homes = {name: place for place, clique in enumerate(cliques) for name in clique}
        rows, joints = self._joints({name: homes[name] for name in names})
        held = {
            name: sum_to(joints[homes[name]], ("", *cliques[homes[name]]), ("", name))
            for name in {second for _, second in asked}
        }
        return {(first, second): held[second][rows[first]] for first, second in asked}

    def _joints(self, homes: Mapping[str, int]) -> tuple[dict[str, slice], list[Array]]:
        """Return the places of each attribute's values among the values of all attributes of
        ``homes``, and for each clique of the tree the joint probabilities of these values (first
        axis) and the clique.

        ``homes``: for each attribute, the number of a clique that contains it.
        """
        tree, mine = self.tree, ("",)  # no attribute has this name
        rows, end = dict[str, slice](), 0
        for name in homes:
            rows[name] = slice(end, end + tree.domain.sizes[name])
            end = rows[name].stop
        alone, joints = np.empty(end), [np.empty((end, *table.shape)) for table in self.tables]
        # True for the values of the attributes whose home is the clique, or a clique below it
        below = np.zeros((len(joints), end), dtype=bool)

        def pass_on(place: int, near: int, values: NDArray[np.bool_]) -> None:
            # P(x, near) = P(near) P(x, separator) / P(separator) for each of the values x.
            shared = tree.separators[max(place, near)]
            message = sum_to(joints[place][values], mine + tree.cliques[place], mine + shared)
            belief = sum_to(self.tables[near], tree.cliques[near], shared)
            given = message / np.where(belief == 0, 1.0, belief)
            spread_out = spread(mine + tree.cliques[near], mine + shared, given)
            joints[near][values] = spread_out * self.tables[near]

        for name, home in homes.items():
            own, axes, table = rows[name], tree.cliques[home], self.tables[home]
            below[home, own], alone[own] = True, sum_to(table, axes, (name,))
            joints[home][own] = table * spread(mine + axes, (*mine, name), np.eye(len(alone[own])))
        for place in reversed(range(1, len(joints))):  # children before their parents
            if (parent := tree.parents[place]) >= 0:
                pass_on(place, parent, below[place])
                below[parent] |= below[place]
        for place, parent in enumerate(tree.parents):
            if parent >= 0:
                pass_on(parent, place, ~below[place])
            else:  # attributes of other components are independent
                others = ~below[place]
                joints[place][others] = np.multiply.outer(alone[others], self.tables[place])
        return rows, joints

    def answer(self, query: FactoredQuery, most_cells: float) -> Array | None:
        """Return the answer to a query as shares of the total; None if its attributes share no
        clique, or if the query written out as one matrix would have more than ``most_cells`` cells.
        """
        query.check(self.tree.domain)
        if prod(query.shape) * self.tree.domain.size(query.attributes) > most_cells:
            return None
        found = self.marginal(query.attributes)
        return None if found is None else answers_of_table(query, found)


def log_sums(logs: Array, clique: Clique, kept: Clique) -> Array:
    """Return the logarithm of the sums of exp(logs) over the attributes of the clique that are not
    in ``kept``; the others stay in the clique's order.
    """
    away = tuple(axis for axis, name in enumerate(clique) if name not in kept)
    peaks = logs.max(axis=away, keepdims=True)
    peaks = np.where(np.isneginf(peaks), 0.0, peaks)
    with np.errstate(divide="ignore"):
        found = np.log(np.exp(logs - peaks).sum(axis=away, keepdims=True)) + peaks
    return found.reshape([n for axis, n in enumerate(logs.shape) if axis not in away])
