"""Many marginals at once from a calibrated junction tree, inside its cliques and across them.

A marginal across cliques is a product at one *meeting* clique: the clique's own table times, for
each side of the tree with wanted attributes A, the table P(A | separator to that side). Those
conditional tables are themselves such products one clique further, so they are computed recursively
and remembered, and hundreds of marginals share nearly all their work. At the meeting clique no side
has more than half of the wanted attributes, so that few different tables are needed.

Some marginals meet at the same clique and differ in one attribute only, which lies across one of
its separators. These are computed as one product: the table of the shared attributes (the *stem*)
times P(attribute | separator) of all these attributes (the *tips*) in neighbouring columns. Each
marginal is a slice of the product. All triples of 100 attributes need some ten thousand products
instead of 161,700.

Sets of attributes are integers here, as in ``tree_paths``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pgmkit.contraction.evaluate import LINEAR
from pgmkit.contraction.plan import Kernel
from pgmkit.domain import Clique
from pgmkit.errors import ModelTooLarge
from pgmkit.graphs.bit_sets import each_bit, union
from pgmkit.graphs.junction_tree import JunctionTree
from pgmkit.inference.tree_paths import TreePaths, tree_paths
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.memory import counted
from pgmkit.runtime.sizes import BLOCK_CELLS, CALL_CELLS, CELL_BYTES, TABLE_CELLS

KEPT_BYTES = 8 * TABLE_CELLS * CELL_BYTES
"""The bytes of remembered tables above which they are dropped before the next marginal."""
_TIPS = ""
"""The axis of all tips' values; no attribute has this name."""
Stem = tuple[int, int, int]
"""The meeting clique, its neighbour on the tips' side, and the set of the stem's attributes."""


def marginals(
    tree: JunctionTree,
    beliefs: Sequence[torch.Tensor],
    requested: Iterable[Sequence[str]],
    *,
    memory_limit: int | None = None,
) -> dict[Clique, torch.Tensor]:
    """Return the marginal over each requested set of attributes.

    Args:
        tree: a junction tree.
        beliefs: the marginal table of each `tree.cliques[i]`, axes in the clique's order: counts,
            non-negative, all of one total and one dtype, equal on the separators they share.
        requested: sets of attributes in any order, inside a clique or not; () asks for the total.
        memory_limit: the bytes that the results and the intermediate tables may take together; None
            for no limit.

    Returns:
        {attributes as requested: table with its axes in that order}, counts of the same total, in
            the dtype and on the device of the beliefs. Do not write to them: they may share memory.
            Attributes of two cliques are independent given the separators between them; where a
            separator's cell has count 0, so have all cells with it.

    Raises:
        InvalidInput: a request has an attribute twice or an unknown one.
        ModelTooLarge: a table exceeds the memory limit; raised before it is allocated.

    >>> from pgmkit.domain import Domain
    >>> from pgmkit.graphs.junction_tree import junction_tree
    >>> tree = junction_tree(Domain({"a": 2, "b": 2}), [])
    >>> beliefs = [torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0])]
    >>> marginals(tree, beliefs, [("b", "a")])
    {('b', 'a'): tensor([[0.5000, 1.5000],
            [0.5000, 1.5000]])}
    """
    wanted = list(map(tree.domain.clique, requested))
    paths = tree_paths(tree)
    tables = Tables(paths, beliefs, memory_limit)
    tables.reserve_results({paths.members(clique) for clique in wanted})
    found = dict(_each(tables, wanted))
    return {clique: found[clique] for clique in wanted}


def each_marginal(
    tree: JunctionTree,
    beliefs: Sequence[torch.Tensor],
    requested: Iterable[Clique],
    *,
    memory_limit: int | None = None,
) -> Iterator[tuple[Clique, torch.Tensor]]:
    """Yield (attributes as requested, marginal table) one after the other, in bounded memory.

    Arguments and tables are those of `marginals`, except that requests are not checked, and that
    `memory_limit` applies to the tables in memory at one time. Each distinct request is yielded
    once, in an order that shares work.
    """
    yield from _each(Tables(tree_paths(tree), beliefs, memory_limit), requested)


def _each(tables: Tables, requested: Iterable[Clique]) -> Iterator[tuple[Clique, torch.Tensor]]:
    paths = tables.paths
    orders: dict[int, list[Clique]] = {}
    for clique in dict.fromkeys(requested):
        orders.setdefault(paths.members(clique), []).append(clique)
    stems, alone = _grouped(paths, orders)
    # `alone` is sorted by meeting clique, since marginals that meet at the same one share the most
    # tables.
    for here, members in alone:
        table = tables.marginal(here, members)
        for clique in orders[members]:
            yield clique, paths.arranged(table, clique)
    fans = _Fans(tables)
    for (here, side, stem), tips in sorted(stems.items()):
        for members, table in fans.products(here, side, stem, sorted(tips)):
            for clique in orders[members]:
                yield clique, paths.arranged(table, clique)


class Tables:
    """The intermediate tables of marginals that are computed together. Each is computed when it is
    first needed, and remembered.

    `memory_limit` is in bytes, None for no limit; sets of attributes are integers.
    """

    def __init__(
        self, paths: TreePaths, beliefs: Sequence[torch.Tensor], memory_limit: int | None
    ) -> None:
        self.paths, self.beliefs = paths, beliefs
        self.limit = memory_limit
        self.itemsize = beliefs[0].element_size()
        self.results: set[int] = set()
        self.results_bytes = self.kept = 0
        self._memory: dict[tuple[object, ...], torch.Tensor] = {}

    def reserve_results(self, results: set[int]) -> None:
        """Count results over these sets of attributes towards the memory limit. Raises
        ModelTooLarge if they cannot fit.
        """
        for members in sorted(results, key=self.paths.cells):
            self.reserve(members)
            self.results.add(members)
            self.results_bytes += self.paths.cells(members) * self.itemsize

    def reserve(self, members: int) -> None:
        """Raise ModelTooLarge if a table over `members` does not fit into the memory limit together
        with the results and the remembered tables; nothing is counted or dropped here. A table over
        just the attributes of a result is counted already, so it always fits.
        """
        if self.limit is None or members in self.results:
            return
        needed = self.paths.cells(members) * self.itemsize
        others = self.results_bytes + self.kept
        if others + needed > self.limit:
            raise ModelTooLarge(
                f"a table over {self.paths.axes(members)!r:.200} takes {counted(needed)} bytes, "
                f"and the other marginals and tables {counted(others)}; the limit is "
                f"{self.limit:,} bytes. Ask for fewer or smaller marginals at once, or raise "
                "memory_limit"
            )

    def keep(self, key: tuple[object, ...], members: int, table: torch.Tensor) -> torch.Tensor:
        """Remember a table over `members` under this key, count it in `kept`, the bytes of
        remembered tables, unless it is counted as a result, and return it.
        """
        if members not in self.results:
            self.kept += table.numel() * self.itemsize
        self._memory[key] = table
        return table

    def drop(self) -> None:
        self._memory.clear()
        self.kept = 0

    def marginal(self, here: int, members: int) -> torch.Tensor:
        """Return the marginal over `members`, computed at the clique `here`. Remembered tables are
        dropped first if they take more than `KEPT_BYTES`. If they leave too little memory, they are
        dropped too, and the marginal is computed without them.
        """
        if self.kept > KEPT_BYTES:
            self.drop()
        try:
            return self.joint(here, members)
        except ModelTooLarge:
            self.drop()
            return self.joint(here, members)

    def joint(self, here: int, members: int) -> torch.Tensor:
        """Return the marginal over `members`, which may lie in several cliques: the belief of the
        clique `here`, multiplied by the distributions of those on its other sides.
        """
        sides = self.paths.sides(here, members)
        needed = self._needed(here, members, sides)
        return self._absorb(here, self.inside(here, needed), needed, sides, members)

    def inside(self, here: int, members: int) -> torch.Tensor:
        """Return the marginal over `members`, which all lie in the clique `here`."""
        clique = self.paths.cliques[here]
        if members == clique:
            return self.beliefs[here]
        found = self._memory.get((here, members))
        if found is None:
            # The attributes of a large table are summed out one by one. This call sums out the
            # smallest of them, after the calls below have summed out the others, so that the
            # largest goes first and the next sums are small.
            source = clique
            if self.paths.cells(clique) > CALL_CELLS:
                source = members | min(
                    (1 << index for index in each_bit(clique & ~members)), key=self.paths.cells
                )
            self.reserve(members)
            dims = [axis for axis, index in enumerate(each_bit(source)) if not members >> index & 1]
            found = self.keep((here, members), members, self.inside(here, source).sum(dims))
        return found

    def local(self, before: int, here: int, members: int) -> torch.Tensor:
        """Return P(members | separator between `before` and `here`) as a table over `members`,
        which are all in the clique `here` and include the separator.
        """
        key = (before, here, members)
        found = self._memory.get(key)
        if found is None:
            given = self.paths.separators[before, here]
            joint = self.inside(here, members)
            shape = [
                n if given >> i & 1 else 1
                for i, n in zip(each_bit(members), joint.shape, strict=True)
            ]
            over_separator = self.inside(here, given).reshape(shape)
            self.reserve(members)
            table = joint / over_separator.masked_fill(over_separator == 0, 1.0)
            found = self.keep(key, members, table)
        return found

    def given(self, before: int, here: int, members: int) -> torch.Tensor:
        """Return P(members | separator between `before` and `here`), two neighbouring cliques by
        their numbers, as a table over the separator and `members`. These attributes, a bit set, lie
        on the side of `here`.
        """
        path = [(before, here)]
        while ("given", *path[-1], members) not in self._memory:
            v = path[-1][1]
            sides = self.paths.sides(v, members)
            if len(sides) != 1 or members & self.paths.cliques[v]:
                break
            path.append((v, next(iter(sides))))
        # The path is followed from its far end, so that a long chain needs no deep recursion.
        for u, v in reversed(path):
            if (key := ("given", u, v, members)) not in self._memory:
                axes = members | self.paths.separators[u, v]
                self.keep(key, axes, self._conditional(u, v, members))
        return self._memory["given", before, here, members]

    def _conditional(self, before: int, here: int, members: int) -> torch.Tensor:
        separator = self.paths.separators[before, here]
        sides = self.paths.sides(here, members)
        needed = self._needed(here, members, sides) | separator
        start = self.local(before, here, needed)
        return self._absorb(here, start, needed, sides, members | separator)

    def _needed(self, here: int, members: int, sides: dict[int, int]) -> int:
        separators = [self.paths.separators[here, side] for side in sides]
        return union([members & self.paths.cliques[here], *separators])

    def _absorb(
        self, here: int, table: torch.Tensor, axes: int, sides: dict[int, int], out: int
    ) -> torch.Tensor:
        """Return `table`, over `axes`, multiplied by P(members | separator) of each side and summed
        to the attributes `out`. `sides` has the members that lie beyond each neighbour of `here`.
        """
        paths = self.paths
        pending = {
            paths.separators[here, side] | members: self.given(here, side, members)
            for side, members in sides.items()
        }
        while pending:
            results = {}
            for factor in pending:
                later = union([out, *[other for other in pending if other != factor]])
                results[factor] = (axes | factor) & later
            factor = min(results, key=lambda factor: paths.cells(results[factor]))
            left, right, kept = map(paths.axes, (axes, factor, results[factor]))
            kernel = Kernel(left, right, kept, paths.sizes)
            axes = results[factor]
            self.reserve(axes)
            table = kernel.restore(LINEAR.contract(table, pending.pop(factor), kernel))
        return table


def _grouped(
    paths: TreePaths, requested: Iterable[int]
) -> tuple[dict[Stem, list[int]], list[tuple[int, int]]]:
    """Divide the requested sets of attributes into those that are computed together and those that
    are computed alone. Return the tips of each stem that several sets share (see the module's
    docstring), and for each other set the index of its meeting clique and the set.
    """
    placed = []
    common: Counter[tuple[int, int]] = Counter()
    for members in requested:
        here = paths.meeting(members)
        single = {s: m for s, m in paths.sides(here, members).items() if m.bit_count() == 1}
        common.update((here, side) for side in single)
        placed.append((here, members, single))
    stems: dict[Stem, list[int]] = {}
    alone = []
    for here, members, single in placed:
        if not single:
            alone.append((here, members))
            continue
        # The side where most requests have a single attribute is taken: its stems tend to have the
        # most tips.
        side = max(single, key=lambda side: (common[here, side], side))
        stems.setdefault((here, side, members & ~single[side]), []).append(single[side])
    for stem in [stem for stem, tips in stems.items() if len(tips) == 1]:
        alone.append((stem[0], stem[2] | stems.pop(stem)[0]))
    return stems, sorted(alone)


class _Fans:
    """The marginals over a stem (a set of attributes) and each of its tips (single attributes
    beyond one separator). The tips' tables, side by side, are kept for the next stem with the same
    tips.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables, self._paths = tables, tables.paths
        self._key: tuple[int, int, tuple[int, ...]] | None = None
        self._beside = torch.empty(0)

    def products(
        self, here: int, side: int, stem: int, tips: Sequence[int]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield, for each of the tips, the set of the stem's attributes and the tip, and the
        marginal over this set, axes in the domain's order. ``here``, ``side`` and ``stem`` are the
        three parts of a ``Stem``.
        """
        paths = self._paths
        separator = paths.separators[here, side]
        axes = [*paths.axes(stem & separator), *paths.axes(stem & ~separator)]
        axes += paths.axes(separator & ~stem)
        # The axes are permuted once, since the table is large and each product would copy it
        # otherwise.
        found = self._tables.marginal(here, stem | separator)
        shared = paths.arranged(found, tuple(axes)).contiguous()
        most = BLOCK_CELLS // max(paths.cells(stem), paths.cells(separator))
        for row in _rows(paths, tips, most):
            for tip in row:
                self._tables.reserve(stem | tip)
            beside = self._side_by_side(here, side, row)
            kernel = Kernel(
                tuple(axes),
                (*paths.axes(separator), _TIPS),
                (*paths.axes(stem), _TIPS),
                {**paths.sizes, _TIPS: beside.shape[-1]},
            )
            product = kernel.restore(LINEAR.contract(shared, beside, kernel))
            pieces = product.split([paths.cells(tip) for tip in row], dim=-1)
            for tip, piece in zip(row, pieces, strict=True):
                # The tip's axis moves from the end to its place in the domain's order.
                yield stem | tip, piece.movedim(-1, (stem & (tip - 1)).bit_count())

    def _side_by_side(self, here: int, side: int, tips: tuple[int, ...]) -> torch.Tensor:
        """Return one table with P(tip | separator) for all tips (see the module's docstring). Its
        first axes are those of the separator between the cliques ``here`` and ``side``; the last
        one has the values of all tips, one tip after the other. The last result is kept, and
        returned again for the same arguments.
        """
        if self._key != (here, side, tips):
            separator = self._paths.separators[here, side]
            tables = [
                self._tables.given(here, side, tip).movedim((separator & (tip - 1)).bit_count(), -1)
                for tip in tips
            ]
            self._key, self._beside = (here, side, tips), torch.cat(tables, dim=-1)
        return self._beside


def _rows(paths: TreePaths, tips: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Yield the tips (single attributes, as sets) in order, in groups of at most ``most`` values
    together; a tip that has more values is a group of its own.
    """
    row: list[int] = []
    cells = 0
    for tip in tips:
        if row and cells + paths.cells(tip) > most:
            yield tuple(row)
            row, cells = [], 0
        row.append(tip)
        cells += paths.cells(tip)
    if row:
        yield tuple(row)
