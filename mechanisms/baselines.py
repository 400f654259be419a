"""Baselines for comparison: noise on all marginals, and independent columns.

Nothing is selected: the budget goes to the workload's marginals (or to the one-way marginals) in
shares fixed beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from mechanisms.families.graphical import estimator
from mechanisms.families.tables import TablesModel, check_projection, projected
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.settings import Settings, at_least, flag, one_of, setting, torch_device
from mechanisms.strategies.clique_queries import CliqueQueries
from mechanisms.workload import Workload, WorkloadLike, varied
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement
from pgmkit.runtime.typed import typed
from pgmkit.structural_zeros import Zeros
from pgmkit.total import estimate_total


@dataclass(frozen=True)
class Gaussian(Settings):
    """Settings of noise on all workload marginals.

    Attributes:
        clip: Whether cells below zero are released as zero, as no count is negative. Each cell's
            error falls, but sums of many cells are biased upwards; the release's measurements hold
            the unclipped values.
    """

    clip: bool = setting(True, flag())


@dataclass(frozen=True)
class Projection(Settings):
    """Settings of noise on all workload marginals, from which a consistent model is estimated.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        model_mb: The largest junction tree of the workload's cliques, in MB (2^20 bytes) of float64
            cells, for which the result is a graphical model, 0 or above. Beyond it the result is
            locally consistent nonnegative tables, which draw no records.
        inference: Whether to use a region model of such tables, which draws records near them
            (`pgmkit.RegionModel`): "exact" never, "auto" beyond `model_mb`, "region" always.
        device: Where models are estimated: "cpu", a CUDA GPU such as "cuda", or "auto": a GPU if
            there is one and the model is large enough to gain (`pgmkit.runtime.devices`).
    """

    model_mb: float = setting(80.0, at_least(0))
    inference: Literal["exact", "auto", "region"] = setting(
        "exact", one_of("exact", "auto", "region")
    )
    device: str = setting("cpu", torch_device())


@dataclass(frozen=True)
class Independent(Settings):
    """Settings of one-way marginals.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        device: Where models are estimated: "cpu", a CUDA GPU such as "cuda", or "auto": a GPU if
            there is one and the model is large enough to gain (`pgmkit.runtime.devices`).
    """

    device: str = setting("cpu", torch_device())


@typed
def gaussian(curator: Curator, workload: WorkloadLike, settings: Gaussian | None = None) -> Release:
    """Spend all that remains on noisy tables of every workload marginal, in proportion to the
    workload's weights.

    The noise is discrete Gaussian, or discrete Laplace for a pure budget. The release answers from
    the tables as measured (clipped, see `Gaussian`). These do not agree with one another, and no
    records can be drawn from them. Raises InvalidInput (before anything is spent) for a workload
    over another domain.
    """
    settings = settings or Gaussian()
    workload = Workload.over(curator.domain, workload)
    measurements = _measure(curator, workload, curator.measure)
    lowest = 0.0 if settings.clip else -math.inf
    tables = {
        m.clique: np.maximum(m.values, lowest).reshape(curator.domain.shape(m.clique))
        for m in measurements
    }
    total = curator.public_total
    known = max(1.0, estimate_total(measurements).value) if total is None else total
    model = TablesModel(curator.domain, tables, known)
    return Release("gaussian", model, measurements, curator.ledger, settings)


@typed
def projection(
    curator: Curator,
    workload: WorkloadLike,
    settings: Projection | None = None,
    *,
    first: Sequence[Measurement] = (),
    zeros: Sequence[Zeros] = (),
) -> Release:
    """Measure the same marginals as `gaussian`, and release the nearest consistent model.

    It is a graphical model over the workload's cliques if its junction tree takes at most
    `model_mb`, otherwise nonnegative tables that agree on shared attributes
    (`mechanisms.families.tables.projected`).

    `first`: noisy tables that are known already, which are used too. `zeros`: combinations of
    probability zero. Raises InvalidInput (before anything is spent) for a workload over another
    domain, and ModelTooLarge for tables that the memory left cannot make agree.
    """
    settings = settings or Projection()
    workload = Workload.over(curator.domain, workload)
    cliques = [*[m.clique for m in first], *workload.cliques]
    check_projection(curator.domain, cliques, cliques, settings)
    measurements = (*first, *_measure(curator, workload, curator.measure))
    total = curator.public_total
    model = projected(curator.domain, measurements, measurements, total, settings, zeros)
    return Release("gaussian+projection", model, measurements, curator.ledger, settings)


@typed
def independent(
    curator: Curator,
    workload: WorkloadLike,
    settings: Independent | None = None,
    *,
    first: Sequence[Measurement] = (),
) -> Release:
    """Spend all that remains evenly on the one-way marginals; all other marginals are their
    products. If the workload asks queries other than cells, each attribute is measured by rows that
    suit its own queries.

    `first`: measurements that the Curator has made before, which the model uses too. Raises
    InvalidInput (before anything is spent) for a workload over another domain.
    """
    settings = settings or Independent()
    workload = Workload.over(curator.domain, workload)
    queries = CliqueQueries(workload, pure=curator.ledger.budget.pure)
    singles = Workload(curator.domain, [(name,) for name in varied(curator.domain)])
    measure = partial(queries.measure, curator, step="measure")
    measurements = (*first, *_measure(curator, singles, measure))
    model = estimator(curator.domain, curator.public_total, device=settings.device)(
        None, measurements
    )
    return Release("independent", model, measurements, curator.ledger, settings)


def _measure(
    curator: Curator, workload: Workload, measure: Callable[[Clique, float], Measurement]
) -> tuple[Measurement, ...]:
    """Spend all that remains on the workload's cliques, in proportion to their weights. `measure`
    measures a clique at a given cost.
    """
    whole, weight = curator.remaining, math.fsum(workload.weights)
    costs = [whole * each / weight for each in workload.weights[:-1]]
    measurements = [
        measure(clique, cost) for clique, cost in zip(workload.cliques[:-1], costs, strict=True)
    ]
    measurements.append(measure(workload.cliques[-1], curator.remaining))
    return tuple(measurements)
