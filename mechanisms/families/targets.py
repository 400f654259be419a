"""Product rows while they are fitted, and noisy answers as their training targets; nothing here
sees private data or a Curator.

Gradients are those of the answers, or come from the score-function (REINFORCE) estimator, which
needs no derivative of the query.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from mechanisms.families.frequent import Frequent
from mechanisms.families.product_mixture import Columns, ProductAnswers
from mechanisms.privacy.cell_line import measured_cell
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array


@dataclass(frozen=True, eq=False)
class ProductRows:
    """A mixture while it is fitted: its rows (K x columns.width), which unlike those of a release
    are not checked, and the number of records `total`.

    With `frequent`, `columns` are those of `frequent.domain`, where rare codes are merged;
    `marginals` answers over all codes nevertheless.

    >>> from pgmkit.domain import Domain
    >>> columns = Columns(Domain({"a": 2, "b": 2}))
    >>> rows = ProductRows(columns, torch.tensor([[1.0, 0.0, 0.5, 0.5]]), total=10)
    >>> rows.marginals([("b",)])
    {('b',): array([5., 5.])}
    """

    columns: Columns
    rows: torch.Tensor
    total: float
    frequent: Frequent | None = field(default=None, kw_only=True)

    def marginals(self, cliques: Iterable[Clique]) -> dict[Clique, Array]:
        """Return marginals in counts, by clique."""
        columns, rows = self.columns, self.rows
        if self.frequent is not None:
            columns, rows = Columns(self.frequent.whole), torch.from_numpy(self.whole_rows())
        tables = ProductAnswers(columns, cliques)(rows)
        return {
            clique: np.asarray(table.double().cpu().numpy() * self.total)
            for clique, table in tables.items()
        }

    @property
    def small(self) -> ProductRows:
        """The same rows without `frequent`: their marginals are over `columns`, where rare codes
        may be merged.
        """
        return ProductRows(self.columns, self.rows, self.total)

    def whole_rows(self) -> Array:
        """Return the rows over the columns of all codes, in float64."""
        rows = self.rows.double().cpu().numpy()
        return rows if self.frequent is None else self.frequent.expand(rows)


@dataclass(frozen=True, eq=False)
class FreeRows(ProductRows):
    """The rows of a mixture together with the unconstrained values `free` that they are computed
    from; each row of `free` has the values of one row.
    """

    free: torch.Tensor


def draw_records(
    rows: torch.Tensor, columns: Columns, count: int, random: torch.Generator
) -> torch.Tensor:
    """Draw `count` records from each of K rows of probabilities. Return an array of K x count x
    attributes. A drawn code is given by the column of `rows` that has its probability.
    """
    places = [columns.of(name) for name in columns.domain]
    drawn = [
        torch.multinomial(rows.detach()[:, at], count, True, generator=random) for at in places
    ]
    return torch.stack([at.start + codes for at, codes in zip(places, drawn, strict=True)], dim=2)


def with_score_gradient(
    values: torch.Tensor, rows: torch.Tensor, records: torch.Tensor, satisfied: torch.Tensor
) -> torch.Tensor:
    """Return `values`, the answers to q queries without a gradient, with an estimate of the
    answers' gradient with respect to the rows.

    `records` are from `draw_records` and `satisfied` (q x K x count) is each query's predicate on
    them. A query's mean over all records is subtracted from its predicate: the estimate stays
    unbiased up to a factor 1 - 1/(K count), and varies less.

    >>> from pgmkit.domain import Domain
    >>> columns = Columns(Domain({"a": 2}))
    >>> rows = torch.full((1000, 2), 0.5, requires_grad=True)
    >>> records = draw_records(rows, columns, 10, torch.Generator().manual_seed(0))
    >>> first = (records[..., 0] == 0).float().unsqueeze(0)
    >>> answer = with_score_gradient(torch.tensor([0.5]), rows, records, first)
    >>> answer.backward()
    >>> rows.grad.sum(0).round(decimals=1).tolist()
    [0.5, -0.5]
    """
    probability = rows.gather(1, records.flatten(1)).reshape(records.shape)
    log_probability = probability.clamp_min(torch.finfo(rows.dtype).tiny).log().sum(2)
    phi = satisfied.flatten(1).to(rows.dtype)
    score = (phi - phi.mean(1, keepdim=True)) @ log_probability.flatten() / phi.shape[1]
    return values + score - score.detach()


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
        codes = torch.cat([rows.index_select(1, self._used).t(), rows.new_ones(1, len(rows))])
        product = rows.new_ones(1)
        for place in self._places.unbind(1):
            product = product * codes.index_select(0, place)
        return product.mean(1)


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
        self._all = [*((m.clique, i) for m in tables for i in range(len(m.values))), *singles]
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
        """Return the values of `errors`, with gradients that REINFORCE estimates from `records`
        records drawn from each row.
        """
        with torch.no_grad():
            exact = self._answers(rows)
        drawn = draw_records(rows, self._columns, records, random)
        # The index of a cell of fewer attributes is padded with the number of a further column,
        # which is always True and does not change the conjunction.
        held = drawn.new_ones(*drawn.shape[:2], self._columns.width + 1, dtype=torch.bool)
        held[..., :-1] = False
        held.scatter_(2, drawn, True)
        satisfied = torch.stack([held[..., cell].all(-1) for cell in self._every_cell])
        return self.values - with_score_gradient(exact, rows, drawn, satisfied)

    @cached_property
    def _every_cell(self) -> torch.Tensor:
        """For each measured cell, in the order of `values`, the numbers of the columns whose
        product is its answer (`Columns.of_cells`); the cells of whole marginals are included.
        """
        return self._columns.of_cells(self._all).to(self.values.device)

    def _answers(self, rows: torch.Tensor) -> torch.Tensor:
        tables = self._tables(rows)
        flat = [tables[clique].reshape(-1) for clique in self._cliques]
        if len(self._cells):
            flat.append(self._cells(rows))
        return torch.cat(flat)
