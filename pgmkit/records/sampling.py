"""Records from a model, drawn clique by clique down the junction tree.

The attributes of a root clique are drawn from its marginal; each further clique adds its residual
attributes (those outside the separator), conditioned on the separator's values in the records so
far. The conditioning is on cliques of the junction tree, not on measured ones, so records follow
the model's distribution.

A CUDA GPU draws the same records, to the last one. The random numbers, and the rounded counts or
cumulative sums of each table, are computed on the processor, in the same order. The GPU sorts the
records, looks up their cells and assigns them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from math import prod
from typing import Literal, get_args

import numpy as np

from pgmkit.domain import Clique, Domain
from pgmkit.errors import NumericalFailure
from pgmkit.graphs.junction_tree import JunctionTree
from pgmkit.records.counting import codes_of
from pgmkit.runtime.arguments import check_whole, one_of
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.memory import available, check_room
from pgmkit.runtime.sizes import BLOCK_CELLS, CELL_BYTES

FEWEST = BLOCK_CELLS // 4
"""The fewest records for which a GPU saves more time than launching its kernels takes."""
_RECORD_BYTES = 12 * CELL_BYTES
"""The bytes that each record takes while a table is drawn: its place, group and cell, sorted copies
of these, and memory for the sort.
"""

Method = Literal["round", "sample"]


def sample(
    tree: JunctionTree,
    clique_marginals: Callable[[int], np.ndarray],
    n: int,
    rng: np.random.Generator,
    method: Method = "round",
) -> dict[str, np.ndarray]:
    """Draw `n` records, in random order, as one array of codes for each attribute.

    `clique_marginals(i)` is the marginal of `tree.cliques[i]`, its axes in the clique's order:
    non-negative, of any total (counts will do). Each is asked for once.

    Methods:
        "round": the number of records in each cell of a clique is the expected number given the
            separator counts, rounded up or down at random without bias and with exact separator
            counts; a uniform shuffle decides which records of a separator group get which cell.
            The counts are much closer to the model than those of independent draws: the error is
            less than one record in a cell of the first clique, and a few records in a cell of a
            clique that is many cliques further down the tree.
        "sample": records are independent draws from the model.

    Returns:
        {attribute: array of shape (n,)} in the domain's order, in the smallest unsigned dtype.

    Raises:
        InvalidInput: `n` is not a number of records (`check_count`), or the method is unknown.
        NumericalFailure: a marginal holds a negative value or NaN, or has no mass, or an infinite
            one, where records have to go.

    >>> from pgmkit.domain import Domain
    >>> from pgmkit.graphs.junction_tree import junction_tree
    >>> tree = junction_tree(Domain({"a": 2, "b": 2}), [("a", "b")])
    >>> tables = {("a", "b"): np.array([[2.0, 0.0], [1.0, 1.0]])}
    >>> records = sample(tree, lambda i: tables[tree.cliques[i]], 8, np.random.default_rng(0))
    >>> sorted(zip(records["a"].tolist(), records["b"].tolist(), strict=True))
    [(0, 0), (0, 0), (0, 0), (0, 0), (1, 0), (1, 0), (1, 1), (1, 1)]
    """
    check_request(n, method)
    draw = _draw_rounded if method == "round" else draw_independent
    columns: dict[str, np.ndarray] = {}
    for i, clique in enumerate(tree.cliques):
        table = grouped_table(tree, i, clique_marginals(i))
        groups = codes_of(columns, tree.domain.sizes, tree.separators[i], 0, n)
        cells = draw(table, groups, rng, clique)
        columns.update(unravel(tree.domain, tree.residuals[i], cells))
    return {name: columns[name] for name in tree.domain.attributes}


def check_count(n: int, name: str = "n", least: int = 0, most: int = sys.maxsize // 8) -> None:
    """Raise InvalidInput unless ``n``, the value of an argument called ``name``, is a whole number
    of records from ``least`` to ``most``, by default the length that an array can have.
    """
    check_whole(n, name, least, most, " of records")


def check_draw(n: int, domain: Domain) -> None:
    """Raise InvalidInput unless ``n`` is a number of records, at least one, and ModelTooLarge if
    there is not enough memory for them.
    """
    check_count(n, least=1)
    # Each code takes one byte at least, and each record's cell in a table eight.
    check_room(int(n) * (CELL_BYTES + len(domain)), f"a draw of {n:,} records", remedy="draw fewer")


def check_request(n: int, method: str) -> None:
    """Raise InvalidInput unless ``n`` is a number of records (`check_count`) and ``method`` is
    "round" or "sample".
    """
    check_count(n)
    one_of(method, get_args(Method), "method")


def grouped_table(tree: JunctionTree, i: int, marginal: np.ndarray) -> np.ndarray:
    """Return the marginal of the tree's i-th clique as a matrix: a row for each separator cell, a
    column for each residual cell. Raises NumericalFailure for a negative entry or NaN.
    """
    domain, clique = tree.domain, tree.cliques[i]
    separator, residual = tree.separators[i], tree.residuals[i]
    values = np.asarray(marginal, dtype=np.float64)
    if not values.min() >= 0:  # false for NaN too
        raise NumericalFailure(f"the marginal of clique {clique} holds a negative value or NaN")
    order = [clique.index(name) for name in (*separator, *residual)]
    return values.transpose(order).reshape(domain.size(separator), domain.size(residual))


def unravel(domain: Domain, attrs: Clique, cells: np.ndarray) -> dict[str, np.ndarray]:
    """Return a column of codes for each attribute from the cells that `codes_of` gives them."""
    columns = {}
    for name in reversed(attrs):
        size = domain.sizes[name]
        codes = cells
        if name != attrs[0]:
            cells, codes = np.divmod(cells, size)
        columns[name] = codes.astype(np.min_scalar_type(size - 1))
    return columns


def draw_independent(
    table: np.ndarray, groups: np.ndarray, rng: np.random.Generator, clique: Clique
) -> np.ndarray:
    """Return a residual cell (its flat index) for each record, drawn by inverting its group's
    cumulative distribution. ``table`` has a row for each group (a cell of the separator) and a
    column for each residual cell; ``groups`` has the group of each record. Raises NumericalFailure,
    with ``clique`` in the message, for a group that has records but no finite mass.
    """
    cumulative = np.cumsum(table, axis=1)
    width = table.shape[1]
    first = groups.astype(np.intp) * width
    mass = cumulative.take(first + (width - 1))
    check_mass(mass, clique)
    level = rng.random(len(groups)) * mass  # strictly below the mass, in floating point too
    # The first cell whose cumulative sum exceeds the level is drawn; it is never one of probability
    # zero. One bisection serves all records: each group keeps its own cumulative sums, at full
    # precision.
    low, high = first, first + (width - 1)
    for _ in range((width - 1).bit_length()):
        middle = (low + high) >> 1
        beyond = cumulative.take(middle) <= level
        low = np.where(beyond, middle + 1, low)
        high = np.where(beyond, high, middle)
    return (low - first).astype(np.min_scalar_type(table.shape[1]))


def _draw_rounded(
    table: np.ndarray, groups: np.ndarray, rng: np.random.Generator, clique: Clique
) -> np.ndarray:
    """Return a residual cell (its flat index) for each record. In each group the cells occur as
    often as the group's rounded counts say, in random order. ``table`` and ``groups`` are as in
    ``draw_independent``.
    """
    sizes = np.bincount(groups, minlength=len(table))
    return given_out(
        groups,
        rng,
        lambda members: rounded_counts(table[members], sizes[members], rng, clique),
        np.flatnonzero(sizes),
        table.shape[1],
    )


def given_out(
    groups: np.ndarray,
    rng: np.random.Generator,
    counts_of: Callable[[np.ndarray], np.ndarray],
    occupied: np.ndarray,
    width: int,
) -> np.ndarray:
    """Return a cell for each record, in random order within each group of records, so that the
    cells of a group have given counts.

    Args:
        groups: the group of each record.
        rng: the generator for the order.
        counts_of: a function that returns, for an array of groups, a row of counts for each; the
            row's sum is the number of records in the group.
        occupied: the groups that have records, ascending.
        width: the number of cells of a group, the length of a row.
    """
    cells = np.empty(len(groups), dtype=np.min_scalar_type(width))
    # The records of a group may be sorted by attributes drawn before. Cells assigned in that order
    # would have a correlation with these attributes that the model does not have.
    order = rng.permutation(len(groups))
    # A stable sort of 16-bit keys is a radix sort. Two of them sort keys of 32 bits, and are faster
    # than one comparison sort.
    for shift in range(0, 8 * groups.dtype.itemsize, 16):
        order = order[np.argsort((groups[order] >> shift).astype(np.uint16), kind="stable")]
    filled = 0
    for members in blocks(occupied, width):
        counts = counts_of(members).ravel()
        places = np.flatnonzero(counts)
        drawn = np.repeat((places % width).astype(cells.dtype), counts[places])
        cells[order[filled : filled + len(drawn)]] = drawn
        filled += len(drawn)
    return cells


def blocks(groups: np.ndarray, width: int) -> Iterator[np.ndarray]:
    """Yield the groups in blocks whose cells are computed together: at most ``BLOCK_CELLS`` cells,
    but at least one group of ``width`` cells.
    """
    step = max(1, BLOCK_CELLS // width)
    for start in range(0, len(groups), step):
        yield groups[start : start + step]


def rounded_counts(
    table: np.ndarray, sizes: np.ndarray, rng: np.random.Generator, clique: Clique
) -> np.ndarray:
    """Return integer counts of the shape of `table` with row sums `sizes`, each the floor or the
    ceiling of its expected value: the table's row scaled to sum to the row's size. Raises
    NumericalFailure, with `clique` in the message, for a row without finite mass.

    The fractions are resolved by a tournament in every row at once (the pivotal method of Deville
    and Tille 1998, along a binary tree). Two cells with fractions a and b are compared: if a + b <
    1, one is rounded down and the other continues with a + b; otherwise one is rounded up and the
    other continues with a + b - 1. The odds keep each cell's expectation; any two cells are
    negatively correlated; and every subtree keeps its own sum to within one. (Systematic sampling,
    which is cheaper, resonates with regular tables: for a uniform 100 x 100 table and 100 records
    it fills a single column.)
    """
    mass = table.sum(axis=1)
    check_mass(mass, clique)
    expected = table / mass[:, None] * sizes[:, None]
    counts = expected.astype(np.int64)  # the floor, since none is negative
    fraction = expected - counts
    cell = np.arange(counts.size).reshape(counts.shape)
    flat = counts.ravel()
    while fraction.shape[1] > 1:
        pairs = fraction.shape[1] // 2 * 2
        total = fraction[:, :pairs:2] + fraction[:, 1:pairs:2]
        up = total >= 1
        left = fraction[:, :pairs:2]
        # The left cell (fraction a) continues with probability a / (a + b) if a + b < 1, and with
        # probability (1 - a) / (2 - a - b) otherwise; the other cell is rounded.
        odds, scale = np.where(up, 1 - left, left), np.where(up, 2 - total, total)
        left_wins = rng.random(total.shape) * scale < odds
        first, second = cell[:, :pairs:2], cell[:, 1:pairs:2]
        flat[np.where(left_wins, second, first)[up]] += 1
        fraction = np.hstack([total - up, fraction[:, pairs:]])
        cell = np.hstack([np.where(left_wins, first, second), cell[:, pairs:]])
    # The last fraction of a row is 0 or 1 up to rounding errors, because the row sum is an integer.
    flat[cell[fraction > 0.5]] += 1
    return counts


def check_mass(mass: np.ndarray, clique: Clique) -> None:
    """Raise NumericalFailure if an entry of ``mass`` is zero, infinite or NaN: the sum of the
    marginal over ``clique`` for a separator cell that has records.
    """
    if mass.size and not (mass.min() > 0 and mass.max() < np.inf):
        raise NumericalFailure(
            f"clique {clique} has no finite mass for the separator values of some records: "
            "its marginal does not agree with that of its parent clique"
        )


def gains_on_device(domain: Domain, n: int, device: torch.device) -> bool:
    """Return True if `device` is a GPU, `n` records are enough for it to be faster than the
    processor, and they fit into its free memory.
    """
    if device.type != "cuda" or n < FEWEST:
        return False
    each = _RECORD_BYTES + sum(_held_type(size).itemsize for size in domain.shape())
    return n * each <= available(device)


def sample_on_device(
    tree: JunctionTree,
    clique_marginals: Callable[[int], np.ndarray],
    n: int,
    rng: np.random.Generator,
    method: Method,
    device: torch.device,
) -> dict[str, np.ndarray]:
    """Draw on the GPU ``device``, and return record by record the same codes as ``sample`` would
    for the same arguments.
    """
    check_request(n, method)
    draw = _rounded_on_device if method == "round" else _independent_on_device
    columns: dict[str, torch.Tensor] = {}
    for i, clique in enumerate(tree.cliques):
        table = grouped_table(tree, i, clique_marginals(i))
        groups = _codes_on_device(tree.domain, tree.separators[i], columns, n, device)
        cells = draw(table, groups, rng, clique)
        columns.update(_columns_on_device(tree.domain, tree.residuals[i], cells))
    return {
        name: columns[name].cpu().numpy().astype(np.min_scalar_type(size - 1), copy=False)
        for name, size in tree.domain.sizes.items()
    }


def _rounded_on_device(
    table: np.ndarray, groups: torch.Tensor, rng: np.random.Generator, clique: Clique
) -> torch.Tensor:
    """Return a cell of the residual attributes (its flat index) for each record. In each group the
    cells occur as often as the group's rounded counts say, in random order. ``table`` and
    ``groups`` are as in ``_independent_on_device``.
    """
    width = table.shape[1]
    order = torch.from_numpy(rng.permutation(len(groups))).to(groups.device)
    order = order[torch.sort(groups[order], stable=True).indices]
    sizes = torch.bincount(groups, minlength=len(table)).cpu().numpy()
    cells, filled = torch.empty_like(groups), 0
    for members in blocks(np.flatnonzero(sizes), width):
        counts = rounded_counts(table[members], sizes[members], rng, clique).ravel()
        places = np.flatnonzero(counts)
        drawn, times = (
            torch.from_numpy(each).to(groups.device) for each in (places % width, counts[places])
        )
        end = filled + int(counts.sum())
        spread = torch.repeat_interleave(drawn, times, output_size=end - filled)
        cells.index_copy_(0, order[filled:end], spread)
        filled = end
    return cells


def _independent_on_device(
    table: np.ndarray, groups: torch.Tensor, rng: np.random.Generator, clique: Clique
) -> torch.Tensor:
    """Return a cell of the residual attributes (its flat index) for each record, drawn by inverting
    its group's cumulative distribution. ``table`` has a row for each group (a cell of the
    separator) and a column for each residual cell; ``groups`` has the group of each record.
    """
    width, host = table.shape[1], np.cumsum(table, axis=1)
    occupied = torch.bincount(groups, minlength=len(table)).cpu().numpy() > 0
    check_mass(host[occupied, -1], clique)
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


def _codes_on_device(
    domain: Domain, attrs: Clique, columns: dict[str, torch.Tensor], n: int, device: torch.device
) -> torch.Tensor:
    """Return the flat index of each record's cell over ``attrs``."""
    code = torch.zeros(n, dtype=torch.int64, device=device)
    for name in attrs:
        code = code.mul_(domain.sizes[name]).add_(columns[name])
    return code


def _columns_on_device(
    domain: Domain, attrs: Clique, cells: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Invert ``_codes_on_device``: return a column of codes for each attribute."""
    columns, stride = {}, prod(domain.sizes[name] for name in attrs)
    for name in attrs:
        stride //= domain.sizes[name]
        codes = torch.div(cells, stride, rounding_mode="floor") % domain.sizes[name]
        columns[name] = codes.to(_held_type(domain.sizes[name]))
    return columns


def _held_type(size: int) -> torch.dtype:
    return torch.uint8 if size <= 256 else torch.int32 if size <= 1 << 31 else torch.int64
