"""A second opinion on a pass of inference, by a computation that shares nothing with it.

Inference plans a contraction, runs it in flat buffers and differentiates it. Here plain arrays are
summed out attribute by attribute in log space, with the values of one clique (or more) held fixed
so that it stays cheap: log Z(e) must be log Z + log P(e), with log Z and P(e) as inference found
them. All tables must sum to the total, and agree on the attributes that they share.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf, isinf, log, prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from pgmkit.domain import Clique
from pgmkit.errors import NumericalFailure

if TYPE_CHECKING:
    from pgmkit.factor import Factor
    from pgmkit.marginal_oracle import Layout, MarginalOracle

__all__ = ["check", "checked_marginals"]

Array = NDArray[np.float64]
Table = tuple[Clique, Array]

SHARE, LEAST, MOST = 0.1, 5e-3, 1.0
"""The check takes about this share of the time that inference took, within these seconds."""

_CELL_SECONDS = 5e-8
"""What each cell takes that summing out attributes builds, on a slow machine."""
_FEW_CELLS = 400
"""Below this, one call that is slow for each cell is quicker than several that are not."""
_BLOCK_CELLS = 1 << 18
"""Of a table that is built only to be summed; small enough to be neither memory nor time."""
_MOST_CELLS = 6
"""Cells looked at beside the first, as long as there is time."""
_UNLIKELY = 1e-6
_CLOSE = 2e7
"""Rounding allowed of a logarithm near zero, in units of the format's epsilon."""
_ROUNDINGS = 16
"""Roundings of a number as large as the sum of all potentials that each value of a plan may bring:
four for a product of two tables in log space (a peak off, a sum, a logarithm, the peak on), up and
down the plan, in both of two computations that are compared."""
_DEFECT = 1e-2
"""A defect is off by this much and more: no rounding beyond it is allowed."""


def checked_marginals(
    inference: MarginalOracle,
    potentials: torch.Tensor,
    total: float,
    started: float,
    factors: Sequence[Factor],
) -> tuple[torch.Tensor, float]:
    """Marginals and the log partition function, as ``inference.marginals`` gives them, checked.

    ``factors`` are what the potentials were made of.
    """
    with inference.session():
        marginals, log_partition = inference.marginals(potentials, total)
        tables = [(f.domain.attributes, _array(f.values)) for f in factors]
        check(inference, potentials, marginals, log_partition, tables, total=total, started=started)
    return marginals, log_partition


def check(
    inference: MarginalOracle,
    potentials: torch.Tensor,
    marginals: torch.Tensor,
    log_partition: float,
    tables: Sequence[Table] | None = None,
    *,
    total: float,
    started: float,
) -> None:
    """Raise NumericalFailure where a pass of inference contradicts itself or the second opinion.

    ``potentials`` and ``marginals`` (in units of ``total``) are flat; ``log_partition`` is over the
    cliques' attributes. ``tables`` are the factors that the potentials stand for, where these were
    put together from others. ``started`` is the ``time.perf_counter()`` at which inference began;
    the check takes a tenth of the time since then, at least a few milliseconds, at most a second.
    """
    seconds = min(MOST, max(LEAST, SHARE * (time.perf_counter() - started))) / 2
    epsilon = float(torch.finfo(inference.dtype).eps)
    found = _array(marginals) / total
    layout = inference.layout
    if tables is None:
        own = _array(inference.masked(potentials))
        places = zip(layout.cliques, layout.slices, layout.shapes, strict=True)
        tables = [(clique, own[cells].reshape(shape)) for clique, cells, shape in places]
    rounding = _rounding(inference, tables, epsilon)
    _check_tables(inference, found, max(1e6 * epsilon, rounding), seconds / 2)
    names = dict.fromkeys(name for clique in layout.cliques for name in clique)
    sizes = {name: layout.domain.sizes[name] for name in names}
    opinion = _Opinion(tables, _order([clique for clique, _ in tables], sizes), sizes)
    slack = epsilon * _CLOSE + rounding
    begun = time.perf_counter()
    for number, (evidence, share) in enumerate(_places(layout, found)):
        more = opinion.further_evidence(evidence, seconds)
        if more and number:
            return
        if more:
            evidence = {**evidence, **more}
            theirs = inference.log_partition(_restricted(inference, potentials, evidence))
        else:
            theirs = log_partition + log(share)
        mine = opinion.log_partition(evidence)
        if not (abs(mine - theirs) <= slack or (isinf(mine) and mine == theirs)):
            raise NumericalFailure(
                f"inference contradicts a second computation: the logarithm of the sum over all "
                f"records with {evidence!r} is {theirs!r} by one and {mine!r} by the other, where "
                f"{slack:.2g} is what rounding may explain. Nothing computed from these "
                f"{len(tables)} cliques can be trusted; please report them"
            )
        spent = time.perf_counter() - begun
        if spent * (number + 2) / (number + 1) > seconds:  # another would take as long as these
            return


def _rounding(inference: MarginalOracle, tables: Sequence[Table], epsilon: float) -> float:
    """What rounding may do to a logarithm, and so to a probability in proportion to itself.

    In log space every step adds numbers up to the sum of the potentials' magnitudes, and each
    rounds by ``epsilon`` of that.
    """
    size = sum(_size(table) for _, table in tables)
    return min(_DEFECT, epsilon * _ROUNDINGS * len(inference.plan.axes) * size)


def _places(layout: Layout, found: Array) -> Iterator[tuple[dict[str, int], float]]:
    """Evidence and its probability as inference found it: the likeliest cell of the largest clique,
    nothing at all, and likely cells of any cliques.
    """
    rng = np.random.default_rng(0)  # which cells are looked at decides nothing else

    def cell_of(place: int, likely: bool) -> tuple[dict[str, int], float]:
        table = found[layout.slices[place]]
        possible = () if likely else np.flatnonzero(table >= min(_UNLIKELY, table.mean()))
        cell = int(table.argmax()) if likely else int(rng.choice(possible))
        values = (int(v) for v in np.unravel_index(cell, layout.shapes[place]))
        return dict(zip(layout.cliques[place], values, strict=True)), float(table[cell])

    count = len(layout.cliques)
    yield cell_of(max(range(count), key=lambda i: prod(layout.shapes[i])), likely=True)
    yield {}, 1.0
    for place in rng.integers(count, size=_MOST_CELLS):
        yield cell_of(int(place), likely=bool(rng.random() < 0.5))


def _check_tables(inference: MarginalOracle, found: Array, allowed: float, seconds: float) -> None:
    """All tables sum to one and agree on the attributes that they share."""
    layout = inference.layout
    sums = np.add.reduceat(found, [s.start for s in layout.slices])
    if not np.abs(sums - 1).max() <= allowed:
        worst = int(np.abs(sums - 1).argmax())
        raise NumericalFailure(
            f"inference contradicts itself: the marginal over {layout.cliques[worst]} sums to "
            f"{sums[worst]!r} of the total. Please report these {len(layout.cliques)} cliques"
        )
    deadline = time.perf_counter() + seconds
    seen: dict[str, Array] = {}
    for clique, place, shape in zip(layout.cliques, layout.slices, layout.shapes, strict=True):
        if time.perf_counter() > deadline:
            return
        for axis, name in enumerate(clique):
            table = found[place].reshape(prod(shape[:axis]), shape[axis], -1).sum(axis=(0, 2))
            if not np.abs(seen.setdefault(name, table) - table).max() <= allowed:
                raise NumericalFailure(
                    f"inference contradicts itself: the marginal of {name!r} differs between "
                    f"cliques by {np.abs(seen[name] - table).max():.3g} of the total, here "
                    f"{clique}. Please report these {len(layout.cliques)} cliques"
                )


def _order(cliques: Sequence[Clique], sizes: Mapping[str, int]) -> list[str]:
    """The attributes, always the one next whose summing out builds the smallest table."""
    around: dict[str, set[str]] = {name: {name} for name in sizes}
    for clique in cliques:
        for name in clique:
            around[name].update(clique)
    logs = {name: log(size) for name, size in sizes.items()}
    cells = {name: sum([logs[n] for n in near]) for name, near in around.items()}
    heap = [(size, name) for name, size in cells.items()]
    heapify(heap)
    order: list[str] = []
    while heap:
        size, name = heappop(heap)
        if cells.get(name) != size:  # gone, or its entry of now is elsewhere in the heap
            continue
        order.append(name)
        del cells[name]
        near = around.pop(name)
        near.discard(name)
        for other in near:
            # Counted up and down: a hub of thousands is not gone through for each of them.
            joined = near - around[other]
            around[other] |= joined
            around[other].discard(name)
            cells[other] += sum([logs[n] for n in joined]) - logs[name]
            heappush(heap, (cells[other], other))
    return order


@dataclass(frozen=True)
class _Opinion:
    """Sums over all records of exp(sum of the tables), attribute by attribute in this order."""

    tables: Sequence[Table]
    order: Sequence[str]
    sizes: Mapping[str, int]

    def further_evidence(self, evidence: Mapping[str, int], seconds: float) -> dict[str, int]:
        """Values to hold fixed beside ``evidence`` so that the sum takes these seconds."""
        more: dict[str, int] = {}
        while True:
            fixed = {**evidence, **more}
            cliques = [[name for name in c if name not in fixed] for c, _ in self.tables]
            cost, largest = self.work(cliques)
            wide = [union for union in largest if len(union) > 1]
            if cost <= seconds or not wide:
                return more
            # As many again, so that few rounds find what many values take.
            for union in wide[: len(more) + 1]:
                if union.isdisjoint(more):
                    name = max(union, key=self.sizes.__getitem__)
                    more[name] = self.likely(name, {**evidence, **more})

    def work(self, cliques: Sequence[Sequence[str]]) -> tuple[float, list[set[str]]]:
        """Seconds that the sum takes, and the attributes of the tables it builds, largest first."""
        holders: dict[str, list[set[str]]] = {name: [] for name in self.order}
        rank = {name: place for place, name in enumerate(self.order)}
        for clique in cliques:
            if clique:
                holders[min(clique, key=rank.__getitem__)].append(set(clique))
        built: list[tuple[int, set[str]]] = []
        for name in self.order:
            if holders[name]:
                union = set().union(*holders[name])
                built.append((prod([self.sizes[n] for n in union]), union))
                if left := union - {name}:
                    holders[min(left, key=rank.__getitem__)].append(left)
        built.sort(key=lambda each: -each[0])
        cells = sum(count for count, _ in built)
        return cells * _CELL_SECONDS, [union for _, union in built]

    def likely(self, name: str, evidence: Mapping[str, int]) -> int:
        """A value of the attribute that the tables favour, given the evidence."""
        score: Array | float = 0.0
        for clique, table in self.tables:
            if name in clique:
                left, kept = _slice((clique, table), evidence)
                others = tuple(axis for axis, other in enumerate(left) if other != name)
                score = score + kept.max(axis=others)
        return int(np.argmax(score))

    def log_partition(self, evidence: Mapping[str, int]) -> float:
        """The logarithm of the sum over the records with the evidence.

        Axes are kept in the reverse of the order, so that the next to go is always the last.
        """
        rank = {name: -place for place, name in enumerate(self.order)}
        buckets: dict[str, list[Table]] = {name: [] for name in self.order}
        constant = 0.0

        def put(axes: Clique, values: Array) -> float:
            if not axes:
                return float(values)
            buckets[axes[-1]].append((axes, values))
            return 0.0

        for axes, values in (_slice(table, evidence) for table in self.tables):
            turned = sorted(range(len(axes)), key=lambda i: rank[axes[i]])
            constant += put(tuple(axes[i] for i in turned), values.transpose(turned))
        for name in self.order:
            held = buckets.pop(name)
            if not held:
                constant += 0.0 if name in evidence else log(self.sizes[name])
                continue
            union = sorted({n for axes, _ in held for n in axes}, key=rank.__getitem__)
            spread = [
                values.reshape([self.sizes[n] if n in axes else 1 for n in union])
                for axes, values in held
            ]
            constant += put(tuple(union[:-1]), _log_sum_of(spread))
        return constant


def _slice(table: Table, evidence: Mapping[str, int]) -> Table:
    clique, values = table
    places = tuple(evidence.get(name, slice(None)) for name in clique)
    return tuple(name for name in clique if name not in evidence), values[places]


def _restricted(
    inference: MarginalOracle, potentials: torch.Tensor, evidence: Mapping[str, int]
) -> torch.Tensor:
    """The potentials with minus infinity wherever a table contradicts the evidence."""
    layout = inference.layout
    excluded = np.zeros(layout.cells, dtype=np.bool_)
    for name, value in evidence.items():
        for place in layout.index.places[name]:
            cells, shape = layout.slices[place], layout.shapes[place]
            axis = layout.cliques[place].index(name)
            table = excluded[cells].reshape(prod(shape[:axis]), shape[axis], -1)
            table[:, :value] = True
            table[:, value + 1 :] = True
    return potentials.masked_fill(torch.from_numpy(excluded).to(potentials.device), -inf)


def _log_sum_of(spread: Sequence[Array]) -> Array:
    """Over the last axis of a sum of tables that broadcast; the whole of it is never held."""
    first, *inner = np.broadcast_shapes(*(table.shape for table in spread))
    rows = max(1, _BLOCK_CELLS // prod(inner)) if inner else first
    if rows >= first:
        return _log_sum(sum(spread[1:], spread[0]))
    blocks = [
        [table[start : start + rows] if len(table) > 1 else table for table in spread]
        for start in range(0, first, rows)
    ]
    return np.concatenate([_log_sum(sum(block[1:], block[0])) for block in blocks])


def _log_sum(values: Array) -> Array:
    """Over the last axis."""
    if values.size < _FEW_CELLS:
        return np.asarray(np.logaddexp.reduce(values, axis=-1))
    highest = values.max(axis=-1)
    peaks = np.where(np.isneginf(highest), 0.0, highest)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(values - peaks[..., None]).sum(axis=-1)) + peaks)


def _size(table: Array) -> float:
    size = float(np.abs(table).max())
    if not isinf(size):
        return size
    finite = table[np.isfinite(table)]
    return float(np.abs(finite).max()) if finite.size else 0.0


def _array(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().numpy().astype(np.float64, copy=False)
