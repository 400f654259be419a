"""The beliefs (clique marginals) of a small junction tree, by two passes of log messages on numpy
arrays.

``marginal_oracle`` computes the same in torch, by a contraction that is faster for large models and
searches. Here a small model answers in less time than it takes to load torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, prod

import numpy as np

from pgmkit.domain import Clique
from pgmkit.graphs.junction_tree import JunctionTree
from pgmkit.inference.query_answers import answers_of_table
from pgmkit.linear.axes import spread, sum_to
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import CACHE_CELLS

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
