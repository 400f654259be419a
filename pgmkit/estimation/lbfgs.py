"""Direct optimisation of the potentials (McKenna et al., 2019, section A.3): L-BFGS with automatic
differentiation.

L(mu(theta)) is not convex in theta. In practice the optimum is reached, but more slowly than by the
proximal methods. The gradient is taken through the whole computation, including the marginal
oracle.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf

import numpy as np
import torch
from scipy.optimize import minimize

from pgmkit.contraction.evaluate import LINEAR, contract
from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.runtime.precision import SUM_ROUNDING

_OPTIONS = {"maxiter": 10_000, "maxfun": 20_000, "maxcor": 20, "ftol": 0.0, "gtol": 0.0}


class _Stop(Exception):
    """Raised to end L-BFGS."""


def lbfgs(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise L(mu(theta)) over theta with scipy's L-BFGS-B, from the start's potentials, and
    return the last point.
    """
    like = start.potentials
    last = start

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal last
        last = problem.point(torch.as_tensor(flat, dtype=like.dtype, device=like.device))
        loss, gradient = problem.loss.value_and_gradient(last.marginals)
        if monitor.record(last, loss):
            raise _Stop
        return loss, pull_back(problem, last, gradient).cpu().numpy().astype(np.float64)

    with suppress(_Stop):
        reached, flat = inf, like.cpu().numpy().astype(np.float64)
        while True:
            # scipy's line search ends where the objective is nearly flat; a new run without its
            # memory continues from there.
            found = minimize(objective, flat, jac=True, method="L-BFGS-B", options=_OPTIONS)
            if not found.fun < reached - SUM_ROUNDING * abs(found.fun):
                monitor.stopped = "line search: no further descent"
                break
            reached, flat = found.fun, found.x
    return last


def pull_back(problem: Problem, point: Point, gradient: torch.Tensor) -> torch.Tensor:
    """Return d L / d theta at a point, given the ``gradient`` d L / d mu: the product of this
    gradient and the matrix d mu / d theta, by differentiating the log partition function twice.
    """
    inference = problem.inference
    with torch.inference_mode(False), torch.enable_grad():
        theta = point.potentials.clone().requires_grad_()
        tables = inference.layout.split(inference.masked(theta))
        peaks = [table.amax().detach() for table in tables]
        # The partition function is scaled to 1, since that of many attributes would overflow.
        share = (point.log_partition - float(sum(peaks))) / len(peaks)
        shifted = [table - (peak + share) for table, peak in zip(tables, peaks, strict=True)]
        scaled = contract(inference.plan, [t.exp() for t in shifted], LINEAR)
        (fractions,) = torch.autograd.grad(scaled.log(), theta, create_graph=True)
        (pulled,) = torch.autograd.grad(fractions @ gradient.clone(), theta)
    return problem.total * pulled
