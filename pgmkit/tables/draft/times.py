"""Dates and points in time among texts: their format, and a column that keeps it."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Sequence

from pgmkit.tables.columns import Column
from pgmkit.tables.dates import ISO_TEXT, Date, DateTime, strftime, strptime

_PADDED = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d")
_SHORT = ("%d/%m/%y", "%m/%d/%y", "%d.%m.%y", "%d-%m-%y", "%m-%d-%y")
"""Formats with years of two digits; Python reads years up to 68 as 20.., the others as 19.."""
_NAMED = (
    *("%d %b %Y", "%d. %b %Y", "%d-%b-%Y", "%d-%b-%y", "%d %B %Y", "%d. %B %Y"),
    *("%B %d, %Y", "%b %d, %Y"),
)
_FORMATS = (
    "%Y%m%d",
    *_PADDED,
    *_NAMED,
    *(form.replace("%d", "%-d").replace("%m", "%-m") for form in (*_PADDED, *_NAMED)),
    *("%Y-%m", "%m/%Y", "%b-%y", "%b-%Y", "%b %Y", "%B %Y"),
    *_SHORT,
    *(form.replace("%d", "%-d").replace("%m", "%-m") for form in _SHORT),
)
_TIMES = (
    *("T%H:%M:%S", " %H:%M", " %H:%M:%S", " %-H:%M", " %-H:%M:%S"),
    *(f" {hour}:%M{seconds} %p" for hour in ("%I", "%-I") for seconds in ("", ":%S")),
)
_MOMENTS = (
    *(f"%Y-%m-%dT%H:%M{seconds}Z" for seconds in ("", ":%S", ":%S.000")),
    *(day + time for day in _FORMATS for time in _TIMES),
)
"""Formats of points in time; the Z for Greenwich is kept as a letter of the format."""
_ISO = tuple(
    f"%Y-%m-%d{sign}{time}"
    for sign in ("T", " ")
    for time in ("%H:00:00", "%H:%M:00", "%H:%M", "%H:%M:%S")
)
"""Formats of ISO 8601 texts that are all written alike; those with literal zeros are for texts that
all state whole hours or whole minutes.
"""
_CLOCKS = ("%H:%M", "%H:%M:%S", "%-H:%M", "%-H:%M:%S", "%I:%M %p", "%-I:%M %p")
"""Formats of times of day; they are read as times on the day that Python assumes without a date."""
FORMATS = ("%Y-%m-%d", *_FORMATS, *_ISO, *_MOMENTS, *_CLOCKS)
"""The formats of dates, points in time and times of day that are tried."""
_DAY = re.compile("%-?d")
_OFFSET = re.compile(r".*\d\d:\d\d(?::\d\d)?(?:\.\d+)?([+-]\d\d:?\d\d)")
_YEARS = range(1800, 2201)
"""The years accepted in formats whose texts could be other codes: digits alone, and months without
a day.
"""


def time_column(texts: Sequence[str], missing: tuple[str, ...] | None) -> tuple[Column, str] | None:
    """Return a column of dates or times for these texts and the reason; None if they are neither.

    >>> column, note = time_column(["31/01/2020", "05/02/2020"], None)
    >>> column.format
    '%d/%m/%Y'
    """
    moments, form, doubt = _iso(texts), None, ""
    if moments is None and ":" in texts[0]:
        form = next((f for f in _CLOCKS if _parse(texts, f) is not None), None)
        if form is not None:
            day = "1900-01-01T"
            clock = DateTime(f"{day}00:00:00", f"{day}23:59:59", format=form, missing=missing)
            return clock, f"times of day{_written(form)}, by hour; decoded uniformly within"
    if moments is None:
        iso = {text for text in texts if _iso([text]) is not None}
        others = [text for text in texts if text not in iso]
        formats = (*_FORMATS, *_MOMENTS, *_of_offset(others))
        form = next((f for f in formats if _parse(others, f) is not None), None)
        if form is None:
            return None
        moments, doubt = _parse(others, form) or [], _doubt(others, form)
        if iso:
            beside = _beside(sorted(iso), moments, form)
            if beside is None:
                return None
            moments, doubt = moments + beside, f" or as ISO 8601{doubt}; written the first way"
    elif _timed(moments):
        form = next((f for f in _ISO if [strftime(m, f) for m in moments] == list(texts)), None)
    low, high = min(moments), max(moments)
    unit = _unit((high - low).days)
    if _timed(moments):
        # In an ISO format, values are datetimes in data frames, and such texts in CSV files only.
        kind = "datetime" if form in _ISO else None
        unit = "hour" if (high - low).days <= 10 else unit
        ends = low.isoformat(), high.isoformat()
        column = DateTime(*ends, unit=unit, format=form, missing=missing, decode_as=kind)
        return column, f"points in time{_written(form)}{doubt}, by {unit}; decoded uniformly within"
    first, last = low.date(), high.date()
    # Texts such as 2018-03 do not name a day.
    if unit == "day" and form is not None and not _DAY.search(form):
        unit = "month"
    said = f"dates {first} to {last}{_written(form)}{doubt}, by {unit}; decoded uniformly within"
    return Date(str(first), str(last), unit=unit, format=form, missing=missing), said


def _of_offset(texts: Sequence[str]) -> Sequence[str]:
    """Return formats of points in time that end in the first text's offset from Greenwich,
    literally; none if it has no offset.

    >>> _of_offset(["2024-05-01T12:30+02:00"])[0]
    '%Y-%m-%dT%H:%M+02:00'
    """
    offset = _OFFSET.fullmatch(texts[0])
    if offset is None:
        return ()
    times = ("%H:%M", "%H:%M:%S", "%H:%M:%S.000")
    return [f"%Y-%m-%d{sign}{time}{offset[1]}" for sign in "T " for time in times]


def has_offset(text: str) -> bool:
    """Return True for a text that ends in a time of day and its offset from Greenwich in digits,
    such as +02:00.
    """
    return _OFFSET.fullmatch(text) is not None


def _timed(moments: Sequence[datetime.datetime]) -> bool:
    """Return True if one of the moments is not the beginning of a day."""
    return any(moment.time() != datetime.time() for moment in moments)


def _written(form: str | None) -> str:
    return "" if form is None else f" written {form}"


def _iso(texts: Sequence[str]) -> list[datetime.datetime] | None:
    # Python also reads 20240501T1030, 2024-W05-1 and any sign before the time; no column does.
    if any(len(text) < 10 or ISO_TEXT.fullmatch(text) is None for text in texts):
        return None
    try:
        return [datetime.datetime.fromisoformat(text) for text in texts]
    except ValueError:
        return None


def _beside(
    iso: Sequence[str], others: Sequence[datetime.datetime], form: str
) -> list[datetime.datetime] | None:
    """Return the times of the ISO texts if one column can hold them and ``others``, the times of
    the texts written in ``form``; otherwise None.

    The format must hold a day and read none of the ISO texts, and either both kinds of text have
    times of day or neither.
    """
    moments = [datetime.datetime.fromisoformat(text) for text in iso]
    if not _DAY.search(form) or _timed(moments) != _timed(others):
        return None
    for text in iso:
        with contextlib.suppress(ValueError):
            strptime(text, form)
            return None
    return moments


def is_written(text: str, form: str) -> bool:
    """Return True for a date or a point in time that this format reads and writes identically."""
    return (":" in text) == (":" in form) and _parse([text], form) is not None


def _parse(texts: Sequence[str], form: str) -> list[datetime.datetime] | None:
    moments, certain = [], _DAY.search(form) is not None and form != "%Y%m%d"
    for text in texts:
        try:
            moment = strptime(text, form)
        except ValueError:
            return None
        if strftime(moment, form) != text or not (certain or moment.year in _YEARS):
            return None
        moments.append(moment)
    return moments


def _doubt(texts: Sequence[str], form: str) -> str:
    years = "; years of two digits up to 68 are 20.., others 19.." if "%y" in form else ""
    other = form
    for first, second in (("%d", "%m"), ("%-d", "%-m")):
        for between in "/-":
            other = other.replace(f"{first}{between}{second}", f"{second}{between}{first}")
    either = other != form and _parse(texts, other) is not None
    return (f" (or {other}: correct it)" if either else "") + years


def _unit(days: int) -> str:
    return "day" if days <= 60 else "month" if days <= 2000 else "year"
