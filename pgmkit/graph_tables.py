"""The tables of a factor graph as inference takes them, and what it shares between questions."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.elimination import EliminationTree, best_tree, each_bit, elimination_tree
from pgmkit.message_passing import LEAST_ENTRY, Kernel

__all__ = ["GraphTables"]

Array = NDArray[np.float64]

_REMEMBERED = 64
_REMEMBERED_KERNELS = 1 << 16
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
    trees: dict[tuple[tuple[int, ...], tuple[int, ...]], EliminationTree] = field(
        default_factory=dict
    )
    kernels: dict[tuple[int, int, int], Kernel] = field(default_factory=dict)

    @cached_property
    def bits(self) -> dict[str, int]:
        return {name: 1 << place for name, place in self.domain.places.items()}

    @cached_property
    def inputs(self) -> list[tuple[int, Array, float]]:
        """Of each table: its attributes, the table with ascending axes and peak 1, log of the peak.

        Conditional tables stay as they are: their sums mean something.
        """
        found = []
        place = self.domain.places
        for clique, table in self.tables:
            order = sorted(range(len(clique)), key=[place[name] for name in clique].__getitem__)
            peak = 1.0 if self.children is not None else float(table.max())
            scaled = table if peak in (0.0, 1.0) else table / peak
            members = sum([self.bits[name] for name in clique])
            found.append((members, scaled.transpose(order), math.log(peak) if peak else 0.0))
        return found

    @cached_property
    def lost(self) -> bool:
        """Whether entries are too far below their table's peak for plain numbers."""
        return self.children is None and any(
            bool((table[table > 0] / table.max() < LEAST_ENTRY).any())
            for _, table in self.tables
            if table.max() > 0
        )

    @cached_property
    def families(self) -> list[int]:
        """Of a Bayesian network, for each attribute the set of it and its parents."""
        found = [0] * len(self.domain)
        for (members, _, _), child in zip(self.inputs, self.children or (), strict=True):
            found[self.bits[child].bit_length() - 1] = members
        return found

    def relevant(self, asked: int) -> int:
        """The attributes without which nothing is lost about those asked (and observed)."""
        if self.children is None:
            return (1 << len(self.domain)) - 1
        found, new = 0, asked
        while new:
            found |= new
            around = 0
            for v in each_bit(new):
                around |= self.families[v]
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
        return best_tree(scopes, heads, self.domain.shape()).order

    def tree(self, scopes: tuple[int, ...], heads: tuple[int, ...]) -> EliminationTree:
        """The tree of a structure: remembered, or from the whole graph's order, or a new one.

        The first structure gets an order of its own, and so does one for which the whole graph's
        order is slower than a search.
        """
        trees = self.trees
        key = (scopes, heads)
        if key in trees:
            return trees[key]
        sizes = self.domain.shape()
        best = None
        if trees:
            best = elimination_tree(scopes, heads, self.order, sizes)
        if best is None or best.cells > _SEARCH_CELLS * len(sizes):
            best = best_tree(scopes, heads, sizes, best)
        if len(trees) >= _REMEMBERED:
            del trees[next(iter(trees))]
        if len(self.kernels) >= _REMEMBERED_KERNELS:
            self.kernels.clear()
        trees[key] = best
        return best
