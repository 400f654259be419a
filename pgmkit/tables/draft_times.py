"""Dates and points in time among texts: their format, and a column that keeps it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from pgmkit.tables.columns import Column
from pgmkit.tables.dates import Date, DateTime, strptime

__all__ = ["time_column"]

_PADDED = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d")
_FORMATS = (
    "%Y%m%d",
    *_PADDED,
    *(form.replace("%d", "%-d").replace("%m", "%-m") for form in _PADDED),
)
_TIMES = (" %H:%M", " %H:%M:%S", "T%H:%M:%S")
_MOMENTS = (
    *(f"%Y-%m-%dT%H:%M{seconds}Z" for seconds in ("", ":%S", ":%S.000")),
    *(day + time for day in _FORMATS for time in _TIMES),
)
"""Points in time; those with the Z of Greenwich keep it as a letter of theirs."""
_YEARS = range(1800, 2201)


def time_column(texts: Sequence[str], missing: tuple[str, ...] | None) -> tuple[Column, str] | None:
    """A column of dates for these texts and what was decided; None where they are no dates.

    >>> column, note = time_column(["31/01/2020", "05/02/2020"], None)
    >>> column.format
    '%d/%m/%Y'
    """
    moments, form = _iso(texts), None
    if moments is None:
        form = next((f for f in (*_FORMATS, *_MOMENTS) if _parse(texts, f) is not None), None)
        moments = None if form is None else _parse(texts, form)
    if moments is None:
        return None
    written = "" if form is None else f" written {form}{_doubt(texts, form)}"
    low, high = min(moments), max(moments)
    unit = _unit((high - low).days)
    if any(moment.time() != datetime.time() for moment in moments):
        unit = "hour" if (high - low).days <= 10 else unit
        timed = DateTime(low.isoformat(), high.isoformat(), unit=unit, format=form, missing=missing)
        return timed, f"points in time{written}, by {unit}; decoded uniformly within, to the second"
    first, last = low.date(), high.date()
    column = Date(str(first), str(last), unit=unit, format=form, missing=missing)
    return column, f"dates {first} to {last}{written}, by {unit}; decoded uniformly within"


def _iso(texts: Sequence[str]) -> list[datetime.datetime] | None:
    # Eight digits are no ISO date here, though Python reads them as one: they are kept as written.
    if any(len(text) < 10 or text.isdigit() for text in texts):
        return None
    try:
        moments = [datetime.datetime.fromisoformat(text) for text in texts]
    except ValueError:
        return None
    return None if any(moment.tzinfo is not None for moment in moments) else moments


def _parse(texts: Sequence[str], form: str) -> list[datetime.datetime] | None:
    moments = []
    for text in texts:
        try:
            moment = strptime(text, form)
        except ValueError:
            return None
        if moment.year not in _YEARS or moment.strftime(form) != text:
            return None
        moments.append(moment)
    return moments


def _doubt(texts: Sequence[str], form: str) -> str:
    other = form
    for first, second in (("%d", "%m"), ("%-d", "%-m")):
        for between in "/-":
            other = other.replace(f"{first}{between}{second}", f"{second}{between}{first}")
    return (
        f" (or {other}: correct it)" if other != form and _parse(texts, other) is not None else ""
    )


def _unit(days: int) -> str:
    return "day" if days <= 60 else "month" if days <= 2000 else "year"
