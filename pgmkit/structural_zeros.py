"""Structural zeros: combinations of values that cannot occur, whatever the noise says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgmkit.domain import Clique, Domain, check_domain
from pgmkit.errors import InvalidInput
from pgmkit.linear.axes import spread
from pgmkit.runtime.arguments import any_array, check_unlabelled, in_order, instance, listed


@dataclass(frozen=True, eq=False)
class Zeros:
    """The possible cells of a clique's table: `allowed` is a Boolean array of its shape, False for
    cells that cannot hold records.

    Raises InvalidInput for entries that are not Booleans (or 0 and 1), and if nothing is allowed.

    >>> Zeros(("age", "married"), [[True, False], [True, True]])
    Zeros(('age', 'married'), 1 of 4 cells are impossible)
    """

    clique: Clique
    allowed: NDArray[np.bool_]

    def __init__(self, clique: Sequence[str], allowed: ArrayLike) -> None:
        clique = tuple(in_order(clique, "clique", "attribute names"))
        check_unlabelled(allowed, "allowed")
        given = any_array(allowed, "allowed")
        table = np.array(given == 1)
        if given.dtype.kind not in "biuf" or not (table | (given == 0)).all():
            raise InvalidInput(
                f"allowed must be an array of Booleans (or of 0 and 1), got {given!r:.80}; compare "
                "counts with a number, as in table > 0"
            )
        if not table.any():
            raise InvalidInput(f"zeros over {clique!r} allow no cell at all; allow at least one")
        table.flags.writeable = False
        vars(self).update(clique=clique, allowed=table)

    def within(self, domain: Domain, clique: Clique) -> NDArray[np.bool_]:
        """Return `allowed` as a Boolean array that broadcasts to the shape of the table over
        `clique`: its axes are in the order of `clique`, and have length 1 for attributes that are
        not in `self.clique`.

        Raises InvalidInput unless `clique` contains `self.clique` and both fit the domain.
        """
        check_domain(domain)
        clique = domain.clique(clique)
        self.check_shape(domain)
        if not set(self.clique) <= set(clique):
            raise InvalidInput(f"clique must contain {self.clique!r}, got {clique!r}")
        return spread(clique, self.clique, self.allowed)

    def check_shape(self, domain: Domain) -> None:
        """Raise InvalidInput unless the attributes are in the domain, each named once, and
        `allowed` has the shape of their marginal.
        """
        shape = domain.shape(domain.clique(self.clique, "zeros"))
        if self.allowed.shape != shape:
            raise InvalidInput(
                f"zeros over {self.clique!r} have the shape {self.allowed.shape}; "
                f"the marginal's is {shape}"
            )

    def __repr__(self) -> str:
        impossible = int((~self.allowed).sum())
        return f"Zeros({self.clique!r}, {impossible} of {self.allowed.size} cells are impossible)"


def possible_cells(domain: Domain, clique: Clique, zeros: Iterable[Zeros]) -> NDArray[np.bool_]:
    """Return an array in the shape of the clique's table that is False for cells which ``zeros``
    rule out, and True for all others. Each of ``zeros`` applies to every clique that contains its
    attributes.
    """
    found = np.ones(domain.shape(clique), dtype=np.bool_)
    for each in zeros:
        if set(each.clique) <= set(clique):
            found &= each.within(domain, clique)
    return found


def check_zeros(domain: Domain, zeros: Iterable[Zeros]) -> tuple[Zeros, ...]:
    """Return the zeros that rule something out, as a tuple. Raises InvalidInput unless each is over
    attributes of the domain and has the right shape.
    """
    checked = listed(zeros, "zeros", "Zeros records")
    for each in checked:
        instance(each, Zeros, "each of zeros").check_shape(domain)
    return tuple(each for each in checked if not each.allowed.all())
