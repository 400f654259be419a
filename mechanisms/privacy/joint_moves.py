"""A bound on how far one row that replaces another can move the answers to several products of
queries at once.

A Kronecker product A has a factor (a matrix of queries) along each of its attributes. If row x
takes the place of row y, the answers to the product move by the squared distance

    |u_A(x)|^2 + |u_A(y)|^2 - 2 times the product over A of g_i(x_i, y_i),

where u_A(x) is the product's column at x, and g_i(x_i, y_i) is the inner product of two columns of
the factor along attribute i. A single product moves most if its last term is least, but not all
products do so at the same rows: for example, rows that differ in two attributes move the answers
about each attribute most and those about the pair least. With weights c_A >= 0 the largest sum of
c_A times these distances is at most

    sum over A of 2 c_A times the product of the largest |column|^2 of its factors
    - 2 times the least of the sum over A of c_A times the product of g_i,

where the least is over all possible values of the g_i. If x and y agree in attribute i, g_i may be
taken as the factor's largest |column|^2, since this number multiplies the whole distance. If they
differ, g_i lies between the least and the largest inner product of two different columns of the
factor. The sum is linear in each g_i, so it is least at the ends of their ranges (the *ends*), and
all combinations of ends are computed.

The answers to a product with a single factor move by the squared distance of two columns, which is
at most the largest such distance D. If columns differ in length, the ends above may give more. The
product then has a number h_i of its own in the place of g_i: the largest |column|^2 minus half the
squared distance. It is at least g_i, and at least its value for D.

For rows that differ, the sum is least at a corner of these limits: at the least g_i, where the two
limits of h_i meet, or at the largest g_i. With h_i, no state gives a product with a single factor
more than D.

Rows attain the bound if the columns of each factor are all alike, as those of n I - J are. They may
not attain it if several factors of one attribute have their ends at different rows. If there are
many products, they are bounded in groups, and the bounds of the groups are added up. A product with
nearly equal columns is bounded by itself. Both can only raise the bound.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from mechanisms.privacy.integer_matrix import FactorNorms, product_l2_squared
from mechanisms.privacy.neighbours import Neighbours
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import AGREEMENT, EPSILON, ULPS
from pgmkit.runtime.sizes import CALL_CELLS

Product: TypeAlias = "Mapping[Any, FactorNorms]"
"""The norms of a product's factors, with the attribute (or the attributes) of each factor as its
key.
"""

_Key: TypeAlias = tuple[bytes, bool]
"""A factor is told from others by its direction, and by whether it has an h_i of its own
(`_keys`).
"""


class JointMoves:
    """Bounds on the joint cost of several products of queries under Gaussian noise. The cost of a
    single product is its share, which pays for the largest move of its answers by one row.
    `products`: for each product the norms of its factors, by attribute.

    The products are bounded in groups, and the bounds of the groups are added up. A state of a
    group is one way in which a row may move its answers: a combination of ends (see the module's
    docstring), or, where the number of rows is private, a row that leaves or enters.

    >>> from mechanisms.privacy.neighbours import relation
    >>> one, other = (FactorNorms.of(n * np.eye(n, dtype=np.int64) - 1) for n in (2, 3))
    >>> products = [{"a": one}, {"b": other}, {"a": one, "b": other}]
    >>> moves = JointMoves(relation("replace-one"), products)
    >>> round(moves.most([1 / 3, 1 / 3, 1 / 3]), 9)
    0.75
    """

    def __init__(self, neighbours: Neighbours, products: Sequence[Product]) -> None:
        some = enumerate(products) if neighbours.exchanged else ()
        exact = [place for place, each in some if each and _is_exact(each)]
        self._groups = [
            _Group(places, [products[place] for place in places], neighbours)
            for places in _groups(products, exact)
        ]
        self._others = np.ones(len(products), dtype=bool)
        for group in self._groups:
            self._others[group.places] = False

    def costs(self, shares: ArrayLike) -> list[Array]:
        """Return first an array with one entry, the summed cost of the products that are in no
        group, and then an array for each group, with the joint cost of its products in each of its
        states.

        `shares`: the cost of each product alone.
        """
        own = np.asarray(shares, dtype=np.float64)
        joint = [group.costs(own[group.places]) for group in self._groups]
        return [own[self._others].sum(keepdims=True), *joint]

    def most(self, shares: ArrayLike) -> float:
        """Return an upper bound on the joint cost of all products; it is at most the sum of the
        shares.
        """
        whole = float(np.sum(shares))
        return min(whole, sum(float(each.max()) for each in self.costs(shares)) * (1 + AGREEMENT))

    def prices(self, chances: Sequence[Array]) -> Array:
        """Return the price of each product: its mean cost over the states of its group, divided by
        its share. A price is at most 1; a product in no group has the price 1.

        `chances`: the probabilities of the states, one array for each array that `costs` returns.
        """
        found = np.ones(len(self._others))
        for group, own in zip(self._groups, chances[1:], strict=True):
            found[group.places] = group.prices(own)
        return found


class _Group:
    """Products that are bounded together, by computing their joint cost in every state. The states
    in which a row replaces another form an array with an axis for each attribute; with a private
    number of rows one more state follows, in which a row leaves or enters.
    """

    def __init__(
        self, places: Sequence[int], products: Sequence[Product], neighbours: Neighbours
    ) -> None:
        self.places = np.array(places)
        factors: dict[Hashable, dict[_Key, FactorNorms]] = {}
        held = [_keys(product) for product in products]
        for product, keys in zip(products, held, strict=True):
            for name, norms in product.items():
                factors.setdefault(name, {})[keys[name]] = norms
        factors = {name: dict(sorted(own.items())) for name, own in factors.items()}
        self._ends = [_ends(own) for own in factors.values()]
        # `_terms` is the place of each product in an array with an axis for each attribute. The
        # first entry of an axis is for products without the attribute, each other entry for one of
        # its factors.
        self._shape = [1 + len(own) for own in factors.values()]
        terms = [[[None, *own].index(h.get(n)) for n, own in factors.items()] for h in held]
        self._terms = np.ravel_multi_index(np.transpose(terms), self._shape)
        self._leaves = not neighbours.rows_public
        lengths = [math.prod(each.l2 for each in product.values()) for product in products]
        apart = [product_l2_squared([*product.values()], True) for product in products]
        pairs = zip(lengths, apart, strict=True)
        # A product's share is the cost of its largest move. `_parts` is the fraction of it that a
        # move of squared length n costs, where n is the product's largest |column|^2.
        self._parts = np.array([n / max(most, n * self._leaves) for n, most in pairs])

    def costs(self, shares: Array) -> Array:
        """Return the joint cost of the products in each state. `shares`: their single costs."""
        weights = shares * self._parts
        sums: Array = np.zeros(math.prod(self._shape))
        np.add.at(sums, self._terms, weights)
        sums = sums.reshape(self._shape)
        for axis, ends in enumerate(self._ends):
            sums = np.moveaxis(np.tensordot(ends, sums, (1, axis)), 0, axis)
        replaced = 2 * (weights.sum() - sums.reshape(-1)).clip(0.0)
        return np.append(replaced, weights.sum()) if self._leaves else replaced

    def prices(self, chances: Array) -> Array:
        """Return the mean cost of each product over the states, divided by its share. `chances`:
        the probability of each state, as `costs` orders them.
        """
        replaced = chances[:-1] if self._leaves else chances
        means = replaced.reshape([len(ends) for ends in self._ends])
        for axis, ends in enumerate(self._ends):
            means = np.moveaxis(np.tensordot(ends.T, means, (1, axis)), 0, axis)
        moved = 2 * (replaced.sum() - means.reshape(-1)[self._terms])
        return self._parts * (moved + chances[-1] * self._leaves)


def _keys(product: Product) -> dict[Hashable, _Key]:
    """Return the key of each factor: its direction, and True if it has an h_i of its own (see the
    module's docstring). A factor has one if it is the product's only factor, and the bound by inner
    products would exceed the largest squared distance of two of its columns.
    """
    single = len(product) == 1
    return {
        name: (norms.direction, single and norms.l2_apart < 2 * (norms.l2 - norms.low))
        for name, norms in product.items()
    }


def _is_exact(product: Product) -> bool:
    """Return True if the rounding error of a product's joint cost is below the margin that
    `JointMoves.most` adds for rounding. It is not if the product's columns are equal or nearly
    equal, since the cost is a difference of sums divided by the distance of the columns.
    """
    norms = [*product.values()]
    length = math.prod(each.l2 for each in norms)
    return length * EPSILON * ULPS**2 <= AGREEMENT * product_l2_squared(norms, True)


def _ends(factors: Mapping[_Key, FactorNorms]) -> Array:
    """Return a row for each combination of ends of one attribute's factors (see the module's
    docstring) at which the sum over A may be least. Each row has the number 1, then the g_i or h_i
    of each factor, divided by the factor's largest |column|^2. The first row, all 1, is for records
    x and y that agree in the attribute. `factors` are sorted by their keys.
    """
    parts: list[list[tuple[float, ...]]] = []
    for direction, keys in itertools.groupby(factors, key=lambda key: key[0]):
        kinds = [own for _, own in keys]
        each = factors[direction, kinds[0]]
        low, high = each.low / each.l2, each.high_apart / each.l2
        least = 1 - each.l2_apart / (2 * each.l2)
        if kinds == [True]:
            parts.append([(least,)])
        elif kinds == [False]:
            parts.append([(low,), (high,)])
        else:
            parts.append([(low, least), (min(least, high), least), (high, max(least, high))])
    # If all factors have one direction, the last end is not needed. It equals the end before it, or
    # lies on the line from that end to the first row, whose numbers are all 1. The bound's sum over
    # the products A is linear on this line, so it is least where the line begins or ends.
    if len(parts) == 1 and len(parts[0]) > 1:
        del parts[0][-1]
    ends = [tuple(itertools.chain(*each)) for each in itertools.product(*parts)]
    return np.array([(1.0, *each) for each in [(1.0,) * len(factors), *ends]])


def _states(keys: Collection[_Key]) -> int:
    """Return the number of rows of `_ends` for factors with these keys."""
    directions = len({direction for direction, _ in keys})
    both = len(keys) - directions
    if directions == 1:
        return 2 + both
    return 1 + 3**both * 2 ** (sum(not own for _, own in keys) - both)


def _groups(products: Sequence[Product], places: Sequence[int]) -> list[list[int]]:
    """Return the given places of products in groups. Each group has at most `CALL_CELLS` states
    (see `JointMoves`), or is a single product with more. Products with the most factors come first,
    and each joins the first group that has room.
    """
    groups: list[tuple[dict[Hashable, set[_Key]], list[int]]] = []
    for place in sorted(places, key=lambda place: -len(products[place])):
        own = {name: {key} for name, key in _keys(products[place]).items()}
        for held, inside in groups:
            joined = held | {name: held.get(name, set()) | each for name, each in own.items()}
            if math.prod(map(_states, joined.values())) <= CALL_CELLS:
                held.update(joined)
                inside.append(place)
                break
        else:
            groups.append((own, [place]))
    return [inside for _, inside in groups]
