"""Potentials from consistent tables by a cluster expansion, which is nearly exact if loops are
short.

The cluster variation method (Kikuchi, 1951; Yedidia, Freeman and Weiss, 2005) writes

    log p(x) = sum_R c_R log p_R(x_R),   c_R = 1 - sum of c_S over larger regions S that contain R,

over regions R: the cliques, the short cycles among their attributes, and all intersections of
these. p_R is the distribution of maximum entropy with the tables within R, a small problem that
iterative scaling solves. The sum is exact if the regions form a junction tree and nearly exact
otherwise (Cocco and Monasson, 2011, use it for Ising models), and it costs no inference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, islice
from math import prod

import numpy as np
import torch

from pgmkit.domain import Clique
from pgmkit.graphs.clique_index import maximal
from pgmkit.inference.layout import Layout
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.inference.observations import host
from pgmkit.runtime.iterations import MOST_ROUNDS
from pgmkit.runtime.sizes import CACHE_CELLS

_LONGEST = 4
"""The largest number of attributes of a cycle."""
_MOST_LOOKED_AT = 2 * CACHE_CELLS
"""The largest number of candidates for cycles, and of pairs of regions that share an attribute,
which are processed in some tenths of a second.
"""
_CELLS_OF_COST = 1 / (10 * MOST_ROUNDS)
"""The cells that all cycles together may have, as a share of the multiplications of an inference
pass, so that fitting them takes less time than a pass: it takes at most ``MOST_ROUNDS`` sweeps,
each of which takes about as long as ten multiplications for each cell.
"""
_LARGEST_COUNT = 4
"""The largest magnitude of a counting number. Larger ones, of regions that overlap more, make the
expansion inaccurate.
"""
LEAST_SHARE = 1e-7
"""The smallest cell that is used, as a share of the total; smaller ones are raised to it. Also the
end of a fit: a sweep is the last if it changes the logarithm of every cell, times the cell's
probability, by less than this.
"""

Region = frozenset[str]


def cluster_expansion(inference: MarginalOracle) -> ClusterExpansion | None:
    """Return the expansion for the cliques of ``inference``. Return None if there are no cycles
    beside those within the cliques (as in a tree), if ``short_cycles`` finds no list of cycles that
    can be fitted in the time of a pass, if ``counting_numbers`` finds too many regions, or if a
    counting number exceeds ``_LARGEST_COUNT``, so that the expansion would be inaccurate.
    """
    layout = inference.layout
    cycles = short_cycles(layout, max(CACHE_CELLS, int(_CELLS_OF_COST * inference.plan.cost)))
    counted = counting_numbers([*map(frozenset, layout.cliques), *cycles]) if cycles else {}
    if not counted or max(map(abs, counted.values())) > _LARGEST_COUNT:
        return None
    return ClusterExpansion(layout, counted, inference.device)


class ClusterExpansion:
    """The map from consistent tables to potentials, for regions with their counting numbers.

    Tables and potentials are flat over the layout's cells. A region is fitted to the marginals over
    its *traces*, the largest sets of attributes that it shares with a clique. Each call of
    ``potentials`` starts its fits from the results of the call before.
    """

    def __init__(
        self, layout: Layout, counted: dict[Region, int], device: torch.device | None = None
    ) -> None:
        traces: dict[Clique, int] = {}
        alike: dict[_Signature, list[tuple[list[Clique], int]]] = {}
        size = 0
        for region, count in counted.items():
            signature, held = _signature(layout, region)
            alike.setdefault(signature, []).append((held, count))
            for trace in held:
                if trace not in traces:
                    traces[trace] = size
                    size += layout.domain.size(trace)
        places = [_places(layout, trace, start) for trace, start in traces.items()]
        rows, columns = zip(*places, strict=True)
        self._rows = torch.as_tensor(np.concatenate(rows), device=device)
        self._columns = torch.as_tensor(np.concatenate(columns), device=device)
        self._cells, self._trace_cells = layout.cells, size
        self._groups = [_Group(s, members, traces, device) for s, members in alike.items()]

    def potentials(self, fractions: torch.Tensor) -> torch.Tensor:
        """Return potentials, flat, whose model has approximately the given tables. These are flat
        too, must be positive, and each sum to one.
        """
        tables = fractions.new_zeros(self._trace_cells)
        tables.index_add_(0, self._rows, fractions[self._columns])
        logs = torch.zeros_like(tables)
        for group in self._groups:
            group.add_potentials(tables, logs)
        return fractions.new_zeros(self._cells).index_add_(0, self._columns, logs[self._rows])


_Signature = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]
"""The shape of a region, and the axes of its traces."""


def _signature(layout: Layout, region: Region) -> tuple[_Signature, list[Clique]]:
    """Return a region's shape with the axes of its traces, and the traces themselves: the maximal
    sets of attributes that the region shares with a clique.
    """
    names = [name for name in layout.domain if name in region]
    meeting = {i for name in names for i in layout.index.places[name]}
    parts = list({frozenset(layout.index.sets[i] & region) for i in sorted(meeting)})
    largest = [tuple(n for n in names if n in parts[i]) for i in maximal(list(map(tuple, parts)))]
    held = sorted(largest, key=lambda trace: [names.index(name) for name in trace])
    axes = tuple(tuple(names.index(name) for name in trace) for trace in held)
    return (layout.domain.shape(tuple(names)), axes), held


def _places(layout: Layout, trace: Clique, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays with an entry for each cell of the smallest clique of the layout that
    contains the attributes ``trace``. The first has ``start`` plus the flat index of the cell with
    the same codes in the table over ``trace``, the second the index of the clique's cell itself in
    the layout's flat vector.
    """
    place = host(layout, trace)
    cells = layout.domain.cell_map(layout.cliques[place], trace)
    return cells + start, np.arange(len(cells)) + layout.slices[place].start


class _Group:
    """Regions with the same shape and the same axes of traces, fitted together by iterative
    scaling. ``members`` has for each region its traces (the sets of attributes over which it is
    fitted) and its counting number, ``starts`` for each trace the index of its first cell in the
    vector of all traces' tables.
    """

    def __init__(
        self,
        signature: _Signature,
        members: Sequence[tuple[list[Clique], int]],
        starts: dict[Clique, int],
        device: torch.device | None,
    ) -> None:
        shape, traces = signature
        self._shape = (len(members), *shape)
        self._counts = torch.tensor([[float(count)] for _, count in members], device=device)
        self._places, self._views, self._summed = [], [], []
        for k, axes in enumerate(traces):
            cells = torch.arange(prod(shape[axis] for axis in axes))
            first = torch.tensor([[starts[held[k]]] for held, _ in members])
            self._places.append((first + cells).to(device))
            self._views.append([-1, *(n if i in axes else 1 for i, n in enumerate(shape))])
            self._summed.append([i + 1 for i in range(len(shape)) if i not in axes])
        self._logs: list[torch.Tensor] = []

    def add_potentials(self, tables: torch.Tensor, into: torch.Tensor) -> None:
        """Fit the regions to the marginals over their traces in ``tables``, the flat vector of all
        traces' tables, and add the logarithms of the fitted factors, times the counting numbers, to
        ``into``, which has the same layout.
        """
        targets = [tables[places] for places in self._places]
        logs = self._logs or [torch.zeros_like(target) for target in targets]
        joint = tables.new_zeros(self._shape)
        for log, view in zip(logs, self._views, strict=True):
            joint += log.view(view)
        joint.exp_()
        for _ in range(MOST_ROUNDS):
            furthest = 0.0
            for k, (target, view) in enumerate(zip(targets, self._views, strict=True)):
                held = joint.sum(self._summed[k]) if self._summed[k] else joint
                ratio = target / held.reshape(target.shape)
                joint *= ratio.view(view)
                change = ratio.log()
                logs[k] = logs[k] + change
                furthest = max(furthest, float((change.abs() * target).max()))
            if len(targets) == 1 or furthest < LEAST_SHARE:
                break
        self._logs = logs
        for places, log in zip(self._places, logs, strict=True):
            into.index_add_(0, places.reshape(-1), (self._counts.to(log) * log).reshape(-1))


def short_cycles(layout: Layout, most_cells: int) -> list[Region]:
    """Return linearly independent, short, chordless cycles that together with the triangles in
    cliques span the cycle space of the graph in which attributes of one clique are joined.

    The list is empty if the triangles alone span that space, if the cycles would need tables of
    more than ``most_cells`` cells in total, if some have more than ``_LONGEST`` attributes, or if
    there are too many to be found.
    """
    import networkx

    # Cycles are vectors modulo 2 over the edges; a clique's cycles are sums of its triangles.
    graph = networkx.Graph()
    for clique in layout.cliques:
        graph.add_edges_from(combinations(clique, 2))
    bit = {frozenset(edge): 1 << i for i, edge in enumerate(graph.edges)}
    space: dict[int, int] = {}
    for clique in layout.cliques:
        for a, b in combinations(clique[1:], 2):
            _extend(space, _bits([clique[0], a, b], bit))
    pieces = networkx.number_connected_components(graph)
    # The dimension of the cycle space is edges - attributes + connected components.
    missing = len(graph.edges) - len(graph) + pieces - len(space)
    if not 0 < missing * len(graph.edges) <= _MOST_LOOKED_AT:
        return []
    core = networkx.k_core(graph, 2)  # contains all cycles
    found = islice(networkx.chordless_cycles(core, length_bound=_LONGEST), _MOST_LOOKED_AT)
    chosen, cells = [], 0
    for cycle in sorted(found, key=lambda c: (len(c), sorted(c))):
        size = layout.domain.size(tuple(cycle))
        if cells + size <= most_cells and _extend(space, _bits(cycle, bit)):
            chosen.append(frozenset(cycle))
            cells += size
    return chosen if len(chosen) == missing else []


def _bits(cycle: Sequence[str], bit: dict[Region, int]) -> int:
    return sum(bit[frozenset(edge)] for edge in zip(cycle, [*cycle[1:], cycle[0]], strict=True))


def _extend(space: dict[int, int], cycle: int) -> bool:
    """Extend a linear space of cycles by a cycle and return True, or return False if the space
    contains it already.

    A cycle is a set of edges, as bits, and the sum of two cycles is their symmetric difference. The
    space is given by a cycle for each leading bit.
    """
    while cycle:
        lead = cycle.bit_length()
        if lead not in space:
            space[lead] = cycle
            return True
        cycle ^= space[lead]
    return False


def counting_numbers(largest: Iterable[Region]) -> dict[Region, int]:
    """Return the nonzero counting numbers of the regions ``largest`` and of all their
    intersections; an empty dict if there are too many of these.
    """
    regions = set(largest)
    fresh = set(regions)
    while fresh:
        near: dict[str, list[Region]] = {}
        for region in regions:
            for name in region:
                near.setdefault(name, []).append(region)
        if sum(len(held) ** 2 for held in near.values()) > _MOST_LOOKED_AT:
            return {}
        fresh = {a & b for a in fresh for name in a for b in near[name]} - regions
        regions |= fresh
    above: dict[str, list[Region]] = {}
    counts: dict[Region, int] = {}
    for region in sorted(regions, key=lambda r: (-len(r), sorted(r))):
        holders = above.get(next(iter(region)), [])
        counts[region] = 1 - sum(counts[other] for other in holders if other > region)
        for name in region:
            above.setdefault(name, []).append(region)
    return {region: count for region, count in counts.items() if count}
