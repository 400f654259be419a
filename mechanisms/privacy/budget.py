"""The privacy budget: (epsilon, delta), and its equivalent in zCDP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mechanisms.privacy.conversions import (
    epsilon_from_rho,
    not_negative,
    positive,
    rho_from_epsilon,
)
from pgmkit.errors import InvalidInput

__all__ = ["Budget"]


@dataclass(frozen=True)
class Budget:
    """An (epsilon, delta) budget and the unit in which a ledger spends it.

    With delta > 0 the unit is zCDP: `total` is the largest rho that implies (epsilon, delta)-DP,
    and noise is Gaussian. With delta = 0 the unit is epsilon itself, added up by basic
    composition, and noise is Laplace: no amount of zCDP implies pure differential privacy.

    `reserved`: the part of delta that is kept for steps with a failure probability of their own
    (the discovery of labels); rho is what epsilon and the rest of delta allow.

    Raises InvalidInput unless epsilon > 0 is finite, 0 <= delta < 1 and 0 <= reserved < delta.

    >>> Budget(1.0, 1e-9).unit, Budget(1.0).unit, Budget(1.0).total
    ('rho', 'epsilon', 1.0)
    """

    epsilon: float
    delta: float = 0.0
    reserved: float = 0.0

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        not_negative("delta", self.delta)
        if self.delta >= 1:
            raise InvalidInput(f"delta must be at least 0 and below 1, got {self.delta!r}")
        not_negative("reserved", self.reserved)
        if self.reserved and not self.reserved < self.delta:
            raise InvalidInput(
                f"reserved must be below delta = {self.delta!r}, got {self.reserved!r}"
            )
        _ = self.total  # an unusable budget must fail here, before anything is spent

    @property
    def pure(self) -> bool:
        """Whether the promise is pure differential privacy (delta = 0)."""
        return self.delta == 0

    @property
    def unit(self) -> str:
        """What the ledger counts: "rho" (zCDP) or "epsilon" (pure)."""
        return "epsilon" if self.pure else "rho"

    @cached_property
    def total(self) -> float:
        """All there is to spend, in `unit`."""
        if self.pure:
            return self.epsilon
        return rho_from_epsilon(self.epsilon, self.delta - self.reserved)

    def epsilon_spent(self, cost: float) -> float:
        """The epsilon (at this budget's delta) that a total cost in `unit` stands for."""
        return cost if self.pure else epsilon_from_rho(cost, self.delta - self.reserved)
