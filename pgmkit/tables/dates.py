"""Columns of dates and of points in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.tables.bins import Binned

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Date", "DateTime"]

_STEPS = {"day": "D", "month": "M", "year": "Y"}
_FINE_STEPS = {"second": "s", "minute": "m", "hour": "h", **_STEPS}


@dataclass(frozen=True)
class _Temporal(Binned):
    """Points in time on numpy's calendar; a code for each `unit`, or `bins`, or between `edges`.

    Values are read from datetimes and ISO 8601 texts; time zones are refused. Decoded values are
    whole units.
    """

    units: ClassVar[Mapping[str, str]]
    """numpy's code of each unit."""
    stored_as: ClassVar[str]
    """The numpy type of decoded values."""
    unit: str = "day"

    def __post_init__(self) -> None:
        if self.unit not in self.units:
            raise InvalidInput(f"unit must be one of {', '.join(self.units)}; got {self.unit!r}")
        super().__post_init__()

    @property
    def step(self) -> str:
        """numpy's code of the unit."""
        return self.units[self.unit]

    def position(self, value: object) -> float:
        text = value if isinstance(value, np.datetime64) else str(value).strip().replace(" ", "T")
        if not isinstance(text, np.datetime64) and _has_zone(text):
            raise ValueError(value)
        moment = np.datetime64(text)
        if np.isnat(moment):
            raise ValueError(value)
        return float(moment.astype(f"datetime64[{self.step}]").astype(np.int64))

    def _from_positions(self, positions: NDArray[np.float64]) -> NDArray[Any]:
        return positions.astype(np.int64).astype(f"datetime64[{self.step}]").astype(self.stored_as)

    def _shown(self, position: float) -> str:
        return str(np.int64(position).astype(f"datetime64[{self.step}]"))


def _has_zone(text: str) -> bool:
    time = text.partition("T")[2]
    return text.endswith("Z") or "+" in time or "-" in time


@dataclass(frozen=True)
class Date(_Temporal):
    """Calendar days from `low` to `high`; `unit`: "day", "month" or "year".

    >>> Date("2020-01-01", "2020-12-31", unit="month").labels[:2]
    ('2020-01', '2020-02')
    """

    type = "date"
    units = _STEPS
    stored_as = "datetime64[D]"


@dataclass(frozen=True)
class DateTime(_Temporal):
    """Points in time from `low` to `high`; `unit`: "second" up to "year".

    >>> DateTime("2020-01-01T00:00", "2020-01-01T23:59", unit="hour").size
    24
    """

    type = "datetime"
    units = _FINE_STEPS
    stored_as = "datetime64[us]"
    unit: str = "hour"
