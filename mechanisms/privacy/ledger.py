"""The ledger of what was spent of a budget, step by step."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mechanisms.privacy.budget import Budget
from mechanisms.privacy.chained_lines import ChainedLines
from mechanisms.privacy.conversions import not_negative, positive
from mechanisms.privacy.neighbours import is_promise, promise, relation
from pgmkit.errors import InvalidInput, PgmkitError
from pgmkit.html import table
from pgmkit.untrusted import refusing

__all__ = ["BudgetExceeded", "FileLedger", "Ledger", "LedgerEntry"]

_FORMAT = "pgmkit ledger"
_VERSION = 1

_GAUSSIAN = "discrete Gaussian"
"""What the names of draws begin with that have a price in Gaussian differential privacy."""

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

    def checked(self) -> LedgerEntry:
        """The charge itself. Raises InvalidInput for other types, a cost of 0 or less, and figures
        that are not finite.
        """
        if not isinstance(self.step, str) or not isinstance(self.mechanism, str):
            raise InvalidInput("a charge names its step and its mechanism")
        positive(f"the cost of step {self.step!r}", self.cost)
        not_negative(f"the delta of step {self.step!r}", self.delta)
        return LedgerEntry(self.step, self.mechanism, float(self.cost), float(self.delta))


class Ledger:
    """What was promised and what has been spent, step by step.

    `neighbours` names the relation that the promise is about. Charges come before answers: `charge`
    either records the cost or raises BudgetExceeded. Where the accounting is Gaussian it refuses
    all but Gaussian noise.

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

    def __init__(
        self,
        budget: Budget,
        *,
        secure: bool = True,
        neighbours: str = "",
        across_runs: FileLedger | None = None,
    ) -> None:
        self.budget = budget
        self.secure = secure
        self.neighbours = neighbours
        self._entries: list[LedgerEntry] = []
        self._across_runs = across_runs
        if across_runs is not None:
            across_runs.check_run(budget, neighbours)

    @staticmethod
    def create(
        path: str | os.PathLike[str], budget: Budget, *, neighbours: str, unit: str | None = None
    ) -> FileLedger:
        """Start a ledger across runs in a new file, with the total budget of one data set.

        `unit`: the column of the units that all runs protect, where they do not protect rows; each
        run may look at another number of their rows.

        Raises InvalidInput where there is a file already, or for an unknown relation.
        """
        named = relation(neighbours, unit, None if unit is None else 1).name
        first = {
            "format": _FORMAT,
            "version": _VERSION,
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "reserved": budget.reserved,
            "accounting": budget.accounting,
            "neighbours": promise(named),
        }
        return FileLedger(ChainedLines.create(path, first))

    @staticmethod
    def open(path: str | os.PathLike[str]) -> FileLedger:
        """Continue the ledger across runs in a file; InvalidInput for what is none."""
        return FileLedger(ChainedLines(path))

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """All charges so far, in order."""
        return tuple(self._entries)

    @property
    def spent(self) -> float:
        """The sum of all charges, in the budget's unit."""
        return math.fsum(entry.cost for entry in self.entries)

    @property
    def remaining(self) -> float:
        """What is left, in the budget's unit; charging it leaves exactly zero."""
        total = self.budget.total
        if self.spent >= total:
            return 0.0
        costs = [entry.cost for entry in self.entries]
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

        A ledger across runs has it on the disk when this returns.

        Raises InvalidInput unless cost > 0 and delta >= 0 are finite, BudgetExceeded if either is
        more than remains, here or across runs.
        """
        entry = LedgerEntry(step, mechanism, cost, delta).checked()
        self._check(entry)
        if self._across_runs is not None:
            self._across_runs.record(entry, secure=self.secure)
        self._entries.append(entry)

    def _check(self, entry: LedgerEntry) -> None:
        total, reserved = self.budget.total, self.budget.reserved
        if self.budget.gaussian and not entry.mechanism.startswith(_GAUSSIAN):
            raise InvalidInput(
                f"step {entry.step!r} draws by {entry.mechanism}, which has no price in Gaussian "
                "differential privacy; use accounting='zcdp'"
            )
        if not _within([*(each.delta for each in self.entries), entry.delta], reserved):
            raise BudgetExceeded(
                f"step {entry.step!r} asks for delta = {entry.delta:.6g}, but less remains of the "
                f"{reserved:.6g} that the budget reserves; ask for less, or reserve more"
            )
        if not _within([self.spent, entry.cost], total):
            raise BudgetExceeded(
                f"step {entry.step!r} asks for {self.budget.unit} = {entry.cost:.6g}, but only "
                f"{self.remaining:.6g} of {total:.6g} remains; ask for less, or for "
                f"`remaining` to spend the rest"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the promise, what was spent, and every charge."""
        budget = self.budget
        return {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "reserved": budget.reserved,
            "accounting": budget.accounting,
            "neighbours": self.neighbours,
            "secure": self.secure,
            "unit": budget.unit,
            "total": budget.total,
            "spent": self.spent,
            "entries": [vars(entry) for entry in self.entries],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Ledger:
        """The ledger that `to_dict` stored. Raises InvalidInput for charges beyond the budget."""
        secure, neighbours = stored["secure"], stored["neighbours"]
        if not isinstance(secure, bool) or not (neighbours == "" or is_promise(neighbours)):
            raise InvalidInput("a ledger says whether it is secure, and of which neighbours")
        ledger = cls(
            # Files of before there was a choice have none.
            Budget(
                stored["epsilon"],
                stored["delta"],
                stored["reserved"],
                stored.get("accounting", "zcdp"),
            ),
            secure=secure,
            neighbours=neighbours,
        )
        ledger._entries = [LedgerEntry(**entry).checked() for entry in stored["entries"]]
        deltas = [entry.delta for entry in ledger.entries]
        if not _within([ledger.spent], ledger.budget.total) or not _within(
            deltas, ledger.budget.reserved
        ):
            raise InvalidInput("the charges of a ledger are more than its budget")
        return ledger

    def __str__(self) -> str:
        unit = self.budget.unit
        header = ("step", "mechanism", unit, "cumulative epsilon")
        rows = []
        so_far: list[float] = []
        for entry in self.entries:
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
        return f"<Ledger: {len(self.entries)} charges, {spent}>"


class FileLedger(Ledger):
    """A ledger across runs: what all runs on one data set have spent, and may spend together.

    Runs add up in the budget's unit as the steps of a run do: composition is adaptive. `entries`,
    `spent` and `remaining` are read from the file each time; `secure` is False once a seeded run
    was charged. See `Ledger.create` and `Ledger.open`.
    """

    def __init__(self, lines: ChainedLines) -> None:
        self._lines = lines
        with refusing(lines.path, "a ledger file"):
            stored = self._parsed(lines.read())
        super().__init__(stored.budget, secure=stored.secure, neighbours=stored.neighbours)

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """All charges of all runs so far, in order."""
        with refusing(self._lines.path, "a ledger file"):
            return self._parsed(self._lines.read()).entries

    def charge(self, step: str, mechanism: str, cost: float, delta: float = 0.0) -> None:
        """See Ledger.charge."""
        self.record(LedgerEntry(step, mechanism, cost, delta).checked(), secure=True)

    def record(self, entry: LedgerEntry, *, secure: bool) -> None:
        """Write a charge of a run and flush it to the disk; BudgetExceeded leaves all as it was."""

        def decide(lines: list[dict[str, Any]]) -> dict[str, Any]:
            with refusing(self._lines.path, "a ledger file"):
                ledger = self._parsed(lines)
            ledger._check(entry)
            return {**vars(entry), "secure": secure}

        self._lines.append(decide)
        self.secure = self.secure and secure

    def check_run(self, budget: Budget, neighbours: str) -> None:
        """Raises InvalidInput or BudgetExceeded for a run that this ledger cannot pay for."""
        name, wanted = self._lines.path.name, promise(neighbours)
        if self.budget.gaussian and not budget.gaussian:
            raise InvalidInput(
                f"the ledger {name} adds up Gaussian measurements alone; run with "
                "accounting='gaussian', by a mechanism that only measures"
            )
        if (wanted, budget.unit) != (self.neighbours, self.budget.unit):
            raise InvalidInput(
                f"the ledger {name} counts {self.budget.unit} for {self.neighbours}, the run "
                f"{budget.unit} for {wanted}, which do not add up; run with the neighbours and "
                f"unit of {self.neighbours} and delta {'= 0' if self.budget.pure else '> 0'}"
            )
        left = self.remaining
        if not _within([self.spent, budget.total], self.budget.total):
            raise BudgetExceeded(
                f"the run asks for {budget.unit} = {budget.total:.6g}, but {left:.6g} of "
                f"{self.budget.total:.6g} is left in the ledger {name}; nothing was spent. "
                f"At the ledger's delta that is epsilon = {self.budget.epsilon_spent(left):.4g}"
            )
        if not _within(
            [*(each.delta for each in self.entries), budget.reserved], self.budget.reserved
        ):
            raise BudgetExceeded(
                f"the run reserves delta = {budget.reserved:.6g} to find values, but the ledger "
                f"{name} reserves {self.budget.reserved:.6g} for all runs; list the values in the "
                "schema, or begin the ledger of such data with a reserved part"
            )

    @staticmethod
    def _parsed(lines: list[dict[str, Any]]) -> Ledger:
        first, entries = dict(lines[0]), [dict(line) for line in lines[1:]]
        if (first.pop("format"), first.pop("version")) != (_FORMAT, _VERSION):
            raise InvalidInput("its first line is of another format or version")
        secure = all([entry.pop("secure") is True for entry in entries])
        return Ledger.from_dict({**first, "secure": secure, "entries": entries})


def _within(parts: Sequence[float], total: float) -> bool:
    return math.fsum(parts) <= total * (1 + _ROUNDING)
