"""Checks of an estimate by second computations: of its marginals, and of its loss by plain numpy.

The check of the loss shares no formula with ``losses``, so it detects wrong weights, targets and
matrices, and values taken from the wrong set of a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pgmkit.domain import Clique
from pgmkit.estimation.problem import Point
from pgmkit.graphs.clique_index import CliqueIndex
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.inference.plain_sums import CALL_SECONDS, CELL_SECONDS
from pgmkit.inference.self_check import LEAST, SHARE, Contradiction, check
from pgmkit.linear.axes import sum_to
from pgmkit.linear.kronecker import applied, factors_of
from pgmkit.losses import Absolute, Huber, LossLike, Squared, known_loss
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import SUM_ROUNDING
from pgmkit.runtime.sizes import CALL_CELLS


def check_point(
    oracle: MarginalOracle,
    point: Point,
    total: float,
    loss: LossLike,
    measurements: Sequence[Measurement],
    stated: float,
    started: float,
) -> None:
    """Raise NumericalFailure if a second computation contradicts the point's marginals, which sum
    to ``total``, or the loss ``stated`` of these marginals. ``loss`` is as ``estimate`` takes it,
    and ``measurements`` are those whose loss it is. The checks take a small share of the time since
    ``started``, a time of ``time.perf_counter``.
    """
    found = point.potentials, point.marginals, point.log_partition
    check(oracle, *found, total=total, started=started)
    tables = oracle.layout.split(point.marginals.detach().cpu())
    check_loss(
        loss,
        measurements,
        {c: t.double().numpy() for c, t in zip(oracle.layout.cliques, tables, strict=True)},
        stated,
        epsilon=float(torch.finfo(oracle.dtype).eps),
        seconds=max(LEAST, SHARE * (time.perf_counter() - started)) / 2,
    )


def check_loss(
    loss: LossLike,
    measurements: Sequence[Measurement],
    tables: Mapping[Clique, Array],
    stated: float,
    *,
    epsilon: float,
    seconds: float,
) -> None:
    """Raise Contradiction if the loss of these tables differs from ``stated`` by more than
    rounding.

    Args:
        loss: as ``estimate`` takes it; only squared, absolute and Huber losses are checked.
        measurements: each over attributes of one of the tables.
        tables: the marginals, in counts.
        stated: the loss that the estimation computed.
        epsilon: the precision of the format in which ``stated`` was computed.
        seconds: the time allowed; a check that would take longer is omitted.
    """
    known = known_loss(loss)
    phi = _PENALTIES.get(type(known))
    cells = sum(table.size for table in tables.values())
    cost = 5 * CALL_SECONDS * (len(measurements) + len(tables)) + CELL_SECONDS * cells
    if phi is None or cost > seconds:
        return
    cliques, index = list(tables), CliqueIndex(list(tables))
    found = rounding = 0.0
    for m in measurements:
        holding = [cliques[place] for place in index.containing(m.clique)]
        held = min(holding, key=lambda clique: tables[clique].size)
        marginal = sum_to(tables[held], held, m.clique)
        factors = factors_of(m.matrix)
        residual = np.abs(applied(factors, marginal) - m.values) / m.stddev
        penalties = phi(residual, known)
        found += float(penalties.sum())
        largest = applied(map(abs, factors), np.abs(marginal)).max()
        shift = CALL_CELLS * epsilon * (largest + np.abs(m.values)) / m.stddev
        rounding += float((phi(residual + shift, known) - penalties).sum())
    rounding += (SUM_ROUNDING + CALL_CELLS * epsilon) * (1 + abs(found))
    if not abs(found - stated) <= rounding:
        raise Contradiction(
            f"the estimate contradicts a second computation: its loss is {stated!r} by the "
            f"estimation and {found!r} by the second computation. Please report these "
            f"{len(measurements)} measurements"
        )


def _huber(r: Array, loss: Any) -> Array:
    within = np.minimum(r, loss.width)
    return loss.height * (within**2 / (2 * loss.width) + (r - within))


_PENALTIES: dict[type, Callable[[Array, Any], Array]] = {
    Squared: lambda r, _loss: r**2 / 2,
    Absolute: lambda r, _loss: np.sqrt(2.0) * r,
    Huber: _huber,
}
