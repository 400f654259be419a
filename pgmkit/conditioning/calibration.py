"""The posterior of one set of evidence on a calibrated junction tree.

The *separator* of a clique are the attributes that its parent has too, its *rest* the others.
Evidence is absorbed upward to the root, from the cliques in whose rest the observed attributes are.
Posteriors are computed downward when they are asked for.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from pgmkit.conditioning.calibrated_tree import LEAST_PROBABILITY, CalibratedTree
from pgmkit.conditioning.evidence import Evidence
from pgmkit.conditioning.message_passing import Underflow
from pgmkit.graphs.bit_sets import each_bit
from pgmkit.linear.axes import Axes
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import CLOSE, TINY


class Calibration:
    """A calibrated tree conditioned on one set of evidence; the tree itself is not changed.

    Args:
        calibrated: the tree.
        evidence: the evidence.

    Raises Underflow if the evidence has probability zero, or one so small that terms may have
    been lost.
    """

    def __init__(self, calibrated: CalibratedTree, evidence: Evidence) -> None:
        self.calibrated, self.evidence = calibrated, evidence
        self.place = calibrated.place
        self.tables: dict[int, Array] = {}
        """P(rest, evidence in the subtree | separator) of each clique on a path from evidence up to
        a root.
        """
        self.messages: dict[int, Array] = {}
        """The messages P(evidence in the subtree | separator) of the same cliques."""
        self._outputs: dict[int, Array] = {}
        self.log_sum = calibrated.log_sum
        self._absorb()

    def _absorb(self) -> None:
        calibrated = self.calibrated
        cliques, parents = calibrated.cliques, calibrated.parents
        received: dict[int, list[tuple[Axes, Array]]] = {}
        for name in (*self.evidence.codes, *self.evidence.likelihood):
            here = calibrated.top[name]
            while here >= 0 and here not in received:
                received[here] = []
                here = parents[here]
        for here in sorted(received, reverse=True):  # children before their parents
            table, message = cliques[here].absorb(self.evidence, received[here])
            self.tables[here], self.messages[here] = table, message
            if parents[here] >= 0:
                received[parents[here]].append((cliques[here].separator, message))
                continue
            total = float(message[0])
            if not total > LEAST_PROBABILITY:
                raise Underflow
            self.log_sum += math.log(total)

    @cached_property
    def singles(self) -> Array:
        """The marginals of all single attributes given the evidence, each with sum 1, in one
        vector. ``CalibratedTree.place[(name,)]`` is the slice of an attribute. Raises Underflow if
        the sum of the vector differs from the number of attributes by more than rounding.
        """
        calibrated = self.calibrated
        cliques, children, starts = calibrated.cliques, calibrated.children, calibrated.start
        found = np.empty(calibrated.end)
        left = [(root, _SURE) for root in calibrated.roots]
        while left:
            here, posterior = left.pop()
            start = starts[here]
            if here not in self.tables and (below := calibrated.below(here)) is not None:
                np.dot(posterior, below, out=found[start : start + below.shape[1]])
                continue
            clique = cliques[here]
            outputs = self._spread(here, posterior)
            found[start : start + clique.own] = outputs[: clique.own]
            for child, axes in zip(children[here], clique.below, strict=True):
                first, last = clique.spans[axes]
                left.append((child, outputs[first:last]))
        # The sum of all marginals must equal their number. If an entry is NaN, the comparison is
        # false, so Underflow is raised for this too.
        if not abs(float(found.sum()) - len(calibrated.place)) < CLOSE:
            raise Underflow
        return found

    def _spread(self, here: int, posterior: Array) -> Array:
        """Return the marginals of the rest of clique ``here`` and the posteriors of its children's
        separators (``Clique.outputs_of``), given the posterior of its own separator's cells.
        """
        clique = self.calibrated.cliques[here]
        table = self.tables.get(here, clique.table)
        return clique.outputs_of(table, self._share(here, posterior), self.evidence)

    def _share(self, here: int, posterior: Array) -> Array:
        """Return the posterior of the separator's cells of clique ``here``, divided by the clique's
        message, or by ``TINY`` where the message is less; the result is 0 where both are 0. If the
        clique is on no path from evidence, its message is 1.
        """
        if here not in self.messages:
            return posterior
        return posterior / np.maximum(self.messages[here], TINY)

    def marginal(self, members: int) -> Array:
        """Return the joint marginal of a set of attributes (a bit mask) that share a clique, as
        probabilities with sum 1, axes in the domain's order. Observed attributes are left out.
        Raises Underflow if the computed sum shows that terms were lost.
        """
        calibrated = self.calibrated
        attributes, codes = calibrated.domain.attributes, self.evidence.codes
        names = [name for v in each_bit(members) if (name := attributes[v]) not in codes]
        if not names:
            return np.array(1.0)
        # Each attribute is new (in the rest) in one clique, its topmost one, and in no clique
        # outside the subtree of that clique. Cliques follow their parents, so the last of these
        # topmost cliques contains all of the attributes.
        here = max([calibrated.top[name] for name in names])
        clique = calibrated.cliques[here]
        if len(names) == 1:
            first, last = clique.spans[(names[0],)]
            return self._settled(self._outputs_of(here)[first:last])
        posterior = self._share(here, self._separator_posterior(here))
        table = self.tables.get(here, clique.table)
        return self._settled(clique.joint(tuple(names), table, posterior, self.evidence))

    def _settled(self, table: Array) -> Array:
        total = float(table.sum())
        if not 1 - CLOSE < total < 1 + CLOSE:
            raise Underflow
        return table / total

    def _outputs_of(self, here: int) -> Array:
        """Return the marginals of the rest of clique ``here`` and the posteriors of its children's
        separators (``Clique.outputs_of``), computed from those of the cliques above it, and
        remember them.
        """
        path = []
        while here >= 0 and here not in self._outputs:
            path.append(here)
            here = self.calibrated.parents[here]
        for each in reversed(path):
            self._outputs[each] = self._spread(each, self._separator_posterior(each))
        return self._outputs[path[0] if path else here]

    def _separator_posterior(self, here: int) -> Array:
        """Return the posterior of the cells of the separator between clique ``here`` and its
        parent; the vector of a single 1 for a root.
        """
        above = self.calibrated.parents[here]
        if above < 0:
            return _SURE
        outputs, clique = self._outputs_of(above), self.calibrated.cliques[above]
        first, last = clique.spans[self.calibrated.cliques[here].separator]
        return outputs[first:last]


_SURE = np.ones(1)
"""The posterior of the separator of a root, which has no attributes and so a single cell."""
