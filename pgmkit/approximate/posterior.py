"""A factor graph's distribution given evidence, approximated: marginals, log Z and bounds on it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import fsum, inf
from typing import Literal, NoReturn

import numpy as np

from pgmkit.approximate.bounds import mean_field, reweighted
from pgmkit.approximate.propagation import propagate
from pgmkit.approximate.subgraphs import Graph, Table
from pgmkit.conditioning.evidence import Evidence, sliced
from pgmkit.conditioning.graph_tables import GraphTables
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, NumericalFailure
from pgmkit.graphs.clique_index import CliqueIndex
from pgmkit.inference.plain_sums import size_of
from pgmkit.inference.self_check import Contradiction
from pgmkit.linear.axes import sum_to
from pgmkit.runtime.arguments import Rng, check_seconds, check_whole, listed, number
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.memory import check_room
from pgmkit.runtime.precision import CLOSE
from pgmkit.runtime.sizes import CELL_BYTES, FEW_CELLS

REGION_CELLS = FEW_CELLS
"""The default for the largest number of cells of a subgraph's table; `python -m
benchmarks.approximate` compares it with others.
"""


@dataclass(frozen=True, eq=False, repr=False)
class ApproximatePosterior:
    """An answer of ``FactorGraph.posterior(..., inference="region")``; marginals are probabilities.

    Marginals and ``log_partition`` are those of tree-structured expectation propagation over
    subgraphs whose tables have at most ``region_cells`` cells, or as many as the graph's largest
    table; they are approximate, and nothing bounds the error of a marginal. The bounds on log Z are
    valid however early the search ended, up to rounding. If one subgraph holds the whole graph, as
    it does for any tree, everything is exact and the bounds are equal.

    Attributes:
        log_partition: the estimate of log Z (of a Bayesian network, of the log-probability of the
            evidence), in nats, within the bounds.
        log_partition_bounds: a lower bound, by a structured mean field (minus infinity if zeros
            left no distribution), and an upper bound, tree-reweighted.
        converged: whether the subgraphs' marginals agree within the requested tolerance.
        residual: the largest difference between two subgraphs' marginals; after the second method,
            the last change of the subgraphs' mean marginals if that is larger.
        iterations: rounds over the subgraphs, those of a second, convergent method included.
        regions: the sets of unobserved attributes whose joint marginal was computed.

    >>> from pgmkit import Domain, FactorGraph
    >>> agree = [[4.0, 1.0], [1.0, 4.0]]
    >>> ring = [(("a", "b"), agree), (("b", "c"), agree), (("c", "a"), agree)]
    >>> graph = FactorGraph(Domain({"a": 2, "b": 2, "c": 2}), ring)
    >>> posterior = graph.posterior({"a": 0}, inference="region")
    >>> posterior.approximate, posterior.converged, posterior.marginal(["b"]).round(3)
    (True, True, array([0.895, 0.105]))
    """

    domain: Domain
    evidence: Evidence
    log_partition: float
    log_partition_bounds: tuple[float, float]
    converged: bool
    residual: float
    iterations: int
    tables: Mapping[Clique, Array]
    """The joint probabilities of each region's attributes."""
    approximate: Literal[True] = field(default=True, init=False)

    def __repr__(self) -> str:
        lower, upper = self.log_partition_bounds
        return (
            f"ApproximatePosterior(approximate=True, log_partition={self.log_partition:.6g}, "
            f"log_partition_bounds=({lower:.6g}, {upper:.6g}), converged={self.converged}, "
            f"residual={self.residual:.3g}, iterations={self.iterations}, "
            f"{len(self.tables)} regions)"
        )

    @property
    def regions(self) -> tuple[Clique, ...]:
        """The sets of unobserved attributes whose joint marginal was computed."""
        return tuple(self.tables)

    def marginal(self, attrs: Iterable[str]) -> Array:
        """Return the approximate probabilities over attributes of one region, axes in the given
        order; an observed attribute has probability 1 at its code.

        Raises InvalidInput for unknown or duplicate attributes and for sets within no region, and
        ModelTooLarge for a table without room in memory.
        """
        clique = self.domain.clique(attrs, "attrs")
        return self.marginals([clique])[clique]

    def marginals(self, cliques: Iterable[Iterable[str]] | None = None) -> dict[Clique, Array]:
        """Return a mapping from each clique to its marginal, as `marginal` returns it; if
        ``cliques`` is None, the marginals of all single attributes.
        """
        if cliques is None:
            cliques = [(name,) for name in self.domain]
        asked = [self.domain.clique(clique) for clique in listed(cliques, "cliques", "cliques")]
        return {clique: self._marginal(clique) for clique in asked}

    def _marginal(self, clique: Clique) -> Array:
        codes = self.evidence.codes
        free = tuple(name for name in clique if name not in codes)
        found = np.ones(())
        if free:
            holding = self._index.containing(free)
            if not holding:
                raise InvalidInput(
                    f"the attributes {free!r} lie within no region, so their joint marginal is "
                    "unknown; ask for attributes that share a table, raise "
                    'region_cells, or use inference="exact"'
                )
            region = min((self.regions[place] for place in holding), key=self.domain.size)
            table = sum_to(self.tables[region], region, free)
            found = table / table.sum()
        needed, remedy = CELL_BYTES * self.domain.size(clique), "ask for fewer attributes at once"
        check_room(needed, f"the marginal over {clique!r:.200}", remedy=remedy)
        whole = np.zeros(self.domain.shape(clique))
        whole[tuple(codes.get(name, slice(None)) for name in clique)] = found
        return whole

    @cached_property
    def _index(self) -> CliqueIndex:
        return CliqueIndex(self.regions)

    def map(self) -> NoReturn:
        """Raise InvalidInput: approximate inference has no most probable record."""
        self._refuse("most probable record")

    def sample(self, n: int, *, rng: Rng = None) -> NoReturn:
        """Raise InvalidInput: approximate inference draws no records."""
        self._refuse("draw of records")

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidInput(
            f"approximate inference has no {what}, only marginals of regions and log_partition; "
            'use inference="exact"'
        )


def approximate(
    graph: GraphTables,
    evidence: Evidence,
    *,
    region_cells: int = REGION_CELLS,
    tolerance: float = 1e-6,
    max_seconds: float | None = None,
) -> ApproximatePosterior:
    """Return the approximate posterior given the evidence. Raises InvalidInput for wrong options,
    and for evidence that the subgraphs or bounds show to have probability zero; and Contradiction,
    a NumericalFailure, if the lower bound on log Z is above the upper one by more than rounding.

    Args:
        graph, evidence: the tables, and the observed codes and likelihoods.
        region_cells: the largest number of cells of a subgraph's table; a table of the graph may
            have more.
        tolerance: the difference between the subgraphs' marginals at which the search ends.
        max_seconds: the time after which propagation and bounds end, roughly; None for no limit.
    """
    check_whole(region_cells, "region_cells", 1)
    if not 0 < number(tolerance) < inf:
        raise InvalidInput(f"tolerance must be a finite number above 0, got {tolerance!r:.80}")
    check_seconds(max_seconds)
    began, seconds = time.perf_counter(), inf if max_seconds is None else max_seconds
    # Propagation takes up to half of the time, the mean field up to half of the rest, and the upper
    # bound what is left.
    first, second, last = began + seconds / 2, began + 3 * seconds / 4, began + seconds
    domain, (constant, tables) = graph.domain, _merged(graph, evidence)
    if constant == -inf:
        raise InvalidInput(evidence.impossible(graph.states))
    if not tables:
        sure = constant, constant
        return ApproximatePosterior(domain, evidence, constant, sure, True, 0.0, 0, {})
    free = domain.project([name for name in domain if name not in evidence.codes])
    divided = Graph(free, tables, max(region_cells, *(table.size for _, table in tables)))
    try:
        search = propagate(divided, tolerance, first)
        marginals, log_partition = search.found()
        known = ApproximatePosterior(
            domain,
            evidence,
            constant + log_partition,
            (-inf, inf),
            search.residual <= tolerance,
            search.residual,
            search.iterations,
            marginals,
        )
        lower = mean_field(divided, {name: known.marginal([name]) for name in free}, second)
        upper = reweighted(divided, lower, tolerance, last)
    except NumericalFailure:
        raise InvalidInput(evidence.impossible(graph.states)) from None
    # If both bounds are exact, rounding may leave the lower one above the upper one.
    if lower > upper + CLOSE * (1 + sum(size_of(table) for _, table in tables)):
        raise Contradiction(
            f"inference contradicts itself: the lower bound {lower!r} on log Z is above the upper "
            f"bound {upper!r}. Please report this"
        )
    low, high = constant + min(lower, upper), constant + upper
    estimate = min(max(known.log_partition, low), high)
    return replace(known, log_partition=estimate, log_partition_bounds=(low, high))


def _merged(graph: GraphTables, evidence: Evidence) -> tuple[float, list[Table]]:
    """Return a constant and, for each nonempty set of attributes that tables are over, one log
    table with maximum 0. Their sum is the logarithm of the product of the graph's tables given the
    evidence. If the tables over one set alone leave no record possible, the constant is minus
    infinity and no tables are returned.
    """
    tables = dict[Clique, Array]()
    for clique, table in sliced(graph.domain, graph.tables, evidence):
        ordered = graph.domain.ordered(clique)
        table = table.transpose([clique.index(name) for name in ordered])
        tables[ordered] = tables[ordered] + table if ordered in tables else table
    peaks = {clique: float(table.max()) for clique, table in tables.items()}
    constant = fsum(peaks.values())
    if constant == -inf:
        return constant, []
    return constant, [(c, table - peaks[c]) for c, table in tables.items() if c]
