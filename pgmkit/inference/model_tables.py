"""The tables that a graphical model answers from, each computed when it is first needed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum, inf, log, prod

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.factor import Factor
from pgmkit.graphs.junction_tree import JunctionTree, check_fits, junction_tree
from pgmkit.inference.answer_checks import SecondOpinion
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.inference.pair_marginals import PairMarginals
from pgmkit.inference.plain_beliefs import MOST_CELLS, PlainBeliefs
from pgmkit.inference.plain_sums import PlainSums
from pgmkit.inference.self_check import FirstUses, checked_marginals
from pgmkit.inference.tree_marginals import Tables, each_marginal
from pgmkit.inference.tree_marginals import marginals as eliminate
from pgmkit.inference.tree_paths import tree_paths
from pgmkit.inference.variable_elimination import answers
from pgmkit.linear.axes import sum_to, tensor_sum_to
from pgmkit.queries import FactoredQuery
from pgmkit.records.sampling import Method, check_draw, gains_on_device, sample, sample_on_device
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.memory import check_room
from pgmkit.runtime.sizes import BLOCK_CELLS, CACHE_CELLS, CELL_BYTES
from pgmkit.runtime.threads import one_blas_thread

_MANY_PAIRS = 16
"""The number of pairs from which on computing all pairs at once may be faster."""


@dataclass(frozen=True, eq=False)
class ModelTables:
    """This class computes marginal tables, answers and records of the distribution p(x)
    proportional to exp(sum of the potentials ``given``). Tables are in counts, so each sums to
    ``total``.

    Its methods raise ModelTooLarge if tables take more than ``memory_limit`` bytes.
    """

    domain: Domain
    given: tuple[Factor, ...]
    total: float
    memory_limit: int
    uses: FirstUses = field(default_factory=FirstUses)
    """A record of the structures whose answers were checked by a second computation."""

    @cached_property
    def cliques(self) -> tuple[Clique, ...]:
        """The cliques of the potentials."""
        return tuple(factor.domain.attributes for factor in self.given)

    @cached_property
    def tree(self) -> JunctionTree:
        """A junction tree of the potentials over all attributes of the domain."""
        return junction_tree(self.domain, self.cliques)

    @property
    def calibrated(self) -> bool:
        """True if the marginals of the tree's cliques have been computed in torch (``beliefs``)."""
        return "beliefs" in self.__dict__

    @property
    def log_partition(self) -> float:
        """The logarithm of the sum over the domain of exp(sum of potentials)."""
        return self.plain.log_partition if self.plain else self.clique_marginals[1]

    def marginals(self, asked: Sequence[Clique]) -> dict[Clique, Array]:
        """Return the marginal counts over each of these cliques."""
        found = self.plain_marginals(asked)
        return self.contracted(asked) if found is None else found

    def in_turn(self, asked: Sequence[Clique]) -> Iterator[dict[Clique, Array]]:
        """Yield mappings from clique to marginal counts, until each of these cliques has been
        yielded once, in any order. A mapping has all tables if they take some megabytes at most and
        need no torch, the pairs that are computed all at once, a single table, or tables of some
        megabytes together.
        """
        few = sum(map(self.domain.size, asked)) <= BLOCK_CELLS
        if few and (plainly := self.plain_marginals(asked)):
            yield plainly
            return
        if found := self.pairs([clique for clique in asked if len(clique) == 2]):
            yield found
        hosts = {clique: self.host(clique) for clique in asked if clique not in found}
        for clique, place in hosts.items():
            if place is not None:
                yield {clique: self.summed(place, clique)}
        outside = [clique for clique, place in hosts.items() if place is None]
        if not outside:
            return
        tables = each_marginal(self.tree, self.beliefs, outside, memory_limit=self.memory_limit)
        while True:
            with self.oracle.session():
                ready = _next_block(tables)
            if not ready:
                return
            yield ready

    def answers(self, queries: Sequence[FactoredQuery]) -> list[Array]:
        """Return the answers to these queries, in counts."""
        found = self.plain_answers(queries)
        if found is None:
            with self.oracle.session():
                found = answers(self.domain, self.conditionals, queries, self.memory_limit)
        return found

    def records(
        self, n: int, rng: np.random.Generator, method: Method
    ) -> dict[str, NDArray[np.unsignedinteger]]:
        """Draw ``n`` records by the ``method`` of ``pgmkit.records.sampling.sample`` and return the
        codes of each attribute, on the GPU if the model is there and this is faster.
        """
        check_draw(n, self.domain)
        device = None if self.plain is not None else self.factors[0].values.device
        if device is not None and gains_on_device(self.domain, n, device):
            return sample_on_device(self.tree, self.belief, n, rng, method, device)
        return sample(self.tree, self.belief, n, rng, method)

    def narrowed(self, allowed: Mapping[str, NDArray[np.bool_]]) -> tuple[Factor, ...]:
        """Return the model's potentials, changed so that records with a code that ``allowed`` rules
        out have probability zero. ``allowed`` has a mask of the codes of each of its attributes.

        For each attribute in ``allowed``, the first potential that contains it is set to minus
        infinity at the codes ruled out; an attribute in no potential gets one of its own.
        """
        potentials = list(self.given)
        like = self.factors[0].values
        for name, mask in allowed.items():
            values = torch.from_numpy(np.where(mask, 0.0, -inf)).to(like)
            factor = Factor(self.domain.project([name]), values)
            held = [i for i, other in enumerate(potentials) if name in other.domain]
            if held:
                potentials[held[0]] = potentials[held[0]] + factor
            else:
                potentials.append(factor)
        return tuple(potentials)

    def contracted(self, asked: Sequence[Clique]) -> dict[Clique, Array]:
        """Return the marginal counts over these cliques by contractions in torch, which share
        intermediate tables.
        """
        found = self.pairs([clique for clique in asked if len(clique) == 2])
        left = [clique for clique in asked if clique not in found]
        hosts = {clique: self.host(clique) for clique in left}
        inside = {clique: place for clique, place in hosts.items() if place is not None}
        if len(inside) == len(hosts) and not self.calibrated:
            found.update((clique, self.summed(place, clique)) for clique, place in inside.items())
        else:
            # All of `left` come from the calibrated tree, also those inside a potential's clique,
            # which lies in a clique of the tree.
            with self.oracle.session():
                tables = eliminate(self.tree, self.beliefs, left, memory_limit=self.memory_limit)
            found.update((clique, as_array(table)) for clique, table in tables.items())
        return {clique: found[clique] for clique in asked}

    def pairs(self, asked: Sequence[Clique]) -> dict[Clique, Array]:
        """Return the marginal counts over these pairs, computed all at once from the beliefs
        ``plain`` or, without these, ``beliefs``. The result is empty if the pairs are estimated to
        be faster one by one, if they would not fit into memory together, or if there are no beliefs
        ``plain`` and fewer than ``_MANY_PAIRS`` pairs.
        """
        if len(asked) < (_MANY_PAIRS if self.plain is None else 1):
            return {}
        names = dict.fromkeys(name for clique in asked for name in clique)
        pairs = PairMarginals(tree_paths(self.tree), self.inside(), names)
        if not pairs.pays(len(asked), self.memory_limit):
            return {}
        wanted = set(asked)
        found: dict[Clique, Array] = {}
        # `one_blas_thread` would load scipy, which takes longer than all pairs of a small model.
        threads = one_blas_thread if "scipy.linalg" in sys.modules else nullcontext
        with threads() if self.plain else self.oracle.session():
            for pair, table in pairs.tables():
                if pair in wanted:
                    found[pair] = table.astype(np.float64)
                if pair[::-1] in wanted:
                    found[pair[::-1]] = table.T.astype(np.float64)
        return found

    def inside(self) -> Callable[[int, int], Array]:
        """Return a function of the number of a clique of the tree and of some of the clique's
        attributes, as a set, that returns their marginal counts.
        """
        paths = tree_paths(self.tree)
        if (plain := self.plain) is not None:
            held = self.tree.cliques
            return lambda place, members: (
                self.total * sum_to(plain.tables[place], held[place], paths.axes(members))
            )
        tables = Tables(paths, self.beliefs, None)
        return lambda place, members: tables.inside(place, members).cpu().numpy()

    @cached_property
    def factors(self) -> tuple[Factor, ...]:
        """The tables that inference runs on: the potentials or, for a model without any (the
        uniform one), a table with a single cell.
        """
        return self.given or (Factor(self.domain.project(()), np.zeros(())),)

    @cached_property
    def oracle(self) -> MarginalOracle:
        like = self.factors[0].values
        cliques = [factor.domain.attributes for factor in self.factors]
        found = MarginalOracle(self.domain, cliques, device=like.device, dtype=like.dtype)
        if found.device.type == "cpu" and found.plan.largest > CACHE_CELLS:
            remedy = "leave out potentials that tie attributes together"
            check_room(found.pass_bytes, "inference over the model's cliques", remedy=remedy)
        return found

    @cached_property
    def sums(self) -> PlainSums:
        """Sums over the potentials, one attribute after the other on plain arrays, for the check by
        a second computation (`SecondOpinion`). It shares with inference only the elimination order,
        and any order gives the same sums.
        """
        tables = [(factor.domain.attributes, factor.numpy()) for factor in self.factors]
        sizes, order = dict(self.domain.sizes), self.tree.order
        return PlainSums(tables, sizes, order=order, room=self.memory_limit)

    @cached_property
    def second_opinion(self) -> SecondOpinion:
        first = self.factors[0]
        coarse = first.array is None and first.values.dtype != torch.float64
        return SecondOpinion(self.sums, {}, coarse=coarse)

    @cached_property
    def potentials(self) -> torch.Tensor:
        return self.oracle.layout.join([factor.values for factor in self.factors])

    @cached_property
    def clique_marginals(self) -> tuple[list[torch.Tensor], float]:
        """The counts over the cliques of ``factors``, and the log partition function over the whole
        domain, computed at the first use and checked by a second computation.
        """
        started = time.perf_counter()
        flat, log_partition = checked_marginals(
            self.oracle, self.potentials, self.total, started, self.sums
        )
        free = set(self.domain).difference(*self.cliques)
        log_free = fsum(log(self.domain.sizes[name]) for name in free)
        return self.oracle.layout.split(flat), log_partition + log_free

    def host(self, clique: Clique) -> int | None:
        """Return the number of the smallest of ``factors`` that contains the attributes of
        ``clique``, or None if there is none.
        """
        layout = self.oracle.layout
        places = layout.index.containing(clique)
        return min(places, key=lambda place: prod(layout.shapes[place]), default=None)

    def summed(self, place: int, clique: Clique) -> Array:
        table = self.clique_marginals[0][place]
        return as_array(tensor_sum_to(table, self.oracle.layout.cliques[place], clique))

    @cached_property
    def plain(self) -> PlainBeliefs | None:
        """The clique beliefs, computed without torch. They are None if no record is possible, and
        unless the model's potentials are float64 numbers in the processor's memory, its potentials
        and its tree have at most ``MOST_CELLS`` cells each, and the tree takes at most
        ``memory_limit`` bytes.
        """
        tables = [(factor.domain.attributes, factor.array) for factor in self.factors]
        known = [(clique, table) for clique, table in tables if table is not None]
        if len(known) < len(tables) or sum(table.size for _, table in known) > MOST_CELLS:
            return None
        if self.tree.cells > MOST_CELLS or self.tree.bytes() > self.memory_limit:
            return None
        return PlainBeliefs.of(self.tree, known)

    def plain_marginals(self, asked: Sequence[Clique]) -> dict[Clique, Array] | None:
        """Return the marginals over these cliques, in counts, from the beliefs ``plain``. Return
        None if ``plain`` is None, if a clique lies in no clique of the tree and is not a pair, or
        if pairs that lie in none would take too long.
        """
        if self.plain is None:
            return None
        found = {clique: self.plain.marginal(clique) for clique in asked}
        apart = [clique for clique, table in found.items() if table is None]
        if any(len(clique) != 2 for clique in apart):
            return None
        pairs = self.pairs(apart)
        if len(pairs) < len(apart):
            return None
        return {
            clique: pairs[clique] if table is None else np.asarray(self.total * table)
            for clique, table in found.items()
        }

    @np.errstate(over="ignore", invalid="ignore")  # `check_held` refuses such answers
    def plain_answers(self, queries: Sequence[FactoredQuery]) -> list[Array] | None:
        """Return the answers to queries, in counts; None if ``plain`` is None, a query's attributes
        share no clique of the tree, or the query as one matrix would have too many cells.
        """
        if self.plain is None:
            return None
        known = list[Array]()
        for query in queries:
            found = self.plain.answer(query, min(MOST_CELLS, self.memory_limit / CELL_BYTES))
            if found is None:
                return None
            known.append(np.multiply(self.total, found, out=found))
        return known

    def belief(self, place: int) -> Array:
        """Return the marginal counts over clique number ``place`` of the tree."""
        if self.plain is not None:
            return self.total * self.plain.tables[place]
        return as_array(self.beliefs[place])

    @cached_property
    def beliefs(self) -> list[torch.Tensor]:
        """The marginals of the junction tree's cliques, in counts, computed at the first use and
        checked by a second computation.
        """
        check_fits(self.tree, self.memory_limit)
        started = time.perf_counter()
        like = self.factors[0].values
        inference = MarginalOracle(
            self.domain, self.tree.cliques, device=like.device, dtype=like.dtype
        )
        flat = torch.zeros(inference.layout.cells, dtype=like.dtype, device=like.device)
        tables = inference.layout.split(flat)
        for factor in self.given:
            place = self.tree.holds(factor.domain.attributes)
            assert place is not None
            tables[place].add_(factor.expand(self.domain.project(self.tree.cliques[place])).values)
        found, _ = checked_marginals(inference, flat, self.total, started, self.sums)
        return inference.layout.split(found)

    @cached_property
    def conditionals(self) -> list[tuple[Clique, torch.Tensor]]:
        """The tables whose product is the expected count of every record: for each clique of the
        tree its probabilities given the separator to its parent; for the first clique its counts.
        """
        factors = []
        for clique, separator, belief in zip(
            self.tree.cliques, self.tree.separators, self.beliefs, strict=True
        ):
            summed = [i for i, name in enumerate(clique) if name not in separator]
            above = belief.sum(summed, keepdim=True) if separator else belief.new_tensor(self.total)
            factors.append(
                (clique, torch.where(above > 0, belief / above, torch.zeros_like(belief)))
            )
        factors[0] = self.tree.cliques[0], self.beliefs[0]
        return factors


def as_array(table: torch.Tensor) -> Array:
    """Return the table as an array of float64 on the processor."""
    return table.cpu().numpy().astype(np.float64)


def _next_block(tables: Iterator[tuple[Clique, torch.Tensor]]) -> dict[Clique, Array]:
    """Return the next tables of the iterator, some megabytes together; none at its end."""
    ready: dict[Clique, Array] = {}
    cells = 0
    for clique, table in tables:
        ready[clique] = as_array(table)
        cells += table.numel()
        if cells >= BLOCK_CELLS:
            break
    return ready
