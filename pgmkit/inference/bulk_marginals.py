"""Very many marginals of one calibrated junction tree, one after the other, in bounded memory.

Marginals that meet at one clique and differ in a single attribute beyond one of its separators are
one product: the table of what they share (the *stem*) times P(attribute | separator) of all these
attributes (the *tips*) side by side, of which each marginal is a slice. All triples of 100
attributes need some ten thousand products instead of 161,700.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pgmkit.contraction.plan import Kernel
from pgmkit.contraction.semirings import LINEAR
from pgmkit.domain import Clique
from pgmkit.graphs.junction_tree import JunctionTree
from pgmkit.inference.tree_marginals import Routes, Tables, check_beliefs, routes_of
from pgmkit.runtime.deferred import torch

__all__ = ["each_marginal"]

_PRODUCT_CELLS = 1 << 20
"""Of a product of one stem and several tips, and of the tips side by side."""

Stem = tuple[int, int, int]
"""The meeting clique, the neighbour behind whose separator the tips lie, the stem's attributes."""


def each_marginal(
    tree: JunctionTree,
    beliefs: Sequence[torch.Tensor],
    requested: Iterable[Clique],
    *,
    memory_limit: int | None = None,
) -> Iterator[tuple[Clique, torch.Tensor]]:
    """The marginal over each requested set of attributes; see
    `pgmkit.inference.tree_marginals.marginals`.

    Arguments, tables and errors are those of `marginals`, but `memory_limit` is for what is held at
    one time, and each distinct request comes once, in the order of the work.
    """
    check_beliefs(tree, beliefs, memory_limit)
    routes = routes_of(tree)
    orders: dict[int, list[Clique]] = {}
    for clique in dict.fromkeys(requested):
        orders.setdefault(routes.members(clique), []).append(clique)
    tables = Tables(routes, beliefs, memory_limit)
    stems, alone = _grouped(routes, orders)
    for here, members in alone:
        table = tables.marginal(here, members)
        for clique in orders[members]:
            yield clique, routes.arranged(table, clique)
    fans = _Fans(tables)
    for (here, side, stem), tips in sorted(stems.items()):
        for members, table in fans.products(here, side, stem, sorted(tips)):
            for clique in orders[members]:
                yield clique, routes.arranged(table, clique)


def _grouped(
    routes: Routes, requested: Iterable[int]
) -> tuple[dict[Stem, list[int]], list[tuple[int, int]]]:
    """The tips of each stem; and the requests without a tip, with their meeting cliques."""
    placed = []
    common: Counter[tuple[int, int]] = Counter()
    for members in requested:
        here = routes.meeting(members)
        single = {s: m for s, m in routes.sides(here, members).items() if m.bit_count() == 1}
        common.update((here, side) for side in single)
        placed.append((here, members, single))
    stems: dict[Stem, list[int]] = {}
    alone = []
    for here, members, single in placed:
        if not single:
            alone.append((here, members))
            continue
        # The side behind which most requests have a tip makes the longest rows of tips.
        side = max(single, key=lambda side: (common[here, side], side))
        stems.setdefault((here, side, members & ~single[side]), []).append(single[side])
    return stems, sorted(alone)


class _Fans:
    """Products of a stem and its tips; the tips side by side are kept for the next stem."""

    def __init__(self, tables: Tables) -> None:
        self._tables, self._routes = tables, tables.routes
        self._tips_axis = "*" * (1 + max(map(len, self._routes.names)))
        self._key: tuple[int, int, tuple[int, ...]] | None = None
        self._beside = torch.empty(0)

    def products(
        self, here: int, side: int, stem: int, tips: Sequence[int]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """The marginals over the stem and each of its tips, axes in the domain's order."""
        routes = self._routes
        separator = routes.separators[here, side]
        names = routes.axes(stem)
        axes = [*routes.axes(stem & separator), *routes.axes(stem & ~separator)]
        axes += routes.axes(separator & ~stem)
        # As the products need it: it is large, and would be copied for each of them.
        found = self._tables.marginal(here, stem | separator)
        shared = routes.arranged(found, tuple(axes)).contiguous()
        most = _PRODUCT_CELLS // max(routes.cells(stem), routes.cells(separator))
        for row in _rows(routes, tips, most):
            for tip in row:
                self._tables.reserve(stem | tip)
            beside = self._side_by_side(here, side, row)
            kernel = Kernel(
                tuple(axes),
                (*routes.axes(separator), self._tips_axis),
                (*names, self._tips_axis),
                {**routes.sizes, self._tips_axis: beside.shape[-1]},
            )
            product = kernel.restore(LINEAR.contract(shared, beside, kernel))
            pieces = product.split([routes.cells(tip) for tip in row], dim=-1)
            for tip, piece in zip(row, pieces, strict=True):
                # The tip's axis goes from the end to its place.
                yield stem | tip, piece.movedim(-1, (stem & (tip - 1)).bit_count())

    def _side_by_side(self, here: int, side: int, tips: tuple[int, ...]) -> torch.Tensor:
        """P(tip | separator): the separator's axes, then one of the cells of all tips in turn."""
        if self._key != (here, side, tips):
            separator = self._routes.separators[here, side]
            tables = [
                self._tables.given(here, side, tip).movedim((separator & (tip - 1)).bit_count(), -1)
                for tip in tips
            ]
            self._key, self._beside = (here, side, tips), torch.cat(tables, dim=-1)
        return self._beside


def _rows(routes: Routes, tips: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """The tips in rows of at most so many cells, each of one tip at least."""
    row: list[int] = []
    cells = 0
    for tip in tips:
        if row and cells + routes.cells(tip) > most:
            yield tuple(row)
            row, cells = [], 0
        row.append(tip)
        cells += routes.cells(tip)
    if row:
        yield tuple(row)
