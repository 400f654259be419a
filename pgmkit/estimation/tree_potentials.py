"""Potentials from tables in closed form: the product of clique tables divided by separator tables.

If the cliques are decomposable, the result is exact. Otherwise the potentials come from the most
informative decomposable subset of the cliques, which is grown clique by clique like a Chow-Liu
tree; the other cliques have potentials of zero.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from pgmkit.domain import Clique, Domain
from pgmkit.graphs.junction_tree import junction_tree
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import SUM_ROUNDING


def tree_potentials(
    domain: Domain, cliques: Sequence[Clique], tables: Mapping[Clique, Array], deadline: float = inf
) -> list[Array]:
    """Return one array of potentials for each clique, in the clique's shape. They are zero for a
    clique that has no table, is not in the decomposable subset, or was not reached before the
    ``deadline`` of ``time.perf_counter``.

    ``tables`` are in counts or fractions. They may have further axes after those of their clique,
    the same in all, which number several sets of tables. Each set then gets potentials of its own,
    along the same axes, over the cliques that are the most informative on average.
    """
    fractions = {clique: _fractions(table, len(clique)) for clique, table in tables.items()}
    sets = next((table.shape[len(clique) :] for clique, table in tables.items()), ())
    potentials = {clique: np.zeros((*domain.shape(clique), *sets)) for clique in cliques}
    held = [clique for clique in cliques if clique in fractions]
    for clique, separator in _growth(domain, held, fractions, deadline):
        summed = tuple(i for i, name in enumerate(clique) if name not in separator)
        table = fractions[clique]
        potentials[clique] = np.log(table) - np.log(table.sum(axis=summed, keepdims=True))
    return [potentials[clique] for clique in cliques]


def _fractions(table: Array, rank: int) -> Array:
    """Return the table as fractions that sum to 1 over its first ``rank`` axes, for each set.

    Negative cells count as 0, and a set without a positive cell becomes uniform. Fractions below
    SUM_ROUNDING are raised to it, so that every logarithm is finite.
    """
    axes = tuple(range(rank))
    positive = np.maximum(table, 0.0)
    total = positive.sum(axes)
    uniform = 1 / math.prod(table.shape[:rank])
    shares = np.where(total > 0, positive / np.where(total > 0, total, 1.0), uniform)
    floored = np.maximum(shares, SUM_ROUNDING)
    return np.asarray(floored / floored.sum(axes))


def _growth(
    domain: Domain, cliques: Sequence[Clique], fractions: Mapping[Clique, Array], deadline: float
) -> list[tuple[Clique, Clique]]:
    """Return cliques in an order with the running-intersection property, each with its separator
    (the attributes that it shares with the cliques before it). These are all ``cliques`` if they
    are decomposable, otherwise the ones that ``_greedy_growth`` chooses.
    """
    held = {frozenset(clique): clique for clique in cliques}
    covered = set().union(*cliques)
    # The tree is that of the whole domain, so that the model can reuse it from the cache.
    tree = junction_tree(domain, cliques)
    pairs = zip(map(frozenset, tree.cliques), tree.separators, strict=True)
    names = [(clique, separator) for clique, separator in pairs if not covered.isdisjoint(clique)]
    if all(clique in held for clique, _ in names):
        return [(held[clique], separator) for clique, separator in names]
    return _greedy_growth(domain, cliques, fractions, deadline)


def _greedy_growth(
    domain: Domain, cliques: Sequence[Clique], fractions: Mapping[Clique, Array], deadline: float
) -> list[tuple[Clique, Clique]]:
    """Return a decomposable subset of the cliques, each with its separator. Until the ``deadline``,
    the most informative of those cliques is added that have attributes in the tree so far, all in
    one of the tree's cliques, and others that are not in it. If there is none, the most informative
    clique without attributes in the tree begins another tree; without one the growth ends.
    """
    mean = {c: fractions[c].reshape(*domain.shape(c), -1).mean(axis=-1) for c in cliques}
    left = sorted(cliques, key=lambda clique: -_information(mean[clique]))
    covered: set[str] = set()
    grown: list[tuple[Clique, Clique]] = []
    grown_sets: list[set[str]] = []
    # The cliques chosen so far always form a junction tree, so the growth may end after any of
    # them. Cliques that are not chosen get potentials of zero.
    while left and time.perf_counter() < deadline:
        best = None
        for clique in left:
            separator = tuple(name for name in clique if name in covered)
            if len(separator) == len(clique):
                continue
            if separator and any(held.issuperset(separator) for held in grown_sets):
                best = (clique, separator)
                break
            if not separator and best is None:
                best = (clique, separator)
        if best is None:
            break
        grown.append(best)
        grown_sets.append(set(best[0]))
        covered.update(best[0])
        left.remove(best[0])
    return grown


def _information(table: Array) -> float:
    """Return the total correlation of a table in nats, its divergence from the product of its
    one-way marginals.
    """
    total = float((table * np.log(table)).sum())
    for axis in range(table.ndim):
        single = table.sum(axis=tuple(i for i in range(table.ndim) if i != axis))
        total -= float((single * np.log(single)).sum())
    return total
