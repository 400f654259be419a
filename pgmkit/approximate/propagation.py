"""Expectation propagation with distributions of small width: marginals and an estimate of log Z.

The tables are covered by a few subgraphs of small width. Those tables that are in all subgraphs
form the *base*, whose bags are the cliques of an elimination order. Each subgraph is a *site*: the
distribution of the base, of the tables that are assigned to this site, and of messages, tables over
the base's bags that stand for the tables of the other sites. A step computes a site's marginals
over the bags and replaces the base's distribution by the one that has these marginals
(tree-structured expectation propagation: Minka and Qi, 2004, here with wider trees).

With spanning trees this is belief propagation; with one site it is exact. If the steps do not
converge, a double loop follows, which always does (Heskes and Zoeter, 2002; Opper and Winther,
2005): its inner problem minimises a convex function (``pgmkit.approximate.split``) with the base
fixed.
"""

from __future__ import annotations

import time
from itertools import accumulate
from math import inf

import numpy as np

from pgmkit.approximate.split import PASSES, Split, inferred
from pgmkit.approximate.subgraphs import Bags, Graph
from pgmkit.domain import Clique
from pgmkit.graphs.bit_sets import each_bit
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import MOST_ROUNDS, WINDOW
from pgmkit.runtime.precision import TINY


def propagate(graph: Graph, tolerance: float, deadline: float) -> MessageSearch:
    """Search for messages with which the sites (subgraphs) have the same marginals over the base's
    bags (its cliques; see the module's docstring), and return the search when it has ended. Bags
    have at most ``graph.most`` cells, and every attribute is in one.

    The search ends when the sites' marginals, which are probabilities, differ by at most
    ``tolerance``; after ``MOST_ROUNDS`` rounds of steps and as many of the double loop; or, after
    one round, at ``deadline``, a time of ``time.perf_counter``. Raises NumericalFailure if a site
    leaves no record possible.
    """
    search = MessageSearch(Sites(graph), deadline, tolerance)
    search.settle()
    if search.residual > tolerance and time.perf_counter() < deadline:
        search.double_loop()
    return search


class Sites:
    """The sites: the bags of the base, the tables that are assigned to each site, and its oracle
    over the bags and these tables. The last axes of a bag are the attributes summed out in it.
    """

    def __init__(self, graph: Graph) -> None:
        self.domain = domain = graph.domain
        tables, scopes, names = graph.tables, graph.scopes, domain.attributes
        trees = graph.cover(scopes)
        base = set.intersection(*map(set, trees))
        # The axes of a bag of the base are first the attributes shared with later bags, then the
        # attributes summed out, so that each conditional distribution of the latter given the
        # former is a run of neighbouring cells.
        bags = Bags(graph)
        for place in base:
            bags.add(scopes[place])
        parts = bags.cliques()
        self.bags = [tuple(names[v] for v in (*each_bit(rest), *own)) for rest, own in parts]
        counts = [domain.size(clique) for clique in self.bags]
        self.starts = [0, *accumulate(counts)]
        self.cells = self.starts[-1]
        """The number of cells of all bags together."""
        summed = [domain.size([names[v] for v in own]) for _, own in parts]
        widths = np.repeat(summed, np.floor_divide(counts, summed))
        self.runs = np.concatenate([[0], np.cumsum(widths)])
        """The first cell of each run of neighbouring cells, and the number of all cells."""
        hosts = {v: place for place, (_, own) in enumerate(parts) for v in own}
        # Every table of the base is added to the first bag, in the elimination order, that sums out
        # one of its attributes.
        self.base = np.zeros(self.cells)
        for place in sorted(base):
            host = hosts[bags.first(scopes[place])]
            cells = slice(self.starts[host], self.starts[host + 1])
            clique, table = tables[place]
            self.base[cells] += table.reshape(-1)[domain.cell_map(self.bags[host], clique)]
        self.impossible = np.isneginf(self.base)
        self.base[self.impossible] = 0.0
        # Each table that is not in the base belongs to the first subgraph that contains it.
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

    def projected(self, marginals: Array) -> Array:
        """Return the potentials of the base's distribution whose bags (its cliques) have these
        marginals: the logarithms of the bags' conditional distributions, and 0 in the cells that
        are impossible, which ``pass_through`` excludes. After those of the bags, ``marginals`` may
        have those of a site's own tables, which are not used.
        """
        above = np.maximum(marginals[: self.cells], TINY)
        sums = np.add.reduceat(above, self.runs[:-1])
        logs: Array = np.log(above / np.repeat(sums, np.diff(self.runs)))
        logs[self.impossible] = 0.0
        return logs

    def pass_through(self, site: int, potentials: Array) -> tuple[Array, float]:
        """Return the marginals of the base's bags (its cliques) and of a site's own tables, and the
        site's log Z, given potentials of the bags.
        """
        masked = np.where(self.impossible, -inf, potentials)
        return inferred(self.oracles[site], np.concatenate([masked, self.logs[site]]))


class MessageSearch:
    """A search for messages with which the sites (subgraphs) have the same marginals (see the
    module's docstring). ``prior`` holds the present potentials of the base's distribution,
    ``messages`` the part of them that each site contributes. ``residual`` is the largest difference
    between the sites' marginals over the bags; during a double loop it is at least the last change
    of their mean.
    """

    def __init__(self, sites: Sites, deadline: float, tolerance: float) -> None:
        self.sites, self.deadline, self.tolerance = sites, deadline, tolerance
        self.prior = sites.base.copy()
        self.messages = [np.zeros(sites.cells) for _ in sites.oracles]
        self.marginals = [np.zeros(0) for _ in sites.oracles]
        self.log_partitions = [0.0 for _ in sites.oracles]
        self.residual, self.iterations = inf, 0

    def settle(self) -> None:
        """Run rounds over the sites (subgraphs) until their marginals agree within the tolerance,
        for at most MOST_ROUNDS, or until the deadline. The steps are halved whenever WINDOW rounds
        have not halved the residual.
        """
        step, history = 1.0, list[float]()
        for _ in range(MOST_ROUNDS):
            self.sweep(step)
            history.append(self.residual)
            if self.residual <= self.tolerance or time.perf_counter() >= self.deadline:
                return
            if len(history) > WINDOW and self.residual > history[-1 - WINDOW] / 2:
                step, history = step / 2, []

    def sweep(self, step: float) -> None:
        """Infer every site (subgraph) once, and change its message, and so the base's distribution,
        by ``step`` times the change after which the base has the site's marginals.
        """
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
        """Run rounds that each solve a convex problem with the base's distribution fixed, and then
        give the base the mean of the sites' (subgraphs') marginals. They converge without a choice
        of step length, and end when the marginals agree and their mean no longer changes, after
        MOST_ROUNDS, or at the deadline.
        """
        sites, count = self.sites, len(self.messages)
        ends = sites.cells + np.cumsum([0, *map(len, sites.logs)])
        bags = np.arange(sites.cells)
        cells = [np.concatenate([bags, np.arange(*ends[k : k + 2])]) for k in range(count)]
        split = Split(sites.oracles, cells, int(ends[-1]))
        for _ in range(MOST_ROUNDS):
            # The inner problem fixes the potentials ``prior`` of the base. The potentials of the K
            # sites sum to the tables' logarithms plus K - 1 times ``prior``, and at the minimum the
            # sites' marginals agree.
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
            # Outer step: `prior`, the base's potentials, becomes that of the distribution in which
            # each bag has the mean of the sites' marginals.
            middle = np.mean(self._bags, axis=0)
            apart = float(np.ptp(self._bags, axis=0).max())
            self.residual = max(apart, float(np.abs(middle - before).max()))
            if self.residual <= self.tolerance or time.perf_counter() >= self.deadline:
                return
            change = sites.projected(middle) - self.prior
            self.prior = self.prior + change
            self.messages = [message + change for message in self.messages]

    @property
    def _bags(self) -> Array:
        """The sites' marginals over the bags, with a row for each site."""
        return np.array([marginals[: self.sites.cells] for marginals in self.marginals])

    def found(self) -> tuple[dict[Clique, Array], float]:
        """Return the marginal of every bag (the mean over the sites) and of every table outside the
        base, as probabilities, and the estimate of log Z by the free energy. For K sites that is
        the sum of the sites' log Z minus K - 1 times log Z of the base's distribution.
        """
        sites, bags = self.sites, np.mean(self._bags, axis=0)
        # By Gibbs' inequality this product is log Z of the base's distribution, up to second-order
        # terms in the sites' disagreement.
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
        return found, sum(self.log_partitions) - (len(self.messages) - 1) * base
