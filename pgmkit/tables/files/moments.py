"""Dates and times in files of SPSS, Stata and SAS: numbers since an origin, with a format.

pyreadstat converts them too, but one number beyond the calendar ends its reading of the whole file.
The formats that count as dates and times are those of pyreadstat. It takes the numbers
of DTDATE for days, but SAS shows with this format the day of a moment, which is in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import Any, NamedTuple, TypeAlias

Kind: TypeAlias = type[date | time | timedelta]

_SAS = re.compile(r"(?P<name>[A-Z][A-Z0-9]+[A-Z])(\d+(\.\d+)?)?")
"""This pattern matches a format of SAS or SPSS: its name, the width and the number of decimals."""


class Calendar(NamedTuple):
    """The dates and times of a program.

    Attributes:
        origin: The moment of the number 0.
        day: The number of a date's units in a day.
        clock: The number of a time's units in a day.
        formats: The kind of value that each format shows: a date, a date with a time (datetime),
            a time of day, or a duration (timedelta).
    """

    origin: datetime
    day: int
    clock: int
    formats: Mapping[str, Kind]

    def read(self, values: list[Any], form: str | None) -> list[Any]:
        """Return the numbers of a column as dates or times if its format says so.

        A duration from 0 to below a day becomes a time. Other durations, missing values and numbers
        beyond the calendar stay as they are.

        >>> CALENDARS["Stata"].read([0.0, 366.0, 1e300], "%td")
        [datetime.date(1960, 1, 1), datetime.date(1961, 1, 1), 1e+300]
        """
        named = _SAS.fullmatch(form or "")
        kind = self.formats.get(named["name"] if named else form or "")
        return [self._moment(each, kind) for each in values] if kind else values

    def _moment(self, value: Any, kind: Kind) -> Any:
        if not isinstance(value, int | float):
            return value
        units = self.day if kind is date else self.clock
        try:
            days, rest = divmod(value, units)
            moment = self.origin + timedelta(days=days, seconds=rest * (86_400 / units))
        except (ValueError, OverflowError):
            return value
        if kind is timedelta and days:
            return value
        return moment if kind is datetime else moment.date() if kind is date else moment.time()


def _formats(dates: str, moments: str, times: str, durations: str) -> dict[str, Kind]:
    kinds: dict[Kind, str] = {date: dates, datetime: moments, time: times, timedelta: durations}
    return {name: kind for kind, names in kinds.items() for name in names.split()}


CALENDARS: Mapping[str, Calendar] = {
    "SPSS": Calendar(
        datetime(1582, 10, 14),
        86_400,
        86_400,
        _formats("DATE ADATE EDATE JDATE SDATE", "DATETIME YMDHMS", "", "TIME DTIME"),
    ),
    "Stata": Calendar(
        datetime(1960, 1, 1),
        1,
        86_400_000,
        _formats("%td %d %tdD_m_Y %tdCCYY-NN-DD", "%tC %tc", "%tcHH:MM:SS %tcHH:MM", ""),
    ),
    "SAS": Calendar(
        datetime(1960, 1, 1),
        1,
        86_400,
        _formats(
            "DATE WEEKDATE WEEKDATX IS8601DA E8601DA B8601DA "
            "MMDDYY MMDDYYB MMDDYYC MMDDYYD MMDDYYN MMDDYYP MMDDYYS "
            "DDMMYY DDMMYYB DDMMYYC DDMMYYD DDMMYYN DDMMYYP DDMMYYS "
            "YYMMDD YYMMDDB YYMMDDD YYMMDDN YYMMDDP YYMMDDS",
            "DATETIME DTDATE E8601DT DATEAMPM MDYAMPM IS8601DT B8601DT B8601DN",
            "TOD TIMEAMPM IS8601TM E8601TM B8601TM",
            "TIME HHMM",
        ),
    ),
}
"""The calendar of each format."""
