"""Records drawn one attribute after the other, without those that structural zeros rule out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgmkit.dataset import Dataset
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.regions.conditional import Conditional, allowed, scopes
from pgmkit.regions.possible import Possible

Codes = NDArray[np.int64]
Columns = dict[str, Codes]

_GOLDEN = (5**0.5 - 1) / 2
_ROUNDS = 100
"""Of draws for records that zeros left no value for."""
_AT_LEAST = 1000
"""Records drawn in such a round."""


@dataclass(frozen=True, eq=False)
class Chain:
    """A distribution as a chain of conditional ones.

    ``order``: the attributes, each given earlier ones; an attribute without a conditional is
    uniform. Records that zeros leave no value for some attribute are drawn again.
    """

    domain: Domain
    order: tuple[str, ...]
    conditionals: Mapping[str, Conditional]

    def sample(self, n: int, rng: np.random.Generator) -> Dataset:
        """``n`` records, in random order.

        Raises ``InvalidInput`` where zeros leave nearly all of what is drawn without a value.
        """
        columns = enough(lambda m: self.drawn(m, rng), n)
        return Dataset(self.domain, {name: columns[name] for name in self.domain})

    def drawn(self, n: int, rng: np.random.Generator) -> Columns:
        """What is left of ``n`` records, of the attributes in ``order``."""
        columns: Columns = {}
        for name in self.order:
            conditional = self.conditionals.get(name)
            if conditional is None:
                columns[name] = rng.permutation(np.arange(n) % self.domain.sizes[name])
                continue
            columns = going_on(self.domain, name, conditional.possible, columns)
            n = length_of(columns, n)
            if not n:
                return {each: np.zeros(0, dtype=np.int64) for each in self.order}
            kinds = Kinds(cells_of(self.domain, conditional.scopes, columns, n), rng)
            columns[name] = kinds.pick(conditional, rng)
        return columns


def going_on(domain: Domain, name: str, possible: Sequence[Possible], columns: Columns) -> Columns:
    """The records that some value of the attribute may follow."""
    if not possible or not columns:
        return columns
    cells = cells_of(domain, scopes((), possible), columns, length_of(columns, 0))
    some = allowed(cells, possible, domain.sizes[name]).any(axis=1)
    return columns if some.all() else {key: codes[some] for key, codes in columns.items()}


def enough(draw: Callable[[int], Columns], n: int) -> Columns:
    """``n`` records, by drawing again what zeros left without a value."""
    columns = draw(n)
    found = length_of(columns, n)
    if found == n:
        return columns
    parts = [columns]
    for _ in range(_ROUNDS):
        parts.append(draw(max(n, _AT_LEAST)))
        found += length_of(parts[-1], n)
        if found >= n:
            return {name: np.concatenate([part[name] for part in parts])[:n] for name in columns}
    raise InvalidInput(
        f"the structural zeros left only {found:,} of {_ROUNDS * max(n, _AT_LEAST):,} records with "
        f"a value for every attribute, and {n:,} are needed: what they rule out together is not "
        "seen while records are drawn; join zeros that overlap into one over all their "
        'attributes, allow more, or measure less and use inference="exact"'
    )


def length_of(columns: Columns, unknown: int) -> int:
    """How many records these are; of no attribute they may be any number."""
    return len(next(iter(columns.values()))) if columns else unknown


class Kinds:
    """Records sorted by the cells that they lie in; those that look the same are of one kind."""

    def __init__(self, cells: Codes, rng: np.random.Generator) -> None:
        # Records of one kind stay in random order.
        shuffled = rng.permutation(len(cells))
        self._order = shuffled[np.lexsort(cells[shuffled].T)]
        ordered = cells[self._order]
        first = np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)]
        self._kind = np.cumsum(first) - 1
        self.cells, self.counts = ordered[first], np.bincount(self._kind)

    def pick(self, conditional: Conditional, rng: np.random.Generator) -> Codes:
        """A value for each record. A low-discrepancy sequence along the records of a kind keeps
        their counts near what is expected; between kinds the draws are independent.
        """
        chances = conditional.chances(self.cells)
        highest = chances.shape[1] - 1 - np.argmax(chances[:, ::-1] > 0, axis=1)
        # One sequence along all records would tie the draws of one attribute to those of the last.
        starts = rng.random(len(self.counts))[self._kind]
        level = (starts + _GOLDEN * np.arange(len(self._order))) % 1.0
        below = chances.cumsum(axis=1)[self._kind] <= level[:, None]
        picked = np.empty(len(self._order), dtype=np.int64)
        # Rounding may leave the sum of the chances below the level.
        picked[self._order] = np.minimum(below.sum(axis=1), highest[self._kind])
        return picked


def cells_of(
    domain: Domain, cliques: Sequence[Clique], columns: Mapping[str, Codes], records: int
) -> Codes:
    """The cell of each record in the table of each clique: (records, cliques)."""
    cells = np.zeros((records, len(cliques)), dtype=np.int64)
    for place, clique in enumerate(cliques):
        for name in clique:
            cells[:, place] = cells[:, place] * domain.sizes[name] + columns[name]
    return cells
