"""The ways to compute a posterior's marginals, of which each question takes the cheapest.

A marginal of a Bayesian network depends only on the tables of the attributes asked for, of those
observed, and of their ancestors (all others are *barren*: Shachter 1986). One tree for all
questions processes every table once, but it joins the parents of every attribute that matters to
any question. Its tables may be hundreds of times as large as those of a tree for each question: the
largest of one tree for pgmpy's network munin1 has 16.8 million cells, and that of several trees 1.8
million. If several trees cost less, the questions are therefore split into those that depend on a
certain attribute and those that do not, and each part again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pgmkit.conditioning.calibration import Calibration
from pgmkit.conditioning.elimination import EliminationTree
from pgmkit.conditioning.evidence import Evidence
from pgmkit.conditioning.graph_tables import (
    CELLS_OF_A_TABLE,
    GraphTables,
    Inputs,
    remembered,
    supersede,
)
from pgmkit.conditioning.joint import GivenJoint
from pgmkit.conditioning.message_passing import Messages, Sums, Underflow
from pgmkit.conditioning.pass_memory import check_marginals, check_sum, surely_fits
from pgmkit.domain import Clique
from pgmkit.errors import ModelTooLarge
from pgmkit.graphs.bit_sets import each_bit, union
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import MULTIPLICATIONS_A_SECOND

Prepared = Calibration | GivenJoint

ALL = slice(None)
OWN_TREE = 10
"""A marginal is computed on an elimination tree of its own if its joint table on the shared tree
would take more than this many times the work of a pass.
"""
LARGE_PASS = MULTIPLICATIONS_A_SECOND / 300
"""The number of multiplications above which a pass takes longer than the search for orders of two
halves.
"""
MOSTLY_CELLS = 6
"""A pass is split only if its multiplications take at least this many times as long as handling its
tables, since every part handles the tables of shared ancestors again. For fewer questions than
this, the factor is their number.
"""

Part = tuple[float, int]
"""The estimated work of answering a group of questions by one tree, and the set of attributes that
their answers depend on.
"""
Closed = tuple[int, list[int]]
"""A set of attributes with all their relevant ancestors, and the questions that it answers."""


@dataclass(frozen=True)
class Cost:
    """The estimated cost of answering questions by one tree."""

    multiplications: float
    """The number of multiplications."""
    tables: float
    """The work of handling the tables themselves, as a number of multiplications that take as
    long.
    """

    @property
    def work(self) -> float:
        """The multiplications and the handling of tables together."""
        return self.multiplications + self.tables


Draft = Callable[[int, Sequence[int]], Cost]
"""A function of a set of attributes and some questions that returns the cost of answering them by
one tree.
"""


class EvidenceMarginals:
    """Marginals of a graph's attributes given evidence.

    They come from the graph's joint distribution or calibrated tree, which serve any evidence, if
    ``prepared`` returns one of these for the question. Otherwise messages are computed for this
    evidence, on an elimination tree of the relevant attributes. Sets of attributes are integers
    with one bit for each attribute.
    """

    def __init__(self, graph: GraphTables, evidence: Evidence) -> None:
        self.graph, self.evidence = graph, evidence
        self._found: dict[int, tuple[Messages, float]] = {}
        self._inputs_of: dict[int, Inputs] = {}
        self._place = -1
        self._failed = False  # This is True once a pass over all tables has failed.

    @cached_property
    def observed(self) -> int:
        """The attributes whose codes are known, as a set."""
        return sum([self.graph.bits[name] for name in self.evidence.codes])

    @property
    def everything(self) -> int:
        """All attributes of the graph, as a set."""
        return (1 << len(self.graph.sizes)) - 1

    @cached_property
    def known(self) -> int:
        """The attributes with a code or a likelihood, as a set."""
        return self.observed | sum([self.graph.bits[name] for name in self.evidence.likelihood])

    def together(self, sets: Sequence[int], asked: Sequence[Clique]) -> list[list[int]]:
        """Return ``sets``, the attributes of each clique of the question ``asked``, in groups, each
        of which is answered by messages on one tree. Usually there is one group; for a Bayesian
        network there are several if their trees are estimated to cost less than one tree for all.
        """
        everything, graph = [list(sets)], self.graph
        if graph.children is None or len(sets) < 2 or self.prepared(asked) is not None:
            return everything
        relevant = graph.relevant(union(sets) | self.known)
        if any(not relevant & ~known for known in self._found):
            return everything
        key = tuple(sets), self.known
        found = remembered(graph.groups, key, lambda: self._grouped(sets, relevant))
        graph.groups[key] = graph.groups.pop(key, found)  # the last question's entry is the last
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
        logarithm of the number that the likelihoods were divided by. The tree is used only if each
        of ``asked`` lies in one of its cliques and no messages were computed for this evidence. The
        result is None if neither can be used, or if the evidence is so unlikely that products of
        the tables underflow.
        """
        graph = self.graph
        if graph.joint is None and (self._found or graph.calibrated_for(asked) is None):
            return None
        return self._prepared

    def messages(
        self, sets: Sequence[int], asked: Sequence[Clique]
    ) -> tuple[Messages | Prepared, float]:
        """Return an object whose ``marginal`` gives the marginal over each of ``sets``, one of the
        groups of ``together``, and the number to add to its ``log_sum``, since its tables were
        scaled. The object is the one that ``prepared`` returns for ``asked``, the cliques of all
        groups; if that is None, the object is messages on an elimination tree.

        Raises ModelTooLarge, before any table is multiplied, if the marginals need too much memory,
        and Underflow if the numbers are too small to be computed without logarithms.
        """
        if (prepared := self.prepared(asked)) is not None:
            return prepared
        relevant = self.graph.relevant(union(sets) | self.known)
        for known, found in self._found.items():
            if not relevant & ~known:
                with suppress(ModelTooLarge):  # then other trees are tried, which may be smaller
                    self._check_marginals(found[0].tree, sets, made=True)
                    return found
        if self._pays_whole():
            with suppress(ModelTooLarge, Underflow):
                return self._messages(self.everything, sets)
            self._failed = True
        return self._messages(relevant, sets)

    def _messages(self, relevant: int, sets: Sequence[int]) -> tuple[Messages, float]:
        inputs = self._usable(relevant)
        made = self._passed(inputs, sets)
        del self._inputs_of[relevant]
        supersede(self._found, relevant, (made, inputs.log_scale))
        return made, inputs.log_scale

    def _pays_whole(self) -> bool:
        """Return True if the passes for this evidence so far cost as much as one pass over all
        tables would, and that has not failed. That pass then answers whatever is asked next, so
        that many questions, asked one by one, cost at most about twice as much as if they had been
        asked together.
        """
        if self._failed or self._place < 0:
            return False
        spent = self.graph.passes[self._place]
        if spent < CELLS_OF_A_TABLE * len(self.graph.tables):  # a bound that needs no draft
            return False
        return spent >= self._draft(self.everything, ()).work

    def log_sum(self) -> float:
        """Return the logarithm of the sum, over all records that agree with the evidence, of the
        product of the tables and likelihoods. Raises Underflow if the numbers are too small to be
        computed without logarithms.

        If the values of all nodes do not fit into memory together, each is freed as soon as it has
        been multiplied; ModelTooLarge is raised if this does not suffice.
        """
        try:
            messages, log_scale = self.messages((), ())
        except ModelTooLarge:
            inputs = self._usable(self.graph.relevant(self.known))
            tree, limit = self.graph.tree(inputs), self.graph.memory_limit
            check_sum(tree, limit)
            conditional = self.graph.children is not None
            sums = Sums(tree, inputs.tables, conditional, limit, self.graph.kernels)
            return float(sums.log_sum) + inputs.log_scale
        return float(messages.log_sum) + log_scale

    def _usable(self, relevant: int) -> Inputs:
        """Return the input tables for the relevant attributes (a bit mask). Raises Underflow if a
        table of observed attributes only is zero at their codes, or if entries or likelihoods are
        so small that products without logarithms may underflow.
        """
        inputs = self._sliced(relevant)
        if inputs.log_scale == -math.inf or self.graph.lost:
            raise Underflow
        return inputs

    def _check_marginals(
        self, tree: EliminationTree, sets: Sequence[int], *, made: bool = False
    ) -> None:
        """Raise ModelTooLarge if the marginals over ``sets`` do not fit into memory on this tree.
        Sets that get a tree of their own (``_lies_apart``) are not counted. ``made`` says whether
        the values of the tree's nodes are in memory already.
        """
        free = ~self.observed
        joint = [members & free for members in sets if members & (members - 1)]
        limit = self.graph.memory_limit
        if not surely_fits(tree, limit, joint):
            here = [m & free for m in sets if not self._lies_apart(tree, m & free)]
            check_marginals(tree, limit, here, made=made)

    def _lies_apart(self, tree: EliminationTree, members: int) -> bool:
        """Return True if a marginal is to be computed on a tree of its own, because on this tree it
        would take more than ``OWN_TREE`` times the work of the pass.
        """
        most = OWN_TREE * (tree.cost + CELLS_OF_A_TABLE * tree.inputs)
        return tree.cells_of(members) * tree.cost > most < tree.joint_cost(members)

    def marginal(self, messages: Messages | Prepared, members: int) -> Array:
        """Return the marginal over ``members`` (a bit set of unobserved attributes), with ascending
        axes: from ``messages`` or, if that would take more than ``OWN_TREE`` times the work of the
        pass, from new messages on a tree of its own.
        """
        if not (isinstance(messages, Messages) and self._lies_apart(messages.tree, members)):
            return messages.marginal(members)
        sizes = self.graph.sizes
        inputs = self._inputs(self.graph.relevant(members | self.known))
        # The search for an order sees a table of ones over the attributes as well, so that they
        # share a node.
        inputs.add(members, np.ones([sizes[v] for v in each_bit(members)]), -1)
        return self._passed(inputs, [members]).marginal(members)

    def _sliced(self, relevant: int) -> Inputs:
        """Return the tables of the relevant attributes (a bit mask), sliced at the observed codes,
        and the likelihoods. They are remembered until messages are computed from them.
        """
        return remembered(self._inputs_of, relevant, lambda: self._inputs(relevant), math.inf)

    def _inputs(self, relevant: int) -> Inputs:
        """Return the tables of the relevant attributes (a bit mask), sliced at the codes of
        observed attributes, and the likelihoods.
        """
        graph, inputs = self.graph, Inputs(self.graph.sizes)
        evidence, inputs.log_scale = self._scaled
        codes = {graph.bits[name].bit_length() - 1: code for name, code in evidence.codes.items()}
        for (members, table, log_peak), free, head in graph.parts(relevant, self.observed):
            inputs.log_scale += log_peak
            if free != members:
                table = table[tuple([codes.get(v, ALL) for v in each_bit(members)])]
            inputs.add(free, table, head)
        for name, weights in evidence.likelihood.items():
            inputs.add(graph.bits[name], weights, -1)
        return inputs

    def _draft(self, relevant: int, asked: Sequence[int]) -> Cost:
        """Return an estimate of the cost of answering for the sets ``asked`` on one tree of the
        relevant attributes.
        """
        inputs = self._sliced(relevant)
        tree = self.graph.draft(inputs)
        cost = tree.cost
        for members in asked:
            if members & (members - 1) and cost * tree.cells_of(members) > LARGE_PASS:
                cost += tree.joint_cost(members & ~self.observed)
        return Cost(cost, CELLS_OF_A_TABLE * len(inputs.scopes))

    @cached_property
    def _scaled(self) -> tuple[Evidence, float]:
        return self.evidence.scaled()

    @cached_property
    def _prepared(self) -> tuple[Prepared, float] | None:
        """The joint distribution or calibrated tree given the evidence, and the logarithm of the
        number that the likelihoods were divided by; None if the evidence is so unlikely that it
        would underflow.
        """
        try:
            evidence, log_scale = self._scaled
            if self.graph.joint is not None:
                return self.graph.joint.given(evidence), log_scale
            assert self.graph.calibrated is not None
            return Calibration(self.graph.calibrated, evidence), log_scale
        except Underflow:
            return None

    def _passed(self, inputs: Inputs, sets: Sequence[int]) -> Messages:
        graph = self.graph
        tree = graph.tree(inputs)
        self._check_marginals(tree, sets)
        # The cost of the pass is added to the number in `graph.passes` that belongs to this
        # evidence.
        if self._place < 0:
            self._place = len(graph.passes)
            graph.passes.append(0.0)
        graph.passes[self._place] += tree.cost + CELLS_OF_A_TABLE * tree.inputs
        conditional = graph.children is not None
        return Messages(tree, inputs.tables, conditional, graph.memory_limit, graph.kernels)


def may_pay(whole: Cost, questions: int) -> bool:
    """Return True if one tree for all ``questions``, at the cost ``whole``, costs so much that
    several trees may be cheaper.
    """
    return whole.multiplications >= max(LARGE_PASS, min(MOSTLY_CELLS, questions) * whole.tables)


def split_questions(questions: Mapping[int, int], draft: Draft) -> list[int]:
    """Split the questions into groups that are answered by one tree each, and return the set of
    attributes of each group's tree, the tree with the least work first.

    Args:
        questions: for each question's set of attributes the set that its answer depends on,
            ancestors included.
        draft: estimates the cost of answering questions by one tree.
    """
    sets: dict[int, list[int]] = {}
    for asked, needed in sorted(questions.items(), key=lambda each: -each[1].bit_count()):
        home = next((larger for larger in sets if not needed & ~larger), needed)
        sets.setdefault(home, []).append(asked)
    whole = draft(union(sets), list(questions))
    return [members for _, members in sorted(_parts(list(sets.items()), whole, draft))]


def _parts(sets: Sequence[Closed], whole: Cost, draft: Draft) -> list[Part]:
    alone = [(whole.work, union([members for members, _ in sets]))]
    if len(sets) < 2 or not may_pay(whole, len(sets)):
        return alone
    halves = []
    for half in _halves(sets):
        asked = [each for _, questions in half for each in questions]
        halves.append((half, draft(union([members for members, _ in half]), asked)))
    found = [part for each, half in halves for part in _parts(each, half, draft)]
    return found if sum([work for work, _ in found]) < whole.work else alone


def _halves(sets: Sequence[Closed]) -> tuple[list[Closed], list[Closed]]:
    """Split the sets into those that contain a certain attribute and the others. The attribute is
    the one that most nearly half of the sets contain.
    """
    counts = Counter(v for members, _ in sets for v in each_bit(members))
    middle = min(counts, key=lambda v: abs(2 * counts[v] - len(sets)))
    having = [each for each in sets if each[0] >> middle & 1]
    return having, [each for each in sets if not each[0] >> middle & 1]
