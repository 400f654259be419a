"""The budgets that runs hold in a ledger file, read from its lines.

A run begins with a line that sets its whole budget aside, so that no other run can use it: `run` is
its number, `holds` a cost in the ledger's unit, and `delta` a part of the reserved delta. It ends
with a line that frees the rest: `run` and `ended`. The charges in between are paid from what it
holds. A run that was killed holds its rest until someone ends it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mechanisms.privacy.conversions import not_negative, positive
from pgmkit.errors import InvalidInput
from pgmkit.runtime.precision import AGREEMENT


@dataclass
class HeldBudget:
    """The budget that one run set aside, as a cost in the ledger's unit and a part of the reserved
    delta, and the run's charges.
    """

    cost: float
    delta: float
    costs: list[float] = field(default_factory=list)
    deltas: list[float] = field(default_factory=list)

    @property
    def cost_left(self) -> float:
        """The part of the cost that the run has not charged; 0 if that is within rounding of 0, or
        below 1e-100, since no charge may cost so little.
        """
        return _rest(self.cost, self.costs, 1e-100)

    @property
    def delta_left(self) -> float:
        """The part of the reserved delta that the run has not charged."""
        return _rest(self.delta, self.deltas)

    def allows(self, cost: float, delta: float) -> bool:
        """Return True if a further charge fits into what is held. Once the whole cost is charged,
        the run holds nothing, not even the rest of its delta: another run may have reserved that.
        """
        within = 1 + AGREEMENT  # rounded sums may exceed the total, as that of 13 thirteenths does
        return (
            self.cost_left > 0
            and math.fsum([*self.costs, cost]) <= self.cost * within
            and math.fsum([*self.deltas, delta]) <= self.delta * within
        )


def held_budgets(lines: Sequence[Mapping[str, Any]]) -> tuple[dict[int, HeldBudget], int]:
    """Return what each run that has not ended holds, by the run's number, and how many runs have
    begun.

    `lines`: all lines of the file except the first. A charge that belongs to no open run changes
    nothing. Raises InvalidInput for runs that begin or end out of order and for an amount that no
    run can hold, and KeyError for a line of a run that lacks an entry.
    """
    held: dict[int, HeldBudget] = {}
    begins = 0
    for line in lines:
        run = line.get("run")
        if "holds" in line:
            begins += 1
            if run != begins:
                raise InvalidInput(f"run {run!r} begins where run {begins} should")
            positive("what a run holds", line["holds"])
            not_negative("the delta that a run holds", line["delta"])
            held[begins] = HeldBudget(line["holds"], line["delta"])
        elif "ended" in line:
            if run not in held:
                raise InvalidInput(f"run {run!r} ends, which had not begun or had ended")
            del held[run]
        elif run in held:
            held[run].costs.append(line["cost"])
            held[run].deltas.append(line["delta"])
    return held, begins


def _rest(whole: float, parts: Sequence[float], least: float = 0.0) -> float:
    rest = math.fsum([whole, *(-part for part in parts)])
    return rest if rest >= max(whole * AGREEMENT, least) else 0.0
