"""A factor graph's distributions given many records of the same observed attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pgmkit.batched_messages import BatchedMessages, batched_tree
from pgmkit.domain import Clique
from pgmkit.elimination import EliminationTree, each_bit
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.evidence import Evidence
from pgmkit.graph_tables import GraphTables
from pgmkit.posterior import Posterior

__all__ = ["Posteriors"]

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

_CHUNK_CELLS = 1 << 20
"""Cells that the largest table of a pass may have, where it is more than one record's."""


@dataclass(frozen=True, eq=False)
class Posteriors:
    """What ``FactorGraph.posteriors`` gives: of each record what ``Posterior`` gives of one.

    Arrays have one more axis, the first, which counts the records. Equal records are computed once,
    the others side by side. Every answer raises InvalidInput where a record has probability zero,
    naming the first, and ModelTooLarge where a table would not fit.
    """

    graph: GraphTables
    names: tuple[str, ...]
    codes: Codes
    """A record a row, an observed attribute a column."""
    _passes: dict[int, list[_Pass]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def log_partition(self) -> Array:
        """log of the sum of the product of the tables over what agrees with each record. Of a
        Bayesian network the log-probability of each.
        """
        return self._spread([each.log_sums() for each in self._passed(0)])

    def marginal(self, attrs: Iterable[str]) -> Array:
        """The probabilities over any attributes, of shape (records, *sizes in the given order)."""
        clique = self.graph.domain.clique(attrs)
        return self.marginals([clique])[clique]

    def marginals(self, cliques: Iterable[Iterable[str]] | None = None) -> dict[Clique, Array]:
        """Many marginals with shared work; of every attribute by itself when none are named."""
        domain, bits = self.graph.domain, self.graph.bits
        if cliques is None:
            cliques = [(name,) for name in domain]
        asked = [domain.clique(clique) for clique in cliques]
        cells = len(self) * sum(map(domain.size, asked))
        if 8 * cells > self.graph.memory_limit:
            raise ModelTooLarge(
                f"the marginals of {len(self):,} records have {cells:,} cells; the limit is "
                f"{self.graph.memory_limit:,} bytes. Ask for fewer records or marginals at once, "
                "or raise memory_limit"
            )
        wanted = sum([bits[name] for name in {name for clique in asked for name in clique}])
        parts = [each.marginals(asked) for each in self._passed(wanted)]
        return {clique: self._spread([part[clique] for part in parts]) for clique in asked}

    @cached_property
    def _different(self) -> tuple[Codes, Codes]:
        """Where each different record occurs first, and for every record its place among them."""
        _, first, which = np.unique(self.codes, axis=0, return_index=True, return_inverse=True)
        return first, which.reshape(-1)

    def _spread(self, parts: Sequence[Array]) -> Array:
        """From the different records to all of them."""
        return np.concatenate(parts)[self._different[1]]

    def _passed(self, wanted: int) -> list[_Pass]:
        """Passes that know the wanted attributes, for all different records."""
        observed = sum([self.graph.bits[name] for name in self.names])
        relevant = self.graph.relevant(wanted | observed)
        for known, passes in self._passes.items():
            if not relevant & ~known:
                return passes
        structure = _Structure.of(self.graph, relevant, observed)
        first, _ = self._different
        size = max(1, min(_CHUNK_CELLS, self.graph.memory_limit // 8) // structure.largest)
        self._passes[relevant] = [
            _Pass(self, structure, first[start : start + size])
            for start in range(0, len(first), size)
        ]
        return self._passes[relevant]


@dataclass(frozen=True, eq=False)
class _Structure:
    """What is the same for all records: which tables matter, and the tree of what is left."""

    graph: GraphTables
    observed: int
    places: list[int]
    """Of the tree's inputs among the graph's tables; -1 for an attribute that none of them has."""
    scopes: list[int]
    """Of the inputs, without the observed attributes."""
    numbers: list[int]
    """Places of tables all of whose attributes are observed."""
    tree: EliminationTree

    @classmethod
    def of(cls, graph: GraphTables, relevant: int, observed: int) -> _Structure:
        places, scopes, heads, own, numbers = [], [], [], [], []
        missing = 0 if graph.children is not None else relevant & ~observed
        for place, (members, _, _) in enumerate(graph.inputs):
            head = -1 if graph.children is None else graph.bits[graph.children[place]]
            if head >= 0 and not head & relevant:
                continue
            missing &= ~members
            if not members & ~observed:
                numbers.append(place)
                continue
            places.append(place)
            scopes.append(members & ~observed)
            heads.append(-1 if head & observed else head)
            own.append(bool(members & observed))
        for v in each_bit(missing):
            places.append(-1)
            scopes.append(1 << v)
            heads.append(-1)
            own.append(False)
        tree = batched_tree(scopes, heads, own, (1, *graph.domain.shape()))
        return cls(graph, observed, places, scopes, numbers, tree)

    @property
    def largest(self) -> int:
        """Cells of the largest table for one record."""
        sizes = self.tree.sizes
        return max((_cells(scope, sizes) for scope in self.tree.scopes), default=1)

    def sliced(self, place: int, codes: dict[int, Codes]) -> Array:
        """A table with the records' values: their axis first, where it has an observed one."""
        members, table, _ = self.graph.inputs[place]
        if not members & self.observed:
            return table
        axes = each_bit(members)
        seen = [axis for axis, v in enumerate(axes) if v in codes]
        rest = [axis for axis, v in enumerate(axes) if v not in codes]
        return np.asarray(table.transpose(seen + rest)[tuple(codes[axes[axis]] for axis in seen)])


def _cells(scope: int, sizes: Sequence[int]) -> int:
    cells = 1
    for v in each_bit(scope):
        cells *= sizes[v]
    return cells


class _Pass:
    """Messages of some different records, ``rows`` of the whole."""

    def __init__(self, whole: Posteriors, structure: _Structure, rows: Codes) -> None:
        self.whole, self.structure, self.rows = whole, structure, rows
        graph = whole.graph
        places = [graph.bits[name].bit_length() - 1 for name in whole.names]
        codes = dict(zip(places, whole.codes[rows].T, strict=True))
        scale = np.zeros(len(rows))
        tables = []
        with np.errstate(divide="ignore"):
            for place in structure.numbers:
                scale += np.log(structure.sliced(place, codes)) + graph.inputs[place][2]
        for place, scope in zip(structure.places, structure.scopes, strict=True):
            if place < 0:
                tables.append(np.ones(_cells(scope, graph.domain.shape())))
            else:
                tables.append(structure.sliced(place, codes))
                scale += graph.inputs[place][2]
        self.scale = scale
        tree = replace(structure.tree, sizes=(len(rows), *graph.domain.shape()))
        self.messages = BatchedMessages(tree, tables, False, graph.memory_limit, {})
        self.messages.lost |= np.isneginf(scale) | graph.lost

    def log_sums(self) -> Array:
        found = self.messages.log_sum + self.scale
        for row, alone in self._lost():
            with _naming(row, self.rows):
                found[row] = alone.log_partition
        return found

    def marginals(self, asked: Sequence[Clique]) -> dict[Clique, Array]:
        bits, observed = self.whole.graph.bits, self.structure.observed
        found = {}
        for clique in asked:
            members = sum([bits[name] for name in clique]) & ~observed
            found[clique] = self._arranged(clique, self.messages.marginal(members << 1))
        for row, alone in self._lost():
            with _naming(row, self.rows):
                for clique, table in alone.marginals(asked).items():
                    found[clique][row] = table
        return found

    def _lost(self) -> Iterator[tuple[int, Posterior]]:
        """Records that plain numbers have lost, which may be impossible, and their posteriors."""
        for row in np.flatnonzero(self.messages.lost).tolist():
            codes = self.whole.codes[self.rows[row]].tolist()
            known = dict(zip(self.whole.names, codes, strict=True))
            yield row, Posterior(self.whole.graph, Evidence(known, {}))

    def _arranged(self, clique: Clique, table: Array) -> Array:
        """From ascending axes without observed attributes to the clique's, with them."""
        graph, names = self.whole.graph, self.whole.names
        ordered = sorted(clique, key=graph.bits.__getitem__)
        whole = np.zeros((len(self.rows), *(graph.domain.sizes[name] for name in ordered)))
        codes = self.whole.codes[self.rows]
        places = [codes[:, names.index(n)] if n in names else slice(None) for n in ordered]
        whole[(np.arange(len(whole)), *places)] = table
        return whole.transpose([0, *(1 + ordered.index(name) for name in clique)])


@contextmanager
def _naming(row: int, rows: Codes) -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"record {rows[row]}: {error}") from None
