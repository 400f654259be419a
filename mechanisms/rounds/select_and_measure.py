"""What GEM and RAP share: checks, the first measurements, and rounds of queries or marginals.

Single queries are cells of the workload's marginals, of sensitivity 1 count under both neighbour
relations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mechanisms.privacy.curator import Curator
from mechanisms.queries.cells import Cell
from mechanisms.workload import Workload, varied
from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput
from pgmkit.measurement import Measurement
from pgmkit.total import estimate_total

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tables = Mapping[Clique, NDArray[np.float64]]

__all__ = [
    "CellRounds",
    "MarginalRounds",
    "RoundsRule",
    "check_device",
    "check_queries",
    "check_settings",
    "measure_one_way",
]


class QuerySettings(Protocol):
    """What the mechanisms' settings have in common."""

    @property
    def rounds(self) -> int | None: ...
    @property
    def queries(self) -> int | None: ...
    @property
    def one_way_share(self) -> float: ...
    @property
    def select(self) -> str: ...


def check_settings(
    settings: object, *, whole: Sequence[str], positive: Sequence[str], fractions: Sequence[str]
) -> None:
    """Raises InvalidInput for a field out of range; `rounds` and `one_way_share` are known."""
    for name in ["rounds", *whole]:
        value = getattr(settings, name)
        if name == "rounds" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidInput(f"{name} must be a whole number, 1 or more; got {value!r}")
    for name in positive:
        value = getattr(settings, name)
        if not (math.isfinite(value) and value > 0):
            raise InvalidInput(f"{name} must be a finite number above 0, got {value!r}")
    for name in ["one_way_share", *fractions]:
        value = getattr(settings, name)
        if not (0 <= value < 1):
            raise InvalidInput(f"{name} must be at least 0 and below 1, got {value!r}")


def check_device(device: str) -> None:
    """Raises InvalidInput unless the device is "cpu", or "cuda" where torch finds one."""
    import torch

    if device != "cpu" and device.split(":")[0] != "cuda":
        raise InvalidInput(f'device must be "cpu" or "cuda", got {device!r}')
    if device != "cpu" and not torch.cuda.is_available():
        raise InvalidInput(f'device {device!r} is not available here; use "cpu"')


def check_queries(curator: Curator, workload: Workload, settings: QuerySettings) -> None:
    """Raises InvalidInput for what the rounds cannot do, before anything is spent.

    Unequal weights, which single queries do not know; more queries than there are; no share for the
    one-way marginals where the total is private.
    """
    marginals = settings.select == "marginals"
    if not marginals and len(set(workload.weights)) > 1:
        raise InvalidInput(
            "the workload has unequal weights, which the selection of single queries does not "
            "use; give equal weights"
        )
    sizes = [workload.domain.size(clique) for clique in workload.cliques]
    available = len(sizes) if marginals else sum(sizes)
    wanted = (settings.rounds or 1) * (settings.queries or 1)
    if wanted > available:
        raise InvalidInput(
            f"rounds x queries a round is {wanted}, but the workload has {available} "
            f"{settings.select}; ask for fewer"
        )
    if settings.one_way_share == 0 and curator.public_total is None:
        raise InvalidInput(
            "one_way_share must be above 0 where the number of rows is private (add/remove): "
            "the total is estimated from the one-way marginals"
        )


def measure_one_way(curator: Curator, share: float) -> tuple[list[Measurement], float]:
    """Every one-way marginal at an equal part of `share` of what remains, and the total.

    The total is public under replace-one and estimated from these answers otherwise (at least 1,
    as data sets have rows). Nothing is measured when the share is 0.
    """
    names = varied(curator.domain)
    cost = share * curator.remaining / len(names)
    first = (
        [curator.measure((name,), cost, step="first: measure") for name in names] if share else []
    )
    if curator.public_total is not None:
        return first, max(1.0, float(curator.public_total))
    return first, max(1.0, estimate_total(first, curator.domain).value)


@dataclass(frozen=True)
class RoundsRule:
    """A number of rounds from public figures: `factor` sqrt(total / noise)^power, at least 1.

    `noise` is the scale at which all that remains would measure one marginal. T rounds of one
    query each have sqrt(T) times the noise in zCDP; under a pure budget it is T times, and the
    square root becomes a cube root.

    Power 1 holds the noise of a round near what is left to correct. Public records leave errors of
    a percent or so, whatever the budget, and a round is worth its cost only where it can see them:
    power 2.
    """

    factor: float
    power: float = 1.0

    def __call__(self, curator: Curator, total: float) -> int:
        root = self.power / (3 if curator.ledger.budget.pure else 2)
        return max(1, round(self.factor * (total / curator.scale(curator.remaining)) ** root))

    def of(
        self, curator: Curator, workload: Workload, settings: QuerySettings, total: float
    ) -> int:
        """The rounds asked for, or by the rule but no more than there is to measure."""
        if settings.rounds is not None:
            return settings.rounds
        if settings.select == "marginals":
            available = len(workload)
        else:
            available = sum(map(workload.domain.size, workload.cliques)) // (settings.queries or 1)
        return max(1, min(available, self(curator, total)))


class _Rounds:
    """The budget of `rounds` equal rounds; the last measurement spends the rest."""

    def __init__(
        self, curator: Curator, workload: Workload, rounds: int, select_share: float
    ) -> None:
        per_round = curator.remaining / rounds
        self._curator, self._workload, self._rounds = curator, workload, rounds
        self._select_cost = select_share * per_round
        self._measure_cost = per_round - self._select_cost
        self._done = 0

    def _next_round(self) -> bool:
        self._done += self._done < self._rounds + 1
        return self._done <= self._rounds

    def _cost(self) -> float:
        last = self._done == self._rounds
        return self._curator.remaining if last else self._measure_cost


class CellRounds(_Rounds):
    """The select and measure steps of rounds of `count` single queries.

    A measured query is not selected again, unless `repeat`.
    """

    def __init__(
        self,
        curator: Curator,
        workload: Workload,
        rounds: int,
        count: int,
        select_share: float,
        *,
        repeat: bool = False,
    ) -> None:
        super().__init__(curator, workload, rounds, select_share)
        self._count, self._repeat = count, repeat
        self._taken: set[Cell] = set()

    def select(self, estimates: Callable[[], Tables]) -> list[Cell] | None:
        """The cells that the estimates answer worst, noisily; None after the last round."""
        if not self._next_round():
            return None
        cells = self._curator.choose_cells(
            self._workload.cliques,
            estimates(),
            self._select_cost,
            count=self._count,
            exclude=self._taken,
            step=f"round {self._done}: select",
        )
        if not self._repeat:
            self._taken.update(cells)
        return cells

    def measure(self, cells: Sequence[Cell]) -> list[Measurement]:
        """The cells' counts, each with its own noise."""
        return self._curator.measure_cells(cells, self._cost(), step=f"round {self._done}: measure")


class MarginalRounds(_Rounds):
    """The select and measure steps of rounds of one whole marginal: the marginal trick (A.1).

    Selection is by the weighted L1 error less the expected noise. A measured marginal is not
    selected again.
    """

    def __init__(
        self, curator: Curator, workload: Workload, rounds: int, select_share: float
    ) -> None:
        super().__init__(curator, workload, rounds, select_share)
        self._weights = dict(zip(workload.cliques, workload.weights, strict=True))

    def select(self, estimates: Callable[[], Tables]) -> Clique | None:
        """The marginal that the estimates answer worst, noisily; None after the last round."""
        if not self._next_round():
            return None
        noise = self._curator.expected_error(self._measure_cost)
        candidates = list(self._weights)
        picked = self._curator.choose(
            candidates,
            estimates(),
            self._select_cost,
            penalties=[noise * self._curator.domain.size(clique) for clique in candidates],
            weights=[self._weights[clique] for clique in candidates],
            step=f"round {self._done}: select",
        )
        del self._weights[picked]
        return picked

    def measure(self, clique: Clique) -> list[Measurement]:
        """The marginal, with noise on every cell."""
        step = f"round {self._done}: measure"
        return [self._curator.measure(clique, self._cost(), step=step)]
