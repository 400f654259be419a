"""The kernels in Triton for what a step of the search for a model does beside passes of inference.

A residual is computed from the marginals wherever it is needed and never written. Sums are computed
in float64, one for each block of RUN cells. The kernels have many arguments, since Triton passes
nothing but pointers and numbers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pgmkit.contraction.kernels.cuda import RUN, launch


@triton.jit(do_not_specialize=["cells", "apart"])
def penalise_kernel(
    seen, factors, target, clip, slopes, sums, cells, apart, RUN: tl.constexpr
):  # fmt: skip
    """Write the slopes (derivatives) of one block of cells and the sum of its penalties, in the
    symbols of ``reference.penalise``. ``factors`` are the weights, and ``apart`` is their stride: 0
    if all are one number, else 1.
    """
    block = tl.program_id(0).to(tl.int64)
    cell = block * RUN + tl.arange(0, RUN)
    inside = cell < cells
    width, scale = tl.load(clip), tl.load(clip + 1)
    weight = tl.load(factors + cell * apart, inside, 0.0).to(tl.float64)
    residual = tl.load(seen + cell, inside, 0.0).to(tl.float64) * weight
    residual -= tl.load(target + cell, inside, 0.0).to(tl.float64)
    near = tl.minimum(tl.maximum(residual, -width), width)
    found = (near * (scale * weight)).to(slopes.dtype.element_ty)
    tl.store(slopes + cell, found, inside)
    tl.store(sums + block, scale * tl.sum(near * (residual - near / 2), axis=0))


@triton.jit(do_not_specialize=["cells", "apart"])
def compare_kernel(
    new, old, factors, target, clip, sums, cells, apart, RUN: tl.constexpr
):  # fmt: skip
    """Compute the sums over one block of the penalties at ``new``, of their excess over the tangent
    at ``old``, and of ``new`` times the slopes at ``old``.
    """
    block, blocks = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    cell = block * RUN + tl.arange(0, RUN)
    inside = cell < cells
    width, scale = tl.load(clip), tl.load(clip + 1)
    weight = tl.load(factors + cell * apart, inside, 0.0).to(tl.float64)
    aim = tl.load(target + cell, inside, 0.0).to(tl.float64)
    there = tl.load(new + cell, inside, 0.0).to(tl.float64) * weight
    here = tl.load(old + cell, inside, 0.0).to(tl.float64) * weight - aim
    residual = there - aim
    near = tl.minimum(tl.maximum(here, -width), width)
    far = tl.minimum(tl.maximum(residual, -width), width)
    excess = (far - near) * (residual - (far + near) / 2)
    tl.store(sums + block, scale * tl.sum(far * (residual - far / 2), axis=0))
    tl.store(sums + blocks + block, scale * tl.sum(excess, axis=0))
    tl.store(sums + 2 * blocks + block, scale * tl.sum(near * there, axis=0))


@triton.jit(do_not_specialize=["cells"])
def overwrite_kernel(own, chosen, other, cells, RUN: tl.constexpr):
    """Copy one block of a row of ``other`` into ``own`` if the row is chosen; otherwise the block
    is not read.
    """
    program, across = tl.program_id(0).to(tl.int64), tl.cdiv(cells, RUN)
    row = program // across
    cell = program % across * RUN + tl.arange(0, RUN)
    here = cell < tl.where(tl.load(chosen + row), cells, 0)
    place = row * cells + cell
    tl.store(own + place, tl.load(other + place, here), here)


def penalise(
    seen: torch.Tensor, weights: torch.Tensor, target: torch.Tensor, clip: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the penalties of the residuals seen * weights - target over each block of
    cells, and the derivatives of their total with respect to ``seen``; ``reference.penalise``
    explains ``clip``.
    """
    slopes, blocks = torch.empty_like(seen), triton.cdiv(len(seen), RUN)
    sums = seen.new_empty(blocks, dtype=torch.float64)
    sizes = len(seen), weights.stride(0)
    launch(penalise_kernel, blocks, seen, weights, target, clip, slopes, sums, *sizes, RUN=RUN)
    return sums, slopes


def compare(
    new: torch.Tensor,
    old: torch.Tensor,
    weights: torch.Tensor,
    target: torch.Tensor,
    clip: torch.Tensor,
) -> torch.Tensor:
    """Return a matrix with a column for each block of cells and three rows of sums over the blocks:
    of the penalties at ``new``, of their excess over the tangent at ``old``, and of ``new`` times
    the slopes at ``old``.
    """
    blocks = triton.cdiv(len(new), RUN)
    sums = new.new_empty((3, blocks), dtype=torch.float64)
    sizes = len(new), weights.stride(0)
    launch(compare_kernel, blocks, new, old, weights, target, clip, sums, *sizes, RUN=RUN)
    return sums


def overwrite(own: torch.Tensor, chosen: torch.Tensor, other: torch.Tensor) -> None:
    """Copy into ``own`` those rows of ``other`` for which ``chosen`` is True; all three tensors
    must be contiguous.
    """
    blocks = triton.cdiv(own.shape[-1], RUN) * chosen.numel()
    launch(overwrite_kernel, blocks, own, chosen, other, own.shape[-1], RUN=RUN)
