"""A certified lower bound of the optimum from a cut of the loss, by MAP inference.

If ``offset + <gradient, mu>`` nowhere exceeds the loss, its minimum over the marginal polytope
bounds the optimum from below, and that minimum is attained at a single record: min-sum on the same
contraction plan. With the cut at the iterate this is the Frank-Wolfe gap (Jaggi, 2013).
"""

from __future__ import annotations

import torch

from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.losses import ULPS, Cut


def lower_bound(inference: MarginalOracle, cut: Cut, total: float) -> float:
    """No marginals of this total have a loss below the returned value.

    What rounding may have added is taken off: large terms of the cut cancel each other.
    """
    scores = -cut.gradient
    highest = inference.maximum(scores)
    size = cut.size + total * inference.peak_sum(scores.abs())
    return cut.offset - total * highest - ULPS * torch.finfo(scores.dtype).eps * size
