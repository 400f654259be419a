"""A certified lower bound of the optimum from a cut of the loss, by MAP inference.

A cut is an affine function ``offset + <gradient, mu>`` of the marginals that never exceeds the
loss. Its minimum over the marginal polytope bounds the optimum from below, and is attained at a
single record: min-sum on the same contraction plan. With the cut at the iterate this is the
Frank-Wolfe gap (Jaggi, 2013).
"""

from __future__ import annotations

import torch

from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.losses import ULPS, Cut


def lower_bound(inference: MarginalOracle, cut: Cut, total: float) -> float:
    """Return a number that the loss of no marginals of this total is below: the cut's minimum,
    minus the rounding of its large terms, which cancel each other.
    """
    scores = -cut.gradient
    highest = inference.maximum(scores)
    size = cut.size + total * inference.peak_sum(scores.abs())
    return cut.offset - total * highest - ULPS * torch.finfo(scores.dtype).eps * size
