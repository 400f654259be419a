"""The search for elimination orders: greedy orders, a sweep and randomised restarts.

Finding the order whose cliques have the fewest cells is NP-hard. So several greedy orders, one that
sweeps through the graph and randomised ones are tried, and the best is taken. Attributes whose
neighbours are all joined to each other (simplicial ones) are eliminated first, as this is always
optimal. A decomposable model has no others, so one cheap pass finds its order. Sets of attributes
are integers with one bit for each attribute.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from pgmkit.graphs.bit_sets import cells_of, each_bit, union
from pgmkit.runtime.iterations import MOST_ROUNDS
from pgmkit.runtime.sizes import MULTIPLICATIONS_A_SECOND

Step = tuple[int, int]
"""An eliminated attribute and its neighbours at that time, as a set."""

Measure = tuple[int, int, float]
"""Three measures of eliminating an attribute: the edges missing among its neighbours, the number of
neighbours, and the logarithm of the cells of the clique that they form with the attribute.
"""

Rank = Callable[[Measure], float]
"""A function of an attribute's measure; the attribute with the lowest rank is eliminated next."""

Way = Callable[[], list[Step]]
"""A function that returns an elimination order of all attributes, the simplicial ones first."""

RANKS: tuple[Rank, ...] = (
    lambda measure: measure[0] + 1e-3 * measure[2],  # min-fill, ties by weight
    lambda measure: measure[2],  # min-weight
    lambda measure: measure[1] + 1e-3 * measure[2],  # min-degree, ties by weight
)

MEASURES_A_SECOND = 600_000
"""The number of attributes whose `Measure` a slow machine computes in a second. It turns a limit in
seconds into a number of restarts.
"""

_MEASURES_OF_A_CELL = 3 * MOST_ROUNDS * MEASURES_A_SECOND / MULTIPLICATIONS_A_SECOND
"""The number of attributes measured in the time that the inference passes of a search for a model
spend on one cell of the tree: three multiplications in each.
"""

_MEASURES_AT_LEAST = MEASURES_A_SECOND // 1000
"""The number of attributes measured in about a millisecond. Restarts on the smallest graphs may
take so long.
"""


class Search:
    """A search that keeps the best elimination order found so far in `best` and the cells of its
    maximal cliques in `cells` (-1 before the first order).

    Args:
        neighbours: the set of neighbours of each attribute; the search changes this list.
        sizes: the sizes of the attributes.
        among: the set of attributes to order; all when left out.
    """

    def __init__(
        self, neighbours: list[int], sizes: tuple[int, ...], among: int | None = None
    ) -> None:
        self.sizes = sizes
        self.neighbours = neighbours
        self.left = (1 << len(neighbours)) - 1 if among is None else among
        self.logs = {v: math.log(sizes[v]) for v in each_bit(self.left)}
        self.prefix = self._take_simplicial()
        self.measured = 0
        self.measures = {v: self._measure(self.neighbours, v) for v in each_bit(self.left)}
        self.best: list[Step] = []
        self.cells = -1

    def _take_simplicial(self) -> list[Step]:
        """Eliminate simplicial attributes, as long as there are any, and return the steps; some
        best order starts with them.
        """
        steps: list[Step] = []
        waiting = list(each_bit(self.left))
        while waiting:
            v = waiting.pop()
            around = self.neighbours[v]
            if not self.left >> v & 1 or any(
                around & ~self.neighbours[u] != 1 << u for u in each_bit(around)
            ):
                continue
            steps.append((v, around))
            self.left ^= 1 << v
            for u in each_bit(around):
                self.neighbours[u] ^= 1 << v
                waiting.append(u)
        return steps

    def deterministic(self) -> None:
        """Try the greedy orders by min-fill, min-weight and min-degree; one is enough if all
        attributes are simplicial.
        """
        for way in itertools.islice(self.ways(), len(RANKS)):
            self._try(way)

    def ways(self) -> Iterator[Way]:
        """Yield ways to find an order, the most promising first: the greedy rules, then random
        mixtures of min-fill and min-weight without end. If all attributes are simplicial, only one
        is yielded.
        """
        yield from [partial(self._greedy, rank) for rank in RANKS[: None if self.left else 1]]
        if self.left:
            yield from self._random_ways(random.Random(0))

    def _random_ways(self, rng: random.Random) -> Iterator[Way]:
        """Yield greedy orders by mixtures of min-fill and min-weight with noise, without end."""
        draw = rng.random
        while True:
            fill, noise = 0.5 + 0.5 * draw(), 4 * draw()

            def rank(measure: Measure, fill: float = fill, noise: float = noise) -> float:
                missing, _, log_cells = measure
                return fill * math.log1p(missing) + (1 - fill) * log_cells + noise * draw()

            yield partial(self._greedy, rank)

    def restarts(self, seconds: float, rng: random.Random) -> None:
        """Try the order of `sweep`, then greedy orders by random mixtures of min-fill and
        min-weight with noise; keep the best order in `best`.

        The number of tries depends on `seconds` and the size of the graph, not on a clock. The
        tries also end when they have taken about a millisecond more than a hundred inference passes
        (`MOST_ROUNDS`) over the best tree so far.
        """
        if not self.left:
            return
        each = self.measured // len(RANKS) + len(self.measures)
        ways = itertools.chain([self.sweep], self._random_ways(rng))
        for done in range(int(seconds * MEASURES_A_SECOND / each)):
            if done * each >= _MEASURES_AT_LEAST + _MEASURES_OF_A_CELL * self.cells:
                return
            self._try(next(ways))

    def _try(self, way: Way) -> None:
        steps = way()
        cells = sum([cells_of(c, self.sizes) for c in maximal_cliques(steps).values()])
        if self.cells < 0 or cells < self.cells:
            self.best, self.cells = steps, cells

    def _greedy(self, rank: Rank) -> list[Step]:
        """Return the steps of the simplicial attributes (`prefix`), then those of the order that
        always eliminates the attribute with the lowest rank next. Once the rest is one clique, its
        attributes follow in any order.
        """
        steps = [*self.prefix]
        neighbours, left = list(self.neighbours), self.left
        ranks = {v: rank(measure) for v, measure in self.measures.items()}
        while left:
            v = min(ranks, key=ranks.__getitem__)
            around = neighbours[v]
            steps.append((v, around))
            left ^= 1 << v
            del ranks[v]
            if around == left:  # the rest is one clique, so any order is as good
                break
            for u in _affected(neighbours, v):
                ranks[u] = rank(self._measure(neighbours, u))
        for v in each_bit(left):
            left ^= 1 << v
            steps.append((v, left))
        return steps

    def sweep(self) -> list[Step]:
        """Return the order that sweeps from one end of the graph to the other.

        The attributes next to eliminated ones are the border. The sweep always eliminates one of
        them: the one whose elimination adds the fewest cells to a table over the border, and of
        equal ones the one that has been on the border longest. In grids and other long graphs the
        largest clique is then about as wide as the graph. Greedy orders look only at an attribute's
        neighbours, so they eliminate everywhere at once and need larger cliques there.
        """
        steps = [*self.prefix]
        left, border = self.left, dict[int, None]()
        reached = 0
        while left:
            if not border:
                start = self._end_of(left)
                border[start], reached = None, reached | 1 << start
            self.measured += len(border)
            v = min(border, key=lambda u: self._added(u, left & ~reached))
            new = self.neighbours[v] & left & ~reached
            reached |= new
            border.update(dict.fromkeys(each_bit(new)))
            del border[v]
            left ^= 1 << v
            steps.append((v, sum([1 << u for u in border])))
        return steps

    def _added(self, v: int, fresh: int) -> float:
        """Return the change of the logarithm of the border's cells if `v`, an attribute on it, is
        eliminated. The border are the attributes next to eliminated ones; `fresh` is the set of the
        attributes that are neither, of which those next to `v` come to the border.
        """
        return sum([self.logs[u] for u in each_bit(self.neighbours[v] & fresh)]) - self.logs[v]

    def _end_of(self, left: int) -> int:
        """Return an attribute at an end of one component of the graph of the attributes `left`: one
        farthest from an attribute that is itself farthest from an arbitrary start.
        """
        farthest = each_bit(left)[0]
        for _ in range(2):
            reached = ring = 1 << farthest
            while ring:
                farthest = each_bit(ring)[0]
                ring = union([self.neighbours[u] for u in each_bit(ring)]) & left & ~reached
                reached |= ring
        return farthest

    def _measure(self, neighbours: list[int], v: int) -> Measure:
        self.measured += 1
        around = members = neighbours[v]
        twice = degree = 0
        log_cells = self.logs[v]
        while members:
            low = members & -members
            u = low.bit_length() - 1
            members ^= low
            twice += (around & ~neighbours[u]).bit_count() - 1
            degree += 1
            log_cells += self.logs[u]
        return twice >> 1, degree, log_cells


def _affected(neighbours: list[int], v: int) -> Sequence[int]:
    """Join the neighbours of `v` to each other and remove `v`, both in the list `neighbours`
    itself; return the attributes whose measure may change.
    """
    around = neighbours[v]
    changed = around
    for u in each_bit(around):
        missing = around & ~neighbours[u] & ~(1 << u)
        neighbours[u] ^= 1 << v
        for w in each_bit(missing):
            # The edge u-w is new, so one edge less is missing among the neighbours of each of their
            # common neighbours.
            changed |= neighbours[u] & neighbours[w]
            neighbours[u] |= 1 << w
            neighbours[w] |= 1 << u
    return each_bit(changed & ~(1 << v))


def maximal_cliques(steps: Sequence[Step]) -> dict[int, int]:
    """Return a mapping from attribute to the elimination clique in which it is eliminated, for the
    maximal cliques alone.

    The clique of a later step is not maximal exactly if it equals the neighbours of an attribute
    eliminated before.
    """
    remainders: set[int] = set()
    found: dict[int, int] = {}
    for v, around in steps:
        clique = around | 1 << v
        if clique not in remainders:
            found[v] = clique
        remainders.add(around)
    return found
