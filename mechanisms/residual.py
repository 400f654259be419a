"""The residual planner: the best noise for the workload's marginals, each answered without a model.

Xiao, He, Zhang and Kifer, "An Optimal and Scalable Matrix Mechanism for Noisy Marginals under
Convex Loss Functions" (NeurIPS 2023). The orthogonal parts of the workload's marginals are measured
(`mechanisms.strategies.residuals`), with shares of the budget that depend on the workload alone;
every marginal inside a clique of the workload is the sum of its parts
(`mechanisms.families.residual_tables`). All pairs of a hundred attributes take seconds.

The measurements can be given to `pgmkit.estimate` like any others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mechanisms.families.residual_tables import ResidualTables
from mechanisms.families.tables import TablesModel
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.settings import Settings, flag, one_of, setting
from mechanisms.strategies.residuals import Objective, residual_matrix, residuals_strategy
from mechanisms.workload import Workload, WorkloadLike

if TYPE_CHECKING:
    from pgmkit.domain import Clique
    from pgmkit.measurement import Measurement

__all__ = ["Residual", "measure_residuals", "residual"]


@dataclass(frozen=True)
class Residual(Settings):
    """Settings of the residual planner.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        objective: What is minimised, by the workload's weights: the "sum" of the variances of all
            its cells, or the "largest" variance of a cell.
        clip: Whether cells below zero are released as zero. Each cell's error falls, but the tables
            no longer agree and sums of many cells are biased upwards; the release's measurements
            hold the unclipped values, from which `ResidualTables` makes tables that agree.
    """

    objective: Literal["sum", "largest"] = setting("sum", one_of("sum", "largest"))
    clip: bool = setting(True, flag())


def residual(curator: Curator, workload: WorkloadLike, settings: Residual | None = None) -> Release:
    """Spend all that remains on the residuals of the workload, and release its marginals as tables.

    Raises InvalidInput (before anything is spent) for a workload over another domain, or one that
    asks for nothing but a public total.
    """
    settings = settings or Residual()
    workload = Workload.over(curator.domain, workload)
    measurements = measure_residuals(curator, workload, settings.objective)
    parts = ResidualTables(curator.domain, measurements, curator.public_total)
    tables = {clique: parts.marginal(clique) for clique in workload.cliques}
    if settings.clip:
        tables = {clique: table.clip(min=0.0) for clique, table in tables.items()}
    model = TablesModel(curator.domain, tables, max(1.0, float(parts.marginal(()))))
    return Release("residual", model, measurements, curator.ledger, settings)


def measure_residuals(
    curator: Curator, workload: Workload, objective: Objective = "sum"
) -> tuple[Measurement, ...]:
    """Spend all that remains on every residual of the workload, by the best shares.

    Raises InvalidInput (before anything is spent) for a workload that asks for nothing but a public
    total.
    """
    norm = 1 if curator.ledger.budget.pure else 2
    known = curator.public_total is not None
    strategy = residuals_strategy(
        workload, curator.neighbours, norm, total_known=known, objective=objective
    )
    whole = curator.remaining
    *others, last = strategy.shares
    measurements = [_measure(curator, each, strategy.shares[each] * whole) for each in others]
    return (*measurements, _measure(curator, last, curator.remaining))


def _measure(curator: Curator, residual: Clique, cost: float) -> Measurement:
    if not residual:
        return curator.measure((), cost)
    return curator.measure_queries(residual, residual_matrix(curator.domain, residual), cost)
