"""The summaries of a column in a question: cdf, sum, mean, median, quantile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pgmkit.runtime.printed import exactly


class Kind(NamedTuple):
    """A kind of summary. `numbers`: whether it needs a column of numbers. `weighted`: whether it is
    computed from weighted sums of values; otherwise it is from cumulative counts. `unit`: the unit
    in which errors of these sums or counts are stated; empty for that of the column. For a mean it
    says by what the error, which is that of the sum, has to be divided.
    """

    numbers: bool
    weighted: bool
    unit: str


SUMMARIES = {
    "cdf": Kind(False, False, "records"),
    "sum": Kind(True, True, ""),
    "mean": Kind(True, True, "/ records of the group"),
    "median": Kind(True, False, "records in rank"),
    "quantile": Kind(True, False, "records in rank"),
}
"""The kinds of summaries of a column, by name."""


@dataclass(frozen=True)
class Summary:
    """A number or a curve that describes a column. `kind`: what it is ("cdf", "mean", …). `level`:
    the share of the records that do not exceed a quantile; for a median 0.5.
    """

    kind: str
    column: str
    level: float = 0.5

    @property
    def title(self) -> str:
        """The summary as the question writes it."""
        inner = f"{self.column}, {exactly(self.level)}" if self.kind == "quantile" else self.column
        return f"{self.kind}({inner})"
