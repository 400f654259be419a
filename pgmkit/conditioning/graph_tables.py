"""The tables of a factor graph as inference takes them, and what it shares between questions."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.conditioning.calibrated_tree import CalibratedTree
from pgmkit.conditioning.elimination import (
    Cost,
    EliminationTree,
    Planning,
    cost_of_sums,
    elimination_tree,
)
from pgmkit.conditioning.joint import MOST_CELLS, Joint
from pgmkit.conditioning.message_passing import LEAST_ENTRY, Kernel, Underflow
from pgmkit.domain import Clique, Domain
from pgmkit.graphs.bit_sets import each_bit, union
from pgmkit.graphs.junction_tree import junction_tree, tree_of_order
from pgmkit.inference.answer_checks import FirstUses
from pgmkit.inference.plain_sums import PlainSums
from pgmkit.runtime.sizes import CELL_BYTES

__all__ = ["CELLS_OF_A_TABLE", "Draft", "GraphTables", "Inputs"]

Array = NDArray[np.float64]
Input = tuple[int, Array, float]

_REMEMBERED = 64
_REMEMBERED_KERNELS = 1 << 16
_CALIBRATED_AFTER = 2
"""Sets of evidence that are answered one by one before the graph is calibrated for the others: it
takes about as long as two more."""
_SEARCH_SECONDS = 0.01
"""The seconds of the search for the tree that is calibrated."""
_SEARCHED_DOWN = 2
"""The factor by which that search may make a tree smaller."""
_IMPOSSIBLE = 8
"""How many times smaller a tree may become by leaving out impossible cells, where most of the
tables' are.
"""
CELLS_OF_A_TABLE = 20_000.0
"""Cells of a pass in the time that a table takes to find its place in an order, and its marginal.
"""
_SEARCH_CELLS = 1000.0
"""Cells that a pass covers in the time that a search spends on an attribute."""


@dataclass(frozen=True, eq=False)
class GraphTables:
    """Checked tables over a domain; of a Bayesian network with the variable of each.

    Elimination trees by structure, and kernels, are kept for the questions to come.
    """

    domain: Domain
    tables: tuple[tuple[Clique, Array], ...]
    children: tuple[str, ...] | None
    states: Mapping[str, tuple[Hashable, ...]]
    memory_limit: int
    trees: dict[tuple[tuple[int, ...], tuple[int, ...], Cost], EliminationTree] = field(
        default_factory=dict
    )
    kernels: dict[tuple[int, int, int], Kernel] = field(default_factory=dict)
    structures: dict[tuple[int, int], Any] = field(default_factory=dict)
    """The parts that batches of records share, by relevant and observed attributes."""
    groups: dict[tuple[tuple[int, ...], int], list[list[int]]] = field(default_factory=dict)
    """Of questions, by what they ask and what is known, which are answered together; the last one
    is the last asked."""
    _inputs: dict[int, Input] = field(default_factory=dict)
    uses: FirstUses = field(default_factory=FirstUses)
    passes: list[float] = field(default_factory=list)
    """The cost in cells of each set of evidence that was answered by itself."""

    def prepare(self) -> None:
        """Number the attributes and tables, as every question needs them."""
        self.bits  # noqa: B018 - kept from now on
        self.sizes  # noqa: B018
        if self.children is not None:
            self.own, self.families  # noqa: B018

    @property
    def plain_sums(self) -> PlainSums:
        """The tables that the second computation sums. An order of elimination is all that it
        shares with inference: any order gives the same sums.
        """
        names = self.domain.attributes
        latest = next(reversed(self.trees.values()), None)
        order = () if latest is None else tuple([names[v] for v in latest.order])
        return replace(self._logarithms, order=order)

    @cached_property
    def _logarithms(self) -> PlainSums:
        with np.errstate(divide="ignore"):
            tables = [(clique, np.log(table)) for clique, table in self.tables]
        return PlainSums(tables, self.domain.sizes, self.children)

    @cached_property
    def bits(self) -> dict[str, int]:
        return {name: 1 << place for name, place in self.domain.places.items()}

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the attributes, in their order."""
        return self.domain.shape()

    @property
    def inputs(self) -> list[Input]:
        """The results of ``input`` for each table."""
        return [self.input(number) for number in range(len(self.tables))]

    def input(self, number: int) -> Input:
        """One table: its attributes, the table with ascending axes and peak 1, log of the peak.

        Conditional tables stay as they are: their sums mean something.
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
        """True if entries are too far below their table's peak for plain numbers."""
        return self.children is None and any(
            bool((table[table > 0] / table.max() < LEAST_ENTRY).any())
            for _, table in self.tables
            if table.max() > 0
        )

    @cached_property
    def own(self) -> list[int]:
        """The number of each attribute's table in a Bayesian network."""
        places = self.domain.places
        numbers = {places[child]: number for number, child in enumerate(self.children or ())}
        return [numbers[v] for v in range(len(self.domain))]

    @cached_property
    def families(self) -> list[int]:
        """The set of each attribute's parents and itself in a Bayesian network."""
        bits = self.bits
        return [sum([bits[name] for name in self.tables[number][0]]) for number in self.own]

    @cached_property
    def ancestors(self) -> list[int]:
        """The set of each attribute's ancestors and itself in a Bayesian network."""
        found = [0] * len(self.domain)
        for start in range(len(found)):
            waiting = [start]
            while waiting:
                v = waiting[-1]
                parents = each_bit(self.families[v] & ~(1 << v))
                missing = [u for u in parents if not found[u]]
                if missing and not found[v]:
                    waiting += missing
                    continue
                found[v] = union([1 << v, *(found[u] for u in parents)])
                waiting.pop()
        return found

    def relevant(self, asked: int) -> int:
        """The attributes without which nothing is lost about those asked (and observed)."""
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

    @cached_property
    def order(self) -> list[int]:
        """An elimination order for any evidence: that of the graph without any."""
        children = self.children or (None,) * len(self.tables)
        scopes = [members for members, _, _ in self.inputs]
        heads = [-1 if child is None else self.bits[child] for child in children]
        # An attribute in no table belongs to the order as well.
        held = {v for scope in scopes for v in each_bit(scope)}
        scopes += [1 << v for v in range(len(self.domain)) if v not in held]
        heads += [-1] * (len(scopes) - len(heads))
        return Planning(scopes, heads, self.sizes).best().order

    def draft(
        self, scopes: tuple[int, ...], heads: tuple[int, ...], cost: Cost = cost_of_sums
    ) -> Draft:
        """The tree of a structure before any search: remembered, from the whole graph's order, or
        by one greedy order.

        The first structure gets an order of its own, and so does one of few of the tables, or for
        which the whole graph's order is slower than a search.
        """
        sizes, best = self.sizes, self.trees.get((scopes, heads, cost))
        if best is not None:
            return Draft(scopes, heads, cost, best, None)
        if self.trees and 2 * len(scopes) > len(self.tables) and not self.parted:
            best = elimination_tree(scopes, heads, self.order, sizes)
        if best is not None and best.cells <= _SEARCH_CELLS * len(sizes):
            return Draft(scopes, heads, cost, best, None)
        return Draft(scopes, heads, cost, best, Planning(scopes, heads, sizes))

    def tree(self, draft: Draft) -> EliminationTree:
        """The tree of a draft, after the search; remembered."""
        key = draft.scopes, draft.heads, draft.cost
        found = self.trees.get(key)
        if found is None:
            found = draft.start
            if draft.planning is not None:
                found = draft.planning.best(found, draft.cost)
            assert found is not None
            if len(self.trees) >= _REMEMBERED:
                del self.trees[next(iter(self.trees))]
            if len(self.kernels) >= _REMEMBERED_KERNELS:
                self.kernels.clear()
            self.trees[key] = found
        return found

    @property
    def parted(self) -> bool:
        """True if the last question about most attributes was answered by several trees: so large
        is that of the whole graph that nothing is gained by its order.
        """
        for (sets, _), found in reversed(self.groups.items()):
            if 2 * len(sets) > len(self.domain):
                return len(found) > 1
        return False

    @property
    def joint(self) -> Joint | None:
        """The joint distribution of all attributes for further evidence, where it has few cells."""
        return self._joint if self.passes else None

    @cached_property
    def _joint(self) -> Joint | None:
        if self.lost or self.domain.size() > MOST_CELLS:
            return None
        return Joint(self.domain, self.inputs)

    @property
    def calibrated(self) -> CalibratedTree | None:
        """A calibrated tree for further evidence, once it pays; None before, or where it is too
        large or slower.
        """
        if "_calibrated" in self.__dict__:
            return self._calibrated
        # Another question may be answered by one tree: nothing is settled for good before.
        early = len(self.passes) < _CALIBRATED_AFTER or self.parted
        return None if early else self._calibrated

    def calibrated_for(self, cliques: Iterable[Clique]) -> CalibratedTree | None:
        """The calibrated tree, if these marginals are best read from it: those of attributes that
        share one of its cliques.

        Sets that lie apart do not make it: most attributes do not matter to a few, and an
        elimination tree leaves them out.
        """
        sets = [clique for clique in cliques if len(clique) > 1]
        if sets and "_calibrated" not in self.__dict__:
            return None
        found = self.calibrated
        if found is None or any(found.tree.holds(clique) is None for clique in sets):
            return None
        return found

    @cached_property
    def _calibrated(self) -> CalibratedTree | None:
        if self.lost:
            return None
        tree = tree_of_order(self.domain, [members for members, _, _ in self.inputs], self.order)
        # Its cliques are gone through about twice, where evidence slices them less.
        most = min(
            sum(self.passes) / len(self.passes) / 2,
            self.memory_limit // CELL_BYTES,
        )
        largest = most * (_IMPOSSIBLE if 2 * self.share < 1 else 1)
        if tree.cells > _SEARCHED_DOWN * largest:
            return None
        # What is gone through so often is worth a search of its own.
        searched = junction_tree(self.domain, [c for c, _ in self.tables], seconds=_SEARCH_SECONDS)
        tree = min(tree, searched, key=lambda each: each.cells)
        if tree.cells > largest:
            return None
        try:
            return CalibratedTree(tree, self.inputs, self.children is not None, most)
        except (Underflow, MemoryError):
            return None

    @cached_property
    def share(self) -> float:
        """The share of the tables' cells that are not zero."""
        cells = sum([table.size for _, table in self.tables])
        return sum([int(np.count_nonzero(table)) for _, table in self.tables]) / max(cells, 1)


@dataclass
class Draft:
    """A record of what is known of a structure's tree before it is searched for."""

    scopes: tuple[int, ...]
    heads: tuple[int, ...]
    cost: Cost
    start: EliminationTree | None
    """A tree there is."""
    planning: Planning | None
    """A search for a better one, where it may pay."""

    @property
    def tree(self) -> EliminationTree:
        """The best so far."""
        known = [self.start, None if self.planning is None else self.planning.first]
        return min([tree for tree in known if tree is not None], key=lambda each: each.cells)


@dataclass
class Inputs:
    """Tables with their attributes as sets, axes ascending."""

    scopes: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    """The attribute that each is a conditional distribution of, as a set; -1 for any other."""
    tables: list[Array] = field(default_factory=list)
    lost: bool = False
    """True if entries are too far below their table's peak for plain numbers."""
    log_scale: float = 0.0
    """log of what was taken out of the tables."""

    draft: Draft | None = None
    """The draft of their tree."""

    def add(self, members: int, table: Array, head: int) -> None:
        """One more table; a number goes to the scale."""
        if members:
            self.scopes.append(members)
            self.heads.append(head)
            self.tables.append(table)
        else:
            self.log_scale += math.log(table) if table > 0 else -math.inf
