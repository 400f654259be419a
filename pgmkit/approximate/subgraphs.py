"""Subgraphs whose elimination needs only small tables: trees of tables that cover a graph, and
blocks.

One elimination order is fixed for the whole graph. A subgraph takes tables one after the other as
long as the bags of this order stay below a number of cells; a bag is an attribute together with the
attributes it is joined to when it is summed out. Sets of attributes are integers with one bit for
each attribute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from pgmkit.graphs.bit_sets import cells_of, each_bit, union


def elimination_order(scopes: Sequence[int], sizes: tuple[int, ...], most: int) -> list[int]:
    """Return the greedy order of fewest cells.

    If a bag has more than the square of ``most`` cells, its attributes are not joined: no subgraph
    has such a bag, and in a random graph these edges would be most of the work.
    """
    neighbours = [0] * len(sizes)
    for scope in scopes:
        for v in each_bit(scope):
            neighbours[v] |= scope & ~(1 << v)

    def cells(v: int) -> int:
        return sizes[v] * cells_of(neighbours[v], sizes)

    waiting = [(cells(v), v) for v in range(len(sizes))]
    heapify(waiting)
    order, left = list[int](), (1 << len(sizes)) - 1
    while waiting:
        count, v = heappop(waiting)
        if not left >> v & 1 or count != cells(v):
            continue
        order.append(v)
        left ^= 1 << v
        around = neighbours[v]
        for u in each_bit(around):
            neighbours[u] &= ~(1 << v)
            if count <= most**2:
                neighbours[u] |= around & ~(1 << u)
        for u in each_bit(around):
            heappush(waiting, (cells(u), u))
    return order


class Bags:
    """The bags of an order for the scopes taken so far, each of at most ``most`` cells."""

    def __init__(self, order: Sequence[int], sizes: tuple[int, ...], most: int) -> None:
        self.order, self.sizes, self.most = order, sizes, most
        self.turn = {v: place for place, v in enumerate(order)}
        self.bags, self.absent = [1 << v for v in range(len(sizes))], 0

    def first(self, scope: int) -> int:
        """Return the attribute of a scope that is summed out first; the scope lies in its bag."""
        return min(each_bit(scope), key=self.turn.__getitem__)

    def add(self, scope: int) -> bool:
        """Add a scope with the fill-in it causes; False, without change, if a bag would exceed the
        limit.
        """
        grown, rest = dict[int, int](), scope
        while rest:
            v = self.first(rest)
            held = self.bags[v] & ~self.absent
            bag = held | rest
            if bag == held:
                break
            if cells_of(bag, self.sizes) > self.most:
                return False
            grown[v] = bag
            rest = bag & ~(1 << v)
        for v, bag in grown.items():
            self.bags[v] = bag
        return True

    def remove(self, v: int) -> None:
        """Leave an attribute out of every bag from now on."""
        self.absent |= 1 << v

    def cliques(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return the maximal bags: for each the set of attributes that it shares with later bags,
        and those that are summed out in it. The model is the product of the bags' conditional
        distributions.
        """
        hosts, kept = dict[int, int](), dict[int, list[int]]()
        for v in self.order:
            # A bag that equals the rest of an earlier one lies in that one.
            host = hosts.get(self.bags[v], v)
            kept.setdefault(host, []).append(v)
            hosts.setdefault(self.bags[v] & ~(1 << v), host)
        return [
            (self.bags[host] & ~union([1 << v for v in own]), tuple(own))
            for host, own in kept.items()
        ]


def cover(
    order: Sequence[int], sizes: tuple[int, ...], scopes: Sequence[int], most: int
) -> list[list[int]]:
    """Return the numbers of the scopes in each of a few subgraphs, so that every scope is in at
    least one.

    Each subgraph begins with the scopes that are in none yet, and takes all others that fit.
    """
    found, missing = list[list[int]](), set(range(len(scopes)))
    while missing or not found:
        bags = Bags(order, sizes, most)
        wanted = sorted(range(len(scopes)), key=lambda place: place not in missing)
        found.append(sorted(place for place in wanted if bags.add(scopes[place])))
        missing -= set(found[-1])
    return found


def blocks(
    order: Sequence[int], sizes: tuple[int, ...], scopes: Sequence[int], most: int
) -> list[int]:
    """Return a partition of the attributes into sets, the largest first; the scopes within each set
    fit.

    If a scope does not fit, its attribute that is in the most scopes is left to a later block.
    """
    degrees = Counter(v for scope in scopes for v in each_bit(scope))
    found, left = list[int](), (1 << len(sizes)) - 1
    while left:
        bags, cut = Bags(order, sizes, most), 0
        for scope in scopes:
            part = scope & left & ~cut
            while part and not bags.add(part):
                v = max(each_bit(part), key=lambda u: (degrees[u], u))
                bags.remove(v)
                cut |= 1 << v
                part &= ~cut
        # A single scope always fits, so a block is empty only if all of it was cut.
        block = left & ~cut or left & -left
        found.append(block)
        left &= ~block
    return found
