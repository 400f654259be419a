"""One charge of a ledger."""

from __future__ import annotations

from dataclasses import dataclass

from mechanisms.privacy.conversions import not_negative, positive
from pgmkit.errors import InvalidInput


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
        """Return the charge, checked. Raises InvalidInput for other types, a cost below 1e-100, and
        numbers that are not finite.
        """
        if not isinstance(self.step, str) or not isinstance(self.mechanism, str):
            raise InvalidInput("a charge names its step and its mechanism")
        positive(f"the cost of step {self.step!r}", self.cost)
        # Squares of the noise that a smaller cost buys overflow when it is drawn, after the charge.
        if self.cost < 1e-100:
            raise InvalidInput(
                f"the cost of step {self.step!r} must be at least 1e-100, got {self.cost}: the "
                "noise that it buys has no float64; leave the step out"
            )
        not_negative(f"the delta of step {self.step!r}", self.delta)
        return LedgerEntry(self.step, self.mechanism, float(self.cost), float(self.delta))
