"""The summaries of a column in a question: cdf, sum, mean, median, quantile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of summary: whether it needs a column of numbers, whether it is computed from weighted
    sums (otherwise it is from cumulative counts), and the unit in which the errors of these are
    stated (`linear_parts`).
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
    """One number or one curve about a column: `kind` ("cdf", "mean", …) of `column`; `level` of a
    quantile.
    """

    kind: str
    column: str
    level: float = 0.5

    @property
    def title(self) -> str:
        """The summary as the question writes it."""
        inner = f"{self.column}, {self.level:g}" if self.kind == "quantile" else self.column
        return f"{self.kind}({inner})"
