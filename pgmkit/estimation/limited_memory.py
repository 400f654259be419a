"""L-BFGS: a quasi-Newton method that remembers a few steps (Nocedal and Wright, algorithm 7.5).

It is for smooth convex functions of tensors without bounds. scipy's L-BFGS-B, which the project
uses for problems with bounds, spends time on them even if there are none: as long as an inference
pass with 80,000 variables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import isfinite

import torch

from pgmkit.runtime.iterations import MOST_ROUNDS, SUFFICIENT, WINDOW
from pgmkit.runtime.precision import HALVINGS

_Step = tuple[torch.Tensor, torch.Tensor, float]
"""A step, the change of the gradient over it, and the inverse of their inner product."""


def minimum(
    function: Callable[[torch.Tensor], tuple[float, torch.Tensor]],
    start: torch.Tensor,
    settled: Callable[[], bool],
) -> torch.Tensor:
    """Return the point at which the search ends: when ``settled()``, called after each step,
    returns True, or when no step lowers the value.

    ``function`` returns its value, which may be infinite or NaN, and its gradient.

    >>> def bowl(x):
    ...     return float(x @ x), 2 * x
    >>> minimum(bowl, torch.tensor([3.0, -4.0]), lambda: False)
    tensor([0., 0.])
    """
    point, (value, gradient) = start, function(start)
    steps: deque[_Step] = deque(maxlen=WINDOW)
    for _ in range(2 * MOST_ROUNDS):
        direction = _direction(gradient, steps)
        found = _descent(function, point, value, direction, float(gradient @ direction))
        if found is None:
            break
        moved, value, changed = found
        step, change = moved - point, changed - gradient
        product = float(step @ change)
        if product > 0:  # false only through rounding
            steps.append((step, change, 1 / product))
        point, gradient = moved, changed
        if settled():
            break
    return point


def _direction(gradient: torch.Tensor, steps: deque[_Step]) -> torch.Tensor:
    """Return minus the product of the gradient and the inverse Hessian that the remembered steps
    approximate.
    """
    direction, products = -gradient, []
    if not steps:
        return direction / max(1.0, float(gradient.abs().sum()))
    for step, change, inverse in reversed(steps):
        products.append(inverse * float(step @ direction))
        direction = torch.sub(direction, change, alpha=products[-1])
    _, change, inverse = steps[-1]
    direction *= 1 / (inverse * float(change @ change))
    for (step, change, inverse), product in zip(steps, reversed(products), strict=True):
        direction.add_(step, alpha=product - inverse * float(change @ direction))
    return direction


def _descent(
    function: Callable[[torch.Tensor], tuple[float, torch.Tensor]],
    point: torch.Tensor,
    value: float,
    direction: torch.Tensor,
    slope: float,
) -> tuple[torch.Tensor, float, torch.Tensor] | None:
    """Return a point along the direction whose value is sufficiently lower, with its value and
    gradient; None if rounding hides any descent. ``slope`` is the derivative along the direction.
    """
    length = 1.0
    for _ in range(HALVINGS):
        moved = point + length * direction
        reached, gradient = function(moved)
        if reached <= value + SUFFICIENT * length * slope:
            return (moved, reached, gradient) if reached < value else None
        above = reached - value - length * slope
        # This is the minimum of the parabola through both values with the known slope.
        lowest = -slope * length**2 / (2 * above) if isfinite(above) and above > 0 else 0.0
        length = min(max(lowest, 0.1 * length), 0.5 * length)
    return None
