"""Subgraphs of small width: sets of tables that cover a graph, and blocks of attributes.

One elimination order is used for the whole graph. When an attribute is summed out, it and the
attributes that it is joined to form its *bag*. A subgraph takes one table after another as long as
no bag of this order exceeds a number of cells. Sets of attributes (*scopes* of tables) are integers
with one bit for each attribute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush

from pgmkit.domain import Clique, Domain
from pgmkit.graphs.bit_sets import cells_of, each_bit, neighbours, union
from pgmkit.runtime.arrays import Array

Table = tuple[Clique, Array]
"""The attributes of a table, and the logarithms of its entries."""


@dataclass(frozen=True, eq=False)
class Graph:
    """The tables of a distribution, and ``most``, the largest number of cells that a bag of a
    subgraph (the clique in which an attribute is summed out) may have.
    """

    domain: Domain
    tables: Sequence[Table]
    most: int

    @cached_property
    def scopes(self) -> list[int]:
        """The attributes of each table, as a set."""
        places = self.domain.places
        return [sum([1 << places[name] for name in clique]) for clique, _ in self.tables]

    @cached_property
    def order(self) -> list[int]:
        """The greedy elimination order that always takes the attribute with the smallest bag next.
        The bag is the attribute and those that it is joined to, and its size that of their table.

        If that bag has more than ``most ** 2`` cells, its attributes are not joined to each other:
        no subgraph has such a bag, and in a random graph these edges would take most of the time.
        """
        sizes = self.domain.shape()
        joined = neighbours(self.scopes, len(sizes))

        def cells(v: int) -> int:
            return sizes[v] * cells_of(joined[v], sizes)

        waiting = [(cells(v), v) for v in range(len(sizes))]
        heapify(waiting)
        order, left = list[int](), (1 << len(sizes)) - 1
        while waiting:
            count, v = heappop(waiting)
            if not left >> v & 1 or count != cells(v):
                continue
            order.append(v)
            left ^= 1 << v
            around = joined[v]
            for u in each_bit(around):
                joined[u] &= ~(1 << v)
                if count <= self.most**2:
                    joined[u] |= around & ~(1 << u)
            for u in each_bit(around):
                heappush(waiting, (cells(u), u))
        return order

    def cover(self, scopes: Sequence[int]) -> list[list[int]]:
        """Return a few subgraphs that together contain every scope, each as a sorted list of
        indices into ``scopes``.

        Each subgraph first takes the scopes that no earlier subgraph has, then all others that it
        can, as long as no bag of the elimination order exceeds ``most`` cells. Each scope alone
        must have at most ``most`` cells.
        """
        found, missing = list[list[int]](), set(range(len(scopes)))
        while missing or not found:
            bags = Bags(self)
            wanted = sorted(range(len(scopes)), key=lambda place: place not in missing)
            found.append(sorted(place for place in wanted if bags.add(scopes[place])))
            missing -= set(found[-1])
        return found

    def blocks(self) -> list[int]:
        """Return a partition of the attributes into sets, as bits, such that the parts of the
        scopes within each set need no elimination clique of more than ``most`` cells. An attribute
        is left to a later set only if an earlier one cannot take it, so earlier sets tend to be
        larger.

        If a scope would exceed the limit, the attribute of it that is in the most scopes is left to
        a later set.
        """
        degrees = Counter(v for scope in self.scopes for v in each_bit(scope))
        found, left = list[int](), (1 << len(self.domain)) - 1
        while left:
            bags, cut = Bags(self), 0
            for scope in self.scopes:
                part = scope & left & ~cut
                while part and not bags.add(part):
                    v = max(each_bit(part), key=lambda u: (degrees[u], u))
                    bags.absent |= 1 << v
                    cut |= 1 << v
                    part &= ~cut
            # If every attribute has been cut, the next block is a single attribute.
            block = left & ~cut or left & -left
            found.append(block)
            left &= ~block
        return found


class Bags:
    """The bags of a graph's elimination order for the scopes added so far, each of at most
    ``graph.most`` cells. The set ``absent`` is left out of the bags that ``add`` makes; scopes
    added later must not contain its attributes.
    """

    def __init__(self, graph: Graph) -> None:
        self.order, self.sizes, self.most = graph.order, graph.domain.shape(), graph.most
        self.turn = {v: place for place, v in enumerate(self.order)}
        self.bags, self.absent = [1 << v for v in range(len(self.sizes))], 0

    def first(self, scope: int) -> int:
        """Return the attribute of a scope that is summed out first; the scope lies in its bag."""
        return min(each_bit(scope), key=self.turn.__getitem__)

    def add(self, scope: int) -> bool:
        """Add a scope and the fill-in that it causes, and return True. If a bag would then exceed
        the limit, change nothing and return False.
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

    def cliques(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return the maximal bags, each as two groups of attributes: those that it shares with
        later bags, as bits, and those that are summed out in it, in order. A distribution over the
        bags is the product, over them, of the second group's conditional distribution given the
        first.
        """
        hosts, kept = dict[int, int](), dict[int, list[int]]()
        for v in self.order:
            # If this bag equals what is left of an earlier one after its attribute is summed out,
            # it is a subset of the earlier one, and not maximal.
            host = hosts.get(self.bags[v], v)
            kept.setdefault(host, []).append(v)
            hosts.setdefault(self.bags[v] & ~(1 << v), host)
        return [
            (self.bags[host] & ~union([1 << v for v in own]), tuple(own))
            for host, own in kept.items()
        ]
