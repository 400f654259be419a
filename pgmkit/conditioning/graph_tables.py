"""The tables of a factor graph as inference takes them, and what is kept from one question to the
next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any, TypeVar

import numpy as np

from pgmkit.conditioning.calibrated_tree import CalibratedTree, Input
from pgmkit.conditioning.elimination import EliminationTree, Planning
from pgmkit.conditioning.joint import Joint, is_small
from pgmkit.conditioning.kernels import Kernel
from pgmkit.conditioning.message_passing import LEAST_ENTRY, Underflow
from pgmkit.conditioning.pass_memory import kept_bytes
from pgmkit.domain import Clique, Domain
from pgmkit.graphs.bit_sets import each_bit, union
from pgmkit.graphs.junction_tree import junction_tree
from pgmkit.inference.plain_sums import PlainSums
from pgmkit.inference.self_check import FirstUses
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import (
    CELL_BYTES,
    FEW_CELLS,
    MULTIPLICATIONS_A_SECOND,
    REMEMBERED,
    TABLE_CELLS,
    UNNOTICED_SECONDS,
)

Structure = tuple[tuple[int, ...], tuple[int, ...]]
K = TypeVar("K")
V = TypeVar("V")

_MOST_CELLS = 4 * TABLE_CELLS
"""The largest number of cells that all tables of a calibrated tree may have together."""
_REMEMBERED_KERNELS = REMEMBERED * FEW_CELLS
CELLS_OF_A_TABLE = int(MULTIPLICATIONS_A_SECOND) // 50_000
"""The number of cells that a pass multiplies in the time that handling one table (ordering it and
reading its marginal) takes.
"""


@dataclass(frozen=True, eq=False)
class GraphTables:
    """The checked tables of a factor graph and, in a Bayesian network, the variable that each is
    the distribution of (``children``).

    Elimination trees and kernels are kept for later questions.
    """

    domain: Domain
    tables: tuple[tuple[Clique, Array], ...]
    children: tuple[str, ...] | None
    states: Mapping[str, tuple[Hashable, ...]]
    memory_limit: int
    trees: dict[Structure, EliminationTree] = field(default_factory=dict)
    kernels: dict[tuple[int, int, int], Kernel] = field(default_factory=dict)
    structures: dict[tuple[int, int], Any] = field(default_factory=dict)
    """The structures that batches of records share, by relevant and observed attributes (bit
    masks).
    """
    groups: dict[tuple[tuple[int, ...], int], list[list[int]]] = field(default_factory=dict)
    """The groups of sets of attributes that are answered by one tree each, by the sets asked for
    and the attributes with evidence. The last entry is that of the last question.
    """
    _inputs: dict[int, Input] = field(default_factory=dict)
    uses: FirstUses = field(default_factory=FirstUses)
    passes: list[float] = field(default_factory=list)
    """The cost, in multiplications, of each set of evidence that was answered by messages in an
    elimination tree, and not from a joint distribution or a calibrated tree.
    """

    @property
    def plain_sums(self) -> PlainSums:
        """Sums over the tables, one attribute after the other on plain arrays, by which answers are
        computed a second time to check them (``pgmkit.inference.answer_checks``). They share only
        an elimination order with inference, and any order gives the same sums. They may use the
        memory that the limit leaves after the answer.
        """
        names, order, kept = self.domain.attributes, list[str](), 0.0
        if (latest := next(reversed(self.trees.values()), None)) is not None:
            order = [names[v] for v in latest.order]
            kept = kept_bytes(latest, self.memory_limit)
        if (calibrated := self.__dict__.get("calibrated")) is not None:
            kept = max(kept, 2.0 * CELL_BYTES * calibrated.tree.cells)
        return PlainSums(
            self.tables,
            dict(self.domain.sizes),  # the read-only mapping cannot be pickled
            self.children,
            order,
            plain=True,
            room=self.memory_limit - kept,
        )

    @cached_property
    def bits(self) -> dict[str, int]:
        """The bit of each attribute in sets of attributes."""
        return {name: 1 << place for name, place in self.domain.places.items()}

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the attributes, in the domain's order."""
        return self.domain.shape()

    @property
    def inputs(self) -> list[Input]:
        """For each table what ``input`` returns: its attributes, the table (divided by its maximum
        unless it is a conditional distribution), and the logarithm of the divisor.
        """
        return [self.input(number) for number in range(len(self.tables))]

    def input(self, number: int) -> Input:
        """Return a table's attributes as a bit set (`bits`), the table divided by its maximum, with
        its axes ascending, and the logarithm of that maximum.

        A table of zeros is not divided, nor are the conditional distributions of a Bayesian
        network, since inference uses that they sum to one; their logarithm is 0.
        """
        found = self._inputs.get(number)
        if found is None:
            clique, table = self.tables[number]
            places = self.domain.places
            axes = [places[name] for name in clique]
            if axes != (ascending := sorted(axes)):
                table = table.transpose([axes.index(v) for v in ascending])
            log_peak = 0.0
            if self.children is None and (peak := float(table.max())) not in (0.0, 1.0):
                table, log_peak = table / peak, math.log(peak)
            found = self._inputs[number] = sum([1 << v for v in axes]), table, log_peak
        return found

    @cached_property
    def lost(self) -> bool:
        """True if some entries are so far below their table's maximum that products may underflow
        unless they are computed in logarithms. Always False for a Bayesian network, whose tables
        are not scaled.
        """
        return self.children is None and any(
            bool((table[table > 0] / table.max() < LEAST_ENTRY).any())
            for _, table in self.tables
            if table.max() > 0
        )

    @cached_property
    def own(self) -> list[int]:
        """The index in ``tables`` of each attribute's conditional distribution, in the domain's
        order, for Bayesian networks only.
        """
        places = self.domain.places
        numbers = {places[child]: number for number, child in enumerate(self.children or ())}
        return [numbers[v] for v in range(len(self.domain))]

    @cached_property
    def families(self) -> list[int]:
        """For each attribute the set of itself and its parents in a Bayesian network."""
        bits = self.bits
        return [sum([bits[name] for name in self.tables[number][0]]) for number in self.own]

    @cached_property
    def ancestors(self) -> dict[int, int]:
        """For each attribute the set of itself and its ancestors in a Bayesian network."""
        parents = {v: each_bit(family & ~(1 << v)) for v, family in enumerate(self.families)}
        found: dict[int, int] = {}
        for v in TopologicalSorter(parents).static_order():
            found[v] = union([1 << v, *(found[u] for u in parents[v])])
        return found

    def relevant(self, asked: int) -> int:
        """Return the attributes whose tables determine an answer. ``asked`` has the attributes that
        are asked for and those with evidence. In a Bayesian network the result is ``asked`` and
        their ancestors, otherwise all attributes.
        """
        if self.children is None:
            return (1 << len(self.domain)) - 1
        found, new, families = 0, asked, self.families
        while new:
            found |= new
            around = 0
            for v in each_bit(new):
                around |= families[v]
            new = around & ~found
        return found

    def parts(self, relevant: int, observed: int) -> Iterator[tuple[Input, int, int]]:
        """Yield a triple for each table of the relevant attributes: the table as ``input`` returns
        it, the set of its attributes that are not observed, and its head.

        The head is the variable whose conditional distribution the table is, as a set. It is -1 for
        other tables, and if the variable is observed: the table at its code is no distribution.
        Every attribute must be in some table, so one without gets a table of ones.
        """
        numbers: Sequence[int] = range(len(self.tables))
        missing = relevant & ~observed
        if self.children is not None:
            numbers = sorted([self.own[v] for v in each_bit(relevant)])
        for number in numbers:
            given = self.input(number)
            head = -1 if self.children is None else self.bits[self.children[number]]
            missing &= ~given[0]
            yield given, given[0] & ~observed, -1 if head & observed else head
        for v in each_bit(missing):
            yield (1 << v, np.ones(self.sizes[v]), 0.0), 1 << v, -1

    def draft(self, inputs: Inputs) -> EliminationTree:
        """Return the elimination tree of these tables that is known before a search: a remembered
        one, or that of a greedy order.
        """
        return self.trees.get(inputs.structure) or inputs.planning.first

    def tree(self, inputs: Inputs) -> EliminationTree:
        """Return the elimination tree of these tables: a remembered one, or the best that a search
        finds, which is remembered. All kernels are dropped before a search if there are many.
        """
        if inputs.structure not in self.trees and len(self.kernels) >= _REMEMBERED_KERNELS:
            self.kernels.clear()
        return remembered(self.trees, inputs.structure, lambda: inputs.planning.best())

    @property
    def was_split(self) -> bool:
        """True if several trees answered the last question that had more cliques than half the
        number of attributes, since they cost less than one tree; False if there was no such
        question.
        """
        for (sets, _), found in reversed(self.groups.items()):
            if 2 * len(sets) > len(self.domain):
                return len(found) > 1
        return False

    @cached_property
    def joint(self) -> Joint | None:
        """The joint distribution of all attributes, from which any evidence is answered; None if it
        has many cells, or if products may underflow.
        """
        if self.lost or not is_small(self.sizes):
            return None
        return Joint(self.domain, self.inputs)

    def calibrated_for(self, cliques: Iterable[Clique]) -> CalibratedTree | None:
        """Return the calibrated tree, or None if there is none or one of these cliques is in no
        clique of the tree.

        If no tree is calibrated yet, only a question about single attributes alone leads to one,
        and only after a set of evidence was answered by messages in one elimination tree
        (``passes``). A clique of several attributes is answered by an elimination tree, which has
        only the attributes that are relevant to the clique.
        """
        sets = [clique for clique in cliques if len(clique) > 1]
        # `calibrated` decides for good at its first use whether there is a calibrated tree. While
        # questions are answered by several smaller trees (`was_split`), which cost less than one
        # tree of the whole graph, it is not used yet, since a later question may still need the
        # whole tree.
        if "calibrated" not in self.__dict__ and (sets or not self.passes or self.was_split):
            return None
        found = self.calibrated
        if found is None or any(found.tree.holds(clique) is None for clique in sets):
            return None
        return found

    @cached_property
    def calibrated(self) -> CalibratedTree | None:
        """A calibrated tree from which further evidence is answered. It is None if the tree has
        more cells than fit the memory limit or than ``_MOST_CELLS``, if it is slower than an
        elimination tree for each set of evidence, or if products may underflow. The first use
        decides for good, so ``calibrated_for`` waits until one set of evidence has been answered by
        messages in an elimination tree (``passes``).
        """
        if self.lost or not self.passes:
            return None
        # This tree serves all further evidence, so a search of a few milliseconds pays: it halves
        # the cells of the tree of the network "insurance", whose answers then take a seventh less.
        cliques = [clique for clique, _ in self.tables]
        tree = junction_tree(self.domain, cliques, seconds=UNNOTICED_SECONDS)
        # An answer from a calibrated tree reads the tree's cliques about twice, and evidence
        # shrinks fewer tables of such a tree than of a pass made for the question. So the tree
        # saves time only if it has at most half as many cells as an average pass multiplies.
        average, limit = sum(self.passes) / len(self.passes), self.memory_limit // CELL_BYTES
        if tree.cells > min(average / 2, limit, _MOST_CELLS):
            return None
        try:
            return CalibratedTree(tree, self.inputs, self.children is not None)
        except (Underflow, MemoryError):
            return None


@dataclass
class Inputs:
    """The input tables of an elimination tree, with axes ascending, and their attributes as
    sets.
    """

    sizes: tuple[int, ...]
    """The sizes of all attributes."""
    scopes: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    """The attribute that each table is a conditional distribution of, as a set; -1 for any other
    table.
    """
    tables: list[Array] = field(default_factory=list)
    log_scale: float = 0.0
    """The logarithm of the product of the numbers that the tables were divided by, and of the
    tables without attributes, which are not in ``tables``.
    """

    @cached_property
    def structure(self) -> Structure:
        """The attributes and heads of all tables, by which their elimination tree is remembered."""
        return tuple(self.scopes), tuple(self.heads)

    @cached_property
    def planning(self) -> Planning:
        """The search for the tables' elimination tree."""
        return Planning(self.scopes, self.heads, self.sizes)

    def add(self, members: int, table: Array, head: int) -> None:
        """Add a table over the attributes ``members``, a conditional distribution of the attribute
        ``head`` (a set) or, if that is -1, another table. The logarithm of a table without
        attributes, a number, is added to ``log_scale``.
        """
        if members:
            self.scopes.append(members)
            self.heads.append(head)
            self.tables.append(table)
        else:
            self.log_scale += math.log(table) if table > 0 else -math.inf


def remembered(held: dict[K, V], key: K, make: Callable[[], V], most: float = REMEMBERED) -> V:
    """Return the value of a key or, if there is none, that of ``make()``, which is then held. If
    more than ``most`` values would be held, the oldest is dropped.
    """
    if (found := held.get(key)) is None:
        found = make()
        if len(held) >= most:
            del held[next(iter(held))]
        held[key] = found
    return found


def supersede(held: dict[int, V], members: int, value: V) -> None:
    """Hold ``value`` for the set of attributes ``members``, and drop what is held for its subsets,
    since ``value`` answers their questions too.
    """
    for known in [each for each in held if not each & ~members]:
        del held[known]
    held[members] = value
