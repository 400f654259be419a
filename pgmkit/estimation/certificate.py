"""Certified lower bounds of the optimum, by MAP inference.

A cut is an affine function ``offset + <gradient, mu>`` of the marginals that never exceeds the
loss. Its minimum over the marginal polytope bounds the optimum from below, and is attained at a
single record: min-sum on the same contraction plan. With the cut at the iterate this is the
Frank-Wolfe gap (Jaggi, 2013).

The multipliers of such a cut are the variables of the dual problem,

    maximise  -phi*(u) - <u, b> + total t   over u and t,   (A'u)(x) >= t for every record x,

A the standardised measurements and b their values. ``ascent`` is a step of max-sum averaging in it
(Werner, 2007; Globerson and Jaakkola, 2007), with the joint distribution as the only block: what a
record's cost falls short of t by is shared evenly among the K tables that it has a cell in.
"""

from __future__ import annotations

import torch

from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.losses import ULPS, Cut, MeasuredLoss


def lower_bound(inference: MarginalOracle, cut: Cut, total: float) -> float:
    """Return a number that the loss of no marginals of this total is below: the cut's minimum,
    minus the rounding of its large terms, which cancel each other.
    """
    return _bound(inference, cut, total, inference.maximum(-cut.gradient))


def ascent(
    inference: MarginalOracle, loss: MeasuredLoss, dual: torch.Tensor, total: float
) -> tuple[float, torch.Tensor]:
    """The lower bound by these multipliers, and multipliers whose own bound is mostly higher.

    With m the least cost of a record in each cell of a table, no record costs less than t once each
    cell's cost has risen by (t - m) / K, or fallen by as much: a record costs at least the mean of
    its cells' m. That leaves each multiplier a lower limit, and the best t in closed form. The loss
    has a curvature. Values of matrices keep their multipliers.
    """
    cut, observations, curvature = loss.cut_of_dual(dual), loss.observations, loss.penalty.curvature
    highest = inference.max_marginals(-cut.gradient)
    bound = _bound(inference, cut, total, float(highest.max()))
    weights, tables = observations.table_weights, observations.tables
    if not tables:
        return bound, dual
    of_tables, weights = weights > 0, weights.clamp_min(torch.finfo(weights.dtype).tiny)
    free = -observations.target / curvature - dual  # what no record holds back
    least = -observations.highest(highest)
    # The multiplier of a cell leaves ``free`` behind from this level on.
    levels = torch.where(of_tables, least + tables * weights * free, torch.inf)
    slopes = curvature / (tables * weights).square()
    level = _filled(levels[of_tables], slopes[of_tables], total)
    change = torch.maximum((level - least) / (tables * weights), free)
    moved = dual + torch.where(of_tables, change, 0.0)
    return bound, moved.clamp(-loss.penalty.steepest, loss.penalty.steepest)


def _filled(levels: torch.Tensor, slopes: torch.Tensor, total: float) -> float:
    """The t at which sum(slopes * max(0, t - levels)) is ``total``."""
    levels, order = levels.sort()
    slopes = slopes[order]
    reached = (total + (slopes * levels).cumsum(0)) / slopes.cumsum(0)
    above = torch.cat([levels[1:], levels.new_full((1,), torch.inf)])
    return float(reached[(reached <= above).nonzero()[0, 0]])


def _bound(inference: MarginalOracle, cut: Cut, total: float, highest: float) -> float:
    """``highest``: the largest sum over a record of the negative gradient."""
    size = cut.size + total * inference.peak_sum(cut.gradient.abs())
    return cut.offset - total * highest - ULPS * torch.finfo(cut.gradient.dtype).eps * size
