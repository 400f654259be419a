"""The residual bases of a workload: rows of whole numbers for each attribute.

The error depends on an attribute's basis only through its inside and outside errors
(`mechanisms.strategies.residual_lattice`). So bases are made in rounds: each attribute gets the
basis that is best for the present derivatives of T, the square root of the error, with respect to
its two errors. If several kinds of queries are asked along an attribute, each residual may then get
rows of its own (`mechanisms.strategies.own_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mechanisms.privacy.integer_matrix import ENTRY_BITS
from mechanisms.strategies.least_error import split
from mechanisms.strategies.own_rows import OwnRows, own_rows
from mechanisms.strategies.residual_lattice import Lattice
from pgmkit.errors import InvalidInput
from pgmkit.least_squares.residual_tables import ResidualBasis
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
    best = _turned_rows(lattice, turned, rows)
    for name, each in best.items():
        rows[name] = np.rint(each * ((2 ** bits[name] - 1) / np.abs(each).max()))
    shared = {name: ResidualBasis.of(rows[name]) for name in domain if name in rows}
    return own_rows(lattice, shared, bits)


def _turned_rows(
    lattice: Lattice, turned: Mapping[str, Sequence[int]], plain: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the rows of the attributes along which other queries than single codes are asked.

    `turned`: the slots of these attributes in the lattice; `plain`: the rows of the others.
    """
    # All rows are scaled to sensitivity 1, as those that `split` makes are.
    bases = {
        name: ResidualBasis.of(rows / np.sqrt((rows**2).sum(axis=0).max()))
        for name, rows in plain.items()
    }
    weights: dict[str, Array] = {}
    # In the first round every kind of queries has equal weight, and the total has the weight that
    # it has in the best strategy for the attribute alone (nu = 0).
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
    queries, weighted by `inward`; nu is 0 in the first round.

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
    """Return, for each attribute of `turned`, the number of bits of its rows' entries. In a clique
    these attributes have equal shares of those of the `ENTRY_BITS` bits that the rows n I - J of
    the other attributes leave, and each gets the least of its shares in all cliques. Raises
    InvalidInput if that is too few.
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
