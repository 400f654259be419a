"""The privacy budget: (epsilon, delta), its zCDP equivalent rho, and the ledger of what was spent.

Conversions follow Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy"
(2020), Proposition 12, which is tight up to the choice of the Renyi order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

from pgmkit.errors import InvalidInput, PgmkitError
from pgmkit.html import table

__all__ = [
    "Budget",
    "BudgetExceeded",
    "Ledger",
    "LedgerEntry",
    "delta_from_rho",
    "epsilon_from_rho",
    "rho_from_epsilon",
]

# Shares such as total / 13, added thirteen times, may pass the total by rounding alone.
_ROUNDING = 1e-12


class BudgetExceeded(PgmkitError):
    """A step asked for more than what remains of the budget; nothing was answered or charged."""


def delta_from_rho(rho: float, epsilon: float) -> float:
    """The smallest known delta for which rho-zCDP implies (epsilon, delta)-DP.

    The infimum over alpha > 1 of exp((alpha-1)(alpha rho - epsilon)) (1-1/alpha)^alpha / (alpha-1).
    Its logarithm is convex in alpha, so the minimum is where the derivative crosses zero.

    Raises InvalidInput unless rho > 0 and epsilon >= 0 are finite.

    >>> f"{delta_from_rho(0.01, 1.0):.2e}"
    '1.66e-13'
    """
    _positive("rho", rho)
    _not_negative("epsilon", epsilon)
    return math.exp(min(0.0, _log_delta(rho, epsilon)))


def epsilon_from_rho(rho: float, delta: float) -> float:
    """The smallest known epsilon for which rho-zCDP implies (epsilon, delta)-DP; 0 for rho = 0.

    Raises InvalidInput unless rho >= 0 is finite and 0 < delta < 1.

    >>> round(epsilon_from_rho(0.5, 1e-6), 3)
    5.222
    """
    _not_negative("rho", rho)
    _open_delta(delta)
    if rho == 0:
        return 0.0
    target = math.log(delta)
    if _log_delta(rho, 0.0) <= target:
        return 0.0
    # The textbook conversion is never below the tight one.
    upper = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    return _crossing(lambda epsilon: _log_delta(rho, epsilon) <= target, 0.0, upper)[1]


def rho_from_epsilon(epsilon: float, delta: float) -> float:
    """The largest rho for which rho-zCDP is known to imply (epsilon, delta)-DP.

    Raises InvalidInput unless epsilon > 0 is finite and 0 < delta < 1. (For delta = 0 there is no
    such rho: zCDP never implies pure differential privacy. See Budget.)

    >>> round(rho_from_epsilon(1.0, 4.2e-10), 5)
    0.01427
    """
    _positive("epsilon", epsilon)
    _open_delta(delta)
    target = math.log(delta)
    upper = 1.0
    while _log_delta(upper, epsilon) <= target:
        upper *= 2
    return _crossing(lambda rho: _log_delta(rho, epsilon) > target, 0.0, upper)[0]


def _log_delta(rho: float, epsilon: float) -> float:
    def slope(t: float) -> float:
        # Derivative in alpha, at alpha = 1 + exp(t).
        return (2 * math.exp(t) + 1) * rho - epsilon - math.log1p(math.exp(-t))

    # Any alpha gives a valid delta: the end of the bracket only costs tightness.
    t = _crossing(lambda t: slope(t) >= 0, -40.0, 60.0)[1]
    u = math.exp(t)
    return u * ((1 + u) * rho - epsilon) - math.log1p(u) - u * math.log1p(1 / u)


def _crossing(above: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Neighbouring arguments between which a monotone predicate turns true, by bisection."""
    for _ in range(200):
        middle = (low + high) / 2
        if middle <= low or middle >= high or high - low <= 1e-15 * abs(high):
            break
        low, high = (low, middle) if above(middle) else (middle, high)
    return low, high


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
        _positive("epsilon", self.epsilon)
        _not_negative("delta", self.delta)
        if self.delta >= 1:
            raise InvalidInput(f"delta must be at least 0 and below 1, got {self.delta!r}")
        _not_negative("reserved", self.reserved)
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


@dataclass(frozen=True)
class LedgerEntry:
    """One charge: the step that asked, the mechanism that answered, its cost in the unit."""

    step: str
    mechanism: str
    cost: float


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

    def charge(self, step: str, mechanism: str, cost: float) -> None:
        """Record a cost in the budget's unit, or refuse.

        Raises InvalidInput unless cost > 0 is finite, BudgetExceeded if it is more than remains.
        """
        _positive(f"the cost of step {step!r}", cost)
        total = self.budget.total
        if math.fsum([self.spent, cost]) > total * (1 + _ROUNDING):
            raise BudgetExceeded(
                f"step {step!r} asks for {self.budget.unit} = {cost:.6g}, but only "
                f"{self.remaining:.6g} of {total:.6g} remains; ask for less, or for "
                f"`remaining` to spend the rest"
            )
        self._entries.append(LedgerEntry(step, mechanism, float(cost)))

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

    def _repr_html_(self) -> str:
        """Charges of one step and one mechanism in a line, rounds together."""
        groups: dict[tuple[str, str], list[float]] = {}
        for entry in self._entries:
            step = " ".join(word for word in entry.step.split() if not word.strip(":").isdigit())
            groups.setdefault((step, entry.mechanism), []).append(entry.cost)
        rows, so_far = [], 0.0
        for (step, mechanism), costs in groups.items():
            so_far += math.fsum(costs)
            share, epsilon = math.fsum(costs) / self.budget.total, self.budget.epsilon_spent(so_far)
            rows.append([step, mechanism, str(len(costs)), f"{share:.1%}", f"{epsilon:.4g}"])
        caption = (
            f"Ledger: {self.spent:.4g} of {self.budget.total:.4g} {self.budget.unit} spent"
            + ("" if self.secure else "; INSECURE: noise came from a seeded generator")
        )
        header = ["step", "noise", "times", "share of the budget", "cumulative epsilon"]
        return table(header, rows, numbers={2, 3, 4}, caption=caption)

    def __repr__(self) -> str:
        spent = f"{self.spent:.4g} of {self.budget.total:.4g} {self.budget.unit}"
        return f"<Ledger: {len(self._entries)} charges, {spent}>"


def _positive(name: str, value: float) -> None:
    if not _finite(value) or value <= 0:
        raise InvalidInput(f"{name} must be a finite number above 0, got {value!r}")


def _not_negative(name: str, value: float) -> None:
    if not _finite(value) or value < 0:
        raise InvalidInput(f"{name} must be a finite number, 0 or more, got {value!r}")


def _open_delta(delta: float) -> None:
    if not _finite(delta) or not 0 < delta < 1:
        raise InvalidInput(f"delta must be above 0 and below 1, got {delta!r}")


def _finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
