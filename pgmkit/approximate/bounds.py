"""Bounds on log Z: a tree-reweighted upper bound and a structured mean-field lower bound."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import reduce
from math import inf

import numpy as np
from numpy.typing import NDArray

from pgmkit.approximate.split import Split, inferred
from pgmkit.approximate.subgraphs import Graph, Table
from pgmkit.conditioning.evidence import expected_log
from pgmkit.domain import Domain
from pgmkit.errors import NumericalFailure
from pgmkit.graphs.bit_sets import each_bit
from pgmkit.inference.layout import Layout
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ROUNDS
from pgmkit.runtime.precision import CLOSE


def reweighted(graph: Graph, lower: float, tolerance: float, deadline: float) -> float:
    """Return an upper bound on log Z: the mean of log Z_k over subgraphs k that cover the graph and
    whose potentials average to the graph's (Wainwright, Jaakkola and Willsky, 2005), minimised over
    these potentials.

    Every iterate gives a valid bound. The search ends when the subgraphs' marginals agree within
    ``tolerance``, at the ``deadline`` (``time.perf_counter``), after MOST_ROUNDS iterations, or
    when the bound gains little compared with its distance from ``lower``, a lower bound. Raises
    NumericalFailure if a subgraph leaves no record possible.
    """
    # Each single attribute gets a table of zeros, so that subgraphs can exchange potentials of the
    # attribute.
    domain = graph.domain
    held = [*graph.tables, *(((name,), np.zeros(size)) for name, size in domain.sizes.items())]
    scopes = [*graph.scopes, *(1 << v for v in range(len(domain)))]
    trees = graph.cover(scopes)
    layout = Layout(domain, [clique for clique, _ in held])
    split = Split(
        [MarginalOracle(domain, [layout.cliques[place] for place in tree]) for tree in trees],
        [np.concatenate([np.r_[layout.slices[place]] for place in tree]) for tree in trees],
        layout.cells,
    )
    total = np.concatenate([table.reshape(-1) for _, table in held])
    return split.minimise(
        total,
        1 / len(trees),
        floor=lower,
        tolerance=tolerance,
        iterations=MOST_ROUNDS,
        deadline=deadline,
    ).value


def mean_field(graph: Graph, singles: Mapping[str, Array], deadline: float) -> float:
    """Return a lower bound on log Z: E_q[log product of the tables] + H(q), where the distribution
    q is a product over blocks of attributes of small width (Saul and Jordan, 1996).

    The distribution of one block after another is replaced by the best one given those of the
    others, in rounds that end when the bound has converged, after ``MOST_ROUNDS``, or at
    ``deadline``, a time of ``time.perf_counter``. The search starts from ``singles``, distributions
    of the single attributes; if it finds no product of blocks whose records are all possible, it
    starts once more from their modes. If it finds none then either, the bound is minus infinity.
    """
    field = _Field(graph.domain, graph.tables, graph.blocks())
    found = field.bound(singles, deadline)
    if found == -inf:
        modes = {name: np.eye(len(p))[int(p.argmax())] for name, p in singles.items()}
        found = field.bound(modes, deadline)
    return found


class _Field:
    """The mean field: the blocks of attributes, each with an oracle, and the logarithms of all
    tables, ``logs``, in one vector.

    The marginals of all blocks are in another vector, whose last entry is 1. ``places`` has, for
    each block, an index into that vector for each entry of ``logs``: the cell of the block's
    marginal with the same codes, or -1 if the block has no attribute of the table.
    """

    def __init__(self, domain: Domain, tables: Sequence[Table], parts: Sequence[int]) -> None:
        names = domain.attributes
        self.logs = np.concatenate([table.reshape(-1) for _, table in tables])
        self.oracles, places = list[MarginalOracle](), list[NDArray[np.int64]]()
        start, starts = 0, [0]
        for part in parts:
            block = {names[v] for v in each_bit(part)}
            held = [tuple(name for name in clique if name in block) for clique, _ in tables]
            cliques = dict.fromkeys([*filter(None, held), *((names[v],) for v in each_bit(part))])
            oracle = MarginalOracle(domain, list(cliques))
            slices = dict(zip(cliques, oracle.layout.slices, strict=True))
            cells = [
                start + slices[clique].start + domain.cell_map(whole, clique)
                if clique
                else np.full(domain.size(whole), -1)
                for clique, (whole, _) in zip(held, tables, strict=True)
            ]
            places.append(np.concatenate(cells))
            self.oracles.append(oracle)
            start += oracle.layout.cells
            starts.append(start)
        self.places, self.starts = places, starts

    def bound(self, singles: Mapping[str, Array], deadline: float) -> float:
        """Return the lower bound on log Z after one or more rounds over all blocks, which end when
        the bound has converged, after ``MOST_ROUNDS``, or at the deadline; minus infinity if the
        other blocks leave a block no possible record. ``singles`` are the distributions of the
        single attributes to start from.
        """
        marginals = self._product(singles)
        reached = -inf
        for _ in range(MOST_ROUNDS):
            entropy = 0.0
            for block, oracle in enumerate(self.oracles):
                potentials = self._expected(marginals, block)
                try:
                    found, log_partition = inferred(oracle, potentials)
                except NumericalFailure:
                    return -inf
                marginals[self.starts[block] : self.starts[block + 1]] = found
                entropy += log_partition - expected_log(found, potentials)
            value = entropy + expected_log(self._weights(marginals), self.logs)
            if value <= reached + CLOSE or time.perf_counter() >= deadline:
                return max(reached, value)
            reached = value
        return reached

    def _product(self, singles: Mapping[str, Array]) -> Array:
        """Return the vector of the blocks' marginals if all attributes are independent with these
        distributions.
        """
        cliques = [clique for oracle in self.oracles for clique in oracle.layout.cliques]
        held = [[singles[name] for name in clique] for clique in cliques]
        tables = [reduce(np.multiply.outer, factors).reshape(-1) for factors in held]
        return np.concatenate([*tables, np.ones(1)])

    def _weights(self, marginals: Array, without: int = -1) -> Array:
        """Return a number for each entry of ``logs``: the product of the marginal probabilities
        that all blocks, or all except the block ``without``, give to its codes.
        """
        found = np.ones(len(self.logs))
        for block, places in enumerate(self.places):
            if block != without:
                found *= marginals[places]
        return found

    def _expected(self, marginals: Array, block: int) -> Array:
        """Return the potentials of one block: the expected logarithms of the tables under the other
        blocks, for each cell of the block's marginals.
        """
        held = self.places[block] >= 0
        weights, logs = self._weights(marginals, block)[held], self.logs[held]
        terms = weights * np.where(weights > 0, logs, 0.0)
        start, end = self.starts[block : block + 2]
        return np.bincount(self.places[block][held] - start, terms, end - start).astype(np.float64)
