"""Operands that the kernels are tested with: odd extents, any strides, minus infinities."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

Stacks = tuple[torch.Tensor, torch.Tensor]


def _stack(
    shape: tuple[int, int, int], dtype: torch.dtype, spread: float, order: list[int], step: int,
    missing: float, seed: int,
) -> torch.Tensor:  # fmt: skip
    """A tensor whose axes lie in memory in this order, every ``step``-th cell of the last used."""
    random = torch.Generator().manual_seed(seed)
    stored = [shape[axis] for axis in order]
    stored[-1] *= step
    values = spread * torch.randn(stored, generator=random, dtype=dtype)
    values[torch.rand(stored, generator=random) < missing] = -torch.inf
    return values[..., ::step].permute([order.index(axis) for axis in range(3)])


@st.composite
def operands(draw: st.DrawFn, spread: float = 200.0, most: int = 40) -> Stacks:
    """``left`` (batch, rows, summed) and ``right`` (batch, columns, summed)."""
    extents = st.sampled_from([1, 1, 2, 3, 5, 8, 13, 33, most])
    batch, rows, summed, columns = (draw(extents) for _ in range(4))
    batch = min(batch, 3)
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    missing = draw(st.sampled_from([0.0, 0.3, 1.0]))
    size = draw(st.sampled_from([1.0, spread]))
    left, right = (
        _stack(
            (batch, other, summed), dtype, size, draw(st.permutations(range(3))),
            draw(st.integers(1, 2)), missing, draw(st.integers(0, 10**6)),
        )
        for other in (rows, columns)
    )  # fmt: skip
    return left, right


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    """Cells, and where runs of them start, the number of cells last."""
    lengths = draw(st.lists(st.sampled_from([1, 2, 3, 7, 50]), min_size=1, max_size=9))
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    value = st.floats(-500, 500) | st.just(-float("inf"))
    cells = draw(st.lists(value, min_size=starts[-1], max_size=starts[-1]))
    return cells, starts
