"""Answers of single cells of marginals by a mixture of product distributions."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from mechanisms.families.product_mixture import Columns
from pgmkit.domain import Clique


class CellAnswers:
    """Answers of single cells of marginals. The first attributes of all cells are looked up in one
    gather, the second ones in another, and so on.

    Each gather is from only those columns that some cell uses. Of a thousand codes most are in no
    cell, and in the backward pass a gather from all columns makes a gradient of their size.

    >>> from pgmkit.domain import Domain
    >>> answers = CellAnswers(Columns(Domain({"a": 2, "b": 2})), [(("a", "b"), 0), (("a", "b"), 1)])
    >>> answers(torch.tensor([[1.0, 0.0, 0.5, 0.5], [0.5, 0.5, 0.0, 1.0]])).tolist()
    [0.25, 0.5]
    """

    def __init__(
        self,
        columns: Columns,
        cells: Iterable[tuple[Clique, int]],
        device: torch.device | str = "cpu",
    ) -> None:
        used, places = torch.unique(columns.of_cells(cells), return_inverse=True)
        # The index `columns.width`, which pads shorter cliques with a column of ones, is the last
        # of `used` if it occurs.
        self._used = used[used < columns.width].to(device)
        self._places = places.to(device)

    def __len__(self) -> int:
        return len(self._places)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the answers (fractions), one for each cell; they are differentiable in the rows (K
        x columns.width).
        """
        ones = rows.new_ones(1, len(rows))
        codes = torch.cat([rows.index_select(1, self._used).t(), ones])
        product = rows.new_ones(1)
        for place in self._places.unbind(1):
            product = product * codes.index_select(0, place)
        return product.mean(1)
