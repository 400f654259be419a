"""HDMM: the strategy of least expected error for the workload, measured once.

McKenna, Miklau, Hay and Machanavajjhala, "Optimizing error of high-dimensional statistical queries
under differential privacy" (2018). Two kinds of strategies compete, marginals
(`mechanisms.strategies.marginals`) and a union of products of p-Identity matrices
(`mechanisms.strategies.products`), L1-normalised for Laplace noise and L2-normalised for Gaussian.
The expected error depends on the workload alone, so the choice costs nothing. Reconstruction is by
least squares within marginals; `hdmm_pgm` fits a model to the same answers instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mechanisms.families.lattice import least_squares
from mechanisms.families.tables import TablesModel, least_squares_table, projected
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.settings import (
    RULE,
    Settings,
    at_least,
    flag,
    mapping_to,
    one_of,
    setting,
    torch_device,
)
from mechanisms.strategies.marginals import MarginalsStrategy, marginals_strategy
from mechanisms.strategies.p_identity import QUERIES, query_gram
from mechanisms.strategies.products import ProductsStrategy, products_strategy
from mechanisms.workload import Workload, WorkloadLike
from pgmkit.domain import Domain
from pgmkit.measurement import Measurement
from pgmkit.total import estimate_total

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pgmkit.domain import Clique

__all__ = ["Hdmm", "HdmmPgm", "best_strategy", "hdmm", "hdmm_pgm"]

Strategy = MarginalsStrategy | ProductsStrategy

_NAMED_QUERIES = {RULE: mapping_to(one_of(*QUERIES))}


@dataclass(frozen=True)
class Hdmm(Settings):
    """Settings of HDMM.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        queries: The queries on an attribute, by its name: "identity" (the default: every code),
            "prefix" (cumulative counts) or "range" (every interval). A workload clique stands for
            all combinations of its attributes' queries.
        clip: Whether cells below zero are released as zero. Each cell's error falls, but the tables
            no longer agree and sums of many cells are biased upwards.
    """

    queries: Mapping[str, str] = field(default_factory=dict, metadata=_NAMED_QUERIES)
    clip: bool = setting(True, flag())


@dataclass(frozen=True)
class HdmmPgm(Settings):
    """Settings of HDMM+PGM.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        queries: The queries on an attribute, as in `Hdmm`.
        model_mb: The largest junction tree of the measured cliques, in MB (2^20 bytes) of float64
            cells, for which the result is a graphical model, 0 or above. Beyond it the result is
            locally consistent nonnegative tables, which draw no records.
        inference: Whether to use a region model of such tables, which draws records near them
            (`pgmkit.RegionModel`): "exact" never, "auto" beyond `model_mb`, "region" always.
        device: Where models are estimated: "cpu", a CUDA GPU such as "cuda", or "auto": a GPU if
            there is one and the model is large enough to gain (`pgmkit.runtime.devices`).
    """

    queries: Mapping[str, str] = field(default_factory=dict, metadata=_NAMED_QUERIES)
    model_mb: float = setting(80.0, at_least(0))
    inference: Literal["exact", "auto", "region"] = setting(
        "exact", one_of("exact", "auto", "region")
    )
    device: str = setting("cpu", torch_device())


def hdmm(curator: Curator, workload: WorkloadLike, settings: Hdmm | None = None) -> Release:
    """Spend all that remains on the best strategy, and release the workload's marginals by least
    squares.

    Raises InvalidInput (before anything is spent) for a workload over another domain, or queries on
    attributes that are not in it.
    """
    settings = settings or Hdmm()
    workload = Workload.over(curator.domain, workload)
    strategy, measurements = _measured(curator, workload, settings.queries)
    total = curator.public_total
    tables = _reconstructed(curator.domain, workload, strategy, measurements, total)
    if settings.clip:
        tables = {clique: table.clip(min=0.0) for clique, table in tables.items()}
    known = total or max(1.0, estimate_total(measurements).value)
    model = TablesModel(curator.domain, tables, known)
    return Release("hdmm", model, measurements, curator.ledger, settings)


def hdmm_pgm(curator: Curator, workload: WorkloadLike, settings: HdmmPgm | None = None) -> Release:
    """Spend all that remains on the best strategy, and release a model of its answers.

    It is a graphical model if the junction tree of the measured cliques takes at most `model_mb`,
    otherwise consistent nonnegative tables (`mechanisms.families.tables.projected`).

    Raises InvalidInput (before anything is spent) for a workload over another domain, or queries on
    attributes that are not in it.
    """
    settings = settings or HdmmPgm()
    workload = Workload.over(curator.domain, workload)
    _, measurements = _measured(curator, workload, settings.queries)
    model = projected(curator.domain, measurements, curator.public_total, settings)
    return Release("hdmm+pgm", model, measurements, curator.ledger, settings)


def best_strategy(
    workload: Workload, queries: Mapping[str, str], *, norm: int, total_known: bool
) -> Strategy:
    """Return the strategy of least expected error for these queries; `norm` is 1 for Laplace noise,
    2 for Gaussian.

    >>> from pgmkit.domain import Domain
    >>> ages = Workload(Domain({"age": 64, "sex": 2}), [("age", "sex")])
    >>> type(best_strategy(ages, {"age": "range"}, norm=2, total_known=True)).__name__
    'ProductsStrategy'
    >>> type(best_strategy(ages, {}, norm=2, total_known=True)).__name__
    'MarginalsStrategy'
    """
    sizes = workload.domain.sizes
    grams = {name: query_gram(kind, sizes[name]) for name, kind in queries.items()}
    found: list[Strategy] = [
        marginals_strategy(workload, grams, norm, total_known),
        products_strategy(workload, grams, norm),
    ]
    return min(found, key=lambda strategy: strategy.expected_error)


def _measured(
    curator: Curator, workload: Workload, queries: Mapping[str, str]
) -> tuple[Strategy, tuple[Measurement, ...]]:
    curator.domain.clique(queries, "queries")
    norm = 1 if curator.ledger.budget.pure else 2
    known = curator.public_total is not None
    strategy = best_strategy(workload, queries, norm=norm, total_known=known)
    whole = curator.remaining
    *others, (last, _) = strategy.shares.items()
    costs = {clique: share * whole for clique, share in others}
    measurements = [_measure(curator, strategy, clique, cost) for clique, cost in costs.items()]
    measurements.append(_measure(curator, strategy, last, curator.remaining))
    return strategy, tuple(measurements)


def _measure(curator: Curator, strategy: Strategy, clique: Clique, cost: float) -> Measurement:
    if isinstance(strategy, MarginalsStrategy):
        return curator.measure(clique, cost)
    return curator.measure_queries(clique, [strategy.factors[name] for name in clique], cost)


def _reconstructed(
    domain: Domain,
    workload: Workload,
    strategy: Strategy,
    measurements: Sequence[Measurement],
    total: int | None,
) -> dict[Clique, NDArray[np.float64]]:
    if isinstance(strategy, MarginalsStrategy):
        return least_squares(domain, measurements, workload.cliques, total)
    tables = [least_squares_table(m) for m in measurements]
    return {m.clique: m.values.reshape(domain.shape(m.clique)) for m in tables}
