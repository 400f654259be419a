"""The residual bases of a workload: rows of whole numbers for each attribute.

The error depends on an attribute's basis only through its inside and outside errors
(`mechanisms.strategies.residual_lattice`). So bases are made in rounds: each attribute gets the
basis that is best for the present derivatives of T, the square root of the error, with respect to
its two errors. If several kinds of queries are asked along an attribute, each residual may then get
rows of its own (below).

**Rows for each residual.** If all bases of an attribute have the same vector p
(`pgmkit.least_squares.residual_tables`), residuals are estimated separately, and each can have the
rows that are best for the queries that it enters: for example, ranges asked of a single attribute,
and single codes asked in a table of three. For a residual A and a combination k of kinds of queries
along its attributes, let coefficient_k be the sum, over the sets of queries that contain A and ask
k along it, of weight_c times the outside errors along their other attributes. Then

    v_A = sum over k of coefficient_k times the product over A of inside[i, k],

and the best rows along i are the best strategy for the sum over k of the Gram matrices (I - 1p')
V_k (I - p1'), each multiplied by the derivative of v_A with respect to inside[i, k]
(`mechanisms.strategies.least_error`). Since these derivatives depend on the rows, the rows are made
in rounds. The vector p is that of the shared rows, rounded as follows.

Rows S of whole numbers have S p = 0 exactly if p is proportional to a vector w of whole numbers and
each row is orthogonal to w. A rounded row is made orthogonal to w by changing entries by whole
numbers at the codes where w has its least value l, which changes the scalar product by multiples of
l. The remainder is removed by changing entries where w is l + 1 by one and entries where it is l by
minus one, which changes the scalar product by 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mechanisms.privacy.integer_matrix import ENTRY_BITS
from mechanisms.strategies.least_error import best_precision, split
from mechanisms.strategies.residual_lattice import Lattice, Places
from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput
from pgmkit.least_squares.residual_basis import ResidualBasis
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import FEW_ROUNDS, SOLVED

_FEWEST_BITS = 4
"""The fewest bits of a basis's entries: with fewer, its rows may lose their rank."""


def residual_rows(lattice: Lattice) -> OwnRows:
    """Return the residual bases of each attribute, whose rows S are whole numbers, and which of
    these bases each residual is measured in.

    Raises InvalidInput if products of the rows along all attributes of a set would need more bits
    than an exact answer may have.
    """
    domain = lattice.domain
    slots: dict[str, list[int]] = {}
    for slot, name in enumerate(lattice.names):
        if domain.sizes[name] > 1:
            slots.setdefault(name, []).append(slot)
    plain = [n for n, own in slots.items() if all(lattice.grams[s] is None for s in own)]
    rows = {name: domain.sizes[name] * np.eye(domain.sizes[name]) - 1 for name in plain}
    turned = {name: own for name, own in slots.items() if name not in rows}
    bits = _bits(lattice, turned, rows)
    for name, each in _turned_rows(lattice, turned, rows).items():
        rows[name] = np.rint(each * ((2 ** bits[name] - 1) / np.abs(each).max()))
    shared = {name: ResidualBasis.of(rows[name]) for name in domain if name in rows}
    return own_rows(lattice, shared, bits)


def _turned_rows(
    lattice: Lattice, turned: Mapping[str, Sequence[int]], plain: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the best rows of real numbers, of sensitivity 1, for the attributes along which other
    queries than single codes are asked.

    `turned`: for each of these attributes its slots in the lattice, one for each kind of queries
    that are asked along it. `plain`: the rows of the other attributes.
    """
    # All rows are scaled to sensitivity 1, as those that `split` makes are.
    bases = {
        name: ResidualBasis.of(rows / np.sqrt((rows**2).sum(axis=0).max()))
        for name, rows in plain.items()
    }
    weights: dict[str, Array] = {}
    # In the first round every kind of queries has equal weight, and the total has the weight that
    # it has in the best strategy for the attribute alone: nu of `least_error` is 0.
    inward = np.array([1.0 if gram is None else 1 / np.trace(gram) for gram in lattice.full])
    dear = np.zeros(len(inward))
    best, least = {}, math.inf
    for _ in range(FEW_ROUNDS * bool(turned)):
        made: dict[object, tuple[Array, Array]] = {}
        for name, own in turned.items():
            key, gram, more = _problem(lattice, own, inward[own], dear[own].sum(), bases.get(name))
            if key not in made:
                _, precision, d = split(gram, more, weights.get(name))
                values, vectors = np.linalg.eigh(precision)
                made[key] = (vectors[:, 1:] * np.sqrt(values[1:])).T, d
            rows, weights[name] = made[key]
            bases[name] = ResidualBasis.of(rows)
        inside, outside = lattice.errors(bases, full=True)
        root, inward, outward = lattice.root_error(inside, outside)
        dear = outward * outside
        if root < least:
            best = {name: bases[name].rows for name in turned}
        if root > least * (1 - SOLVED):
            break
        least = root
    return best


def _problem(
    lattice: Lattice, own: Sequence[int], inward: Array, dear: float, basis: ResidualBasis | None
) -> tuple[object, Array, float]:
    """Return a key, and the Gram matrix and the nu from which `split` makes an attribute's next
    basis. The weights of the Gram matrix and nu are rounded to three digits, so that nearly equal
    problems have one key.

    T is the square root of the workload's error; `mechanisms.strategies.residual_lattice` defines
    inside and outside errors. The Gram matrix is the mean of those of the attribute's kinds of
    queries, weighted by `inward`. The module docstring of `least_error` defines nu, which comes
    from both errors of `basis` and is 0 without one, in the first round.

    Args:
        own: the attribute's slots in the lattice, one for each kind of queries.
        inward: the derivative of T with respect to the inside error of each slot.
        dear: the sum over the slots of the outside error times the derivative of T with respect
            to it.
        basis: the attribute's basis in the round before, with rows of sensitivity 1, or None in the
            first round.
    """
    parts = [float(f"{x:.3g}") for x in inward / inward.sum()]
    gram = lattice.mixed(own, parts)
    n, more = len(gram), 0.0
    if basis is not None:
        e = (basis.inverse * (gram @ basis.inverse)).sum()
        f = float(basis.unseen @ gram @ basis.unseen)
        # The variable `more` is nu in the module docstring of `least_error`, and `gram` is V there.
        # The best nu is 0 if all queries along the attribute are of one kind and in one set, and
        # larger if other sets use the total too. Values below 0 would gain next to nothing.
        more = max(0.0, float(f"{e * (f * inward.sum() / dear) ** 2 - f:.3g}"))
    return (n, tuple(lattice.kinds[slot] for slot in own), tuple(parts), more), gram, more


def _bits(
    lattice: Lattice, turned: Mapping[str, Sequence[int]], plain: Mapping[str, Array]
) -> dict[str, int]:
    """Return, for each attribute of `turned` (those along which other queries than single codes are
    asked), the number of bits of its rows' entries. In a clique these attributes share evenly what
    the other attributes, whose rows are n I - J (`plain`; J is the matrix of ones), leave of
    `ENTRY_BITS` bits. Each attribute gets the least of its shares in all cliques. Raises
    InvalidInput if one gets fewer than `_FEWEST_BITS`.
    """
    bits = dict.fromkeys(turned, ENTRY_BITS)
    for clique in lattice.cliques:
        own = [name for name in clique if name in turned]
        left = ENTRY_BITS - sum(int(plain[n][0, 0]).bit_length() for n in clique if n in plain)
        for name in own:
            bits[name] = min(bits[name], left // len(own))
    for name, each in bits.items():
        if each < _FEWEST_BITS:
            raise InvalidInput(
                f"queries along {name!r} are asked in cliques of so many codes that whole numbers "
                f"of {ENTRY_BITS} bits do not hold their products; ask them in smaller cliques"
            )
    return bits


_LEAST = 8
"""The least of the whole numbers w if they are not all equal: rounding changes p by a sixteenth at
most.
"""
_DIGITS = 2
"""The digits to which the weights of the kinds of queries are rounded. Residuals whose rounded
weights are equal share their rows; the error grows only with the square of the rounding.
"""


@dataclass(frozen=True)
class OwnRows:
    """The bases of each attribute, and which of them each residual is measured in.

    Attributes:
        bases: The bases of each attribute, all of which have the same p (`ResidualBasis.unseen`).
        which: The number of the basis, among those of the attribute, that each residual (a row)
            uses along each slot (a column): an attribute with one kind of queries (`Lattice`).
        root: T, the square root of the workload's error, for rows scaled to sensitivity 1.
    """

    bases: Mapping[str, Sequence[ResidualBasis]]
    which: Places
    root: float

    def errors(self, lattice: Lattice, full: bool) -> tuple[Array, Array]:
        """Return the inside errors (see `Lattice.errors`), with a row for each basis and a column
        for each slot (an attribute with one kind of queries), and the outside errors of the slots.
        In the rows beyond an attribute's number of bases its last basis is used again. `full`:
        whether Gram matrices that lack full rank are replaced by those of `Lattice.full`.
        """
        inside = []
        for number in range(max(map(len, self.bases.values()), default=1)):
            level = {n: own[min(number, len(own) - 1)] for n, own in self.bases.items()}
            found, outside = lattice.errors(level, full)
            inside.append(found)
        return np.array(inside), outside

    def by_residual(self, lattice: Lattice) -> dict[Clique, dict[str, ResidualBasis]]:
        """Return the basis of each residual along each of its attributes."""
        slot = {name: place for place, name in enumerate(lattice.names)}
        return {
            part: {name: self.bases[name][self.which[at, slot[name]]] for name in part}
            for at, part in enumerate(lattice.residuals)
        }


def own_rows(
    lattice: Lattice, shared: Mapping[str, ResidualBasis], bits: Mapping[str, int]
) -> OwnRows:
    """Return the bases with the smaller error: the shared ones, or separate ones for each residual.

    `shared`: the bases of the shared rows, by attribute. `bits`: the number of bits of the rows'
    entries, for each attribute along which other queries than single codes are asked.
    """
    which: Places = np.zeros((len(lattice.residuals), len(lattice.names)), dtype=np.intp)
    best = rated(lattice, {name: [basis] for name, basis in shared.items()}, which)
    mixed = [n for n in shared if lattice.names.count(n) > 1]
    if not mixed:
        return best
    weights = {name: whole_weights(shared[name].unseen) for name in mixed}
    return min(best, residual_bases(lattice, shared, weights, bits), key=lambda each: each.root)


def residual_bases(
    lattice: Lattice,
    shared: Mapping[str, ResidualBasis],
    weights: Mapping[str, Array],
    bits: Mapping[str, int],
) -> OwnRows:
    """Return the best bases that were found, one for each residual along each of its attributes.
    The p of a basis (`ResidualBasis.unseen`) is proportional to the attribute's vector w of whole
    numbers in `weights`; attributes without weights keep their shared basis. `shared` and `bits`:
    as for `own_rows`.
    """
    slots = {name: [s for s, n in enumerate(lattice.names) if n == name] for name in weights}
    known: dict[tuple[object, ...], ResidualBasis] = {}

    def basis(name: str, parts: Sequence[float]) -> ResidualBasis:
        kinds = tuple(lattice.kinds[slot] for slot in slots[name])
        key = (weights[name].tobytes(), kinds, tuple(parts), bits[name])
        if key not in known:
            known[key] = whole_basis(lattice.mixed(slots[name], parts), weights[name], bits[name])
        return known[key]

    even = {n: [1 / lattice.mixed([s], [1.0]).trace() for s in own] for n, own in slots.items()}
    first = {name: [basis(name, parts)] for name, parts in even.items()}
    which: Places = np.zeros((len(lattice.residuals), len(lattice.names)), dtype=np.intp)
    best = found = rated(lattice, {n: first.get(n, [shared[n]]) for n in shared}, which)
    inside_residual = {name: np.array([name in r for r in lattice.residuals]) for name in weights}
    for _ in range(FEW_ROUNDS):
        inside, outside = found.errors(lattice, full=True)
        slopes = lattice.slopes(_at_sensitivity_1(found, lattice, inside), outside, found.which)
        bases = {name: list(own) for name, own in found.bases.items()}
        which = found.which.copy()
        for name, own in slots.items():
            parts = slopes[:, own]
            parts /= np.maximum(parts.sum(axis=1, keepdims=True), np.finfo(float).tiny)
            held = inside_residual[name]
            kinds, place = np.unique(parts[held].round(_DIGITS), axis=0, return_inverse=True)
            bases[name] = [basis(name, each.tolist()) for each in kinds]
            which[np.flatnonzero(held)[:, None], own] = place.reshape(-1, 1)
        found, last = rated(lattice, bases, which), found.root
        best = min(best, found, key=lambda each: each.root)
        if found.root > last * (1 - SOLVED):
            break
    return best


def rated(lattice: Lattice, bases: Mapping[str, Sequence[ResidualBasis]], which: Places) -> OwnRows:
    """Return the bases, together with the square root of the error that they have at the best
    shares of the budget. `which`: the number of the basis that each residual uses (see `OwnRows`).
    """
    found = OwnRows(bases, which, 0.0)
    inside, outside = found.errors(lattice, full=True)
    seen = lattice.seen(_at_sensitivity_1(found, lattice, inside), outside, which)
    return OwnRows(bases, which, float(np.sqrt(seen).sum()))


def _at_sensitivity_1(found: OwnRows, lattice: Lattice, inside: Array) -> Array:
    """Return the inside errors `inside` of the bases in `found` as they would be if the rows of
    each basis were scaled so that their largest column has norm 1.
    """
    scale = np.ones_like(inside)
    for slot, name in enumerate(lattice.names):
        tops = [(basis.rows**2).sum(axis=0).max() for basis in found.bases.get(name, ())]
        scale[: len(tops), slot] = tops
    return inside * scale


def whole_weights(p: Array) -> Array:
    """Return whole numbers w nearly in proportion to p; all 1 unless p is above 0 everywhere.

    If they are not all 1, the least number l and l + 1 both occur, as `whole_basis` needs: where
    rounding gives no l + 1, the second least number is replaced by it.
    """
    if p.min() <= 0:
        return np.ones(len(p))
    found = np.rint(p * (_LEAST / p.min()))
    if not (found == _LEAST + 1).any():
        found[np.argsort(p)[1]] = _LEAST + 1
    return found


def whole_basis(gram: Array, weights: Array, bits: int) -> ResidualBasis:
    """Return the best basis for what queries with this Gram matrix ask beyond the total: rows of
    whole numbers of at most `bits` bits that are orthogonal to `weights`.
    """
    # With p = w / sum(w), I - p1' takes the total out of the queries.
    away = np.eye(len(weights)) - np.outer(weights / weights.sum(), np.ones(len(weights)))
    values, vectors = np.linalg.eigh(best_precision(away.T @ gram @ away)[0])
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    least = weights.min()
    low, next_one = weights == least, weights == least + 1
    top = 2.0**bits - 1
    while True:
        # The product of each row with w is many * l + units, where l is the least weight. It
        # becomes 0 if many - units in total are taken from the entries of weight l, and units in
        # total from those of weight l + 1.
        rows = np.rint(root * (top / root.max()))
        many, units = np.divmod(rows @ weights, least)
        rows[:, low] -= spread_evenly(many - units, low.sum())
        rows[:, next_one] -= spread_evenly(units, next_one.sum())
        if np.abs(rows).max() < 2**bits:
            return ResidualBasis.of(rows)
        top *= 1 - 1 / FEW_ROUNDS


def spread_evenly(sums: Array, over: int) -> Array:
    """Return for each sum a row of `over` whole numbers that add up to it and differ by at most 1;
    with `over` 0 the rows are empty.
    """
    if not over:
        return np.zeros((len(sums), 0))
    every, left = np.divmod(sums, over)
    return every[:, None] + (np.arange(over) < left[:, None])
