"""The posterior of one set of evidence on a calibrated junction tree.

Evidence goes up to the root from the cliques that add the observed attributes, and posteriors come
down where they are asked for. A marginal of attributes that lie apart is found on the part of the
tree between them: every clique on the way passes P(attributes | separator) on to its parent.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pgmkit.axis_sums import sum_axes
from pgmkit.calibrated_cliques import Axes, Seen
from pgmkit.calibrated_tree import LEAST_PROBABILITY, CalibratedTree
from pgmkit.elimination import each_bit
from pgmkit.message_passing import Table, Underflow

__all__ = ["Calibration"]

Array = NDArray[np.float64]


class Calibration:
    """What one set of evidence makes of a calibrated tree, which it leaves as it is.

    Args:
        calibrated: the tree.
        seen: the evidence.

    Raises Underflow where it has probability zero, or one beside which terms may have been lost.
    """

    def __init__(self, calibrated: CalibratedTree, seen: Seen) -> None:
        self.calibrated, self.seen = calibrated, seen
        self.tables: dict[int, Array] = {}
        """Of the cliques from evidence up to the root: P(rest | separator, evidence)."""
        self._outputs: dict[int, Array] = {}
        self.log_sum = calibrated.log_sum
        self._absorb()

    def _absorb(self) -> None:
        calibrated = self.calibrated
        parents, number = calibrated.parents, calibrated.number
        received: dict[int, list[tuple[int, Array]]] = {}
        for name in self.seen.weights:
            here = calibrated.top[name]
            while here >= 0 and here not in received:
                received[here] = []
                here = parents[here]
        for here in sorted(received, reverse=True):  # children follow their parents
            self.tables[here], message = calibrated.cliques[here].absorb(self.seen, received[here])
            if parents[here] >= 0:
                received[parents[here]].append((number[here], message))
                continue
            total = float(message[0])
            if not total > LEAST_PROBABILITY:
                raise Underflow
            self.log_sum += math.log(total)

    @cached_property
    def singles(self) -> Array:
        """The marginals of all attributes, where `CalibratedTree.place` says."""
        calibrated = self.calibrated
        cliques, children, starts = calibrated.cliques, calibrated.children, calibrated.start
        found = np.empty(calibrated.end)
        left = [(root, _SURE) for root in calibrated.roots]
        while left:
            here, mass = left.pop()
            start = starts[here]
            if here not in self.tables and (below := calibrated.below(here)) is not None:
                np.dot(mass, below, out=found[start : start + below.shape[1]])
                continue
            clique = cliques[here]
            outputs = clique.outputs_of(self.tables.get(here, clique.table), mass, self.seen)
            found[start : start + clique.own] = outputs[: clique.own]
            for child, axes in zip(children[here], clique.below, strict=True):
                first, last = clique.spans[axes]
                left.append((child, outputs[first:last]))
        totals = np.add.reduceat(found, calibrated.starts)
        if not 1 - _DRIFT < totals.min() <= totals.max() < 1 + _DRIFT:
            raise Underflow
        found /= np.repeat(totals, calibrated.lengths)
        return found

    def marginal(self, members: int) -> Array:
        """The marginal of attributes that were not observed, as a set; axes in the domain's order.

        Raises ModelTooLarge where a table on the way does not fit.
        """
        names = self.calibrated.domain.attributes
        if members and not members & (members - 1):
            name = names[members.bit_length() - 1]
            here = self.calibrated.top[name]
            first, last = self.calibrated.cliques[here].spans[(name,)]
            return self._settled(self._outputs_of(here)[first:last])
        groups: dict[int, int] = {}
        for v in each_bit(members):
            root = self._root(self.calibrated.top[names[v]])
            groups[root] = groups.get(root, 0) | 1 << v
        found: Table = (0, np.array(1.0))
        for inside in groups.values():
            part = self._connected(inside)
            found = self.calibrated.product(found, part, found[0] | part[0])
        return found[1]

    def _settled(self, table: Array) -> Array:
        total = float(table.sum())
        if not 1 - _DRIFT < total < 1 + _DRIFT:
            raise Underflow
        return table / total

    def _root(self, here: int) -> int:
        while (above := self.calibrated.parents[here]) >= 0:
            here = above
        return here

    def _outputs_of(self, here: int) -> Array:
        """The outputs of a clique, by those of the cliques above it."""
        path = []
        while here >= 0 and here not in self._outputs:
            path.append(here)
            here = self.calibrated.parents[here]
        for each in reversed(path):
            clique = self.calibrated.cliques[each]
            table = self.tables.get(each, clique.table)
            self._outputs[each] = clique.outputs_of(table, self._mass(each), self.seen)
        return self._outputs[path[0] if path else here]

    def _mass(self, here: int) -> Array:
        """The posterior of the cells of a clique's separator."""
        above = self.calibrated.parents[here]
        if above < 0:
            return _SURE
        outputs, clique = self._outputs_of(above), self.calibrated.cliques[above]
        first, last = clique.spans[self.calibrated.cliques[here].separator]
        return outputs[first:last]

    def _connected(self, members: int) -> Table:
        """The joint marginal of attributes of one component."""
        calibrated = self.calibrated
        names, parents = calibrated.domain.attributes, calibrated.parents
        tops = {calibrated.top[names[v]] for v in each_bit(members)}
        passed: dict[int, list[Table]] = {}
        while True:
            here = max(tops)  # children follow their parents
            tops.discard(here)
            received = passed.pop(here, [])
            axes = calibrated.scope(here)
            for table in received:
                axes |= table[0]
            if not members & ~axes:
                mass = self._freed(calibrated.cliques[here].separator, self._mass(here))
                joint = self._carried(here, [*received, mass], members)
                return joint[0], self._settled(joint[1])
            above = parents[here]
            separator = calibrated.bits(calibrated.cliques[here].separator)
            passed.setdefault(above, []).append(self._carried(here, received, members | separator))
            tops.add(above)

    def _carried(self, here: int, received: list[Table], wanted: int) -> Table:
        """The clique's conditional times the tables received, summed to wanted attributes."""
        clique = self.calibrated.cliques[here]
        kept = wanted
        for members, _ in received:
            kept |= members
        found = self._freed(clique.axes, self.tables.get(here, clique.table), kept)
        for place, table in enumerate(received):
            needed = wanted
            for members, _ in received[place + 1 :]:
                needed |= members
            found = self.calibrated.product(found, table, needed)
        return found

    def _freed(self, axes: Axes, table: Array, kept: int = -1) -> Table:
        """A clique's table without attributes observed or not kept, axes ascending."""
        codes, domain = self.seen.codes, self.calibrated.domain
        shape = domain.shape(axes)
        if table.size < math.prod(shape):  # sliced by the evidence
            shape = table.shape
        at = tuple(
            [
                (codes[name] if length > 1 else 0) if name in codes else _ALL
                for name, length in zip(axes, shape, strict=True)
            ]
        )
        found = table.reshape(shape)[at]
        free = [name for name in axes if name not in codes]
        bit = self.calibrated.bit
        away = tuple([place for place, name in enumerate(free) if not bit[name] & kept])
        left = [name for name in free if bit[name] & kept]
        order = sorted(range(len(left)), key=lambda place: bit[left[place]])
        return self.calibrated.bits(left), sum_axes(found, away).transpose(order)


_SURE = np.ones(1)
_ALL = slice(None)
_DRIFT = 1e-6
"""How far from one probabilities may sum by rounding."""
