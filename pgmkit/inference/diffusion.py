"""Max-sum diffusion: potentials of the same distribution that cancel each other less.

For each attribute, and each pair of attributes, the max-marginals over it of all cliques that
contain it and other attributes are made equal by replacing them by their mean. This is done a few
times (Werner, 2007, "A Linear Programming Approach to Max-sum Problem: A Review"). The sum of the
cliques' maxima thereby falls towards the maximum of their sum, while the sum of the potentials
stays the same at every record.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from pgmkit.runtime.deferred import torch
from pgmkit.runtime.iterations import FEW_ROUNDS

_NEVER = -1e4
"""The max-marginal used in place of minus infinity for values that a clique rules out. Diffusion
may lower the maxima of the other cliques at these values towards it.
"""
_Place = tuple[int, list[int], list[int]]
"""A clique's number, the axes of it that are maximised over (those not shared), and the shape of a
table over the shared axes that broadcasts against the clique's table.
"""


def diffusion(
    cliques: Sequence[tuple[str, ...]], potentials: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return, for each clique, the table to add to its potentials so that those of different
    cliques cancel each other less: the sum of the cliques' maxima falls towards the maximum of the
    sum of all potentials. The tables' sum is zero at every record.

    >>> tables = [torch.tensor([[0.0, 900.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [-900.0, 0]])]
    >>> change = diffusion([("a", "b"), ("b", "c")], tables)
    >>> [float((table + each).max()) for table, each in zip(tables, change)]
    [450.0, 450.0]
    """
    shared: dict[tuple[str, ...], list[_Place]] = {}
    for i, (clique, table) in enumerate(zip(cliques, potentials, strict=True)):
        for count in (1, 2):
            for axes in combinations(range(len(clique)), count):
                others = [k for k in range(len(clique)) if k not in axes]
                shape = [n if k in axes else 1 for k, n in enumerate(table.shape)]
                if others:
                    names = tuple(clique[axis] for axis in axes)
                    shared.setdefault(names, []).append((i, others, shape))
    several = [names for names, places in shared.items() if len(places) > 1]
    groups = [shared[names] for names in sorted(several, key=len, reverse=True)]
    changes = [torch.zeros_like(table) for table in potentials]
    for _ in range(FEW_ROUNDS):
        for places in groups:
            highest = [_peaks(potentials[i] + changes[i], others) for i, others, _ in places]
            mean = torch.stack([high.view(high.numel()) for high in highest]).mean(0)
            for (i, _, shape), high in zip(places, highest, strict=True):
                changes[i] += mean.view(shape) - high
    return changes


def _peaks(table: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """Return the largest entries along ``dims``, which keep length 1, with -1e4 (``_NEVER``) for
    minus infinity.
    """
    highest = table.amax(dims, keepdim=True)
    return highest.masked_fill(highest.isneginf(), _NEVER)
