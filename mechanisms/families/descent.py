"""Gradient descents that fit model families: `descend` runs an optimiser of torch, which
differentiates the loss automatically, and `adam` gets the gradient from its caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch


def descend(
    optimizer: torch.optim.Optimizer,
    losses: Iterable[torch.Tensor | None],
    steps: int,
    *,
    last_rate: float | None = None,
    enough: Callable[[Sequence[float]], bool] | None = None,
) -> None:
    """Take at most `steps` steps down the losses; each loss is computed after the step before it.

    A loss of None ends the descent: there is nothing to train on. `last_rate`: the rate at the end
    of a cosine over all steps; None keeps the rate constant. The descent ends before a step if
    `enough(losses so far)` is true; None is never true.

    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = torch.optim.Adam([x], lr=0.5)
    >>> descend(optimizer, iter(lambda: x.square().sum(), None), 200, last_rate=1e-3)
    >>> abs(x.item()) < 1e-2
    True
    """
    schedule = None
    if last_rate is not None:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, last_rate)
    seen: list[float] = []
    upcoming = iter(losses)
    for _ in range(steps):
        loss = next(upcoming, None)
        if loss is None:
            return
        if enough is not None:
            seen.append(float(loss.detach()))
            if enough(seen):
                return
        optimizer.zero_grad()
        torch.autograd.backward([loss])
        optimizer.step()
        if schedule is not None:
            schedule.step()


def fitted_or_stalled(losses: Sequence[float]) -> bool:
    """Return True if the last loss is at most 1, or if losses have stopped falling (`stalled`). A
    loss is a mean squared error in units of the noise's variance, so noise alone explains 1.
    """
    return losses[-1] <= 1 or stalled(losses)


def stalled(losses: Sequence[float], window: int = 50, least_gain: float = 1e-3) -> bool:
    """Return True if the least loss fell by less than `least_gain`, a fraction of it, over the last
    `window` losses together; False for at most `window` losses.

    >>> stalled([5.0] * 50), stalled([5.0] * 51)
    (False, True)
    """
    before = losses[:-window]
    return len(before) > 0 and min(losses) > min(before) * (1 - least_gain)


def adam(
    variables: torch.Tensor,
    gradient: Callable[[torch.Tensor], torch.Tensor],
    steps: int,
    rate: float,
) -> None:
    """Minimise a function of `variables`, which are changed in place, by `steps` steps of Adam
    (Kingma and Ba 2015, Algorithm 1). `gradient(variables)` returns the gradient; it may also
    change the variables in place.

    What the paper calls beta_1, beta_2 and epsilon is 0.9, 0.99 and 1e-8 here. The rate falls from
    `rate` towards a fiftieth of it along a cosine over all steps. No optimiser of torch is used,
    because the first step of one loads torch's compiler: that takes nearly two seconds of processor
    time, longer than the fits for which this function is used.

    >>> x = torch.tensor([3.0])
    >>> adam(x, lambda x: 2 * x, 200, rate=0.5)
    >>> abs(x.item()) < 1e-2
    True
    """
    mean, square, scale = (torch.zeros_like(variables) for _ in range(3))
    of_mean, of_square, last_rate = 0.9, 0.99, rate / 50
    for step in range(steps):
        slope = gradient(variables)
        mean.lerp_(slope, 1 - of_mean)
        square.mul_(of_square).addcmul_(slope, slope, value=1 - of_square)
        now = last_rate + (rate - last_rate) * (1 + math.cos(math.pi * step / steps)) / 2
        # The means start at 0, so both are divided by the total weight of their terms.
        torch.sqrt(square, out=scale).div_((1 - of_square ** (step + 1)) ** 0.5).add_(1e-8)
        variables.addcdiv_(mean, scale, value=-now / (1 - of_mean ** (step + 1)))
