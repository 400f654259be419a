"""How much memory training takes at most, known before anything is spent.

Buffers are counted as torch holds them: weights, gradients and the two moments of Adam; what a step
keeps for its way back, and the gradients there. All of it is float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mechanisms.families.product_mixture import Columns, ProductAnswers
from pgmkit.domain import Clique

__all__ = [
    "answering_bytes",
    "answering_predicates_bytes",
    "fitting_cells_bytes",
    "fitting_predicates_bytes",
    "fitting_tables_bytes",
    "network_bytes",
]

_FLOAT, _DOUBLE, _INDEX = 4, 8, 8
_WEIGHTS = 10
"""Copies of a network's weights: themselves, gradients, two moments; those of the state before and
after, their averages, and what these are made of.
"""
_HIDDEN, _ROWS = 8, 14
"""Arrays of a hidden layer's shape, and of the rows': sums, normalised, cut off; their gradients.
Rows are also parameters with moments, and are cut into attributes and put together again.
"""
_CELLS = 10
"""Arrays of all measured cells: values, noise, answers, errors, their squares; and gradients."""
_TRUE_THRESHOLDS, _SMOOTH_THRESHOLDS = 5, 8
"""Arrays of a number for every row and predicate that thresholds add: sums of weights, reach, what
is met, and its product with the codes; with a temperature their gradients too.
"""
_PRODUCT_ROWS = 5
"""Arrays of product rows: those of two states, and what the second is put together of."""


def network_bytes(weights: int, hidden: Sequence[int], rows: int) -> int:
    """A network of so many weights and its training; its last layer is counted with the rows."""
    return _FLOAT * (_WEIGHTS * weights + _HIDDEN * rows * sum(hidden))


def answering_bytes(columns: Columns, cliques: Iterable[Clique], rows: int) -> int:
    """All tables of the cliques, and what it takes to make those of one group after the other."""
    operands = _operands(columns, cliques)
    work = max((left + right for left, right, _ in operands), default=0)
    cells = [made for _, _, made in operands]
    return _FLOAT * (2 * rows * work + sum(cells)) + _DOUBLE * max(cells, default=0)


def fitting_tables_bytes(columns: Columns, cliques: Iterable[Clique], rows: int) -> int:
    """Rows, and their fit to whole tables, all of whose operands are kept for the way back."""
    operands = _operands(columns, cliques)
    kept = sum(left + right for left, right, _ in operands)
    cells = sum(made for _, _, made in operands)
    return _FLOAT * (rows * (_ROWS * columns.width + 2 * kept) + _CELLS * cells)


def fitting_cells_bytes(columns: Columns, cells: int, places: int, rows: int) -> int:
    """The fit to so many single cells of so many attributes, beside what rows take."""
    gathered = (2 * places + 4) * cells * rows
    codes = 4 * (columns.width + 1) * rows
    return _FLOAT * (gathered + codes + _CELLS * cells) + 2 * _INDEX * places * cells


def answering_predicates_bytes(predicates: int, places: int, numbers: int, rows: int) -> int:
    """All of so many predicates, of so many codes and numbers, against the true thresholds."""
    return _index_bytes(predicates, places, numbers) + _FLOAT * _TRUE_THRESHOLDS * predicates * rows


def fitting_predicates_bytes(
    columns: Columns, free: int, predicates: int, places: int, numbers: int, rows: int
) -> int:
    """Rows of so many free parameters, and their fit to predicates of codes and smooth thresholds.

    The state is also kept as product rows of all ``columns``.
    """
    held = _ROWS * free + _PRODUCT_ROWS * columns.width
    gathered = (2 * places + _SMOOTH_THRESHOLDS) * predicates
    indexed = _index_bytes(predicates, places, numbers)
    return indexed + _FLOAT * (rows * (held + gathered) + _CELLS * predicates)


def _index_bytes(predicates: int, places: int, numbers: int) -> int:
    """Where the codes of predicates lie, their weights and bounds."""
    return predicates * (_INDEX * places + _FLOAT * (numbers + 1))


def _operands(columns: Columns, cliques: Iterable[Clique]) -> list[tuple[int, int, int]]:
    """Of each matrix product: a row's cells left, with those of the products on the way there, and
    right; and the cells of all rows' result.
    """
    sizes, found = columns.domain.sizes, []
    for first, group in ProductAnswers(columns, dict.fromkeys(cliques)).groups.items():
        cells, left = 1, 1
        for name in first:
            cells *= sizes[name]
            left += cells
        right = sum(sizes[ordered[-1]] for _, ordered in group)
        found.append((left, right, cells * right))
    return found
