"""Structures that nobody chose: drawn at random with their potentials, and shrunk when they fail.

A case is everything that inference gets to see, so that a test compares each route through the
library with the joint table written out, on structures that no author had in mind.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from brute_force import Problem, Table, log_weights
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain

LARGEST = 1 << 16
"""Cells of the largest joint that is written out: a grid of 4 x 4 binary attributes."""

Cliques = list[tuple[int, ...]]

_NAMES = (*"abcdefghijklmnop",)
_ODD_NAMES = ("*", ">b", ">>", ">", ">>b", ">*", "a,b", "->", " ", "0", "é", "a" * 40, "x y", ".")
"""Names that a library could take for its own: whatever a string holds is a name."""


@dataclass(frozen=True)
class Case:
    """A problem, and the seed of what a route asks about it."""

    problem: Problem
    seed: int
    family: str = "given"

    @property
    def domain(self) -> Domain:
        return self.problem.domain

    @property
    def cliques(self) -> list[Clique]:
        return self.problem.cliques

    @cached_property
    def weights(self) -> Table:
        return log_weights(self.domain, self.cliques, self.problem.potentials)

    @cached_property
    def joint(self) -> Table:
        """Probabilities, in extended precision."""
        unscaled = np.exp(self.weights - self.weights.max())
        return unscaled / unscaled.sum()

    @cached_property
    def log_partition(self) -> float:
        peak = self.weights.max()
        return float(peak + np.log(np.exp(self.weights - peak).sum()))

    @cached_property
    def possible(self) -> bool:
        return bool(self.weights.max() > -np.inf)

    @cached_property
    def reach(self) -> float:
        """How far logarithms can get from zero: rounding errors are in proportion to it."""
        finite = (np.abs(t[np.isfinite(t)]) for t in self.problem.potentials)
        return float(sum(2 * table.max() for table in finite if table.size))

    def __str__(self) -> str:
        zeros = sum(int(np.isneginf(table).sum()) for table in self.problem.potentials)
        return (
            f"{self.family}: sizes {dict(self.domain.sizes)}, cliques {self.cliques}, potentials "
            f"within +-{self.reach / 2 / max(1, len(self.cliques)):.3g} on average, {zeros} zeros"
        )


def draw_case(seed: int) -> Case:
    """The case of this seed."""
    rng = random.Random(seed)
    family, domain, cliques = draw_structure(rng)
    return Case(Problem(domain, cliques, _potentials(rng, domain, cliques)), seed, family)


def draw_structure(rng: random.Random) -> tuple[str, Domain, list[Clique]]:
    """A family's name, a domain of at most ``LARGEST`` cells, and cliques in any order."""
    family = rng.choice([*_FAMILIES, *_OFTEN])
    most = rng.choice([64, 300, 1024, 1024, 2048, 4096, 8192])
    if rng.random() < 0.003:
        most = LARGEST
    equal = rng.choice([2, 2, 2, 2, 3, 3, 4, 0])
    count, cliques = _FAMILIES[family](rng, _most_attributes(most, equal))
    sizes = [equal or rng.choice([1, 2, 2, 3, 3, 4, 5, 6]) for _ in range(count)]
    while prod(sizes) > most:
        sizes[sizes.index(max(sizes))] -= 1
    if rng.random() < 0.15:
        cliques += rng.choices(cliques, k=rng.randint(1, 3))
    cliques = [tuple(rng.sample(clique, len(clique))) for clique in cliques]
    rng.shuffle(cliques)
    names = rng.sample(_NAMES if rng.random() < 0.9 else _NAMES[:2] + _ODD_NAMES, count)
    domain = Domain(dict(zip(names, sizes, strict=True)))
    return family, domain, [tuple(names[i] for i in clique) for clique in cliques]


def _most_attributes(most: int, equal: int) -> int:
    return min(16, int(np.log(most) / np.log(equal or 2.5) + 1e-9))


def _chain(rng: random.Random, most: int) -> tuple[int, Cliques]:
    count, closed = rng.randint(2, max(2, most)), rng.random() < 0.4
    cliques = list(itertools.pairwise(range(count)))
    return count, cliques + ([(count - 1, 0)] if closed and count > 2 else [])


def _star(rng: random.Random, most: int) -> tuple[int, Cliques]:
    count = rng.randint(2, max(2, most))
    spokes = [(0, i) for i in range(1, count)]
    return count, spokes + [(i, rng.randrange(i)) for i in range(2, count) if rng.random() < 0.2]


def _grid(rng: random.Random, most: int) -> tuple[int, Cliques]:
    shapes = [(r, c) for r in (2, 3, 4) for c in (2, 3, 4, 5) if r * c <= max(4, most)]
    rows, columns = rng.choice(shapes)
    place = {(i, j): i * columns + j for i in range(rows) for j in range(columns)}
    across = [(p, place[i, j + 1]) for (i, j), p in place.items() if j + 1 < columns]
    down = [(p, place[i + 1, j]) for (i, j), p in place.items() if i + 1 < rows]
    return rows * columns, across + down


def _all_pairs(rng: random.Random, most: int) -> tuple[int, Cliques]:
    count = rng.randint(3, max(3, min(most, 7)))
    return count, list(itertools.combinations(range(count), 2))


def _all_triples(rng: random.Random, most: int) -> tuple[int, Cliques]:
    count = rng.randint(3, max(3, min(most, 6)))
    return count, list(itertools.combinations(range(count), 3))


def _random(rng: random.Random, most: int) -> tuple[int, Cliques]:
    """Cliques of up to four attributes; attributes in no clique and components come about."""
    count = rng.randint(1, max(1, most))
    way = rng.choice([2, 2, 3, 3, 4])
    lengths = [rng.randint(1, min(way, count)) for _ in range(rng.randint(1, 10))]
    return count, [tuple(rng.sample(range(count), length)) for length in lengths]


def _same_way(rng: random.Random, most: int) -> tuple[int, Cliques]:
    """As random, all cliques with as many attributes: the steps that run together."""
    count = rng.randint(3, max(3, most))
    way = rng.choice([2, 2, 3])
    return count, [tuple(rng.sample(range(count), way)) for _ in range(rng.randint(3, 11))]


def _nested(rng: random.Random, most: int) -> tuple[int, Cliques]:
    count, cliques = _random(rng, most)
    return count, cliques + [c[rng.randint(0, len(c) - 1) :] for c in cliques[:5]]


def _disconnected(rng: random.Random, most: int) -> tuple[int, Cliques]:
    left, first = _random(rng, max(1, most // 2))
    right, second = rng.choice([_all_pairs, _chain, _random])(rng, max(1, most - left))
    return left + right, first + [tuple(i + left for i in clique) for clique in second]


def _with_nothing(rng: random.Random, most: int) -> tuple[int, Cliques]:
    """A clique of no attribute: a constant."""
    count, cliques = _random(rng, most)
    return count, [*cliques[: rng.randint(0, 3)], ()]


_FAMILIES: dict[str, Callable[[random.Random, int], tuple[int, Cliques]]] = {
    "chain": _chain,
    "star": _star,
    "grid": _grid,
    "all pairs": _all_pairs,
    "all triples": _all_triples,
    "random": _random,
    "same way": _same_way,
    "nested": _nested,
    "disconnected": _disconnected,
    "constant": _with_nothing,
}
_OFTEN = ("all pairs", "all triples", "grid")
"""Cyclic, and most of their steps of one shape."""


def _potentials(
    rng: random.Random, domain: Domain, cliques: list[Clique]
) -> list[NDArray[np.float64]]:
    """Nearly flat up to +-700; zeros that nearly always leave one record possible."""
    draw = np.random.default_rng(rng.getrandbits(64))
    width = rng.choice([0.1, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 30.0, 100.0, 700.0])
    zeros = rng.choice([0.0, 0.0, 0.15, 0.5])
    shapes = [domain.shape(clique) for clique in cliques]
    flat = rng.random() < 0.7
    tables = [
        np.array(
            draw.uniform(-width, width, shape)
            if flat
            else np.clip(draw.normal(0, width / 2, shape), -700, 700)
        )
        for shape in shapes
    ]
    record = {name: rng.randrange(size) for name, size in domain.sizes.items()}
    spared = rng.random() < 0.95
    for clique, table in zip(cliques, tables, strict=True):
        ruled_out = np.asarray(draw.random(table.shape) < zeros)
        if spared:
            ruled_out[tuple(record[name] for name in clique)] = False
        table[ruled_out] = -np.inf
    return tables


def shrunk(case: Case, fails: Callable[[Case], bool], most_tries: int = 400) -> Case:
    """A smaller case that still fails: with fewer cliques, fewer attributes, fewer values."""
    left = most_tries
    while left > 0:
        for smaller in _smaller(case):
            left -= 1
            if fails(smaller):
                case = smaller
                break
            if left <= 0:
                break
        else:
            return case
    return case


def _smaller(case: Case) -> Iterator[Case]:
    problem, domain = case.problem, case.domain
    if len(case.cliques) > 1:
        for i in range(len(case.cliques)):
            cliques, tables = case.cliques.copy(), problem.potentials.copy()
            del cliques[i], tables[i]
            yield Case(Problem(domain, cliques, tables), case.seed, case.family)
    # What is cut away is not the most probable record, so that a case stays possible.
    best = np.unravel_index(int(case.weights.argmax()), domain.shape())
    for name, code in zip(domain, best, strict=True):
        if len(domain) > 1:
            yield _cut(case, name, [int(code)], keep=False)
        if domain.sizes[name] > 1:
            left = [other for other in range(domain.sizes[name]) if other != code]
            yield _cut(case, name, sorted([int(code), *left[:-1]]), keep=True)
    if any((table != np.round(table, 1)).any() for table in problem.potentials):
        rounded = [np.round(table, 1) for table in problem.potentials]
        yield Case(Problem(domain, case.cliques, rounded), case.seed, case.family)


def _cut(case: Case, name: str, codes: list[int], keep: bool) -> Case:
    """Only these codes of an attribute; without ``keep`` it is one code, and the axis goes too."""
    sizes = dict(case.domain.sizes) | {name: len(codes)}
    if not keep:
        del sizes[name]
    cliques, tables = [], []
    for clique, table in zip(case.cliques, case.problem.potentials, strict=True):
        if name in clique:
            axis = clique.index(name)
            table = table.take(codes if keep else codes[0], axis)
            clique = clique if keep else (*clique[:axis], *clique[axis + 1 :])
        cliques.append(clique)
        tables.append(np.asarray(table))
    return Case(Problem(Domain(sizes), cliques, tables), case.seed, case.family)
