"""A junction tree calibrated once without evidence, from which many sets of evidence are answered.

Every clique holds P(rest | separator) of the distribution without evidence: the *separator* are the
attributes that its parent has too, the *rest* the others. A subtree without evidence therefore
sends the message 1 upward and needs no work. Evidence changes only the cliques on the paths from
the observed attributes up to the root (Huang and Darwiche 1996, with conditionals in place of
ratios). Downward, the posterior of a separator gives all marginals of a small subtree without
evidence in one matrix product.

The tree stores nothing that depends on evidence, so answers to one set of evidence cannot affect
the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pgmkit.conditioning.calibrated_cliques import Clique as TreeClique
from pgmkit.conditioning.calibrated_cliques import clique_of
from pgmkit.conditioning.message_passing import LEAST_ENTRY, Underflow
from pgmkit.domain import Clique
from pgmkit.graphs.bit_sets import each_bit
from pgmkit.graphs.junction_tree import JunctionTree
from pgmkit.linear.axes import spread, sum_to
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import TINY
from pgmkit.runtime.sizes import CACHE_CELLS, CALL_CELLS

Input = tuple[int, Array, float]

LEAST_PROBABILITY = TINY ** (2 / 3)
"""The smallest probability of evidence for which the terms lost to underflow are negligible; for
less probable evidence ``Underflow`` is raised.
"""


class CalibratedTree:
    """The cliques of a calibrated junction tree as conditional distributions, parents before
    children.

    Args:
        tree: a junction tree in which the attributes of every table share a clique.
        inputs: for each table its attributes as a bit set, the table with its axes in the domain's
            order and entries in [0, 1], and the logarithm of the number it was divided by.
        conditional: whether the tables are the conditional distributions of a Bayesian network.

    Raises Underflow if the tables are not ``conditional`` and products of their entries may
    underflow, or if the sum, over all records, of the product of the tables is zero, infinite or
    too small to be reliable.
    """

    def __init__(self, tree: JunctionTree, inputs: Sequence[Input], conditional: bool) -> None:
        self.tree, self.domain = tree, tree.domain
        self.parents, self.children = tree.parents, tree.children
        self.log_sum = sum([log for _, _, log in inputs])
        self.cliques = self._cliques()
        self._calibrate(inputs, conditional)
        self._lay_out()
        if tree.cells <= CACHE_CELLS:
            for here, clique in enumerate(self.cliques):
                clique.prepare()
                self.below(here)

    def _calibrate(self, inputs: Sequence[Input], conditional: bool) -> None:
        domain, children, names = self.domain, self.children, self.domain.attributes
        given: list[list[tuple[tuple[str, ...], Array]]] = [[] for _ in self.cliques]
        for members, values, _ in inputs:
            held = tuple([names[v] for v in each_bit(members)])
            home = self.tree.holds(held)  # the smallest clique that contains the table's attributes
            assert home is not None
            given[home].append((held, values))
        messages: dict[int, Array] = {}
        for here in range(len(self.cliques) - 1, -1, -1):
            clique = self.cliques[here]
            factors = given[here] + [
                (axes, messages.pop(child))
                for axes, child in zip(clique.below, children[here], strict=True)
            ]
            if not conditional:
                _check_nothing_lost(factors)
            table = np.ones(domain.shape(clique.axes))
            for held, values in factors:
                table *= spread(clique.axes, held, values)
            message = sum_to(table, clique.axes, clique.separator)
            peak = float(message.max())
            if not LEAST_PROBABILITY < peak < math.inf:
                raise Underflow
            self.log_sum += math.log(peak)
            messages[here] = message / peak
            table /= spread(clique.axes, clique.separator, np.where(message > 0, message, 1.0))
            clique.hold(table)

    def _cliques(self) -> list[TreeClique]:
        """Return the cliques without their tables. A clique's separator has its axes in the order
        that they have in the parent's table.
        """
        tree, found = self.tree, list[TreeClique]()
        ordered = list(tree.separators)
        for here, rest in enumerate(tree.residuals):
            separator, below = ordered[here], [tree.separators[c] for c in self.children[here]]
            found.append(clique_of(self.domain, separator, rest, below))
            for child, axes in zip(self.children[here], found[-1].below, strict=True):
                ordered[child] = axes
        return found

    def _lay_out(self) -> None:
        """Assign each attribute's marginal a slice of one vector of all marginals, so that the
        slices of each subtree are adjacent.
        """
        self.top: dict[str, int] = {}
        """The number of the clique in whose rest each attribute is, the topmost one with it."""
        self.place: dict[Clique, slice] = {}
        """The slice of each attribute's marginal, by (name,), in the vector of all marginals."""
        self.width = [0] * len(self.cliques)
        self.start = [0] * len(self.cliques)
        own = [clique.own for clique in self.cliques]
        for here in range(len(self.cliques) - 1, -1, -1):
            self.width[here] += own[here]
            if (above := self.parents[here]) >= 0:
                self.width[above] += self.width[here]
        end = 0
        for here, clique in enumerate(self.cliques):
            if self.parents[here] < 0:
                self.start[here], end = end, end + self.width[here]
            at = self.start[here]
            for name in clique.rest:
                start, stop = clique.spans[(name,)]
                self.top[name], self.place[(name,)] = here, slice(at + start, at + stop)
            at += own[here]
            for child in self.children[here]:
                self.start[child] = at
                at += self.width[child]
        self.end = end
        self.roots = [here for here, above in enumerate(self.parents) if above < 0]
        self._below: dict[int, Array | None] = {}

    def below(self, here: int) -> Array | None:
        """Return P(value of an attribute | separator), without evidence, for the attributes in the
        rests of clique ``here`` and of the cliques below it, given the separator between ``here``
        and its parent: a matrix with a row for each cell of the separator and a column for each
        value of each attribute. None if this matrix, or that of a clique below from which it is
        made, has more than ``CALL_CELLS`` cells.
        """
        if here in self._below:
            return self._below[here]
        # The children's matrices are computed first, in a loop, since a subtree may be deeper than
        # Python allows recursive calls.
        order = [here]
        for each in order:
            if each not in self._below and self._fits(each):
                order += [child for child in self.children[each] if child not in self._below]
        for each in reversed(order):
            if each not in self._below:
                self._below[each] = self._joined(each) if self._fits(each) else None
        return self._below[here]

    def _fits(self, here: int) -> bool:
        return self.domain.size(self.cliques[here].separator) * self.width[here] <= CALL_CELLS

    def _joined(self, here: int) -> Array | None:
        clique, parts = self.cliques[here], []
        rows = self.domain.size(clique.separator)
        for name in clique.rest:
            parts.append(clique.summed((*clique.separator, name)).reshape(rows, -1))
        for child in self.children[here]:
            below = self._below[child]
            if below is None:
                return None
            axes = self.cliques[child].separator
            met = clique.separator + tuple([name for name in axes if name in clique.rest])
            held, given, made = (
                [met.index(n) for n in each] for each in (met, axes, clique.separator)
            )
            matrices = below.reshape(*self.domain.shape(axes), -1)
            # The type stubs of numpy do not allow lists of numbers that end with an ellipsis.
            operands: list[Any] = [clique.summed(met), held, matrices, [*given, ...], [*made, ...]]
            parts.append(np.einsum(*operands).reshape(rows, -1))
        return np.concatenate(parts, axis=1)


def _check_nothing_lost(factors: Sequence[tuple[tuple[str, ...], Array]]) -> None:
    """Raise Underflow if the product of the smallest positive entries of the tables is so small
    that products of entries may underflow.
    """
    least = 1.0
    for _, table in factors:
        present = table[table > 0]
        least *= float(present.min()) if present.size else 1.0
    if least < LEAST_ENTRY:
        raise Underflow
