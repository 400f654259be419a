"""The privacy budget, which is (epsilon, delta) and its equivalent in zCDP or Gaussian DP, and the
charges that are made on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias, get_args

from mechanisms.privacy import conversions, gaussian_dp
from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import one_of

Accounting: TypeAlias = Literal["zcdp", "gaussian"]
"""The privacy definition by which costs are added up when delta > 0."""


@dataclass(frozen=True)
class Budget:
    """An (epsilon, delta) budget and the unit in which a ledger spends it.

    With delta > 0 the unit is zCDP: `total` is the largest rho that implies (epsilon, delta)-DP,
    and noise is Gaussian. With delta = 0 the unit is epsilon itself, added up by basic composition,
    and noise is Laplace: no amount of zCDP implies pure differential privacy.

    `reserved`: the part of delta that is kept for steps with a failure probability of their own
    (the discovery of labels); rho is derived from epsilon and the rest of delta.

    `accounting`: "zcdp" counts rho. "gaussian" counts mu^2 / 2 of Gaussian differential privacy,
    which equals rho except for the discreteness of the noise. The total is then converted exactly,
    which makes it 8 to 18 percent larger (for epsilon from 0.1 to 10 and delta from 1e-9 to 1e-6);
    but a selection costs up to pi / 2 times as much. See `gaussian_dp`.

    Raises InvalidInput unless epsilon > 0 is finite, 0 <= delta < 1 and reserved is 0, or above 0
    and below delta; for an epsilon above 1e100 or a total below 1e-100, with which noise cannot be
    computed; for an unknown accounting, and for "gaussian" of a pure budget.

    >>> Budget(1.0, 1e-9).unit, Budget(1.0).unit, Budget(1.0).total
    ('rho', 'epsilon', 1.0)
    """

    epsilon: float
    delta: float = 0.0
    reserved: float = 0.0
    accounting: Accounting = "zcdp"

    def __post_init__(self) -> None:
        conversions.positive("epsilon", self.epsilon)
        conversions.not_negative("delta", self.delta)
        if self.delta >= 1:
            raise InvalidInput(f"delta must be at least 0 and below 1, got {self.delta!r}")
        conversions.not_negative("reserved", self.reserved)
        if self.reserved and not self.reserved < self.delta:
            raise InvalidInput(
                f"reserved must be below delta = {self.delta!r}, got {self.reserved!r}"
            )
        # Releases and ledgers are saved as JSON, which has neither Fractions nor most numbers of
        # numpy.
        for name in ("epsilon", "delta", "reserved"):
            object.__setattr__(self, name, float(getattr(self, name)))
        one_of(self.accounting, get_args(Accounting), "accounting")
        if self.pure and self.gaussian:
            raise InvalidInput(
                "accounting='gaussian' needs delta above 0: no Gaussian noise is purely private"
            )
        # An unusable budget must fail here, before anything is spent: squares of a far larger
        # epsilon overflow, and a ledger takes no smaller cost.
        if self.epsilon > 1e100 or self.total < 1e-100:
            raise InvalidInput(
                f"no noise can be computed for epsilon = {self.epsilon!r} with delta = "
                f"{self.delta!r}; an epsilon from 0.1 to 10 is usual"
            )

    @property
    def pure(self) -> bool:
        """True if the promise is pure differential privacy (delta = 0)."""
        return self.delta == 0

    @property
    def gaussian(self) -> bool:
        """True if costs are those of Gaussian differential privacy."""
        return self.accounting == "gaussian"

    @property
    def unit(self) -> str:
        """The ledger's unit: "rho" (zCDP, or mu^2 / 2 of Gaussian DP) or "epsilon" (pure)."""
        return "epsilon" if self.pure else "rho"

    @cached_property
    def total(self) -> float:
        """The cost of the whole budget, in `unit`. The reserved part of delta is left out."""
        if self.pure:
            return self.epsilon
        convert = gaussian_dp.largest_cost if self.gaussian else conversions.rho_from_epsilon
        return convert(self.epsilon, self.delta - self.reserved)

    @property
    def least_noise(self) -> Accounting:
        """The accounting that gives measurements less noise, however the budget is shared; "zcdp"
        for a pure budget, which allows no other.

        The exact conversion of "gaussian" lowers noise scales by four to eight percent (for epsilon
        from 0.1 to 10 and delta from 1e-9 to 1e-6), but its correction for discreteness raises
        scales near 1 by more. "gaussian" is returned if it has less noise even when one draw spends
        the whole budget. The correction is smaller for smaller costs, so "gaussian" then has less
        noise in any draw.

        >>> Budget(1.0, 1e-9).least_noise, Budget(20.0, 1e-9).least_noise
        ('gaussian', 'zcdp')
        """
        if self.pure:
            return "zcdp"
        exact = gaussian_dp.scale(1.0, replace(self, accounting="gaussian").total)
        plain = replace(self, accounting="zcdp").total
        return "gaussian" if exact < (2 * plain) ** -0.5 else "zcdp"

    def epsilon_spent(self, cost: float) -> float:
        """Return the epsilon that a total cost in `unit` corresponds to, at this budget's delta
        without the reserved part; for a pure budget the cost itself. Raises InvalidInput unless
        the cost is finite and at least 0.
        """
        conversions.not_negative("cost", cost)
        if self.pure:
            return cost
        convert = gaussian_dp.epsilon_from_cost if self.gaussian else conversions.epsilon_from_rho
        return convert(cost, self.delta - self.reserved)


@dataclass(frozen=True)
class LedgerEntry:
    """One charge: the step, the mechanism that answered it, and its cost in the ledger's unit.

    `delta`: the part of the reserved delta that it takes.
    """

    step: str
    mechanism: str
    cost: float
    delta: float = 0.0

    def checked(self) -> LedgerEntry:
        """Return the charge with its numbers as floats. Raises InvalidInput unless `step` and
        `mechanism` are texts, `cost` is finite and at least 1e-100, and `delta` finite and at
        least 0.
        """
        if not isinstance(self.step, str) or not isinstance(self.mechanism, str):
            raise InvalidInput(
                "step and mechanism of a charge must be texts, got "
                f"{self.step!r} and {self.mechanism!r}"
            )
        conversions.positive(f"the cost of step {self.step!r}", self.cost)
        # Noise for a far smaller cost is so large that its squares overflow when it is drawn, which
        # is after the charge. The bound is well above such costs.
        if self.cost < 1e-100:
            raise InvalidInput(
                f"the cost of step {self.step!r} must be at least 1e-100, got {self.cost}: the "
                "noise that it buys would hide any data; leave the step out"
            )
        conversions.not_negative(f"the delta of step {self.step!r}", self.delta)
        return LedgerEntry(self.step, self.mechanism, float(self.cost), float(self.delta))
