"""Certified lower bounds on the optimum, by MAP inference.

A cut is an affine function ``offset + <gradient, mu>`` of the marginals that never exceeds the
loss. Its minimum over the marginal polytope bounds the optimum from below. The minimum is attained
at a single record, which min-sum on the same contraction plan finds. With the cut at the iterate
this is the Frank-Wolfe gap (Jaggi, 2013).

The multipliers of such a cut are the variables of the dual problem,

    maximise  -phi*(u) - <u, b> + total t   over u and t,   (A'u)(x) >= t for every record x,

where A are the standardised measurements, b their values, and phi* the conjugate of the penalty
phi. ``ascent`` is a step of max-sum averaging for this dual problem (Werner, 2007; Globerson and
Jaakkola, 2007), with the joint distribution as the only block: the amount by which a record's cost
is below t is divided evenly among the K tables, in each of which the record has a cell.
"""

from __future__ import annotations

from math import inf

import torch

from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.losses import Cut, MeasuredLoss
from pgmkit.runtime.precision import ULPS


def lower_bound(inference: MarginalOracle, cut: Cut, total: float) -> float:
    """Return a lower bound on the loss of all marginals of this total: the minimum of the cut (an
    affine function below the loss), less the rounding of its large terms, which cancel each other.
    """
    return _bound(inference, cut, total, inference.maximum(-cut.gradient))


def ascent(
    inference: MarginalOracle, loss: MeasuredLoss, dual: torch.Tensor, total: float
) -> tuple[float, torch.Tensor]:
    """Return the lower bound by the multipliers ``dual``, one for each measured value, and new
    multipliers, whose own bound is usually higher.

    The cost of a record is the sum of the cut's gradient at its cells, one in each of K tables. For
    each cell, let m be the least cost of a record with this cell. If the cost of every cell is
    changed by (t - m) / K, no record costs less than t, since a record costs at least the mean of m
    over its K cells.

    So for a given t each multiplier has a lower limit, at which the costs change by at least this
    much, and the best t has a closed form. The penalty must have a positive curvature. The
    multipliers of measured matrices do not change.
    """
    cut, observations, curvature = loss.cut_of_dual(dual), loss.observations, loss.penalty.curvature
    highest = inference.max_marginals(-cut.gradient)
    bound = _bound(inference, cut, total, float(highest.max()))
    weights, tables = observations.table_weights, observations.tables
    if not tables:
        return bound, dual
    of_tables, weights = weights > 0, weights.clamp_min(torch.finfo(weights.dtype).tiny)
    free = -observations.target / curvature - dual  # the change to the unconstrained optimum
    least = -observations.highest(highest)
    # A cell's change is the larger of ``free`` and a lower limit that grows with t; ``levels`` has
    # the t at which both are equal. As t grows, the bound rises at the rate ``total`` and falls at
    # the rate sum(slopes * (t - levels)) over the cells with a level below t. At the best t the two
    # rates are equal.
    levels = torch.where(of_tables, least + tables * weights * free, torch.inf)
    slopes = curvature / (tables * weights).square()
    level = _filled(levels[of_tables], slopes[of_tables], total)
    change = torch.maximum((level - least) / (tables * weights), free)
    moved = dual + torch.where(of_tables, change, 0.0)
    return bound, moved.clamp(-loss.penalty.steepest, loss.penalty.steepest)


def _filled(levels: torch.Tensor, slopes: torch.Tensor, total: float) -> float:
    """Return the t at which sum(slopes * max(0, t - levels)) equals ``total``.

    Newton's method from above ends there, since the sum is convex and piecewise linear.
    """
    weighted, level = slopes * levels, inf
    while True:
        below = levels < level
        lower = float((total + weighted[below].sum()) / slopes[below].sum())
        if not lower < level:
            return level
        level = lower


def _bound(inference: MarginalOracle, cut: Cut, total: float, highest: float) -> float:
    """Return the minimum of the cut over all marginals of this total, less its rounding.
    ``highest`` is the maximum over the records of the sum of the negative gradient at the record's
    cells.
    """
    size = cut.size + total * float(inference.shifts.peaks(cut.gradient.abs()).sum())
    return cut.offset - total * highest - ULPS * torch.finfo(cut.gradient.dtype).eps * size
