"""This module minimises by accelerated dual averaging (Xiao, 2010, algorithm 3), which McKenna et
al. (2019, A.2) call the accelerated proximal algorithm.
"""

from __future__ import annotations

import torch

from pgmkit.estimation.mirror_descent import first_step
from pgmkit.estimation.problem import Monitor, Point, Problem


def dual_averaging(problem: Problem, start: Point, monitor: Monitor) -> Point:
    """Minimise by v_t = mu(theta_0 - t (t + 1) / (4 K) g_t), where g_t is the weighted mean of the
    gradients so far and mu(theta) are the marginals of potentials theta. Return the last v_t.

    Gradients are taken at (1 - 2 / (t + 1)) w + 2 / (t + 1) v, where w is the mean of the v_t with
    weights proportional to t. The paper takes the smoothness constant K as given. Here K is
    doubled, and the averages restart from the best model, whenever the Bregman test at w fails.
    """
    loss, gradient = problem.loss.value_and_gradient(start.marginals)
    smoothness = 1.0 / first_step(gradient) / 8
    model, centre = start, start
    mean, total_gradient, t = start.marginals, torch.zeros_like(gradient), 0
    while not monitor.record(model, loss):
        t += 1
        share = 2 / (t + 1)
        query = torch.lerp(mean, model.marginals, share)
        query_loss, gradient = problem.loss.value_and_gradient(query)
        total_gradient = total_gradient + t * gradient / 2
        new = problem.point(centre.potentials - total_gradient / smoothness)
        new_mean = torch.lerp(mean, new.marginals, share)
        linear = query_loss + float(gradient @ (new_mean - query))
        allowed = linear + share**2 * smoothness * problem.divergence(new, model)
        if problem.loss.value(new_mean) > allowed + 1e-12 * abs(query_loss):
            smoothness *= 2
            assert monitor.best is not None
            model = centre = monitor.best
            mean, total_gradient, t = centre.marginals, torch.zeros_like(gradient), 0
        else:
            model, mean = new, new_mean
        loss = problem.loss.value(model.marginals)
    return model
