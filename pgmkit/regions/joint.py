"""A joint distribution near tables that agree locally: records, one attribute after the other.

The attributes are drawn in turn. Each is drawn from the maximum-entropy conditional distribution
given the attributes that the records have already, whose tables over the new attribute and those
are the given ones: multinomial logistic regression with the tables as its sufficient statistics,

    maximise  sum_c <theta_c, t_c> - mean_n log sum_v exp(sum_c theta_c[x_n, v]) - slack |theta|^2,

so that a record's conditional depends on every table at once and no tree has to hold them. Where
the records' own margins differ from the tables' by chance no conditional fits exactly; the slack,
the sampling variance of a cell, keeps the search from following that. Further sweeps draw every
attribute anew given all others (Gibbs), which repairs what the order of the first left behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log, prod

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg

from pgmkit.clique_index import maximal
from pgmkit.dataset import Dataset
from pgmkit.domain import Clique, Domain

Array = NDArray[np.float64]
Tables = Mapping[Clique, Array]

_SCALINGS = 3
_STEPS = 30
_HALVINGS = 10
_SOLVES = 30
_SOLVED = 0.1
_FALL = 1e-6
"""Of the conditional's log likelihood, in nats a record, below which a step is the last."""


@dataclass(frozen=True)
class Agreement:
    """Total variation distances between the tables and those of the records."""

    mean: float
    worst: float
    worst_clique: Clique


def draw_joint(
    domain: Domain,
    tables: Tables,
    variances: Mapping[Clique, float],
    records: int,
    rng: np.random.Generator,
    *,
    sweeps: int = 0,
    deadline: float = inf,
) -> Dataset:
    """``records`` records whose tables are near ``tables`` (fractions, which agree locally)."""
    columns: dict[str, NDArray[np.int64]] = {}
    for name in _order(domain, tables):
        _draw(domain, tables, variances, name, columns, records, rng)
    for _ in range(sweeps):
        if time.perf_counter() >= deadline:
            break
        for name in _order(domain, tables):
            given = {other: codes for other, codes in columns.items() if other != name}
            _draw(domain, tables, variances, name, given, records, rng)
            columns[name] = given[name]
    return Dataset(domain, {name: columns[name] for name in domain})


def agreement(tables: Tables, records: Dataset) -> Agreement:
    """How near the records come to the tables, which are fractions."""
    counted = records.marginals(list(tables))
    apart = {
        clique: float(np.abs(counted[clique] / len(records) - table).sum() / 2)
        for clique, table in tables.items()
    }
    worst = max(apart, key=apart.__getitem__)
    return Agreement(float(np.mean(list(apart.values()))), apart[worst], worst)


def _order(domain: Domain, tables: Tables) -> list[str]:
    """Every attribute after the one that tells most about those before it.

    Neighbours follow each other, so that attributes that depend on each other through a third one
    are rarely drawn before it.
    """
    near: dict[str, dict[str, float]] = {name: {} for name in domain}
    for clique, table in tables.items():
        for i, a in enumerate(clique):
            for j in range(i):
                told = _information(table, i, j)
                for x, y in ((a, clique[j]), (clique[j], a)):
                    near[x][y] = max(told, near[x].get(y, 0.0))
    left = dict.fromkeys(domain, 0.0)
    order = []
    while left:
        ranked = max(left, key=lambda name: (left[name], sum(near[name].values())))
        order.append(ranked)
        del left[ranked]
        for other, told in near[ranked].items():
            if other in left:
                left[other] += told
    return order


def _information(table: Array, i: int, j: int) -> float:
    """Mutual information of two axes of a table, in nats."""
    pair = table.sum(axis=tuple(k for k in range(table.ndim) if k not in (i, j)))
    apart = np.multiply.outer(pair.sum(1), pair.sum(0))
    positive = pair > 0
    return float((pair[positive] * np.log(pair[positive] / apart[positive])).sum())


def _draw(
    domain: Domain,
    tables: Tables,
    variances: Mapping[Clique, float],
    name: str,
    columns: dict[str, NDArray[np.int64]],
    records: int,
    rng: np.random.Generator,
) -> None:
    """Add a column for ``name``, given those that there are."""
    targets = _targets(tables, variances, name, columns)
    size = domain.sizes[name]
    if not targets:
        columns[name] = rng.permutation(np.arange(records) % size)
        return
    rows, wanted, noise = _design(domain, targets, columns, records, size)
    chances = _conditional(rows, wanted, noise)
    columns[name] = _pick(chances, rng)


def _targets(
    tables: Tables, variances: Mapping[Clique, float], name: str, columns: Mapping[str, NDArray[np.int64]]
) -> list[tuple[Clique, Array, float]]:
    """Tables over ``name`` and drawn attributes, the former their last axis; none within another."""
    found: dict[frozenset[str], tuple[Clique, Array, float]] = {}
    for clique, table in tables.items():
        if name not in clique:
            continue
        kept = tuple(other for other in clique if other in columns)
        summed = tuple(i for i, other in enumerate(clique) if other not in (*kept, name))
        axes = [other for other in clique if other in (*kept, name)]
        moved = np.moveaxis(table.sum(axis=summed), axes.index(name), -1)
        variance = variances[clique] * table.size / moved.size
        best = found.get(frozenset(kept))
        if best is None or variance < best[2]:
            found[frozenset(kept)] = kept, moved, variance
    cliques = [kept for kept, _, _ in found.values()]
    places = maximal(cliques)
    values = list(found.values())
    return [values[place] for place in places]


def _design(
    domain: Domain,
    targets: Sequence[tuple[Clique, Array, float]],
    columns: Mapping[str, NDArray[np.int64]],
    records: int,
    size: int,
) -> tuple[scipy.sparse.csr_array, Array, Array]:
    """One column for each cell of the drawn attributes, of each target, and the targets' rows."""
    places, start = [], 0
    for kept, _, _ in targets:
        cells = np.zeros(records, dtype=np.int64)
        for other in kept:
            cells = cells * domain.sizes[other] + columns[other]
        places.append(cells + start)
        start += prod(domain.shape(kept))
    indices = np.stack(places, axis=1).reshape(-1)
    pointers = np.arange(0, len(indices) + 1, len(targets))
    rows = scipy.sparse.csr_array(
        (np.ones(len(indices)), indices, pointers), shape=(records, start)
    )
    flat = [table.reshape(-1, size) for _, table, _ in targets]
    noise = [np.full_like(table, each[2]) for table, each in zip(flat, targets, strict=True)]
    return rows, np.concatenate(flat), np.concatenate(noise)


def _conditional(rows: scipy.sparse.csr_array, wanted: Array, noise: Array) -> Array:
    """The fitted chances of every value, a row for each record: truncated Newton.

    It starts from a few rounds of iterative scaling, which move the many small cells by their
    logarithms.
    """
    records, across = rows.shape[0], rows.T.tocsr()
    tables = int(rows.indptr[1])
    floored = wanted + 1 / (records * wanted.shape[1])
    slack = floored / records + noise

    def chances(theta: Array) -> tuple[Array, float]:
        """Of every value, and the objective's value."""
        logits = rows @ theta
        highest = logits.max(axis=1, keepdims=True)
        logits -= highest
        np.exp(logits, out=logits)
        mass = logits.sum(axis=1, keepdims=True)
        logits /= mass
        fit = float(highest.mean() + np.log(mass).mean()) - float((theta * wanted).sum())
        return logits, fit + float((slack * theta**2).sum()) / 2

    theta = np.zeros_like(wanted) + np.log(floored.sum(0) / floored.sum()) / tables
    for _ in range(_SCALINGS):
        reached = (across @ chances(theta)[0]) / records + floored - wanted
        theta += (np.log(floored) - np.log(reached)) / tables
    shares, value = chances(theta)
    for _ in range(_STEPS):
        reached = (across @ shares) / records
        slope = reached - wanted + slack * theta

        def curve(vector: Array, shares: Array = shares) -> Array:
            moved = shares * (rows @ vector.reshape(wanted.shape))
            moved -= shares * moved.sum(axis=1, keepdims=True)
            return ((across @ moved) / records).reshape(-1) + slack.reshape(-1) * vector

        direction = _solve(curve, -slope.reshape(-1), (reached + slack).reshape(-1))
        step, falling = 1.0, float(slope.reshape(-1) @ direction)
        for _ in range(_HALVINGS):
            trial = theta + step * direction.reshape(wanted.shape)
            shares, lower = chances(trial)
            if lower <= value + 1e-4 * step * falling:
                break
            step /= 2
        else:
            break
        theta, fell, value = trial, value - lower, lower
        if fell < _FALL:
            break
    return chances(theta)[0]


def _solve(curve: Callable[[Array], Array], right: Array, diagonal: Array) -> Array:
    shape = (len(right), len(right))
    solution: Array = cg(
        LinearOperator(shape, matvec=curve),
        right,
        rtol=_SOLVED,
        maxiter=_SOLVES,
        M=LinearOperator(shape, matvec=lambda vector: vector / diagonal),
    )[0]
    return solution


def _pick(chances: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """A value for each record, by systematic draws over the records in order of their chances."""
    above = rng.random(len(chances))
    picked: NDArray[np.int64] = (chances.cumsum(axis=1) < above[:, None]).sum(axis=1)
    return np.minimum(picked, chances.shape[1] - 1)
