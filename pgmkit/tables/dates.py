"""Columns of dates and of points in time."""

from __future__ import annotations

import contextlib
import datetime
import re
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import one_of
from pgmkit.runtime.typed import typed_class
from pgmkit.tables.bins import Binned
from pgmkit.tables.columns import Codes
from pgmkit.tables.values import clock_times, series_values

_UNITS = ("Y", "M", "D", "h", "m", "s")
"""numpy's codes of the units, from the coarsest to the finest."""
_PARTS = {f"{sign}s": 1000 ** (power + 1) for power, sign in enumerate("munpfa")}
"""The number of each of numpy's smaller units, such as "ms", in a second."""
_WRITES = {"s": "ScTXs", "m": "MR", "h": "HIp", "D": "djxDFaAuw", "M": "mbBh"}
"""The letters by which a strftime format writes each unit; all others write the year at most."""
ISO_TEXT = re.compile(r"[+-]?\d{4}(-\d\d(-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?)?)?)?", re.ASCII)
"""The pattern of a date or time in ISO 8601 without a zone."""
_HOUR = re.compile(r"(\d\d?)((:\d\d){0,2})", re.ASCII)
"""The pattern of a time of day: its hour, and its minutes and seconds if it states them."""
_EVERY_DAY = "1900-01-01T"
"""The beginning of numpy's text for a time of day: the day that Python's strptime gives to a time
without a date.
"""
_DIGITS = re.compile("%-?[YymdHIMSj](%[YymdHIMSj])+")
"""The pattern of a format whose texts are digits alone, such as "%H%M"; such a text may lack zeros
at its beginning, but nowhere else.
"""
_ISO_FORMAT = re.compile("%Y-%m-%d([T ](%H|00):(%M|00)(:(%S|00))?)?")
"""The pattern of a format of ISO 8601 texts."""


@typed_class
@dataclass(frozen=True)
class _Temporal(Binned):
    """Points in time on numpy's calendar, with a code for each `unit`, for each of `bins` bins of
    equal width, or for each bin between `edges`.

    Values are read from datetimes, ISO 8601 texts and whole numbers of four digits, which are
    years. A datetime with a time zone is read as the time that a clock in its zone shows, or in
    the zone that the column declares; a text with a zone is no value of the column.

    `format`: the format of the texts as for strftime, such as "%d/%m/%Y", "%-d/%-m/%Y" without
    leading zeros, or "%Y%m%d", which is also read from whole numbers. Values are then decoded as
    texts in this format, which is for years of four digits. With `decode_as: datetime` they are
    decoded as datetimes, and only the texts in CSV and JSON lines have the format, or ISO 8601 if
    it holds "%-" or one of %f, %k, %l, %P and %s. With `decode_as: date` they are decoded as dates,
    whose texts are ISO 8601.

    With a format that begins with the hour and has no date, such as "%H:%M:%S", values are times of
    day, on 1 January 1900. Labels, low, high, edges and the ends of ranges are then such as 11 (the
    whole hour in a range), 11:30 or 11:30:15.

    Raises InvalidInput for a wrong range, bins, spikes or special values (`Binned` has the rules),
    for an unknown unit, for a format without "%", with a sign that strftime does not have or with a
    time zone (%z, %Z), a format with years outside 1000 to 9999, one whose weekday or week does not
    say the day, or one with names of months or days in a process whose locale is not English, and
    for `decode_as` "integer" with another format than "%Y%m%d".
    """

    units: ClassVar[Mapping[str, str]]
    """numpy's code of each unit."""
    accepts = "a date or time such as 2020-12-31 or 2020-12-31T11:30, or one in the format"
    stored_as: ClassVar[str]
    """The numpy type in which values are drawn; its unit is the finest that is drawn."""
    unit: str = "day"
    format: str | None = None

    def __post_init__(self) -> None:
        one_of(self.unit, self.units, "unit")
        if self.format is not None and not (isinstance(self.format, str) and "%" in self.format):
            raise InvalidInput(f'format must be like "%d/%m/%Y", got {self.format!r}')
        # A format with names is refused in a locale that has other names: Python reads and writes
        # them as the process's locale does, Arrow in English.
        now, form = datetime.datetime(2020, 10, 6, 13), self.format or ""
        names = {"%a": "Tue", "%A": "Tuesday", "%b": "Oct", "%B": "October", "%p": "PM"}
        if re.search("%[zZ]", form):
            raise InvalidInput(
                f"the format {form!r} has a time zone, which values do not; write the zone that "
                'all texts have in place of its sign, as in "%H:%M+02:00", or convert the times to '
                "one zone"
            )
        for sign, name in names.items():
            if sign in form and now.strftime(sign) != name:
                raise InvalidInput(
                    f"{sign} in the format {self.format!r} means English names, but this process's "
                    f"locale has {now.strftime(sign)!r} for {name!r}; call "
                    'locale.setlocale(locale.LC_TIME, "C") first'
                )
        known = False
        with contextlib.suppress(ValueError):  # so Windows refuses a sign
            known = "%" not in strftime(now, form.replace("%%", ""))
        if not known:
            raise InvalidInput(
                f"the format {form!r} has a sign that strftime does not have here; write signs "
                "such as %d, %m, %Y, %H and %M"
            )
        text = strftime(now, form)
        with contextlib.suppress(ValueError):  # Python writes some signs that it does not read
            now = strptime(text, form)
        if strftime(now, form) != text:
            raise InvalidInput(
                f"the texts of the format {form!r} do not say which day they mean: {text!r} would "
                f"be read as {now.date()}; state the day beside a weekday, or the year, the week "
                "and the weekday together"
            )
        super().__post_init__()
        ends = [self.positions[0], self.positions[-1] - 1, *self.special_positions]
        shown = np.array(ends).astype(f"datetime64[{self.step}]").astype(str)
        if self.format is not None and not all(re.match("[1-9]...(-|$)", each) for each in shown):
            raise InvalidInput(
                f"a format is for the years 1000 to 9999, got {', '.join(shown)}; leave it out, "
                "and write dates as in 0850-12-31"
            )
        if self.decode_as == "integer" and self.format != "%Y%m%d":
            raise InvalidInput('decode_as "integer" needs format: "%Y%m%d"')

    @property
    def kind(self) -> str:
        return self.decode_as or ("text" if self.format is not None else self.becomes[0])

    @property
    def parses_as(self) -> tuple[str, ...]:
        iso = self.format is None or _ISO_FORMAT.fullmatch(self.format) is not None
        return ("date32", "timestamp[us]") if iso else ()

    @property
    def step(self) -> str:
        """numpy's code of the column's `unit`, such as "M" for months."""
        return self.units[self.unit]

    @cached_property
    def _of_day(self) -> bool:
        """True if the format begins with the hour, tells the 24 hours of a day apart, and writes no
        date.
        """
        if self.format is None or re.match("%(-?[HI]|[RT])", self.format) is None:
            return False
        days = [datetime.datetime(1999, 10, 12), datetime.datetime(2001, 2, 3)]
        hours = [[strftime(day.replace(hour=h), self.format) for h in range(24)] for day in days]
        return hours[0] == hours[1] and len(set(hours[0])) == len(hours[0])

    def _dated(self, value: object) -> object:
        """Return the text of a time of day with the date 1900-01-01 before it, if the column holds
        times of day and the text has no date; return any other value unchanged.
        """
        clock = _HOUR.fullmatch(value.strip()) if self._of_day and isinstance(value, str) else None
        return value if clock is None else f"{_EVERY_DAY}{clock[1]:0>2}{clock[2]}"

    def _position(self, value: object) -> Any:
        return super()._position(self._dated(value))

    def position(self, value: object) -> int:
        return int(_in_steps(np.asarray(self._moment_of(value)), self.step))

    def _moment_of(self, value: object) -> np.datetime64:
        """Return a value as a point in time, or raise ValueError if it is none.

        For a datetime with a time zone the result is what a clock in that zone shows.
        """
        moment: np.datetime64
        if isinstance(value, datetime.datetime):
            moment = np.datetime64(value.replace(tzinfo=None))
        elif isinstance(value, np.datetime64 | datetime.date):
            moment = np.datetime64(value)
        else:
            whole = int(value) if isinstance(value, float) and value.is_integer() else value
            text, moment = str(whole).strip(), np.datetime64("NaT")
            if self.format is not None:
                with contextlib.suppress(ValueError):  # ISO 8601 is read beside the format
                    moment = np.datetime64(strptime(text, self.format))
            if np.isnat(moment):
                moment = _iso(text)
        if np.isnat(moment):
            raise ValueError(value)
        return moment

    def _positions_of(self, array: NDArray[Any]) -> NDArray[Any] | None:
        # If a listed text of missing values is a date, each value's own text is compared with it.
        if array.dtype.kind == "M" and not any(map(ISO_TEXT.fullmatch, self.missing_texts)):
            return _in_steps(array, self.step)
        # A column with a format reads numbers such as 20240131 as times, and a text that stands for
        # missing values may be a number. In both cases each number is examined by itself.
        if self.format is not None or self.missing:
            return None
        numbers, positions = array.astype(np.float64), np.full(len(array), np.nan)
        years = (numbers == np.trunc(numbers)) & (abs(numbers) >= 1000) & (abs(numbers) <= 9999)
        whole = numbers[years].astype(np.int64) - 1970
        positions[years] = _in_steps(whole.astype("datetime64[Y]"), self.step)
        return positions

    @property
    def _written(self) -> str:
        """numpy's code of the finest unit that a decoded value states: the unit in which values are
        drawn or, if the format writes only coarser units, the finest of these.
        """
        drawn = np.datetime_data(self.stored_as)[0]
        if self.format is None:
            return drawn
        signs = {*re.findall("%-?([a-zA-Z])", self.format)}
        written = next((unit for unit, writes in _WRITES.items() if signs & {*writes}), "Y")
        return min(drawn, written, key=_UNITS.index)

    def _end_of(self, value: object, *, behind: bool) -> float:
        """Return the position at which the day, month or minute that a value states begins, or at
        which it ends if `behind` is True. If that moment is within one of the column's units, the
        result is the position of this unit plus one half, so that the unit's bin is found to be
        cut.
        """
        moment = self._moment_of(self._dated(value))
        stated = np.datetime_data(moment.dtype)[0]
        if stated not in _UNITS:  # a text in the format, or a datetime, is in microseconds
            stated = self._written
        units = [min(stated, max(self.step, self._written, key=_UNITS.index), key=_UNITS.index)]
        if isinstance(value, datetime.datetime | np.datetime64):  # such a value states no unit
            units.insert(0, self.step)
        whole = (each for each in units if moment == moment.astype(f"datetime64[{each}]"))
        end = moment.astype(f"datetime64[{next(whole, 'us')}]") + behind
        position = end.astype(f"datetime64[{self.step}]")
        return float(position.astype(np.int64)) + (0.0 if position == end else 0.5)

    def own_values(self, codes: Codes, rng: np.random.Generator) -> NDArray[Any]:
        """Return, for each code, a moment drawn uniformly within its bin, or its special value, as
        a value of `kind`. The moment is a day or a second. A second is cut off to the hour or the
        minute if the format writes no finer unit.
        """
        positions, unit = self._whole_positions(codes, rng), f"datetime64[{self.step}]"
        start, stop = ((positions + i).astype(unit).astype(self.stored_as) for i in (0, 1))
        drawn = rng.integers(start.astype(np.int64), stop.astype(np.int64)).astype(self.stored_as)
        for code, value in enumerate(self.special, len(self.bin_labels)):
            drawn[codes == code] = self._moment_of(self._dated(value))
        finest = max("h", self._written, key=_UNITS.index)
        drawn = drawn.astype(f"datetime64[{finest}]").astype(self.stored_as)
        if self.kind in ("date", "datetime"):
            return drawn.astype("datetime64[D]" if self.kind == "date" else "datetime64[us]")
        found, places = np.unique(drawn, return_inverse=True)
        texts = found.astype(str).tolist()  # ISO 8601, also before the year 1
        if self.format is not None:
            texts = [strftime(moment, self.format) for moment in found.tolist()]
        if self.kind == "integer":
            return np.array(texts, dtype=np.int64)[places]
        return np.array(texts, dtype=object)[places]

    def _shown(self, position: Any) -> str:
        return self._all_shown(np.array([position]))[0]

    def _all_shown(self, positions: NDArray[Any]) -> list[str]:
        moments = positions.astype(np.int64).astype(f"datetime64[{self.step}]")
        texts: list[str] = moments.astype(str).tolist()
        return [text.removeprefix(_EVERY_DAY) for text in texts] if self._of_day else texts


def _in_steps(moments: NDArray[Any], step: str) -> NDArray[Any]:
    """Return numpy's times as whole steps since 1970, where `step` is a second or longer. Times
    200,000 years away from 1970 or more are read as 200,000 years away.

    numpy's own conversion fails for some of these times, and before version 2.5 returns other times
    for them. So one record would decide whether all others can be read.
    """
    unit = np.datetime_data(moments.dtype)[0]
    if unit in _PARTS:
        whole = moments.astype(f"datetime64[{unit}]").astype(np.int64) // _PARTS[unit]
        moments, unit = whole.astype("datetime64[s]"), "s"
    ends = np.array([-200_000, 200_000], "datetime64[Y]").astype(f"datetime64[{unit}]")
    return moments.clip(*ends).astype(f"datetime64[{step}]").astype(np.int64)


def strftime(moment: datetime.date, form: str) -> str:
    """Return the text of a date or time in the format `form`. Its "%-d" and the like, which Windows
    does not have, are "%d" without leading zeros.
    """

    def number(found: re.Match[str]) -> str:
        return (moment.strftime(f"%{found[1]}").lstrip("0") or "0") if found[1] else found[0]

    return moment.strftime(re.sub("%%|%-(.)", number, form))


def strptime(text: str, form: str) -> datetime.datetime:
    """Return the time that a text states in the format `form`. Python cannot read by "%-d" and
    the like, so the text is read by "%d" instead. A text may have decimals of
    seconds if the format has them or ends in ":%S"; they are cut off. Raises ValueError for other
    texts.

    By "%d" Python reads numbers with and without leading zeros. In a format of several numbers
    without separators, such as "%H%M", it would read the text 11 as 1 hour and 1 minute. The zeros
    that such a text lacks are therefore put before it: 11 is 0011, which is 11 minutes past
    midnight. A day without a year is one of 1900.
    """
    if form.endswith("%S"):
        text = re.sub(r"(:\d\d)\.\d+$", r"\1", text)
    if _DIGITS.fullmatch(form):
        text = text.zfill(2 * form.count("%") + 2 * form.count("Y") + form.count("j"))
    form = form.replace("%-", "%")
    if "%d" in form and not re.search("%[YyGcDFx]", form):
        text, form = f"1900 {text}", f"%Y {form}"  # the year that Python assumed until 3.15
    return datetime.datetime.strptime(text, form).replace(microsecond=0)


def _iso(text: str) -> np.datetime64:
    """Return the time that a text in ISO 8601 without a zone states, cut off to microseconds.
    Raises ValueError for other texts.

    numpy alone would read "today" and the year 20000101, print a warning for some other texts, and
    return another time where seconds have eighteen decimals.
    """
    if ISO_TEXT.fullmatch(text) is None:
        raise ValueError(text)
    moment, point, decimals = text.partition(".")
    return np.datetime64(moment + point + decimals[:6])


@dataclass(frozen=True)
class Date(_Temporal):
    """Calendar days from `low` to `high`; `unit` is "day", "month" or "year".

    `low`, `high`, edges and spikes are cut off to the unit: with `unit` "month", 15 January stands
    for all of January. Decoded values are days, drawn uniformly within the bin.

    >>> Date("2020-01-15", "2020-12-31", unit="month").labels[:2]
    ('2020-01', '2020-02')
    """

    type = "date"
    becomes = ("date", "datetime", "text", "integer")
    units: ClassVar[Mapping[str, str]] = {"day": "D", "month": "M", "year": "Y"}
    stored_as = "datetime64[D]"


@dataclass(frozen=True)
class DateTime(_Temporal):
    """Points in time from `low` to `high`; `unit` is "second", "minute", "hour", "day", "month" or
    "year". `low`, `high`, edges and spikes are cut off to the unit: with "hour", 11:30 stands for
    all of the hour from 11:00.

    Decoded values are whole seconds, drawn uniformly within the bin, or whole minutes or hours if
    `format` writes no finer unit. `zone`: the zone of the times, such as "Europe/Berlin". The
    values are what a clock there shows: datetimes with another zone are converted, those without
    one are taken as they are, and texts, as in CSV files, have only the clock's time. Raises
    InvalidInput also for a zone that Python does not know.

    >>> DateTime("2020-01-01T00:00", "2020-01-01T23:59", unit="hour").size
    24
    """

    type = "datetime"
    becomes = ("datetime", "date", "text")
    units: ClassVar[Mapping[str, str]] = {"second": "s", "minute": "m", "hour": "h", **Date.units}
    stored_as = "datetime64[s]"
    unit: str = "hour"
    zone: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.zone is not None:
            if not is_zone(self.zone):
                raise InvalidInput(
                    f'zone must be a name such as "Europe/Berlin" or "UTC", got {self.zone!r}; if '
                    "this is one, install the operating system's package tzdata"
                )
            clock_times(pa.array([0], pa.timestamp("s", self.zone)))  # Arrow needs the zone, too

    def read(self, values: Any) -> tuple[Codes, NDArray[np.bool_]]:
        return super().read(values if self.zone is None else series_values(values, self.zone))

    def _moment_of(self, value: object) -> np.datetime64:
        if self.zone is not None and isinstance(value, datetime.datetime):
            with contextlib.suppress(Exception):  # any exception is possible, as in text_of
                if value.tzinfo is not None:
                    value = value.astimezone(zoneinfo.ZoneInfo(self.zone))
        return super()._moment_of(value)


def is_zone(name: object) -> bool:
    """Return True for "UTC" and for a name in this machine's database of time zones."""
    return isinstance(name, str) and (name == "UTC" or name in zoneinfo.available_timezones())
