"""Upper bounds of the memory that training takes, known before anything is spent.

Buffers are counted as torch holds them: weights, gradients and the two moments of Adam, the values
that a step keeps for its backward pass, and the gradients there. All of them are float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from mechanisms.families.product_mixture import Columns, ProductAnswers
from pgmkit.domain import Clique

_FLOAT, _DOUBLE, _INDEX = (kind.itemsize for kind in (torch.float32, torch.float64, torch.int64))
_ROWS = 14
"""The number of arrays of the rows' shape that a training step holds: sums, normalised and
rectified values, and their gradients. Rows are also parameters with moments, and are split into
attributes and joined again.
"""
_CELLS = 10
"""The number of arrays with an entry for every measured cell: values, noise, answers, errors, their
squares, and gradients.
"""


def network_bytes(weights: int, hidden: Sequence[int], rows: int) -> int:
    """Return the bytes of training a network with `weights` parameters, hidden layers of the widths
    `hidden` and a batch of `rows` noise vectors. The output layer is not counted: its values are
    the rows of `fitting_tables_bytes`.
    """
    # The weights are held ten times: four times in training (weights, gradients, two moments),
    # twice in each of the states before and after it (weights and their moving average), and twice
    # in the two terms whose sum is the new average. A hidden layer has eight arrays of its shape:
    # two partial sums over its inputs, normalised and rectified values, and a gradient of each.
    return _FLOAT * (10 * weights + 8 * rows * sum(hidden))


def answering_bytes(columns: Columns, cliques: Iterable[Clique], rows: int) -> int:
    """Return the bytes of all tables of the cliques, plus the most that one of the matrix products
    of `ProductAnswers` takes. `rows`: the number of rows that answer.
    """
    operands = _operands(columns, cliques)
    work = max((left + right for left, right, _ in operands), default=0)
    cells = [made for _, _, made in operands]
    return _FLOAT * (2 * rows * work + sum(cells)) + _DOUBLE * max(cells, default=0)


def fitting_tables_bytes(columns: Columns, cliques: Iterable[Clique], rows: int) -> int:
    """Return the bytes of `rows` rows and of fitting them to the tables of whole cliques: the
    operands of all matrix products are kept for the backward pass.
    """
    operands = _operands(columns, cliques)
    kept = sum(left + right for left, right, _ in operands)
    cells = sum(made for _, _, made in operands)
    return _FLOAT * (rows * (_ROWS * columns.width + 2 * kept) + _CELLS * cells)


def fitting_cells_bytes(columns: Columns, cells: int, places: int, rows: int) -> int:
    """Return the bytes of fitting ``rows`` rows to ``cells`` single cells of tables of at most
    ``places`` attributes; the bytes of the rows themselves are not included.
    """
    gathered = (2 * places + 4) * cells * rows
    codes = 4 * columns.width * rows
    return _FLOAT * (gathered + codes + _CELLS * cells) + 2 * _INDEX * places * cells


def answering_predicates_bytes(predicates: int, numbers: int, rows: int) -> int:
    """Return the bytes of answering ``predicates`` predicates by the true thresholds, each over one
    categorical code and ``numbers`` numeric attributes.
    """
    # Five arrays have a number for every row and predicate: the codes' probabilities, the weighted
    # sums, their distances from the bounds, the predicates that are met, and the product of these
    # with the codes' probabilities.
    return _index_bytes(predicates, numbers) + _FLOAT * 5 * predicates * rows


def fitting_predicates_bytes(
    columns: Columns, free: int, predicates: int, numbers: int, rows: int
) -> int:
    """Return the bytes of ``rows`` rows with ``free`` parameters each, of the product rows over
    ``columns`` that are made from the parameters, and of fitting them to predicates with smooth
    thresholds. Each of the ``predicates`` predicates is over one categorical code and ``numbers``
    numeric attributes.
    """
    # A step holds `_ROWS` arrays of the parameters. Five arrays of product rows may exist at once,
    # such as the rows before and after an update and the parts that are joined to the latter.
    held = _ROWS * free + 5 * columns.width
    # The codes, the sigmoids and their gradients hold ten arrays, each with a number for every row
    # and predicate.
    return _index_bytes(predicates, numbers) + _FLOAT * rows * (held + 10 * predicates)


def _index_bytes(predicates: int, numbers: int) -> int:
    """Return the bytes of the arrays that describe predicates: for each of them the index of its
    code among the columns of the rows, a weight for each numeric attribute, and the bound.
    """
    return predicates * (_INDEX + _FLOAT * (numbers + 1))


def _operands(columns: Columns, cliques: Iterable[Clique]) -> list[tuple[int, int, int]]:
    """Return three numbers of cells for each matrix product of `ProductAnswers`: those that one row
    takes in the left factor, with the intermediate products; those that one row takes in the right
    factor; and those of the result.
    """
    sizes, found = columns.domain.sizes, []
    for first, group in ProductAnswers(columns, cliques).groups.items():
        cells, left = 1, 1
        for name in first:
            cells *= sizes[name]
            left += cells
        right = sum(sizes[ordered[-1]] for _, ordered in group)
        found.append((left, right, cells * right))
    return found
