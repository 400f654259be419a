"""The distance of product rows from noisy tables, and its gradient, in few matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from mechanisms.families.product_mixture import Columns, ProductAnswers
from pgmkit.domain import Domain
from pgmkit.linear.kronecker import Kronecker
from pgmkit.linear.matrix import as_dense
from pgmkit.measurement import Measurement

_Place = tuple[int, int]
_Tables = dict[tuple[_Place, _Place], tuple[float, NDArray[np.float64]]]


class Misfit:
    """The sum over measured cells of ((answer - noisy value) / stddev)^2, up to a constant.

    If most pairs were measured, one matrix product of the rows with themselves answers all of them;
    if few were, a batch of small ones. A pair may have been measured on merged codes
    (`mechanisms.rounds.merging`), which the rows answer by sums. Larger cliques are answered one by
    one.

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
        others = [m for m in measurements if len(m.clique) not in (1, 2)]
        weights, means = _singles(columns, singles, total)
        self._singles = weights.to(device), means.to(device)
        self._pairs = _pairs(columns, pairs, total, device) if pairs else None
        self._cliques = [m.clique for m in others]
        self._answers = ProductAnswers(columns, dict.fromkeys(self._cliques))
        squares = [np.full(len(m.values), (total / m.stddev) ** 2) for m in others]
        self._squares = _joined(squares).to(device)
        self._values = _joined([m.values / total for m in others]).to(device)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the misfit of rows of probabilities, K x columns.width."""
        weights, values = self._singles
        found = (weights * (rows.mean(0) - values).square()).sum()
        if self._pairs is not None:
            found = found + self._pairs(rows)
        return found + self._of_cliques(rows) if self._cliques else found

    def slope(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the gradient, in the shape of the rows. Automatic gradients would take three times
        as long.
        """
        weights, values = self._singles
        found = (2 / len(rows) * weights * (rows.mean(0) - values)).expand_as(rows)
        if self._pairs is not None:
            found = found + self._pairs.slope(rows)
        if self._cliques:
            given = rows.detach().requires_grad_()
            found = found + torch.autograd.grad(self._of_cliques(given), given)[0]
        return found

    def _of_cliques(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the misfit of the cliques that are answered one by one; it is differentiable."""
        tables = self._answers(rows)
        errors = torch.cat([tables[clique].reshape(-1) for clique in self._cliques])
        return (self._squares * (errors - self._values).square()).sum()


class _Pairs:
    """The misfit of pairs, by one matrix product of the rows with themselves.

    `sums`: a matrix, columns.width x W, whose columns are the rows of the pairs' matrices along
    their attributes; None if every pair was measured code by code. `weights` and `means`: W x W,
    with each pair twice.
    """

    def __init__(
        self, sums: torch.Tensor | None, weights: torch.Tensor, means: torch.Tensor
    ) -> None:
        self._sums, self._weights, self._means = sums, weights, means

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return (self._weights * self._missed(rows).square()).sum() / 2

    def slope(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the gradient, in the shape of the rows."""
        pull = self._weights * self._missed(rows)
        if self._sums is not None:
            pull = self._sums @ pull @ self._sums.t()
        return 2 / len(rows) * (rows @ pull)

    def _missed(self, rows: torch.Tensor) -> torch.Tensor:
        # There are usually more rows than columns, so codes are merged after the product.
        answers = rows.t() @ rows / len(rows)
        if self._sums is not None:
            answers = self._sums.t() @ answers @ self._sums
        return answers - self._means


class _FewPairs(_Pairs):
    """The misfit of pairs if most pairs of groups were not measured: a small product for each
    pair.

    `places`: two arrays, one for each attribute of the pairs, of shape pairs x g, with the columns
    of the groups; if a pair has fewer than g groups, the rest of its row is W. `weights` (zero
    where filled) and `means`: pairs x g x g.
    """

    def __init__(
        self,
        sums: torch.Tensor | None,
        places: tuple[torch.Tensor, torch.Tensor],
        weights: torch.Tensor,
        means: torch.Tensor,
    ) -> None:
        super().__init__(sums, weights, means)
        self._places = places

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        left, right = self._sides(self._wide(rows))
        answers = left @ right.transpose(1, 2) / len(rows)
        return (self._weights * (answers - self._means).square()).sum()

    def slope(self, rows: torch.Tensor) -> torch.Tensor:
        wide = self._wide(rows)
        left, right = self._sides(wide)
        missed = self._weights * (left @ right.transpose(1, 2) / len(wide) - self._means)
        found = wide.new_zeros(wide.shape[1] + 1, len(wide))
        found.index_add_(0, self._places[0].flatten(), (missed @ right).flatten(0, 1))
        found.index_add_(
            0, self._places[1].flatten(), (missed.transpose(1, 2) @ left).flatten(0, 1)
        )
        slope = 2 / len(wide) * found[:-1].t()
        return slope if self._sums is None else slope @ self._sums.t()

    def _wide(self, rows: torch.Tensor) -> torch.Tensor:
        return rows if self._sums is None else rows @ self._sums

    def _sides(self, wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        lines = torch.cat([wide.t(), wide.new_zeros(1, len(wide))])
        return lines[self._places[0]], lines[self._places[1]]


def _pairs(
    columns: Columns,
    pairs: Sequence[Measurement],
    total: float,
    device: torch.device | str,
) -> _Pairs:
    """Return the misfit of these tables, as shares of the total. Several tables of one pair on the
    same groups of codes count as one: their mean, weighted by inverse variance.
    """
    places: dict[tuple[str, bytes], _Place] = {}
    sums: list[NDArray[np.float64]] = []
    tables: _Tables = {}
    width = 0
    for each in pairs:
        keys = []
        for name, factor in zip(each.clique, factors(columns.domain, each), strict=True):
            keys.append((name, factor.tobytes()))
            if keys[-1] not in places:
                places[keys[-1]] = width, (width := width + len(factor))
                sums.append(np.zeros((len(factor), columns.width)))
                sums[-1][:, columns.of(name)] = factor
        first, second = (places[key] for key in keys)
        table = np.reshape(each.values / total, (first[1] - first[0], -1))
        if second < first:
            first, second, table = second, first, table.T
        weight, mean = tables.get((first, second), (0.0, table))
        more = weight + (total / each.stddev) ** 2
        tables[first, second] = more, mean + (1 - weight / more) * (table - mean)
    summing = np.concatenate(sums).T
    plain = np.array_equal(summing, np.eye(columns.width))
    adding = None if plain else _tensor(summing).to(device)
    most = max(max(table.shape) for _, table in tables.values())
    # For each cell, small products, padded to the largest pair, are about eight times slower than a
    # large product.
    if 8 * len(tables) * most**2 < width**2:
        return _few_pairs(adding, width, most, tables, device)
    weights, means = np.zeros((2, width, width))
    for parts, (weight, mean) in tables.items():
        rows, across = (slice(*part) for part in parts)
        weights[rows, across] = weights[across, rows] = weight
        means[rows, across], means[across, rows] = mean, mean.T
    return _Pairs(adding, _tensor(weights).to(device), _tensor(means).to(device))


def _few_pairs(
    adding: torch.Tensor | None,
    width: int,
    most: int,
    tables: _Tables,
    device: torch.device | str,
) -> _FewPairs:
    places = np.full((2, len(tables), most), width)
    weights, means = np.zeros((2, len(tables), most, most))
    for i, (parts, (weight, table)) in enumerate(tables.items()):
        for side, part in enumerate(parts):
            places[side, i, : part[1] - part[0]] = np.arange(*part)
        rows, lines = table.shape
        weights[i, :rows, :lines], means[i, :rows, :lines] = weight, table
    left, right = (torch.from_numpy(each).to(device) for each in places)
    return _FewPairs(adding, (left, right), _tensor(weights).to(device), _tensor(means).to(device))


def factors(domain: Domain, measurement: Measurement) -> list[NDArray[np.float64]]:
    """Return the matrix of a measured table along each attribute; without one, the identity."""
    if isinstance(measurement.matrix, Kronecker):
        return [as_dense(each) for each in measurement.matrix.factors]
    return [np.eye(domain.sizes[name]) for name in measurement.clique]


def _singles(
    columns: Columns, measurements: Sequence[Measurement], total: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, for each column, the weight of its squared error and the mean of its noisy values by
    inverse variance, both for fractions of the total; 0 for columns that were not measured.
    """
    weights, sums = np.zeros(columns.width), np.zeros(columns.width)
    for each in measurements:
        weight = (total / each.stddev) ** 2
        weights[columns.of(each.clique[0])] += weight
        sums[columns.of(each.clique[0])] += weight / total * each.values
    means = np.divide(sums, weights, out=np.zeros_like(sums), where=weights > 0)
    return _tensor(weights), _tensor(means)


def _joined(parts: Sequence[np.ndarray]) -> torch.Tensor:
    return _tensor(np.concatenate(parts) if parts else np.zeros(0))


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)
