"""Expectation propagation with distributions of small width: marginals and an estimate of log Z.

The tables of a few subgraphs cover the graph; those in all of them are their base. A site is the
base, the tables that only this subgraph has, and messages in place of the others' tables, which are
tables over the base's bags. A step computes a site's marginals of the bags, and sends the
distribution of the base that has them (tree-structured expectation propagation: Minka and Qi, 2004,
with wider trees). With spanning trees it is belief propagation; with one site it is exact. If the
steps do not converge, a double loop follows, which always does (Heskes and Zoeter, 2002; Opper and
Winther, 2005): its inner problem minimises a convex function (``pgmkit.approximate.split``) with
the base fixed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

import numpy as np

from pgmkit.approximate.split import PASSES, Split, inferred
from pgmkit.approximate.subgraphs import Bags, cover
from pgmkit.domain import Clique, Domain
from pgmkit.graphs.bit_sets import each_bit
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ROUNDS, WINDOW
from pgmkit.runtime.precision import TINY

Table = tuple[Clique, Array]
"""The attributes of a table, and its logarithms."""

_SHORTEST = 1 / 16


@dataclass(frozen=True)
class Propagated:
    """The marginals of the sites' tables, the estimate of log Z, and how far the sites agree."""

    marginals: dict[Clique, Array]
    log_partition: float
    residual: float
    """The largest difference between the sites' marginals of the base."""
    iterations: int


def propagate(
    domain: Domain,
    tables: Sequence[Table],
    order: Sequence[int],
    most: int,
    *,
    tolerance: float,
    deadline: float,
) -> Propagated:
    """Return marginals by sites whose bags have at most ``most`` cells; every attribute is in a
    bag.

    The search ends when all sites agree within ``tolerance``, or at ``deadline``
    (``time.perf_counter``) after at least one round. Raises NumericalFailure if a site leaves no
    record possible.
    """
    search = MessageSearch(_Sites(domain, tables, order, most), deadline, tolerance)
    search.settle()
    if search.residual > tolerance and time.perf_counter() < deadline:
        search.double_loop()
    return search.found()


class _Sites:
    """The base's bags, each with the attributes summed out in it as its last axes, and the tables
    and oracles of the sites.
    """

    def __init__(
        self, domain: Domain, tables: Sequence[Table], order: Sequence[int], most: int
    ) -> None:
        self.domain = domain
        places, sizes, names = domain.places, domain.shape(), domain.attributes
        scopes = [sum(1 << places[name] for name in clique) for clique, _ in tables]
        trees = cover(order, sizes, scopes, most)
        base = set.intersection(*map(set, trees))
        bags = Bags(order, sizes, most)
        for place in base:
            bags.add(scopes[place])
        parts = bags.cliques()
        self.bags = [tuple(names[v] for v in (*each_bit(rest), *own)) for rest, own in parts]
        counts = [domain.size(clique) for clique in self.bags]
        self.starts = [0, *accumulate(counts)]
        summed = [domain.size([names[v] for v in own]) for _, own in parts]
        widths = np.repeat(summed, np.floor_divide(counts, summed))
        self.runs = np.concatenate([[0], np.cumsum(widths)])
        hosts = {v: place for place, (_, own) in enumerate(parts) for v in own}
        self.base = np.zeros(self.starts[-1])
        for place in sorted(base):
            host = hosts[bags.first(scopes[place])]
            cells = slice(self.starts[host], self.starts[host + 1])
            clique, table = tables[place]
            self.base[cells] += table.reshape(-1)[domain.cell_map(self.bags[host], clique)]
        self.impossible = np.isneginf(self.base)
        self.base[self.impossible] = 0.0
        owners = {place: k for k, tree in reversed([*enumerate(trees)]) for place in tree}
        self.own = [
            [tables[place] for place in tree if owners[place] == k and place not in base]
            for k, tree in enumerate(trees)
        ]
        self.logs = [
            np.concatenate([np.zeros(0), *(t.ravel() for _, t in own)]) for own in self.own
        ]
        self.oracles = [
            MarginalOracle(domain, [*self.bags, *(clique for clique, _ in own)]) for own in self.own
        ]

    @property
    def cells(self) -> int:
        """The cells of all bags."""
        return self.starts[-1]

    def projected(self, marginals: Array) -> Array:
        """Return the logarithms of the bags' conditional distributions, for the distribution of the
        base that has these marginals.
        """
        above = np.maximum(marginals[: self.cells], TINY)
        sums = np.add.reduceat(above, self.runs[:-1])
        logs: Array = np.log(above / np.repeat(sums, np.diff(self.runs)))
        logs[self.impossible] = 0.0
        return logs

    def pass_through(self, site: int, potentials: Array) -> tuple[Array, float]:
        """Return the marginals of a site's bags and own tables, and its log Z."""
        masked = np.where(self.impossible, -inf, potentials)
        return inferred(self.oracles[site], np.concatenate([masked, self.logs[site]]))


class MessageSearch:
    """The base's distribution (``prior``) and the part of it that each site contributes."""

    def __init__(self, sites: _Sites, deadline: float, tolerance: float) -> None:
        self.sites, self.deadline, self.tolerance = sites, deadline, tolerance
        self.prior = sites.base.copy()
        self.messages = [np.zeros(sites.cells) for _ in sites.oracles]
        self.marginals = [np.zeros(0) for _ in sites.oracles]
        self.log_partitions = [0.0 for _ in sites.oracles]
        self.residual, self.iterations = inf, 0

    def settle(self) -> None:
        """Run rounds over the sites, with shorter steps if the sites do not come closer."""
        step, history = 1.0, list[float]()
        for _ in range(MOST_ROUNDS):
            self.sweep(step)
            history.append(self.residual)
            if self.residual <= self.tolerance or time.perf_counter() >= self.deadline:
                return
            if len(history) > WINDOW and self.residual > history[-1 - WINDOW] / 2:
                step, history = max(step / 2, _SHORTEST), []

    def sweep(self, step: float) -> None:
        sites = self.sites
        for site, message in enumerate(self.messages):
            marginals, log_partition = sites.pass_through(site, self.prior - message)
            self.marginals[site], self.log_partitions[site] = marginals, log_partition
            if len(self.messages) > 1:
                change = step * (sites.projected(marginals) - self.prior)
                message += change
                self.prior += change
        self.residual = float(np.ptp(self._bags, axis=0).max())
        self.iterations += 1

    def double_loop(self) -> None:
        """Run rounds whose inner problems are convex; they need no step length."""
        sites, count = self.sites, len(self.messages)
        ends = sites.cells + np.cumsum([0, *map(len, sites.logs)])
        bags = np.arange(sites.cells)
        cells = [np.concatenate([bags, np.arange(*ends[k : k + 2])]) for k in range(count)]
        split = Split(sites.oracles, cells, int(ends[-1]))
        for _ in range(MOST_ROUNDS):
            base = np.where(sites.impossible, -inf, sites.base + (count - 1) * self.prior)
            start = [
                np.concatenate([self.prior - message, np.zeros(len(logs))])
                for message, logs in zip(self.messages, sites.logs, strict=True)
            ]
            state = split.minimise(
                np.concatenate([base, *sites.logs]),
                1.0,
                start=start,
                tolerance=self.tolerance / 2,
                iterations=PASSES,
                deadline=self.deadline,
            )
            self.iterations += 1
            before, self.marginals = np.mean(self._bags, axis=0), state.parts
            self.log_partitions = state.log_partitions
            for site, table in enumerate(state.tables):
                held = np.where(sites.impossible, 0.0, table[: sites.cells])
                self.messages[site] = self.prior - held
            middle = np.mean(self._bags, axis=0)
            self.residual = max(state.residual, float(np.abs(middle - before).max()))
            if self.residual <= self.tolerance or time.perf_counter() >= self.deadline:
                return
            change = sites.projected(middle) - self.prior
            self.prior = self.prior + change
            self.messages = [message + change for message in self.messages]

    @property
    def _bags(self) -> Array:
        """The sites' marginals of the bags, a row for each site."""
        return np.array([marginals[: self.sites.cells] for marginals in self.marginals])

    def found(self) -> Propagated:
        """Return the marginals (for the bags the mean of the sites) and the free energy's estimate
        of log Z: sum_k log Z_k - (K - 1) log Z of the base's distribution, for K sites.
        """
        sites, bags = self.sites, np.mean(self._bags, axis=0)
        # To second order in the sites' disagreement, log Z of the base follows from Gibbs'
        # inequality.
        base = float(bags @ (self.prior - sites.projected(bags)))
        found = dict[Clique, Array]()
        spans = zip(sites.starts, sites.starts[1:], strict=False)
        for clique, (start, end) in zip(sites.bags, spans, strict=True):
            found[clique] = bags[start:end].reshape(sites.domain.shape(clique))
        for own, marginals in zip(sites.own, self.marginals, strict=True):
            start = sites.cells
            for clique, table in own:
                found[clique] = marginals[start : start + table.size].reshape(table.shape)
                start += table.size
        log_partition = sum(self.log_partitions) - (len(self.messages) - 1) * base
        return Propagated(found, log_partition, self.residual, self.iterations)
