"""Bounds on log Z: a tree-reweighted upper bound and a structured mean-field lower bound."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from pgmkit.approximate.propagation import Table
from pgmkit.approximate.split import Split, inferred
from pgmkit.approximate.subgraphs import blocks, cover
from pgmkit.domain import Domain
from pgmkit.errors import NumericalFailure
from pgmkit.graphs.bit_sets import each_bit
from pgmkit.inference.layout import Layout
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ROUNDS
from pgmkit.runtime.precision import CLOSE


def reweighted(
    domain: Domain,
    tables: Sequence[Table],
    order: Sequence[int],
    most: int,
    *,
    lower: float,
    tolerance: float,
    deadline: float,
) -> float:
    """Return an upper bound on log Z: the mean of log Z_k over subgraphs that cover the graph and
    whose potentials average to the graph's (Wainwright, Jaakkola and Willsky, 2005), minimised over
    these potentials.

    Any iterate is a valid bound. The search ends when the subgraphs' marginals agree within
    ``tolerance``, at ``deadline``, or when the gain is small relative to the gap to ``lower``, a
    lower bound. ``order`` is an elimination order, ``most`` the most cells of a subgraph's bag.
    Raises NumericalFailure if no record is possible.
    """
    # A table over each single attribute lets subgraphs exchange potentials of the attribute.
    held = [*tables, *(((name,), np.zeros(size)) for name, size in domain.sizes.items())]
    scopes = [sum(1 << domain.places[name] for name in clique) for clique, _ in held]
    trees = cover(order, domain.shape(), scopes, most)
    layout = Layout(domain, [clique for clique, _ in held])
    split = Split(
        [MarginalOracle(domain, [layout.cliques[place] for place in tree]) for tree in trees],
        [np.concatenate([np.r_[layout.slices[place]] for place in tree]) for tree in trees],
        layout.cells,
    )
    total = np.concatenate([table.reshape(-1) for _, table in held])
    found = split.minimise(
        total,
        1 / len(trees),
        floor=lower,
        tolerance=tolerance,
        iterations=MOST_ROUNDS,
        deadline=deadline,
    )
    return found.value


def mean_field(
    domain: Domain,
    tables: Sequence[Table],
    order: Sequence[int],
    most: int,
    *,
    singles: Mapping[str, Array],
    deadline: float,
) -> float:
    """Return a lower bound on log Z: E_q[log product of the tables] + H(q) for a distribution q
    that is a product over blocks of attributes, each of small width (Saul and Jordan, 1996).

    Each block in turn becomes the best given the others, starting from ``singles``, the
    distributions of single attributes, or from their modes if zeros rule out that start. Minus
    infinity if no product of blocks was found whose records are all possible.
    """
    scopes = [sum(1 << domain.places[name] for name in clique) for clique, _ in tables]
    parts = blocks(order, domain.shape(), scopes, most)
    field = _Field(domain, tables, parts)
    found = field.bound(singles, deadline)
    if found == -inf:
        modes = {name: np.eye(len(law))[int(law.argmax())] for name, law in singles.items()}
        found = field.bound(modes, deadline)
    return found


class _Field:
    """Blocks with their oracles, and the place of each table's cells in the marginals of every
    block.

    The marginals of all blocks lie in one vector, whose last entry is a 1 for blocks that hold no
    attribute of a table.
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
            places.append(
                np.concatenate(
                    [
                        start + slices[clique].start + domain.cell_map(whole, clique)
                        if clique
                        else np.full(domain.size(whole), -1)
                        for clique, (whole, _) in zip(held, tables, strict=True)
                    ]
                )
            )
            self.oracles.append(oracle)
            start += oracle.layout.cells
            starts.append(start)
        self.places, self.starts = places, starts

    def bound(self, singles: Mapping[str, Array], deadline: float) -> float:
        """Return the bound after at least one round over the blocks, when it has converged or time
        is over.
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
                entropy += log_partition - _dot(found, potentials)
            value = entropy + _dot(self._weights(marginals), self.logs)
            if value <= reached + CLOSE or time.perf_counter() >= deadline:
                return max(reached, value)
            reached = value
        return reached

    def _product(self, singles: Mapping[str, Array]) -> Array:
        """Return the marginals of the blocks if all attributes are independent."""
        tables = [np.ones(1)]
        for oracle in self.oracles:
            for clique in oracle.layout.cliques:
                table = np.ones(1)
                for name in clique:
                    table = np.multiply.outer(table, singles[name]).reshape(-1)
                tables.append(table)
        return np.concatenate([*tables[1:], tables[0]])

    def _weights(self, marginals: Array, without: int = -1) -> Array:
        """Return the probability of each table's cell under all blocks, or all but one."""
        found = np.ones(len(self.logs))
        for block, places in enumerate(self.places):
            if block != without:
                found *= marginals[places]
        return found

    def _expected(self, marginals: Array, block: int) -> Array:
        """Return the expectation of the tables' logarithms given the values of one block's
        attributes.
        """
        held = self.places[block] >= 0
        weights, logs = self._weights(marginals, block)[held], self.logs[held]
        terms = np.where(weights > 0, weights * np.where(weights > 0, logs, 0.0), 0.0)
        start, end = self.starts[block : block + 2]
        return np.bincount(self.places[block][held] - start, terms, end - start).astype(np.float64)


def _dot(weights: Array, logs: Array) -> float:
    """Return the sum of weights * logs, where a weight of zero counts as 0 whatever its
    logarithm.
    """
    present = weights > 0
    return float(weights[present] @ logs[present])
