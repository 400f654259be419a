"""A certified lower bound of the optimum from a cut of the loss, by MAP inference.

If ``offset + <gradient, mu>`` nowhere exceeds the loss, its minimum over the marginal polytope
bounds
the optimum from below, and that minimum is attained at a single record: min-sum on the same
contraction plan. With the cut at the iterate this is the Frank-Wolfe gap (Jaggi, 2013).
"""

from __future__ import annotations

from pgmkit.belief_propagation import BeliefPropagation
from pgmkit.losses import Cut


def lower_bound(inference: BeliefPropagation, cut: Cut, total: float) -> float:
    """No marginals of this total have a loss below the returned value."""
    return cut.offset - total * inference.maximum(-cut.gradient)
