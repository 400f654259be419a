"""The matrix mechanism: the strategy of least error for the workload's queries, measured once.

With Gaussian noise residuals are measured, in bases made for the queries
(`mechanisms.strategies.residuals`, after ResidualPlanner and ResidualPlanner+ of Xiao, He, Zhang
and Kifer); all pairs of a hundred attributes take seconds. With Laplace noise, or where a row is
replaced, the strategies of HDMM (McKenna, Miklau, Hay and Machanavajjhala 2018) compete with them:
marginals (`mechanisms.strategies.marginals`) and, for Laplace noise, products of p-Identity
matrices (`mechanisms.strategies.products`). The expected error depends on the workload alone, so
the choice costs nothing. Answers are those of least squares, without a model; `matrix_pgm` fits a
model to the same measurements instead, which can be given to `pgmkit.estimate` like any others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from mechanisms.families.tables import (
    Projecting,
    TablesModel,
    check_projection,
    least_squares_table,
    projected,
)
from mechanisms.privacy.curator import Curator
from mechanisms.queries.query_sets import QUERIES
from mechanisms.rounds.loop import Outcome, mechanism
from mechanisms.rounds.select_and_measure import known_total, spend
from mechanisms.settings import RULE, Settings, flag, mapping_to, one_of, setting
from mechanisms.strategies.best import Goal, Strategy, best_strategy
from mechanisms.strategies.marginals import MarginalsStrategy
from mechanisms.strategies.products import ProductsStrategy
from mechanisms.strategies.residuals import ResidualsStrategy
from mechanisms.workload import Workload
from pgmkit.domain import Clique
from pgmkit.least_squares.residual_tables import ResidualTables
from pgmkit.measurement import Measurement
from pgmkit.records.counting import check_memory
from pgmkit.runtime.iterations import SLIGHT

_NAMED_QUERIES = {RULE: mapping_to(one_of(*QUERIES))}


@dataclass(frozen=True)
class Asking(Settings):
    """The setting of mechanisms that measure queries other than single codes.

    Attributes:
        queries: The queries asked along an attribute, by the attribute's name: "identity" (the
            default: every code), "prefix" (cumulative counts), "range" (every interval), "circular"
            (every interval on a circle), "hierarchy" (intervals of 1, 2, 4, ... codes), "moments"
            (number, sum and sum of squares) or "distance" (the sum of |a - b| for each code b),
            where the workload says nothing else. A workload clique stands for all combinations of
            its attributes' queries.
    """

    queries: Mapping[str, str] = field(default_factory=dict, metadata=_NAMED_QUERIES)


@dataclass(frozen=True)
class Matrix(Asking):
    """Settings of the matrix mechanism.

    Raises InvalidInput for values outside the ranges below and those of `Asking`.

    Attributes:
        objective: What is minimised, by the workload's weights: the "sum" of the variances of all
            its queries, the sum of the "mean" variances of its sets of queries, or the "largest"
            variance of one query.
        clip: Whether cells below zero are released as zero in tables that are asked code by code.
            Each cell's error falls, but the tables no longer agree and sums of many cells are
            biased upwards; the measurements hold the values as they came, from which
            `ResidualTables` makes tables that agree. Tables with other queries stay as they are.
    """

    objective: Literal["sum", "mean", "largest"] = setting("sum", one_of("sum", "mean", "largest"))
    clip: bool = setting(True, flag())


@dataclass(frozen=True)
class MatrixPgm(Projecting, Asking):
    """Settings of the matrix mechanism with a model of its answers.

    Raises InvalidInput for values outside the ranges below and those of `Projecting` and `Asking`.

    Attributes:
        objective: What is minimised, by the workload's weights: the "sum" of the variances of all
            its queries, the sum of the "mean" variances of its sets of queries, or the "largest"
            variance of one query.
    """

    objective: Literal["sum", "mean", "largest"] = setting("sum", one_of("sum", "mean", "largest"))


@mechanism("matrix", Matrix)
def matrix(curator: Curator, workload: Workload, settings: Matrix) -> Outcome:
    """Spend all that remains on the best strategy, and release the workload's marginals as tables.

    Raises InvalidInput (before anything is spent) for a workload over another domain, queries on
    attributes that are not in it, or a workload that asks for nothing but a public total;
    ModelTooLarge for a table that memory does not hold.
    """
    workload = workload.asking(settings.queries)
    strategy = _chosen(curator, workload, settings.objective)
    measurements = _measured(curator, strategy)
    known, domain = curator.public_total, curator.domain
    noisy = _tables(workload, strategy, measurements, known)
    tables = {m.clique: m.values.reshape(domain.shape(m.clique)) for m in noisy}
    if settings.clip:
        asked = {frozenset(each.clique) for each in workload.sets if not each.plain}
        tables = {c: t if frozenset(c) in asked else t.clip(min=0.0) for c, t in tables.items()}
    total = known_total(curator, measurements)
    if not tables:  # the workload asks for the total alone
        tables[()] = np.array(total)
    return TablesModel(domain, tables, total), measurements


@mechanism("matrix+pgm", MatrixPgm)
def matrix_pgm(curator: Curator, workload: Workload, settings: MatrixPgm) -> Outcome:
    """Spend all that remains on the best strategy, and release a model of its answers.

    It is a graphical model if the junction tree of the measured cliques takes at most `model_mb`.
    Otherwise, or always with `inference` "region", it has tables that agree on shared attributes: a
    region model or, with "exact", nonnegative tables that draw no records
    (`mechanisms.families.tables.projected`).

    Raises InvalidInput (before anything is spent) for a workload over another domain, queries on
    attributes that are not in it, or a workload that asks for nothing but a public total;
    ModelTooLarge for tables that the memory left cannot hold or make agree.
    """
    workload = workload.asking(settings.queries)
    strategy = _chosen(curator, workload, settings.objective)
    tabled = workload.cliques if isinstance(strategy, ResidualsStrategy) else tuple(strategy.shares)
    check_projection(curator.domain, strategy.shares, tabled, settings)
    measurements = _measured(curator, strategy)
    total = curator.public_total
    whole = isinstance(strategy, MarginalsStrategy)  # whole marginals are measured
    tables = measurements if whole else _tables(workload, strategy, measurements, total)
    return projected(curator.domain, measurements, tables, total, settings), measurements


def _chosen(curator: Curator, workload: Workload, objective: Goal) -> Strategy:
    norm = 1 if curator.ledger.budget.pure else 2
    known = curator.public_total is not None
    strategy = best_strategy(
        workload, curator.neighbours, norm, total_known=known, objective=objective
    )
    for clique in strategy.shares:
        check_memory([clique], curator.domain.sizes)  # before the first charge
    return strategy


def _measured(curator: Curator, strategy: Strategy) -> tuple[Measurement, ...]:
    pure = curator.ledger.budget.pure
    if isinstance(strategy, ResidualsStrategy) and not pure and curator.neighbours.exchanged:
        return _at_once(curator, strategy)
    return tuple(spend(curator, strategy.shares, partial(_measure, curator, strategy)))


def _at_once(curator: Curator, strategy: ResidualsStrategy) -> tuple[Measurement, ...]:
    """Spend all that remains on the residuals of the strategy, all together at one charge, which is
    at most the sum of their separate costs; a total that is not public is measured separately
    before.
    """
    shares = dict(strategy.shares)
    total = shares.pop((), None)
    first = () if total is None else (curator.measure((), total * curator.remaining),)
    if not shares:
        return first
    queries = {clique: strategy.rows(clique) for clique in shares}
    whole = sum(shares.values())
    parts = [share / whole for share in shares.values()]
    return (*first, *curator.measure_together(queries, parts, curator.remaining))


def _measure(curator: Curator, strategy: Strategy, clique: Clique, cost: float) -> Measurement:
    if isinstance(strategy, MarginalsStrategy) or not clique:
        return curator.measure(clique, cost)
    if isinstance(strategy, ResidualsStrategy):
        return curator.measure_queries(clique, strategy.rows(clique), cost)
    return curator.measure_queries(clique, [strategy.rows[name] for name in clique], cost)


def _tables(
    workload: Workload, strategy: Strategy, measurements: tuple[Measurement, ...], total: int | None
) -> Sequence[Measurement]:
    """Return noisy marginals over cliques that contain the workload's. If a marginal is computed
    from other queries or from residuals, its standard deviation is the square root of the mean
    variance of its cells. A table of one cell that is a public total has no noise; its standard
    deviation, which must be above zero, is a hundredth of a count.
    """
    if isinstance(strategy, ProductsStrategy):
        return [least_squares_table(m) for m in measurements]
    residuals = ResidualTables(workload.domain, measurements, total)
    return [
        Measurement(c, residuals.marginal(c), float(residuals.variance(c).mean()) ** 0.5 or SLIGHT)
        for c in workload.cliques
        if c
    ]
