"""Fitting a mixture of product rows to noisy marginals: weighted least squares, kept near entropy.

No junction tree is involved, so every pair of many attributes can be fitted at once. No private
data and no Curator in here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from mechanisms.families.adam import adam
from mechanisms.families.product_mixture import Columns, ProductAnswers
from pgmkit.measurement import Measurement

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Misfit", "fit_mixture", "nearest_counts"]


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
    attributes = _Attributes(columns, device)
    # The rows start around the independent ones, so that they can part.
    spread = 0.5 * torch.randn(rows, columns.width, generator=random)
    logits = independent + spread.to(device)

    def slope(logits: torch.Tensor) -> torch.Tensor:
        logits -= attributes.log_sums(logits)  # changes no probability; no exponential overflows
        probabilities = logits.exp()
        found = misfit.slope(probabilities)
        found = probabilities * found.add(logits - independent, alpha=penalty / rows)
        return found - probabilities * attributes.sums(found)

    adam(
        logits,
        slope,
        steps,
        rate=learning_rate,
        last_rate=learning_rate / 50,
        betas=(0.9, 0.99),
    )
    return columns.softmax(logits)


class _Attributes:
    """Sums over the codes of each attribute, at each of its columns: two products with a matrix."""

    def __init__(self, columns: Columns, device: torch.device | str) -> None:
        sizes = torch.tensor(columns.sizes)
        owners = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        self._members = torch.nn.functional.one_hot(owners).float().to(device)
        self._owners = self._members.t().contiguous()

    def sums(self, rows: torch.Tensor) -> torch.Tensor:
        """The sum of each attribute's entries in K x columns.width rows, in the same shape."""
        return rows @ self._members @ self._owners

    def log_sums(self, logs: torch.Tensor) -> torch.Tensor:
        """The same of what they are logarithms of; sums must be in the range of floats."""
        return (logs.exp() @ self._members).log_() @ self._owners


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
        singles, pairs = ([m for m in measurements if len(m.clique) == k] for k in (1, 2))
        # The product of all rows has the cells of all pairs. Where less than an eighth of them is
        # measured, each pair is answered alone.
        if 8 * sum(len(m.values) for m in pairs) < columns.width**2:
            pairs = []
        self._singles = [each.to(device) for each in _means(columns, singles, total, 1)]
        self._pairs = [each.to(device) for each in _means(columns, pairs, total, 2) if pairs]
        others = [
            m for m in measurements if len(m.clique) != 1 and not (pairs and len(m.clique) == 2)
        ]
        self._cliques = [m.clique for m in others]
        self._answers = ProductAnswers(columns, dict.fromkeys(self._cliques))
        weights = [np.full(len(m.values), (total / m.stddev) ** 2) for m in others]
        self._squares = _joined(weights).to(device)
        self._values = _joined([m.values / total for m in others]).to(device)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The misfit of rows of probabilities, K x columns.width."""
        weights, values = self._singles
        found = (weights * (rows.mean(0) - values).square()).sum()
        if self._pairs:
            weights, values = self._pairs  # in which each pair is there twice
            found = found + (weights * (rows.t() @ rows / len(rows) - values).square()).sum() / 2
        return found + self._of_cliques(rows) if self._cliques else found

    def slope(self, rows: torch.Tensor) -> torch.Tensor:
        """The gradient, as wide as the rows. Recorded by torch it takes three times as long."""
        weights, values = self._singles
        found = (2 / len(rows) * weights * (rows.mean(0) - values)).expand_as(rows)
        if self._pairs:
            weights, values = self._pairs
            weighed = weights * (rows.t() @ rows / len(rows) - values)
            found = found + 2 / len(rows) * (rows @ weighed)
        if self._cliques:
            given = rows.detach().requires_grad_()
            found = found + torch.autograd.grad(self._of_cliques(given), given)[0]
        return found

    def _of_cliques(self, rows: torch.Tensor) -> torch.Tensor:
        """The misfit of the cliques that are answered each for itself; it is differentiable."""
        tables = self._answers(rows)
        errors = torch.cat([tables[clique].reshape(-1) for clique in self._cliques])
        return (self._squares * (errors - self._values).square()).sum()


def _means(
    columns: Columns, measurements: Sequence[Measurement], total: float, k: int
) -> list[torch.Tensor]:
    """Weights, and means by inverse variance, of marginals of k attributes, as fractions: arrays of
    k axes of columns, the same whatever the order of the axes.
    """
    weights = np.zeros((columns.width,) * k)
    sums = np.zeros_like(weights)
    for each in measurements:
        weight = (total / each.stddev) ** 2
        table = weight / total * np.reshape(each.values, columns.domain.shape(each.clique))
        for order in itertools.permutations(range(k)):
            at = tuple(columns.of(each.clique[place]) for place in order)
            weights[at] += weight
            sums[at] += table.transpose(order)
    means = np.divide(sums, weights, out=np.zeros_like(sums), where=weights > 0)
    return [_tensor(weights), _tensor(means)]


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
        shares = np.maximum(shares, 1e-5)  # a probability of 0 would have no finite logit
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


def _joined(parts: Sequence[np.ndarray]) -> torch.Tensor:
    return _tensor(np.concatenate(parts) if parts else np.zeros(0))


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)
