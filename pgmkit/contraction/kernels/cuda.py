"""The kernels in Triton, for CUDA GPUs.

Sums are computed in float64 whatever the format of the tables, so no reduced-precision mode of the
GPU (TF32) affects them. Contractions read their operands through strides or a table of indices, so
no copy is made first; ``shift_exp``, ``fold`` and ``spread`` take contiguous tables.

Triton passes a stride as a 32-bit number if it fits, and a product of two such numbers may
overflow. So strides are only added to pointers or multiplied by 64-bit indices, which addresses
tables of more than 2^31 cells correctly.

Every kernel is written out in full, without helper functions. So Triton's interpreter can run it on
a processor, and its compiler can compile it for a GPU that is not present; the tests do both.
Triton passes nothing but pointers and numbers, so a kernel has an argument for every table, extent
and stride, however many these are; only ``steps_kernel`` reads extents and places from tables.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl

from pgmkit.contraction.kernels.reference import TERMS, TILE_CELLS, Table

TILE = TILE_CELLS // 2
"""The number of rows, and of columns, of the tile of results that one program of ``pairs_kernel``
keeps in registers.
"""
RUN = TILE**2
"""The number of cells that one program reads at once. A program of ``shift_exp_kernel`` or
``spread_kernel`` computes so many cells in all, and one of ``fold_kernel`` up to TERMS times as
many, one lot after the other.
"""
PROGRAMS = RUN
"""The number of programs that keep a GPU busy: some for each of its one or two hundred
multiprocessors.
"""
WARPS = TERMS // 4
SIZES = (
    "rows", "summed", "columns", "left_batch", "left_row", "left_summed", "right_batch",
    "right_column", "right_summed",
)  # fmt: skip
"""The extents and strides of stacks of matrices. A kernel is compiled anew, which takes a second,
for every pattern of arguments that are 1 or divisible by 16, except for arguments that
``do_not_specialize`` names, as it does these.
"""


@triton.jit(do_not_specialize=SIZES)
def pairs_kernel(
    left, right, out,
    rows, summed, columns,
    left_batch, left_row, left_summed, right_batch, right_column, right_summed,
    LOG: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write one tile of TILE x TILE results to out[b, r, c]: the maxima over s of left[b, r, s] +
    right[b, c, s], NaN where a term is NaN, or with LOG the logarithms of the sums over s of the
    terms' exponentials. For these the maxima are computed first, then the sums relative to them.
    The names of the sizes say which stride is along which axis.
    """
    tile = tl.program_id(0).to(tl.int64)
    across, down = tl.cdiv(columns, TILE), tl.cdiv(rows, TILE)
    batch = tile // (across * down)
    row = (tile // across) % down * TILE + tl.arange(0, TILE)
    column = tile % across * TILE + tl.arange(0, TILE)
    a = left + batch * left_batch + row * left_row
    b = right + batch * right_batch + column * right_column
    low = float("-inf")
    kind = tl.float64 if LOG else left.dtype.element_ty
    best = tl.full((TILE, TILE), low, kind)
    from_left, from_right = a, b
    for _ in range(summed):
        x = tl.load(from_left, row < rows, low).to(kind)
        y = tl.load(from_right, column < columns, low).to(kind)
        best = tl.maximum(best, x[:, None] + y[None, :], propagate_nan=tl.PropagateNan.ALL)
        from_left += left_summed
        from_right += right_summed
    if LOG:
        # Maxima of minus infinity are replaced by 0, so that no difference below is NaN.
        best = tl.where(best == low, 0.0, best)
        sums = tl.zeros((TILE, TILE), kind)
        from_left, from_right = a, b
        for _ in range(summed):
            x = tl.load(from_left, row < rows, low).to(kind)
            y = tl.load(from_right, column < columns, low).to(kind)
            sums += tl.exp(x[:, None] + y[None, :] - best)
            from_left += left_summed
            from_right += right_summed
        best += tl.log(sums)
    place = (batch * rows + row[:, None]) * columns + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    tl.store(out + place, best.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["runs", "cells", "steps"])
def shift_exp_kernel(values, shifts, starts, out, runs, cells, steps, RUN: tl.constexpr):
    """Write exp(value - shift of its run) for one block of RUN of all ``cells`` values. Each value
    finds its run, one of ``runs``, by bisecting ``starts``, where the runs begin, in ``steps``
    halvings.
    """
    cell = tl.program_id(0).to(tl.int64) * RUN + tl.arange(0, RUN)
    low = tl.zeros((RUN,), tl.int64)
    high = low + runs
    for _ in range(steps):
        middle = (low + high) // 2
        after = tl.load(starts + middle) <= cell
        low = tl.where(after, middle, low)
        high = tl.where(after, high, middle)
    inside = cell < cells
    shift = tl.load(shifts + low).to(tl.float64)
    value = tl.load(values + cell, inside, float("-inf"))
    found = tl.exp(value.to(tl.float64) - shift)
    tl.store(out + cell, found.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["rows", "terms", "pieces", "lots"])
def fold_kernel(
    table, peaks, sums, rows, terms, columns, pieces, lots,
    ROWS: tl.constexpr, TERMS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the peaks (largest logarithms) of ROWS x COLUMNS sums over one piece of their terms,
    and the sums of exponentials relative to these peaks; ``fold`` gives the shapes. The piece is
    read in ``lots`` lots of TERMS terms; when a lot raises a peak, the sum so far is scaled down.
    """
    program = tl.program_id(0).to(tl.int64)
    across = tl.cdiv(columns, COLUMNS)
    column = program % across * COLUMNS + tl.arange(0, COLUMNS)
    piece = program // across % pieces
    row = program // (across * pieces) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    low = float("-inf")
    high = tl.full((ROWS, COLUMNS), low, tl.float64)
    found = tl.zeros((ROWS, COLUMNS), tl.float64)
    for lot in range(lots):
        term = (piece * lots + lot) * TERMS + tl.arange(0, TERMS)
        place = (row[:, None] * terms + term[None, :])[:, :, None] * columns + column[None, None, :]
        here = inside[:, None, :] & (term < terms)[None, :, None]
        x = tl.load(table + place, here, low).to(tl.float64)
        higher = tl.maximum(high, tl.max(x, axis=1))
        shift = tl.where(higher == low, 0.0, higher)
        found = found * tl.exp(high - shift) + tl.sum(tl.exp(x - shift[:, None, :]), axis=1)
        high = higher
    place = (row[:, None] * pieces + piece) * columns + column[None, :]
    tl.store(peaks + place, high, inside)
    tl.store(sums + place, found, inside)


@triton.jit(do_not_specialize=["rows", "terms"])
def spread_kernel(
    table, shift, weights, out, rows, terms, columns,
    ROWS: tl.constexpr, TERMS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write exp(table[r, t, c] - shift) * weights[r, c] to out[r, t, c] for one tile of ROWS x
    TERMS x COLUMNS cells; ``shift`` holds one number.
    """
    program = tl.program_id(0).to(tl.int64)
    across, down = tl.cdiv(columns, COLUMNS), tl.cdiv(terms, TERMS)
    column = program % across * COLUMNS + tl.arange(0, COLUMNS)
    term = program // across % down * TERMS + tl.arange(0, TERMS)
    row = program // (across * down) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    weight = tl.load(weights + row[:, None] * columns + column[None, :], inside, 0.0)
    place = (row[:, None] * terms + term[None, :])[:, :, None] * columns + column[None, None, :]
    here = inside[:, None, :] & (term < terms)[None, :, None]
    value = tl.load(table + place, here, float("-inf")).to(tl.float64) - tl.load(shift)
    found = tl.exp(value) * weight[:, None, :]
    tl.store(out + place, found.to(out.dtype.element_ty), here)


@triton.jit
def steps_kernel(
    left, right, out, steps_table, places, tiles, TILE_CELLS: tl.constexpr, TERMS: tl.constexpr
):  # fmt: skip
    """Compute one tile of the results of one of several sums of products.
    ``reference.contract_steps`` explains the rows of ``steps_table``; ``tiles`` has for each
    program the number of its row and of the first result to compute.
    """
    tile = tl.program_id(0).to(tl.int64)
    row = steps_table + tl.load(tiles + 2 * tile) * 16
    cell = tl.load(tiles + 2 * tile + 1) + tl.arange(0, TILE_CELLS)
    batches, rows = tl.load(row + 3), tl.load(row + 4)
    summed, columns = tl.load(row + 5), tl.load(row + 6)
    inside = cell < batches * rows * columns
    b, r, c = cell // (columns * rows), (cell // columns) % rows, cell % columns
    # The place of a cell is the start of its operand or of the result plus one relative place for
    # each of three groups of axes: batch, rows and summed in the left operand, batch, summed and
    # columns in the right one, and batch, rows and columns in the result. Numbers 7 to 15 of a row
    # say where in `places` these nine lists begin, in this order.
    from_left = tl.load(row) + tl.load(places + tl.load(row + 7) + b, inside, 0)
    from_left += tl.load(places + tl.load(row + 8) + r, inside, 0)
    from_right = tl.load(row + 1) + tl.load(places + tl.load(row + 10) + b, inside, 0)
    from_right += tl.load(places + tl.load(row + 12) + c, inside, 0)
    target = tl.load(row + 2) + tl.load(places + tl.load(row + 13) + b, inside, 0)
    target += tl.load(places + tl.load(row + 14) + r, inside, 0)
    target += tl.load(places + tl.load(row + 15) + c, inside, 0)
    run_left, run_right = places + tl.load(row + 9), places + tl.load(row + 11)
    sums = tl.zeros((TILE_CELLS,), tl.float64)
    for first in range(0, summed, TERMS):
        term = first + tl.arange(0, TERMS)
        held = term < summed
        here = inside[:, None] & held[None, :]
        along_left = tl.load(run_left + term, held, 0)
        along_right = tl.load(run_right + term, held, 0)
        x = tl.load(left + from_left[:, None] + along_left[None, :], here, 0.0)
        y = tl.load(right + from_right[:, None] + along_right[None, :], here, 0.0)
        sums += tl.sum(x.to(tl.float64) * y.to(tl.float64), axis=1)
    tl.store(out + target, sums.to(out.dtype.element_ty), inside)


def contract_steps(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, table: Table
) -> None:
    """Compute several sums of products at once and write them to the flat buffer ``out``;
    ``reference.contract_steps`` explains the table.
    """
    programs = len(table[2])
    launch(steps_kernel, programs, left, right, out, *table, TILE_CELLS=TILE_CELLS, TERMS=TERMS)


def shift_exp(
    values: torch.Tensor, shifts: torch.Tensor, starts: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Write exp(values - shift) to ``out`` and return it.

    Run number i of ``values``, the cells from ``starts[i]`` up to ``starts[i + 1]``, has the shift
    ``shifts[i]``.
    """
    cells, runs = len(values), len(shifts)
    if cells:
        programs, steps = triton.cdiv(cells, RUN), runs.bit_length()
        sizes = (runs, cells, steps)
        launch(shift_exp_kernel, programs, values, shifts, starts, out, *sizes, RUN=RUN)
    return out


def fold(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``peaks`` and ``sums`` of shape (rows, pieces, columns) for a table of logarithms of
    shape (rows, terms, columns): the largest term of each piece of the terms, and the sum of
    ``exp(term - peak)`` over the piece, in float64. If all terms of a piece are minus infinity, its
    peak is too and its sum is 0.
    """
    rows, terms, columns = table.shape
    tile = _tile(*table.shape[1:])
    lots = max(1, min(TERMS, table.numel() // (RUN * PROGRAMS)))
    pieces = triton.cdiv(terms, lots * tile["TERMS"])
    peaks = table.new_empty((rows, pieces, columns), dtype=torch.float64)
    sums = torch.empty_like(peaks)
    across = triton.cdiv(rows, tile["ROWS"]) * triton.cdiv(columns, tile["COLUMNS"])
    sizes = (rows, terms, columns, pieces, lots)
    launch(fold_kernel, across * pieces, table, peaks, sums, *sizes, **tile)
    return peaks, sums


def spread(
    table: torch.Tensor, shift: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Write ``exp(table[r, t, c] - shift) * weights[r, c]`` to ``out`` and return it; ``table``,
    ``weights`` and ``out`` must be contiguous.
    """
    tile = _tile(*table.shape[1:])
    programs = prod(map(triton.cdiv, table.shape, tile.values()))
    launch(spread_kernel, programs, table, shift, weights, out, *table.shape, **tile)
    return out


def try_out(device: torch.device) -> None:
    """Compile a small kernel for this GPU and run it; raises an error if that fails."""
    one = torch.zeros(1, 1, 1, device=device)
    spread(one, one[0, 0].double(), one[0].double(), torch.empty_like(one))


def _tile(terms: int, columns: int) -> dict[str, int]:
    """Return the extents of a tile of RUN cells, powers of two: up to 2 TILE columns, then as many
    terms as there are or fit, then rows.
    """
    width = min(2 * TILE, triton.next_power_of_2(columns))
    depth = min(RUN // width, triton.next_power_of_2(terms))
    return {"ROWS": RUN // (width * depth), "TERMS": depth, "COLUMNS": width}


def _tiled(log: bool, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the result of ``pairs_kernel``, of shape (batch, rows, columns), with one program
    launched for each tile of it.
    """
    batch, rows, summed = left.shape
    columns = right.shape[1]
    out = left.new_empty((batch, rows, columns))
    if out.numel():
        # The grid has one dimension, since a second or third one is limited to 65,535 programs.
        tiles = batch * triton.cdiv(rows, TILE) * triton.cdiv(columns, TILE)
        sizes = (rows, summed, columns, *left.stride(), *right.stride())
        launch(pairs_kernel, tiles, left, right, out, *sizes, LOG=log, TILE=TILE)
    return out


max_contract = partial(_tiled, False)
log_contract = partial(_tiled, True)
"""The contractions of ``reference``. Each sum is scaled by its own largest term, so none
underflows.
"""


def launch(kernel: Any, programs: int, first: torch.Tensor, *rest: Any, **constants: int) -> None:
    """Launch ``programs`` programs of a kernel on the GPU that holds its operands; Triton itself
    launches on torch's current GPU, which may be another.
    """
    with torch.cuda.device_of(first):
        kernel[(programs,)](first, *rest, **constants, num_warps=WARPS)
