"""All residuals of a workload, and the coefficients of their variances in the workload's error.

With the best shares of the budget the error of a workload is T^2, where T is the sum over residuals
A of the square root of the coefficient

    v_A = sum over sets c with A inside c of weight_c
             times the product over A of inside[i, w]
             times the product over c less A of outside[i, w]

of the residual's variance (`mechanisms.strategies.residuals`, add/remove). Here w are the queries
that the set c asks along attribute i, and c less A are the attributes of c that are not in A.

An attribute's rows enter T only through two numbers for each kind of queries w along it, its
*errors*. With K and p of the residual basis (`pgmkit.least_squares.residual_basis`), inside[i, w]
= |w K|^2 is the variance that a residual with attribute i adds to the queries, and outside[i, w] =
|w p|^2 that of a residual without it, both summed over the queries for noise of variance 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mechanisms.queries.query_sets import CODES, QuerySet, kind_of, kinds_along, query_gram
from mechanisms.strategies.least_error import of_full_rank
from mechanisms.workload import subsets
from pgmkit.domain import Clique, Domain
from pgmkit.least_squares.residual_basis import ResidualBasis
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.memory import check_room
from pgmkit.runtime.sizes import CELL_BYTES

Places = NDArray[np.intp]


class Lattice:
    """All residuals of a workload's sets of queries, and the coefficients v_A of their variances in
    the workload's error.

    Attributes:
        residuals: The residuals, as sets of attributes in the domain's order, small ones first.
        names: The attribute of each slot. A slot is an attribute with one kind of queries along it;
            errors `inside` and `outside` have an entry for each slot.
        kinds: The key of each slot's queries (`kind_of`): their name, or the `id` of their matrix.
        grams: The Gram matrix of each slot's queries; None for single codes.
        full: The same matrices, changed to full rank where they lack it
            (`least_error.of_full_rank`).

    The argument `which` of methods is the number of the basis that each residual (a row) uses along
    each slot (a column); `inside` then has a row for each basis. Without `which` an attribute has
    one basis.
    """

    def __init__(self, domain: Domain, sets: Sequence[QuerySet]) -> None:
        self.domain = domain
        self.cliques = [domain.clique(each.clique, "queries") for each in sets]
        along = kinds_along(sets)
        _check_sizes(domain, {name: len(kinds) for name, kinds in along.items()})
        slots = [(name, kind) for name, kinds in along.items() for kind in kinds]
        self.names = [name for name, _ in slots]
        self.kinds = [kind for _, kind in slots]
        self.grams = [
            None if kind == CODES else query_gram(along[name][kind], domain.sizes[name])
            for name, kind in slots
        ]
        self.full = [None if gram is None else of_full_rank(gram) for gram in self.grams]
        varied = [tuple(n for n in c if domain.sizes[n] > 1) for c in self.cliques]
        self.residuals = subsets(domain, varied)
        # Sets with equally many attributes are processed together. For each choice of a subset
        # (`mask`), `_groups` lists four things: the slots of the sets whose subset is a residual,
        # the mask, the places of these subsets among the residuals, and the weights of the sets.
        place = {residual: row for row, residual in enumerate(self.residuals)}
        number = {slot: column for column, slot in enumerate(slots)}
        by_length: dict[int, list[tuple[Clique, list[int], float]]] = {}
        for each in sets:
            kinds = dict(zip(each.clique, map(kind_of, each.asked), strict=True))
            ordered = domain.ordered(each.clique)
            own = [number[name, kinds[name]] for name in ordered]
            by_length.setdefault(len(own), []).append((ordered, own, each.weight))
        self._groups: list[tuple[Places, NDArray[np.bool_], Places, Array]] = []
        for length, group in by_length.items():
            own_slots = np.array([own for _, own, _ in group], np.intp).reshape(len(group), -1)
            weights: Array = np.array([weight for _, _, weight in group])
            for mask in itertools.product([False, True], repeat=length):
                parts = [tuple(itertools.compress(clique, mask)) for clique, _, _ in group]
                held = np.array([part in place for part in parts])
                at = np.array([place[part] for part in parts if part in place], dtype=np.intp)
                self._groups.append((own_slots[held], np.array(mask, bool), at, weights[held]))

    def mixed(self, slots: Sequence[int], parts: Iterable[float]) -> Array:
        """Return the sum of the Gram matrices (of full rank) of several kinds of queries along one
        attribute, given by their slots, weighted by `parts`.
        """
        codes = self.domain.sizes[self.names[slots[0]]]
        pairs = zip(parts, (self.full[slot] for slot in slots), strict=True)
        grams = (part * (np.eye(codes) if gram is None else gram) for part, gram in pairs)
        return sum(grams, np.zeros((codes, codes)))

    def errors(self, bases: Mapping[str, ResidualBasis], full: bool) -> tuple[Array, Array]:
        """Return the inside and outside errors of each slot: the variances, summed over the slot's
        queries, that a residual with the slot's attribute adds to them, and one without it (see the
        module's docstring). `bases`: one basis of each attribute, whose rows are answered with
        noise of variance 1; an attribute without a basis has one value.

        `full`: whether the Gram matrices `self.full` are used, in place of `self.grams`.
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

    def seen(self, inside: Array, outside: Array, which: Places | None = None) -> Array:
        """Return for each residual A the coefficient v_A of its variance in the workload's error,
        given the inside and outside errors of each slot (`errors`). `which`: the number of the
        basis that each residual uses along each slot; None if every attribute has one basis.
        """
        found = np.zeros(len(self.residuals))
        for slots, mask, at, weights in self._groups:
            own = inside[slots] if which is None else inside[which[at[:, None], slots], slots]
            np.add.at(found, at, weights * np.where(mask, own, outside[slots]).prod(1))
        return found

    def slopes(self, inside: Array, outside: Array, which: Places) -> Array:
        """Return the derivative of each v_A (a row) with respect to the inside error that the basis
        of the residual A has in each slot (a column): an attribute with one kind of queries.
        """
        found = np.zeros((len(self.residuals), len(self.names)))
        for slots, mask, at, weights in self._groups:
            factors = np.where(mask, inside[which[at[:, None], slots], slots], outside[slots])
            for column in np.flatnonzero(mask):
                others = np.delete(factors, column, axis=1).prod(axis=1)
                np.add.at(found, (at, slots[:, column]), weights * others)
        return found

    def root_error(self, inside: Array, outside: Array) -> tuple[float, Array, Array]:
        """Return T, the sum of the square roots of all v_A, and its derivatives with respect to
        `inside` and `outside`.
        """
        roots = np.sqrt(self.seen(inside, outside))
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


def _check_sizes(domain: Domain, kinds: Mapping[str, int]) -> None:
    """Raise ModelTooLarge if the matrices of an attribute with many codes do not fit in memory.
    `kinds`: the number of kinds of queries along each attribute.
    """
    for name, number in kinds.items():
        codes = domain.sizes[name]
        # The search for the rows holds 16 matrices at once for one kind of queries, as do the norms
        # of the rows (`FactorNorms`). A further kind adds its Gram matrix and bases of its own.
        check_room(
            8 * (1 + number) * CELL_BYTES * codes**2,
            f"the strategy for {name!r}, which has {codes:,} codes,",
            remedy="give the column fewer codes or bins, take another mechanism",
        )
