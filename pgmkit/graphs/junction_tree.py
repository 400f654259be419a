"""Junction trees: which tables an exact computation needs, and how large they are.

An elimination order turns the graph of the cliques into a chordal one, whose maximal cliques form a
junction tree; `elimination_search` searches for an order. Private functions here represent sets of
attributes as integers, with one bit for each attribute.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from pgmkit.domain import Clique, Domain
from pgmkit.errors import ModelTooLarge
from pgmkit.graphs.bit_sets import each_bit, neighbours
from pgmkit.graphs.elimination_search import Search, Step, maximal_cliques
from pgmkit.runtime.arguments import listed
from pgmkit.runtime.memory import counted
from pgmkit.runtime.sizes import CELL_BYTES


@dataclass(frozen=True)
class JunctionTree:
    """A forest of maximal cliques in which the cliques of every attribute are connected (running
    intersection).

    Attributes:
        domain: the domain; every attribute of it is in some clique.
        cliques: each parent before its children; attributes of a clique in the domain's order.
        parents: the index of each clique's parent, -1 for the root of each connected component.
        separators: the attributes that each clique shares with its parent, in the domain's order;
            () for a root.
        order: an elimination order that needs no table beyond the cliques.

    >>> tree = junction_tree(Domain({"a": 2, "b": 3, "c": 4}), [("a", "b"), ("b", "c")])
    >>> tree.cells, tree.largest, tree.holds(["c", "b"]) == tree.cliques.index(("b", "c"))
    (18, ('b', 'c'), True)
    """

    domain: Domain
    cliques: tuple[Clique, ...]
    parents: tuple[int, ...]
    separators: tuple[Clique, ...]
    order: tuple[str, ...]

    @cached_property
    def cells(self) -> int:
        """The exact number of cells of all clique tables together."""
        return sum(self.domain.size(clique) for clique in self.cliques)

    @cached_property
    def largest(self) -> Clique:
        """The clique with the most cells."""
        return max(self.cliques, key=self.domain.size)

    @cached_property
    def residuals(self) -> tuple[Clique, ...]:
        """The attributes of each clique that its parent does not have, in the clique's order."""
        pairs = zip(self.cliques, self.separators, strict=True)
        return tuple(tuple([n for n in clique if n not in shared]) for clique, shared in pairs)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The indices of every clique's children."""
        found: list[list[int]] = [[] for _ in self.cliques]
        for child, parent in enumerate(self.parents):
            if parent >= 0:
                found[parent].append(child)
        return tuple(tuple(below) for below in found)

    def bytes(self) -> int:
        """Return the exact size in bytes of all clique tables together, in float64."""
        return self.cells * CELL_BYTES

    def holds(self, attrs: Iterable[str]) -> int | None:
        """Return the index of the smallest clique that contains `attrs`, None when there is none.

        Raises InvalidInput for a bare string, unknown or duplicate attributes.
        """
        by_size, containing = self.containing
        ranks = (1 << len(self.cliques)) - 1
        for name in self.domain.clique(attrs, "attrs"):
            ranks &= containing[name]
        return by_size[(ranks & -ranks).bit_length() - 1] if ranks else None

    @cached_property
    def containing(self) -> tuple[list[int], dict[str, int]]:
        """The indices of the cliques in order of size, smallest first, and for each attribute the
        cliques that contain it, as an integer with one bit for each position in this order.
        """
        sizes = [self.domain.size(clique) for clique in self.cliques]
        by_size = sorted(range(len(self.cliques)), key=sizes.__getitem__)
        containing = dict.fromkeys(self.domain, 0)
        for rank, index in enumerate(by_size):
            for name in self.cliques[index]:
                containing[name] |= 1 << rank
        return by_size, containing


def junction_tree(
    domain: Domain, cliques: Iterable[Sequence[str]], *, seconds: float = 0.05, seed: int = 0
) -> JunctionTree:
    """Return a junction tree whose cliques contain every one of `cliques`, with few cells in total.

    Attributes in no clique become cliques of their own. The root of each component is at its
    centre, so that the tree is shallow.

    `seconds` bounds the search for a better elimination order, roughly: the number of random
    restarts follows from the size of the graph and `seconds`, not from a clock, so the same
    arguments give the same tree on every machine. The search also ends when it has taken about a
    millisecond more than a hundred passes over the best tree's tables. A chordal graph needs no
    search and gets none.

    Raises InvalidInput for cliques that are not in the domain.

    >>> cycle = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]
    >>> tree = junction_tree(Domain({"a": 2, "b": 9, "c": 2, "d": 9}), cycle)
    >>> tree.cliques, tree.separators, tree.parents
    ((('a', 'c', 'd'), ('a', 'b', 'c')), ((), ('a', 'c')), (-1, 0))
    """
    return _build(domain, _searched(*_graph(domain, cliques), seconds, seed))


def model_cells(domain: Domain, cliques: Iterable[Sequence[str]]) -> int:
    """Return the total cells of the junction tree that the deterministic greedy orders find for
    `cliques`.

    This is an upper bound on `junction_tree(domain, cliques).cells`, since that function also tries
    a sweep and random orders. This one is meant to be called for many candidates: results are
    cached by the graph of the cliques.

    Raises InvalidInput for cliques that are not in the domain.

    >>> model_cells(Domain({"a": 10, "b": 20, "c": 30}), [("a", "b"), ("b", "c")])
    800
    """
    return _cells_of_graph(*_graph(domain, cliques))


def check_fits(tree: JunctionTree, limit_bytes: int) -> None:
    """Raise ModelTooLarge when the clique tables together take more than `limit_bytes` in float64.

    >>> check_fits(junction_tree(Domain({"a": 10, "b": 20}), [("a", "b")]), limit_bytes=1600)
    """
    if tree.bytes() > limit_bytes:
        raise ModelTooLarge(
            f"the model's junction tree takes {counted(tree.bytes())} bytes, with a table over "
            f"{tree.largest!r:.200} of {counted(tree.domain.size(tree.largest))} cells; the limit "
            f"is {limit_bytes:,} bytes. Leave out or shrink measurements that tie its attributes "
            "together, merge values of large attributes, or raise memory_limit"
        )


def _graph(
    domain: Domain, cliques: Iterable[Sequence[str]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the set of neighbours of every attribute as an integer, and the sizes of the
    attributes.
    """
    scopes = []
    for number, clique in enumerate(listed(cliques, "cliques", "cliques such as [('age', 'sex')]")):
        names = domain.clique(clique, f"cliques[{number}]")
        scopes.append(sum([1 << domain.places[name] for name in names]))
    return tuple(neighbours(scopes, len(domain))), domain.shape()


@lru_cache(maxsize=256)
def _searched(
    neighbours: tuple[int, ...], sizes: tuple[int, ...], seconds: float, seed: int
) -> tuple[Step, ...]:
    """Return the best elimination order that the search finds. It is cached, since several places
    ask for the tree of one model.
    """
    search = Search(list(neighbours), sizes)
    search.deterministic()
    search.restarts(seconds, random.Random(seed))
    return tuple(search.best)


@lru_cache(maxsize=4096)
def _cells_of_graph(neighbours: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    search = Search(list(neighbours), sizes)
    search.deterministic()
    return search.cells


def _build(domain: Domain, steps: Sequence[Step]) -> JunctionTree:
    """Return the junction tree of an elimination: the tree of its steps, in which steps with
    cliques that are not maximal are merged into others.
    """
    masks = maximal_cliques(steps)
    edges = _edges(steps)
    names = domain.attributes
    listed: list[int] = []
    parents: list[int] = []
    for root in _centres(masks, edges):
        place = {-1: -1}
        queue = [(root, -1)]
        for v, above in queue:
            place[v] = len(listed)
            listed.append(v)
            parents.append(place[above])
            queue += [(u, v) for u in edges[v] if u != above]
    above_of = (masks[listed[parent]] if parent >= 0 else 0 for parent in parents)
    shared = [masks[v] & above for v, above in zip(listed, above_of, strict=True)]
    return JunctionTree(
        domain,
        tuple(tuple(names[u] for u in each_bit(masks[v])) for v in listed),
        tuple(parents),
        tuple(tuple(names[u] for u in each_bit(members)) for members in shared),
        tuple(names[v] for v, _ in steps),
    )


def _edges(steps: Sequence[Step]) -> dict[int, list[int]]:
    """Return the neighbours of each maximal clique in the junction tree. A clique is named by the
    attribute eliminated in it.

    The parent of a step is the step of that one of its neighbours which is eliminated first. A step
    whose clique equals the neighbours in an earlier step is merged into that earlier step.
    """
    when = {v: time for time, (v, _) in enumerate(steps)}
    left_by: dict[int, int] = {}
    home: dict[int, int] = {}
    for v, around in steps:
        home[v] = left_by.get(around | 1 << v, v)
        left_by.setdefault(around, home[v])
    edges: dict[int, list[int]] = {v: [] for v, own in home.items() if v == own}
    for v, around in steps:
        if not around:
            continue
        above = home[min(each_bit(around), key=when.__getitem__)]
        if home[v] != above:
            edges[home[v]].append(above)
            edges[above].append(home[v])
    return edges


def _centres(masks: dict[int, int], edges: dict[int, list[int]]) -> Iterator[int]:
    """Yield the clique in the middle of the longest path of each connected component."""
    seen: set[int] = set()
    for v in sorted(masks, key=lambda v: masks[v] & -masks[v]):
        if v in seen:
            continue
        reached = _walk(edges, v)
        seen.update(reached)
        above = _walk(edges, next(reversed(reached)))
        path = [next(reversed(above))]
        while above[path[-1]] >= 0:
            path.append(above[path[-1]])
        yield path[len(path) // 2]


def _walk(edges: dict[int, list[int]], start: int) -> dict[int, int]:
    """Return a mapping from every clique that can be reached from `start` to the clique before it
    on the path from `start` (-1 for `start` itself), in the order of their distance.
    """
    before = {start: -1}
    queue = [start]
    for v in queue:
        for u in edges[v]:
            if u not in before:
                before[u] = v
                queue.append(u)
    return before
