"""The reply to a question: named columns, to be printed, shown in a notebook or drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.runtime import html, plots
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.printed import on_one_line

_FORMATS = {"count": ".4g", "share": ".4f"}
"""The format of columns of estimates where no standard error tells the number of digits."""


@dataclass(frozen=True, eq=False)
class Reply:
    """A table: named columns of equal length, with texts or numbers; counts are expected records.

    `notes`: what a reader must know: what the shares refer to, what was left out, what is
    unreliable. `curve`: True for a CDF; its last column of texts then has the values up to which
    counts go.
    """

    columns: Mapping[str, Sequence[str] | Array]
    notes: tuple[str, ...] = ()
    curve: bool = False

    @property
    def _numbers(self) -> dict[str, Array]:
        return {n: v for n, v in self.columns.items() if isinstance(v, np.ndarray)}

    def __str__(self) -> str:
        texts = [list(map(on_one_line, (name, *each))) for name, each in self.texts().items()]
        widths = [max(map(len, column)) for column in texts]
        lines = [
            "  ".join(map(str.ljust, line, widths)).rstrip() for line in zip(*texts, strict=True)
        ]
        return "\n".join([*lines, *(f"({on_one_line(note)})" for note in self.notes)])

    __repr__ = __str__

    def texts(self) -> dict[str, list[str]]:
        """Return the columns as texts. Estimates with standard errors, and these errors and their
        intervals, are rounded to the second significant digit of the smallest finite standard
        error above 0, or to whole numbers if that digit is left of the decimal point. Other counts
        have up to four significant digits, or are whole numbers if the largest is 1,000 or more;
        other shares have four decimal places, and other numbers up to six significant digits.
        `columns` has the numbers in full.

        >>> Reply({"count": np.array([801.441]), "stderr": np.array([14.524])}).texts()
        {'count': ['801'], 'stderr': ['15']}
        """
        numbers = self._numbers
        errors = numbers.get("stderr", np.zeros(0))
        errors = errors[(errors > 0) & np.isfinite(errors)]
        known = {next(iter(numbers), ""), "stderr", "low", "high"} if errors.size else set()
        digits = max(0, 1 - floor(log10(errors.min()))) if errors.size else 0

        def written(name: str, value: Any) -> str:
            if name not in numbers:
                return str(value)
            if name in known:
                return f"{value:.{digits}f}"
            whole = name == "count" and np.max(numbers[name]) >= 1000
            return f"{value:{'.0f' if whole else _FORMATS.get(name, '.6g')}}"

        return {name: [written(name, v) for v in column] for name, column in self.columns.items()}

    def to_pandas(self) -> Any:
        """Return the columns as a pandas DataFrame; raise InvalidInput if pandas is not
        installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise InvalidInput("to_pandas needs pandas: pip install pandas") from None
        return pd.DataFrame(dict(self.columns))

    def plot(self, axes: Any = None) -> Any:
        """Draw a bar for each line, or the steps of a CDF, with intervals if there are error bars,
        and return matplotlib's axes.

        The first column of numbers is drawn: counts, sums, means or quantiles. `axes`: where to
        draw; by default a new figure. Needs the extra `plot`; raises InvalidInput if it is not
        installed, and if `axes` are no axes of matplotlib.
        """
        numbers = self._numbers
        title, values = next(iter(numbers.items()))
        ends = (numbers["low"], numbers["high"]) if "low" in numbers else None
        texts = [name for name in self.columns if name not in numbers and name != "note"]
        groups = [list(map(str, self.columns[name])) for name in texts]
        steps = groups.pop() if self.curve else []
        lines = list(map(", ".join, zip(*groups, strict=True))) or ["all"] * len(values)
        if self.curve:
            axes = plots.steps(axes, lines, steps, values, ends)
            axes.set_ylabel(plots.plain(title))
        else:
            axes = plots.bars(axes, lines, values, ends)
            axes.set_xlabel(plots.plain(title))
        return axes

    def _repr_html_(self) -> str:
        texts, numbers = self.texts(), self._numbers
        rows = list(zip(*texts.values(), strict=True))
        shown = html.table(
            list(texts),
            rows[: html.MOST_BARS],
            numbers=[place for place, name in enumerate(texts) if name in numbers],
            caption=html.more_rows(len(rows)).removeprefix("; "),
            filled={p: numbers[n] for p, n in enumerate(texts) if n == "share" and n in numbers},
        )
        notes = (f"<p><small>{html.escape(note)}</small></p>" for note in self.notes)
        return "".join([shown, *notes])
