"""Cliques of a calibrated junction tree: their tables P(rest | separator) and the messages through
them.

A clique's *separator* is the set of attributes that it shares with its parent; the *rest* are its
other attributes. Messages are vectors over all cells of a separator. The upward message is the
probability of the evidence below given each cell, the downward message the posterior of each cell.
A clique's *outputs* are what it computes on the way down, in one vector: the marginals of the
attributes of its rest, one after another, then the posteriors of its children's separators.

There are two kinds of cliques. A small one, of at most ``CALL_CELLS`` cells, stores for each cell
the index of the matching cell in every table that the clique is multiplied by or summed into. So it
needs one call of numpy where sums over axes take several, and networks of small tables answer about
twice as fast. A large clique works axis by axis and is sliced by the observed codes: indices for
all its cells would take twice the memory and up to 2.9 times as long.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.conditioning.evidence import Evidence
from pgmkit.domain import Domain
from pgmkit.linear.axes import Axes, spread, sum_axes, sum_to
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import CALL_CELLS


def clique_of(domain: Domain, separator: Axes, rest: Axes, below: Sequence[Axes]) -> Clique:
    """Return a clique without its table. The order of ``separator`` is kept; ``below`` are the
    children's separators, in any order of their attributes.

    The axes of a large clique are ordered by S, the children's separator with the most cells: the
    clique's own separator outside S, the rest outside S, the rest in S, the separator in S. The
    sums to S and to the clique's own separator are then over long vectors.
    """
    axes = separator + rest
    if domain.size(axes) <= CALL_CELLS:
        return SmallClique(domain, separator, rest, axes, below)
    if below:
        on = max(below, key=domain.size)
        axes = tuple(
            [name for name in separator if name not in on]
            + [name for name in rest if name not in on]
            + [name for name in rest if name in on]
            + [name for name in separator if name in on]
        )
    return LargeClique(domain, separator, rest, axes, below)


class Clique(ABC):
    """A clique and its table P(rest | separator).

    Args:
        domain: all attributes.
        separator: the attributes that the clique shares with its parent, in the order of the axes
            of tables over them.
        rest: the attributes that its parent lacks.
        axes: the attributes of the clique, in the order of its table's axes.
        below: the separators of its children.
    """

    table: Array

    def __init__(
        self, domain: Domain, separator: Axes, rest: Axes, axes: Axes, below: Sequence[Axes]
    ) -> None:
        self.domain, self.separator, self.rest, self.axes = domain, separator, rest, axes
        self.below = [tuple([name for name in axes if name in each]) for each in below]
        """The separators of the children, each with its attributes in the order of ``axes``."""
        self.spans: dict[Axes, tuple[int, int]] = {}
        """The slice of each output in the vector of outputs; equal separators share one."""
        self.own = sum([domain.sizes[name] for name in rest])
        """The number of outputs that are marginals of the rest; they come first."""
        self.outputs = 0
        """The number of all outputs, cells of marginals and of posteriors."""
        for output in (*((name,) for name in rest), *self.below):
            if output not in self.spans:
                end = self.outputs + domain.size(output)
                self.spans[output] = self.outputs, end
                self.outputs = end

    def hold(self, table: Array) -> None:
        """Set the clique's table; the axes of ``table`` are ``axes``."""
        self.table = table

    @abstractmethod
    def absorb(
        self, evidence: Evidence, received: Iterable[tuple[Axes, Array]]
    ) -> tuple[Array, Array]:
        """Return the table multiplied by the evidence on the rest and by the children's messages,
        and the sum of this product over the rest, which is the message to the parent.

        Args:
            evidence: the evidence. The parent absorbs the evidence on the separator; but a large
                clique is sliced by the separator's observed codes too, and its message is 0 at the
                cells with other codes.
            received: the children's separators, each with its message.
        """

    @abstractmethod
    def outputs_of(self, table: Array, posterior: Array, evidence: Evidence) -> Array:
        """Return in one vector, at the places ``spans``, the marginals of the attributes of the
        rest, one after another, and then the posteriors of the children's separators. Each set of
        attributes comes once, also if several children have the same separator.

        Args:
            table: the clique's own table, or the table that ``absorb`` returned.
            posterior: the posterior of the separator's cells, divided by the clique's message if
                ``table`` is from ``absorb``.
            evidence: the evidence.
        """

    @abstractmethod
    def joint(self, axes: Axes, table: Array, posterior: Array, evidence: Evidence) -> Array:
        """Return the joint marginal of some of the clique's unobserved attributes.

        Args:
            axes: the attributes, in the order of the result's axes.
            table: the clique's own table, or the table that ``absorb`` returned.
            posterior: the posterior of the separator's cells, divided by the clique's message if
                ``table`` is from ``absorb``.
            evidence: the evidence.
        """

    def prepare(self) -> None:
        """Compute the order of the sums and the indices now, instead of with the first evidence;
        they do not depend on evidence.
        """
        self._sums  # noqa: B018 - kept from now on

    @abstractmethod
    def _summing(self, held: Axes, axes: Axes) -> Any:
        """Return what summing a table with the axes ``held`` to the axes ``axes`` needs: in a small
        clique the index of the target of every cell, in a large one the axes to sum over.
        """

    @cached_property
    def _sums(self) -> list[tuple[Axes, int, Any]]:
        """The order in which outputs are computed, the largest first: the axes of each output, the
        number of the smallest earlier table from which it can be summed, and the result of
        ``_summing`` for that sum. Table 0 is the clique's own, and table k the result of entry
        k - 1.
        """
        made, work, found = [self.axes], [self.table.size], []
        for axes in sorted(self.spans, key=self.domain.size, reverse=True):
            held = [i for i, each in enumerate(made) if set(axes) <= set(each)]
            source = min(held, key=work.__getitem__)
            found.append((axes, source, self._summing(made[source], axes)))
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

    def hold(self, table: Array) -> None:
        self.table = table.reshape(self.domain.size(self.separator), -1)
        self._ones = np.ones(self.table.shape[1])
        self._cells: dict[Axes, NDArray[np.int64]] = {}

    def absorb(
        self, evidence: Evidence, received: Iterable[tuple[Axes, Array]]
    ) -> tuple[Array, Array]:
        table = self._agreeing(evidence.codes)
        if evidence.likelihood:
            for name in self.rest:
                if (weights := evidence.likelihood.get(name)) is not None:
                    table = table * weights.take(self.cells_of((name,)))
        for axes, message in received:
            table = table * message.take(self.cells_of(axes))
        return table, np.dot(table, self._ones)

    def outputs_of(self, table: Array, posterior: Array, evidence: Evidence) -> Array:
        made: list[Array] = [(table * posterior[:, None]).reshape(-1)]
        found = np.empty(self.outputs)
        for axes, source, cells in self._sums:
            made.append(np.bincount(cells, made[source]).astype(np.float64, copy=False))
            start, end = self.spans[axes]
            found[start:end] = made[-1]
        return found

    def joint(self, axes: Axes, table: Array, posterior: Array, evidence: Evidence) -> Array:
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
        super().prepare()
        for axes in self.below:
            self.cells_of(axes)

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

    def _summing(self, held: Axes, axes: Axes) -> NDArray[np.int64]:
        return self.domain.cell_map(held, axes)


class LargeClique(Clique):
    """A clique whose table has one axis for each attribute. The table is sliced by the observed
    codes and summed over axes.
    """

    def _summing(self, held: Axes, axes: Axes) -> tuple[int, ...]:
        return tuple([place for place, name in enumerate(held) if name not in axes])

    def absorb(
        self, evidence: Evidence, received: Iterable[tuple[Axes, Array]]
    ) -> tuple[Array, Array]:
        codes = evidence.codes
        table = self.table[_cut(self.axes, codes)]
        for name in self.rest:
            if (weights := evidence.likelihood.get(name)) is not None:
                table = table * spread(self.axes, (name,), weights)
        for axes, message in received:
            table = table * spread(self.axes, *self._sliced(axes, message, codes))
        return table, self._whole(self.separator, sum_to(table, self.axes, self.separator), codes)

    def outputs_of(self, table: Array, posterior: Array, evidence: Evidence) -> Array:
        codes = evidence.codes
        if table is self.table:
            table = table[_cut(self.axes, codes)]
        made = [table * spread(self.axes, *self._sliced(self.separator, posterior, codes))]
        found = np.empty(self.outputs)
        for axes, source, away in self._sums:
            made.append(sum_axes(made[source], away))
            start, end = self.spans[axes]
            found[start:end] = self._whole(axes, made[-1], codes)
        return found

    def joint(self, axes: Axes, table: Array, posterior: Array, evidence: Evidence) -> Array:
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
