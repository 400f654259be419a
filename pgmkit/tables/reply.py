"""The reply to a question: named columns, to be printed, shown in a notebook or drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.runtime.printed import on_one_line

__all__ = ["Reply"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Reply:
    """A table: named columns of equal length, with texts or numbers; counts are expected records.

    `notes`: what a reader must know: what the shares refer to, what was left out, what is
    unreliable. `curve`: True for a CDF; its last column of texts then has the values up to which
    counts go.
    """

    columns: Mapping[str, Sequence[str] | Array]
    notes: tuple[str, ...] = ()
    curve: bool = False

    def __str__(self) -> str:
        def cell(value: object) -> str:
            return on_one_line(value) if isinstance(value, str) else f"{value:.6g}"

        body = [[cell(value) for value in column] for column in self.columns.values()]
        texts = [
            [on_one_line(name), *column] for name, column in zip(self.columns, body, strict=True)
        ]
        widths = [max(map(len, column)) for column in texts]
        lines = [
            "  ".join(
                value.ljust(width) for value, width in zip(line, widths, strict=True)
            ).rstrip()
            for line in zip(*texts, strict=True)
        ]
        return "\n".join([*lines, *(f"({on_one_line(note)})" for note in self.notes)])

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
        installed.
        """
        from pgmkit.runtime import plots

        texts = [n for n, v in self.columns.items() if not isinstance(v, np.ndarray)]
        title = next(name for name in self.columns if name not in texts)
        values = np.asarray(self.columns[title], dtype=np.float64)
        ends = None
        if "low" in self.columns:
            low, high = (np.asarray(self.columns[end], dtype=float) for end in ("low", "high"))
            ends = low, high
        groups = [list(map(str, self.columns[name])) for name in texts if name != "note"]
        if self.curve:
            *groups, labels = groups
            lines = list(map(", ".join, zip(*groups, strict=True))) or ["all"] * len(values)
            axes = plots.steps(axes, lines, labels, values, ends)
            axes.set_ylabel(title)
            return axes
        labels = list(map(", ".join, zip(*groups, strict=True))) or ["all"]
        axes = plots.bars(axes, labels, values, ends)
        axes.set_xlabel(title)
        return axes

    def _repr_html_(self) -> str:
        from pgmkit.runtime import html

        return html.columns(self.columns, self.notes)
