"""The moves of one row in several products of queries at once, where it replaces another row.

Row x in place of row y moves the answers to product A by the squared distance

    |u_A(x)|^2 + |u_A(y)|^2 - 2 times the product over A of g_i(x_i, y_i),

with u_A(x) the product's column and g_i the inner products of a factor's columns. A product alone
moves most where its last term is least, and that is not at the same rows for all: rows that differ
in two attributes move the single attributes most and their pair the least. With c_A >= 0 the worst
sum of c_A times these distances is at most

    sum over A of 2 c_A times the product of the largest |column|^2 of its factors
    - 2 times the least of the sum over A of c_A times the product of g_i,

over what the g_i can be. Of an attribute in which x and y agree the largest |column|^2 is a factor
of the whole distance, so that g_i may be taken as that; where they differ, each of the attribute's
factors has a g_i between the least and the largest inner product of two of its columns. The sum is
linear in each of these, so it is least at ends of their ranges: all combinations are looked at.
Factors whose columns are all alike, such as n I - J, have rows that attain the bound. It is not
attained where the factors of an attribute have their ends at different rows. Many products are
bounded in groups, which can only raise it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from mechanisms.privacy.integer_matrix import FactorNorms, product_l2_squared
from mechanisms.privacy.neighbours import Neighbours
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import AGREEMENT
from pgmkit.runtime.sizes import CALL_CELLS

Product: TypeAlias = "Mapping[Any, FactorNorms]"
"""The norms of a product's factors, each by its attribute, or by its attributes."""


class JointMoves:
    """Bounds of what several products of queries cost together under Gaussian noise. The cost of a
    single product is its share, which corresponds to the most that one row moves its answers.

    The products are bounded in groups. A state of a group is one way in which a row may move its
    answers: a combination of ends (see the module's docstring), or, where the number of rows is
    private, a row that leaves or enters.

    >>> from mechanisms.privacy.neighbours import relation
    >>> one, other = (FactorNorms.of(n * np.eye(n, dtype=np.int64) - 1) for n in (2, 3))
    >>> products = [{"a": one}, {"b": other}, {"a": one, "b": other}]
    >>> moves = JointMoves(relation("replace-one"), products)
    >>> round(moves.most([1 / 3, 1 / 3, 1 / 3]), 9)
    0.75
    """

    def __init__(self, neighbours: Neighbours, products: Sequence[Product]) -> None:
        some = range(len(products)) if neighbours.exchanged else []
        self._products = len(products)
        self._groups = [
            _Group(places, [products[place] for place in places], neighbours)
            for places in _groups(products, [place for place in some if products[place]])
        ]
        self._others = np.ones(len(products), dtype=bool)
        for group in self._groups:
            self._others[group.places] = False

    def costs(self, shares: ArrayLike) -> list[Array]:
        """Return for each group an array of the joint cost of its products in each state. The first
        array has one entry, the sum for the products in no group.

        `shares`: the largest cost of each product alone.
        """
        own = np.asarray(shares, dtype=np.float64)
        return [
            own[self._others].sum(keepdims=True),
            *(g.costs(own[g.places]) for g in self._groups),
        ]

    def most(self, shares: ArrayLike) -> float:
        """Return the most that all products cost together: at most the sum of the shares."""
        whole = float(np.sum(shares))
        return min(whole, sum(float(each.max()) for each in self.costs(shares)) * (1 + AGREEMENT))

    def prices(self, chances: Sequence[Array]) -> Array:
        """Return for each product its mean cost over the states as a part of its share, at most 1.
        `chances`: the probabilities of the states, one array for each array of `costs`.
        """
        found = np.ones(self._products)
        for group, own in zip(self._groups, chances[1:], strict=True):
            found[group.places] = np.minimum(group.prices(own), 1.0)
        return found


class _Group:
    """Products whose states are few enough to compute all; the states form an array with an axis
    for each attribute.
    """

    def __init__(
        self, places: Sequence[int], products: Sequence[Product], neighbours: Neighbours
    ) -> None:
        self.places = np.array(places)
        factors: dict[Hashable, dict[bytes, FactorNorms]] = {}
        for product in products:
            for name, norms in product.items():
                factors.setdefault(name, {})[norms.direction] = norms
        self._ends = [_ends([*own.values()]) for own in factors.values()]
        # Along an attribute's axis the first entry is for products without the attribute, and each
        # other entry for one of its factors.
        self._shape = [1 + len(own) for own in factors.values()]
        held = [{name: norms.direction for name, norms in each.items()} for each in products]
        terms = [[[None, *own].index(h.get(n)) for n, own in factors.items()] for h in held]
        self._terms = np.ravel_multi_index(np.transpose(terms), self._shape)
        self._leaves = not neighbours.rows_public
        lengths = [math.prod(each.l2 for each in product.values()) for product in products]
        apart = [product_l2_squared([*product.values()], True) for product in products]
        pairs = zip(lengths, apart, strict=True)
        self._parts = np.array([n / max(most, n * self._leaves) for n, most in pairs])

    def costs(self, shares: Array) -> Array:
        weights = shares * self._parts
        sums: Array = np.zeros(math.prod(self._shape))
        np.add.at(sums, self._terms, weights)
        sums = sums.reshape(self._shape)
        for axis, ends in enumerate(self._ends):
            sums = np.moveaxis(np.tensordot(ends, sums, (1, axis)), 0, axis)
        replaced = 2 * (weights.sum() - sums.reshape(-1))
        return np.append(replaced, weights.sum()) if self._leaves else replaced

    def prices(self, chances: Array) -> Array:
        replaced = chances[:-1] if self._leaves else chances
        means = replaced.reshape([len(ends) for ends in self._ends])
        for axis, ends in enumerate(self._ends):
            means = np.moveaxis(np.tensordot(ends.T, means, (1, axis)), 0, axis)
        moved = 2 * (replaced.sum() - means.reshape(-1)[self._terms])
        return self._parts * (moved + chances[-1] * self._leaves)


def _ends(factors: Sequence[FactorNorms]) -> Array:
    """Return a row for each combination of ends: 1, and g_i over the largest |column|^2 for each of
    an attribute's factors.
    """
    ranges = [(each.low / each.l2, each.high_apart / each.l2) for each in factors]
    # For a single factor the low end and 1 are enough, since the sum is never least at the high
    # end.
    if len(ranges) == 1:
        return np.array([[1.0, 1.0], [1.0, ranges[0][0]]])
    return np.array([(1.0, *ends) for ends in [(1.0,) * len(ranges), *itertools.product(*ranges)]])


def _groups(products: Sequence[Product], places: Sequence[int]) -> list[list[int]]:
    """Return the places of the products in groups of at most `_MOST_STATES` states; each product,
    the largest first, joins the first group that has room.
    """
    groups: list[tuple[dict[Hashable, set[bytes]], list[int]]] = []
    for place in sorted(places, key=lambda place: -len(products[place])):
        own = {name: {norms.direction} for name, norms in products[place].items()}
        for held, inside in groups:
            joined = held | {name: held.get(name, set()) | each for name, each in own.items()}
            states = [2 if len(each) == 1 else 1 + 2 ** len(each) for each in joined.values()]
            if math.prod(states) <= CALL_CELLS:
                held.update(joined)
                inside.append(place)
                break
        else:
            groups.append((own, [place]))
    return [inside for _, inside in groups]
