"""Ledgers of privacy budgets. A ledger records every charge and refuses a charge that exceeds what
is left of the budget. It serves one run, or several runs if it is kept in a file.
"""

from __future__ import annotations

import copy
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from mechanisms.privacy.budget import Budget, LedgerEntry
from mechanisms.privacy.chained_lines import ChainedLines
from mechanisms.privacy.held_budgets import HeldBudget, held_budgets
from mechanisms.privacy.ledger_view import as_html, as_text
from mechanisms.privacy.neighbours import is_promise, promise, relation
from pgmkit.errors import InvalidInput, PgmkitError
from pgmkit.runtime.precision import AGREEMENT
from pgmkit.runtime.typed import typed_class
from pgmkit.runtime.untrusted import FilePath, refusing

HEADER = {"format": "pgmkit ledger", "version": 1}
"""The first fields of the first line of a ledger across runs."""
_ONE_CHARGE = threading.Lock()
"""Held from the check of a charge until it is recorded: threads may share a Curator."""


class BudgetExceeded(PgmkitError):
    """A step, or a run on a ledger across runs, asked for more than what remains of the budget; it
    was neither answered nor charged.
    """


@typed_class
class Ledger:
    """A privacy budget, and the charges that were made on it, step by step.

    `neighbours`: the name of the relation under which the budget holds. `secure`: False if noise is
    seeded. `across_runs`: None, or a ledger file, in which a new run sets this whole budget aside
    until `close` (`FileLedger.begin_run` says what it refuses); every charge is written to it as
    well. Charges come before answers: `charge` either records the cost or raises BudgetExceeded.

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
        self._secure = secure
        self.neighbours = neighbours
        self._entries: list[LedgerEntry] = []
        self._limit = budget.total  # the most that all charges may sum to
        self._process = os.getpid()
        self._across_runs = across_runs
        self._run = 0 if across_runs is None else across_runs.begin_run(budget, neighbours)

    @staticmethod
    def create(
        path: FilePath, budget: Budget, *, neighbours: str, unit: str | None = None
    ) -> FileLedger:
        """Start a ledger across runs in a new file, with the total budget of one data set.

        `neighbours`: the name of the relation of all runs, "replace-one" or "add/remove". `unit`:
        the name of the column of units, if all runs protect units instead of rows; each run may use
        another number of rows of a unit.

        Raises InvalidInput if the file exists, for a folder that takes no hard links, for an
        unknown relation, and for a `unit` that is no name.
        """
        named = relation(neighbours, unit, None if unit is None else 1).name
        first = {**HEADER, **asdict(budget), "neighbours": promise(named)}
        return FileLedger(ChainedLines.create(path, first))

    @staticmethod
    def open(path: FilePath) -> FileLedger:
        """Return the ledger across runs in an existing file, which `create` made. Raises OSError as
        `open` does, such as FileNotFoundError, and InvalidInput for a file of another kind.
        """
        return FileLedger(ChainedLines(path))

    @property
    def secure(self) -> bool:
        """False if noise is seeded."""
        return self._secure

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
        """The rest of the budget, or of this `part` of it; charging it leaves exactly zero."""
        limit, costs = self._limit, [entry.cost for entry in self.entries]
        if math.fsum(costs) >= limit:
            return 0.0
        rest = math.fsum([limit, *(-cost for cost in costs)])
        # The rounded difference may be one unit in the last place away from the float that makes
        # the correctly rounded sum of all charges equal the limit.
        while math.fsum([*costs, rest]) > limit:
            rest = math.nextafter(rest, 0.0)
        while math.fsum([*costs, rest]) < limit:
            rest = math.nextafter(rest, math.inf)
        return rest

    def part(self, cost: float, neighbours: str) -> Ledger:
        """Return a ledger of the part `cost` of what remains here (the caller has checked that so
        much does). It names this relation. What is charged to either ledger is charged to both.
        """
        found = copy.copy(self)
        found.neighbours, found._limit = neighbours, self.spent + cost
        return found

    def charge(self, step: str, mechanism: str, cost: float, delta: float = 0.0) -> None:
        """Record a cost in the budget's unit and a part of the reserved delta, or refuse.

        In a ledger across runs the charge is on the disk when this returns. Raises InvalidInput for
        a step or mechanism that is no text, a cost that is not finite or below 1e-100, a delta that
        is not finite or below 0, and a charge in another process than that of this ledger;
        BudgetExceeded if the cost or the part of delta exceeds what remains, here or across runs.
        """
        entry = LedgerEntry(step, mechanism, cost, delta).checked()
        if self._process != os.getpid():
            raise InvalidInput(
                "the process that made a Curator would not know of charges in a fork; make one in "
                "each process that needs it, on a ledger across runs (Ledger.create)"
            )
        with _ONE_CHARGE:
            self._check(entry)
            if self._across_runs is not None:
                self._across_runs.record(entry, self._run, secure=self.secure)
            self._entries.append(entry)

    def close(self) -> None:
        """End the run: what it did not spend is free again in the ledger across runs.

        Without such a ledger, or if the run has ended already, nothing happens.
        `contextlib.closing` calls this.
        """
        if self._across_runs is not None and self._run in self._across_runs.open_runs:
            self._across_runs.end_run(self._run)

    def _fits(self, cost: float, delta: float) -> tuple[bool, bool]:
        """Return whether a further cost fits into what remains, and whether a further part of the
        reserved delta does.
        """
        within = 1 + AGREEMENT
        deltas = math.fsum([*(each.delta for each in self.entries), delta])
        cost_fits = self.spent + cost <= self._limit * within
        return cost_fits, deltas <= self.budget.reserved * within

    def _check(self, entry: LedgerEntry) -> None:
        cost_fits, delta_fits = self._fits(entry.cost, entry.delta)
        if not delta_fits:
            raise BudgetExceeded(
                f"step {entry.step!r} asks for delta = {entry.delta:.6g}, but less remains of the "
                f"{self.budget.reserved:.6g} that the budget reserves; ask for less, or reserve "
                "more"
            )
        if not cost_fits:
            raise BudgetExceeded(
                f"step {entry.step!r} asks for {self.budget.unit} = {entry.cost:.6g}, but only "
                f"{self.remaining:.6g} of {self.budget.total:.6g} remains; ask for less, or for "
                f"`remaining` to spend the rest"
            )

    def _check_run(self, budget: Budget, name: str, open_runs: list[int]) -> None:
        left, named = self.remaining, ", ".join(map(str, open_runs))
        held = f"; run {named} holds a part; --end-run (end_run) ends killed runs" * bool(open_runs)
        cost_fits, delta_fits = self._fits(budget.total, budget.reserved)
        if not cost_fits:
            raise BudgetExceeded(
                f"the run asks for {budget.unit} = {budget.total:.6g}, but {left:.6g} of "
                f"{self.budget.total:.6g} is left in the ledger {name}; nothing was spent. "
                f"At the ledger's delta that is epsilon = {self.budget.epsilon_spent(left):.4g}"
                f"{held}"
            )
        if not delta_fits:
            raise BudgetExceeded(
                f"the run reserves delta = {budget.reserved:.6g} to find values, but the ledger "
                f"{name} reserves {self.budget.reserved:.6g} for all runs; list the values in the "
                f"schema, or begin the ledger of such data with a reserved part{held}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the promise, what was spent, and every charge."""
        budget = self.budget
        return {
            **asdict(budget),
            "neighbours": self.neighbours,
            "secure": self.secure,
            "unit": budget.unit,
            "total": budget.total,
            "spent": self.spent,
            "entries": [vars(entry) for entry in self.entries],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Ledger:
        """Return the ledger that `to_dict` stored. Raises InvalidInput for parts that are missing
        or wrong, and for charges beyond the budget.
        """
        for name in ("secure", "neighbours", "epsilon", "delta", "reserved", "entries"):
            if name not in stored:
                raise InvalidInput(
                    f"a stored ledger must have the entry {name!r}, got only "
                    f"{', '.join(map(repr, stored))}; store ledgers by `to_dict`"
                )
        secure, neighbours = stored["secure"], stored["neighbours"]
        if not isinstance(secure, bool) or not (neighbours == "" or is_promise(neighbours)):
            raise InvalidInput(
                "secure of a stored ledger must be true or false, and neighbours the name of a "
                f"relation; got {secure!r} and {neighbours!r}"
            )
        # Files written before the accounting could be chosen lack it; they used zCDP, the default.
        budget = {each.name: stored[each.name] for each in fields(Budget) if each.name in stored}
        ledger = cls(Budget(**budget), secure=secure, neighbours=neighbours)
        try:
            ledger._entries = [LedgerEntry(**entry).checked() for entry in stored["entries"]]
        except TypeError as error:
            raise InvalidInput(
                f"entries of a stored ledger must be a list of charges: {error}; store ledgers by "
                "`to_dict`"
            ) from None
        if not all(ledger._fits(0.0, 0.0)):
            raise InvalidInput("the charges of a ledger are more than its budget")
        return ledger

    def __str__(self) -> str:
        return as_text(self.budget, self.entries, self.neighbours, self.secure)

    def _repr_html_(self) -> str:
        return as_html(self.budget, self.entries, self.secure)

    def __repr__(self) -> str:
        spent = f"{self.spent:.4g} of {self.budget.total:.4g} {self.budget.unit}"
        return f"<Ledger: {len(self.entries)} charges, {spent}>"


@typed_class
class FileLedger(Ledger):
    """A ledger across runs: the charges of all runs on one data set, and the budget that they may
    spend together.

    Runs add up in the budget's unit as the steps of a run do: composition is adaptive. A run holds
    its whole budget from its beginning, and that counts as spent until the run ends
    (`Ledger.close`), so no run at the same time can use it: a run is refused before its first
    charge or never. In any case charges are checked once more as they are written, under the file's
    lock. `entries`, `spent`, `remaining` and `secure` are read from the file each time. See
    `Ledger.create` and `Ledger.open`.
    """

    def __init__(self, lines: ChainedLines) -> None:
        self._lines = lines
        stored, _, _ = self._parsed()
        super().__init__(stored.budget, neighbours=stored.neighbours)

    @property
    def secure(self) -> bool:
        """False once a run with seeded noise was charged."""
        return self._parsed()[0].secure

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """All charges of all runs so far, in order; their steps begin with the run's number. The
        amounts that unfinished runs hold but have not charged follow as further entries.
        """
        return self._parsed()[0].entries

    @property
    def open_runs(self) -> dict[int, float]:
        """For each run that has not ended, by its number, the part of its budget that it has not
        charged, in the budget's unit.
        """
        return {run: each.cost_left for run, each in self._parsed()[1].items()}

    def charge(self, step: str, mechanism: str, cost: float, delta: float = 0.0) -> None:
        """Record a charge that belongs to no run; it is on the disk when this returns. Raises
        BudgetExceeded if `cost` or `delta` is more than the part of the budget that no run holds,
        and InvalidInput for the texts and amounts that `Ledger.charge` refuses.
        """
        self.record(LedgerEntry(step, mechanism, cost, delta).checked(), 0, secure=True)

    def record(self, entry: LedgerEntry, run: int, *, secure: bool) -> None:
        """Write a charge of a run and flush it to the disk. Raises BudgetExceeded, without writing,
        if its cost or its part of delta is not available.

        A run pays from the budget that it holds. Beyond that, or after the run has ended, a charge
        must fit into the part that no run holds. `secure`: False for a run with seeded noise.
        """

        def decide(lines: list[dict[str, Any]]) -> dict[str, Any]:
            ledger, open_runs, _ = self._parsed(lines)
            held = open_runs.get(run)
            if held is None or not held.allows(entry.cost, entry.delta):
                ledger._check(entry)
            return {**vars(entry), "secure": secure, **({"run": run} if run else {})}

        self._lines.append(decide)

    def begin_run(self, budget: Budget, neighbours: str) -> int:
        """Set a run's whole budget aside, and return the run's number.

        Raises InvalidInput for a run whose relation, unit of budget or accounting does not add up
        with this ledger's (a ledger of zCDP takes runs in Gaussian accounting, but not the
        reverse), and BudgetExceeded for one that asks for more than is left.
        """

        def decide(lines: list[dict[str, Any]]) -> dict[str, Any]:
            ledger, held, runs = self._parsed(lines)
            self._check_promise(budget, neighbours)
            ledger._check_run(budget, self._lines.path.name, sorted(held))
            return {"run": runs + 1, "holds": budget.total, "delta": budget.reserved}

        return int(self._lines.append(decide)["run"])

    def end_run(self, number: int) -> None:
        """Free the rest of the budget that a run holds, when the run is over or, if it was killed,
        by hand.

        The charges of a killed run are all on the disk, so the rest of what it holds is unused. A
        run that is ended while it continues cannot overspend, but it may be refused half-way.
        Raises InvalidInput if no such run is open.
        """

        def decide(lines: list[dict[str, Any]]) -> dict[str, Any]:
            _, held, _ = self._parsed(lines)
            if number not in held:
                known = ", ".join(map(str, held)) or "none"
                raise InvalidInput(f"run {number!r} is not open; open runs: {known}")
            return {"run": number, "ended": True}

        self._lines.append(decide)

    def _check_promise(self, budget: Budget, neighbours: str) -> None:
        name, wanted = self._lines.path.name, promise(neighbours)
        if self.budget.gaussian and not budget.gaussian:
            raise InvalidInput(
                f"the ledger {name} adds up Gaussian differential privacy, which is more than "
                "zCDP; run with accounting='gaussian'"
            )
        if (wanted, budget.unit) != (self.neighbours, self.budget.unit):
            raise InvalidInput(
                f"the ledger {name} counts {self.budget.unit} for {self.neighbours}, the run "
                f"{budget.unit} for {wanted}, which do not add up; run with the neighbours and "
                f"unit of {self.neighbours} and delta {'= 0' if self.budget.pure else '> 0'}"
            )

    def _parsed(
        self, lines: list[dict[str, Any]] | None = None
    ) -> tuple[Ledger, dict[int, HeldBudget], int]:
        """Return a ledger in memory, the budgets that unfinished runs hold, and the number of runs
        that began. The ledger has all charges in the file's lines, and after them the amounts that
        unfinished runs hold. `lines`: the file's lines; None reads them.

        Raises InvalidInput for a file of another format.
        """
        with refusing(self._lines.path, "a ledger file"):
            every = self._lines.read() if lines is None else lines
            first, rest = dict(every[0]), every[1:]
            if {key: first.pop(key) for key in HEADER} != HEADER:
                raise InvalidInput("its first line is of another format or version")
            entries = [dict(line) for line in rest if not {"holds", "ended"} & line.keys()]
            secure = all([entry.pop("secure") is True for entry in entries])
            for entry in entries:
                if run := entry.pop("run", None):
                    entry["step"] = f"run {run}: " + entry["step"]
            held, runs = held_budgets(rest)
            entries += [
                vars(LedgerEntry(f"run {run}", "held until it ends", own.cost_left, own.delta_left))
                for run, own in held.items()
                if own.cost_left
            ]
            ledger = Ledger.from_dict({**first, "secure": secure, "entries": entries})
        return ledger, held, runs
