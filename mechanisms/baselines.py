"""Baselines for comparison: noise on all marginals, and independent columns.

Nothing is selected: the budget goes to the workload's marginals (or to the one-way marginals) in
shares fixed beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from mechanisms.families.graphical import estimator
from mechanisms.families.tables import Projecting, TablesModel, check_projection, projected
from mechanisms.privacy.curator import Curator
from mechanisms.rounds.loop import Outcome, mechanism
from mechanisms.rounds.select_and_measure import known_total, spend
from mechanisms.settings import Settings, flag, setting, torch_device
from mechanisms.strategies.clique_queries import CliqueQueries
from mechanisms.workload import Workload, varied
from pgmkit import Measurement, Zeros
from pgmkit.domain import Clique
from pgmkit.records.counting import check_memory


@dataclass(frozen=True)
class Gaussian(Settings):
    """Settings of noise on all workload marginals.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        clip: Whether cells below zero are released as zero, as no count is negative. Each cell's
            error falls, but sums of many cells are biased upwards; the release's measurements hold
            the unclipped values.
    """

    clip: bool = setting(True, flag())


@dataclass(frozen=True)
class Projection(Projecting):
    """Settings of noise on all workload marginals, from which a consistent model is estimated.

    Raises InvalidInput for values outside the ranges of `Projecting`.
    """


@dataclass(frozen=True)
class Independent(Settings):
    """Settings of one-way marginals.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        device: Where models are estimated: "cpu", a CUDA GPU such as "cuda", or "auto": a GPU if
            there is one and the model is large enough to gain (`pgmkit.runtime.devices`).
    """

    device: str = setting("cpu", torch_device())


@mechanism("gaussian", Gaussian)
def gaussian(curator: Curator, workload: Workload, settings: Gaussian) -> Outcome:
    """Spend all that remains on noisy tables of every workload marginal, in proportion to the
    workload's weights, and return their release.

    The noise is discrete Gaussian, or discrete Laplace for a pure budget. The release answers from
    the tables as measured (clipped, see `Gaussian`). These do not agree with one another, and no
    records can be drawn from them. Raises, before anything is spent, InvalidInput for a workload
    over another domain, and ModelTooLarge for a table that is too large to count.
    """
    for clique in workload.cliques:
        check_memory([clique], curator.domain.sizes)
    measurements = spend(curator, workload.by_clique, curator.measure)
    lowest = 0.0 if settings.clip else -math.inf
    shape = curator.domain.shape
    tables = {m.clique: np.maximum(m.values, lowest).reshape(shape(m.clique)) for m in measurements}
    return TablesModel(curator.domain, tables, known_total(curator, measurements)), measurements


@mechanism("gaussian+projection", Projection)
def projection(
    curator: Curator,
    workload: Workload,
    settings: Projection,
    *,
    first: Sequence[Measurement] = (),
    zeros: Sequence[Zeros] = (),
) -> Outcome:
    """Spend all that remains on noisy tables of every workload marginal, in proportion to the
    workload's weights, and return the release of the consistent model that is nearest to them.

    Unless `inference` is "region", the model is a graphical model over the measured cliques if
    their junction tree takes at most `model_mb`. Otherwise it has tables that agree on shared
    attributes: a region model or, with "exact" and no zeros, nonnegative tables that draw no
    records (`mechanisms.families.tables.projected`).

    `first`: noisy tables that are known already, which are used too. `zeros`: combinations of
    probability zero. Raises, before anything is spent, InvalidInput for a workload over another
    domain, and ModelTooLarge if too little memory is left to make tables agree.
    """
    cliques = [*[m.clique for m in first], *workload.cliques]
    check_projection(curator.domain, cliques, cliques, settings, zeros)
    measurements = (*first, *spend(curator, workload.by_clique, curator.measure))
    total = curator.public_total
    model = projected(curator.domain, measurements, measurements, total, settings, zeros)
    return model, measurements


@mechanism("independent", Independent)
def independent(
    curator: Curator,
    workload: Workload,
    settings: Independent,
    *,
    first: Sequence[Measurement] = (),
) -> Outcome:
    """Spend all that remains evenly on the one-way marginals of the attributes with more than one
    value (of all, if none has more). Return the release of a model in which all other marginals are
    their products. If the workload asks queries other than cells, each attribute is measured by
    rows that suit its own queries.

    `first`: measurements that the Curator has made before, which the model uses too. Raises
    InvalidInput (before anything is spent) for a workload over another domain.
    """
    queries = CliqueQueries(workload, pure=curator.ledger.budget.pure)
    singles: dict[Clique, float] = {(name,): 1.0 for name in varied(curator.domain)}
    measure = partial(queries.measure, curator, step="measure")
    measurements = (*first, *spend(curator, singles, measure))
    fit = estimator(curator.domain, curator.public_total, device=settings.device)
    return fit(None, measurements), measurements
