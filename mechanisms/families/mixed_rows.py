"""Relaxed rows of mixed types, the family of RAP++: each row has probabilities of the codes of
every categorical attribute, and a number between 0 and 1 for every numeric attribute.

A threshold has no gradient; for training it is replaced by a sigmoid with an inverse temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mechanisms.families.product_mixture import Columns, ProductRows
from mechanisms.families.targets import one_hot_of
from mechanisms.queries.predicates import Predicates
from pgmkit.domain import Domain


@dataclass(frozen=True, eq=False)
class MixedState(ProductRows):
    """The rows between updates, and the free parameters that they are computed from."""

    free: torch.Tensor


class MixedRows:
    """The rows of a domain whose attributes `numeric` are numbers, and their answers to predicates.

    The parameters `free`, rows x (number of codes + number of numeric attributes), are
    unconstrained: a softmax turns them into probabilities and a sigmoid into numbers.
    """

    def __init__(
        self, domain: Domain, numeric: Sequence[str], device: torch.device | str = "cpu"
    ) -> None:
        self.device = device
        self.domain, self.numbers = domain, tuple(n for n in domain if n in numeric)
        self.codes = tuple(n for n in domain if n not in numeric)
        sizes = [domain.sizes[name] for name in self.codes]
        ends = np.cumsum([0, *sizes])
        self.starts = dict(zip(self.codes, ends.tolist(), strict=False))
        self.sizes, self.width = sizes, int(ends[-1])

    def start(self, rows: int, random: torch.Generator) -> torch.Tensor:
        """Return random parameters, rows x (number of codes + number of numeric attributes)."""
        return torch.randn(rows, self.width + len(self.numbers), generator=random).to(self.device)

    def rows(self, free: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the probabilities of codes, with a last column of ones, and the numbers."""
        parts = torch.split(free[:, : self.width], self.sizes, dim=1) if self.sizes else ()
        ones = free.new_ones(len(free), 1)
        return (
            torch.cat([*(part.softmax(1) for part in parts), ones], dim=1),
            free[:, self.width :].sigmoid(),
        )

    def state(self, free: torch.Tensor, total: float) -> MixedState:
        """Return the product rows that these parameters stand for, which answer marginals.

        The code that a number falls into gets probability 1.
        """
        codes, numbers = self.rows(free.detach())
        parts = []
        for name, size in self.domain.sizes.items():
            if name in self.starts:
                parts.append(codes[:, self.starts[name] : self.starts[name] + size])
            else:
                place = self._code(numbers[:, self.numbers.index(name)], size)
                parts.append(one_hot_of(place, size).to(codes.dtype))
        return MixedState(Columns(self.domain), torch.cat(parts, dim=1), total, free)

    def index(self, predicates: Predicates) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return three tensors with a line for each predicate: the places of its codes among the
        first result of `rows`, filled up with the column of ones; its weights on the numbers; and
        its bound.
        """
        longest = max((len(each.codes) for each in predicates.list), default=0)
        columns = torch.full((len(predicates), max(1, longest)), self.width, dtype=torch.long)
        for line, each in enumerate(predicates.list):
            for place, (name, code) in enumerate(each.codes):
                columns[line, place] = self.starts[name] + code
        weights = torch.zeros(len(predicates), len(self.numbers))
        for place, name in enumerate(predicates.numbers):
            weights[:, self.numbers.index(name)] = torch.tensor(
                predicates.matrix[:, place], dtype=torch.float32
            )
        bounds = torch.tensor(predicates.bounds, dtype=torch.float32)
        return columns.to(self.device), weights.to(self.device), bounds.to(self.device)

    def answers(
        self,
        free: torch.Tensor,
        indexed: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        temperature: float | None,
    ) -> torch.Tensor:
        """Return the share of the rows that satisfies each predicate; `indexed` is the result of
        `index`. A `temperature` of None applies the true thresholds, a number sigmoids with this
        inverse temperature.
        """
        columns, weights, bounds = indexed
        codes, numbers = self.rows(free)
        product = codes[:, columns[:, 0]]
        for place in range(1, columns.shape[1]):
            product = product * codes[:, columns[:, place]]
        reach = bounds - numbers @ weights.t()
        met = (reach >= 0).float() if temperature is None else (temperature * reach).sigmoid()
        return (product * met).mean(0)

    def records(self, free: torch.Tensor, rng: np.random.Generator) -> list[tuple[int, ...]]:
        """Return ten records for each row: codes drawn from its probabilities, and its numbers.

        With one record for each row, the chance of the draw would add to the error of the fit.
        """
        codes, numbers = (part.detach().double().cpu().numpy() for part in self.rows(free))
        codes, numbers = (np.repeat(part, 10, axis=0) for part in (codes, numbers))
        columns = {}
        for name, size in zip(self.codes, self.sizes, strict=True):
            start = self.starts[name]
            reached = codes[:, start : start + size].cumsum(axis=1)
            drawn = rng.random((len(codes), 1)) * reached[:, -1:]
            columns[name] = (drawn >= reached).sum(axis=1).clip(max=size - 1)
        for place, name in enumerate(self.numbers):
            size = self.domain.sizes[name]
            columns[name] = self._code(torch.from_numpy(numbers[:, place]), size).numpy()
        stacked = np.stack([columns[name] for name in self.domain], axis=1)
        return [tuple(map(int, line)) for line in stacked]

    @staticmethod
    def _code(numbers: torch.Tensor, size: int) -> torch.Tensor:
        """Return for each number between 0 and 1 the index of the interval it falls into, of `size`
        equal intervals.
        """
        return (numbers.double() * size).floor().long().clamp(0, size - 1)
