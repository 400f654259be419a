"""Cliques of a calibrated junction tree: their tables P(rest | separator) and the messages through
them.

A clique's *separator* is the set of attributes that it shares with its parent; the *rest* are its
other attributes. Messages are vectors over all cells of a separator. The upward message is the
probability of the evidence below given each cell, the downward message the posterior of each cell.
A clique's *outputs* are what it computes on the way down, in one vector: the marginals of the
attributes of its rest, one after another, then the posteriors of its children's separators.

There are two kinds of cliques. A small one stores, for each of its cells, the index of the matching
cell in every table that it is multiplied by or summed into. So it needs one call of numpy where
sums over axes take several, and networks of small tables answer about twice as fast. A large clique
works axis by axis and is sliced by the observed codes: indices for all its cells would take twice
the memory and up to 2.9 times as long.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Domain
from pgmkit.linear.axis_sums import sum_axes
from pgmkit.linear.named_axes import Axes, spread, sum_to
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import CALL_CELLS

__all__ = ["Axes", "Clique", "Frame", "LargeClique", "ScaledEvidence", "SmallClique", "frame_of"]


@dataclass(frozen=True)
class ScaledEvidence:
    """Evidence: the codes of observed attributes and, for other attributes, a likelihood in [0, 1]
    for each value.
    """

    codes: Mapping[str, int]
    weights: Mapping[str, Array]


@dataclass(frozen=True)
class Frame:
    """The attributes of a clique and the orders of axes: ``axes`` of its own table, ``separator``
    of the table over its separator, and ``below`` of those over its children's separators. ``rest``
    are the attributes that its parent lacks. ``small`` is True for a SmallClique.
    """

    domain: Domain
    separator: Axes
    rest: Axes
    axes: Axes
    below: tuple[Axes, ...]
    """The separators of the children, each with its attributes in the order of ``axes``."""
    small: bool


def frame_of(domain: Domain, separator: Axes, rest: Axes, below: Sequence[Axes]) -> Frame:
    """Return the frame of a clique. The order of ``separator`` is kept; ``below`` are the
    children's separators, in any order of their attributes.

    The axes of a large clique are ordered by S, the separator of its largest child: the separator's
    attributes outside S, the rest outside S, the rest in S, the separator's attributes in S. The
    sums for this child and for the parent are then over long vectors.
    """
    axes = separator + rest
    small = domain.size(axes) <= CALL_CELLS
    if not small and below:
        on = max(below, key=domain.size)
        axes = tuple(
            [name for name in separator if name not in on]
            + [name for name in rest if name not in on]
            + [name for name in rest if name in on]
            + [name for name in separator if name in on]
        )
    ordered = tuple([tuple([name for name in axes if name in each]) for each in below])
    return Frame(domain, separator, rest, axes, ordered, small)


class Clique(ABC):
    """A clique's table P(rest | separator).

    Args:
        frame: the clique's attributes and the order of their axes.
        table: the probabilities, with the axes of the frame.
    """

    def __init__(self, frame: Frame, table: Array) -> None:
        self.frame = frame
        self.domain, self.separator, self.rest = frame.domain, frame.separator, frame.rest
        self.axes, self.table, self.below = frame.axes, table, frame.below
        self.spans: dict[Axes, tuple[int, int]] = {}
        """The slice of each output in the vector of outputs; equal separators share one."""
        self.outputs = self.own = 0
        for axes in (*((name,) for name in frame.rest), *frame.below):
            if axes not in self.spans:
                end = self.outputs + self.domain.size(axes)
                self.spans[axes] = self.outputs, end
                self.outputs = end
            if axes[0] in frame.rest and len(self.spans) <= len(frame.rest):
                self.own = self.outputs

    @abstractmethod
    def absorb(
        self, evidence: ScaledEvidence, received: Iterable[tuple[int, Array]]
    ) -> tuple[Array, Array]:
        """Return the table multiplied by the evidence on the rest and by the children's messages,
        and the sum of this product over the rest, which is the message to the parent.

        Args:
            evidence: the evidence; only that on the rest is used here.
            received: the number of each child and its message.
        """

    @abstractmethod
    def outputs_of(self, table: Array, posterior: Array, evidence: ScaledEvidence) -> Array:
        """Return the outputs as one vector.

        Args:
            table: the clique's own table, or the table that ``absorb`` returned.
            posterior: the posterior of the separator's cells, divided by the clique's message if
                ``table`` is from ``absorb``.
            evidence: the evidence.
        """

    @abstractmethod
    def joint(self, axes: Axes, table: Array, posterior: Array, evidence: ScaledEvidence) -> Array:
        """Return the joint marginal of some of the clique's unobserved attributes.

        Args:
            axes: the attributes, in the order of the result's axes.
            table, posterior, evidence: as ``outputs_of`` takes them.
        """

    @abstractmethod
    def prepare(self) -> None:
        """Compute the tables and indices that do not depend on evidence now, instead of with the
        first evidence.
        """

    @cached_property
    def readings(self) -> list[tuple[Axes, int]]:
        """The order in which outputs are computed, the largest first: pairs of an output's axes and
        the number of the smallest earlier table from which it can be summed. Table 0 is the
        clique's own, and table k the result of pair k - 1.
        """
        made, work = [self.axes], [self.table.size]
        found = []
        for axes in sorted(self.spans, key=self.domain.size, reverse=True):
            held = [i for i, each in enumerate(made) if set(axes) <= set(each)]
            found.append((axes, min(held, key=work.__getitem__)))
            made.append(axes)
            work.append(self.domain.size(axes))
        return found

    def summed(self, axes: Axes) -> Array:
        """Return the table of P(attributes of the rest | separator) with these axes, which are some
        attributes of the rest and the whole separator, in any order.
        """
        return sum_to(self.table.reshape(self.domain.shape(self.axes)), self.axes, axes)

    def _joint(self, axes: Axes, table: Array, posterior: Array) -> Array:
        """Return the marginal over ``axes``, given a table and a posterior of the separator that
        both have one axis for each attribute.
        """
        kept = tuple([n for n in self.axes if n in axes or n in self.separator])
        held = sum_to(table, self.axes, kept)
        return sum_to(held * spread(kept, self.separator, posterior), kept, axes)


class SmallClique(Clique):
    """A clique whose table is a matrix with a row for each cell of the separator and a column for
    each cell of the rest.
    """

    def __init__(self, frame: Frame, table: Array) -> None:
        super().__init__(frame, table.reshape(frame.domain.size(frame.separator), -1))
        self._ones = np.ones(self.table.shape[1])
        self._cells: dict[Axes, NDArray[np.int64]] = {}

    def absorb(
        self, evidence: ScaledEvidence, received: Iterable[tuple[int, Array]]
    ) -> tuple[Array, Array]:
        table = self._agreeing(evidence.codes)
        if evidence.weights:
            for name in self.rest:
                if (weights := evidence.weights.get(name)) is not None:
                    table = table * weights.take(self.cells_of((name,)))
        for child, message in received:
            table = table * message.take(self.cells_of(self.below[child]))
        return table, np.dot(table, self._ones)

    def outputs_of(self, table: Array, posterior: Array, evidence: ScaledEvidence) -> Array:
        joint = (table * posterior[:, None]).reshape(-1)
        made: list[Array] = [joint]
        found = np.empty(self.outputs)
        for axes, source, cells in self._sums:
            made.append(np.bincount(cells, made[source]).astype(np.float64, copy=False))
            start, end = self.spans[axes]
            found[start:end] = made[-1]
        return found

    def joint(self, axes: Axes, table: Array, posterior: Array, evidence: ScaledEvidence) -> Array:
        shape = self.domain.shape
        return self._joint(
            axes, table.reshape(shape(self.axes)), posterior.reshape(shape(self.separator))
        )

    def cells_of(self, axes: Axes) -> NDArray[np.int64]:
        """Return, for every cell of the clique, the flat index of the matching cell in a table over
        ``axes``; an array of the shape of the clique's table.
        """
        found = self._cells.get(axes)
        if found is None:
            flat = self.domain.cell_map(self.axes, axes)
            found = self._cells[axes] = flat.reshape(self.table.shape)
        return found

    def prepare(self) -> None:
        for axes in self.below:
            self.cells_of(axes)
        self._sums  # noqa: B018 - kept from now on

    def _agreeing(self, codes: Mapping[str, int]) -> Array:
        """Return the table with zeros where the rest differs from the observed codes."""
        table = self.table
        observed = {name: codes[name] for name in self.rest if name in codes}
        if not observed:
            return table
        shape, cut = self.domain.shape(self.axes), _cut(self.axes, observed)
        found = np.zeros(shape)
        found[cut] = table.reshape(shape)[cut]
        return found.reshape(table.shape)

    @cached_property
    def _sums(self) -> list[tuple[Axes, int, NDArray[np.int64]]]:
        made = [self.axes, *(axes for axes, _ in self.readings)]
        return [
            (axes, source, self.domain.cell_map(made[source], axes))
            for axes, source in self.readings
        ]


class LargeClique(Clique):
    """A clique whose table has one axis for each attribute. The table is sliced by the observed
    codes and summed over axes.
    """

    def prepare(self) -> None:
        self._sums  # noqa: B018 - kept from now on

    @cached_property
    def _sums(self) -> list[tuple[Axes, int, tuple[int, ...]]]:
        made = [self.axes, *(axes for axes, _ in self.readings)]
        return [
            (axes, source, tuple([i for i, n in enumerate(made[source]) if n not in axes]))
            for axes, source in self.readings
        ]

    def absorb(
        self, evidence: ScaledEvidence, received: Iterable[tuple[int, Array]]
    ) -> tuple[Array, Array]:
        codes = evidence.codes
        table = self.table[_cut(self.axes, codes)]
        for name in self.rest:
            if (weights := evidence.weights.get(name)) is not None:
                table = table * spread(self.axes, (name,), weights)
        for child, message in received:
            table = table * spread(self.axes, *self._sliced(self.below[child], message, codes))
        held = sum_to(table, self.axes, self.separator)
        return table, self._whole(self.separator, held, codes)

    def outputs_of(self, table: Array, posterior: Array, evidence: ScaledEvidence) -> Array:
        codes = evidence.codes
        if table is self.table:
            table = table[_cut(self.axes, codes)]
        joint = table * spread(self.axes, *self._sliced(self.separator, posterior, codes))
        made = [joint]
        found = np.empty(self.outputs)
        for axes, source, away in self._sums:
            made.append(sum_axes(made[source], away))
            start, end = self.spans[axes]
            found[start:end] = self._whole(axes, made[-1], codes)
        return found

    def joint(self, axes: Axes, table: Array, posterior: Array, evidence: ScaledEvidence) -> Array:
        codes = evidence.codes
        if table is self.table:
            table = table[_cut(self.axes, codes)]
        return self._joint(axes, table, self._sliced(self.separator, posterior, codes)[1])

    def _sliced(self, axes: Axes, vector: Array, codes: Mapping[str, int]) -> tuple[Axes, Array]:
        return axes, vector.reshape(self.domain.shape(axes))[_cut(axes, codes)]

    def _whole(self, axes: Axes, table: Array, codes: Mapping[str, int]) -> Array:
        """Return a vector over all cells of ``axes`` that has the values of ``table`` at the cells
        which agree with the observed codes, and 0 at the others.
        """
        if codes.keys().isdisjoint(axes):
            return table.reshape(-1)
        cut = _cut(axes, codes)
        whole = np.zeros(self.domain.shape(axes))
        whole[cut] = table
        return whole.reshape(-1)


_ALL = slice(None)


def _cut(axes: Axes, codes: Mapping[str, int]) -> tuple[slice, ...]:
    return tuple([slice(codes[n], codes[n] + 1) if n in codes else _ALL for n in axes])
