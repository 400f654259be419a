"""Fitting a mixture of product rows to noisy marginals: weighted least squares, kept near entropy.

No junction tree is involved, so every pair of many attributes can be fitted at once. No private
data and no Curator in here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from mechanisms.families.descent import descend
from mechanisms.families.product_mixture import Columns, ProductAnswers
from pgmkit.measurement import Measurement

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Misfit", "fit_mixture", "nearest_counts"]

_FLOOR = 1e-5
"""Smallest probability of a code in the independent rows that the fit starts near."""
_SPARSE = 8
"""Times the measured pairs' cells, below the cells of all pairs, each pair is answered alone."""
_DIVERSITY = 0.5
"""Standard deviation of the rows' first logits around the independent ones."""


def fit_mixture(
    columns: Columns,
    measurements: Sequence[Measurement],
    total: float,
    *,
    rows: int,
    steps: int,
    learning_rate: float,
    penalty: float,
    random: torch.Generator,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Rows (float32, rows x columns.width) whose marginals are near the measured ones.

    Minimises, by Adam with a cosine schedule from rows near the independent model,

        sum over measured cells ((answer - noisy value) / stddev)^2  +  penalty mean_k KL(p_k || q),

    where q is the product of the measured one-way marginals (there must be one of every
    attribute). The second term holds each row near independence, so that noise is not fitted: with
    it the mixture is close to the distribution of largest entropy that agrees with the tables.
    The first rows are drawn by `random`, of the processor, whatever the `device`.

    >>> from pgmkit.domain import Domain
    >>> columns = Columns(Domain({"a": 2, "b": 2}))
    >>> noisy = [Measurement(("a",), [50, 50], 1.0), Measurement(("b",), [50, 50], 1.0),
    ...          Measurement(("a", "b"), [[45, 5], [5, 45]], 1.0)]
    >>> random = torch.Generator().manual_seed(0)
    >>> fitted = fit_mixture(columns, noisy, 100.0, rows=20, steps=200, learning_rate=0.1,
    ...                      penalty=1.0, random=random)
    >>> ProductAnswers(columns, [("a", "b")])(fitted)[("a", "b")].numpy().round(1)
    array([[0.4, 0.1],
           [0.1, 0.4]], dtype=float32)
    """
    independent = _independent(columns, measurements, total).to(device)
    misfit = Misfit(columns, measurements, total, device)
    spread = _DIVERSITY * torch.randn(rows, columns.width, generator=random)
    logits = independent + spread.to(device)
    logits.requires_grad_()

    def losses() -> Iterator[torch.Tensor]:
        while True:
            logs = _log_softmax(columns, logits)
            probabilities = logs.exp()
            divergence = (probabilities * (logs - independent)).sum() / rows
            yield misfit(probabilities) + penalty * divergence

    optimizer = torch.optim.Adam([logits], lr=learning_rate, betas=(0.9, 0.99))
    descend(optimizer, losses(), steps, last_rate=learning_rate / 50)
    return columns.softmax(logits.detach())


class Misfit:
    """sum over measured cells ((answer - noisy value) / stddev)^2, up to a constant.

    Where most pairs were measured, one matrix product of the rows with themselves answers all of
    them; other cliques, and few pairs of many columns, are answered each for itself.

    >>> from pgmkit.domain import Domain
    >>> columns = Columns(Domain({"a": 2, "b": 2}))
    >>> misfit = Misfit(columns, [Measurement(("a", "b"), [[5, 0], [0, 5]], 2.0)], 10.0)
    >>> misfit(torch.full((1, 4), 0.5)).item()
    6.25
    """

    def __init__(
        self,
        columns: Columns,
        measurements: Sequence[Measurement],
        total: float,
        device: torch.device | str = "cpu",
    ) -> None:
        pairs = [m for m in measurements if len(m.clique) == 2]
        if _SPARSE * sum(len(m.values) for m in pairs) < columns.width**2:
            pairs = []
        squares = np.zeros((columns.width, columns.width))
        sums = np.zeros_like(squares)
        for each in pairs:
            a, b = map(columns.of, each.clique)
            weight = (total / each.stddev) ** 2
            table = weight / total * np.reshape(each.values, columns.domain.shape(each.clique))
            if a.start > b.start:
                a, b, table = b, a, table.T
            squares[a, b] += weight
            sums[a, b] += table
        values = np.divide(sums, squares, out=np.zeros_like(sums), where=squares > 0)
        self._pairs = [_tensor(matrix).to(device) for matrix in (squares, values) if pairs]
        others = [m for m in measurements if len(m.clique) != 2 or not pairs]
        self._cliques = [m.clique for m in others]
        self._answers = ProductAnswers(columns, dict.fromkeys(self._cliques))
        weights = [np.full(len(m.values), (total / m.stddev) ** 2) for m in others]
        self._squares = _joined(weights).to(device)
        self._values = _joined([m.values / total for m in others]).to(device)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Of rows of probabilities, K x columns.width; differentiable."""
        found = rows.new_zeros(())
        if self._pairs:
            squares, values = self._pairs
            found = (squares * (rows.t() @ rows / len(rows) - values).square()).sum()
        if self._cliques:
            tables = self._answers(rows)
            errors = torch.cat([tables[clique].reshape(-1) for clique in self._cliques])
            found = found + (self._squares * (errors - self._values).square()).sum()
        return found


def _independent(
    columns: Columns, measurements: Sequence[Measurement], total: float
) -> torch.Tensor:
    """Logarithms of the one-way marginals, side by side: the nearest probabilities to noisy values.

    Several measurements of an attribute count by the inverse of their variances.
    """
    single: dict[str, list[Measurement]] = {name: [] for name in columns.domain}
    for each in measurements:
        if len(each.clique) == 1:
            single[each.clique[0]].append(each)
    parts = []
    for name, found in single.items():
        # Attributes of one value are not measured.
        shares = np.full(columns.domain.sizes[name], 1 / columns.domain.sizes[name])
        if found:
            values = np.average([m.values for m in found], 0, [m.stddev**-2 for m in found])
            shares = nearest_counts(values, total) / total
        shares = np.maximum(shares, _FLOOR)
        parts.append(np.log(shares / shares.sum()))
    return _joined(parts)


def nearest_counts(values: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    """The nearest counts, 0 or above, with this total: what least squares make of noisy ones.

    >>> nearest_counts(np.array([6.0, 5.0, -3.0]), 10.0)
    array([5.5, 4.5, 0. ])
    """
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(values) + 1)
    return np.maximum(values - excess[ordered > excess][-1], 0.0)


def _log_softmax(columns: Columns, logits: torch.Tensor) -> torch.Tensor:
    parts = torch.split(logits, columns.sizes, dim=1)
    return torch.cat([part.log_softmax(1) for part in parts], dim=1)


def _joined(parts: Sequence[np.ndarray]) -> torch.Tensor:
    return _tensor(np.concatenate(parts) if parts else np.zeros(0))


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)
