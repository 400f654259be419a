"""Three semirings for sums of products of tensors, one product of two tensors at a time.

``LINEAR`` (sums of products, entries may be negative), ``LOG`` (sums of exponentials, any range,
exact minus infinities) and ``MAX`` (maxima of sums, for MAP); ``LOG_BELOW`` bounds ``LOG``.
"""

from __future__ import annotations

from math import prod

import torch

from pgmkit.contraction_plan import Axes, Kernel

__all__ = ["LINEAR", "LOG", "LOG_BELOW", "MAX", "Semiring"]

_CHUNK_CELLS = 1 << 20
"""Largest broadcast temporary, in cells, of a log-space step (8 MB in float64)."""


def arrange(value: torch.Tensor, axes: Axes, *groups: Axes) -> torch.Tensor:
    """``value`` with one dimension per group of axes: a view where strides allow it."""
    shape = []
    order = []
    for group in groups:
        places = [axes.index(name) for name in group]
        order += places
        shape.append(prod(value.shape[place] for place in places))
    return value.permute(order).reshape(shape)


class Linear:
    """Sums of products of plain numbers."""

    one = 1.0

    def reduce(self, value: torch.Tensor, axes: Axes, kept: Axes) -> torch.Tensor:
        return arrange(value, axes, kept, tuple(n for n in axes if n not in kept)).sum(1)

    def multiply(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left * right

    def contract(self, left: torch.Tensor, right: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        a = arrange(left, kernel.left, kernel.batch, kernel.rows, kernel.summed)
        b = arrange(right, kernel.right, kernel.batch, kernel.summed, kernel.columns)
        return torch.bmm(a, b)


class _Tropical:
    """Semirings whose product is ``+``; subclasses sum over the last dimension."""

    one = 0.0

    def over(self, value: torch.Tensor) -> torch.Tensor:
        raise AssertionError("subclasses define the sum")

    def reduce(self, value: torch.Tensor, axes: Axes, kept: Axes) -> torch.Tensor:
        return self.over(arrange(value, axes, kept, tuple(n for n in axes if n not in kept)))

    def multiply(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + right

    def contract(self, left: torch.Tensor, right: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        a = arrange(left, kernel.left, kernel.batch, kernel.rows, kernel.summed)
        b = arrange(right, kernel.right, kernel.batch, kernel.columns, kernel.summed)
        batch, rows, summed, columns = kernel.extents
        out = a.new_empty((batch, rows, columns))
        per_row = max(1, summed * columns)
        row_step = max(1, min(rows, _CHUNK_CELLS // per_row))
        batch_step = max(1, _CHUNK_CELLS // (per_row * rows)) if row_step == rows else 1
        for i in range(0, batch, batch_step):
            for j in range(0, rows, row_step):
                block = a[i : i + batch_step, j : j + row_step, None] + b[i : i + batch_step, None]
                out[i : i + batch_step, j : j + row_step] = self.over(block)
        return out


class Log(_Tropical):
    """Logarithms of sums of exponentials; an all minus-infinity slice gives minus infinity."""

    def over(self, value: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(value, -1)

    def contract(self, left: torch.Tensor, right: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        """A matrix product of exponentials, every row and column scaled by its own peak.

        Sums that lie so far below the product of their peaks that something may have underflowed
        are done again, term by term.
        """
        if kernel.extents[2] == 1:
            return super().contract(left, right, kernel)
        product, high = _scaled_product(left, right, kernel)
        out = product.log() + high
        a = arrange(left, kernel.left, kernel.batch, kernel.rows, kernel.summed)
        b = arrange(right, kernel.right, kernel.batch, kernel.columns, kernel.summed)
        # What underflows is below tiny * terms, so this keeps every sum to full precision.
        tiny = torch.finfo(product.dtype).tiny * kernel.extents[2] / torch.finfo(product.dtype).eps
        batch, row, column = torch.where(product < tiny)
        per_block = max(1, _CHUNK_CELLS // kernel.extents[2])
        for start in range(0, len(batch), per_block):
            place = slice(start, start + per_block)
            i, j, k = batch[place], row[place], column[place]
            out[i, j, k] = self.over(a[i, j] + b[i, k])
        return out


class LogBelow(Log):
    """Logarithms of sums without the terms that underflow beside their row's and column's peaks: a
    lower bound.
    """

    def contract(self, left: torch.Tensor, right: torch.Tensor, kernel: Kernel) -> torch.Tensor:
        if kernel.extents[2] == 1:
            return _Tropical.contract(self, left, right, kernel)
        product, high = _scaled_product(left, right, kernel)
        return product.log_().add_(high)


def _scaled_product(
    left: torch.Tensor, right: torch.Tensor, kernel: Kernel
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of products of exponentials, divided by the product of their row's and column's peaks,
    and the logarithms of these.
    """
    a = arrange(left, kernel.left, kernel.batch, kernel.rows, kernel.summed)
    b = arrange(right, kernel.right, kernel.batch, kernel.columns, kernel.summed)
    high_a, high_b = _finite(a.amax(-1, keepdim=True)), _finite(b.amax(-1, keepdim=True))
    product = torch.bmm((a - high_a).exp_(), (b - high_b).exp_().transpose(1, 2))
    return product, high_a + high_b.transpose(1, 2)


def _finite(peaks: torch.Tensor) -> torch.Tensor:
    """The peaks, with 0 where all is minus infinity: so that subtracting them leaves it so."""
    return peaks.masked_fill(peaks.isneginf(), 0.0)


class Max(_Tropical):
    """Maxima of sums."""

    def over(self, value: torch.Tensor) -> torch.Tensor:
        return value.amax(-1)


Semiring = Linear | Log | Max
LINEAR, LOG, MAX = Linear(), Log(), Max()
LOG_BELOW = LogBelow()
