"""Values that the schema could not read: their noisy shares, measured before the budget is spent.

A file in another encoding, or with another separator or decimal sign than the schema says, is read
without an error: its values go to the place that each column declares for values it does not have.
Rows are private, so an exact error would reveal something about single rows. Instead a hundredth of
the budget says which columns have many such values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from mechanisms.privacy.curator import Curator
from pgmkit.tables.draft.thresholds import NEARLY_ALL
from pgmkit.tables.schema import Schema

COST_SHARE = 0.01
"""The share of the budget for this check; the noise of everything else grows by half a percent."""
_MANY = 1 - NEARLY_ALL
"""The share of a column's values, a tenth, above which the check warns; smaller shares are usual if
a schema leaves missing or rare values out.
"""
_FALSE_ALARMS = 1e-6
"""The probability that noise alone, over all columns, makes a share of a tenth look larger, which
would stop a run without a terminal. Wrongly read files have shares of a half and more, so the wider
margin misses few of them.
"""


@dataclass(frozen=True)
class UnreadValues:
    """The noisy share of each column's values that could not be read.

    `stddev`: the noise's standard deviation in each share. `pure`: True for Laplace noise, False
    for Gaussian.
    """

    shares: dict[str, float]
    stddev: float
    pure: bool

    @property
    def many(self) -> tuple[str, ...]:
        """The columns of which surely more than a tenth could not be read, the largest
        share first.
        """
        chance = _FALSE_ALARMS / len(self.shares)
        if self.pure:
            # Laplace noise exceeds t times its scale with probability exp(-t) / 2, and a hundredth
            # more often if a tenth of the rows' noise is added; 1 / 2 leaves room for that.
            deviations = math.log(1 / chance) / math.sqrt(2)
        else:
            deviations = NormalDist().inv_cdf(1 - chance)
        above = _MANY + deviations * self.stddev
        found = [name for name, share in self.shares.items() if share > above]
        return tuple(sorted(found, key=lambda name: -self.shares[name]))

    def __str__(self) -> str:
        shown = [f"{min(self.shares[name], 1.0):.0%} of {name}" for name in self.many]
        if not shown and self.stddev > _MANY:
            return f"too few rows to tell whether values could be read (noise {self.stddev:.0%})"
        if not shown:
            return f"no column shows more than a tenth of unread values (noise {self.stddev:.1%})"
        return (
            f"about {', '.join(shown)} could not be read by the schema (noise {self.stddev:.1%}); "
            "likely causes are another encoding, separator or decimal sign than the schema says, "
            "or values and missing ones that it does not list"
        )


def check_values(curator: Curator, asked: bool | Callable[[UnreadValues], None]) -> str:
    """Return a clause on the values that could not be read, for a hundredth of the budget.

    `asked`: True to warn if some column has many such values, or a callable that gets the noisy
    shares and may raise to end the run.
    """
    counts, rows, stddev = curator.measure_unread(COST_SHARE * curator.remaining)
    of = max(rows, 1.0)
    # If the number of rows is private, its noise enters each share; little for a tenth or less.
    noise = stddev / of * (1.0 if curator.neighbours.rows_public else math.hypot(1, _MANY))
    shares = {name: max(0.0, count / of) for name, count in counts.items()}
    found = UnreadValues(shares, noise, curator.ledger.budget.pure)
    if callable(asked):
        asked(found)
    elif found.many:
        warnings.warn(str(found), stacklevel=3)
    return f"; {found}"


def check_labels(schema: Schema, names: Sequence[str]) -> None:
    """Warn if no label was found, or if labels contain the sign for bytes that are not in the
    encoding.

    The labels are public: they were paid for.
    """
    for name in names:
        if getattr(schema.columns[name], "values", None) == ():
            warnings.warn(
                f"no value of {name} is frequent enough to be found: all records have "
                f"{schema.columns[name].labels[0]!r} or a gap; leave the column out, list its "
                "values in the schema, or take a larger epsilon",
                stacklevel=3,
            )
        unclear = sum("\ufffd" in label for label in schema.columns[name].labels)
        if unclear:
            warnings.warn(
                f"{unclear} of the values found in {name} hold signs that are not in the encoding "
                f"{schema.file.encoding}; name the file's: --encoding, or `encoding` in the "
                "schema's `file`",
                stacklevel=3,
            )
