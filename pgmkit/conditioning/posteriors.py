"""A factor graph's distributions given many records of the same observed attributes.

The tables of messages for many records have one more axis, the first, with an entry for each
record. It is treated as an attribute that is never summed out, so the tree, its order and its
products are those of a single record. Only the numbers that tables are divided by are found for
each record separately.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pgmkit.conditioning.calibrated_tree import Input
from pgmkit.conditioning.elimination import EliminationTree, Planning, elimination_tree
from pgmkit.conditioning.evidence import Evidence
from pgmkit.conditioning.graph_tables import GraphTables, remembered, supersede
from pgmkit.conditioning.kernels import Kernel
from pgmkit.conditioning.message_passing import LOST, Messages, Scale, Table
from pgmkit.conditioning.pass_memory import records_within
from pgmkit.conditioning.posterior import Posterior
from pgmkit.domain import Clique
from pgmkit.errors import naming
from pgmkit.graphs.bit_sets import each_bit
from pgmkit.runtime.arguments import check_whole, listed
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.memory import check_room
from pgmkit.runtime.sizes import BLOCK_CELLS, REMEMBERED

Codes = NDArray[np.int64]
T = TypeVar("T")

_REMEMBERED = REMEMBERED // 4
FEW_RECORDS = 32
"""The smallest number of different records that are computed side by side. Fewer are faster one by
one, since after the first the others can be answered from one calibrated junction tree.
"""
RECORDS = 0b1
"""The bit of the axis of records in a set of attributes. The bit of each attribute is one place
higher than in the graph.
"""


@dataclass(frozen=True, eq=False)
class Posteriors:
    """The answer of ``FactorGraph.posteriors``: the log partition function and the marginals given
    each of many records of observed codes.

    Arrays have the axes of the same answer of a ``Posterior`` and one more, the first, with an
    entry for each record. Equal records are computed once, and many different ones side by side if
    the tables are small. Every answer raises InvalidInput, naming the first such record, if a
    record has probability zero, and ModelTooLarge if a table would not fit.
    """

    graph: GraphTables = field(repr=False)
    names: tuple[str, ...]
    codes: Codes
    """The observed codes: a row for each record, a column for each observed attribute."""
    _passes: dict[int, list[_Pass]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def log_partition(self) -> Array:
        """For each record of evidence, the logarithm of the sum of the tables' product over all
        records that agree with it. For a Bayesian network this is the evidence's log-probability.
        """
        started = time.perf_counter()
        found = self._spread([each.log_sums() for each in self._passed(0)])

        def check(row: int, seconds: float) -> None:
            self.alone(row).second.log_sum(float(found[row]), seconds)

        self._check("log partitions", (), started, check)
        return found

    def _check(
        self,
        kind: str,
        asked: tuple[Hashable, ...],
        started: float,
        at: Callable[[int, float], None],
    ) -> None:
        """Check the answers for at most two of the records by a second computation, unless answers
        of the same kind and structure were checked before, or no time is left. The answers were
        begun at ``started``, a time of `time.perf_counter`. ``at`` checks the answer for a row in
        at most the seconds that it is given, and raises Contradiction if the two disagree.
        """
        rows = len(self)

        def check(seconds: float) -> None:
            for row in {rows - 1, int(np.random.default_rng(rows).integers(rows))}:
                at(row, seconds / 2)

        self.graph.uses.check(kind, (self.names, rows.bit_length(), *asked), started, check)

    def marginal(self, attrs: Iterable[str]) -> Array:
        """Return the probabilities over any attributes, of shape (records, *sizes of the attributes
        in the given order).
        """
        clique = self.graph.domain.clique(attrs, "attrs")
        return self.marginals([clique])[clique]

    def marginals(self, cliques: Iterable[Iterable[str]] | None = None) -> dict[Clique, Array]:
        """Return a mapping from each clique to its marginals, as `marginal` returns them, with
        shared work; if ``cliques`` is None, the marginals of all single attributes.
        """
        started = time.perf_counter()
        domain, bits = self.graph.domain, self.graph.bits
        if cliques is None:
            cliques = [(name,) for name in domain]
        asked = [domain.clique(clique) for clique in listed(cliques, "cliques", "cliques")]
        check_room(
            8 * len(self) * sum(map(domain.size, asked)),
            f"the marginals of {len(self):,} records",
            self.graph.memory_limit,
            "ask for fewer records or marginals at once",
        )
        wanted = sum([bits[name] for name in {name for clique in asked for name in clique}])
        parts = [each.marginals(asked) for each in self._passed(wanted)]
        found = {clique: self._spread([part[clique] for part in parts]) for clique in asked}

        def check(row: int, seconds: float) -> None:
            tables = {clique: table[row] for clique, table in found.items()}
            self.alone(row).second.tables(tables, 1.0, seconds)

        self._check("posteriors", (len(asked), *asked[:2]), started, check)
        return found

    @cached_property
    def _different(self) -> tuple[Codes, Codes]:
        """The row at which each different record occurs first, in rising order, and for every
        record its number among the different ones.
        """
        _, first, which = np.unique(self.codes, axis=0, return_index=True, return_inverse=True)
        return np.unique(first[which.reshape(-1)], return_inverse=True)

    def _spread(self, parts: Sequence[Array]) -> Array:
        """Join the results for the different records (`_different`), and repeat them for all."""
        return np.concatenate(parts)[self._different[1]]

    def _passed(self, wanted: int) -> Iterable[_Pass]:
        """Return passes that together cover all different records, each of which gives marginals of
        the attributes ``wanted`` (a bit mask). They are kept if they fit into memory together.
        """
        observed = sum([self.graph.bits[name] for name in self.names])
        relevant = self.graph.relevant(wanted | observed)
        for known, passes in self._passes.items():
            if not relevant & ~known:
                return passes
        made = self._new_passes(relevant, observed)
        if isinstance(made, list):
            supersede(self._passes, relevant, made)
        return made

    def _new_passes(self, relevant: int, observed: int) -> Iterable[_Pass]:
        first, _ = self._different
        if len(first) < FEW_RECORDS:
            return [_OneByOne(self, first)]
        made = partial(_Structure.of, self.graph, relevant, observed)
        structure = remembered(self.graph.structures, (relevant, observed), made, _REMEMBERED)
        within = records_within(structure.tree, len(first), self.graph.memory_limit)
        # One batch is made while the one before is still in memory, so two must fit.
        size = min(BLOCK_CELLS // structure.largest, within // 2)
        if size < FEW_RECORDS:
            return [_OneByOne(self, first)]
        parts = np.split(first, range(size, len(first), size))
        passes = (_Batch(self, observed, part, structure) for part in parts)
        return list(passes) if within >= len(first) else passes

    def alone(self, row: int) -> Posterior:
        """Return the posterior of one record, given its row, of which -1 is the last. Raises
        InvalidInput for a row that is not there.
        """
        check_whole(row, "row", -len(self), len(self) - 1)
        codes = dict(zip(self.names, self.codes[row].tolist(), strict=True))
        return Posterior(self.graph, Evidence(codes, {}))


@dataclass(frozen=True, eq=False)
class _Structure:
    """The data that the passes of all records share: the relevant tables, and the elimination tree
    of their unobserved attributes.
    """

    graph: GraphTables
    inputs: list[Input]
    """The tables that the tree's inputs are slices of."""
    numbers: list[Input]
    """The tables of which all attributes are observed."""
    tree: EliminationTree
    kernels: dict[int, dict[tuple[int, int, int], Kernel]] = field(default_factory=dict)
    """The kernels made so far, for each number of records in a batch."""

    @classmethod
    def of(cls, graph: GraphTables, relevant: int, observed: int) -> _Structure:
        parts = list(graph.parts(relevant, observed))
        inputs = [given for given, free, _ in parts if free]
        scopes, heads = [free for _, free, _ in parts if free], [h for _, free, h in parts if free]
        own = [bool(members & observed) for members, _, _ in inputs]
        tree = batched_tree(scopes, heads, own, (1, *graph.sizes))
        return cls(graph, inputs, [given for given, free, _ in parts if not free], tree)

    @property
    def largest(self) -> int:
        """The number of cells, for one record, of the largest table of a node of the tree."""
        return max(map(self.tree.cells_of, self.tree.scopes), default=1)

    def messages(self, count: int, tables: list[Array]) -> BatchedMessages:
        """Return the messages of a batch of ``count`` records."""
        kernels = remembered(self.kernels, count, dict, 2)  # for full batches and for the last
        tree = replace(self.tree, sizes=(count, *self.graph.sizes))
        return BatchedMessages(tree, tables, False, self.graph.memory_limit, kernels)

    def sliced(self, given: Input, codes: dict[int, Codes]) -> Array:
        """Return a table at the observed codes of all records. If it has an observed attribute, its
        first axis numbers the records; otherwise it is the table itself.
        """
        members, table, _ = given
        axes = each_bit(members)
        seen = [axis for axis, v in enumerate(axes) if v in codes]
        rest = [axis for axis, v in enumerate(axes) if v not in codes]
        return np.asarray(table.transpose(seen + rest)[tuple(codes[axes[axis]] for axis in seen)])


@dataclass(eq=False)
class _OneByOne:
    """Records, given by their ``rows`` in the evidence, that are answered one after the other."""

    whole: Posteriors
    rows: Codes

    def _each(self, answer: Callable[[Posterior], T]) -> list[T]:
        found = []
        for row in self.rows.tolist():  # no posterior is kept: its messages may be large
            with naming(f"record {row}"):
                found.append(answer(self.whole.alone(row)))
        return found

    def log_sums(self) -> Array:
        return np.array(self._each(lambda alone: alone.log_partition))

    def marginals(self, asked: Sequence[Clique]) -> dict[Clique, Array]:
        parts = self._each(lambda alone: alone.marginals(asked))
        return {clique: np.stack([part[clique] for part in parts]) for clique in asked}


class _Batch:
    """Records, given by their ``rows`` in the evidence, that are answered together by batched
    messages.
    """

    def __init__(
        self, whole: Posteriors, observed: int, rows: Codes, structure: _Structure
    ) -> None:
        self.whole, self.observed, self.rows = whole, observed, rows
        graph = whole.graph
        places = [graph.bits[name].bit_length() - 1 for name in whole.names]
        codes = dict(zip(places, whole.codes[rows].T, strict=True))
        self.scale = np.zeros(len(rows))
        with np.errstate(divide="ignore"):
            for given in structure.numbers:
                self.scale += np.log(structure.sliced(given, codes)) + given[2]
        tables = [structure.sliced(given, codes) for given in structure.inputs]
        self.scale += sum([log_peak for _, _, log_peak in structure.inputs])
        self.messages = structure.messages(len(rows), tables)
        # Records whose products underflow, impossible ones among them, are answered one by one; so
        # are all records if ``GraphTables.lost``.
        self.messages.lost |= np.isneginf(self.scale) | graph.lost

    def log_sums(self) -> Array:
        found: Array = self.messages.log_sum + self.scale
        lost = np.flatnonzero(self.messages.lost)
        found[lost] = _OneByOne(self.whole, self.rows[lost]).log_sums()
        return found

    def marginals(self, asked: Sequence[Clique]) -> dict[Clique, Array]:
        bits = self.whole.graph.bits
        found = {}
        for clique in asked:
            members = sum([bits[name] for name in clique]) & ~self.observed
            found[clique] = self._arranged(clique, self.messages.marginal(members << 1))
        lost = np.flatnonzero(self.messages.lost)
        if len(lost):
            for clique, tables in _OneByOne(self.whole, self.rows[lost]).marginals(asked).items():
                found[clique][lost] = tables
        return found

    def _arranged(self, clique: Clique, table: Array) -> Array:
        """Return marginals with the axis of records first and then the clique's, given ``table``
        over records and unobserved attributes, axes ascending. The axes of observed attributes are
        added, with 0 at all codes but each record's own.
        """
        graph, names = self.whole.graph, self.whole.names
        ordered = sorted(clique, key=graph.bits.__getitem__)
        whole = np.zeros((len(self.rows), *(graph.domain.sizes[name] for name in ordered)))
        codes = self.whole.codes[self.rows]
        places = [codes[:, names.index(n)] if n in names else slice(None) for n in ordered]
        whole[(np.arange(len(whole)), *places)] = table
        return whole.transpose([0, *(1 + ordered.index(name) for name in clique)])


_Pass = _OneByOne | _Batch


def batched_tree(
    scopes: Sequence[int], heads: Sequence[int], own: Sequence[bool], sizes: Sequence[int]
) -> EliminationTree:
    """Return the elimination tree for many records. In the sets of its nodes, ``RECORDS`` is the
    axis of records, and the bit of each attribute is one place higher than in the graph.

    Args:
        scopes: the attributes of each input, as sets in the graph's bits.
        heads: the attributes that each input is a conditional distribution of, as a set in the
            graph's bits; -1 for any other table.
        own: whether each input differs from record to record.
        sizes: the number of records, then the sizes of the attributes.

    The tree has one more input, the last one, which is the number 1.
    """
    order = Planning(scopes, heads, tuple(sizes[1:])).best().order
    placed = [s << 1 | (RECORDS if differs else 0) for s, differs in zip(scopes, own, strict=True)]
    moved = [head << 1 if head >= 0 else head for head in (*heads, -1)]
    # An attribute is summed out as soon as no other node holds it. The additional last input has
    # the axis of records and is never multiplied, so that axis is never summed out.
    return elimination_tree([*placed, RECORDS], moved, [v + 1 for v in order], tuple(sizes))


class BatchedMessages(Messages):
    """``Messages`` of many records, on a tree of ``batched_tree``. Every table is divided by one
    number for each record instead of one for all.

    Sets of attributes have the bits that ``batched_tree`` gives its nodes. The boolean array
    ``lost`` marks the records whose products underflow; their results are not valid.
    """

    always = RECORDS

    def pass_upward(self, tables: Sequence[Array]) -> None:
        self.lost = np.zeros(self.tree.sizes[0], dtype=bool)
        super().pass_upward([*tables, np.ones(self.tree.sizes[0])])

    def rescaled(self, table: Table) -> tuple[Array, Scale]:
        peaks = self._divisors(table[1].max(axis=_others(table)))
        return table[1] / _along(table, peaks), np.log(peaks)

    def log_of(self, value: Array) -> Scale:
        return np.log(self._divisors(value))

    def settled(self, found: Table) -> Table:
        return found[0], found[1] / _along(found, self._divisors(found[1].sum(axis=_others(found))))

    def marginal(self, members: int) -> Array:
        """Return the marginals over the attributes ``members``: the axis of records comes first,
        then the others ascending.
        """
        held, values = self.table(members)
        values = values if held & RECORDS else values[None]
        return np.broadcast_to(values, (self.tree.sizes[0], *values.shape[1:]))

    def _divisors(self, numbers: Array) -> Array:
        """Return ``numbers``, one for each record or one for all, with 1 in place of those that are
        too small or not finite, so that a table can be divided by the result. The records of the
        replaced numbers are marked as lost.
        """
        wrong = ~((numbers > LOST) & np.isfinite(numbers))
        self.lost |= wrong
        return np.where(wrong, 1.0, numbers)


def _others(table: Table) -> tuple[int, ...]:
    """Return the positions of all axes of a table except that of the records."""
    return tuple(range(table[0] & RECORDS, table[1].ndim))


def _along(table: Table, numbers: Array) -> Array:
    """Return ``numbers``, one for each record or one for all, in a shape that broadcasts against
    the table.
    """
    return numbers.reshape(-1, *[1] * (table[1].ndim - 1)) if numbers.ndim else numbers
