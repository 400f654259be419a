"""Many marginals at once from a calibrated junction tree, inside its cliques and across them.

A marginal across cliques is a product at one *meeting* clique: the clique's own table times, for
each side of the tree with wanted attributes A, the table P(A | separator to that side). Those
conditional tables are themselves such products one clique further, so they are found recursively
and remembered: hundreds of marginals share nearly all their work. The meeting clique is where the
wanted attributes part ways, so that no side has more than half of them and few different tables
are needed.

Sets of attributes are integers here, with one bit for each attribute, and the axes of every table
follow the domain's order: a set of attributes says all about a table's axes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pgmkit.contraction.plan import Kernel
from pgmkit.contraction.semirings import LINEAR
from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.graphs.bit_sets import each_bit
from pgmkit.graphs.junction_tree import JunctionTree
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.memory import check_limit

__all__ = ["Routes", "Tables", "check_beliefs", "marginals", "routes_of"]

_DIRECT_CELLS = 1 << 12
"""A table up to this size is summed in one step; larger ones by way of shared smaller tables."""

_KEPT_BYTES = 1 << 28
"""Remembered tables are dropped between marginals when they take more than this."""


def marginals(
    tree: JunctionTree,
    beliefs: Sequence[torch.Tensor],
    requested: Iterable[Sequence[str]],
    *,
    memory_limit: int | None = None,
) -> dict[Clique, torch.Tensor]:
    """The marginal over each requested set of attributes.

    Args:
        tree: a junction tree.
        beliefs: the marginal table of each `tree.cliques[i]`, axes in the clique's order: counts,
            non-negative, all of one total and one dtype, equal on the separators they share.
        requested: sets of attributes in any order, inside a clique or not; () asks for the total.
        memory_limit: bytes that the results and the tables on the way may take together.

    Returns:
        {attributes as requested: table with its axes in that order}, counts of the same total, in
        the dtype and on the device of the beliefs. Tables may share memory: do not write to them.
        Between two cliques the attributes are independent given what separates them (in different
        components: independent); cells whose separator has no mass get none.

    Raises:
        InvalidInput: a request is not made of distinct attributes of the domain, or the beliefs
            do not fit the tree.
        ModelTooLarge: a table exceeds the memory limit; raised before it is allocated.

    >>> from pgmkit.domain import Domain
    >>> from pgmkit.graphs.junction_tree import junction_tree
    >>> tree = junction_tree(Domain({"a": 2, "b": 2}), [])
    >>> beliefs = [torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0])]
    >>> marginals(tree, beliefs, [("b", "a")])
    {('b', 'a'): tensor([[0.5000, 1.5000],
            [0.5000, 1.5000]])}
    """
    check_beliefs(tree, beliefs, memory_limit)
    if isinstance(requested, (str, bytes)) or not isinstance(requested, Iterable):
        raise InvalidInput(
            f"requested must be a sequence of cliques such as [('age', 'sex')], got {requested!r}"
        )
    wanted = [
        tree.domain.clique(attrs, f"requested[{number}]") for number, attrs in enumerate(requested)
    ]
    routes = routes_of(tree)
    sets = {clique: routes.members(clique) for clique in wanted}
    distinct = set(sets.values())
    tables = Tables(routes, beliefs, memory_limit)
    tables.reserve_results(distinct)
    # Marginals that meet at one clique follow each other: they share the most.
    meetings = sorted((routes.meeting(members), members) for members in distinct)
    found = {members: tables.marginal(here, members) for here, members in meetings}
    return {clique: routes.arranged(found[sets[clique]], clique) for clique in wanted}


def check_beliefs(
    tree: JunctionTree, beliefs: Sequence[torch.Tensor], memory_limit: int | None
) -> None:
    """Raises InvalidInput for beliefs that do not fit the tree, or a limit that is no number."""
    if memory_limit is not None:
        check_limit(memory_limit)
    if len(beliefs) != len(tree.cliques):
        raise InvalidInput(
            f"beliefs must hold one table for each of the {len(tree.cliques)} cliques of the tree, "
            f"got {len(beliefs)}"
        )
    for clique, belief in zip(tree.cliques, beliefs, strict=True):
        if tuple(belief.shape) != tree.domain.shape(clique):
            raise InvalidInput(
                f"the belief of clique {clique!r} must have shape {tree.domain.shape(clique)}, "
                f"got {tuple(belief.shape)}"
            )


@lru_cache(maxsize=64)
def routes_of(tree: JunctionTree) -> Routes:
    """The tree's routes, remembered: they are the same for all beliefs."""
    return Routes(tree)


class Routes:
    """What depends on the tree alone: which way leads to which attribute, and how tables combine.

    Roots of components are joined by edges with an empty separator.
    """

    def __init__(self, tree: JunctionTree) -> None:
        self.names = tree.domain.attributes
        self.sizes = tree.domain.sizes
        self.lengths = tree.domain.shape()
        self.bits = {name: 1 << index for index, name in enumerate(self.names)}
        self.cliques = [self.members(clique) for clique in tree.cliques]
        self.tree = tree
        self.above = [max(parent, 0) for parent in tree.parents]
        self.children: list[list[int]] = [[] for _ in tree.cliques]
        self.separators: dict[tuple[int, int], int] = {}
        for child in range(1, len(tree.cliques)):
            above = self.above[child]
            self.children[above].append(child)
            shared = self.members(tree.separators[child])
            self.separators[child, above] = self.separators[above, child] = shared
        self._number()
        self._ranks = [tree.containing[1][name] for name in self.names]
        self._cells: dict[int, int] = {}
        self._kernels: dict[tuple[int, int, int], Kernel] = {}

    def _number(self) -> None:
        """Number the cliques so that each subtree is a range, and find each attribute's top clique.

        An attribute outside a clique lies below it exactly when its top clique does.
        """
        count = len(self.cliques)
        below = [1] * count
        for child in range(count - 1, 0, -1):
            below[self.above[child]] += below[child]
        self.numbers = [0] * count
        for v, children in enumerate(self.children):
            number = self.numbers[v] + 1
            for child in children:
                self.numbers[child] = number
                number += below[child]
        self.last = [number + size - 1 for number, size in zip(self.numbers, below, strict=True)]
        self.child_numbers = [[self.numbers[child] for child in some] for some in self.children]
        self.top: dict[int, int] = {}
        for v, clique in enumerate(self.cliques):
            for index in each_bit(clique):
                self.top.setdefault(index, v)

    def members(self, clique: Clique) -> int:
        return sum(self.bits[name] for name in clique)

    def axes(self, members: int) -> Clique:
        return tuple(self.names[index] for index in each_bit(members))

    def cells(self, members: int) -> int:
        found = self._cells.get(members)
        if found is None:
            found = math.prod(self.lengths[index] for index in each_bit(members))
            self._cells[members] = found
        return found

    def arranged(self, table: torch.Tensor, clique: Clique) -> torch.Tensor:
        """The table of these attributes with its axes in the clique's order."""
        places = sorted(clique, key=self.bits.__getitem__)
        return table.permute([places.index(name) for name in clique])

    def kernel(self, left: int, right: int, out: int) -> Kernel:
        key = (left, right, out)
        found = self._kernels.get(key)
        if found is None:
            found = Kernel(self.axes(left), self.axes(right), self.axes(out), self.sizes)
            self._kernels[key] = found
        return found

    def holder(self, members: int) -> int | None:
        """The smallest clique that holds the attributes, as `JunctionTree.holds`."""
        by_size, _ = self.tree.containing
        ranks = (1 << len(by_size)) - 1
        for index in each_bit(members):
            ranks &= self._ranks[index]
        return by_size[(ranks & -ranks).bit_length() - 1] if ranks else None

    def meeting(self, members: int) -> int:
        """The clique where the wanted attributes part ways, or the smallest that has them all."""
        holder = self.holder(members)
        if holder is not None:
            return holder
        # From the largest attribute: so the smaller ones are carried along the tree.
        largest = max((1 << index for index in each_bit(members)), key=self.cells)
        here = self.holder(largest)
        assert here is not None  # every attribute is in some clique
        half = members.bit_count() // 2
        while True:
            sides = self.sides(here, members)
            heaviest = max(sides, key=lambda side: sides[side].bit_count())
            left_behind = members & self.cliques[here] & ~self.cliques[heaviest]
            if sides[heaviest].bit_count() <= half and (len(sides) > 1 or left_behind):
                return here
            here = heaviest

    def sides(self, here: int, members: int) -> dict[int, int]:
        """The attributes that are not in the clique `here`, by the neighbour that leads to them."""
        found: dict[int, int] = {}
        first, last = self.numbers[here], self.last[here]
        missing = members & ~self.cliques[here]
        while missing:
            bit = missing & -missing
            missing ^= bit
            number = self.numbers[self.top[bit.bit_length() - 1]]
            if first < number <= last:
                side = self.children[here][bisect_right(self.child_numbers[here], number) - 1]
            else:
                side = self.above[here]
            found[side] = found.get(side, 0) | bit
        return found


class Tables:
    """The tables of one run, each computed when it is first needed."""

    def __init__(
        self, routes: Routes, beliefs: Sequence[torch.Tensor], memory_limit: int | None
    ) -> None:
        self.routes, self.beliefs = routes, beliefs
        self.limit = memory_limit
        self.itemsize = beliefs[0].element_size()
        self.results: set[int] = set()
        self.results_bytes = self.kept = 0
        self._inside: dict[tuple[int, int], torch.Tensor] = {}
        self._local: dict[tuple[int, int, int], torch.Tensor] = {}
        self._given: dict[tuple[int, int, int], torch.Tensor] = {}

    def reserve_results(self, results: set[int]) -> None:
        """Refuse the results before any work when they cannot fit."""
        for members in sorted(results, key=self.routes.cells):
            self.reserve(members)
            self.results.add(members)
            self.results_bytes += self.routes.cells(members) * self.itemsize

    def reserve(self, members: int) -> None:
        """Refuse a table that does not fit beside the results and what is kept."""
        if self.limit is None or members in self.results:
            return
        needed = self.routes.cells(members) * self.itemsize
        others = self.results_bytes + self.kept
        if others + needed > self.limit:
            raise ModelTooLarge(
                f"a table over {self.routes.axes(members)!r} has {needed // self.itemsize} cells "
                f"({needed} bytes); with {others} bytes for the other requested marginals and "
                f"tables it exceeds the memory limit of {self.limit} bytes. Ask for fewer or "
                "smaller marginals at once, or raise the limit"
            )

    def keep(self, members: int, table: torch.Tensor) -> torch.Tensor:
        if members not in self.results:
            self.kept += table.numel() * self.itemsize
        return table

    def drop(self) -> None:
        for memory in (self._inside, self._local, self._given):
            memory.clear()
        self.kept = 0

    def marginal(self, here: int, members: int) -> torch.Tensor:
        """The marginal over `members`, with room made where remembered tables are in its way."""
        if self.kept > _KEPT_BYTES:
            self.drop()
        try:
            return self.joint(here, members)
        except ModelTooLarge:
            self.drop()
            return self.joint(here, members)

    def joint(self, here: int, members: int) -> torch.Tensor:
        """The marginal over `members`, put together at the clique `here`."""
        sides = self.routes.sides(here, members)
        needed = self._needed(here, members, sides)
        return self._absorb(here, self.inside(here, needed), needed, sides, members)

    def inside(self, here: int, members: int) -> torch.Tensor:
        """The marginal over attributes of one clique."""
        clique = self.routes.cliques[here]
        if members == clique:
            return self.beliefs[here]
        found = self._inside.get((here, members))
        if found is None:
            # Large tables lose their largest attribute first, so that what is summed next is small.
            source = clique
            if self.routes.cells(clique) > _DIRECT_CELLS:
                source = members | min(
                    (1 << index for index in each_bit(clique & ~members)), key=self.routes.cells
                )
            self.reserve(members)
            dims = [axis for axis, index in enumerate(each_bit(source)) if not members >> index & 1]
            found = self.keep(members, self.inside(here, source).sum(dims))
            self._inside[here, members] = found
        return found

    def local(self, before: int, here: int, members: int) -> torch.Tensor:
        """P(members | separator to `before`) for attributes of the clique `here`."""
        key = (before, here, members)
        found = self._local.get(key)
        if found is None:
            given = self.routes.separators[before, here]
            joint = self.inside(here, members)
            shape = [
                n if given >> i & 1 else 1
                for i, n in zip(each_bit(members), joint.shape, strict=True)
            ]
            mass = self.inside(here, given).reshape(shape)
            self.reserve(members)
            found = self.keep(members, joint / mass.masked_fill(mass == 0, 1.0))
            self._local[key] = found
        return found

    def given(self, before: int, here: int, members: int) -> torch.Tensor:
        """P(members | separator between `before` and `here`), members on the side of `here`.

        The axes are those of the separator and the members together.
        """
        path = [(before, here)]
        while (*path[-1], members) not in self._given:
            v = path[-1][1]
            sides = self.routes.sides(v, members)
            if len(sides) != 1 or members & self.routes.cliques[v]:
                break
            path.append((v, next(iter(sides))))
        # From the far end, so that long chains need no deep recursion.
        for u, v in reversed(path):
            if (u, v, members) not in self._given:
                axes = members | self.routes.separators[u, v]
                table = self._conditional(u, v, members)
                self._given[u, v, members] = self.keep(axes, table)
        return self._given[before, here, members]

    def _conditional(self, before: int, here: int, members: int) -> torch.Tensor:
        separator = self.routes.separators[before, here]
        sides = self.routes.sides(here, members)
        needed = self._needed(here, members, sides) | separator
        start = self.local(before, here, needed)
        return self._absorb(here, start, needed, sides, members | separator)

    def _needed(self, here: int, members: int, sides: dict[int, int]) -> int:
        needed = members & self.routes.cliques[here]
        for side in sides:
            needed |= self.routes.separators[here, side]
        return needed

    def _absorb(
        self, here: int, table: torch.Tensor, axes: int, sides: dict[int, int], out: int
    ) -> torch.Tensor:
        """Multiply `table` by P(members | separator) of each side; sum down to the axes `out`."""
        routes = self.routes
        pending = {
            routes.separators[here, side] | members: self.given(here, side, members)
            for side, members in sides.items()
        }
        while pending:
            results = {}
            for factor in pending:
                later = out
                for other in pending:
                    if other != factor:
                        later |= other
                results[factor] = (axes | factor) & later
            factor = min(results, key=lambda factor: routes.cells(results[factor]))
            kernel = routes.kernel(axes, factor, results[factor])
            axes = results[factor]
            self.reserve(axes)
            table = kernel.restore(LINEAR.contract(table, pending.pop(factor), kernel))
        return table
