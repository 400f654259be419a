"""Graphical models as the family that a mechanism updates: re-estimation, and limits of their size.

**One more pair.** `cells_with_pairs` bounds the size that a junction tree needs to hold one more
pair of attributes by the size of a tree that it builds from the present one. A clique of the
present tree with one attribute of the pair is chosen as the *home*, and the other attribute is
*carried* to it: it is added to every separator on the path to the home from the nearest clique that
has it. Each clique between the ends of the path is replaced there by a new clique, the union of the
carried attribute and the clique's two separators on the path, and becomes a neighbour of the new
one. The home is likewise attached to a last new clique, the union of the pair and the last
separator of the path. The bounds for all pairs together take less time than one search for an
elimination order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

import pgmkit
from mechanisms.workload import Workload
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, NotCertified, without
from pgmkit.graphs.junction_tree import JunctionTree, junction_tree, model_cells
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel
from pgmkit.records.counting import check_memory
from pgmkit.runtime.memory import MEMORY_LIMIT
from pgmkit.runtime.sizes import CELL_BYTES
from pgmkit.structural_zeros import Zeros
from pgmkit.total import estimate_total

_WORTH_A_SEARCH = 4.0
"""The largest factor by which a better elimination order is expected to shrink a model. If a model
exceeds its limit by more, no better order is searched for.
"""


def estimator(
    domain: Domain,
    total: float | None,
    tolerance: float = 0.1,
    *,
    method: str = "auto",
    device: str = "cpu",
    zeros: Sequence[Zeros] = (),
) -> Callable[[GraphicalModel | None, Sequence[Measurement]], GraphicalModel]:
    """Return the update step, a function of the last model (or None) and all measurements, which
    estimates a new model and never warns that it is not certified. The function holds no private
    data. `tolerance`, `method`, `device` and `zeros`: as in `pgmkit.estimate`; if the junction tree
    would be too large with the zeros, the model is a region model, which no step can start from.

    `total`: the number of records, or None to estimate it from the measurements. An estimate below
    1, which a budget too small for the data can give, is replaced by 1.
    """

    def update(model: GraphicalModel | None, measurements: Sequence[Measurement]) -> GraphicalModel:
        known = max(1.0, estimate_total(measurements, domain).value) if total is None else total
        # The warning is not needed: only the last of many models is released, and the release says
        # how it fits.
        with without(NotCertified):
            found = pgmkit.estimate(
                domain,
                measurements,
                total=known,
                zeros=zeros,
                warm_start=model,
                tolerance=tolerance,
                method=method,
                device=device,
                inference="auto" if zeros else "exact",
            )
            return cast("GraphicalModel", found)

    return update


class Affordable:
    """A limit on the candidates of every round that keeps the junction tree of all measured cliques
    small.

    `placed`: what is measured for a candidate (`Curator.placed`), by default the candidate itself.

    Whether a candidate is allowed needs a search for an elimination order, which is made only when
    the candidate is drawn (`Curator.choose` with `allowed`). A drawn candidate that is rejected is
    not charged for. This is sound because nothing depends on which searches were made: the
    candidates, the scale of their scores and whether they are allowed depend only on the measured
    cliques, in their order, and on the limits.
    """

    def __init__(
        self,
        domain: Domain,
        candidates: Sequence[Clique],
        placed: Callable[[Clique], Clique] = tuple,
    ) -> None:
        self.domain = domain
        self._placed = {clique: placed(clique) for clique in candidates}

    def within(
        self, measured: Sequence[Clique], limit_mb: float, fallback_mb: float
    ) -> tuple[list[Clique], Callable[[Clique], bool]]:
        """Return the candidates with which the junction tree of the `measured` cliques may stay
        within the limit, and a function that tells whether it does with a given candidate.

        With at least one of the returned candidates it does. If no candidate keeps the tree within
        `limit_mb` (MB of float64 cells), the limit is `fallback_mb`, which an earlier round may
        have used already. If no candidate keeps the tree within that either, as when measurements
        made before need a larger one, the limit is the size of the tree of the `measured` cliques.
        The list is empty if every candidate would enlarge that.
        """
        tree = junction_tree(self.domain, measured)
        for limit in (limit_mb, fallback_mb, megabytes(tree.cells)):
            if megabytes(tree.cells) > limit:
                continue
            fits = partial(self._fits, tree, tuple(measured), limit)
            possible = self._alone_within(limit)
            if any(map(partial(self._held, tree), possible)) or any(map(fits, possible)):
                return possible, fits
        return [], lambda clique: False

    def check_countable(self, *limits_mb: float) -> None:
        """Raise ModelTooLarge if the candidates whose own tables are within a limit are too large
        to count together. The limit is the first of `limits_mb` that at least one candidate is
        within; if there is none, nothing is raised.
        """
        within = map(self._alone_within, limits_mb)
        check_memory(next(filter(None, within), []), self.domain.sizes)

    def _alone_within(self, limit_mb: float) -> list[Clique]:
        """Return the candidates whose own table, as it is measured, has at most `limit_mb` MB. The
        others fit no tree within the limit, since a tree has at least the cells of each table.
        """
        size = self.domain.size
        return [c for c, whole in self._placed.items() if megabytes(size(whole)) <= limit_mb]

    def _held(self, tree: JunctionTree, clique: Clique) -> bool:
        return tree.holds(self._placed[clique]) is not None

    def _fits(
        self, tree: JunctionTree, measured: Sequence[Clique], limit_mb: float, clique: Clique
    ) -> bool:
        # If the tree found for a candidate and some of the measured cliques is too large, the tree
        # for the candidate and all of them is taken to be too large too. Two such subsets are the
        # first cliques up to a multiple of 16 and of 4. They stay the same for many rounds, and
        # `junction_tree` remembers its searches by the graph.
        whole = self._placed[clique]
        return self._held(tree, clique) or all(
            _size(self.domain, [*measured[: len(measured) // stride * stride], whole], limit_mb)
            <= limit_mb
            for stride in (16, 4, 1)
        )


def _size(domain: Domain, cliques: Sequence[Clique], limit_mb: float) -> float:
    """Return the MB of a junction tree of the cliques, by a quick elimination order. If that tree
    exceeds the limit by at most a factor of `_WORTH_A_SEARCH`, return the MB of a better tree that
    a short search finds.
    """
    size = model_megabytes(domain, cliques)
    if limit_mb < size <= _WORTH_A_SEARCH * limit_mb:
        # A round makes many such searches, so each is short.
        size = megabytes(junction_tree(domain, cliques, seconds=0.02).cells)
    return size


def model_megabytes(domain: Domain, cliques: Sequence[Clique]) -> float:
    """Return the MB (2^20 bytes) of a junction tree's float64 cells, by a quick elimination
    order.
    """
    return megabytes(model_cells(domain, cliques))


def fitting(
    domain: Domain, known: Sequence[Clique], drawn: Sequence[Clique], limit_mb: float
) -> list[Clique]:
    """Return the `drawn` pairs, in their order, without those that do not fit into a junction tree
    of at most `limit_mb` together with the pairs `known` and the pairs kept before them.

    All pairs are tried at once and, if they do not fit, by halves, because planning one tree of
    hundreds of attributes takes a tenth of a second.
    """
    if model_megabytes(domain, [*known, *drawn]) <= limit_mb:
        return list(drawn)
    if len(drawn) == 1:
        return []
    half = len(drawn) // 2
    kept = fitting(domain, known, drawn[:half], limit_mb)
    return [*kept, *fitting(domain, [*known, *kept], drawn[half:], limit_mb)]


def megabytes(cells: float) -> float:
    """Return the MB (2^20 bytes) that this number of float64 cells takes."""
    return cells * CELL_BYTES / 2**20


def check_fits_workload(domain: Domain, workload: Workload, limit: float) -> None:
    """Raise InvalidInput if no clique of the workload, together with one-way tables of all other
    attributes, fits the limit in MB, or if the workload asks for the total alone.

    Also raise InvalidInput for a limit above what estimation accepts, which would otherwise refuse
    the model after the budget is spent.
    """
    most = MEMORY_LIMIT / 2**20
    if limit > most:
        raise InvalidInput(
            f"model_mb = {limit:g} is more than a model that can be sampled may take "
            f"({most:g} MB): lower model_mb"
        )
    if not any(workload.cliques):
        raise InvalidInput("the workload asks for the total alone; name at least one column")
    singles = sum(domain.shape())
    smallest = megabytes(
        min(domain.size(c) + singles - sum(domain.shape(c)) for c in workload.cliques if c)
    )
    if smallest > limit:
        raise InvalidInput(
            f"no workload clique fits in model_mb = {limit:g}; the smallest needs "
            f"{smallest:.3g} MB: raise model_mb or use smaller cliques"
        )


_Neighbours = list[tuple[int, frozenset[int]]]


def cells_with_pairs(tree: JunctionTree) -> NDArray[np.float64]:
    """Return, for every pair of attributes, the number of cells of a junction tree that holds the
    cliques of this tree and the pair; the smallest such tree may have fewer.

    The result is a symmetric matrix with rows and columns in the domain's order. Either attribute
    is carried to a clique of the other, whichever costs less.

    >>> from pgmkit.domain import Domain
    >>> from pgmkit.graphs.junction_tree import junction_tree
    >>> domain = Domain({"a": 2, "b": 3, "c": 4})
    >>> cells_with_pairs(junction_tree(domain, [("a", "b"), ("b", "c")]))
    array([[18., 18., 42.],
           [18., 18., 18.],
           [42., 18., 18.]])
    """
    places, sizes = tree.domain.places, tree.domain.shape()
    count, lengths = len(sizes), np.array(sizes, dtype=np.float64)
    sets = [frozenset(map(places.__getitem__, clique)) for clique in tree.cliques]
    # For every clique of the tree, the place of each neighbour and the separator between them.
    # Roots of further trees are neighbours of the first clique, with empty separators.
    near: list[_Neighbours] = [[] for _ in sets]
    for child in range(1, len(sets)):
        above = max(tree.parents[child], 0)
        shared = frozenset(map(places.__getitem__, tree.separators[child]))
        near[child].append((above, shared))
        near[above].append((child, shared))
    ways: dict[frozenset[int], int] = {}
    cells, way = np.zeros((count, len(sets))), np.zeros((count, len(sets)), int)
    for i in range(count):
        carried = _carried(i, sizes, sets, near)
        cells[i] = [each for each, _ in carried]
        way[i] = [ways.setdefault(separator, len(ways)) for _, separator in carried]
    inside = np.array([[i in separator for i in range(count)] for separator in ways])
    last = np.where(inside, lengths, 1.0).prod(axis=1)
    holds = np.array([[i in members for i in range(count)] for members in sets], int)
    added = np.empty((count, count))
    for j in range(count):
        # A home is a clique that has j. Attribute i is carried to it, and the last new clique holds
        # i, j and the last separator on the path. If j is in that separator, `joined` has the
        # factor lengths[j] once too often. But then the clique before it has j too, and adds less.
        homes = np.flatnonzero(holds[:, j])
        joined = cells[:, homes] + lengths[:, None] * last[way[:, homes]] * lengths[j]
        added[:, j] = joined.min(axis=1)
    added[holds.T @ holds > 0] = 0.0
    return tree.cells + np.minimum(added, added.T)


def _carried(
    i: int, sizes: Sequence[int], sets: Sequence[frozenset[int]], near: Sequence[_Neighbours]
) -> list[tuple[int, frozenset[int]]]:
    """Return two things for every clique: the number of cells of the new cliques on the path that
    carries attribute ``i`` to it, where the last new clique is not counted, since it depends on the
    pair; and the last separator on the path. They are 0 and empty for a clique that has ``i``.
    ``sets`` has the attributes of each clique, and ``near`` its neighbours with the separators
    between them.
    """
    nothing: frozenset[int] = frozenset()
    found = [(0, nothing)] * len(sets)
    queue = [(start, -1) for start, members in enumerate(sets) if i in members]
    for place, before in queue:
        cells, separator = found[place]
        for other, shared in near[place]:
            if other == before or i in sets[other]:
                continue
            through = 0
            if before >= 0:
                through = sizes[i] * math.prod(sizes[j] for j in separator | shared)
            found[other] = cells + through, shared
            queue.append((other, place))
    return found
