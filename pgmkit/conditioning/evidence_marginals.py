"""The ways to compute a posterior's marginals, of which each question takes the cheapest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np

from pgmkit.conditioning.calibrated_cliques import ScaledEvidence
from pgmkit.conditioning.calibration import Calibration
from pgmkit.conditioning.elimination import EliminationTree
from pgmkit.conditioning.evidence import Evidence
from pgmkit.conditioning.graph_tables import (
    CELLS_OF_A_TABLE,
    Draft,
    GraphTables,
    Inputs,
)
from pgmkit.conditioning.grouping import LARGE_PASS, Cost, may_pay, split_questions
from pgmkit.conditioning.joint import GivenJoint, JointTable, is_small, product
from pgmkit.conditioning.message_passing import LEAST_ENTRY, Messages, Sums, Underflow
from pgmkit.conditioning.pass_memory import check_marginals, check_sum, surely_fits
from pgmkit.domain import Clique
from pgmkit.errors import ModelTooLarge
from pgmkit.graphs.bit_sets import cells_of, each_bit, union
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import REMEMBERED

Prepared = Calibration | GivenJoint

ALL = slice(None)
OWN_TREE = 10
"""A marginal is computed on an elimination tree of its own if that takes less work than the shared
tree by this factor.
"""


class EvidenceMarginals:
    """Marginals of a graph's attributes given evidence.

    If the graph has its joint distribution or a calibrated tree, which serve any evidence, they are
    used first. Otherwise messages are computed for this evidence, on an elimination tree of the
    relevant attributes. Sets of attributes are integers with one bit for each attribute.
    """

    def __init__(self, graph: GraphTables, evidence: Evidence) -> None:
        self.graph, self.evidence = graph, evidence
        self._found: dict[int, tuple[Messages | JointTable, float]] = {}
        self._inputs_of: dict[int, Inputs] = {}
        self._place = -1

    @cached_property
    def observed(self) -> int:
        """The attributes whose codes are known, as a set."""
        return sum([self.graph.bits[name] for name in self.evidence.codes])

    @cached_property
    def known(self) -> int:
        """The attributes with a code or a likelihood, as a set."""
        return self.observed | sum([self.graph.bits[name] for name in self.evidence.likelihood])

    def together(self, sets: Sequence[int], asked: Sequence[Clique]) -> list[list[int]]:
        """Group the sets of attributes so that each group is answered by messages on one tree.
        Usually there is one group; there are several if one tree for all would have much larger
        tables.
        """
        everything, graph = [list(sets)], self.graph
        if graph.children is None or len(sets) < 2 or self.prepared(asked) is not None:
            return everything
        relevant = graph.relevant(union(sets) | self.known)
        small = is_small(relevant & ~self.observed, graph.sizes)
        if small or any(not relevant & ~known for known in self._found):
            return everything
        key = tuple(sets), self.known
        found = graph.groups.pop(key, None)
        if found is None:
            found = self._grouped(sets, relevant)
            if len(graph.groups) >= REMEMBERED:
                del graph.groups[next(iter(graph.groups))]
        graph.groups[key] = found
        return found

    def _grouped(self, sets: Sequence[int], relevant: int) -> list[list[int]]:
        if not may_pay(self._draft(relevant, sets), len(sets)):
            return [list(sets)]
        ancestors = self.graph.ancestors
        known = union([ancestors[v] for v in each_bit(self.known)])
        needed = {m: known | union([ancestors[v] for v in each_bit(m)]) for m in sets}
        parts = split_questions(needed, self._draft)
        groups: dict[int, list[int]] = {part: [] for part in parts}
        for members, each in needed.items():
            groups[next(part for part in parts if not each & ~part)].append(members)
        found = [group for group in groups.values() if group]
        # Inputs of groups that were tried but not chosen are dropped.
        left = {self.graph.relevant(union(group) | self.known) for group in found}
        self._inputs_of = {part: made for part, made in self._inputs_of.items() if part in left}
        return found

    def prepared(self, asked: Sequence[Clique]) -> tuple[Prepared, float] | None:
        """Return the graph's joint distribution or calibrated tree given this evidence, and the
        logarithm of the number that the likelihoods were divided by; None if the graph has neither,
        or it cannot answer for these cliques.
        """
        if self.graph.joint is not None:
            return self._given_joint
        calibrated = self.graph.calibrated_for(asked)
        return None if calibrated is None or self._found else self._calibrated

    def messages(
        self, sets: Sequence[int], asked: Sequence[Clique]
    ) -> tuple[Messages | Calibration | JointTable, float]:
        """Return messages that give the marginals of these sets of attributes, and the logarithm of
        the number that their tables were divided by. ``asked`` are all cliques of the question, of
        this group and of others.

        Raises ModelTooLarge, before any work, if they need too much memory, and Underflow if the
        numbers are too small to be computed without logarithms.
        """
        if (prepared := self.prepared(asked)) is not None:
            return prepared
        relevant = self.graph.relevant(union(sets) | self.known)
        for known, found in self._found.items():
            if not relevant & ~known:
                if isinstance(found[0], Messages):
                    self._check_marginals(found[0].tree, sets, made=True)
                return found
        inputs = self._sound(relevant)
        made = self._written_out(inputs) or self._passed(inputs, sets)
        del self._inputs_of[relevant]
        self._found[relevant] = made, inputs.log_scale
        return made, inputs.log_scale

    def log_sum(self) -> float:
        """Return the logarithm of the sum over all records that agree with the evidence. Raises
        Underflow as ``messages`` does.

        If the values of all nodes do not fit into memory together, each is freed as soon as it has
        been multiplied.
        """
        try:
            messages, log_scale = self.messages((), ())
        except ModelTooLarge:
            inputs = self._sound(self.graph.relevant(self.known))
            tree, limit = self.graph.tree(self._drafted(inputs)), self.graph.memory_limit
            check_sum(tree, limit)
            conditional = self.graph.children is not None
            sums = Sums(tree, inputs.tables, conditional, limit, self.graph.kernels)
            return float(sums.log_sum) + inputs.log_scale
        return float(messages.log_sum) + log_scale

    def _sound(self, relevant: int) -> Inputs:
        """Return the input tables for the relevant attributes (a bit mask). Raises Underflow if one
        of them is zero, or so small that products without logarithms may underflow.
        """
        inputs = self._sliced(relevant)
        if inputs.log_scale == -math.inf or inputs.lost or self.graph.lost:
            raise Underflow
        return inputs

    def _check_marginals(
        self, tree: EliminationTree, sets: Sequence[int], *, made: bool = False
    ) -> None:
        free = ~self.observed
        joint = [members & free for members in sets if members & (members - 1)]
        limit = self.graph.memory_limit
        if not surely_fits(tree, limit, joint):
            here = [m & free for m in sets if not self._lies_apart(tree, m & free)]
            check_marginals(tree, limit, here, made=made)

    def _lies_apart(self, tree: EliminationTree, members: int) -> bool:
        """Return True if a marginal is to be computed on a tree of its own, because on this tree it
        would need far larger tables.
        """
        most = OWN_TREE * (tree.cells + CELLS_OF_A_TABLE * tree.inputs)
        return tree.cells_of(members) * tree.cells > most < tree.joint_cells(members)

    def marginal(self, messages: Messages | Calibration | JointTable, members: int) -> Array:
        """Return a marginal from messages, or from messages on a tree of its own if these would
        need much larger tables.
        """
        if not isinstance(messages, Messages):
            return messages.marginal(members)
        if not self._lies_apart(messages.tree, members):
            return messages.marginal(members)
        sizes = self.graph.sizes
        inputs = self._inputs(self.graph.relevant(members | self.known))
        # The search for an order sees a table of ones over the attributes as well, so that they
        # share a node.
        inputs.add(members, np.ones([sizes[v] for v in each_bit(members)]), -1)
        return self._passed(inputs, [members]).marginal(members)

    def _sliced(self, relevant: int) -> Inputs:
        """Return the result of ``_inputs``, which is kept until messages are computed from it."""
        found = self._inputs_of.get(relevant)
        if found is None:
            found = self._inputs_of[relevant] = self._inputs(relevant)
        return found

    def _inputs(self, relevant: int) -> Inputs:
        """Return the tables of the relevant attributes (a bit mask), sliced at the codes of
        observed attributes, and the likelihoods.
        """
        graph, observed = self.graph, self.observed
        inputs = Inputs()
        codes = {graph.bits[name].bit_length() - 1: c for name, c in self.evidence.codes.items()}
        children = graph.children
        bits = each_bit(relevant)
        numbers = (
            range(len(graph.tables)) if children is None else sorted([graph.own[v] for v in bits])
        )
        # Each table is restricted to the observed codes. If the variable whose conditional
        # distribution a table is has been observed, the restricted table is no longer a
        # distribution, so its head is -1.
        for number in numbers:
            members, table, log_peak = graph.input(number)
            head = -1 if children is None else graph.bits[children[number]]
            inputs.log_scale += log_peak
            if members & observed:
                at = tuple([codes.get(v, ALL) for v in each_bit(members)])
                inputs.add(members & ~observed, table[at], -1 if head & observed else head)
            else:
                inputs.add(members, table, head)
        for name, weights in self.evidence.likelihood.items():
            peak = float(weights.max())
            inputs.log_scale += math.log(peak) if peak else -math.inf
            scaled = weights / (peak or 1.0)
            inputs.lost |= bool((scaled[weights > 0] < LEAST_ENTRY).any())
            bit = graph.bits[name]
            if bit & observed:
                inputs.add(0, scaled[self.evidence.codes[name]], -1)
            else:
                inputs.add(bit, scaled, -1)
        # Every unobserved attribute must be in some table, so one without gets a table of ones.
        if children is None:
            held = union(inputs.scopes)
            for v in each_bit(relevant & ~held & ~observed):
                inputs.add(1 << v, np.ones(graph.sizes[v]), -1)
        return inputs

    def _draft(self, relevant: int, asked: Sequence[int]) -> Cost:
        """Return an estimate of the cost of answering for the sets ``asked`` on one tree of the
        relevant attributes.
        """
        draft = self._drafted(self._sliced(relevant))
        cells, sizes = draft.tree.cells, self.graph.sizes
        for members in asked:
            if members & (members - 1) and cells * cells_of(members, sizes) > LARGE_PASS:
                cells += draft.tree.joint_cells(members & ~self.observed)
        return Cost(cells, CELLS_OF_A_TABLE * len(draft.scopes))

    def _drafted(self, inputs: Inputs) -> Draft:
        if inputs.draft is None:
            inputs.draft = self.graph.draft(tuple(inputs.scopes), tuple(inputs.heads))
        return inputs.draft

    def _count(self, cells: float, tables: int) -> None:
        """Add the cost of a pass over this many cells of this many tables to the cost of this
        evidence.
        """
        passes = self.graph.passes
        if self._place < 0:
            self._place = len(passes)
            passes.append(0.0)
        passes[self._place] += cells + CELLS_OF_A_TABLE * tables

    @cached_property
    def _given_joint(self) -> tuple[Prepared, float] | None:
        assert self.graph.joint is not None
        return self._given(self.graph.joint.given)

    @cached_property
    def _calibrated(self) -> tuple[Prepared, float] | None:
        assert self.graph.calibrated is not None
        return self._given(partial(Calibration, self.graph.calibrated))

    def _given(
        self, prepare: Callable[[ScaledEvidence], Prepared]
    ) -> tuple[Prepared, float] | None:
        """Return the joint distribution or calibrated tree given the evidence, and the logarithm of
        the number that the likelihoods were divided by; None if the evidence is so unlikely that it
        would underflow.
        """
        if (known := self._scaled_evidence()) is None:
            return None
        try:
            return prepare(known[0]), known[1]
        except Underflow:
            return None

    def _scaled_evidence(self) -> tuple[ScaledEvidence, float] | None:
        """Return the evidence with likelihoods of maximum 1, and the logarithm of the number that
        they were divided by; None if some weights are so small that products may underflow.
        """
        codes = self.evidence.codes
        weights, log_scale = {}, 0.0
        for name, values in self.evidence.likelihood.items():
            peak = float(values[codes[name]] if name in codes else values.max())
            if not peak or (values[values > 0] / peak < LEAST_ENTRY).any():
                return None
            log_scale += math.log(peak)
            if name not in codes:
                weights[name] = values / peak
        return ScaledEvidence(codes, weights), log_scale

    def _passed(self, inputs: Inputs, sets: Sequence[int]) -> Messages:
        graph = self.graph
        tree = graph.tree(self._drafted(inputs))
        self._check_marginals(tree, sets)
        self._count(tree.cells, tree.inputs)
        conditional = graph.children is not None
        return Messages(tree, inputs.tables, conditional, graph.memory_limit, graph.kernels)

    def _written_out(self, inputs: Inputs) -> JointTable | None:
        """Return the joint distribution of the inputs' attributes, or None if it has many cells."""
        held, sizes = union(inputs.scopes), self.graph.sizes
        if not is_small(held, sizes):
            return None
        axes = each_bit(held)
        made = JointTable(axes, product(inputs.scopes, inputs.tables, axes, sizes))
        self._count(made.table.size, len(inputs.scopes))
        return made
