"""Noisy answers as training targets for product rows; nothing here sees private data or a
Curator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from mechanisms.families.product_mixture import CellAnswers, Columns, ProductAnswers
from mechanisms.families.reinforce import draw_records, with_score_gradient
from mechanisms.privacy.cell_line import measured_cell
from pgmkit.measurement import Measurement


class Targets:
    """The measured cells, their noisy values and noise as fractions of `total`.

    Whole marginals come first, single cells after them. `values` are clipped to [0, 1], where the
    answers of any data lie; `stddevs` are those of the values before clipping.

    >>> from pgmkit.domain import Domain
    >>> measured = Measurement(("b",), [3, 9], 1.0)
    >>> targets = Targets(Columns(Domain({"a": 2, "b": 2})), [measured], total=10, device="cpu")
    >>> targets.errors(torch.tensor([[1.0, 0.0, 0.5, 0.5]])).tolist()
    [-0.19..., 0.39...]
    """

    def __init__(
        self,
        columns: Columns,
        measurements: Sequence[Measurement],
        total: float,
        device: torch.device | str,
    ) -> None:
        tables = [m for m in measurements if m.matrix is None]
        cells = [m for m in measurements if m.matrix is not None]
        self._columns = columns
        singles = [measured_cell(m) for m in cells]
        self._all = [(m.clique, i) for m in tables for i in range(len(m.values))] + singles
        self._cliques = [m.clique for m in tables]
        self._tables = ProductAnswers(columns, dict.fromkeys(self._cliques))
        self._cells = CellAnswers(columns, singles, device)
        values = np.concatenate([np.asarray(m.values, dtype=np.float64) for m in tables + cells])
        noise = np.concatenate([np.full(len(m.values), m.stddev) for m in tables + cells])
        self.values = torch.tensor(values / total, dtype=torch.float32, device=device).clamp(0, 1)
        self.stddevs = torch.tensor(noise / total, dtype=torch.float32, device=device)

    def errors(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the noisy value minus the rows' answer, cell by cell; differentiable."""
        return self.values - self._answers(rows)

    def score_errors(
        self, rows: torch.Tensor, records: int, random: torch.Generator
    ) -> torch.Tensor:
        """Return the same errors, with gradients by REINFORCE from `records` draws of each row."""
        with torch.no_grad():
            exact = self._answers(rows)
        drawn = draw_records(rows, self._columns, records, random)
        one_hot = torch.cat(
            [one_hot_of(drawn[..., i], size) for i, size in enumerate(self._columns.sizes)]
            + [drawn.new_ones(*drawn.shape[:2], 1, dtype=torch.bool)],
            dim=2,
        )
        satisfied = torch.stack([one_hot[..., cell].all(-1) for cell in self._every_cell])
        return self.values - with_score_gradient(exact, rows, self._columns, drawn, satisfied)

    @cached_property
    def _every_cell(self) -> torch.Tensor:
        """An index of all measured cells, those of whole marginals too, in the values' order."""
        return self._columns.of_cells(self._all).to(self.values.device)

    def _answers(self, rows: torch.Tensor) -> torch.Tensor:
        tables = self._tables(rows)
        flat = [tables[clique].reshape(-1) for clique in self._cliques]
        if len(self._cells):
            flat.append(self._cells(rows))
        return torch.cat(flat)


def one_hot_of(codes: torch.Tensor, size: int) -> torch.Tensor:
    """Return the codes as booleans along a new last axis of `size`."""
    return codes.unsqueeze(-1) == torch.arange(size, device=codes.device)
