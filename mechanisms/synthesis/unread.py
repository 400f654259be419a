"""Values that the schema could not read: their noisy shares, measured before the budget is spent.

A file in another encoding, or with another separator or decimal sign than the schema says, is read
without an error: its values go to the place that each column declares for values it does not have.
JSON lines have no header, so a column that the schema spells otherwise than they do is missing in
all records. Rows are private, so an exact error would reveal something about single rows. Instead a
hundredth of the budget says which columns have many values that could not be read, and which seem
to hold nothing but missing values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from mechanisms.privacy.curator import Curator
from mechanisms.queries.cells import Cell
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.chances import RARE, SIGNIFICANT, deviations
from pgmkit.tables.draft.thresholds import FEW, NEARLY_ALL
from pgmkit.tables.schema import Schema

COST_SHARE = 0.01
"""The share of the budget for this check; the noise of everything else grows by half a percent, or
by one under Laplace noise.
"""
_MANY = 1 - NEARLY_ALL
"""The share of a column's values, a tenth, above which the check warns; smaller shares are usual if
a schema leaves missing or rare values out.
"""


@dataclass(frozen=True)
class UnreadValues:
    """The noisy share of each column's values that could not be read, and of missing values.

    `stddev`: the noise's standard deviation in each share of unread values; if the number of rows
    is private, that in a share of a tenth. `pure`: True for Laplace noise, False for Gaussian.
    `missing`: the noisy shares of the columns that declare missing values, with the same noise in
    their counts. `rows_public`: True if the number of rows, by which counts are divided, has no
    noise.
    """

    shares: dict[str, float]
    stddev: float
    pure: bool
    missing: Mapping[str, float] = field(default_factory=dict)
    rows_public: bool = False

    @property
    def many(self) -> tuple[str, ...]:
        """The columns of which surely more than a tenth could not be read, the largest share first.

        The noisy share must exceed a tenth by a margin. If at most a tenth of each column could not
        be read, some column is listed with probability ``RARE`` (10^-6) at most. Wrongly read files
        have shares of a half and more, so few of them are missed because of the margin.
        """
        above = _MANY + deviations(RARE / len(self.shares), laplace=self.pure) * self.stddev
        return _largest_first(self.shares, above)

    @property
    def empty(self) -> tuple[str, ...]:
        """The columns, apart from those in `many`, of which surely more than half of the values are
        missing and, as far as the noise shows, all may be. A column of which all values are missing
        fails to be among them with probability ``SIGNIFICANT`` (10^-3) at most, or more often if
        the noise is large: a noisy share below nine tenths is never taken for all, since columns of
        which four fifths are missing are usual in surveys.
        """
        others = {name: s for name, s in self.missing.items() if name not in self.many}
        # A share is a noisy count divided by the number of rows. If that number is private, its own
        # noise enters too: for a share near 1 nearly as much as the count's.
        stddev = self.stddev * (1.0 if self.rows_public else math.sqrt(2))
        surely = 0.5 + deviations(RARE / max(1, len(others)), laplace=self.pure) * stddev
        least = 1 - deviations(SIGNIFICANT, laplace=self.pure) * stddev
        return _largest_first(others, max(surely, least, NEARLY_ALL))

    def __str__(self) -> str:
        noise = f"(noise {self.stddev:.1%})"
        said = []
        if shown := [f"{min(self.shares[name], 1.0):.0%} of {name}" for name in self.many]:
            said.append(
                f"about {', '.join(shown)} could not be read by the schema {noise}; likely causes "
                "are another encoding, separator, decimal sign or format of times (offsets such as "
                "+02:00 are in none) than the schema says, or values and missing ones that it does "
                "not list"
            )
        if self.empty:
            said.append(
                f"all or nearly all values of {', '.join(self.empty)} are missing {noise}; "
                "unless this is as it should be, likely causes are keys of JSON lines with another "
                "name than the schema's column, or a list of missing texts that has all of them"
            )
        if said:
            return "; ".join(said)
        if self.stddev > _MANY:
            noise = "above 100%" if self.stddev > 1 else f"{self.stddev:.0%}"
            return f"too few rows to tell whether values could be read (noise {noise})"
        return f"no column shows more than a tenth of unread values {noise}"


def _largest_first(shares: Mapping[str, float], above: float) -> tuple[str, ...]:
    """Return the names of the shares above a limit, the largest first."""
    found = [name for name, share in shares.items() if share > above]
    return tuple(sorted(found, key=lambda name: -shares[name]))


def check_values(
    curator: Curator, schema: Schema, asked: bool | Callable[[UnreadValues], None], level: int = 4
) -> str:
    """Spend a hundredth of the remaining budget on the shares of values that could not be read and
    of missing values, and return a clause that tells of them.

    Missing values are counted in the columns that declare them in `schema` and that the Curator's
    records have; unread values in all columns of the records. `asked`: True to warn if some column
    has many unread or only missing values, or a callable that gets the noisy shares and may raise
    to end the run. `level`: the `stacklevel` of the warning; by default it names the caller of
    `synthesize`.
    """
    sizes = curator.domain.sizes
    declaring = [n for n, c in schema.columns.items() if n in sizes and c.missing is not None]
    public = curator.neighbours.rows_public
    known = len(sizes) + (not public)
    # With these parts of the cost, all numbers get the same noise.
    of_each = COST_SHARE * curator.remaining / (known + len(declaring))
    counts, rows, stddev = curator.measure_unread(known * of_each)
    of = max(rows, 1.0)
    # A share is a noisy count divided by the number of rows. If that number is private, its noise,
    # with the same stddev, enters in proportion to the share. The share is taken as `_MANY`, above
    # which the check warns.
    noise = stddev / of * (1.0 if public else math.hypot(1, _MANY))
    missing = {}
    if declaring:
        cells = [Cell((name,), sizes[name] - 1) for name in declaring]
        measured = curator.measure_cells(cells, len(cells) * of_each, step="missing values")
        missing = {n: float(m.values[0]) / of for n, m in zip(declaring, measured, strict=True)}
    shares = {name: max(0.0, count / of) for name, count in counts.items()}
    found = UnreadValues(shares, noise, curator.ledger.budget.pure, missing, public)
    if callable(asked):
        asked(found)
    elif found.many or found.empty:
        warnings.warn(str(found), stacklevel=level)
    return f"; {found}"


def exact_shares(data: Dataset) -> str:
    """Return a clause with the exact share of each column's values that could not be read; empty if
    there are none, or if that is not known. Only for records whose exact numbers may be shown.
    """
    unread, rows = (data.unread or {}).items(), f"{len(data):,}"
    # Of many records a percentage would show a few as none, and nearly all as all.
    shares = ", ".join(f"{count:,} of {rows} values of {name}" for name, count in unread if count)
    return shares and (
        f"{shares} could not be read by the schema and count as its columns declare (`outside`), "
        "so that what is made of them, or compared with them, may be wrong; likely causes are "
        "another --encoding, --separator or --decimal, or values that the schema does not list. "
        "These numbers are exact"
    )


def warn_unchecked(schemas: Iterable[Schema]) -> None:
    """Warn of the columns that have a place of their own neither for values that they cannot read
    nor for missing ones. Such values are then counted as one of the column's own, and the release
    does not tell how many there are. The warning does not depend on the data, and is given once in
    a process for the same columns.
    """
    places = [
        f"{name} as {column.labels[0]!r}"
        for schema in schemas
        for name, column in schema.columns.items()
        if column.missing is None is column.outside and getattr(column, "other", None) is None
    ]
    if places:
        _told_once(", ".join(places[:FEW]) + (", ..." if len(places) > FEW else ""))


@cache
def _told_once(columns: str) -> None:
    """Warn of the columns, once in a process for the same text, since most calls have one
    schema. `columns`: a text that lists them.
    """
    warnings.warn(
        f"missing and unreadable values would count among others, unseen ({columns}); declare "
        "`missing` or `outside` for these columns, or pass report_unread=True to see their noisy "
        "share for a hundredth of the budget (said once)",
        stacklevel=5,  # the caller of `synthesize`
    )


def check_labels(schema: Schema, names: Sequence[str]) -> None:
    """Warn of each of the columns `names` for which no label was found, or whose labels contain the
    sign for bytes that are not in the encoding. The labels are public: they were paid for.
    """
    for name in names:
        if getattr(schema.columns[name], "values", None) == ():
            warnings.warn(
                f"no value of {name} is frequent enough to be found: all records have "
                f"{schema.columns[name].labels[0]!r} or a gap; leave the column out, list its "
                "values in the schema, or take a larger epsilon",
                stacklevel=4,
            )
        unclear = sum("\ufffd" in label for label in schema.columns[name].labels)
        if unclear:
            warnings.warn(
                f"{unclear} of the values found in {name} hold signs that are not in the encoding "
                f"{schema.file.encoding}; name the file's: --encoding, or `encoding` in the "
                "schema's `file`",
                stacklevel=4,
            )
