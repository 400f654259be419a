"""Columns of dates and of points in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.schema.columns import Binned

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

    unit: str = "day"

    def __post_init__(self) -> None:
        if self.unit not in self._units():
            raise InvalidInput(f"unit must be one of {', '.join(self._units())}; got {self.unit!r}")
        super().__post_init__()

    @classmethod
    def _units(cls) -> dict[str, str]:
        raise NotImplementedError

    @property
    def step(self) -> str:
        """numpy's code of the unit."""
        return self._units()[self.unit]

    def position(self, value: object) -> float:
        text = value if isinstance(value, np.datetime64) else str(value).strip().replace(" ", "T")
        if not isinstance(text, np.datetime64) and _has_zone(text):
            raise ValueError(value)
        moment = np.datetime64(text)
        if np.isnat(moment):
            raise ValueError(value)
        return float(moment.astype(f"datetime64[{self.step}]").astype(np.int64))

    def _from_positions(self, positions: NDArray[np.float64]) -> NDArray[Any]:
        return (
            positions.astype(np.int64).astype(f"datetime64[{self.step}]").astype(self._stored_as())
        )

    def _stored_as(self) -> str:
        raise NotImplementedError

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

    @classmethod
    def _units(cls) -> dict[str, str]:
        return _STEPS

    def _stored_as(self) -> str:
        return "datetime64[D]"


@dataclass(frozen=True)
class DateTime(_Temporal):
    """Points in time from `low` to `high`; `unit`: "second" up to "year".

    >>> DateTime("2020-01-01T00:00", "2020-01-01T23:59", unit="hour").size
    24
    """

    type = "datetime"
    unit: str = "hour"

    @classmethod
    def _units(cls) -> dict[str, str]:
        return _FINE_STEPS

    def _stored_as(self) -> str:
        return "datetime64[us]"
