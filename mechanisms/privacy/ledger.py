"""The ledger of what was spent of a budget, step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mechanisms.privacy.budget import Budget
from mechanisms.privacy.conversions import not_negative, positive
from pgmkit.errors import PgmkitError

__all__ = ["BudgetExceeded", "Ledger", "LedgerEntry"]

# Shares such as total / 13, added thirteen times, may pass the total by rounding alone.
_ROUNDING = 1e-12


class BudgetExceeded(PgmkitError):
    """A step asked for more than what remains of the budget; nothing was answered or charged."""


@dataclass(frozen=True)
class LedgerEntry:
    """One charge: the step that asked, the mechanism that answered, its cost in the unit.

    `delta`: what it takes of the reserved part of delta.
    """

    step: str
    mechanism: str
    cost: float
    delta: float = 0.0


class Ledger:
    """What was promised and what has been spent, step by step.

    `neighbours` names the relation that the promise is about. Charges come before answers: `charge`
    either records the cost or raises BudgetExceeded.

    >>> ledger = Ledger(Budget(1.0))
    >>> ledger.charge("select", "exponential mechanism", 0.25)
    >>> ledger.charge("measure", "discrete Laplace", ledger.remaining)
    >>> ledger.spent, ledger.remaining
    (1.0, 0.0)
    >>> print(ledger)
    step     mechanism              epsilon  cumulative epsilon
    select   exponential mechanism     0.25                0.25
    measure  discrete Laplace          0.75                   1
    spent 1 of 1 (epsilon = 1, delta = 0)
    """

    def __init__(self, budget: Budget, *, secure: bool = True, neighbours: str = "") -> None:
        self.budget = budget
        self.secure = secure
        self.neighbours = neighbours
        self._entries: list[LedgerEntry] = []

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """All charges so far, in order."""
        return tuple(self._entries)

    @property
    def spent(self) -> float:
        """The sum of all charges, in the budget's unit."""
        return math.fsum(entry.cost for entry in self._entries)

    @property
    def remaining(self) -> float:
        """What is left, in the budget's unit; charging it leaves exactly zero."""
        total = self.budget.total
        if self.spent >= total:
            return 0.0
        costs = [entry.cost for entry in self._entries]
        rest = math.fsum([total, *(-cost for cost in costs)])
        # The rounded difference may be one unit in the last place away from the float that makes
        # the correctly rounded sum of all charges equal the total.
        while math.fsum([*costs, rest]) > total:
            rest = math.nextafter(rest, 0.0)
        while math.fsum([*costs, rest]) < total:
            rest = math.nextafter(rest, math.inf)
        return rest

    def charge(self, step: str, mechanism: str, cost: float, delta: float = 0.0) -> None:
        """Record a cost in the budget's unit and a part of the reserved delta, or refuse.

        Raises InvalidInput unless cost > 0 and delta >= 0 are finite, BudgetExceeded if either is
        more than remains.
        """
        positive(f"the cost of step {step!r}", cost)
        not_negative(f"the delta of step {step!r}", delta)
        total, reserved = self.budget.total, self.budget.reserved
        if math.fsum([*(entry.delta for entry in self._entries), delta]) > reserved * (
            1 + _ROUNDING
        ):
            raise BudgetExceeded(
                f"step {step!r} asks for delta = {delta:.6g}, but less remains of the "
                f"{reserved:.6g} that the budget reserves; ask for less, or reserve more"
            )
        if math.fsum([self.spent, cost]) > total * (1 + _ROUNDING):
            raise BudgetExceeded(
                f"step {step!r} asks for {self.budget.unit} = {cost:.6g}, but only "
                f"{self.remaining:.6g} of {total:.6g} remains; ask for less, or for "
                f"`remaining` to spend the rest"
            )
        self._entries.append(LedgerEntry(step, mechanism, float(cost), float(delta)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the promise, what was spent, and every charge."""
        budget = self.budget
        return {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "reserved": budget.reserved,
            "neighbours": self.neighbours,
            "secure": self.secure,
            "unit": budget.unit,
            "total": budget.total,
            "spent": self.spent,
            "entries": [vars(entry) for entry in self._entries],
        }

    def __str__(self) -> str:
        unit = self.budget.unit
        header = ("step", "mechanism", unit, "cumulative epsilon")
        rows = []
        so_far: list[float] = []
        for entry in self._entries:
            so_far.append(entry.cost)
            epsilon = self.budget.epsilon_spent(math.fsum(so_far))
            rows.append((entry.step, entry.mechanism, f"{entry.cost:.4g}", f"{epsilon:.4g}"))
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(4)]
        lines = [
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}"
            for a, b, c, d in [header, *rows]
        ]
        lines.append(
            f"spent {self.spent:.4g} of {self.budget.total:.4g} "
            f"(epsilon = {self.budget.epsilon:g}, delta = {self.budget.delta:g})"
            + (f", neighbours: {self.neighbours}" if self.neighbours else "")
        )
        if not self.secure:
            lines.append("INSECURE: noise came from a seeded generator; do not release")
        return "\n".join(lines)

    def __repr__(self) -> str:
        spent = f"{self.spent:.4g} of {self.budget.total:.4g} {self.budget.unit}"
        return f"<Ledger: {len(self._entries)} charges, {spent}>"
