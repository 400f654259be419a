"""The residual bases of a workload: rows of whole numbers for each attribute.

The error of a workload at the best shares is T^2, T the sum over residuals A of the root of

    v_A = sum over sets c with A inside c of weight_c
             times the product over A of inside[i, w]
             times the product over c less A of outside[i, w]

(`mechanisms.strategies.residuals`, add/remove). It depends on an attribute's basis through its own
inside and outside errors alone, so bases are made in turn for the derivatives of T in these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mechanisms.privacy.integer_matrix import ENTRY_BITS
from mechanisms.queries.query_sets import CODES, kind_of, query_gram
from mechanisms.strategies.least_error import of_full_rank, split
from pgmkit.errors import InvalidInput
from pgmkit.least_squares.residual_tables import ResidualBasis
from pgmkit.runtime.iterations import FEW_ROUNDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mechanisms.queries.query_sets import Asked, QuerySet
    from pgmkit.domain import Clique, Domain

    Array = NDArray[np.float64]
    Places = NDArray[np.intp]

__all__ = ["Lattice", "residual_rows"]

_FEWEST_BITS = 4
"""The fewest bits of a basis's entries: with fewer, its rows may lose their rank."""
_GAIN = 1e-4
"""The least relative fall of T for which the bases are made again."""


class Lattice:
    """All residuals of the sets, and how much of each they see.

    Attributes:
        residuals: In the domain's order, small ones first.
        slots: By attribute and queries along it, `names[slot]` and `grams[slot]`: a place in
            `inside` and `outside`. Code by code the gram is None. `full[slot]` is the gram of full
            rank, `kinds[slot]` tells equal queries.
    """

    def __init__(self, domain: Domain, sets: Sequence[QuerySet]) -> None:
        self.domain = domain
        self.cliques = [domain.clique(each.clique, "queries") for each in sets]
        self.names: list[str] = []
        self.kinds: list[object] = []
        self.grams: list[Array | None] = []
        self.full: list[Array | None] = []
        self._slots: dict[tuple[str, object], int] = {}
        by_length: dict[int, list[tuple[list[int], Clique, float]]] = {}
        rank = domain.places
        for each in sets:
            asked = sorted(zip(each.clique, each.asked, strict=True), key=lambda x: rank[x[0]])
            own = [self._slot(name, queries) for name, queries in asked]
            ordered = tuple(name for name, _ in asked)
            by_length.setdefault(len(own), []).append((own, ordered, each.weight))
        place: dict[Clique, int] = {}
        self._groups: list[tuple[Places, NDArray[np.bool_], Places, Array]] = []
        for length, group in by_length.items():
            slots: Places = np.array([own for own, _, _ in group], np.intp).reshape(len(group), -1)
            weights: Array = np.array([weight for _, _, weight in group])
            for mask in itertools.product([False, True], repeat=length):
                subsets = [tuple(itertools.compress(c, mask)) for _, c, _ in group]
                varied = np.array([all(domain.sizes[n] > 1 for n in a) for a in subsets])
                kept = list(itertools.compress(subsets, varied))
                at = np.array([place.setdefault(a, len(place)) for a in kept], dtype=np.intp)
                self._groups.append((slots[varied], np.array(mask, bool), at, weights[varied]))
        order = sorted(place, key=lambda a: (len(a), [rank[n] for n in a]))
        self.residuals = order
        new = np.empty(len(order), dtype=np.intp)
        new[[place[a] for a in order]] = np.arange(len(order))
        self._groups = [(slots, mask, new[at], w) for slots, mask, at, w in self._groups]

    def _slot(self, name: str, queries: Asked) -> int:
        kind = kind_of(queries)
        if (name, kind) not in self._slots:
            self._slots[name, kind] = len(self.names)
            self.names.append(name)
            self.kinds.append(kind)
            gram = None if kind == CODES else query_gram(queries, self.domain.sizes[name])
            self.grams.append(gram)
            self.full.append(None if gram is None else of_full_rank(gram))
        return self._slots[name, kind]

    def errors(self, bases: Mapping[str, ResidualBasis], full: bool) -> tuple[Array, Array]:
        """Return the inside and outside errors by slot; the noise on the rows has variance 1.

        `full`: whether the grams are those of full rank.
        """
        inside, outside = np.zeros(len(self.names)), np.zeros(len(self.names))
        grams = self.full if full else self.grams
        for slot, (name, gram) in enumerate(zip(self.names, grams, strict=True)):
            if name not in bases:
                outside[slot] = 1.0 if gram is None else gram[0, 0]
                continue
            basis = bases[name]
            if gram is None:
                inside[slot], outside[slot] = (basis.inverse**2).sum(), (basis.unseen**2).sum()
                continue
            inside[slot] = (basis.inverse * (gram @ basis.inverse)).sum()
            outside[slot] = basis.unseen @ gram @ basis.unseen
        return inside, outside

    def seen(self, inside: Array, outside: Array) -> Array:
        """Return v_A for each residual."""
        found = np.zeros(len(self.residuals))
        for slots, mask, at, weights in self._groups:
            np.add.at(found, at, weights * np.where(mask, inside[slots], outside[slots]).prod(1))
        return found

    def root_error(self, inside: Array, outside: Array) -> tuple[float, Array, Array]:
        """Return T and its derivatives in `inside` and `outside`, without residuals unseen."""
        seen = self.seen(inside, outside)
        roots = np.sqrt(seen)
        pull = np.divide(0.5, roots, out=np.zeros(len(roots)), where=roots > 0)
        slopes = np.zeros((2, len(inside)))
        for slots, mask, at, weights in self._groups:
            factors = np.where(mask, inside[slots], outside[slots])
            value = pull[at] * weights * factors.prod(axis=1)
            for column, own in enumerate(mask):
                share = np.zeros(len(value))
                np.divide(value, factors[:, column], out=share, where=factors[:, column] > 0)
                np.add.at(slopes[0 if own else 1], slots[:, column], share)
        return float(roots.sum()), slopes[0], slopes[1]


def residual_rows(lattice: Lattice) -> dict[str, Array]:
    """Return the rows S of each attribute of more than one code, as whole numbers.

    Raises InvalidInput for sets of more attributes than products of whole numbers have bits for.
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
    return {name: rows[name] for name in domain if name in rows}


def _turned_rows(
    lattice: Lattice, turned: Mapping[str, Sequence[int]], plain: Mapping[str, Array]
) -> dict[str, Array]:
    """Return rows for the attributes that are not asked code by code alone, each by its slots."""
    bases = {name: ResidualBasis.of(rows) for name, rows in plain.items()}
    weights: dict[str, Array] = {}
    # At first every kind of queries matters alike, and the total as in the best strategy for one.
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
        tops = [(bases[n].rows ** 2).sum(0).max() if n in bases else 1.0 for n in lattice.names]
        root, inward, outward = lattice.root_error(inside * tops, outside)
        dear = outward * outside
        if root < least:
            best = {name: bases[name].rows for name in turned}
        if root > least * (1 - _GAIN):
            break
        least = root
    return best


def _problem(
    lattice: Lattice, own: Sequence[int], inward: Array, dear: float, basis: ResidualBasis | None
) -> tuple[object, Array, float]:
    """Return a key that equal problems share, and the gram and nu of `split` for an attribute, to
    three digits.

    `own`: the attribute's slots; `inward`: the derivatives of T in their inside errors; `dear`: the
    outside errors times the derivatives in them, summed; `basis`: of the round before.
    """
    parts = np.array([float(f"{x:.3g}") for x in inward / inward.sum()])
    n = lattice.domain.sizes[lattice.names[own[0]]]
    gram = np.zeros((n, n))
    for part, slot in zip(parts, own, strict=True):
        full = lattice.full[slot]
        gram += part * (np.eye(n) if full is None else full)
    more = 0.0
    if basis is not None:
        e = (basis.inverse * (gram @ basis.inverse)).sum() * (basis.rows**2).sum(axis=0).max()
        f = float(basis.unseen @ gram @ basis.unseen)
        more = float(f"{e * (f * inward.sum() / dear) ** 2 - f:.3g}")
        # The end of the range, short of where the total answers nothing of the queries any more.
        more = max(more, -0.999 / np.linalg.solve(gram, np.ones(n)).sum())
    return (n, tuple(lattice.kinds[slot] for slot in own), tuple(parts), more), gram, more


def _bits(
    lattice: Lattice, turned: Mapping[str, Sequence[int]], plain: Mapping[str, Array]
) -> dict[str, int]:
    """Return the bits of each attribute's rows: equal parts of what code-by-code rows leave."""
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
