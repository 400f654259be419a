"""A second opinion on a pass of inference, by a computation that shares nothing with it.

Inference plans a contraction, runs it in flat buffers and differentiates it. Here plain arrays are
summed out attribute by attribute in log space, with the values of one clique (or more) held fixed
so that it stays cheap: log Z(e) must be log Z + log P(e), with log Z and P(e) as inference found
them. All tables must sum to the total, and agree on the attributes that they share.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import inf, isinf, log, prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from pgmkit.domain import Clique
from pgmkit.errors import NumericalFailure

if TYPE_CHECKING:
    from pgmkit.belief_propagation import BeliefPropagation

__all__ = ["check", "checked_marginals"]

Array = NDArray[np.float64]
Table = tuple[Clique, Array]

SHARE, LEAST = 0.1, 5e-3
"""The check takes at most this share of the time that inference took, or these seconds."""

_STEP_SECONDS, _CELL_SECONDS = 2e-5, 3e-8
"""What summing out one attribute takes, and each cell on the way, on a slow machine."""
_COMPARISON_SECONDS = 1.5e-5
_CLOSE, _CLOSE_BY_SIZE = 2e7, 1e3
"""Rounding allowed, in units of the format's epsilon: of a logarithm near zero, and for each unit
of the potentials' size. Defects are off by a hundredth and more."""


def checked_marginals(
    inference: BeliefPropagation, potentials: torch.Tensor, total: float, started: float
) -> tuple[torch.Tensor, float]:
    """Marginals and the log partition function, as ``inference.marginals`` gives them, checked."""
    with inference.session():
        marginals, log_partition = inference.marginals(potentials, total)
        check(inference, potentials, marginals, log_partition, total=total, started=started)
    return marginals, log_partition


def check(
    inference: BeliefPropagation,
    potentials: torch.Tensor,
    marginals: torch.Tensor,
    log_partition: float,
    *,
    total: float,
    started: float,
) -> None:
    """Raise NumericalFailure where a pass of inference contradicts itself or the second opinion.

    ``potentials`` and ``marginals`` (in units of ``total``) are flat; ``log_partition`` is over the
    cliques' attributes. ``started`` is the ``time.perf_counter()`` at which inference began; the
    check takes a tenth of the time since then, or a few milliseconds.
    """
    seconds = max(LEAST, SHARE * (time.perf_counter() - started))
    epsilon = float(torch.finfo(inference.dtype).eps)
    logs = _array(inference.masked(potentials))
    found = _array(marginals) / total
    _check_tables(inference, found, 1e6 * epsilon, seconds / 4)
    layout = inference.layout
    tables = [
        (clique, logs[s].reshape(shape))
        for clique, s, shape in zip(layout.cliques, layout.slices, layout.shapes, strict=True)
    ]
    sizes = dict(layout.domain.sizes)
    order = inference.plan.elimination
    place = max(range(len(tables)), key=lambda i: tables[i][1].size)
    clique, shape = layout.cliques[place], layout.shapes[place]
    cell = int(found[layout.slices[place]].argmax())
    values = (int(v) for v in np.unravel_index(cell, shape))
    evidence = dict(zip(clique, values, strict=True))
    more = _further_evidence(tables, order, sizes, evidence, seconds)
    if more:
        evidence |= more
        theirs = inference.log_partition(_restricted(inference, potentials, evidence))
    else:
        theirs = log_partition + log(found[layout.slices[place].start + cell])
    mine = _log_partition([_slice(table, evidence) for table in tables], order, sizes)
    size = sum(_size(table) for _, table in tables)
    allowed = epsilon * (_CLOSE + _CLOSE_BY_SIZE * size)
    if not (abs(mine - theirs) <= allowed or (isinf(mine) and mine == theirs)):
        raise NumericalFailure(
            f"inference contradicts a second computation: the logarithm of the sum over all "
            f"records with {evidence!r} is {theirs!r} by one and {mine!r} by the other, where "
            f"{allowed:.2g} is what rounding may explain. Nothing computed from these "
            f"{len(tables)} cliques can be trusted; please report them."
        )


def _check_tables(
    inference: BeliefPropagation, found: Array, allowed: float, seconds: float
) -> None:
    """All tables sum to one and agree on the attributes that they share."""
    layout = inference.layout
    sums = np.add.reduceat(found, [s.start for s in layout.slices])
    if not np.abs(sums - 1).max() <= allowed:
        worst = int(np.abs(sums - 1).argmax())
        raise NumericalFailure(
            f"inference contradicts itself: the marginal over {layout.cliques[worst]} sums to "
            f"{sums[worst]!r} of the total. Please report these {len(layout.cliques)} cliques."
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
                    f"{clique}. Please report these {len(layout.cliques)} cliques."
                )


def _further_evidence(
    tables: Sequence[Table],
    order: Sequence[str],
    sizes: Mapping[str, int],
    evidence: Mapping[str, int],
    seconds: float,
) -> dict[str, int]:
    """Values to hold fixed beside ``evidence`` so that summing out the rest takes these seconds."""
    more: dict[str, int] = {}
    while True:
        cliques = [[n for n in c if n not in evidence and n not in more] for c, _ in tables]
        cells, largest = _work(cliques, order, sizes)
        steps = len({name for clique in cliques for name in clique})
        if steps * _STEP_SECONDS + cells * _CELL_SECONDS <= seconds or len(largest) < 2:
            return more
        name = max(largest, key=sizes.__getitem__)
        more[name] = _likely(tables, name, {**evidence, **more})


def _work(
    cliques: Sequence[Sequence[str]], order: Sequence[str], sizes: Mapping[str, int]
) -> tuple[int, set[str]]:
    """Cells of all tables that summing out builds, and the attributes of the largest."""
    holders: dict[str, list[set[str]]] = {name: [] for name in order}
    rank = {name: place for place, name in enumerate(order)}
    for clique in cliques:
        if clique:
            holders[min(clique, key=rank.__getitem__)].append(set(clique))
    cells, most, largest = 0, 0, set[str]()
    for name in order:
        if holders[name]:
            union = set().union(*holders[name])
            count = prod(sizes[n] for n in union)
            cells += count
            if count > most:
                most, largest = count, union
            if left := union - {name}:
                holders[min(left, key=rank.__getitem__)].append(left)
    return cells, largest


def _likely(tables: Sequence[Table], name: str, evidence: Mapping[str, int]) -> int:
    """A value of the attribute that the potentials of its cliques favour, given the evidence."""
    score: Array | float = 0.0
    for clique, table in tables:
        if name in clique:
            left, kept = _slice((clique, table), {k: v for k, v in evidence.items() if k != name})
            others = tuple(axis for axis, other in enumerate(left) if other != name)
            score = score + kept.max(axis=others)
    return int(np.argmax(score))


def _slice(table: Table, evidence: Mapping[str, int]) -> Table:
    clique, values = table
    places = tuple(evidence.get(name, slice(None)) for name in clique)
    return tuple(name for name in clique if name not in evidence), values[places]


def _restricted(
    inference: BeliefPropagation, potentials: torch.Tensor, evidence: Mapping[str, int]
) -> torch.Tensor:
    """The potentials with minus infinity wherever a table contradicts the evidence."""
    restricted = torch.full_like(potentials, -inf)
    layout = inference.layout
    pairs = zip(layout.split(restricted), layout.split(potentials), strict=True)
    for clique, (new, old) in zip(layout.cliques, pairs, strict=True):
        places = tuple(evidence.get(name, slice(None)) for name in clique)
        new[places] = old[places]
    return restricted


def _log_partition(
    tables: Sequence[Table], order: Sequence[str], sizes: Mapping[str, int]
) -> float:
    """The logarithm of the sum of exp(sum of tables), one attribute at a time (in log space).

    Axes are kept in the reverse of the order, so that the next to go is always the last.
    """
    rank = {name: -place for place, name in enumerate(order)}
    buckets: dict[str, list[Table]] = {name: [] for name in order}
    constant = 0.0

    def put(axes: Clique, values: Array) -> float:
        if not axes:
            return float(values)
        buckets[axes[-1]].append((axes, values))
        return 0.0

    for axes, values in tables:
        turned = sorted(range(len(axes)), key=lambda i: rank[axes[i]])
        constant += put(tuple(axes[i] for i in turned), values.transpose(turned))
    for name in order:
        held = buckets.pop(name)
        if not held:
            continue
        union = sorted({n for axes, _ in held for n in axes}, key=rank.__getitem__)
        whole: Array | float = 0.0
        for axes, values in held:
            whole = whole + values.reshape([sizes[n] if n in axes else 1 for n in union])
        constant += put(tuple(union[:-1]), _log_sum(np.asarray(whole)))
    return constant


def _log_sum(values: Array) -> Array:
    """Over the last axis."""
    highest = values.max(axis=-1)
    peaks = np.where(np.isneginf(highest), 0.0, highest)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(values - peaks[..., None]).sum(axis=-1)) + peaks)


def _size(table: Array) -> float:
    finite = table[np.isfinite(table)]
    return float(np.abs(finite).max()) if finite.size else 0.0


def _array(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().numpy().astype(np.float64, copy=False)
