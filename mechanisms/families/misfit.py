"""The misfit of a mixture of product rows to noisy tables, and its gradient, in few matrix
products.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from mechanisms.families.product_mixture import Columns, ProductAnswers
from pgmkit.domain import Domain
from pgmkit.linear.kronecker import Kronecker
from pgmkit.linear.matrix import as_dense
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array

_Place = tuple[int, int]
_Tables = dict[tuple[_Place, _Place], tuple[float, Array]]
_Group = tuple[_Place, torch.Tensor, torch.Tensor, torch.Tensor]


class Misfit:
    """The sum over measured cells of ((answer - noisy value) / stddev)^2, up to a constant, as a
    function of the rows of a mixture. `measurements` are in counts of `total` records: whole
    marginals, or pairs with a matrix for each attribute.

    If the measured pairs have two fifths of the cells of all pairs of attributes or more (a larger
    part with few attributes), one product of the matrix of rows with itself gives the answers of
    all pairs; otherwise measured pairs with a common attribute share a smaller product. If a pair
    was measured on merged codes (`mechanisms.rounds.merging`), the rows' probabilities are first
    summed over the codes of each group. Larger cliques are answered by `ProductAnswers`.

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
        others = [m for m in measurements if len(m.clique) not in (1, 2)]
        singles = single_shares(columns, measurements, total)
        self._singles = tuple(_tensor(each, device) for each in singles)
        self.pairs = _pairs(columns, pairs, total, device) if pairs else None
        self._cliques = [m.clique for m in others]
        self._answers = ProductAnswers(columns, dict.fromkeys(self._cliques))
        squares = [np.full(len(m.values), (total / m.stddev) ** 2) for m in others]
        values = [m.values / total for m in others]
        self._squares, self._values = (
            _tensor(np.concatenate([[], *each]), device) for each in (squares, values)
        )

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the misfit of rows of probabilities, K x columns.width."""
        weights, values = self._singles
        found = (weights * (rows.mean(0) - values).square()).sum()
        if self.pairs is not None:
            found = found + self.pairs(rows)
        return found + self._of_cliques(rows) if self._cliques else found

    def slope(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the gradient with respect to the rows, in their shape. Automatic differentiation
        would take three times as long.
        """
        weights, values = self._singles
        found = torch.zeros_like(rows) if self.pairs is None else self.pairs.slope(rows)
        found += 2 / len(rows) * weights * (rows.mean(0) - values)
        if self._cliques:
            given = rows.detach().requires_grad_()
            found += torch.autograd.grad(self._of_cliques(given), given)[0]
        return found

    def _of_cliques(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the misfit of all tables but those of one and of two attributes; it is
        differentiable.
        """
        tables = self._answers(rows)
        errors = torch.cat([tables[clique].reshape(-1) for clique in self._cliques])
        return (self._squares * (errors - self._values).square()).sum()


class Scaled:
    """A function from a row's probabilities to the numbers whose products, averaged over the rows,
    are compared with the measured tables of pairs. Here each number is the probability of one code
    times a scale plus a shift. `scales` and `shifts` have an entry for each column of the rows.
    """

    def __init__(self, scales: torch.Tensor, shifts: torch.Tensor) -> None:
        self._scales, self._shifts = scales, shifts

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the scaled and shifted probabilities of rows, K x columns.width."""
        return torch.addcmul(self._shifts, rows, self._scales)

    def transposed(self, slope: torch.Tensor) -> torch.Tensor:
        """Return the gradient with respect to the rows, given that with respect to the scaled and
        shifted probabilities.
        """
        return slope * self._scales


class Summed:
    """A function for the same purpose as `Scaled`, whose numbers are any weighted sums of the
    probabilities of an attribute's codes. `matrices` has a matrix for each attribute, with a row
    for each code and a column for each sum.
    """

    def __init__(self, matrices: Sequence[torch.Tensor]) -> None:
        self._matrices = matrices
        self._codes, self._sums = ([m.shape[side] for m in matrices] for side in (0, 1))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the weighted sums of each of K rows of probabilities, those of all attributes one
        after another: K x number of sums.
        """
        parts = zip(torch.split(rows, self._codes, 1), self._matrices, strict=True)
        return torch.cat([part @ matrix for part, matrix in parts], 1)

    def transposed(self, slope: torch.Tensor) -> torch.Tensor:
        """Return the gradient with respect to the rows, given that with respect to the sums."""
        parts = zip(torch.split(slope, self._sums, 1), self._matrices, strict=True)
        return torch.cat([part @ matrix.t() for part, matrix in parts], 1)


class Pairs:
    """The misfit of pairs, computed by one product of the matrix of the rows' sums with itself.

    `sums`: the function that returns the W sums of each row. `weights` and `means`: the weight and
    the noisy share of each product of two sums, as symmetric W x W matrices; the weight is 0 for
    sums that were not measured together.
    """

    def __init__(self, sums: Scaled | Summed, weights: torch.Tensor, means: torch.Tensor) -> None:
        self._sums, self._weights, self._means = sums, weights, means

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return (self._weights * self._missed(self._sums(rows)).square()).sum() / 2

    def slope(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the gradient with respect to the rows, in their shape."""
        wide = self._sums(rows)
        missed = self._missed(wide).mul_(self._weights).mul_(2 / len(wide))
        return self._sums.transposed(wide @ missed)

    def _missed(self, wide: torch.Tensor) -> torch.Tensor:
        return wide.t() @ wide / len(wide) - self._means


class FewPairs(Pairs):
    """The misfit of pairs if most pairs of sums were not measured. The tables are grouped by the
    matrix of sums along one of their two sides, and each group is computed by one product.

    `groups` has a tuple for each group: the range (first, one after the last) of the m sums of the
    common side, the places of the n sums of all other sides, and two m x n matrices, of the weights
    and of the noisy shares.
    """

    def __init__(self, sums: Scaled | Summed, groups: Sequence[_Group]) -> None:
        self._sums, self._groups = sums, groups

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        lines = self._sums(rows).t().contiguous()
        missed = [
            (weights * (lines[slice(*part)] @ lines[places].t() / len(rows) - means).square()).sum()
            for part, places, weights, means in self._groups
        ]
        return torch.stack(missed).sum()

    def slope(self, rows: torch.Tensor) -> torch.Tensor:
        lines = self._sums(rows).t().contiguous()
        found = torch.zeros_like(lines)
        for part, places, weights, means in self._groups:
            left, right = lines[slice(*part)], lines[places]
            missed = weights * (left @ right.t() / len(rows) - means)
            found[slice(*part)] += missed @ right
            found.index_add_(0, places, missed.t() @ left)
        return self._sums.transposed(2 / len(rows) * found.t())


def _pairs(
    columns: Columns, pairs: Sequence[Measurement], total: float, device: torch.device | str
) -> Pairs:
    """Return the misfit of these tables of pairs, with counts divided by the total. Several tables
    of one pair on the same sums of codes are replaced by their mean, weighted by inverse variance.
    """
    matrices: dict[str, dict[bytes, Array]] = {name: {} for name in columns.domain}
    sides = [[*zip(each.clique, factors(columns.domain, each), strict=True)] for each in pairs]
    for name, matrix in itertools.chain.from_iterable(sides):
        matrices[name].setdefault(matrix.tobytes(), matrix)
    # The place of each matrix is the range of its sums among all sums.
    places: dict[tuple[str, bytes], _Place] = {}
    width = 0
    for name, found in matrices.items():
        for key, matrix in found.items():
            places[name, key] = width, (width := width + len(matrix))
    tables: _Tables = {}
    for each, both in zip(pairs, sides, strict=True):
        first, second = (places[name, matrix.tobytes()] for name, matrix in both)
        table = np.reshape(each.values / total, (first[1] - first[0], -1))
        if second < first:
            first, second, table = second, first, table.T
        weight, mean = tables.get((first, second), (0.0, table))
        more = weight + (total / each.stddev) ** 2
        tables[first, second] = more, mean + (1 - weight / more) * (table - mean)
    adding = summing(columns.domain, matrices, device)
    # For each cell, small products take about five times as long as a large product, so they are
    # used if they have less than a fifth of its cells.
    if 5 * sum(table.size for _, table in tables.values()) < width**2:
        return FewPairs(adding, grouped(tables, device))
    weights, means = np.zeros((2, width, width))
    for parts, (weight, mean) in tables.items():
        rows, across = (slice(*part) for part in parts)
        weights[rows, across] = weights[across, rows] = weight
        means[rows, across], means[across, rows] = mean, mean.T
    return Pairs(adding, _tensor(weights, device), _tensor(means, device))


def grouped(tables: _Tables, device: torch.device | str) -> list[_Group]:
    """Return the tables grouped by the larger of their two sides, as `FewPairs` takes them."""
    partners: dict[_Place, list[tuple[_Place, float, Array]]] = {}
    for (first, second), (weight, table) in tables.items():
        if table.shape[0] < table.shape[1]:
            first, second, table = second, first, table.T
        partners.setdefault(first, []).append((second, weight, table))
    groups = []
    for part, found in partners.items():
        places = torch.from_numpy(np.concatenate([np.arange(*other) for other, *_ in found]))
        weights = np.concatenate([np.full(table.shape, weight) for _, weight, table in found], 1)
        means = np.concatenate([table for *_, table in found], 1)
        groups.append((part, places.to(device), _tensor(weights, device), _tensor(means, device)))
    return groups


def summing(
    domain: Domain, matrices: Mapping[str, Mapping[bytes, Array]], device: torch.device | str
) -> Scaled | Summed:
    """Return the function of the rows' probabilities that these matrices compute. `matrices`: for
    each attribute its distinct matrices (sums x codes), by their bytes.

    The probabilities of an attribute's codes sum to 1, so a constant that is added to a row of its
    matrix only shifts the result. The matrix of a table or residual on single codes is such
    constants plus a diagonal matrix. If each attribute has one matrix of this kind, the function is
    a `Scaled`, otherwise a `Summed`.
    """
    joined = [
        np.concatenate([np.zeros((0, domain.sizes[name])), *found.values()])
        for name, found in matrices.items()
    ]
    shifts = [matrix.min(axis=1) for matrix in joined]
    parts = [matrix - shift[:, None] for matrix, shift in zip(joined, shifts, strict=True)]
    if all(np.array_equal(part, np.diag(np.diag(part))) for part in parts):
        scales = np.concatenate([np.diag(part) for part in parts])
        return Scaled(_tensor(scales, device), _tensor(np.concatenate(shifts), device))
    return Summed([_tensor(matrix.T, device) for matrix in joined])


def factors(domain: Domain, measurement: Measurement) -> list[Array]:
    """Return the matrix (values x codes) of a measurement along each attribute of its clique. The
    measurement must be of a whole marginal, for which they are identities, or be made with a matrix
    for each attribute.
    """
    if isinstance(measurement.matrix, Kronecker):
        return [as_dense(each) for each in measurement.matrix.factors]
    return [np.eye(domain.sizes[name]) for name in measurement.clique]


def single_shares(
    columns: Columns, measurements: Sequence[Measurement], total: float
) -> tuple[Array, Array]:
    """Return two arrays with an entry for each column, from the tables of one attribute: the weight
    of its squared error, and the mean of its noisy values by inverse variance. Both are for
    fractions of the total, and 0 for columns that were not measured.
    """
    weights, sums = np.zeros(columns.width), np.zeros(columns.width)
    for each in (m for m in measurements if len(m.clique) == 1):
        weight = (total / each.stddev) ** 2
        weights[columns.of(each.clique[0])] += weight
        sums[columns.of(each.clique[0])] += weight / total * each.values
    return weights, np.divide(sums, weights, out=sums, where=weights > 0)


def _tensor(values: np.ndarray, device: torch.device | str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)
