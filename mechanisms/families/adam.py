"""Adam on one tensor, for gradients given in closed form (Kingma and Ba 2015, Algorithm 1).

The first step of a torch optimiser loads torch's compiler: nearly two seconds of processor time,
longer than the fits here take.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch


def adam(
    variables: torch.Tensor,
    gradient: Callable[[torch.Tensor], torch.Tensor],
    steps: int,
    *,
    rate: float,
    last_rate: float,
    betas: tuple[float, float],
) -> None:
    """Minimise a function of `variables`, which are changed in place, by `steps` steps of Adam.
    `gradient(variables)` returns the gradient; it may also change the variables in place.

    `betas` are the paper's beta_1 and beta_2; its epsilon is 1e-8. The rate falls from `rate`
    towards `last_rate` along a cosine over all steps.

    >>> x = torch.tensor([3.0])
    >>> adam(x, lambda x: 2 * x, 200, rate=0.5, last_rate=1e-3, betas=(0.9, 0.99))
    >>> abs(x.item()) < 1e-2
    True
    """
    mean, square, scale = (torch.zeros_like(variables) for _ in range(3))
    of_mean, of_square = betas
    for step in range(steps):
        slope = gradient(variables)
        mean.lerp_(slope, 1 - of_mean)
        square.mul_(of_square).addcmul_(slope, slope, value=1 - of_square)
        now = last_rate + (rate - last_rate) * (1 + math.cos(math.pi * step / steps)) / 2
        # The means start at 0, so both are divided by the total weight of their terms.
        root = (1 - of_square ** (step + 1)) ** 0.5
        torch.sqrt(square, out=scale).div_(root).add_(1e-8)
        variables.addcdiv_(mean, scale, value=-now / (1 - of_mean ** (step + 1)))
