"""Estimation problems drawn from seeds: cyclic structures of attributes of one size.

A random model of the structure, records drawn from it exactly, and the tables of the measured
pairs. ``grid`` is 10 x 10 Boolean attributes with all 180 edges measured, ``boolean`` 20 Boolean
attributes with 60 random pairs. Their junction trees have cliques of ten attributes and more, and
most steps of inference have the same extents. Needs numpy only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

NAMES = ("grid", "boolean")
RECORDS, SIGMA = 50_000, 50.0
ASKED = 40
"""Pairs that nobody measured, two measured ones apart, that a model is judged by."""

Pair = tuple[str, str]
Scope = tuple[int, ...]
Factors = Mapping[tuple[int, int], np.ndarray]


@dataclass(frozen=True)
class Drawn:
    """Counts of the drawn records: of the measured pairs, and of some that were not."""

    domain: dict[str, int]
    cliques: tuple[Pair, ...]
    counts: tuple[np.ndarray, ...]
    unmeasured: tuple[Pair, ...]
    unmeasured_counts: tuple[np.ndarray, ...]


def edges(name: str) -> list[tuple[int, int]]:
    """The measured pairs of attributes, by number."""
    if name == "grid":
        right = [(10 * i + j, 10 * i + j + 1) for i in range(10) for j in range(9)]
        down = [(10 * i + j, 10 * (i + 1) + j) for i in range(9) for j in range(10)]
        return right + down
    pairs = list(itertools.combinations(range(20), 2))
    picked = np.random.default_rng(20).choice(len(pairs), 60, replace=False)
    return [pairs[i] for i in sorted(picked)]


@lru_cache(maxsize=1)
def draw(name: str) -> Drawn:
    """The problem without its noise."""
    attributes, pairs = {"grid": 100, "boolean": 20}[name], edges(name)
    rng = np.random.default_rng(list(name.encode()))
    factors = {pair: np.exp(rng.normal(0, 1, (2, 2))) for pair in pairs}
    records = sample(attributes, factors, RECORDS, rng)
    near = [{b for pair in pairs if a in pair for b in pair if b != a} for a in range(attributes)]
    others = [
        (a, b)
        for a, b in itertools.combinations(range(attributes), 2)
        if b not in near[a] and near[a] & near[b]
    ]
    asked = [others[i] for i in sorted(rng.choice(len(others), ASKED, replace=False))]

    def count(pair: tuple[int, int]) -> np.ndarray:
        cells = 2 * records[pair[0]].astype(np.intp) + records[pair[1]]
        return np.bincount(cells, minlength=4).astype(np.float64)

    def named(pair: tuple[int, int]) -> Pair:
        return f"x{pair[0]}", f"x{pair[1]}"

    return Drawn(
        {f"x{i}": 2 for i in range(attributes)},
        tuple(map(named, pairs)),
        tuple(map(count, pairs)),
        tuple(map(named, asked)),
        tuple(map(count, asked)),
    )


def sample(attributes: int, factors: Factors, n: int, rng: np.random.Generator) -> np.ndarray:
    """Exact draws of Boolean attributes from a product of tables over pairs: (attributes, n).

    Attributes are drawn in the reverse of the order in which they were summed out, each given
    those that were left when it went.
    """
    records = np.zeros((attributes, n), dtype=np.uint8)
    for chosen, given, joint in reversed(_summed_out(factors, range(attributes))[0]):
        cells = np.zeros(n, dtype=np.intp)
        for other in given:
            cells = 2 * cells + records[other]
        weights = joint.reshape(-1, 2)
        records[chosen] = rng.random(n) < (weights[:, 1] / weights.sum(1))[cells]
    return records


def marginal(factors: Factors, pair: tuple[int, int]) -> np.ndarray:
    """The law of a pair under a product of tables over pairs; of any engine's potentials."""
    used = {attribute for scope in factors for attribute in scope}
    table = _product(_summed_out(factors, used - set(pair))[1], pair)
    return table / table.sum()


def _summed_out(
    factors: Factors, attributes: Iterable[int]
) -> tuple[list[tuple[int, Scope, np.ndarray]], list[tuple[Scope, np.ndarray]]]:
    """Sums attributes out, always one with the fewest neighbours left.

    Returns what went (attribute, neighbours, the product of all tables with it, its own axis
    last) and the tables that are left.
    """
    tables: list[tuple[Scope, np.ndarray]] = list(factors.items())
    near: dict[int, set[int]] = {}
    for a, b in factors:
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    left, gone = set(attributes), []
    while left:
        chosen = min(left, key=lambda i: (len(near[i]), i))
        given = tuple(sorted(near[chosen]))
        for other in given:
            near[other] = (near[other] | set(given)) - {chosen, other}
        joint = _product([t for t in tables if chosen in t[0]], (*given, chosen))
        joint /= joint.max()
        tables = [t for t in tables if chosen not in t[0]]
        tables.append((given, joint.sum(-1)))
        gone.append((chosen, given, joint))
        left.remove(chosen)
    return gone, tables


def _product(tables: list[tuple[Scope, np.ndarray]], axes: Scope) -> np.ndarray:
    """The tables' product, an array over ``axes``."""
    result = np.ones((2,) * len(axes))
    for scope, table in tables:
        order = sorted(range(len(scope)), key=lambda k: axes.index(scope[k]))
        shape = [2 if axis in scope else 1 for axis in axes]
        result = result * table.transpose(order).reshape(shape)
    return result
