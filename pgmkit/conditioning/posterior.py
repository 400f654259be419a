"""A factor graph's distribution given evidence: its sums, marginals, most likely records
and draws.
"""

from __future__ import annotations

import math
import sys
import time
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pgmkit.conditioning.elimination import EliminationTree
from pgmkit.conditioning.evidence import Evidence, expected_log, sliced, state
from pgmkit.conditioning.evidence_marginals import ALL, EvidenceMarginals
from pgmkit.conditioning.graph_tables import GraphTables, Inputs
from pgmkit.conditioning.message_passing import Underflow
from pgmkit.conditioning.modes import MaxMessages, most_likely
from pgmkit.conditioning.pass_memory import check_marginals, check_record
from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput, ModelTooLarge, NumericalFailure
from pgmkit.factor import Factor
from pgmkit.graphs.bit_sets import each_bit
from pgmkit.inference.answer_checks import Check, SecondOpinion
from pgmkit.inference.self_check import Contradiction
from pgmkit.model import GraphicalModel
from pgmkit.records.dataset import Dataset
from pgmkit.records.sampling import check_draw
from pgmkit.runtime.arguments import Rng, listed
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.memory import check_room

_WORTH_ALL = 8
"""If at least one in this many of the attributes are asked for, all marginals together are computed
faster than one after the other.
"""


@dataclass(frozen=True, eq=False)
class Posterior:
    """The answer of ``FactorGraph.posterior``. Marginals are probabilities (each sums to 1). Their
    errors are those of rounding beside 1: a probability far below 1e-16 may be inexact, or 0 though
    it is possible. With that value as evidence, `log_partition` is precise however small it is.

    Messages are computed once and shared by all questions to one posterior; posteriors of one graph
    share elimination orders and plans. Every answer raises InvalidInput if the evidence has
    probability zero, and ModelTooLarge if a table would not fit.
    """

    graph: GraphTables = field(repr=False)
    evidence: Evidence

    @property
    def log_partition(self) -> float:
        """The logarithm of the sum, over all records that agree with the evidence, of the product
        of the tables and likelihoods. For a Bayesian network this is the log-probability of the
        evidence.
        """
        started = self._started
        found = self._log_sum()
        self._check("log partition", (), started, lambda opinion, s: opinion.log_sum(found, s))
        if found == -math.inf:
            raise InvalidInput(self._impossible())
        return found

    def _check(
        self, kind: str, asked: tuple[Hashable, ...], started: tuple[float, bool], at: Check
    ) -> None:
        """Check an answer by a second computation, unless an answer of the same kind and structure
        was checked before or no time is left (`FirstUses.check`).

        ``kind`` and ``asked`` say what was asked, and ``started`` is from ``_started``.
        """
        (begun, calibrated), evidence = started, self.evidence
        structure = *evidence.codes, None, *evidence.likelihood, None, calibrated, *asked
        self.graph.uses.check(kind, structure, begun, lambda seconds: at(self.second, seconds))

    @property
    def _started(self) -> tuple[float, bool]:
        """Return the time now, and whether any evidence, this or other, was answered by messages
        before, so that this answer may come from a calibrated tree (`GraphTables.calibrated`).
        """
        return time.perf_counter(), bool(self.graph.passes)

    @cached_property
    def second(self) -> SecondOpinion:
        """The checker of answers: it computes them again by sums over one attribute at a time."""
        with np.errstate(divide="ignore"):
            weights = [((n,), np.log(v)) for n, v in self.evidence.likelihood.items()]
        return SecondOpinion(self.graph.plain_sums, self.evidence.codes, weights)

    @property
    def probability(self) -> float:
        """The probability of the observed codes. With likelihoods, it is the expectation of their
        product over records, those without the observed codes counting as 0, and may exceed 1. It
        is exp(log_partition), divided by its value without evidence.

        Raises InvalidInput if likelihoods are so large that float64 cannot hold it.
        """
        log = self.log_partition
        if self.graph.children is None:
            log -= Posterior(self.graph, Evidence({}, {})).log_partition
        if log > math.log(sys.float_info.max):
            raise InvalidInput(
                f"the likelihoods must leave a probability of at most 1.8e308, got exp({log:.6g}); "
                "divide each by its largest weight"
            )
        return math.exp(log)

    def marginal(self, attrs: Iterable[str]) -> Array:
        """Return the probabilities over any attributes, axes in the given order, as an array that
        sums to 1; an observed attribute has probability 1 at its code.

        Raises InvalidInput for unknown or duplicate attributes.
        """
        clique = self.graph.domain.clique(attrs, "attrs")
        return self.marginals([clique])[clique]

    def marginals(self, cliques: Iterable[Iterable[str]] | None = None) -> dict[Clique, Array]:
        """Return a mapping from each clique to its marginal, as `marginal` returns it, with shared
        work; if ``cliques`` is None, the marginals of all single attributes.
        """
        domain = self.graph.domain
        if cliques is None:
            cliques = [(name,) for name in domain]
        started = self._started
        asked = [domain.clique(clique) for clique in listed(cliques, "cliques", "cliques")]
        for clique in asked:  # this is checked before any work
            if len(clique) > 1:
                what, limit = f"the marginal over {clique!r:.200}", self.graph.memory_limit
                check_room(8 * domain.size(clique), what, limit, "ask for fewer attributes at once")
        found = self._singles(asked)
        if found is None:
            found = self._together(asked)
        structure = len(asked), *asked[:2]
        self._check("marginals", structure, started, lambda op, s: op.tables(found, 1.0, s))
        return found

    def _together(self, asked: Sequence[Clique]) -> dict[Clique, Array]:
        """Return the marginals of these cliques, axes in the clique's order: from the joint
        distribution or calibrated tree if it can answer, else from messages on one tree for each
        group of cliques (``EvidenceMarginals.together``); if that underflows, all in logarithms.
        """
        bits = self.graph.bits
        sets = [sum([bits[name] for name in clique]) for clique in asked]
        free, tables = ~self._evidence_marginals.observed, dict[int, Array]()
        try:
            for group in self._evidence_marginals.together(sets, asked):
                messages, _ = self._evidence_marginals.messages(group, asked)
                tables |= {m: self._evidence_marginals.marginal(messages, m & free) for m in group}
        except Underflow:
            tables = self._found_in_logarithms(sets)
        return {
            clique: self._arranged(clique, tables[members])
            for clique, members in zip(asked, sets, strict=True)
        }

    def _singles(self, asked: Sequence[Clique]) -> dict[Clique, Array] | None:
        """Return marginals of many single attributes at once, from a calibrated tree or joint
        distribution; None if a clique has not exactly one attribute, if fewer than one in
        ``_WORTH_ALL`` of all attributes are asked for, or if neither of the two can answer given
        this evidence.
        """
        if {*map(len, asked)} != {1} or (known := self._evidence_marginals.prepared(())) is None:
            return None
        calibration, _ = known
        place, codes = calibration.place, self.evidence.codes
        if len(asked) * _WORTH_ALL < len(place):
            return None
        try:
            values = calibration.singles.copy()
        except Underflow:
            return None
        found = {clique: values[place[clique]] for clique in asked}
        for name, code in codes.items():
            if (name,) in found:
                found[(name,)] = np.eye(1, self.graph.domain.sizes[name], code)[0]
        return found

    def fits(self) -> bool:
        """Return True if the marginals of all single attributes fit the memory limit. This computes
        them, and their messages are kept. Raises InvalidInput for evidence of probability zero.
        """
        with suppress(ModelTooLarge):
            self.marginals()
            return True
        return False

    def map(self) -> tuple[dict[str, Hashable], float]:
        """Return a most probable record that agrees with the evidence, and the logarithm of its
        weight.

        The record has the names of states, or codes of attributes without named states, as evidence
        has. The weight is the product of the tables and likelihoods at the record; in a Bayesian
        network its logarithm is the joint log-probability of the record and the evidence.
        """
        started = self._started
        best, log_weight = self._most_likely
        codes = self.evidence.codes
        record = {
            name: codes[name] if name in codes else best[place]
            for place, name in enumerate(self.graph.domain)
        }
        self._check("map", (), started, lambda op, s: op.most_probable(record, s, log_weight))
        return {n: state(self.graph.states, n, code) for n, code in record.items()}, log_weight

    def max_marginals(self) -> dict[str, Array]:
        """Return, for each attribute, an array with an entry for each value: the log weight (`map`)
        of the best record that has the value and agrees with the evidence, -inf if there is none.
        """
        started = self._started
        sizes, codes = self.graph.domain.sizes, self.evidence.codes
        tree, tables, constant = self._maximised
        singles = [bit for name, bit in self.graph.bits.items() if name not in codes]
        check_marginals(tree, self.graph.memory_limit, singles, made=False)
        messages = MaxMessages(tree, tables)
        if (best := float(messages.log_sum) + constant) == -math.inf:
            raise InvalidInput(self._impossible())
        found = {}
        for name, bit in self.graph.bits.items():
            if name in codes:
                found[name] = np.where(np.arange(sizes[name]) == codes[name], best, -math.inf)
            else:
                found[name] = messages.marginal(bit) + constant
        self._check("max marginals", (), started, lambda op, s: op.max_marginals(found, s))
        return found

    def entropy(self) -> float:
        """Return the entropy, in nats, of the unobserved attributes given the evidence."""
        started = self._started
        entropy = max(0.0, self.log_partition - self._expected_logarithms())
        self._check("entropy", (), started, lambda op, s: op.entropy(entropy, s))
        return entropy

    def _expected_logarithms(self) -> float:
        """Return the expectation of the logarithm of the product of the tables and likelihoods, in
        nats. The memory of the marginals is free again when it has returned.
        """
        marginals = self.marginals([clique for clique, _ in self._logarithms()])
        return sum(expected_log(marginals[clique], table) for clique, table in self._logarithms())

    def sample(self, n: int, *, rng: Rng = None) -> Dataset:
        """Draw ``n`` independent records; observed attributes have their observed values.

        ``rng``: a seed, a numpy Generator, or None for a fresh one. Raises InvalidInput also if
        ``n`` is not a positive integer, and ModelTooLarge if memory does not hold the records.
        """
        started = self._started
        domain, codes = self.graph.domain, self.evidence.codes
        check_draw(n, domain)
        columns = {name: np.full(n, code) for name, code in codes.items()}
        if len(codes) == len(domain):
            _ = self.log_partition  # raises for an impossible record
        else:
            columns |= self.model().sample(n, rng=rng, method="sample").columns
        self._check("sample", (), started, lambda op, s: op.drawn(columns, n, s))
        return Dataset(domain, {name: columns[name] for name in domain})

    def model(self, total: float = 1.0) -> GraphicalModel:
        """Return the distribution of the unobserved attributes as a model of ``total`` records.
        Raises InvalidInput if all attributes are observed.
        """
        _ = self.log_partition  # raises for evidence of probability zero
        started = self._started
        model = self._as_model(total)
        sums = model._tables.sums
        self._check(
            "model", (), started, lambda op, s: op.log_sum(sums.log_sum(seconds=s / 2).real, s / 2)
        )
        return model

    def _as_model(self, total: float) -> GraphicalModel:
        domain = self.graph.domain
        free = [name for name in domain if name not in self.evidence.codes]
        if not free:
            raise InvalidInput("evidence leaves no attribute to model: observe fewer attributes")
        potentials = tuple(
            Factor(domain.project(clique), table) for clique, table in self._logarithms()
        )
        limit = self.graph.memory_limit
        return GraphicalModel(domain.project(free), potentials, total, memory_limit=limit)

    @cached_property
    def _evidence_marginals(self) -> EvidenceMarginals:
        return EvidenceMarginals(self.graph, self.evidence)

    def _logarithms(self) -> Iterator[tuple[Clique, Array]]:
        """Yield a pair (unobserved attributes, logarithms) for each table and each likelihood, at
        the codes of the observed attributes (``sliced``).
        """
        return sliced(self.graph.domain, self.graph.tables, self.evidence)

    def _log_sum(self) -> float:
        """Return ``log_partition``, unchecked; minus infinity if the evidence is impossible."""
        with suppress(Underflow):
            return self._evidence_marginals.log_sum()
        if not set(self.graph.domain) - set(self.evidence.codes):
            return float(sum(table for _, table in self._logarithms()))
        try:
            return self._in_logarithms.log_partition
        except Contradiction:
            raise
        except NumericalFailure:
            return -math.inf

    @cached_property
    def _in_logarithms(self) -> GraphicalModel:
        """The posterior as a model, which computes with logarithms, for evidence so improbable that
        products of the tables themselves underflow.
        """
        return self._as_model(1.0)

    def _found_in_logarithms(self, sets: Sequence[int]) -> dict[int, Array]:
        if self._log_sum() == -math.inf:
            raise InvalidInput(self._impossible())
        names = self.graph.domain.attributes
        cliques = {
            m: tuple(names[v] for v in each_bit(m & ~self._evidence_marginals.observed))
            for m in sets
        }
        if not any(cliques.values()):
            return dict.fromkeys(cliques, np.array(1.0))
        tables = self._in_logarithms.marginals(cliques.values())
        return {m: tables[clique] for m, clique in cliques.items()}

    def _arranged(self, clique: Clique, table: Array) -> Array:
        """Return a marginal with its axes in the clique's order, given ``table`` over the
        unobserved attributes, axes ascending. The axes of observed attributes are added, with 0 at
        all codes but the observed one.
        """
        bits, sizes, codes = self.graph.bits, self.graph.domain.sizes, self.evidence.codes
        ordered = sorted(clique, key=bits.__getitem__)
        if any(name in codes for name in clique):
            whole = np.zeros([sizes[name] for name in ordered])
            whole[tuple(codes.get(name, ALL) for name in ordered)] = table
            table = whole
        return table.transpose([ordered.index(name) for name in clique])

    def _impossible(self) -> str:
        """Return an error message that names the first observation that is impossible given those
        before it. If there is none, or if a sum given fewer observations does not fit into memory,
        the message names all evidence, or says that the graph itself leaves no record possible.
        """
        observed = list(self.evidence.codes.items())

        def first(count: int) -> Evidence:
            return Evidence(dict(observed[:count]), {})

        def ruled_out(count: int) -> bool:
            return Posterior(self.graph, first(count))._log_sum() == -math.inf

        with suppress(ModelTooLarge):
            count = bisect_left(range(len(observed) + 1), True, key=ruled_out)
            if not count:
                return first(0).impossible(self.graph.states)
            if count <= len(observed):
                *others, last = first(count).words(self.graph.states)
                given = f" given {', '.join(others):.500}" if others else ""
                return f"the evidence has probability zero: {last} is impossible{given}"
        return self.evidence.impossible(self.graph.states)

    @cached_property
    def _most_likely(self) -> tuple[dict[int, int], float]:
        """The codes of a most likely record, by the unobserved attributes' places in the domain,
        and the logarithm of its weight. Raises InvalidInput if the evidence has probability zero,
        and ModelTooLarge if the search does not fit into memory.
        """
        tree, tables, constant = self._maximised
        check_record(tree, self.graph.memory_limit)
        record, best = most_likely(tree, tables)
        if best + constant == -math.inf:
            raise InvalidInput(self._impossible())
        return record, best + constant

    @cached_property
    def _maximised(self) -> tuple[EliminationTree, list[Array], float]:
        """The elimination tree of the unobserved attributes, the logarithms of their tables with
        ascending axes, and the summed logarithms of tables of which all attributes are observed.
        """
        bits, constant = self.graph.bits, 0.0
        inputs = Inputs(self.graph.sizes)
        for clique, table in self._logarithms():
            if not clique:
                constant += float(table)
                continue
            axes = sorted(range(len(clique)), key=lambda i: bits[clique[i]])
            inputs.add(sum([bits[name] for name in clique]), table.transpose(axes), -1)
        return self.graph.tree(inputs), inputs.tables, constant
