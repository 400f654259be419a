"""Relaxed rows of mixed types, the family of RAP++: each row has probabilities of the codes of
every categorical attribute, and a rank between 0 and 1 for every numeric attribute.

A rank is the share of the records with a smaller number, by noisy counts: on this scale half of all
records lie below 1/2, so a skewed attribute is no harder to fit than an even one. Neighbouring
codes form groups, and within a group the codes keep the shares of their noisy counts. Thresholds,
and the bounds of groups, have no gradient: for training they are replaced by sigmoids with an
inverse temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mechanisms.families.fitting import FreeRows
from mechanisms.families.product_mixture import Columns
from mechanisms.queries.predicates import Predicates
from pgmkit.domain import Domain
from pgmkit.measurement import Measurement
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.arrays import Array

Groups = NDArray[np.intp]


class Thresholds(NamedTuple):
    """Predicates as tensors with a line for each: a row satisfies a predicate if it has the codes
    of `columns` and its numbers, weighted by `weights`, sum to at most the bound.

    Attributes:
        columns: The numbers of the columns of the predicate's codes, filled up with the number of a
            column of ones: predicates x the most codes that a predicate has.
        weights: The weight of each numeric attribute: predicates x numeric attributes.
        bounds: The bounds, one for each predicate.
    """

    columns: torch.Tensor
    weights: torch.Tensor
    bounds: torch.Tensor


class Ranks:
    """The ranks of numeric attributes, and their groups of neighbouring codes.

    `counts`: for each numeric attribute the noisy counts of its codes, at least 0. `groups`: for
    each numeric attribute the group of each of its codes, numbered from 0 in the order of the
    codes.

    Attributes:
        domain: The domain with the groups of numeric attributes in place of their codes.
        bounds: For each numeric attribute the ranks at which its groups begin, without the first.
    """

    def __init__(
        self, whole: Domain, counts: Mapping[str, Array], groups: Mapping[str, Groups]
    ) -> None:
        self.whole, self.groups = whole, groups
        sizes = {name: int(group[-1]) + 1 for name, group in groups.items()}
        self.domain = Domain({name: sizes.get(name, size) for name, size in whole.sizes.items()})
        self.bounds: dict[str, torch.Tensor] = {}
        self._below, self._values, within = {}, {}, {}
        for name, group in groups.items():
            even = counts[name] + 1e-9 * max(1.0, counts[name].sum())  # no group is empty
            starts = self._starts(name)
            within[name] = even / np.add.reduceat(even, starts)[group]
            self._below[name] = np.concatenate([[0.0], even.cumsum() / even.sum()])
            ends = [*starts, len(group)]
            self.bounds[name] = torch.tensor(self._below[name][starts[1:]], dtype=torch.float32)
            knots = self._below[name][ends], np.array(ends) / len(group)
            self._values[name] = tuple(torch.tensor(each, dtype=torch.float32) for each in knots)
        # Of each code: the column of its group in rows over `domain`, and its share of the group.
        first = np.cumsum([0, *self.domain.shape()[:-1]])
        parts = [groups.get(name, np.arange(size)) for name, size in whole.sizes.items()]
        self._columns = torch.from_numpy(np.concatenate([*map(np.add, first, parts)]))
        shares = [within.get(name, np.ones(size)) for name, size in whole.sizes.items()]
        self._shares = torch.from_numpy(np.concatenate(shares))

    def _starts(self, name: str) -> NDArray[np.intp]:
        return np.flatnonzero(np.diff(self.groups[name], prepend=-1))

    def of(self, name: str, codes: NDArray[np.integer], places: Array) -> Array:
        """Return the ranks of codes: shares of the records that have a smaller number, by noisy
        counts. `places` has the position within each code's range of ranks, from 0 (its lower end)
        to 1.
        """
        below = self._below[name]
        return below[codes] + places * (below[codes + 1] - below[codes])

    def number(self, name: str, ranks: torch.Tensor) -> torch.Tensor:
        """Return the values of a numeric attribute at these ranks (shares of the records below),
        scaled so that its codes divide the range from 0 to 1 evenly. Within a group of codes they
        rise linearly; they are differentiable.
        """
        below, values = (each.to(ranks.device) for each in self._values[name])
        group = torch.searchsorted(below, ranks.detach().contiguous(), right=True) - 1
        group = group.clamp(0, len(below) - 2)
        slope = (values[group + 1] - values[group]) / (below[group + 1] - below[group])
        return values[group] + (ranks - below[group]) * slope

    def merged(self, m: Measurement) -> tuple[Array, Array]:
        """Return the noisy counts of a whole marginal with codes merged into groups, and their
        standard deviations, both flat.
        """
        values = np.asarray(m.values, dtype=np.float64).reshape(self.whole.shape(m.clique))
        codes = np.ones(values.shape)
        for axis, name in enumerate(m.clique):
            if name in self.groups:
                values, codes = (
                    np.add.reduceat(each, self._starts(name), axis) for each in (values, codes)
                )
        return values.ravel(), m.stddev * np.sqrt(codes).ravel()

    def expand(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows over all codes (K x codes) from rows over `self.domain`: the probability of a
        group is divided among its codes by their noisy counts.
        """
        return rows[:, self._columns.to(rows.device)] * self._shares.to(rows)


class MixedRows:
    """The relaxed rows of RAP++ over a domain with the numeric attributes of `ranks`, computed from
    unconstrained parameters, and the rows' answers.

    The parameters `free`, rows x (number of codes of categorical attributes + number of numeric
    attributes), are unconstrained: a softmax turns them into probabilities, a sigmoid into ranks.
    """

    def __init__(self, ranks: Ranks, device: torch.device | str = "cpu") -> None:
        self.device, self.ranks = device, ranks
        self.columns = Columns(ranks.domain)
        self.numbers = tuple(name for name in ranks.whole if name in ranks.groups)
        self.codes = tuple(name for name in ranks.whole if name not in ranks.groups)
        self.sizes = [ranks.whole.sizes[name] for name in self.codes]
        self.width = sum(self.sizes)

    def start(self, records: Dataset, random: torch.Generator) -> torch.Tensor:
        """Return the parameters of one row for each record. For a categorical attribute they are
        logits drawn from a standard normal distribution, with `_SURE` added at the record's code;
        for a numeric attribute it is the logit of a rank drawn at random within the record's code.
        """
        parts = []
        for name, size in zip(self.codes, self.sizes, strict=True):
            codes = torch.from_numpy(np.asarray(records.columns[name], dtype=np.int64))
            noise = torch.randn(len(records), size, generator=random)
            parts.append(noise + _SURE * torch.nn.functional.one_hot(codes, size))
        for name in self.numbers:
            places = torch.rand(len(records), generator=random).double().numpy()
            ranks = self.ranks.of(name, np.asarray(records.columns[name]), places)
            parts.append(torch.logit(torch.from_numpy(ranks).float(), 1e-6).unsqueeze(1))
        return torch.cat(parts, dim=1).to(self.device)

    def rows(
        self, free: torch.Tensor, temperature: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of probabilities (K x columns.width) and the values of their numeric
        attributes (K x number of these), computed from the parameters `free`.

        With a `temperature` of None, all probability of a numeric attribute is on the group in
        which its rank lies. Otherwise it is an inverse temperature: the bounds of groups are
        sigmoids, and the rows are differentiable in all parameters.
        """
        split = torch.split(free[:, : self.width], self.sizes, dim=1) if self.sizes else ()
        parts = {name: part.softmax(1) for name, part in zip(self.codes, split, strict=True)}
        numbers = []
        for name, rank in zip(self.numbers, free[:, self.width :].sigmoid().t(), strict=True):
            above = _met(rank.unsqueeze(1) - self.ranks.bounds[name].to(free.device), temperature)
            ends = above.new_ones(len(above), 1)
            parts[name] = -torch.diff(torch.cat([ends, above, 0 * ends], dim=1), dim=1)
            numbers.append(self.ranks.number(name, rank))
        rows = torch.cat([parts[name] for name in self.ranks.whole], dim=1)
        return rows, torch.stack(numbers, dim=1) if numbers else rows[:, :0]

    def state(self, free: torch.Tensor, total: float) -> FreeRows:
        """Return the parameters `free` together with the product rows over all codes that follow
        from them by exact thresholds, as rows of `total` records.
        """
        rows = self.ranks.expand(self.rows(free.detach(), None)[0])
        return FreeRows(Columns(self.ranks.whole), rows, total, free)

    def thresholds(self, predicates: Predicates) -> Thresholds:
        """Return predicates as tensors; their codes must be of categorical attributes."""
        longest = max(1, *(len(each.codes) for each in predicates.list))
        places = torch.full((len(predicates), longest), self.columns.width, dtype=torch.long)
        for line, each in enumerate(predicates.list):
            for place, (name, code) in enumerate(each.codes):
                places[line, place] = self.columns.of(name).start + code
        weights = torch.zeros(len(predicates), len(self.numbers))
        for place, name in enumerate(predicates.numbers):
            column = torch.tensor(predicates.matrix[:, place], dtype=torch.float32)
            weights[:, self.numbers.index(name)] = column
        bounds = torch.tensor(predicates.bounds, dtype=torch.float32)
        return Thresholds(*(each.to(self.device) for each in (places, weights, bounds)))

    def satisfied(
        self,
        rows: torch.Tensor,
        numbers: torch.Tensor,
        thresholds: Thresholds,
        temperature: float | None,
    ) -> torch.Tensor:
        """Return for each predicate the share of the rows that satisfy it. A row counts with the
        product of its probabilities of the predicate's codes.

        `rows` and `numbers` are what the method `rows` returns. With a `temperature`, which is an
        inverse temperature, each threshold is a sigmoid, so that the share is differentiable; with
        None the thresholds are exact.
        """
        codes = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
        product = codes[:, thresholds.columns[:, 0]]
        for place in range(1, thresholds.columns.shape[1]):
            product = product * codes[:, thresholds.columns[:, place]]
        reach = thresholds.bounds - numbers @ thresholds.weights.t()
        return (product * _met(reach, temperature)).mean(0)


_SURE = 4.0
"""The number added to the logit of a first row's own code. All logits are random, with standard
deviation 1. If an attribute has up to about thirty codes, most probability is on the own code, and
the gradients of the others are not yet 0.
"""


def _met(reach: torch.Tensor, temperature: float | None) -> torch.Tensor:
    return (reach >= 0).float() if temperature is None else (temperature * reach).sigmoid()
