"""The parts of a descent that fits product rows to noisy answers; nothing here sees private data or
a Curator.

Gradients are those of the answers, or come from the score-function (REINFORCE) estimator, which
needs no derivative of the query.

`descend` runs an optimiser of torch, which differentiates the loss automatically; `adam` gets the
gradient from its caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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


def descend(
    optimizer: torch.optim.Optimizer,
    losses: Iterable[torch.Tensor | None],
    steps: int,
    *,
    last_rate: float | None = None,
    enough: Callable[[Sequence[float]], bool] | None = None,
) -> None:
    """Take at most `steps` steps down the losses; each loss is computed after the step before it.

    A loss of None ends the descent: there is nothing to train on. `last_rate`: the rate at the end
    of a cosine over all steps; None keeps the rate constant. The descent ends before a step if
    `enough(losses so far)` is true; None is never true.

    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = torch.optim.Adam([x], lr=0.5)
    >>> descend(optimizer, iter(lambda: x.square().sum(), None), 200, last_rate=1e-3)
    >>> abs(x.item()) < 1e-2
    True
    """
    schedule = None
    if last_rate is not None:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, last_rate)
    seen: list[float] = []
    upcoming = iter(losses)
    for _ in range(steps):
        loss = next(upcoming, None)
        if loss is None:
            return
        if enough is not None:
            seen.append(float(loss.detach()))
            if enough(seen):
                return
        optimizer.zero_grad()
        torch.autograd.backward([loss])
        optimizer.step()
        if schedule is not None:
            schedule.step()


def fitted_or_stalled(losses: Sequence[float]) -> bool:
    """Return True if the last loss is at most 1, or if losses have stopped falling (`stalled`). A
    loss is a mean squared error in units of the noise's variance, so noise alone explains 1.
    """
    return losses[-1] <= 1 or stalled(losses)


def stalled(losses: Sequence[float], window: int = 50, least_gain: float = 1e-3) -> bool:
    """Return True if the least loss fell by less than `least_gain`, a fraction of it, over the last
    `window` losses together; False for at most `window` losses.

    >>> stalled([5.0] * 50), stalled([5.0] * 51)
    (False, True)
    """
    before = losses[:-window]
    return len(before) > 0 and min(losses) > min(before) * (1 - least_gain)


def adam(
    variables: torch.Tensor,
    gradient: Callable[[torch.Tensor], torch.Tensor],
    steps: int,
    rate: float,
) -> None:
    """Minimise a function of `variables`, which are changed in place, by `steps` steps of Adam
    (Kingma and Ba 2015, Algorithm 1). `gradient(variables)` returns the gradient; it may also
    change the variables in place.

    What the paper calls beta_1, beta_2 and epsilon is 0.9, 0.99 and 1e-8 here. The rate falls from
    `rate` towards a fiftieth of it along a cosine over all steps. No optimiser of torch is used,
    because the first step of one loads torch's compiler: that takes nearly two seconds of processor
    time, longer than the fits for which this function is used.

    >>> x = torch.tensor([3.0])
    >>> adam(x, lambda x: 2 * x, 200, rate=0.5)
    >>> abs(x.item()) < 1e-2
    True
    """
    mean, square, scale = (torch.zeros_like(variables) for _ in range(3))
    of_mean, of_square, last_rate = 0.9, 0.99, rate / 50
    for step in range(steps):
        slope = gradient(variables)
        mean.lerp_(slope, 1 - of_mean)
        square.mul_(of_square).addcmul_(slope, slope, value=1 - of_square)
        now = last_rate + (rate - last_rate) * (1 + math.cos(math.pi * step / steps)) / 2
        # Both running means start at 0, so each is divided by the total weight of its terms.
        torch.sqrt(square, out=scale).div_((1 - of_square ** (step + 1)) ** 0.5).add_(1e-8)
        variables.addcdiv_(mean, scale, value=-now / (1 - of_mean ** (step + 1)))
