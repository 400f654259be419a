"""Records drawn from a model on a CUDA GPU: the same as on the processor, to the last record.

The random numbers, and the rounded counts or cumulative sums of each table, are computed on the
processor, in the same order as in `pgmkit.records.sampling`. The GPU sorts the records, looks up
their cells and assigns them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TypeAlias

import numpy as np

from pgmkit.domain import Clique, Domain
from pgmkit.graphs.junction_tree import JunctionTree
from pgmkit.records import sampling
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.memory import available
from pgmkit.runtime.sizes import BLOCK_CELLS, CELL_BYTES

FEWEST = BLOCK_CELLS // 4
"""The fewest records for which a GPU saves more time than launching its kernels takes."""
_RECORD_BYTES = 12 * CELL_BYTES
"""The bytes that each record takes while a table is drawn: its place, group and cell, sorted copies
of these, and memory for the sort.
"""

Columns: TypeAlias = "dict[str, torch.Tensor]"


def gains_on_device(domain: Domain, n: int, device: torch.device) -> bool:
    """Return True if `device` is a GPU, `n` records are enough for it to be faster than the
    processor, and they fit into its free memory; False too if `n` is no whole number.
    """
    if device.type != "cuda" or not isinstance(n, int | np.integer) or n < FEWEST:
        return False
    each = _RECORD_BYTES + sum(_held_type(size).itemsize for size in domain.shape())
    return n * each <= available(device)


def sample_on_device(
    tree: JunctionTree,
    clique_marginals: Callable[[int], np.ndarray],
    n: int,
    rng: np.random.Generator,
    method: sampling.Method,
    device: torch.device,
) -> dict[str, np.ndarray]:
    """Draw on the GPU ``device``, and return record by record the same codes as
    ``pgmkit.records.sampling.sample`` would for the same arguments.
    """
    sampling.check_request(n, method)
    draw = _draw_rounded if method == "round" else _draw_independent
    columns: Columns = {}
    for i, clique in enumerate(tree.cliques):
        table = sampling.grouped_table(tree, i, clique_marginals(i))
        groups = _ravel(tree.domain, tree.separators[i], columns, n, device)
        _unravel(tree.domain, tree.residuals[i], draw(table, groups, rng, clique), columns)
    return {
        name: columns[name].cpu().numpy().astype(np.min_scalar_type(size - 1), copy=False)
        for name, size in tree.domain.sizes.items()
    }


def _draw_rounded(
    table: np.ndarray, groups: torch.Tensor, rng: np.random.Generator, clique: Clique
) -> torch.Tensor:
    """Return a cell of the residual attributes (its flat index) for each record. In each group the
    cells occur as often as the group's rounded counts say, in random order. ``table`` and
    ``groups`` are as in ``_draw_independent``.
    """
    width = table.shape[1]
    order = torch.from_numpy(rng.permutation(len(groups))).to(groups.device)
    order = order[torch.sort(groups[order], stable=True).indices]
    sizes = torch.bincount(groups, minlength=len(table)).cpu().numpy()
    cells, filled = torch.empty_like(groups), 0
    for members in sampling.blocks(np.flatnonzero(sizes), width):
        counts = sampling.rounded_counts(table[members], sizes[members], rng, clique).ravel()
        places = np.flatnonzero(counts)
        drawn, times = (
            torch.from_numpy(each).to(groups.device) for each in (places % width, counts[places])
        )
        end = filled + int(counts.sum())
        spread = torch.repeat_interleave(drawn, times, output_size=end - filled)
        cells.index_copy_(0, order[filled:end], spread)
        filled = end
    return cells


def _draw_independent(
    table: np.ndarray, groups: torch.Tensor, rng: np.random.Generator, clique: Clique
) -> torch.Tensor:
    """Return a cell of the residual attributes (its flat index) for each record, drawn by inverting
    its group's cumulative distribution. ``table`` has a row for each group (a cell of the
    separator) and a column for each residual cell; ``groups`` has the group of each record.
    """
    width, host = table.shape[1], np.cumsum(table, axis=1)
    occupied = torch.bincount(groups, minlength=len(table)).cpu().numpy() > 0
    sampling.check_mass(host[occupied, -1], clique)
    cumulative = torch.from_numpy(host).to(groups.device).reshape(-1)
    first = groups * width
    level = torch.from_numpy(rng.random(len(groups))).to(groups.device)
    level *= cumulative[first + (width - 1)]
    low, high = first, first + (width - 1)
    for _ in range((width - 1).bit_length()):
        middle = (low + high) >> 1
        beyond = cumulative[middle] <= level
        low, high = torch.where(beyond, middle + 1, low), torch.where(beyond, high, middle)
    return low - first


def _ravel(
    domain: Domain, attrs: Clique, columns: Columns, n: int, device: torch.device
) -> torch.Tensor:
    """Return the flat index of each record's cell over ``attrs``."""
    code = torch.zeros(n, dtype=torch.int64, device=device)
    for name in attrs:
        code = code.mul_(domain.sizes[name]).add_(columns[name])
    return code


def _unravel(domain: Domain, attrs: Clique, cells: torch.Tensor, columns: Columns) -> None:
    """Invert ``_ravel``: add a column of codes for each attribute to ``columns``."""
    stride = prod(domain.sizes[name] for name in attrs)
    for name in attrs:
        stride //= domain.sizes[name]
        codes = torch.div(cells, stride, rounding_mode="floor") % domain.sizes[name]
        columns[name] = codes.to(_held_type(domain.sizes[name]))


def _held_type(size: int) -> torch.dtype:
    return torch.uint8 if size <= 256 else torch.int32 if size <= 1 << 31 else torch.int64
