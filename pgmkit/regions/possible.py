"""The values of an attribute that are possible given those already drawn, under structural zeros.

Records are drawn one attribute after the other. Bucket elimination in the reverse of that order
(adaptive consistency; Dechter and Pearl, "Network-based heuristics for constraint-satisfaction
problems", 1988) finds, for each attribute, the values that leave some possible record, given those
drawn before it. If such a table would be too large, its parts are used separately. They rule out
less, so for some records an attribute is reached for which no value is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.runtime.sizes import TABLE_CELLS
from pgmkit.structural_zeros import Zeros, possible_cells


@dataclass(frozen=True, eq=False)
class Possible:
    """A mask of an attribute's possible values for each flat cell over the attributes ``given``;
    ``table`` has the shape (cells, values).
    """

    given: Clique
    table: NDArray[np.bool_]


def possible_values(
    domain: Domain, order: Sequence[str], zeros: Sequence[Zeros]
) -> dict[str, list[Possible]]:
    """Return, for each attribute in ``order``, masks of its values given those of earlier
    attributes. A value is possible if all masks of its attribute allow it; then the zeros leave a
    record that begins so, unless their tables were too large to be joined (see the module's
    docstring). Every value of an attribute without masks is possible.

    Raises InvalidInput if the zeros are found to leave no record at all.

    >>> unequal = Zeros(("a", "b"), [[True, False], [False, False]])
    >>> found = possible_values(Domain({"a": 2, "b": 2}), ["a", "b"], [unequal])
    >>> found["a"][0].given, found["a"][0].table
    ((), array([[ True, False]]))
    """
    place = {name: i for i, name in enumerate(order)}
    buckets: dict[str, list[Zeros]] = {name: [] for name in order}
    for each in zeros:
        if each.clique:
            buckets[max(each.clique, key=place.__getitem__)].append(each)
    found: dict[str, list[Possible]] = {}
    for name in reversed(order):
        found[name], held = [], buckets[name]
        together = sorted({each for zero in held for each in zero.clique}, key=place.__getitem__)
        # The bucket's zeros make one mask, or each makes one of its own if that would be too large.
        limit = max([TABLE_CELLS, *(zero.allowed.size for zero in held)])
        parts = [held] if held and domain.size(together) <= limit else [[zero] for zero in held]
        for part in parts:
            clique = tuple(each for each in together if any(each in zero.clique for zero in part))
            given, table = clique[:-1], possible_cells(domain, clique, part)
            found[name].append(Possible(given, table.reshape(-1, domain.sizes[name])))
            left = table.any(axis=-1)
            if not left.any():
                raise InvalidInput(
                    "the structural zeros over "
                    f"{', '.join(repr(zero.clique) for zero in zeros)} together leave no possible "
                    "record; allow more combinations"
                )
            if not left.all():
                buckets[given[-1]].append(Zeros(given, left))
    return found
